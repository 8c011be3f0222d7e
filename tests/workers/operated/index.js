// Cells that count, and a Worker that tries to get where it has no business.
//
//   GET  /reach?url=URL      what `fetch` makes of it: "status S" or "error: …"
//   POST /<cell>/add         adds one; the number
//   GET  /<cell>/count       the number
//   POST /<cell>/slow?ms=T   adds one after T ms
//   POST /<cell>/compute     computes for some milliseconds
//   POST /<cell>/alarm?ms=T  sets an alarm
//   GET  /unborn             a cell whose constructor throws, once it has a row

import { DurableObject } from "cloudflare:workers";

export class Cell extends DurableObject {
  add() {
    const kv = this.ctx.storage.kv;
    const count = (kv.get("count") ?? 0) + 1;
    kv.put("count", count);
    return count;
  }

  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    const ms = Number(searchParams.get("ms"));
    switch (pathname.slice(pathname.indexOf("/", 1))) {
      case "/add":
        return new Response(`${this.add()}`);
      case "/slow":
        await new Promise((resolve) => setTimeout(resolve, ms));
        return new Response(`${this.add()}`);
      case "/compute": {
        let x = 1;
        for (let n = 0; n < 5_000_000; n++) x = Math.imul(x, 48271) ^ n;
        return new Response(`${x}`);
      }
      case "/alarm":
        await this.ctx.storage.setAlarm(Date.now() + ms);
        return new Response("set");
      default:
        return new Response(`${this.ctx.storage.kv.get("count") ?? 0}`);
    }
  }

  async alarm() {
    this.add();
  }
}

export class Unborn extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    if (ctx.storage.kv.get("lived")) throw new RangeError("born twice");
    ctx.storage.kv.put("lived", true);
  }

  async fetch() {
    return new Response("born");
  }
}

export default {
  async fetch(request, env) {
    const { pathname, searchParams } = new URL(request.url);
    const [, cell] = pathname.split("/");
    try {
      if (cell === "reach") {
        const { status } = await fetch(searchParams.get("url"));
        return new Response(`status ${status}`);
      }
      if (cell === "unborn") return await env.UNBORN.getByName("unborn").fetch(request);
      return await env.CELLS.getByName(cell).fetch(request);
    } catch (error) {
      return new Response(`error: ${error.message}`, { status: cell === "reach" ? 200 : 500 });
    }
  },
};
