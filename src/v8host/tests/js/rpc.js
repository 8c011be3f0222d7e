// durable object: CELLS=Cell
// durable object: PLAIN=Plain
// durable object: VIRTUAL=VirtualCell
// Calls of methods over RPC. Expectations are those of workerd, but for what says that it is not implemented.
import { DurableObject, RpcPromise, RpcProperty, RpcTarget, WorkerEntrypoint } from 'cloudflare:workers';
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

class Own {
  constructor() {
    this.a = 1;
  }
}

class Target extends RpcTarget {
  hi() {
    return 'hi';
  }
}

class Mine extends Error {
  name = 'Mine';
}

const SHARED = Object.freeze(new Error('shared'));

const ERRORS = {
  type: () => new TypeError('bad', { cause: 3 }),
  code: () => Object.assign(new Error('x'), { code: 'C' }),
  mine: () => new Mine('mine'),
  text: () => 'text',
  shared: () => SHARED,
  object: () => ({ a: 1 }),
  retry: () => Object.assign(new Error('mine'), { retryable: true, durableObjectReset: true }),
};

const VALUES = {
  instance: () => new Own(),
  function: () => () => 1,
  url: () => new URL('http://a'),
  bare: () => Object.create(null),
  symbol: () => Symbol('a'),
  target: () => new Target(),
  response: () => new Response('x'),
  map: () => new Map([[1, { a: 2 }]]),
  date: () => new Date(5),
  error: () => new RangeError('r'),
  nothing: () => undefined,
};

export class Cell extends DurableObject {
  #log = [];

  constructor(ctx, env) {
    super(ctx, env);
    this.own = () => 5;
    this.value = 6;
  }

  add(a, b) {
    return a + b;
  }

  same(...all) {
    return all;
  }

  get shape() {
    return { a: { b: 7, call: (x) => [x, typeof this] }, target: new Target(), date: new Date(5) };
  }

  get nothing() {
    return null;
  }

  thrower(kind) {
    throw ERRORS[kind]();
  }

  async later(kind) {
    await scheduler.wait(1);
    throw ERRORS[kind]();
  }

  give(kind) {
    return VALUES[kind]();
  }

  async object() {
    return { x: 1, y: { z: [1, 2] } };
  }

  large(length) {
    return 'x'.repeat(length);
  }

  who() {
    return [this.ctx.id.name, this.constructor.name];
  }

  note(entry, wait = 0) {
    this.#log.push(entry);
    return wait === 0 ? this.#log.length : scheduler.wait(wait).then(() => this.#log.length);
  }

  log() {
    return this.#log;
  }

  store(key, value) {
    return this.ctx.storage.put(key, value);
  }

  load(key) {
    return this.ctx.storage.get(key);
  }

  background() {
    this.ctx.waitUntil(scheduler.wait(5).then(() => this.#log.push('background')));
    return 'first';
  }

  ask(name, a, b) {
    return this.env.CELLS.getByName(name).add(a, b);
  }

  leave() {
    this.ctx.abort('gone');
  }

  alarm() {}

  fetch(request) {
    this.#log.push(`fetch ${new URL(request.url).pathname}`);
    return new Response('fetched');
  }

  get other() {
    return this.env.CELLS.getByName('other');
  }

  ends() {
    const leave = () => this.ctx.abort('in a getter');
    return {
      get a() {
        return leave();
      },
    };
  }

  static still() {}
}

export class VirtualCell extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    return new Proxy(this, { get: (target, name) => (name === 'anything' ? () => `anything of ${target.constructor.name}` : Reflect.get(target, name, target)) });
  }
}

export class Plain {
  foo() {
    return 1;
  }

  fetch() {
    return new Response('plain');
  }
}

export class Entry extends WorkerEntrypoint {
  add(a, b) {
    return a + b + (this.ctx.props.more ?? 0);
  }

  get nine() {
    return 9;
  }

  keep(object) {
    object.changed = true;
    return object;
  }

  thrower(kind) {
    throw ERRORS[kind]();
  }

