// durable object: COUNTER=Counter
// durable object: PLAIN=Plain
// durable object: BROKEN=Broken
// Namespaces, ids, stubs, ctx. Expectations are those of workerd.
import * as workers from 'cloudflare:workers';
import { DurableObject, RpcTarget, WorkflowEntrypoint } from 'cloudflare:workers';
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

const log = [];

export class Counter extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.opened = 0;
    ctx.blockConcurrencyWhile(async () => {
      await new Promise((resolve) => setTimeout(resolve, 10));
      this.opened = (await ctx.storage.get('opened') ?? 0) + 1;
      await ctx.storage.put('opened', this.opened);
    });
  }

  async fetch(request) {
    const { pathname } = new URL(request.url);
    switch (pathname) {
      case '/add': {
        const value = (await this.ctx.storage.get('value') ?? 0) + 1;
        await this.ctx.storage.put('value', value);
        return new Response(String(value));
      }
      case '/opened':
        return new Response(String(this.opened));
      case '/id':
        return Response.json([this.ctx.id.toString(), this.ctx.id.name, this.ctx.constructor.name, Object.keys(this.env)]);
      case '/throw':
        throw new RangeError('of its own');
      case '/echo':
        return new Response(request.body, { headers: { 'x-method': request.method, 'x-a': request.headers.get('a') } });
      case '/abort':
        this.ctx.storage.put('value', 1000);
        return this.ctx.abort('enough');
      case '/block': {
        const result = await this.ctx.blockConcurrencyWhile(async () => {
          log.push('in');
          await new Promise((resolve) => setTimeout(resolve, 20));
          const nested = await this.ctx.blockConcurrencyWhile(async () => 5);
          log.push('out');
          return nested;
        });
        return new Response(String(result));
      }
      case '/block-throw':
        await this.ctx.blockConcurrencyWhile(async () => {
          throw new Error('section failed');
        });
        return new Response('not reached');
      case '/log':
        log.push('log');
        return new Response();
      default:
        return new Response('no such path', { status: 404 });
    }
  }
}

export class Plain {
  constructor(state, env) {
    this.state = state;
    this.env = env;
  }

  fetch() {
    return new Response(`${this.state.id.name} ${typeof this.env.COUNTER.get}`);
  }
}

export class Broken extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    throw new TypeError('no instance');
  }
}

const text = async (response) => (await response).text();

test('ids', (env) => {
  const ns = env.COUNTER;
  const id = ns.idFromName('hello');
  assert(/^[0-9a-f]{64}$/.test(id.toString()));
  assertEquals(String(id), ns.idFromName('hello').toString());
  assertEquals(id.name, 'hello');
  assertEquals(id.jurisdiction, undefined);
  assertEquals(JSON.stringify(id), '{"name":"hello"}');
  assertThrows(() => { id.name = 'other'; }, TypeError, /read only property 'name'/);
  assertThrows(() => { id.jurisdiction = 'eu'; }, TypeError, /read only/);
  assert(id.equals(ns.idFromString(id.toString().toUpperCase())) && !id.equals(ns.idFromName('other')));
  assertEquals(ns.idFromString(id.toString()).name, undefined);
  const unique = ns.newUniqueId();
  assert(!unique.equals(ns.newUniqueId()) && ns.idFromString(String(unique)).equals(unique));
  assertThrows(() => ns.idFromString('zz'), TypeError, 'Invalid Durable Object ID: must be 64 hex digits');
  assertThrows(() => ns.idFromString('0'.repeat(64)), TypeError, 'Durable Object ID is not valid for this namespace.');
  assertThrows(() => env.PLAIN.idFromString(String(id)), TypeError, 'Durable Object ID is not valid for this namespace.');
  assertThrows(() => ns.idFromName(), TypeError, 'Failed to execute \'idFromName\' on \'DurableObjectNamespace\': parameter 1 is not of type \'string\'.');
  assertThrows(() => id.equals(5), TypeError, 'Failed to execute \'equals\' on \'DurableObjectId\': parameter 1 is not of type \'DurableObjectId\'.');
  assertThrows(() => ns.get('x'), TypeError, 'Failed to execute \'get\' on \'DurableObjectNamespace\': parameter 1 is not of type \'DurableObjectId\'.');
  assertThrows(() => env.PLAIN.get(id), TypeError);
  assertThrows(() => new id.constructor(), TypeError, 'Illegal constructor');
  assertThrows(() => ns.newUniqueId({ jurisdiction: 'eu' }), Error, /Jurisdiction/);
  assertThrows(() => ns.jurisdiction('eu'), Error, /Jurisdiction/);
  assert(ns.jurisdiction() === ns);
});

