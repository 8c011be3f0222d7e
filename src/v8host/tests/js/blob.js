// Blob and File.
import { assert, assertEquals, assertThrows, test } from 'test';

test('parts of all kinds', async () => {
  const blob = new Blob(['aü', new Uint8Array([1, 2]), new Uint16Array([0x4142]).buffer, new DataView(new ArrayBuffer(1)), new Blob(['z']), 5, {}], { type: 'Text/Plain' });
  assertEquals([blob.size, blob.type], [3 + 2 + 2 + 1 + 1 + 1 + 15, 'text/plain']);
  assertEquals(await blob.text(), 'aü\x01\x02BA\0z5[object Object]');
  assertEquals((await blob.bytes()).subarray(0, 3), new Uint8Array([0x61, 0xc3, 0xbc]));
  const buffer = await blob.arrayBuffer();
  assert(buffer instanceof ArrayBuffer);
  assertEquals(buffer.byteLength, blob.size);
});

test('construction', () => {
  assertEquals([new Blob().size, new Blob(undefined).size, new Blob([]).type, new Blob(new Set(['a', 'b'])).size], [0, 0, '', 2]);
  for (const value of ['abc', 5, null, {}]) {
    assertThrows(() => new Blob(value), TypeError, "Failed to construct 'Blob': constructor parameter 1 is not of type 'Array'.");
  }
  assertThrows(() => new Blob([], 5), TypeError);
  assertEquals(new Blob([], null).size, 0);
  assertEquals([new Blob([], { type: 'a\u00e9' }).type, new Blob([], { type: 'a\n' }).type, new Blob([], { type: null }).type], ['', '', 'null']);
  assertEquals([new Blob(['a\r\nb\rc\nd'], { endings: 'native' }).size, new Blob(['a\r\nb'], { endings: 'transparent' }).size], [7, 4]);
  assertThrows(() => new Blob([], { endings: 'x' }), TypeError);
  assertThrows(() => Blob([]), TypeError);
});

test('the bytes are copied when the blob is made', async () => {
  const source = new Uint8Array([97, 98]);
  const blob = new Blob([source]);
  source.fill(120);
  assertEquals(await blob.text(), 'ab');
  (await blob.bytes()).fill(120);
  new Uint8Array(await blob.arrayBuffer()).fill(120);
  assertEquals(await blob.text(), 'ab');
});

test('slice', async () => {
  const blob = new Blob(['0123456789'], { type: 'a/b' });
  const cases = [[[], '0123456789'], [[2], '23456789'], [[2, 4], '23'], [[-3], '789'], [[-3, -1], '78'], [[5, 2], ''], [[0, 100], '0123456789'], [[100], ''], [[-100, 2], '01'], [[undefined, 3], '012'], [['1', '3'], '12'], [[NaN, 2], '01'], [[1.5, 3.5], '23'], [[0.5, 2.5], '01']];
  for (const [args, text] of cases) assertEquals(await blob.slice(...args).text(), text, String(args));
  assertEquals([blob.slice().type, blob.slice(0, 1, 'X/Y').type], ['', 'x/y']);
  assertEquals(await blob.slice(2, 8).slice(1, 3).text(), '34');
});

test('stream', async () => {
  const blob = new Blob(['x'.repeat(200_000)]);
  let size = 0;
  let pieces = 0;
  for await (const chunk of blob.stream()) {
    assert(chunk instanceof Uint8Array);
    size += chunk.length;
    pieces++;
  }
  assertEquals([size, pieces], [200_000, 4]);
  assertEquals(await new Response(blob.stream()).text(), await blob.text());
  const reader = blob.stream().getReader({ mode: 'byob' });
  const { value } = await reader.read(new Uint8Array(10));
  assertEquals(value.length, 10);
  await reader.cancel();
  assertEquals((await new Blob([]).stream().getReader().read()).done, true);
});

test('a byte order mark is no text', async () => {
  assertEquals(await new Blob(['\ufeffa']).text(), 'a');
  assertEquals(await new Blob([new Uint8Array([0xff])]).text(), '\ufffd');
});

test('File', async () => {
  const file = new File(['ab'], 'dir/n.txt', { type: 'a/b', lastModified: 5 });
  assertEquals([file.name, file.lastModified, file.size, file.type], ['dir/n.txt', 5, 2, 'a/b']);
  assert(file instanceof Blob);
  assertEquals(new File([], 'n').lastModified, Date.now());
  assertEquals(new File([], 'n', { lastModified: new Date(7) }).lastModified, 7);
  assertEquals(await file.text(), 'ab');
  assert(!(file.slice() instanceof File));
  assertThrows(() => new File(['a']), TypeError, "Failed to construct 'File': constructor parameter 2 is not of type 'string'.");
  assertThrows(() => new File(), TypeError);
  assertThrows(() => new File('a', 'n'), TypeError);
  assertEquals(Object.keys(File.prototype), ['name', 'lastModified']);
});

test('members check this', () => {
  assertThrows(() => Object.getOwnPropertyDescriptor(Blob.prototype, 'size').get.call({}), TypeError, /^Illegal invocation/);
  assertThrows(() => Blob.prototype.slice.call({}), TypeError);
  assertThrows(() => Object.getOwnPropertyDescriptor(File.prototype, 'name').get.call(new Blob()), TypeError);
  assertEquals(Object.prototype.toString.call(new Blob()), '[object Blob]');
});