  again() {
    return this.ctx.exports.Entry.again();
  }
}

export const object = {
  three(a, env, ctx) {
    return [a, 'CELLS' in env, typeof ctx.waitUntil];
  },
};

const missing = (name) => [TypeError, `The RPC receiver does not implement the method "${name}".`];

test('methods take values and return them', async (env) => {
  const cell = env.CELLS.getByName('a');
  assertEquals(await cell.add(1, 2), 3);
  const values = [1, 'ü', [null, undefined, 1n], { a: new Date(5), b: new Map([[1, new Set([2])]]) }, new Uint8Array([1, 2]), new RangeError('r')];
  assertEquals(await cell.same(...values), values);
  assertEquals(await cell.same(), []);
  assertEquals(await cell.who(), ['a', 'Cell']);
  assertEquals(await cell.give('nothing'), undefined);
});

test('what a name stands for can be awaited', async (env) => {
  const cell = env.CELLS.getByName('a');
  assertEquals(await cell.nothing, null);
  assertEquals(await cell.shape.a.b, 7);
  assertEquals(await cell.shape.a.call(5), [5, 'object']);
  assertEquals(await cell.shape.target.hi(), 'hi');
  assertEquals(await cell.object().x, 1);
  assertEquals(await cell.object().y.z, [1, 2]);
  assertEquals(await cell, cell);
});

test('names that are not there say so', async (env) => {
  const cell = env.CELLS.getByName('a');
  for (const [name, call] of [
    ['nope', () => cell.nope()], ['nope', () => cell.nope], ['own', () => cell.own()], ['value', () => cell.value], ['ctx', () => cell.ctx],
    ['env', () => cell.env], ['still', () => cell.still()], ['c', () => cell.shape.a.c], ['c', () => cell.shape.a.c.d], ['nothing', () => cell.nothing.x],
    ['q', () => cell.object().q], ['q', () => cell.object().q.r], ['z', () => cell.object().y.z.length], ['date', () => cell.shape.date.getTime()],
    ['call', () => cell.add.call(null, 1)], ['apply', () => cell.add.apply(null, [1])], ['bind', () => cell.add.bind(null)(1)], ['length', () => cell.large(3).length],
    ['x', () => cell.give('nothing').x],
  ]) {
    const error = await assertRejects(call(), ...missing(name));
    if (!(name === 'q' || name === 'z' || name === 'length' || name === 'x')) assertEquals(error.remote, true, name);
  }
  await assertRejects(cell.shape.a.b(), TypeError, '"shape.a.b" is not a function.');
  await assertRejects(cell.object().x(), TypeError, '"x" is not a function.');
  for (const name of ['alarm', 'webSocketMessage', 'webSocketClose', 'webSocketError', 'dup']) {
    await assertRejects(cell[name](), TypeError, `'${name}' is a reserved method and cannot be called over RPC.`);
  }
  assertEquals([cell.then, cell.toJSON, String(cell), cell.hasOwnProperty('add')], [undefined, undefined, '[object DurableObject]', false]);
  let deep = cell;
  assertThrows(() => {
    for (let i = 0; i < 65; i++) deep = deep.a;
  }, TypeError, 'RPC pipelined property path is too deep (max 64).');
  await assertRejects(env.PLAIN.getByName('p').foo(), TypeError, /^The receiving Durable Object does not support RPC, because its class was not declared with `extends DurableObject`/);
});

