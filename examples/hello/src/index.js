// A Worker without state: one variable, one parameter.

export default {
  async fetch(request, env) {
    const name = new URL(request.url).searchParams.get("name") ?? "world";
    return new Response(`${env.GREETING}, ${name}!\n`);
  },
};
