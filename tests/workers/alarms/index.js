// Cells whose alarms are heard outside, without anybody calling the cell.
//
//   POST /<cell>/set?in=MS&tell=URL&mode=M[&rpc]  sets the alarm, by a method; answers with its time
//   POST /<cell>/sets?in=MS&count=N          N cells <cell>-0 .. at once, with the same tell
//   POST /<cell>/delete                      deletes it
//   POST /<cell>/tell?tell=URL               sets none: the constructors of `born` and `born-later` do
//   POST /<cell>/abort                       resets the cell
//   GET  /<cell>/alarm[?rpc]                 what getAlarm() shows
//   GET  /<cell>/runs                        how many runs have ended
//
// A run asks `<tell>?cell=<name>&retry=<retryCount>`. Modes: `once`; `throw` every time; `again` sets the
// next alarm from the alarm; `spin` burns its CPU time; the next two starts of a cell that is `broken` fail.

import { DurableObject } from "cloudflare:workers";

/** Of broken cells. */
let starts = 0;

export class Cell extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    if (ctx.id.name === "born") ctx.storage.setAlarm(Date.now() + 1_000);
    if (ctx.id.name === "born-later") {
      ctx.blockConcurrencyWhile(async () => {
        if ((await ctx.storage.getAlarm()) === null) await ctx.storage.setAlarm(Date.now() + 1_000);
      });
    }
    if (ctx.storage.kv.get("mode") === "broken" && starts++ < 2) throw new Error("this cell does not start");
  }

  async set(ms, tell, mode) {
    const { storage } = this.ctx;
    storage.kv.put("tell", tell);
    storage.kv.put("mode", mode);
    const time = Date.now() + Number(ms);
    await storage.setAlarm(time);
    return time;
  }

  time() {
    return this.ctx.storage.getAlarm();
  }

  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    const { storage } = this.ctx;
    switch (`${request.method} ${pathname.slice(pathname.indexOf("/", 1))}`) {
      case "POST /set":
        return new Response(`${await this.set(searchParams.get("in"), searchParams.get("tell"), searchParams.get("mode") ?? "once")}`);
      case "POST /tell":
        storage.kv.put("tell", searchParams.get("tell"));
        return new Response("known");
      case "POST /abort":
        return this.ctx.abort("as asked");
      case "POST /delete":
        await storage.deleteAlarm();
        return new Response("deleted");
      case "GET /alarm":
        return new Response(`${await storage.getAlarm()}`);
      case "GET /runs":
        return new Response(`${storage.kv.get("runs") ?? 0}`);
      default:
        return new Response("no such action\n", { status: 404 });
    }
  }

  async alarm(info) {
    const { storage } = this.ctx;
    const mode = storage.kv.get("mode");
    if (mode === "again") {
      storage.kv.put("mode", "once");
      await storage.setAlarm(Date.now() + 60_000);
    }
    const query = new URLSearchParams({ cell: this.ctx.id.name, retry: info.retryCount, scheduled: info.scheduledTime });
    await fetch(`${storage.kv.get("tell")}?${query}`);
    if (mode === "throw") throw new Error("this alarm always fails");
    if (mode === "spin") for (;;);
    storage.kv.put("runs", (storage.kv.get("runs") ?? 0) + 1);
  }
}

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    const [, cell, action] = url.pathname.split("/");
    try {
      if (action === "sets") {
        url.pathname = `/${cell}/set`;
        const count = Number(url.searchParams.get("count"));
        const all = Array.from({ length: count }, (_, n) => env.CELLS.getByName(`${cell}-${n}`).fetch(url, { method: "POST" }));
        return Response.json(await Promise.all(all.map(async (answer) => Number(await (await answer).text()))));
      }
      const stub = env.CELLS.getByName(cell);
      const search = url.searchParams;
      if (search.has("rpc")) {
        const asked = action === "set" ? stub.set(search.get("in"), search.get("tell"), "once") : stub.time();
        return new Response(`${await asked}`);
      }
      return await stub.fetch(request);
    } catch (error) {
      return new Response(`${error}`, { status: error.retryable ? 503 : 500 });
    }
  },
};
