// Durable counters: each name is a Durable Object with a database of its own.

import { DurableObject } from "cloudflare:workers";

const HELP = `Durable counters.

  GET  /counter/<name>   the value
  POST /counter/<name>   adds one, and answers when the new value is durable
  GET  /hello            an answer without state
`;

export class Counter extends DurableObject {
  async fetch(request) {
    let value = this.ctx.storage.kv.get("value") ?? 0;
    if (request.method === "POST") {
      value += 1;
      this.ctx.storage.kv.put("value", value);
    }
    // The response leaves only once the write above would survive a crash.
    return new Response(`${value}\n`);
  }
}

export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    if (pathname === "/") return new Response(HELP);
    if (pathname === "/hello") return new Response("hello\n");

    const [, name] = pathname.match(/^\/counter\/([^/]+)$/) ?? [];
    if (name === undefined) return new Response("not found; GET / lists what is here\n", { status: 404 });
    if (request.method !== "GET" && request.method !== "POST") {
      return new Response("GET or POST\n", { status: 405, headers: { allow: "GET, POST" } });
    }
    return env.COUNTERS.getByName(decodeURIComponent(name)).fetch(request);
  },
};
