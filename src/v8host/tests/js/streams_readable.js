// ReadableStream with default controllers and readers, tee, from, iteration: Streams Standard, section 4.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

export default {};

const tick = async (turns = 10) => {
  for (let i = 0; i < turns; i++) await null;
};
const collect = async (stream) => {
  const out = [];
  for await (const chunk of stream) out.push(chunk);
  return out;
};
const RELEASED = 'This ReadableStream reader has been released.';
const LOCKED = 'This ReadableStream is currently locked to a reader.';

test('constructor arguments', () => {
  new ReadableStream();
  new ReadableStream(undefined, undefined);
  new ReadableStream(null);
  for (const source of [1, 'a', true]) assertThrows(() => new ReadableStream(source), TypeError);
  for (const name of ['start', 'pull', 'cancel']) {
    assertThrows(() => new ReadableStream({ [name]: 1 }), TypeError,
      `Incorrect type for the '${name}' field on 'UnderlyingSource': the provided value is not of type 'function'.`);
  }
  assertThrows(() => new ReadableStream({ type: 'x' }), TypeError, '"x" is not a valid type of ReadableStream.');
  assertThrows(() => new ReadableStream({}, { size: 1 }), TypeError);
  for (const highWaterMark of [-1, NaN, 'x']) assertThrows(() => new ReadableStream({}, { highWaterMark }), TypeError, /^The value cannot be converted because it is /);
  assertThrows(() => new ReadableStream({ start() { throw new RangeError('s'); } }), RangeError, 's');
  assertEquals(ReadableStream.length, 0);
  assertThrows(() => new ReadableStreamDefaultController(), TypeError, 'Illegal constructor');
});

test('start gets the controller, as a method of the source', () => {
  const source = {
    start(controller) {
      assert(controller instanceof ReadableStreamDefaultController);
      assertEquals([this === source, arguments.length, controller.desiredSize], [true, 1, 1]);
      controller.enqueue('a');
      assertEquals(controller.desiredSize, 0);
      controller.enqueue('b');
      assertEquals(controller.desiredSize, -1);
    },
  };
  new ReadableStream(source);
});

test('pull is called once start is through, as long as there is room', async () => {
  let pulls = 0;
  let release;
  const started = new Promise((resolve) => { release = resolve; });
  const stream = new ReadableStream({ start: () => started, pull: () => { pulls++; } }, { highWaterMark: 3 });
  await tick();
  assertEquals(pulls, 0);
  release();
  await tick();
  assertEquals(pulls, 1, 'a pull that enqueues nothing is not repeated');
  const reader = stream.getReader();
  reader.read();
  await tick();
  assertEquals(pulls, 2);
});

test('pull waits for the promise of the last one', async () => {
  const gates = [];
  let controller;
  const stream = new ReadableStream({
    start: (c) => { controller = c; },
    pull: () => new Promise((resolve) => gates.push(resolve)),
  }, { highWaterMark: 2 });
  await tick();
  assertEquals(gates.length, 1);
  controller.enqueue(1);
  await tick();
  assertEquals(gates.length, 1);
  gates[0]();
  await tick();
  assertEquals(gates.length, 2);
  const reader = stream.getReader();
  assertEquals(await reader.read(), { value: 1, done: false });
});

test('a pull that throws or rejects errors the stream', async () => {
  for (const pull of [() => { throw new RangeError('p'); }, async () => { throw new RangeError('p'); }]) {
    const reader = new ReadableStream({ pull }).getReader();
    await assertRejects(reader.read(), RangeError, 'p');
    await assertRejects(reader.closed, RangeError, 'p');
  }
  const late = new ReadableStream({ start: async () => { throw new RangeError('s'); } });
  await assertRejects(late.getReader().read(), RangeError, 's');
});

test('chunks, then the end', async () => {
  const stream = new ReadableStream({
    start(controller) {
      controller.enqueue(1);
      controller.enqueue(undefined);
      controller.close();
      assertThrows(() => controller.close(), TypeError);
      assertThrows(() => controller.enqueue(2), TypeError);
      assertEquals(controller.desiredSize, -1);
    },
  });
  const reader = stream.getReader();
  assertEquals(await reader.read(), { value: 1, done: false });
  assertEquals(await reader.read(), { value: undefined, done: false });
  assertEquals(await reader.closed, undefined);
  assertEquals(await reader.read(), { value: undefined, done: true });
  assertEquals(await reader.read(), { value: undefined, done: true });
});

test('reads that wait are answered in order', async () => {
  let controller;
  const reader = new ReadableStream({ start: (c) => { controller = c; } }).getReader();
  const reads = [reader.read(), reader.read(), reader.read()];
  controller.enqueue('a');
  controller.enqueue('b');
  controller.close();
  assertEquals((await Promise.all(reads)).map(({ value, done }) => [value, done]), [['a', false], ['b', false], [undefined, true]]);
});

