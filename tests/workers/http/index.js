// A Worker with a path for each thing that the tests want to see.

import { DurableObject } from 'cloudflare:workers';
import text from './page.txt';
import data from './raw.bin';
import wasm from './add.wasm';
import tree from './tree.json';

const encoder = new TextEncoder();
/** What happened after responses were out; one shard, so one list. */
const events = [];

function spin() {
  for (;;);
}

function hog() {
  const kept = [];
  for (;;) kept.push(new Array(10_000).fill(kept.length));
}

/** `bytes` bytes, made one piece at a time, each with its number. */
function numbered(bytes, name) {
  let left = bytes;
  let number = 0;
  return new ReadableStream({
    pull(controller) {
      if (left <= 0) return controller.close();
      const piece = new Uint8Array(Math.min(left, 65536)).fill(number++ % 251);
      left -= piece.length;
      controller.enqueue(piece);
    },
    cancel(reason) {
      events.push(`${name} cancelled`);
    },
  });
}

/** Counts bytes and checks that the pieces of `numbered` come in order. */
async function check(stream) {
  let bytes = 0;
  for await (const piece of stream) {
    for (const byte of piece) {
      if (byte !== Math.floor(bytes / 65536) % 251) return `wrong at ${bytes}`;
      bytes++;
    }
  }
  return `${bytes} right`;
}

function describe(error) {
  const { name, message, stack, retryable, overloaded, durableObjectReset } = error;
  return Response.json({ name, message, stack, retryable, overloaded, durableObjectReset });
}

let failures = 1;

function failToStart(ctx) {
  switch (ctx.id.name) {
    case 'fails-once':
      if (failures-- > 0) throw new Error('not yet');
      return;
    case 'section-throws':
      ctx.blockConcurrencyWhile(async () => { throw new RangeError('in a section'); });
      return;
    case 'section-throws-later':
      ctx.blockConcurrencyWhile(async () => {
        await scheduler.wait(5);
        throw new RangeError('in a section');
      });
      return;
    case 'starts-with-abort':
      ctx.abort('at the start');
      return;
    case 'starts-with-spin':
      spin();
  }
}

export class Cell extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    failToStart(ctx);
    this.seen = [];
    this.memory = 0;
  }

  async fetch(request) {
    const url = new URL(request.url);
    switch (url.pathname) {
      case '/spin': return spin();
      case '/spin-later':
        await scheduler.wait(1);
        return spin();
      case '/spin-sql': return this.spinSql('SELECT count(*) FROM endless');
      case '/spin-sql-write':
        this.ctx.storage.kv.put('n', 99);
        return this.spinSql('CREATE TABLE t AS SELECT * FROM endless');
      case '/hog': return hog();
      case '/add': {
        const next = (this.ctx.storage.kv.get('n') ?? 0) + 1;
        this.ctx.storage.kv.put('n', next);
        return new Response(`${next}`);
      }
      case '/memory': return new Response(`${++this.memory}`);
      case '/throw': throw Object.assign(new RangeError('from the cell'), { retryable: true });
      case '/abort':
        this.ctx.abort('told to');
        return new Response('never');
      case '/echo': return new Response(request.body);
      case '/check': return new Response(await check(request.body));
      case '/numbered': return new Response(numbered(Number(url.searchParams.get('bytes')), 'cell stream'));
      case '/order':
        this.seen.push(Number(url.searchParams.get('i')));
        return new Response(`${this.seen.length}`);
      case '/block': {
        // Others wait until the section is over, and then come in their order.
        this.seen.push('before');
        await this.ctx.blockConcurrencyWhile(async () => {
          await scheduler.wait(50);
          this.seen.push('inside');
        });
        return new Response('');
      }
      case '/block-throws':
        await this.ctx.blockConcurrencyWhile(async () => {
          throw new Error('in the section');
        });
        return new Response('never');
      case '/seen': return Response.json(this.seen);
      default: return new Response('no such path', { status: 404 });
    }
  }

  spinSql(statement) {
    const endless = 'WITH RECURSIVE endless(n) AS (SELECT 1 UNION ALL SELECT 1 FROM endless)';
    const [first, ...rest] = statement.split('SELECT');
    for (;;) {
      try {
        this.ctx.storage.sql.exec(`${first} ${endless} SELECT ${rest.join('SELECT')}`).toArray();
      } catch { /* Again. */ }
    }
  }
}

async function modules() {
  const { exports } = await WebAssembly.instantiate(wasm);
  const { late } = await import('./late.js');
  const nowhere = './missing.js';
  const missing = await import(nowhere).then(() => 'found', (error) => error.constructor.name);
  return Response.json({
    text, data: [...new Uint8Array(data)], tree, late, missing, sum: exports.add(40, 2), isModule: wasm instanceof WebAssembly.Module,
  });
}

async function many(env, search) {
  const stub = env.CELLS.getByName(search.get('name'));
  const calls = [];
  for (let i = 0; i < Number(search.get('n')); i++) calls.push(stub.fetch(`http://cell/order?i=${i}`).then((reply) => reply.text()));
  const settled = await Promise.allSettled(calls);
  const failed = settled.filter((end) => end.status === 'rejected');
  const inOrder = settled.every((end, i) => end.value === `${i + 1}`);
  return Response.json({ failed: failed.length, why: failed[0]?.reason.message, inOrder });
}

