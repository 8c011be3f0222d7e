// Cells that keep what clients wrote, and show it whole.
//
//   GET  /                                  answers without a cell
//   GET  /<cell>/id                         its id
//   GET  /<cell>/now                        its wall clock, in ms
//   GET  /<cell>/rows?after=N               "n writer seq" for each row behind N
//   POST /<cell>/append?writer=W&seq=S      one row, one commit
//   POST /<cell>/many?writer=W&from=S&count=C&pause=P   C rows, each in a commit of its own, with P ms
//                                           (or none) between them; their numbers
//   POST /<cell>/burst?writer=W&count=C&bytes=B   C rows at once, each by a method with B bytes more;
//                                           for each its number, or why there is none
//   POST /<cell>/slow?writer=W&seq=S&ms=T   one row, after T ms
//   GET  /<cell>/slow                       how many of those run
//   POST /<cell>/compute                    computes for ever
//   POST /<cell>/abort                      drops the cell out of memory
//   POST /<cell>/blob?n=N&bytes=B           B pseudo-random bytes that N determines
//   GET  /<cell>/blob?n=N                   the same bytes
//   GET  /<cell>/value, POST /<cell>/value?is=V   one value under one key
//   POST /<cell>/cursor                     opens a cursor over the rows and leaves it there
//   POST /<cell>/cursor/next                its next row
//
// Every other row is appended, and read, by a call of a method.

import { DurableObject } from "cloudflare:workers";

export class Cell extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.sql = ctx.storage.sql;
    this.slow = 0;
    this.sql.exec(
      "CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY AUTOINCREMENT, writer INTEGER, seq INTEGER)",
    );
    this.sql.exec("CREATE TABLE IF NOT EXISTS blobs (n INTEGER PRIMARY KEY, body BLOB)");
  }

  append(writer, seq, _padding) {
    const [row] = this.sql.exec("INSERT INTO rows (writer, seq) VALUES (?, ?) RETURNING n", writer, seq);
    return row.n;
  }

  rows(after) {
    const lines = [];
    for (const row of this.sql.exec("SELECT n, writer, seq FROM rows WHERE n > ? ORDER BY n", after)) {
      lines.push(`${row.n} ${row.writer} ${row.seq}\n`);
    }
    return lines.join("");
  }

  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    const number = (name) => Number(searchParams.get(name) ?? 0);
    const action = `${request.method} ${pathname.slice(pathname.indexOf("/", 1))}`;
    switch (action) {
      case "GET /id":
        return new Response(this.ctx.id.toString());
      case "GET /now":
        return new Response(`${Date.now()}`);
      case "GET /rows": {
        return new Response(this.rows(number("after")));
      }
      case "POST /append":
        return new Response(`${this.append(number("writer"), number("seq"))}\n`);
      case "GET /slow":
        return new Response(`${this.slow}`);
      case "POST /slow":
        this.slow += 1;
        await new Promise((resolve) => setTimeout(resolve, number("ms")));
        this.slow -= 1;
        return new Response(`${this.append(number("writer"), number("seq"))}\n`);
      case "POST /compute":
        for (;;);
      case "POST /abort":
        this.ctx.abort("as it was asked to");
        break;
      case "POST /many": {
        const [writer, from, count] = ["writer", "from", "count"].map(number);
        const numbers = [];
        for (let i = 0; i < count; i += 1) {
          numbers.push(`${this.append(writer, from + i)}\n`);
          // Ends the turn, and with it the commit.
          await new Promise((resolve) => setTimeout(resolve, number("pause")));
        }
        return new Response(numbers.join(""));
      }
      case "POST /blob": {
        const bytes = noise(number("n"), number("bytes"));
        this.sql.exec("INSERT OR REPLACE INTO blobs (n, body) VALUES (?, ?)", number("n"), bytes);
        return new Response("stored\n");
      }
      case "GET /blob": {
        const [row] = this.sql.exec("SELECT body FROM blobs WHERE n = ?", number("n"));
        return row ? new Response(row.body) : new Response("no such blob\n", { status: 404 });
      }
      case "GET /value":
        return new Response(`${this.ctx.storage.kv.get("value") ?? "none"}`);
      case "POST /value":
        this.ctx.storage.kv.put("value", searchParams.get("is"));
        return new Response(searchParams.get("is"));
      case "POST /cursor":
        this.cursor = this.sql.exec("SELECT n, writer, seq FROM rows ORDER BY n");
        return next(this.cursor);
      case "POST /cursor/next":
        return next(this.cursor);
      default:
        return new Response(`no such action: ${action}\n`, { status: 404 });
    }
  }
}

function next(cursor) {
  const { done, value } = cursor.next();
  return new Response(done ? "done\n" : `${value.n} ${value.writer} ${value.seq}\n`);
}

// xorshift32, little-endian words: the tests compute the same.
function noise(seed, bytes) {
  const words = new Uint32Array(Math.ceil(bytes / 4));
  let x = (Math.imul(seed, 2654435761) >>> 0) || 1;
  for (let i = 0; i < words.length; i += 1) {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    words[i] = x;
  }
  return new Uint8Array(words.buffer, 0, bytes);
}

function ask(stub, request, action, search) {
  const number = (name) => Number(search.get(name) ?? 0);
  if (action === "append" && number("seq") % 2 === 1) return stub.append(number("writer"), number("seq")).then((n) => new Response(`${n}\n`));
  if (action === "rows" && number("after") % 2 === 1) return stub.rows(number("after")).then((rows) => new Response(rows));
  return stub.fetch(request);
}

async function burst(stub, search) {
  const [writer, count, bytes] = ["writer", "count", "bytes"].map((name) => Number(search.get(name)));
  const padding = "x".repeat(bytes);
  const calls = Array.from({ length: count }, (_, seq) => stub.append(writer, seq, padding).then((n) => `${n}`, (error) => error.message));
  return new Response((await Promise.all(calls)).join("\n"));
}

export default {
  async fetch(request, env) {
    const { pathname, searchParams } = new URL(request.url);
    const [, cell, action] = pathname.split("/");
    if (cell === "") return new Response("no cell\n");
    try {
      if (action === "burst") return await burst(env.CELLS.getByName(cell), searchParams);
      return await ask(env.CELLS.getByName(cell), request, action, searchParams);
    } catch (error) {
      const { message, retryable, overloaded, durableObjectReset } = error;
      const status = retryable || overloaded ? 503 : 500;
      return Response.json({ message, retryable, overloaded, durableObjectReset }, { status });
    }
  },
};
