// durable object: CELLS=Cell
// Entrypoints in `ctx.exports`. Expectations are those of workerd.
import { DurableObject, WorkerEntrypoint, exports as loopback } from 'cloudflare:workers';
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

const log = [];

export class Cell extends DurableObject {
  async fetch(request) {
    const response = await this.ctx.exports.Entry({ props: { from: 'cell' } }).fetch('http://x/props');
    return new Response(`${request.url} ${await response.text()}`);
  }
}

/** A class of Durable Objects that no binding names. */
export class Unbound extends DurableObject {}

export class Entry extends WorkerEntrypoint {
  async fetch(request) {
    const { pathname } = new URL(request.url);
    switch (pathname) {
      case '/echo': {
        const { method, url, redirect } = request;
        return Response.json({ method, url, redirect, a: request.headers.get('a'), body: await request.text() });
      }
      case '/props': return Response.json(this.ctx.props);
      case '/env': return new Response(typeof this.env.CELLS.getByName);
      case '/hop': return Response.redirect('http://y/echo', 307);
      case '/see': return Response.redirect('http://y/echo', 303);
      case '/nowhere': return new Response('n', { status: 302, headers: { location: '' } });
      case '/round': return Response.redirect('http://x/round');
      case '/flow': {
        let left = 3;
        const pull = (controller) => { if (left-- > 0) controller.enqueue(new TextEncoder().encode(`${left}`)); else controller.close(); };
        return new Response(new ReadableStream({ pull }));
      }
      case '/wait':
        this.ctx.waitUntil(scheduler.wait(5).then(() => log.push('waited')));
        return new Response('early');
      case '/late':
        scheduler.wait(5).then(() => this.ctx.waitUntil(scheduler.wait(1)));
        return new Response('early');
      case '/ran': log.push('ran'); return new Response('ran');
      case '/throw': throw Object.assign(new TypeError('thrown'), { code: 7 });
      case '/text': throw 'a text';
      case '/nothing': return undefined;
      case '/again': return this.ctx.exports.Entry.fetch('http://x/again');
      case '/slow': await scheduler.wait(20); return new Response('late');
      default: return new Response(pathname);
    }
  }

  hello() {
    return 'hello';
  }
}

export class Silent extends WorkerEntrypoint {}

export class Breaks extends WorkerEntrypoint {
  constructor(ctx, env) {
    super(ctx, env);
    throw new RangeError('in the constructor');
  }
}

export const plain = {
  fetch(request, env, ctx) {
    return Response.json([request.url, typeof env.CELLS, Object.prototype.toString.call(ctx), ctx.props]);
  },
};

const json = async (promise) => (await promise).json();
const text = async (promise) => (await promise).text();

test('every export that may be one has a stub', async (env, ctx) => {
  assert(ctx.exports === loopback);
  const kinds = Object.fromEntries(Object.keys(ctx.exports).sort().map((name) => [name, `${Object.prototype.toString.call(ctx.exports[name])}`]));
  assertEquals(kinds.Entry, '[object LoopbackServiceStub]');
  assertEquals(kinds.plain, '[object LoopbackServiceStub]');
  assertEquals(kinds.default, '[object LoopbackServiceStub]');
  assertEquals(kinds.Unbound, '[object LoopbackDurableObjectClass]');
  assertEquals(typeof ctx.exports.Cell.getByName, 'function');
  assertEquals([typeof ctx.exports.Entry, Reflect.ownKeys(ctx.exports.Entry), ctx.exports.Missing], ['function', [], undefined]);
  assert(ctx.exports.Entry === ctx.exports.Entry);
  assertThrows(() => structuredClone(ctx.exports.Entry), 'DataCloneError');
});

test('fetch runs the handler', async (env, ctx) => {
  const { Entry } = ctx.exports;
  assertEquals(await json(Entry.fetch('http://x/echo#f', { method: 'POST', headers: { a: 'b' }, body: 'body' })),
    { method: 'POST', url: 'http://x/echo', redirect: 'manual', a: 'b', body: 'body' });
  const request = new Request('http://x/echo', { method: 'PUT', body: new Blob(['blob']) });
  assertEquals((await json(Entry.fetch(request))).body, 'blob');
  assert(request.bodyUsed);
  const { readable, writable } = new IdentityTransformStream();
  const asked = json(Entry.fetch('http://x/echo', { method: 'POST', body: readable }));
  const writer = writable.getWriter();
  await writer.write(new TextEncoder().encode('in pieces'));
  await writer.close();
  assertEquals((await asked).body, 'in pieces');
  assertEquals(await text(Entry.fetch('http://x/flow')), '210');
  assertEquals(await text(Entry.fetch('http://x/env')), 'function');
  assertEquals(await json(ctx.exports.plain.fetch('http://x/q')), ['http://x/q', 'object', '[object ExecutionContext]', {}]);
});