test('names and calls have the classes of workerd', async (env) => {
  const { add } = env.CELLS.getByName('a');
  const called = add(2, 3);
  assertEquals([typeof add, typeof called, add instanceof RpcProperty, called instanceof RpcPromise, called instanceof Promise],
    ['function', 'function', true, true, false]);
  assertEquals([Object.keys(add), Object.keys(called), add.constructor === RpcProperty, typeof add[Symbol.iterator]], [[], [], true, 'undefined']);
  assertEquals(await called, 5);
  assertEquals(await called.then((sum) => sum + 1), 6);
  let ended = 0;
  assertEquals(await called.finally(() => { ended++; }), 5);
  assertEquals(await env.CELLS.getByName('a').nope().catch((error) => error.constructor), TypeError);
  assertEquals(ended, 1);
  assertEquals(typeof called[Symbol.dispose], 'function');
  assertEquals([String(add), String(called)], ['[object JsRpcProperty]', '[object JsRpcPromise]']);
  assertEquals([JSON.stringify([add, called]), 'add' in env.CELLS.getByName('a')], ['[null,null]', true]);
  assertThrows(() => env.CELLS.getByName('a').connect(), Error, 'Fetcher.connect() is not implemented in celld yet.');
  assertThrows(() => new RpcPromise(), TypeError, 'Illegal constructor');
  assertThrows(() => new RpcProperty(), TypeError, 'Illegal constructor');
});

test('objects that are returned can be disposed of', async (env) => {
  using value = await env.CELLS.getByName('a').object();
  assertEquals([Object.keys(value), typeof value[Symbol.dispose]], [['x', 'y'], 'function']);
});

test('what is thrown arrives as it is', async (env) => {
  const cell = env.CELLS.getByName('a');
  for (const method of ['thrower', 'later']) {
    const error = await assertRejects(cell[method]('type'), TypeError, 'bad');
    assertEquals([error.cause, error.remote], [3, true]);
    assertEquals((await assertRejects(cell[method]('code'), Error, 'x')).code, 'C');
    assertEquals((await assertRejects(cell[method]('mine'), Error, 'mine')).name, 'Mine');
    await assertRejects(cell[method]('text'), Error, 'text');
    const thrown = await cell[method]('object').then(() => null, (error) => error);
    assertEquals([thrown.a, thrown.remote], [1, true]);
  }
  assertEquals(await cell.add(1, 1), 2, 'the stub stays whole');
});

test('what cannot be passed is refused by its name', async (env) => {
  const cell = env.CELLS.getByName('a');
  const none = (type) => `Could not serialize object of type "${type}". This type does not support serialization.`;
  const refused = {
    instance: none('Own'), url: none('URL'), bare: none('Object'), symbol: 'Symbol(a) could not be cloned.',
    function: '() => 1 could not be cloned. Passing functions, names of a stub and calls that are not awaited over RPC is not implemented in celld yet.',
    target: 'Could not serialize object of type "Target". Passing RpcTarget over RPC is not implemented in celld yet.',
    response: 'Could not serialize object of type "Response". Passing Response over RPC is not implemented in celld yet.',
  };
  for (const [kind, message] of Object.entries(refused)) {
    assertEquals((await assertRejects(cell.give(kind), 'DataCloneError', message)).remote, true, kind);
    assertEquals((await assertRejects(cell.same([VALUES[kind]()]), 'DataCloneError', message)).remote, undefined, kind);
  }
  await assertRejects(cell.same(cell), 'DataCloneError', 'Could not serialize object of type "DurableObject". Passing DurableObject over RPC is not implemented in celld yet.');
  await assertRejects(cell.add.then((value) => value), 'DataCloneError', /Passing functions, names/);
  for (const kind of ['map', 'date', 'error']) assertEquals(await cell.give(kind), VALUES[kind]());
});

test('messages have an end', async (env) => {
  const cell = env.CELLS.getByName('a');
  const limit = /^Serialized RPC arguments or return values are limited to 32MiB, but the size of this value was: \d+ bytes\.$/;
  await assertRejects(cell.large(33 << 20), Error, limit);
  await assertRejects(cell.same('x'.repeat(33 << 20)), Error, limit);
  assertEquals((await cell.large(3 << 20)).length, 3 << 20);
  assertEquals((await cell.same('x'.repeat(3 << 20)))[0].length, 3 << 20);
});

test('arguments are those of the moment of the call', async (env) => {
  const given = { a: 1 };
  const called = env.CELLS.getByName('a').same(given);
  given.a = 2;
  assertEquals(await called, [{ a: 1 }]);
});