test('error drops what is queued', async () => {
  let controller;
  const reader = new ReadableStream({ start: (c) => { controller = c; c.enqueue(1); } }).getReader();
  const error = new Error('e');
  controller.error(error);
  controller.error(new Error('second'));
  assertEquals(controller.desiredSize, null);
  assertEquals(await reader.read().catch((e) => e === error), true);
  assertEquals(await reader.closed.catch((e) => e === error), true);
  assertThrows(() => controller.enqueue(1), TypeError);
});

test('size of the strategy', async () => {
  let controller;
  const stream = new ReadableStream({ start: (c) => { controller = c; } }, { highWaterMark: 10, size: (chunk) => chunk.length });
  controller.enqueue('abcd');
  assertEquals(controller.desiredSize, 6);
  controller.enqueue('1234567890');
  assertEquals(controller.desiredSize, -4);
  const reader = stream.getReader();
  await reader.read();
  assertEquals(controller.desiredSize, 0);
  for (const size of [-1, NaN, Infinity]) {
    let inner;
    const bad = new ReadableStream({ start: (c) => { inner = c; } }, { size: () => size });
    assertThrows(() => inner.enqueue('a'), RangeError);
    await assertRejects(bad.getReader().read(), RangeError);
  }
  let thrower;
  new ReadableStream({ start: (c) => { thrower = c; } }, { size: () => { throw new SyntaxError('size'); } });
  assertThrows(() => thrower.enqueue(1), SyntaxError, 'size');
});

test('queuing strategies', () => {
  const count = new CountQueuingStrategy({ highWaterMark: 4 });
  const length = new ByteLengthQueuingStrategy({ highWaterMark: '8' });
  assertEquals([count.highWaterMark, count.size('x'), length.highWaterMark, length.size(new Uint8Array(3))], [4, 1, 8, 3]);
  assertEquals(count.size, new CountQueuingStrategy({ highWaterMark: 1 }).size);
  assertEquals([count.size.name, count.size.length, length.size.length], ['size', 0, 1]);
  assertThrows(() => new CountQueuingStrategy(), TypeError);
  assertEquals(new CountQueuingStrategy({}).highWaterMark, undefined);
  assertThrows(() => new length.size(), TypeError);
  assertEquals(new CountQueuingStrategy({ highWaterMark: -3 }).highWaterMark, -3);
});

test('locks', async () => {
  const stream = new ReadableStream();
  assertEquals(stream.locked, false);
  const reader = stream.getReader();
  assertEquals(stream.locked, true);
  assertThrows(() => stream.getReader(), TypeError, LOCKED);
  assertThrows(() => new ReadableStreamDefaultReader(stream), TypeError, LOCKED);
  assertThrows(() => stream.tee(), TypeError, LOCKED);
  assertThrows(() => stream.values(), TypeError, LOCKED);
  await assertRejects(stream.cancel(), TypeError, LOCKED);
  await assertRejects(stream.pipeTo(new WritableStream()), TypeError, LOCKED);
  assertThrows(() => stream.pipeThrough(new TransformStream()), TypeError, LOCKED);
  const { closed } = reader;
  const pending = reader.read();
  reader.releaseLock();
  reader.releaseLock();
  assertEquals(stream.locked, false);
  await assertRejects(pending, TypeError, RELEASED);
  await assertRejects(closed, TypeError, RELEASED);
  await assertRejects(reader.closed, TypeError, RELEASED);
  await assertRejects(reader.read(), TypeError, RELEASED);
  await assertRejects(reader.cancel(), TypeError, RELEASED);
  new ReadableStreamDefaultReader(stream);
  assertThrows(() => new ReadableStream().getReader({ mode: 'x' }), TypeError, "mode must be undefined or 'byob' in call to getReader().");
  assertThrows(() => new ReadableStream().getReader({ mode: 'byob' }), TypeError, 'This ReadableStream does not support BYOB reads.');
});

test('closed keeps its identity while the stream is readable', async () => {
  let controller;
  const stream = new ReadableStream({ start: (c) => { controller = c; } });
  const reader = stream.getReader();
  const { closed } = reader;
  assertEquals(reader.closed === closed, true);
  controller.close();
  await closed;
  reader.releaseLock();
  assert(reader.closed !== closed);
  await assertRejects(reader.closed, TypeError, RELEASED);
  const again = stream.getReader();
  assertEquals(await again.closed, undefined);
});

test('cancel', async () => {
  const calls = [];
  const stream = new ReadableStream({ start: (c) => c.enqueue(1), cancel(reason) { calls.push(reason); return 'ignored'; } });
  assertEquals(await stream.cancel('why'), undefined);
  assertEquals(calls, ['why']);
  assertEquals(await stream.getReader().read(), { value: undefined, done: true });
  assertEquals(await new ReadableStream({ start: (c) => c.close() }).cancel(), undefined);
  await assertRejects(new ReadableStream({ start: (c) => c.error(new RangeError('e')) }).cancel(), RangeError, 'e');
  await assertRejects(new ReadableStream({ cancel() { throw new RangeError('c'); } }).cancel(), RangeError, 'c');
  const reader = new ReadableStream().getReader();
  const read = reader.read();
  await reader.cancel();
  assertEquals(await read, { value: undefined, done: true });
});

