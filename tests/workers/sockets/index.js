// Rooms with WebSockets, accepted and hibernatable ones.
//
//   GET /<room>/plain            a WebSocket that the room has accepted
//   GET /<room>/hib?tag=T        a hibernatable one
//   GET /<room>/events           what the room has heard of Closes and errors, one a line
//   GET /<room>/slow?ms=T        an answer after T ms; the room notes that it begins
//   GET /<room>/relay?to=URL     which version this is, and what a server outside says to it
//   GET /<room>/refuse           status 403, also for a WebSocket
//   GET /worker/echo             a WebSocket of the Worker itself
//   GET /out/constructor?to=URL  the Worker asks a server outside for a WebSocket, sends it three messages,
//   GET /out/fetch?to=URL        and answers with what came back
//
// A message is echoed, but for the words below (`obey`).

import { DurableObject } from "cloudflare:workers";

const VERSION = "first";
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Room extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS events (n INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT)");
    this.life = (ctx.storage.kv.get("life") ?? 0) + 1;
    ctx.storage.kv.put("life", this.life);
    console.log(`life ${this.life} of ${ctx.id.name ?? "a room"}`);
  }

  note(text) {
    this.ctx.storage.sql.exec("INSERT INTO events (text) VALUES (?)", text);
  }

  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    const [client, server] = Object.values(new WebSocketPair());
    switch (pathname.slice(pathname.indexOf("/", 1))) {
      case "/events": {
        const rows = this.ctx.storage.sql.exec("SELECT text FROM events ORDER BY n").toArray();
        return new Response(rows.map(({ text }) => `${text}\n`).join(""));
      }
      case "/slow":
        this.note("slow");
        await sleep(Number(searchParams.get("ms")));
        return new Response("at last\n");
      case "/relay":
        return new Response(`${VERSION} ${await (await fetch(searchParams.get("to"))).text()}`);
      case "/refuse":
        return new Response("not here\n", { status: 403 });
      case "/hib":
        this.ctx.acceptWebSocket(server, searchParams.getAll("tag"));
        this.ctx.setWebSocketAutoResponse(new WebSocketRequestResponsePair("ping", "pong"));
        break;
      case "/plain":
        server.binaryType = "arraybuffer";
        server.accept({ allowHalfOpen: searchParams.has("half") });
        server.addEventListener("message", ({ data }) => this.obey(server, data));
        server.addEventListener("close", ({ code, reason, wasClean }) => this.note(`close ${code} ${reason} ${wasClean}`));
        server.addEventListener("error", ({ error }) => this.note(`error ${error.message}`));
        break;
      default:
        return new Response("no such action\n", { status: 404 });
    }
    const protocol = request.headers.get("sec-websocket-protocol")?.split(",")[0];
    const headers = protocol ? { "sec-websocket-protocol": protocol } : {};
    return new Response(null, { status: 101, webSocket: client, headers });
  }

  webSocketMessage(ws, message) {
    return this.obey(ws, message);
  }

  webSocketClose(ws, code, reason, wasClean) {
    this.note(`close ${code} ${reason} ${wasClean}`);
  }

  webSocketError(ws, error) {
    this.note(`error ${error.message}`);
  }

  async obey(ws, message) {
    const [word, ...rest] = typeof message === "string" ? message.split(" ") : [""];
    const { storage } = this.ctx;
    switch (word) {
      case "close":
        ws.close(Number(rest[0]), rest.slice(1).join(" "));
        break;
      case "life":
        ws.send(`life ${this.life}`);
        break;
      case "version":
        ws.send(VERSION);
        break;
      case "attach":
        ws.serializeAttachment(rest[0]);
        break;
      case "attached":
        ws.send(`${ws.deserializeAttachment()} ${this.ctx.getTags(ws)} ${this.ctx.getWebSockets(rest[0]).length}`);
        break;
      case "count":
        for (let n = 0; n < Number(rest[0]); n++) ws.send(`${n}`);
        break;
      case "bytes":
        ws.send(new Uint8Array(Number(rest[0])).fill(7));
        break;
      case "flood": {
        // Pieces of a MiB, with a breath between two of them.
        const piece = new Uint8Array(1 << 20);
        for (let n = 0; n < Number(rest[0]); n++) {
          ws.send(piece);
          await sleep(1);
        }
        this.note("flooded");
        break;
      }
      case "write":
        storage.kv.put("value", rest[0]);
        ws.send(`wrote ${rest[0]}`);
        break;
      case "alarm":
        await storage.setAlarm(Date.now() + 600_000);
        ws.send("armed");
        break;
      case "armed?":
        ws.send(String((await storage.getAlarm()) !== null));
        break;
      case "slow":
        await this.ctx.blockConcurrencyWhile(() => sleep(Number(rest[0])));
        ws.send("slow");
        break;
      case "abort":
        this.ctx.abort("as was asked");
        break;
      case "all":
        for (const other of this.ctx.getWebSockets(rest[0])) other.send("to all");
        break;
      default:
        ws.send(message);
    }
  }

  alarm() {}
}

function echo(ws) {
  ws.binaryType = "arraybuffer";
  ws.accept();
  ws.addEventListener("message", ({ data }) => ws.send(data));
}

async function outside(kind, to) {
  const heard = [];
  const ws = kind === "constructor" ? new WebSocket(to, ["one", "two"])
    : (await fetch(to.replace(/^ws/, "http"), { headers: { upgrade: "websocket" } })).webSocket;
  ws.binaryType = "arraybuffer";
  const over = new Promise((resolve) => {
    ws.addEventListener("message", ({ data }) => {
      heard.push(typeof data === "string" ? data : `bytes ${data.byteLength}`);
      if (heard.length === 3) ws.close(3003, "thanks");
    });
    ws.addEventListener("error", ({ message }) => heard.push(message));
    ws.addEventListener("close", ({ code, reason, wasClean }) => resolve(`close ${code} ${reason} ${wasClean}`));
  });
  const begin = () => ["first", new Uint8Array(70_000), "third"].forEach((message) => ws.send(message));
  if (kind === "constructor") {
    ws.addEventListener("open", begin);
  } else {
    ws.accept();
    begin();
  }
  heard.push(await over, `protocol ${ws.protocol}`);
  return new Response(heard.map((line) => `${line}\n`).join(""));
}

export default {
  async fetch(request, env) {
    const { pathname, searchParams } = new URL(request.url);
    const [, room, action] = pathname.split("/");
    if (room === "out") return outside(action, searchParams.get("to"));
    if (room === "worker") {
      const [client, server] = Object.values(new WebSocketPair());
      echo(server);
      return new Response(null, { status: 101, webSocket: client });
    }
    return env.ROOMS.getByName(room).fetch(request);
  },
};
