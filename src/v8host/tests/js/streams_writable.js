// WritableStream, its writer and controller: Streams Standard, section 5.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

export default {};

const tick = async (turns = 10) => {
  for (let i = 0; i < turns; i++) await null;
};
const RELEASED = 'This WritableStream writer has been released.';
const LOCKED = 'This WritableStream is currently locked to a writer.';
const CLOSED = 'This WritableStream has been closed.';

test('constructor arguments', () => {
  new WritableStream();
  new WritableStream(null);
  assertThrows(() => new WritableStream(1), TypeError);
  for (const name of ['start', 'write', 'close', 'abort']) assertThrows(() => new WritableStream({ [name]: 1 }), TypeError);
  new WritableStream({ type: 'bytes' });
  assertThrows(() => new WritableStream({}, { highWaterMark: -1 }), TypeError);
  assertThrows(() => new WritableStream({ start() { throw new RangeError('s'); } }), RangeError, 's');
  assertThrows(() => new WritableStreamDefaultController(), TypeError, 'Illegal constructor');
});

test('writes reach the sink one after the other', async () => {
  const log = [];
  const gates = [];
  const sink = {
    start(controller) {
      assert(controller instanceof WritableStreamDefaultController);
      log.push('start');
    },
    write(chunk, controller) {
      assertEquals([this === sink, controller instanceof WritableStreamDefaultController], [true, true]);
      log.push(chunk);
      return new Promise((resolve) => gates.push(resolve));
    },
    close() {
      assertEquals(arguments.length, 0);
      log.push('close');
    },
  };
  const writer = new WritableStream(sink).getWriter();
  const writes = [writer.write('a'), writer.write('b')];
  const closed = writer.close();
  await tick();
  assertEquals(log, ['start', 'a']);
  gates[0]();
  await writes[0];
  await tick();
  assertEquals(log, ['start', 'a', 'b']);
  gates[1]();
  assertEquals([await writes[1], await closed, await writer.closed], [undefined, undefined, undefined]);
  assertEquals(log, ['start', 'a', 'b', 'close']);
  await assertRejects(writer.write('c'), TypeError, CLOSED);
  await assertRejects(writer.close(), TypeError, CLOSED);
});

test('back-pressure: desiredSize and ready', async () => {
  let open;
  const writer = new WritableStream({ write: () => new Promise((resolve) => { open = resolve; }) }, { highWaterMark: 2 }).getWriter();
  assertEquals(writer.desiredSize, 2);
  const { ready } = writer;
  await ready;
  writer.write(1);
  assertEquals([writer.desiredSize, writer.ready === ready], [1, true]);
  writer.write(2);
  assertEquals([writer.desiredSize, writer.ready === ready], [0, false]);
  let isReady = false;
  writer.ready.then(() => { isReady = true; });
  await tick();
  assertEquals(isReady, false);
  open();
  await tick();
  assertEquals([isReady, writer.desiredSize], [true, 1]);
  const zero = new WritableStream({}, { highWaterMark: 0 }).getWriter();
  let zeroReady = false;
  zero.ready.then(() => { zeroReady = true; });
  await tick();
  assertEquals(zeroReady, false);
});

test('size of the strategy', async () => {
  const writer = new WritableStream({}, { highWaterMark: 5, size: (chunk) => chunk.length }).getWriter();
  const write = writer.write('abc');
  assertEquals(writer.desiredSize, 2);
  await write;
  assertEquals(writer.desiredSize, 5);
  const bad = new WritableStream({}, { size: () => { throw new RangeError('size'); } }).getWriter();
  await assertRejects(bad.write(1), RangeError, 'size');
  await assertRejects(bad.closed, RangeError, 'size');
  await assertRejects(new WritableStream({}, { size: () => -1 }).getWriter().write(1), RangeError);
});

test('a write that fails errors the stream', async () => {
  for (const write of [() => { throw new RangeError('w'); }, async () => { throw new RangeError('w'); }]) {
    const writer = new WritableStream({ write }).getWriter();
    const second = writer.write(1).catch((e) => e.message);
    const third = writer.write(2).catch((e) => e.message);
    assertEquals([await second, await third], ['w', 'w']);
    await assertRejects(writer.closed, RangeError, 'w');
    await assertRejects(writer.ready, RangeError, 'w');
    assertEquals(writer.desiredSize, null);
    await assertRejects(writer.write(3), RangeError, 'w');
    await assertRejects(writer.close(), TypeError);
    assertEquals(await writer.abort(), undefined);
  }
});

