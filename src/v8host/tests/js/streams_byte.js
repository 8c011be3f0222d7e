// Readable byte streams and BYOB readers: Streams Standard, sections 4.5 to 4.10.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

export default {};

const bytes = (...values) => new Uint8Array(values);
const tick = async () => {
  for (let i = 0; i < 10; i++) await null;
};
function make(source = {}, strategy = undefined) {
  let controller;
  const stream = new ReadableStream({ ...source, type: 'bytes', start: (c) => { controller = c; } }, strategy);
  return { stream, controller };
}

test('constructor arguments', () => {
  assertThrows(() => new ReadableStream({ type: 'bytes' }, { size: () => 1 }), RangeError);
  assertThrows(() => new ReadableStream({ type: 'bytes', autoAllocateChunkSize: 0 }), TypeError);
  assertThrows(() => new ReadableStream({ type: 'bytes', autoAllocateChunkSize: -1 }), TypeError);
  new ReadableStream({ type: new String('bytes') }, { highWaterMark: 5 });
  const { controller } = make();
  assert(controller instanceof ReadableByteStreamController);
  assertEquals([controller.desiredSize, controller.byobRequest], [0, null]);
  assertThrows(() => new ReadableByteStreamController(), TypeError, 'Illegal constructor');
  assertThrows(() => new ReadableStreamBYOBRequest(), TypeError, 'Illegal constructor');
});

test('chunks change hands', async () => {
  const { stream, controller } = make();
  const chunk = bytes(1, 2, 3);
  controller.enqueue(chunk.subarray(1));
  assertEquals(chunk.byteLength, 0);
  assertEquals(controller.desiredSize, -2);
  assertEquals((await stream.getReader().read()).value, bytes(2, 3));
  for (const bad of [1, 'a', null, {}, new ArrayBuffer(1)]) assertThrows(() => controller.enqueue(bad), TypeError);
  assertThrows(() => controller.enqueue(bytes()), TypeError);
  assertThrows(() => controller.enqueue(chunk), TypeError);
});

test('BYOB reads take what fits', async () => {
  const { stream, controller } = make();
  controller.enqueue(bytes(1, 2, 3, 4, 5));
  controller.close();
  const reader = stream.getReader({ mode: 'byob' });
  const view = new Uint8Array(new ArrayBuffer(8), 2, 3);
  const { value, done } = await reader.read(view);
  assertEquals([view.byteLength, value.byteOffset, value.buffer.byteLength, done], [0, 2, 8, false]);
  assertEquals([...value], [1, 2, 3]);
  assertEquals([...(await reader.read(new Uint8Array(8))).value], [4, 5]);
  const end = await reader.read(new Uint8Array(8));
  assertEquals([end.done, end.value.byteLength, end.value.buffer.byteLength], [true, 0, 8]);
  assertEquals(await reader.closed, undefined);
});

test('views of other types come whole', async () => {
  const { stream, controller } = make();
  const reader = stream.getReader({ mode: 'byob' });
  const read = reader.read(new Uint16Array(2));
  controller.enqueue(bytes(1));
  await tick();
  controller.enqueue(bytes(0, 2));
  const { value } = await read;
  assert(value instanceof Uint16Array);
  assertEquals([...value], [1]);
  const rest = reader.read(new DataView(new ArrayBuffer(4)));
  const { value: data } = await rest;
  assert(data instanceof DataView);
  assertEquals([data.byteLength, data.getUint8(0)], [1, 2]);
});

test('the end in the middle of an element', async () => {
  const { stream, controller } = make();
  const reader = stream.getReader({ mode: 'byob' });
  const read = reader.read(new Uint16Array(1));
  controller.enqueue(bytes(1));
  assertThrows(() => controller.close(), TypeError);
  await assertRejects(read, TypeError);
});

