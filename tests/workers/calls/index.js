// Calls of cells, and what callers and cells learn of each other.
//
//   GET /many?n=N            N calls of cells and, with ?cell, the same from within a cell: what failed, after how many
//   GET /error?cell=C&path=P the error of a call: [text, remote, retryable, overloaded, durableObjectReset]
//   GET /give-up?cell=C      calls a cell that waits, and gives up after a moment: the error's text
//   GET /own?cell=C          the error of a call with properties of its own: [text, properties]
//   GET /thrown?cell=C&what=W  all that can be seen of an error: [class, text, frames of its stack, {property: value}]
//   GET /request?cell=C&body=B[&stream][&length=N][&path=/moved]  what the cell gets: [method, url, headers, body]
//   GET /broken?cell=C[&length=N][&more=M]  how a body that fails on its way looks: [status, class, text, remote, retryable, overloaded]
//   GET /through?cell=C&path=P  the answer of the cell
//   GET /refused             the error of a fetch that nobody answers: [name, whether the connection was lost, retryable]
//   GET /abort               calls ctx.abort
//   GET /hang, /hang-later, /hang-with-stream  waits for what never comes
//   GET /share[?keep=MS]     waits for a promise that the request with `keep` settles
//   GET /heard?cell=C        what that cell heard: the reason of its request's signal
//   GET /order?cell=C&n=N[&bodies|&rpc]  N calls on one stub, none of which waits for another: in which order they came.
//                            With `rpc` two of three are calls of a method, with arguments of up to N * 10 KB
//   GET /method?cell=C&name=N&bytes=B  calls that method with B bytes: what it returned, or [class, text, remote, retryable, durableObjectReset]

import { DurableObject } from 'cloudflare:workers';

async function many(env, n) {
  let sent = 0;
  try {
    while (sent < n) {
      await (await env.CELLS.getByName(`one of ${sent}`).fetch('http://cell/')).text();
      sent++;
    }
  } catch (error) {
    return new Response(`${sent} ${error}`);
  }
  return new Response(`${sent} sent`);
}

class Named extends Error {
  name = 'Named';
  code = 7;
}

const ERRORS = {
  own: () => Object.assign(new TypeError('own', { cause: new RangeError('inner') }), { code: 42, extra: { a: [1, new Date(0)] } }),
  named: () => new Named('named'),
  marks: () => Object.assign(new Error('marks'), { remote: false, retryable: true, overloaded: true, durableObjectReset: true }),
  hidden: () => Object.defineProperty(new SyntaxError('hidden'), 'hid', { value: 1 }),
  many: () => new AggregateError([new EvalError('one')], 'many'),
  bytes: () => Object.assign(new Error('bytes'), { bytes: new Uint8Array(20_000).fill(7) }),
  large: () => Object.assign(new Error('large'), { code: 'x'.repeat(200_000) }),
  function: () => Object.assign(new Error('function'), { code: 1, call() {} }),
  string: () => 'a string',
};

/** What a value is, with what JSON leaves out. */
function shown(value) {
  if (value instanceof Error) return `${value.constructor.name} ${value}`;
  if (value instanceof Date) return `Date ${value.getTime()}`;
  if (value instanceof Uint8Array) return `${value.length} bytes, ${new Set(value).size} different`;
  if (Array.isArray(value)) return value.map(shown);
  if (typeof value === 'object' && value !== null) return Object.fromEntries(Object.entries(value).map(([name, of]) => [name, shown(of)]));
  return typeof value === 'string' ? value : `${typeof value} ${value}`;
}

export class Cell extends DurableObject {
  heard = 'nothing';
  order = [];

  constructor(ctx, env) {
    super(ctx, env);
    if (ctx.id.name === 'unborn') throw new RangeError('in the constructor');
  }

  async putAndAbort(isSynced) {
    await this.ctx.storage.put('value', 1);
    if (isSynced) await this.ctx.storage.sync();
    this.ctx.storage.put('value', 2);
    await Promise.resolve();
    this.ctx.abort('after the writes');
  }

  note(n, padding) {
    this.order.push(n);
    return padding;
  }

  /** What it is given, or more than a message may have. */
  large(padding = 'y'.repeat(40 << 20)) {
    return padding;
  }

  fails() {
    throw Object.assign(new RangeError('failed'), { code: 7 });
  }

  leaves() {
    this.ctx.abort('left');
  }

  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    switch (pathname) {
      case '/many': return many(this.env, Number(searchParams.get('n')));
      case '/throw': throw new RangeError('thrown');
      case '/throw-later':
        await scheduler.wait(1);
        throw new SyntaxError('thrown later');
      case '/abort': return this.ctx.abort('told to');
      case '/thrown': throw ERRORS[searchParams.get('what')]();
      case '/own': throw Object.assign(new RangeError('own'), { code: 'E_OWN', of: { this: [1] } });
      case '/put-and-abort': return this.putAndAbort(searchParams.get('sync') !== null);
      case '/value': return new Response(`${await this.ctx.storage.get('value')}`);
      case '/request': {
        const { method, url, headers } = request;
        return Response.json([method, url, Object.fromEntries(headers), await request.text()]);
      }
      case '/moved': return new Response('moved', { status: 307, headers: { location: '/request' } });
      case '/breaks': {
        const length = searchParams.get('length');
        const { readable, writable } = length === null ? new TransformStream() : new FixedLengthStream(Number(length));
        const writer = writable.getWriter();
        const error = Object.assign(new RangeError(`the disk is on fire ${'!'.repeat(Number(searchParams.get('more')))}`), { retryable: true });
        writer.write(new TextEncoder().encode('first')).then(() => writer.abort(error)).catch(() => {});
        return new Response(readable);
      }
      case '/never': return new Promise(() => {});
      case '/heard': return new Response(this.heard);
      case '/note': return new Response(`${this.order.push(searchParams.get('n'))}`);
      case '/noted': return new Response(this.order.splice(0).join());
      case '/wait': {
        this.heard = 'the call';
        request.signal.addEventListener('abort', () => { this.heard = `${request.signal.reason}`; });
        await scheduler.wait(60_000);
        return new Response('late');
      }
      default: return new Response('here');
    }
  }
}