async function fetched(search) {
  const init = { redirect: search.get('redirect') ?? 'follow', method: search.get('method') ?? 'GET' };
  if (search.has('body')) init.body = search.get('body');
  if (search.has('abort')) init.signal = AbortSignal.timeout(Number(search.get('abort')));
  try {
    const reply = await fetch(search.get('url'), init);
    const { status, statusText, url, redirected, headers } = reply;
    return Response.json({ status, statusText, url, redirected, headers: [...headers], body: await reply.text() });
  } catch (error) {
    return describe(error);
  }
}

export default {
  async fetch(request, env, ctx) {
    const url = new URL(request.url);
    const search = url.searchParams;
    switch (url.pathname) {
      case '/ok': return new Response('ok');
      case '/events': return Response.json(events);
      case '/status': return new Response(null, { status: Number(search.get('status')), statusText: search.get('text') ?? '' });
      case '/length': {
        if (search.has('head')) return new Response(null, { headers: { 'content-length': search.get('head') } });
        return new Response('0123456789', search.has('claim') ? { headers: { 'content-length': search.get('claim') } } : {});
      }
      case '/stream-length':
        return new Response(new Blob(['0123456789']).stream().pipeThrough(new TransformStream()), { headers: { 'content-length': search.get('claim') } });
      case '/stream': return new Response(numbered(Number(search.get('bytes')), 'stream'));
      case '/echo': return new Response(request.body);
      case '/echo-through': return new Response(request.body.pipeThrough(new TransformStream()));
      case '/check': return new Response(await check(request.body));
      case '/ticks': {
        request.signal.addEventListener('abort', () => events.push('ticks: signal'));
        return new Response(new ReadableStream({
          async pull(controller) {
            await scheduler.wait(5);
            controller.enqueue(encoder.encode('tick\n'));
          },
          cancel() {
            events.push('ticks: cancelled');
          },
        }));
      }
      case '/slow':
        request.signal.addEventListener('abort', () => events.push('slow: signal'));
        ctx.waitUntil(scheduler.wait(200).then(() => events.push('slow: waited')));
        await scheduler.wait(60_000);
        return new Response('late');
      case '/later':
        ctx.waitUntil(scheduler.wait(100).then(() => events.push('later: waited')));
        return new Response('now');
      case '/half': {
        let pieces = 0;
        return new Response(new ReadableStream({
          async pull(controller) {
            await scheduler.wait(20);
            if (pieces++ < 2) controller.enqueue(encoder.encode('piece'));
            else throw new Error('half-way');
          },
        }));
      }
      case '/upload-breaks':
        await request.arrayBuffer().then(() => events.push('upload: whole'), (error) => events.push(`upload: ${error.name}`));
        return new Response('');
      case '/spin': return spin();
      case '/spin-later':
        await scheduler.wait(1);
        return spin();
      case '/spin-in-stream': return new Response(new ReadableStream({ pull: spin }, { highWaterMark: 0 }));
      case '/hog': return hog();
      case '/throw': throw new TypeError('thrown');
      case '/pass':
        ctx.passThroughOnException();
        throw new TypeError('thrown after passThroughOnException');
      case '/reject':
        Promise.reject(new Error('nobody waits for this'));
        return new Response('ok');
      case '/timer-throws':
        setTimeout(() => {
          throw new Error('thrown in a timer');
        }, 1);
        await scheduler.wait(20);
        return new Response('ok');
      case '/no-response': return 'a text';
      case '/env': return Response.json({ TEXT: env.TEXT, TREE: env.TREE });
      case '/modules': return modules();
      case '/many': return many(env, search);
      case '/fetch': return fetched(search);
      case '/proxy': return fetch(search.get('url'), { method: request.method, body: request.body, headers: request.headers });
      case '/cell': return env.CELLS.getByName(search.get('name')).fetch(new Request(`http://cell${search.get('path')}`, request));
      case '/cell-error':
        try {
          const reply = await env.CELLS.getByName(search.get('name')).fetch(`http://cell${search.get('path')}`);
          return new Response(await reply.text());
        } catch (error) {
          return describe(error);
        }
      case '/cell-check': {
        const bytes = Number(search.get('bytes'));
        const cell = env.CELLS.getByName(search.get('name'));
        const there = await cell.fetch('http://cell/check', { method: 'POST', body: numbered(bytes, 'up') });
        const back = await cell.fetch(`http://cell/numbered?bytes=${bytes}`);
        return Response.json([await there.text(), await check(back.body)]);
      }
      case '/cell-cancel': {
        const reply = await env.CELLS.getByName(search.get('name')).fetch('http://cell/numbered?bytes=100000000');
        const reader = reply.body.getReader();
        await reader.read();
        await reader.cancel('enough');
        return new Response('cancelled');
      }
      default:
        return Response.json({ url: request.url, method: request.method, headers: [...request.headers], body: await request.text() });
    }
  },

  scheduled(controller, env, ctx) {
    if (controller.cron === 'fails') throw new Error('the schedule failed');
    ctx.waitUntil(scheduler.wait(1).then(() => events.push(`scheduled ${controller.cron} ${controller.scheduledTime}`)));
  },
};
