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
    return Response.json({ count, body, cell: isolate() });
  }
}

export default {
  async fetch(request, env) {
    const { searchParams } = new URL(request.url);
    const stub = env.CELLS.getByName(searchParams.get("cell"));
    const answer = await (await stub.fetch(request)).json();
    const padding = "x".repeat(searchParams.get("padding") ?? 0);
    return Response.json({ ...answer, worker: isolate(), padding });
  },
};
