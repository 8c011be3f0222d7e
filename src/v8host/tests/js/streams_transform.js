// TransformStream (Streams Standard, section 6), IdentityTransformStream, FixedLengthStream.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

export default {};

const tick = async (turns = 20) => {
  for (let i = 0; i < turns; i++) await null;
};
const bytes = (...values) => new Uint8Array(values);
const collect = async (stream) => {
  const out = [];
  for await (const chunk of stream) out.push(chunk);
  return out;
};

test('constructor arguments', () => {
  new TransformStream();
  new TransformStream(null);
  assertThrows(() => new TransformStream(1), TypeError);
  assertThrows(() => new TransformStream({ readableType: 'bytes' }), TypeError, 'transformer.readableType must be undefined.');
  assertThrows(() => new TransformStream({ writableType: 'bytes' }), TypeError, 'transformer.writableType must be undefined.');
  for (const name of ['start', 'transform', 'flush', 'cancel']) assertThrows(() => new TransformStream({ [name]: 1 }), TypeError);
  assertThrows(() => new TransformStream({ start() { throw new RangeError('s'); } }), RangeError, 's');
  assertThrows(() => new TransformStreamDefaultController(), TypeError, 'Illegal constructor');
  const stream = new TransformStream();
  assertEquals([stream.readable === stream.readable, stream.writable === stream.writable], [true, true]);
});

test('identity without a transformer', async () => {
  const { readable, writable } = new TransformStream();
  const writer = writable.getWriter();
  const object = {};
  writer.write(object);
  writer.close();
  assertEquals((await collect(readable))[0] === object, true);
});

test('start, transform, flush', async () => {
  const transformer = {
    start(controller) {
      assert(controller instanceof TransformStreamDefaultController);
      assertEquals(this === transformer, true);
      controller.enqueue('start');
    },
    async transform(chunk, controller) {
      await tick();
      controller.enqueue(chunk);
      controller.enqueue(chunk + 1);
    },
    flush(controller) {
      controller.enqueue('flush');
    },
  };
  const { readable, writable } = new TransformStream(transformer);
  const writer = writable.getWriter();
  writer.write(1);
  writer.write(10);
  writer.close();
  assertEquals(await collect(readable), ['start', 1, 2, 10, 11, 'flush']);
});

test('a write waits until somebody reads', async () => {
  const calls = [];
  const { readable, writable } = new TransformStream({ transform: (chunk) => { calls.push(chunk); } });
  const writer = writable.getWriter();
  assertEquals(writer.desiredSize, 1);
  writer.write('a');
  await tick();
  assertEquals([calls, writer.desiredSize], [[], 0]);
  readable.getReader().read();
  await tick();
  assertEquals([calls, writer.desiredSize], [['a'], 1]);
});

test('desiredSize of the controller', async () => {
  let controller;
  new TransformStream({ start: (c) => { controller = c; } }, undefined, { highWaterMark: 3 });
  assertEquals(controller.desiredSize, 3);
  controller.enqueue(1);
  assertEquals(controller.desiredSize, 2);
  controller.terminate();
  assertThrows(() => controller.enqueue(1), TypeError);
});

test('a transform that throws errors both sides', async () => {
  const { readable, writable } = new TransformStream({ transform() { throw new RangeError('t'); } });
  const writer = writable.getWriter();
  const reader = readable.getReader();
  const read = reader.read();
  await assertRejects(writer.write(1), RangeError, 't');
  await assertRejects(read, RangeError, 't');
  await assertRejects(writer.closed, RangeError, 't');
  await assertRejects(reader.closed, RangeError, 't');
});

test('a flush that throws', async () => {
  const { readable, writable } = new TransformStream({ async flush() { throw new RangeError('f'); } });
  const read = readable.getReader().read();
  await assertRejects(writable.close(), RangeError, 'f');
  await assertRejects(read, RangeError, 'f');
});

test('terminate and error', async () => {
  const first = new TransformStream({ transform: (chunk, c) => { c.enqueue(chunk); c.terminate(); } });
  const writer = first.writable.getWriter();
  writer.write('last').catch(() => {});
  assertEquals(await collect(first.readable), ['last']);
  await assertRejects(writer.write('more'), TypeError);
  let controller;
  const second = new TransformStream({ start: (c) => { controller = c; } });
  controller.error(new RangeError('e'));
  await assertRejects(second.readable.getReader().read(), RangeError, 'e');
  await assertRejects(second.writable.getWriter().write(1), RangeError, 'e');
});

test('cancel and abort reach the transformer', async () => {
  const log = [];
  const make = () => new TransformStream({ cancel: (reason) => { log.push(reason); } });
  const first = make();
  await first.readable.cancel('c');
  await assertRejects(first.writable.getWriter().write(1), undefined);
  const second = make();
  await second.writable.abort('a');
  assertEquals(await second.readable.getReader().read().catch((e) => e), 'a');
  assertEquals(log, ['c', 'a']);
  const failing = new TransformStream({ cancel() { throw new RangeError('x'); } });
  await assertRejects(failing.readable.cancel(), RangeError, 'x');
  const closed = make();
  const reading = collect(closed.readable);
  await closed.writable.close();
  assertEquals([await reading, log.length], [[], 2]);
});