test('calls and requests on one stub arrive in order', async (env) => {
  const cell = env.CELLS.getByName('ordered');
  const all = [cell.note('a', 5), cell.fetch('http://x/b'), cell.note('c'), cell.fetch('http://x/d'), cell.note('e')];
  await Promise.all(all);
  assertEquals(await cell.log(), ['a', 'fetch /b', 'c', 'fetch /d', 'e']);
});

test('methods have the storage, the context and other objects', async (env) => {
  const cell = env.CELLS.getByName('stores');
  await cell.store('k', { deep: [1] });
  assertEquals(await cell.load('k'), { deep: [1] });
  assertEquals(await cell.background(), 'first');
  await scheduler.wait(20);
  assertEquals(await cell.log(), ['background']);
  assertEquals(await cell.ask('another', 2, 3), 5);
  await assertRejects(cell.ask('another', () => 1), 'DataCloneError');
});

test('a stub stays whole whatever its object says of itself', async (env) => {
  const cell = env.CELLS.getByName('says');
  const error = await assertRejects(cell.thrower('retry'), Error, 'mine');
  assertEquals([error.retryable, error.durableObjectReset], [true, true]);
  assertEquals(await cell.add(1, 2), 3);
});

test('a proxy of a stub has its methods, and so has what inherits from it', async (env, ctx) => {
  const cell = env.CELLS.getByName('a');
  const reflected = new Proxy(cell, { get: (target, name, receiver) => Reflect.get(target, name, receiver) });
  for (const other of [new Proxy(cell, {}), reflected, new Proxy(reflected, {}), Object.create(cell)]) assertEquals(await other.add(1, 2), 3);
  assertEquals(await new Proxy(ctx.exports.Entry, {}).add(1, 2), 3);
  assertEquals(Object.getPrototypeOf(cell).add, undefined);
});

test('an instance may be a proxy, and a getter may lead to another object', async (env) => {
  const virtual = env.VIRTUAL.getByName('v');
  assertEquals(await virtual.anything(), 'anything of VirtualCell');
  assertEquals(await env.CELLS.getByName('a').other.add(2, 3), 5);
});

test('a getter of what is returned may end the object', async (env) => {
  await assertRejects(env.CELLS.getByName('ends').ends(), Error, 'in a getter');
});

test('a stub whose object was reset is broken', async (env) => {
  const cell = env.CELLS.getByName('leaves');
  await assertRejects(cell.leave(), Error, 'gone');
  await assertRejects(cell.add(1, 2), Error, 'gone');
  assertEquals(await env.CELLS.getByName('leaves').add(1, 2), 3);
});

test('entrypoints of this script are called too', async (env, ctx) => {
  const { Entry: entry, object: plain } = ctx.exports;
  assertEquals(await entry.add(1, 2), 3);
  assertEquals(await entry({ props: { more: 5 } }).add(1, 2), 8);
  assertEquals(await entry.nine, 9);
  const given = { a: 1 };
  assertEquals([await entry.keep(given), given], [{ a: 1, changed: true }, { a: 1 }]);
  await assertRejects(entry.nope(), ...missing('nope'));
  await assertRejects(entry.ctx, ...missing('ctx'));
  const error = await assertRejects(entry.thrower('type'), TypeError, 'bad');
  assertEquals(error.remote, true);
  // A copy, as that of another cell.
  const mine = await entry.thrower('mine').then(() => null, (thrown) => thrown);
  assertEquals([mine instanceof Mine, mine.constructor, mine.name, mine.remote], [false, Error, 'Mine', true]);
  assertEquals((await assertRejects(entry.thrower('shared'), Error, 'shared')).remote, true);
  assertEquals('remote' in SHARED, false);
  await assertRejects(entry.again(), Error, 'Too many subrequests.');
  assertEquals(await plain.three(1), [1, true, 'function']);
  await assertRejects(plain.three(1, 2), TypeError, /^Attempted to call RPC function "three" with the wrong number of arguments\. When calling/);
});
