// Guestbooks: entries in SQL, one database for each book, a page that shows and signs them.

import page from "./page.html";
import { Guestbook } from "./guestbook.js";

export { Guestbook };

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    if (url.pathname === "/") {
      return new Response(page, { headers: { "content-type": "text/html; charset=utf-8" } });
    }
    const [, name] = url.pathname.match(/^\/books\/([\w-]{1,64})\/entries$/) ?? [];
    if (name === undefined) return Response.json({ error: "not found" }, { status: 404 });
    return env.BOOKS.getByName(name).fetch(request);
  },
};
