// One guestbook: its table, and the two things that can be done with it.

import { DurableObject } from "cloudflare:workers";

const NAME_MAX = 60;
const TEXT_MAX = 1000;
const SHOWN = 50;

export class Guestbook extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.sql = ctx.storage.sql;
    this.sql.exec(`CREATE TABLE IF NOT EXISTS entries (
      id INTEGER PRIMARY KEY, at INTEGER NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL)`);
  }

  async fetch(request) {
    switch (request.method) {
      case "GET":
        return Response.json(this.latest());
      case "POST":
        return this.sign(request);
      default:
        return Response.json({ error: "GET or POST" }, { status: 405, headers: { allow: "GET, POST" } });
    }
  }

  latest() {
    const entries = this.sql.exec("SELECT id, at, name, text FROM entries ORDER BY id DESC LIMIT ?", SHOWN).toArray();
    const { total } = this.sql.exec("SELECT count(*) AS total FROM entries").one();
    return { total, entries };
  }

  async sign(request) {
    let body;
    try {
      body = await request.json();
    } catch {
      return Response.json({ error: "the body must be JSON" }, { status: 400 });
    }
    const name = String(body?.name ?? "").trim();
    const text = String(body?.text ?? "").trim();
    if (!name || !text || name.length > NAME_MAX || text.length > TEXT_MAX) {
      const error = `name (up to ${NAME_MAX} characters) and text (up to ${TEXT_MAX}) are needed`;
      return Response.json({ error }, { status: 400 });
    }
    const entry = this.sql
      .exec("INSERT INTO entries (at, name, text) VALUES (?, ?, ?) RETURNING id, at, name, text", Date.now(), name, text)
      .one();
    return Response.json(entry, { status: 201 });
  }
}