test('a stub reaches its object', async (env) => {
  const stub = env.COUNTER.getByName('reach');
  assertEquals(stub.name, 'reach');
  for (const name of ['name', 'id']) assertThrows(() => { stub[name] = 'other'; }, TypeError, /read only/);
  assertEquals(stub.name, 'reach');
  assertEquals(String(stub.id), String(env.COUNTER.idFromName('reach')));
  assertEquals(await text(stub.fetch('http://x/add')), '1');
  assertEquals(await text(env.COUNTER.get(env.COUNTER.idFromName('reach')).fetch('http://x/add')), '2');
  assertEquals(await (await stub.fetch('http://x/id')).json(), [String(stub.id), 'reach', 'DurableObjectState', ['COUNTER', 'PLAIN', 'BROKEN']]);
  const echo = await stub.fetch(new Request('http://x/echo', { method: 'POST', body: 'hello', headers: { a: 'b' } }));
  assertEquals([await echo.text(), echo.headers.get('x-method'), echo.headers.get('x-a')], ['hello', 'POST', 'b']);
  await assertRejects(() => stub.fetch('/relative'), TypeError, 'Invalid URL: /relative');
  assertEquals(await text(env.PLAIN.getByName('p').fetch('http://x/')), 'p function');
});

test('what a stub does not have is the name of a method', async (env) => {
  const stub = env.COUNTER.getByName('rpc');
  assertEquals(stub.then, undefined);
  assertEquals(stub.toJSON, undefined);
  assertEquals(stub[Symbol.iterator], undefined);
  assertEquals(String(Object.prototype.toString.call(stub)), '[object DurableObject]');
  assertEquals(await stub, stub);
  assertEquals(typeof stub.increment, 'function');
  assertEquals(JSON.stringify(stub).includes('"name":"rpc"'), true);
});

test('errors of the object are marked as remote and leave the stub whole', async (env) => {
  const stub = env.COUNTER.getByName('throws');
  const error = await assertRejects(() => stub.fetch('http://x/throw'), RangeError, 'of its own');
  assertEquals(error.remote, true);
  assertEquals(await text(stub.fetch('http://x/add')), '1');
  await fetch('http://harness.test/uncaught');
});

test('a constructor that blocks is over before the first request', async (env) => {
  const stub = env.COUNTER.getByName('opens');
  assertEquals(await Promise.all([text(stub.fetch('http://x/opened')), text(stub.fetch('http://x/opened'))]), ['1', '1']);
  await fetch('http://harness.test/evict');
  assertEquals(await text(stub.fetch('http://x/opened')), '2');
});

test('blockConcurrencyWhile keeps other requests out and nests', async (env) => {
  const stub = env.COUNTER.getByName('blocks');
  await stub.fetch('http://x/log');
  log.length = 0;
  const [blocked] = await Promise.all([text(stub.fetch('http://x/block')), stub.fetch('http://x/log')]);
  assertEquals(blocked, '5');
  assertEquals(log, ['in', 'out', 'log']);
});

test('a section that fails resets the object', async (env) => {
  const stub = env.COUNTER.getByName('resets');
  assertEquals(await text(stub.fetch('http://x/opened')), '1');
  await assertRejects(() => stub.fetch('http://x/block-throw'), Error, /section failed/);
  assertEquals(await text(env.COUNTER.getByName('resets').fetch('http://x/opened')), '2');
  await fetch('http://harness.test/uncaught');
});

test('abort resets the object', async (env) => {
  const stub = env.COUNTER.getByName('aborts');
  assertEquals(await text(stub.fetch('http://x/opened')), '1');
  await assertRejects(() => stub.fetch('http://x/abort'), Error, /enough/);
  assertEquals(await text(env.COUNTER.getByName('aborts').fetch('http://x/opened')), '2');
  await fetch('http://harness.test/uncaught');
});

test('a constructor that throws fails its callers', async (env) => {
  await assertRejects(() => env.BROKEN.getByName('x').fetch('http://x/'), TypeError, /no instance/);
  await fetch('http://harness.test/uncaught');
});


test('cloudflare:workers', (env) => {
  assert(workers.env === env || Object.keys(workers.env).join() === Object.keys(env).join());
  assertThrows(() => new DurableObject({}, {}), TypeError, 'Failed to construct \'DurableObjectBase\': constructor parameter 1 is not of type \'DurableObjectState\'.');
  assertThrows(() => new WorkflowEntrypoint(), Error, 'WorkflowEntrypoint of cloudflare:workers is not implemented in celld yet.');
  assert(new (class extends RpcTarget {})() instanceof RpcTarget);
  assertEquals(typeof workers.exports.Counter.getByName, 'function');
});