/** What the promises of two requests wait for. */
const shared = {};

async function share(search) {
  if (search.has('keep')) {
    shared.promise = scheduler.wait(Number(search.get('keep'))).then(() => 'settled');
    return new Response(await shared.promise);
  }
  while (shared.promise === undefined) await scheduler.wait(10);
  return new Response(await shared.promise);
}

export default {
  async fetch(request, env, ctx) {
    const url = new URL(request.url);
    const { pathname, searchParams: search } = url;
    const cell = env.CELLS.getByName(search.get('cell') ?? 'c');
    switch (pathname) {
      case '/many':
        if (search.has('cell')) return cell.fetch(`http://cell/many?n=${search.get('n')}`);
        return many(env, Number(search.get('n')));
      case '/error':
        try {
          return await cell.fetch(`http://cell${search.get('path')}`);
        } catch (error) {
          const { remote, retryable, overloaded, durableObjectReset } = error;
          return Response.json([`${error}`, ...[remote, retryable, overloaded, durableObjectReset].map((mark) => mark ?? null)]);
        }
      case '/give-up': {
        const controller = new AbortController();
        const call = cell.fetch('http://cell/wait', { signal: controller.signal }).catch((error) => `${error}`);
        while ((await (await cell.fetch('http://cell/heard')).text()) === 'nothing') await scheduler.wait(5);
        controller.abort(new Error('no longer wanted'));
        return new Response(await call);
      }
      case '/heard': return cell.fetch('http://cell/heard');
      case '/order': {
        const calls = [];
        for (let n = 0; n < Number(search.get('n')); n++) {
          if (search.has('rpc') && n % 3 !== 0) {
            const padding = 'x'.repeat((n % 5) * 10_000);
            calls.push(cell.note(n, padding).then((same) => {
              if (same !== padding) throw new Error(`${same.length} bytes came back of ${padding.length}`);
            }));
            continue;
          }
          // Some of the bodies are longer than what goes at once.
          const init = search.has('bodies') && n % 3 !== 0 ? { method: 'POST', body: 'x'.repeat(n * 2_500) } : {};
          calls.push(cell.fetch(`http://cell/note?n=${n}`, init).then((answer) => answer.text()));
          // Answers come in between, now and then.
          if (n % 4 === 3) await scheduler.wait(1);
        }
        await Promise.all(calls);
        return cell.fetch('http://cell/noted');
      }
      case '/request': {
        const [body, length] = [search.get('body'), Number(search.get('length') ?? -1)];
        const stream = length >= 0 ? new FixedLengthStream(length) : new TransformStream();
        if (search.has('stream')) {
          const writer = stream.writable.getWriter();
          writer.write(new TextEncoder().encode(body)).then(() => writer.close());
        }
        const method = body === null ? 'GET' : 'POST';
        return cell.fetch(`http://cell${search.get('path') ?? '/request'}`, { method, body: search.has('stream') ? stream.readable : body });
      }
      case '/method': {
        const args = search.has('bytes') ? ['x'.repeat(Number(search.get('bytes')))] : [];
        try {
          const value = await cell[search.get('name')](...args);
          return Response.json(typeof value === 'string' ? value.length : value);
        } catch (error) {
          return Response.json([error.constructor.name, error.message, error.remote, error.retryable, error.durableObjectReset, error.code]);
        }
      }
      case '/own': {
        const error = await cell.fetch('http://cell/own').then(() => null, (reason) => reason);
        return Response.json([`${error}`, { ...error }]);
      }
      case '/thrown': {
        const error = await cell.fetch(`http://cell/thrown?what=${search.get('what')}`).then(() => null, (reason) => reason);
        const { stack, message, ...own } = Object.getOwnPropertyDescriptors(error);
        const properties = Object.entries(own).map(([name, { value }]) => [name, shown(value)]).sort();
        const frames = (stack?.value ?? '').split('\n').filter((line) => line.startsWith('    at '));
        return Response.json([error.constructor.name, `${error}`, frames.length, Object.fromEntries(properties)]);
      }
      case '/broken': {
        const answer = await cell.fetch(`http://cell/breaks${url.search}`);
        const error = await answer.text().then(() => null, (reason) => reason);
        const { remote, retryable, overloaded } = error;
        return Response.json([answer.status, error.constructor.name, `${error}`, remote, retryable, overloaded ?? null]);
      }
      case '/through': return cell.fetch(`http://cell${search.get('path')}`);
      case '/refused': {
        const error = await fetch('http://127.0.0.1:1/').then(() => null, (reason) => reason);
        return Response.json([error.name, error.message.startsWith('Network connection lost'), error.retryable]);
      }
      case '/abort': return ctx.abort(new RangeError('aborted'));
      case '/hang': return new Promise(() => {});
      case '/hang-later': {
        await scheduler.wait(20);
        ctx.waitUntil(new Promise(() => {}));
        request.signal.addEventListener('abort', () => {});
        return new Promise(() => {});
      }
      case '/hang-with-stream': {
        const { readable } = new TransformStream();
        return new Response(await new Response(readable).text());
      }
      case '/share': return share(search);
      default: return new Response('no such path', { status: 404 });
    }
  },
};