test('asynchronous iteration', async () => {
  const source = () => new ReadableStream({ start(c) { c.enqueue('a'); c.enqueue('b'); c.close(); } });
  const stream = source();
  assertEquals(await collect(stream), ['a', 'b']);
  assertEquals(stream.locked, false);
  assertEquals(ReadableStream.prototype[Symbol.asyncIterator], ReadableStream.prototype.values);
  let reason = 'none';
  const left = new ReadableStream({ pull: (c) => c.enqueue(1), cancel: (r) => { reason = r; } });
  for await (const chunk of left) {
    assertEquals(chunk, 1);
    break;
  }
  assertEquals([reason, left.locked], [undefined, false]);
  const kept = source();
  for await (const chunk of kept.values({ preventCancel: true })) {
    assertEquals(chunk, 'a');
    break;
  }
  assertEquals(await collect(kept), ['b']);
  await assertRejects(collect(new ReadableStream({ pull: (c) => c.error(new RangeError('e')) })), RangeError, 'e');
});

test('iterator steps that are asked for at once', async () => {
  const iterator = new ReadableStream({ start(c) { c.enqueue(1); c.enqueue(2); c.close(); } }).values();
  const steps = await Promise.all([iterator.next(), iterator.next(), iterator.next(), iterator.return('r'), iterator.next()]);
  assertEquals(steps, [
    { value: 1, done: false }, { value: 2, done: false }, { value: undefined, done: true }, { value: 'r', done: true },
    { value: undefined, done: true },
  ]);
  const prototype = Object.getPrototypeOf(iterator);
  assertEquals(Object.getPrototypeOf(prototype), Object.getPrototypeOf(Object.getPrototypeOf(async function* () {}.prototype)));
  assertEquals(Object.keys(prototype), ['next', 'return']);
  await assertRejects(prototype.next.call({}), TypeError);
});

test('tee', async () => {
  const [a, b] = new ReadableStream({ start(c) { c.enqueue(1); c.enqueue(2); c.close(); } }).tee();
  assertEquals(await collect(a), [1, 2]);
  assertEquals(await collect(b), [1, 2]);
  let controller;
  const [c, d] = new ReadableStream({ start: (x) => { controller = x; } }).tee();
  const reads = [c.getReader().read(), d.getReader().read()];
  await tick();
  controller.error(new RangeError('e'));
  for (const read of reads) await assertRejects(read, RangeError, 'e');
});

test('tee: cancelled when both branches are', async () => {
  const reasons = [];
  const stream = new ReadableStream({ cancel: (reason) => { reasons.push(reason); } });
  const [a, b] = stream.tee();
  const first = a.cancel('one');
  await tick();
  assertEquals(reasons, []);
  await Promise.all([first, b.cancel('two')]);
  assertEquals(reasons, [['one', 'two']]);
  const [c, d] = new ReadableStream({ start(x) { x.enqueue(1); x.close(); } }).tee();
  const done = c.cancel();
  assertEquals(await collect(d), [1]);
  await done;
});

test('ReadableStream.from', async () => {
  assertEquals(await collect(ReadableStream.from([1, Promise.resolve(2)])), [1, 2]);
  assertEquals(await collect(ReadableStream.from((async function* () { yield 'a'; yield 'b'; })())), ['a', 'b']);
  assertEquals(await collect(ReadableStream.from(ReadableStream.from(['x']))), ['x']);
  assertEquals(await collect(ReadableStream.from(new Map([[1, 2]]))), [[1, 2]]);
  for (const value of [undefined, null, 1, {}, { [Symbol.iterator]: 1 }]) assertThrows(() => ReadableStream.from(value), TypeError);
  let ended;
  const iterable = {
    [Symbol.asyncIterator]: () => ({ next: async () => ({ value: 1, done: false }), return: async (reason) => { ended = reason; return {}; } }),
  };
  await ReadableStream.from(iterable).cancel('because');
  assertEquals(ended, 'because');
  const failing = ReadableStream.from((function* () { throw new RangeError('f'); })());
  await assertRejects(failing.getReader().read(), RangeError, 'f');
  await assertRejects(ReadableStream.from({ [Symbol.asyncIterator]: () => ({ next: () => 1 }) }).getReader().read(), TypeError);
});

test('receivers', async () => {
  for (const name of ['cancel', 'pipeTo']) await assertRejects(ReadableStream.prototype[name].call({}), TypeError);
  for (const name of ['getReader', 'tee', 'values', 'pipeThrough']) assertThrows(() => ReadableStream.prototype[name].call({}), TypeError);
  for (const name of ['read', 'cancel']) await assertRejects(ReadableStreamDefaultReader.prototype[name].call({}), TypeError);
  assertEquals(String(new ReadableStream()), '[object ReadableStream]');
});

test('a long queue', async () => {
  let controller;
  const stream = new ReadableStream({ start: (c) => { controller = c; } });
  for (let i = 0; i < 20_000; i++) controller.enqueue(i);
  controller.close();
  let sum = 0;
  for await (const value of stream) sum += value;
  assertEquals(sum, 199_990_000);
});