test('redirects are followed, HEAD has no body', async (env, ctx) => {
  const { Entry } = ctx.exports;
  let response = await Entry.fetch('http://x/hop', { method: 'POST', body: 'b' });
  assertEquals([response.url, response.redirected], ['http://y/echo', true]);
  assertEquals((await response.json()).body, 'b');
  response = await Entry.fetch('http://x/see', { method: 'POST', body: 'b' });
  assertEquals(await response.json(), { method: 'GET', url: 'http://y/echo', redirect: 'manual', a: null, body: '' });
  response = await Entry.fetch('http://x/hop', { redirect: 'manual' });
  assertEquals([response.status, response.headers.get('location'), response.redirected], [307, 'http://y/echo', false]);
  response = await Entry.fetch('http://x/nowhere');
  assertEquals([response.status, response.headers.has('location')], [302, false]);
  await assertRejects(Entry.fetch('http://x/round'), TypeError, /^Too many redirects/);
  response = await Entry.fetch('http://x/flow', { method: 'HEAD' });
  assertEquals([response.status, await response.text()], [200, '']);
});

test('a call gives props', async (env, ctx) => {
  const { Entry } = ctx.exports;
  const props = { a: [1], d: new Date(0) };
  const stub = Entry({ props });
  props.a = 'changed';
  assertEquals(await json(stub.fetch('http://x/props')), { a: [1], d: '1970-01-01T00:00:00.000Z' });
  assertEquals([`${stub}`, Object.getPrototypeOf(stub) === Object.getPrototypeOf(Object.getPrototypeOf(Entry))], ['[object Fetcher]', true]);
  assertEquals(await json(Entry({}).fetch('http://x/props')), {});
  assertEquals(await json(new Entry({ props: { a: 1 } }).fetch('http://x/props')), { a: 1 });
  assertThrows(() => Entry(), TypeError, 'Failed to execute \'(called as function)\' on \'LoopbackServiceStub\': parameter 1 is not of type \'Options\'.');
  assertThrows(() => Entry({ props: 5 }), TypeError, 'Incorrect type for the \'props\' field on \'Options\': the provided value is not of type \'Object\'.');
  assertThrows(() => Entry({ props: { f() {} } }), 'DataCloneError');
  assertEquals(await text(env.CELLS.getByName('a').fetch('http://c/')), 'http://c/ {"from":"cell"}');
});

test('errors come to the caller', async (env, ctx) => {
  const { Entry, Silent, Breaks, Unbound } = ctx.exports;
  const error = await assertRejects(Entry.fetch('http://x/throw'), TypeError, 'thrown');
  assertEquals([error.code, error.remote], [7, true]);
  await assertRejects(Entry.fetch('http://x/text'), Error, 'a text');
  await assertRejects(Entry.fetch('http://x/nothing'), TypeError);
  await assertRejects(Silent.fetch('http://x/'), Error, 'Handler does not export a fetch() function.');
  await assertRejects(Breaks.fetch('http://x/'), RangeError, 'in the constructor');
  await assertRejects(Entry.fetch('http://x/again'), Error, 'Too many subrequests.');
  await assertRejects(Entry.fetch(), TypeError, 'Failed to execute \'fetch\' on \'Fetcher\': parameter 1 is not of type \'Request or string\'.');
  await assertRejects(Entry.fetch('nourl'), TypeError, 'Invalid URL: nourl');
  await assertRejects(Entry.fetch('ftp://x/y'), TypeError, 'Fetch API cannot load: ftp://x/y');
  assertThrows(() => (0, Entry.fetch)('http://x/'), TypeError, /^Illegal invocation/);
  assertThrows(() => Unbound.fetch('http://x/'), TypeError, /fetch is not a function/);
});

test('what it waits for keeps the event that asked', async (env, ctx) => {
  log.length = 0;
  assertEquals(await text(loopback.default.fetch('http://other/early')), 'early');
  await scheduler.wait(20);
  assertEquals(log, ['waited']);
});

test('a signal gives the call up', async (env, ctx) => {
  const controller = new AbortController();
  const asked = ctx.exports.Entry.fetch('http://x/slow', { signal: controller.signal });
  controller.abort();
  await assertRejects(asked, 'AbortError');
});

test('a call that is given up before it begins does not run', async (env, ctx) => {
  const controller = new AbortController();
  const asked = ctx.exports.Entry.fetch('http://x/ran', { signal: controller.signal });
  controller.abort();
  await assertRejects(asked, 'AbortError');
  await scheduler.wait(5);
  assert(!log.includes('ran'));
});

test('what it waits for when it is over does not end the event that asked', async (env, ctx) => {
  assertEquals(await (await ctx.exports.Entry.fetch('http://x/late')).text(), 'early');
  await scheduler.wait(20);
  // The timers of an event that has ended do not fire.
  await scheduler.wait(20);
});

export default {
  fetch(request, env, ctx) {
    return ctx.exports.Entry.fetch('http://x/wait');
  },
};
