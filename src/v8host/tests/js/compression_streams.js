// CompressionStream and DecompressionStream.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

const FORMATS = ['gzip', 'deflate', 'deflate-raw'];
/** "hello world" as other programs pack it. */
const PACKED = {
  gzip: '1f8b0800000000000203cb48cdc9c95728cf2fca49010085114a0d0b000000',
  deflate: '789ccb48cdc9c95728cf2fca49010' + '01a0b045d',
  'deflate-raw': 'cb48cdc9c95728cf2fca490100',
};

const fromHex = (hex) => Uint8Array.from(hex.match(/../g), (pair) => Number.parseInt(pair, 16));
const streamOf = (...chunks) => new ReadableStream({
  start(controller) {
    for (const chunk of chunks) controller.enqueue(chunk);
    controller.close();
  },
});
const read = async (stream) => new Uint8Array(await new Response(stream).arrayBuffer());
const text = (bytes) => new TextDecoder().decode(bytes);
const pack = (format, ...chunks) => read(streamOf(...chunks).pipeThrough(new CompressionStream(format)));
const unpack = (format, ...chunks) => read(streamOf(...chunks).pipeThrough(new DecompressionStream(format)));

test('what other programs packed is unpacked, however it is cut', async () => {
  for (const format of FORMATS) {
    const packed = fromHex(PACKED[format]);
    assertEquals(text(await unpack(format, packed)), 'hello world');
    assertEquals(text(await unpack(format, ...Array.from(packed, (byte) => new Uint8Array([byte])))), 'hello world');
    assertEquals(text(await unpack(format, packed.buffer)), 'hello world');
  }
});

test('what is packed comes back', async () => {
  const noise = Uint8Array.from({ length: 300_000 }, (_, i) => (i * 2654435761) >>> 24);
  for (const format of FORMATS) {
    for (const chunks of [[], [new Uint8Array()], [noise], [new Uint8Array(5_000_000)], [noise.subarray(3, 9), noise]]) {
      const packed = await pack(format, ...chunks);
      const all = chunks.flatMap((chunk) => [...chunk.slice(0, 10)]);
      const back = await unpack(format, packed);
      assertEquals(back.length, chunks.reduce((sum, chunk) => sum + chunk.length, 0));
      if (chunks.length === 1) assertEquals([...back.slice(0, 10)], all);
    }
    assert((await pack(format, new Uint8Array(1_000_000))).length < 10_000);
  }
});

test('damaged, cut and longer input is a TypeError', async () => {
  for (const format of FORMATS) {
    const packed = fromHex(PACKED[format]);
    const name = format === 'gzip' ? 'Gzip' : 'Deflate';
    await assertRejects(unpack(format, packed.subarray(0, 8)), TypeError, `${name} compressed stream ended prematurely.`);
    await assertRejects(unpack(format), TypeError, `${name} compressed stream ended prematurely.`);
    await assertRejects(unpack(format, packed, new Uint8Array(1)), TypeError, `${name} decompression failed.`);
    await assertRejects(unpack(format, new Uint8Array(50).fill(255)), TypeError, `${name} decompression failed.`);
  }
});

test('a chunk that is no bytes fails both sides', async () => {
  const stream = new CompressionStream('gzip');
  const writer = stream.writable.getWriter();
  const reading = assertRejects(stream.readable.getReader().read(), TypeError, /byte stream/);
  await assertRejects(writer.write('text'), TypeError, /byte stream/);
  await reading;
});

test('what a chunk unpacks to waits until it is read', async () => {
  const packed = await pack('gzip', new Uint8Array(20_000_000));
  const stream = new DecompressionStream('gzip');
  const writer = stream.writable.getWriter();
  let written = false;
  const writing = writer.write(packed).then(() => { written = true; });
  const closing = writer.close();
  const reader = stream.readable.getReader();
  let total = 0;
  for (let i = 0; ; i++) {
    const { done, value } = await reader.read();
    if (done) break;
    assert(value.length <= 65536);
    total += value.length;
    if (i === 10) assertEquals(written, false);
  }
  assertEquals(total, 20_000_000);
  await Promise.all([writing, closing]);
  const given = new DecompressionStream('gzip');
  const abandoned = given.writable.getWriter().write(packed);
  await given.readable.cancel('enough');
  await assertRejects(abandoned.then(() => { throw new Error('left'); }));
});

test('arguments', () => {
  for (const bad of [undefined, 'zip', 'GZIP', null]) {
    assertThrows(() => new CompressionStream(bad), TypeError, "The compression format must be either 'deflate', 'deflate-raw' or 'gzip'.");
    assertThrows(() => new DecompressionStream(bad), TypeError);
  }
  assertThrows(() => CompressionStream('gzip'), TypeError);
  assertEquals([CompressionStream.length, DecompressionStream.length], [1, 1]);
  assertEquals(Object.prototype.toString.call(new CompressionStream('gzip')), '[object CompressionStream]');
  const { get } = Object.getOwnPropertyDescriptor(CompressionStream.prototype, 'readable');
  assertThrows(() => get.call({}), TypeError, /^Illegal invocation/);
});

test('streams have places, and give them back at their end or when nobody has them', async () => {
  for (let i = 0; i < 1500; i++) assertEquals(text(await unpack('gzip', fromHex(PACKED.gzip))), 'hello world');
  for (let i = 0; i < 1500; i++) {
    new CompressionStream('gzip');
    // What a stream has begun keeps it until the turn ends.
    if (i % 100 === 99) await new Promise((resolve) => { setTimeout(resolve, 0); });
  }
  const held = [];
  assertThrows(() => {
    for (let i = 0; i < 1500; i++) held.push(new CompressionStream('gzip'));
  }, RangeError, 'more than 512 compression streams are open');
  assert(held.length > 400);
});
