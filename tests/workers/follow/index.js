// Cells that count, and tell which isolate they and the Worker are in.
import { DurableObject } from "cloudflare:workers";

// Worker and cells of one shard are in one isolate, which no other shard has.
let name;
const isolate = () => (name ??= crypto.randomUUID());

export class Cell extends DurableObject {
  async fetch(request) {
    const body = await request.text();
    const count = (this.ctx.storage.kv.get("count") ?? 0) + 1;
    this.ctx.storage.kv.put("count", count);
    const from = request.headers.get("cf-connecting-ip");
    const all = new Set(this.ctx.storage.kv.get("from")).add(from);
    this.ctx.storage.kv.put("from", all);
    return Response.json({ count, body, cell: isolate(), from: [...all] });
  }
}

export default {
  async fetch(request, env) {
    const { searchParams } = new URL(request.url);
    if (searchParams.has("wait")) await scheduler.wait(Number(searchParams.get("wait")));
    const stub = env.CELLS.getByName(searchParams.get("cell"));
    const answer = await (await stub.fetch(request)).json();
    const padding = "x".repeat(searchParams.get("padding") ?? 0);
    return Response.json({ ...answer, worker: isolate(), padding });
  },
};