test('BYOB requests', async () => {
  const seen = [];
  const stream = new ReadableStream({
    type: 'bytes',
    pull(controller) {
      const request = controller.byobRequest;
      assert(request instanceof ReadableStreamBYOBRequest);
      assertEquals(controller.byobRequest, request);
      seen.push([request.view.byteLength, request.view.byteOffset, request.atLeast]);
      request.view[0] = seen.length;
      request.respond(1);
      assertEquals(request.view, null);
      assertThrows(() => request.respond(1), TypeError);
      assertThrows(() => request.respondWithNewView(bytes(1)), TypeError);
    },
  });
  const reader = stream.getReader({ mode: 'byob' });
  assertEquals([...(await reader.read(new Uint8Array(3))).value], [1]);
  assertEquals([...(await reader.read(new Uint8Array(3), { min: 2 })).value], [2, 3]);
  assertEquals(seen, [[3, 0, 1], [3, 0, 2], [2, 1, 1]]);
});

test('answers that do not fit', async () => {
  const { stream, controller } = make();
  const reader = stream.getReader({ mode: 'byob' });
  const read = reader.read(new Uint8Array(4));
  const request = controller.byobRequest;
  assertThrows(() => request.respond(0), TypeError);
  assertThrows(() => request.respond(5), RangeError);
  assertThrows(() => request.respond(-1), TypeError);
  assertThrows(() => request.respondWithNewView(new Uint8Array(new ArrayBuffer(4), 1)), RangeError);
  assertThrows(() => request.respondWithNewView(new Uint8Array(3)), RangeError);
  assertThrows(() => request.respondWithNewView(1), TypeError);
  const { buffer } = request.view;
  const moved = buffer.transfer();
  new Uint8Array(moved)[0] = 7;
  request.respondWithNewView(new Uint8Array(moved, 0, 1));
  assertEquals([...(await read).value], [7]);
});

test('respond(0) ends reads of a closed stream', async () => {
  const { stream, controller } = make();
  const reader = stream.getReader({ mode: 'byob' });
  const reads = [reader.read(new Uint8Array(2)), reader.read(new Uint16Array(2))];
  controller.close();
  controller.byobRequest.respond(0);
  const [a, b] = await Promise.all(reads);
  assertEquals([a.done, a.value.constructor, a.value.length], [true, Uint8Array, 0]);
  assertEquals([b.done, b.value.constructor, b.value.length], [true, Uint16Array, 0]);
});

test('automatic allocation', async () => {
  let pulls = 0;
  const stream = new ReadableStream({
    type: 'bytes',
    autoAllocateChunkSize: 16,
    pull(controller) {
      pulls++;
      const { view } = controller.byobRequest;
      assertEquals(view.byteLength, 16);
      view[0] = 9;
      controller.byobRequest.respond(1);
    },
  });
  assertEquals((await stream.getReader().read()).value, bytes(9));
  assertEquals(pulls, 1);
});

test('arguments of read', async () => {
  const { stream, controller } = make();
  const reader = stream.getReader({ mode: 'byob' });
  for (const view of [undefined, null, 1, {}, new ArrayBuffer(4)]) await assertRejects(reader.read(view), TypeError);
  await assertRejects(reader.read(new Uint8Array(0)), TypeError, 'You must call read() on a "byob" reader with a positive-sized TypedArray object.');
  const gone = new Uint8Array(4);
  gone.buffer.transfer();
  await assertRejects(reader.read(gone), TypeError);
  await assertRejects(reader.read(new Uint8Array(4), { min: 0 }), TypeError);
  await assertRejects(reader.read(new Uint8Array(4), { min: 5 }), RangeError);
  await assertRejects(reader.read(new Uint16Array(4), { min: 5 }), RangeError);
  await assertRejects(reader.read(new Uint8Array(4), { min: -1 }), TypeError);
  controller.enqueue(bytes(1));
  assertEquals((await reader.read(new Uint8Array(4))).value.length, 1);
  reader.releaseLock();
  await assertRejects(reader.read(new Uint8Array(4)), TypeError, 'This ReadableStream reader has been released.');
});

test('min and readAtLeast', async () => {
  const { stream, controller } = make();
  const reader = stream.getReader({ mode: 'byob' });
  let settled = false;
  const read = reader.read(new Uint8Array(6), { min: 4 }).then((result) => { settled = true; return result; });
  controller.enqueue(bytes(1, 2));
  await tick();
  assertEquals(settled, false);
  controller.enqueue(bytes(3, 4, 5, 6, 7, 8));
  assertEquals([...(await read).value], [1, 2, 3, 4, 5, 6]);
  const rest = reader.readAtLeast(3, new Uint8Array(8));
  controller.enqueue(bytes(9));
  assertEquals([...(await rest).value], [7, 8, 9]);
  await assertRejects(reader.readAtLeast(9, new Uint8Array(8)), RangeError);
});

