// What the benches load: a stateless answer, a counter, and a cell of a chosen size.
//
//   GET  /hello            "hello", without a cell
//   GET  /counter/<name>   the value
//   POST /counter/<name>   adds one, durably, and answers the new value
//   GET  /call/<name>      the same value, by a call of the method
//   POST /blob/<name>?mb=N makes the database N MB larger
//   GET  /blob/<name>      how many bytes it holds, and one of its rows is read

import { DurableObject } from "cloudflare:workers";

const MB = 1 << 20;

export class Cell extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.sql = ctx.storage.sql;
    this.sql.exec("CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY, value INTEGER)");
    this.sql.exec("CREATE TABLE IF NOT EXISTS blob (id INTEGER PRIMARY KEY, body BLOB)");
  }

  async fetch(request) {
    const url = new URL(request.url);
    const write = request.method === "POST";
    if (url.pathname.startsWith("/blob/")) {
      if (write) this.grow(Number(url.searchParams.get("mb")));
      return new Response(String(this.size()));
    }
    return new Response(String(write ? this.increment() : this.value()));
  }

  value() {
    const rows = this.sql.exec("SELECT value FROM counter WHERE id = 1").toArray();
    return rows.length ? rows[0].value : 0;
  }

  increment() {
    return this.sql
      .exec(
        "INSERT INTO counter VALUES (1, 1) " +
          "ON CONFLICT (id) DO UPDATE SET value = value + 1 RETURNING value",
      )
      .one().value;
  }

  grow(megabytes) {
    for (let n = 0; n < megabytes; n++) {
      const body = new Uint8Array(MB);
      for (let at = 0; at < MB; at += 65_536) crypto.getRandomValues(body.subarray(at, at + 65_536));
      this.sql.exec("INSERT INTO blob (body) VALUES (?)", body);
    }
  }

  size() {
    const last = this.sql.exec("SELECT id, length(body) AS size FROM blob ORDER BY id DESC LIMIT 1");
    const rows = last.toArray();
    return rows.length ? rows[0].id * rows[0].size : 0;
  }
}

export default {
  async fetch(request, env) {
    const [, kind, name] = new URL(request.url).pathname.split("/");
    if (kind === "hello") return new Response("hello");
    if ((kind === "counter" || kind === "blob") && name) {
      return env.CELLS.get(env.CELLS.idFromName(name)).fetch(request);
    }
    if (kind === "call" && name) {
      return new Response(String(await env.CELLS.get(env.CELLS.idFromName(name)).value()));
    }
    return new Response("GET /hello, GET /call/<name>, GET or POST /counter/<name> or /blob/<name>\n");
  },
};
