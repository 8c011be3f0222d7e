// Chat rooms: each is a Durable Object with hibernatable WebSockets and the last messages.
//
// The object may leave memory while its sockets stay connected; a message brings it back. So what it
// has to remember is in the database, and what it knows of a client in the attachment of its socket.
// An alarm clears a room in which nobody has spoken for a week.

import { DurableObject } from "cloudflare:workers";
import page from "./page.html";

/** What a client that joins is shown. */
const SHOWN = 50;
const KEPT = 1_000;
const NAME_MAX = 32;
const TEXT_MAX = 2_000;
const WEEK_MS = 7 * 24 * 60 * 60 * 1_000;

export class Room extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS messages (n INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER, name TEXT, text TEXT)");
    // Browsers that keep a connection alive wake nobody.
    ctx.setWebSocketAutoResponse(new WebSocketRequestResponsePair("ping", "pong"));
  }

  fetch(request) {
    const name = new URL(request.url).searchParams.get("name")?.trim().slice(0, NAME_MAX) || "somebody";
    const [client, server] = Object.values(new WebSocketPair());
    this.ctx.acceptWebSocket(server);
    server.serializeAttachment({ name });
    const { sql } = this.ctx.storage;
    const last = sql.exec("SELECT at, name, text FROM messages ORDER BY n DESC LIMIT ?", SHOWN).toArray().reverse();
    for (const message of last) server.send(JSON.stringify({ kind: "message", ...message }));
    this.tellWhoIsHere();
    return new Response(null, { status: 101, webSocket: client });
  }

  async webSocketMessage(ws, text) {
    if (typeof text !== "string" || text.trim() === "") return;
    if (text.length > TEXT_MAX) {
      ws.close(1009, `${TEXT_MAX} characters are the most`);
      return;
    }
    const { storage } = this.ctx;
    const { name } = ws.deserializeAttachment();
    const message = { at: Date.now(), name, text };
    const { n } = storage.sql.exec("INSERT INTO messages (at, name, text) VALUES (?, ?, ?) RETURNING n", message.at, name, text).one();
    storage.sql.exec("DELETE FROM messages WHERE n <= ?", n - KEPT);
    await storage.setAlarm(message.at + WEEK_MS);
    // Nobody sees it before it would survive a crash.
    this.tellAll({ kind: "message", ...message });
  }

  webSocketClose() {
    this.tellWhoIsHere();
  }

  webSocketError() {
    this.tellWhoIsHere();
  }

  async alarm() {
    this.ctx.storage.sql.exec("DELETE FROM messages");
  }

  tellWhoIsHere() {
    const open = this.ctx.getWebSockets().filter((ws) => ws.readyState === WebSocket.OPEN);
    this.tellAll({ kind: "here", names: open.map((ws) => ws.deserializeAttachment().name).sort() });
  }

  tellAll(what) {
    const text = JSON.stringify(what);
    for (const ws of this.ctx.getWebSockets()) {
      if (ws.readyState === WebSocket.OPEN) ws.send(text);
    }
  }
}

export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    const [, room] = pathname.match(/^\/room\/([^/]+)$/) ?? [];
    if (room !== undefined) {
      if (request.headers.get("upgrade")?.toLowerCase() !== "websocket") {
        return new Response("connect with a WebSocket\n", { status: 426, headers: { upgrade: "websocket" } });
      }
      return env.ROOMS.getByName(decodeURIComponent(room)).fetch(request);
    }
    if (pathname !== "/") return new Response("not found\n", { status: 404 });
    return new Response(page, { headers: { "content-type": "text/html; charset=utf-8" } });
  },
};