test('readAtLeast at the end of a body gives what is left', async () => {
  const reader = new Response('abcde').body.getReader({ mode: 'byob' });
  assertEquals([...(await reader.readAtLeast(3, new Uint8Array(4))).value].length, 4);
  const last = await reader.readAtLeast(3, new Uint8Array(4));
  assertEquals([last.done, [...last.value]], [false, [101]]);
  assertEquals((await reader.readAtLeast(1, new Uint8Array(4))).done, true);
});

test('released readers leave their bytes', async () => {
  const { stream, controller } = make();
  const first = stream.getReader({ mode: 'byob' });
  const read = first.read(new Uint8Array(4), { min: 4 });
  controller.enqueue(bytes(1, 2));
  first.releaseLock();
  await assertRejects(read, TypeError, 'This ReadableStream reader has been released.');
  const second = stream.getReader();
  const next = second.read();
  controller.enqueue(bytes(3));
  assertEquals((await next).value, bytes(1, 2));
  assertEquals((await second.read()).value, bytes(3));
});

test('errors', async () => {
  const { stream, controller } = make();
  const reader = stream.getReader({ mode: 'byob' });
  const read = reader.read(new Uint8Array(4));
  controller.error(new RangeError('e'));
  await assertRejects(read, RangeError, 'e');
  await assertRejects(reader.read(new Uint8Array(4)), RangeError, 'e');
  await assertRejects(reader.closed, RangeError, 'e');
});

test('cancel', async () => {
  let reason;
  const { stream, controller } = make({ cancel: (r) => { reason = r; } });
  const reader = stream.getReader({ mode: 'byob' });
  const read = reader.read(new Uint8Array(4));
  await reader.cancel('c');
  assertEquals([reason, await read, controller.byobRequest], ['c', { value: undefined, done: true }, null]);
});

test('tee of a byte stream', async () => {
  const { stream, controller } = make();
  const [a, b] = stream.tee();
  controller.enqueue(bytes(1, 2, 3));
  const x = (await a.getReader({ mode: 'byob' }).read(new Uint8Array(8))).value;
  const y = (await b.getReader().read()).value;
  assertEquals([[...x], [...y]], [[1, 2, 3], [1, 2, 3]]);
  x.fill(0);
  assertEquals([...y], [1, 2, 3]);
});

test('tee hands a BYOB view on to the source', async () => {
  const sizes = [];
  const stream = new ReadableStream({
    type: 'bytes',
    pull(controller) {
      if (sizes.length === 2) {
        controller.close();
        controller.byobRequest?.respond(0);
        return;
      }
      const request = controller.byobRequest;
      sizes.push(request?.view.byteLength);
      if (request) {
        request.view[0] = 5;
        request.respond(1);
      } else controller.enqueue(bytes(6));
    },
  });
  const [a, b] = stream.tee();
  const reader = a.getReader({ mode: 'byob' });
  const other = b.getReader();
  assertEquals([...(await reader.read(new Uint8Array(3))).value], [5]);
  assertEquals((await other.read()).value, bytes(5));
  assertEquals((await other.read()).value, bytes(6));
  assertEquals([...(await reader.read(new Uint8Array(3))).value], [6]);
  assertEquals(sizes, [3, undefined]);
  const ends = [reader.read(new Uint8Array(1)), other.read()];
  assertEquals((await Promise.all(ends)).map(({ done }) => done), [true, true]);
});

test('iteration and pipes of byte streams', async () => {
  const { stream, controller } = make();
  controller.enqueue(bytes(1));
  controller.enqueue(bytes(2));
  controller.close();
  const out = [];
  await stream.pipeTo(new WritableStream({ write: (chunk) => { out.push(...chunk); } }));
  assertEquals(out, [1, 2]);
});