test('failing start and close', async () => {
  const started = new WritableStream({ start: async () => { throw new RangeError('s'); } }).getWriter();
  await assertRejects(started.write(1), RangeError, 's');
  const writer = new WritableStream({ close: async () => { throw new RangeError('c'); } }).getWriter();
  await assertRejects(writer.close(), RangeError, 'c');
  await assertRejects(writer.closed, RangeError, 'c');
});

test('controller.error', async () => {
  let controller;
  const writer = new WritableStream({ start: (c) => { controller = c; } }).getWriter();
  await tick();
  controller.error(new RangeError('e'));
  controller.error(new RangeError('second'));
  await assertRejects(writer.write(1), RangeError, 'e');
  await assertRejects(writer.closed, RangeError, 'e');
  assertThrows(() => WritableStreamDefaultController.prototype.error.call({}), TypeError);
});

test('abort', async () => {
  const log = [];
  let signal;
  let open;
  const writer = new WritableStream({
    start: (controller) => { signal = controller.signal; },
    write: () => new Promise((resolve) => { open = resolve; }),
    abort: (reason) => { log.push(reason); },
  }).getWriter();
  assert(signal instanceof AbortSignal);
  const write = writer.write(1);
  const queued = writer.write(2).catch((e) => e);
  await tick();
  const aborted = writer.abort('why');
  assertEquals([signal.aborted, signal.reason], [true, 'why']);
  await tick();
  assertEquals(log, []);
  open();
  assertEquals([await write, await queued, await aborted], [undefined, 'why', undefined]);
  assertEquals(log, ['why']);
  assertEquals(await writer.closed.catch((e) => e), 'why');
  assertEquals(await writer.abort('again'), undefined);
  const failing = new WritableStream({ abort() { throw new RangeError('a'); } });
  await assertRejects(failing.abort(), RangeError, 'a');
  assertEquals(await new WritableStream().abort(), undefined);
});

test('abort while closing', async () => {
  let open;
  const writer = new WritableStream({ close: () => new Promise((resolve) => { open = resolve; }) }).getWriter();
  const closed = writer.close();
  await tick();
  const aborted = writer.abort('late');
  open();
  assertEquals([await closed, await aborted, await writer.closed], [undefined, undefined, undefined]);
});

test('locks', async () => {
  const stream = new WritableStream();
  assertEquals(stream.locked, false);
  const writer = stream.getWriter();
  assertEquals(stream.locked, true);
  assertThrows(() => stream.getWriter(), TypeError, LOCKED);
  assertThrows(() => new WritableStreamDefaultWriter(stream), TypeError, LOCKED);
  await assertRejects(stream.close(), TypeError, LOCKED);
  await assertRejects(stream.abort(), TypeError, LOCKED);
  await assertRejects(new ReadableStream().pipeTo(stream), TypeError, LOCKED);
  const { closed } = writer;
  writer.releaseLock();
  writer.releaseLock();
  assertEquals(stream.locked, false);
  await assertRejects(closed, TypeError, RELEASED);
  await assertRejects(writer.closed, TypeError, RELEASED);
  await assertRejects(writer.ready, TypeError, RELEASED);
  await assertRejects(writer.write(1), TypeError, RELEASED);
  await assertRejects(writer.close(), TypeError, RELEASED);
  await assertRejects(writer.abort(), TypeError, RELEASED);
  assertThrows(() => writer.desiredSize, TypeError, RELEASED);
  await stream.close();
  const late = stream.getWriter();
  assertEquals([await late.closed, await late.ready, late.desiredSize], [undefined, undefined, 0]);
});

test('receivers', async () => {
  for (const name of ['abort', 'close']) await assertRejects(WritableStream.prototype[name].call({}), TypeError);
  assertThrows(() => WritableStream.prototype.getWriter.call({}), TypeError);
  for (const name of ['abort', 'close', 'write']) await assertRejects(WritableStreamDefaultWriter.prototype[name].call({}), TypeError);
  assertEquals(String(new WritableStream()), '[object WritableStream]');
});