test('IdentityTransformStream: bytes in, bytes out', async () => {
  const { readable, writable } = new IdentityTransformStream();
  const writer = writable.getWriter();
  const source = bytes(1, 2, 3);
  let written = false;
  writer.write(source).then(() => { written = true; });
  source.fill(9);
  await tick();
  assertEquals(written, false);
  const reader = readable.getReader({ mode: 'byob' });
  assertEquals([...(await reader.read(new Uint8Array(2))).value], [1, 2]);
  assertEquals(written, false);
  assertEquals([...(await reader.read(new Uint8Array(2))).value], [3]);
  await tick();
  assertEquals(written, true);
  const read = reader.read(new Uint8Array(2));
  await writer.write(bytes(4).buffer);
  assertEquals([...(await read).value], [4]);
  writer.close();
  assertEquals((await reader.read(new Uint8Array(1))).done, true);
  await writer.closed;
});

test('IdentityTransformStream: readAtLeast at the end, highWaterMark in bytes', async () => {
  const { readable, writable } = new IdentityTransformStream({ highWaterMark: 10 });
  const writer = writable.getWriter();
  const write = writer.write(bytes(1, 2, 3));
  assertEquals(writer.desiredSize, 7);
  writer.close();
  const reader = readable.getReader({ mode: 'byob' });
  const { value, done } = await reader.readAtLeast(5, new Uint8Array(8));
  assertEquals([[...value], done], [[1, 2, 3], false]);
  await write;
  assertEquals((await reader.readAtLeast(5, new Uint8Array(8))).done, true);
  assertEquals(new IdentityTransformStream().writable.getWriter().desiredSize, 1);
});

test('IdentityTransformStream: takes text, refuses objects, passes errors on', async () => {
  for (const stream of [new IdentityTransformStream(), new FixedLengthStream(5)]) {
    const text = new Response(stream.readable).text();
    const writer = stream.writable.getWriter();
    writer.write('h\u00e9');
    writer.write('');
    await writer.write(bytes(0x21, 0x21));
    await writer.close();
    assertEquals(await text, 'h\u00e9!!');
  }
  const refused = new IdentityTransformStream();
  const writer = refused.writable.getWriter();
  await assertRejects(writer.write({}), TypeError, /^This TransformStream is being used as a byte stream, but received an object of non-ArrayBuffer/);
  await assertRejects(refused.readable.getReader().read(), TypeError);
  const aborted = new IdentityTransformStream();
  await aborted.writable.abort(new RangeError('a'));
  await assertRejects(aborted.readable.getReader().read(), RangeError, 'a');
  const cancelled = new IdentityTransformStream();
  const other = cancelled.writable.getWriter();
  const write = other.write(bytes(1));
  write.catch(() => {});
  await tick();
  await cancelled.readable.cancel(new RangeError('c'));
  await assertRejects(write, RangeError, 'c');
  await assertRejects(other.write(bytes(2)), RangeError, 'c');
});

test('FixedLengthStream', async () => {
  const run = async (length, ...chunks) => {
    const { readable, writable } = new FixedLengthStream(length);
    const all = new Response(readable).bytes();
    all.catch(() => {});
    const writer = writable.getWriter();
    writer.closed.catch(() => {});
    for (const chunk of chunks) await writer.write(chunk);
    await writer.close();
    return all;
  };
  assertEquals(await run(3, bytes(1), bytes(2, 3)), bytes(1, 2, 3));
  assertEquals(await run(0), bytes());
  await assertRejects(run(2, bytes(1, 2, 3)), TypeError, 'Attempt to write too many bytes through a FixedLengthStream.');
  await assertRejects(run(2, bytes(1)), TypeError, 'FixedLengthStream did not see all expected bytes before close().');
  for (const length of [-1, NaN, 'x', undefined, 2 ** 53]) assertThrows(() => new FixedLengthStream(length), TypeError);
  assert(new FixedLengthStream(1) instanceof IdentityTransformStream);
});

test('lengths are converted as integers are', async () => {
  for (const length of ['5', 5n, 5.7]) {
    const { readable, writable } = new FixedLengthStream(length);
    const read = new Response(readable).text();
    const writer = writable.getWriter();
    await writer.write(new TextEncoder().encode('hello'));
    await writer.close();
    assertEquals(await read, 'hello');
  }
  assertThrows(() => new FixedLengthStream(), TypeError, 'Failed to construct \'FixedLengthStream\': constructor parameter 1 is not of type \'bigint\'.');
  assertThrows(() => new FixedLengthStream(NaN), TypeError, 'The value cannot be converted because it is not an integer.');
  assertThrows(() => new FixedLengthStream(-1), TypeError, /^The value cannot be converted because it is negative/);
});
