// TextEncoder, TextDecoder, their streams, atob and btoa.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

const bytes = (...list) => new Uint8Array(list);

test('encode', () => {
  const encoder = new TextEncoder();
  assertEquals(encoder.encoding, 'utf-8');
  assertEquals(encoder.encode('aü€😀'), bytes(0x61, 0xc3, 0xbc, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80));
  assertEquals(encoder.encode('\ud800x\udc00'), bytes(0xef, 0xbf, 0xbd, 0x78, 0xef, 0xbf, 0xbd));
  assertEquals([encoder.encode().length, encoder.encode(undefined).length, encoder.encode(null).length], [0, 0, 4]);
  assertEquals(encoder.encode('a'.repeat(100_000)).length, 100_000);
  assertEquals(encoder.encode('é'.repeat(50_000)).length, 100_000);
  assertThrows(() => TextEncoder.prototype.encode.call({}), TypeError, /^Illegal invocation/);
  assertThrows(() => encoder.encode(Symbol()), TypeError);
});

test('encodeInto writes whole characters', () => {
  const encoder = new TextEncoder();
  const cases = [['abc', 2, 2, 2], ['a€b', 3, 1, 1], ['a€b', 4, 2, 4], ['😀', 3, 0, 0], ['😀x', 4, 2, 4], ['é', 5, 1, 2], ['', 5, 0, 0], ['a', 0, 0, 0], ['\ud800', 3, 1, 3]];
  for (const [text, size, read, written] of cases) {
    assertEquals(encoder.encodeInto(text, new Uint8Array(size)), { read, written }, `${text} into ${size}`);
  }
  const target = new Uint8Array(6);
  encoder.encodeInto('xy', target.subarray(2, 5));
  assertEquals(target, bytes(0, 0, 120, 121, 0, 0));
  assertThrows(() => encoder.encodeInto('a', new Uint16Array(3)), TypeError, "Failed to execute 'encodeInto' on 'TextEncoder': parameter 2 is not of type 'Uint8Array'.");
  assertThrows(() => encoder.encodeInto('a'), TypeError);
});

test('labels', () => {
  const labels = {
    'utf-8': ['utf8', ' UTF-8\n', 'unicode-1-1-utf-8', 'x-unicode20utf8'], 'windows-1252': ['latin1', 'ascii', 'iso-8859-1', 'us-ascii', 'l1'],
    'utf-16le': ['utf-16', 'ucs-2', 'unicode', 'iso-10646-ucs-2'], 'utf-16be': ['unicodefffe'], gbk: ['gb2312', 'chinese', 'x-gbk'], gb18030: ['gb18030'],
    big5: ['big5-hkscs', 'cn-big5'], 'euc-jp': ['x-euc-jp'], shift_jis: ['sjis', 'ms932', 'windows-31j'], 'iso-2022-jp': ['csiso2022jp'], 'euc-kr': ['korean', 'ks_c_5601-1987'],
    'iso-8859-2': ['latin2'], 'iso-8859-8-i': ['logical'], 'koi8-r': ['koi'], 'koi8-u': ['koi8-ru'], macintosh: ['mac'], 'x-mac-cyrillic': ['x-mac-ukrainian'],
    'windows-1251': ['cp1251'], 'windows-874': ['tis-620'], ibm866: ['cp866'], 'x-user-defined': ['x-user-defined'], 'iso-8859-16': ['iso-8859-16'],
  };
  for (const [name, list] of Object.entries(labels)) {
    for (const label of [name, ...list]) assertEquals(new TextDecoder(label).encoding, name, label);
  }
  for (const label of ['nope', '', 'utf-7', 'replacement', 'iso-2022-kr', 'hz-gb-2312', 'utf-8\0', 'utf-32']) {
    assertThrows(() => new TextDecoder(label), RangeError, `"${label}" is not a valid encoding.`);
  }
  assertEquals(new TextDecoder(undefined).encoding, 'utf-8');
});

test('decode of several encodings', () => {
  const cases = [
    ['utf-8', [0xe2, 0x82, 0xac], '€'], ['latin1', [0x80, 0xe9], '€é'], ['utf-16le', [0x3d, 0xd8, 0, 0xde], '😀'], ['utf-16be', [0, 0x61, 0xd8], 'a\ufffd'],
    ['gbk', [0xc4, 0xe3], '你'], ['gb18030', [0x81, 0x30, 0x81, 0x30], '\x80'], ['big5', [0xa7, 0x41], '你'], ['shift_jis', [0x82, 0xa0], 'あ'],
    ['euc-jp', [0xa4, 0xa2], 'あ'], ['iso-2022-jp', [0x1b, 0x24, 0x42, 0x24, 0x22, 0x1b, 0x28, 0x42], 'あ'], ['euc-kr', [0xb0, 0xa1], '가'],
    ['koi8-r', [0xc1], 'а'], ['windows-1251', [0xe0], 'а'], ['x-user-defined', [0x80], '\uf780'],
  ];
  for (const [label, list, text] of cases) assertEquals(new TextDecoder(label).decode(bytes(...list)), text, label);
});

test('invalid bytes are replaced as the standard says', () => {
  const cases = [[[0xff], '\ufffd'], [[0xc0, 0x80], '\ufffd\ufffd'], [[0xe2, 0x82], '\ufffd'], [[0xf0, 0x9f, 0x41], '\ufffdA'], [[0xed, 0xa0, 0x80], '\ufffd\ufffd\ufffd'], [[0xf4, 0x90, 0x80, 0x80], '\ufffd\ufffd\ufffd\ufffd']];
  for (const [list, text] of cases) {
    assertEquals(new TextDecoder().decode(bytes(...list)), text, String(list));
    assertThrows(() => new TextDecoder('utf-8', { fatal: true }).decode(bytes(...list)), TypeError, 'Failed to decode input.');
  }
});

test('the byte order mark', () => {
  const marked = bytes(0xef, 0xbb, 0xbf, 0x61);
  assertEquals(new TextDecoder().decode(marked), 'a');
  assertEquals(new TextDecoder('utf-8', { ignoreBOM: true }).decode(marked), '\ufeffa');
  assertEquals(new TextDecoder('utf-16le').decode(bytes(0xff, 0xfe, 0x61, 0)), 'a');
  assertEquals(new TextDecoder('utf-16le').decode(bytes(0xfe, 0xff)), '\ufffe');
  assertEquals(new TextDecoder().decode(bytes(0xef, 0xbb, 0xbf, 0xef, 0xbb, 0xbf)), '\ufeff');
  const decoder = new TextDecoder();
  let text = '';
  for (const byte of marked) text += decoder.decode(bytes(byte), { stream: true });
  assertEquals(text + decoder.decode(), 'a');
  assertEquals(decoder.decode(marked), 'a');
});

test('streaming', () => {
  const source = new TextEncoder().encode('a😀ü€');
  for (let size = 1; size < source.length; size++) {
    const decoder = new TextDecoder();
    let text = '';
    for (let at = 0; at < source.length; at += size) text += decoder.decode(source.subarray(at, at + size), { stream: true });
    assertEquals(text + decoder.decode(), 'a😀ü€', `pieces of ${size}`);
  }
  const decoder = new TextDecoder();
  assertEquals(decoder.decode(bytes(0xe2), { stream: true }), '');
  assertEquals(decoder.decode(), '\ufffd');
  assertEquals(decoder.decode(bytes(0x61)), 'a');
  const state = new TextDecoder('iso-2022-jp');
  assertEquals(state.decode(bytes(0x1b, 0x24, 0x42), { stream: true }), '');
  assertEquals(state.decode(bytes(0x24, 0x22), { stream: true }), 'あ');
  assertEquals(state.decode(), '');
  const fatal = new TextDecoder('utf-8', { fatal: true });
  assertEquals(fatal.decode(bytes(0xe2), { stream: true }), '');
  assertThrows(() => fatal.decode(), TypeError, 'Failed to decode input.');
  assertEquals(fatal.decode(bytes(0x61)), 'a');
});

test('many decoders that are never finished do not disturb each other', () => {
  const decoders = Array.from({ length: 500 }, () => new TextDecoder());
  for (const decoder of decoders) decoder.decode(bytes(0xe2, 0x82), { stream: true });
  for (const decoder of decoders) assertEquals(decoder.decode(bytes(0xac), { stream: true }), '€');
});

test('what decode accepts', () => {
  const decoder = new TextDecoder();
  const { buffer } = bytes(0x61, 0x62, 0x63, 0x64);
  assertEquals([decoder.decode(buffer), decoder.decode(new DataView(buffer, 1, 2)), decoder.decode(new Uint16Array(buffer)), decoder.decode()], ['abcd', 'bc', 'abcd', '']);
  assertEquals(decoder.decode(undefined, { stream: false }), '');
  const shared = new Uint8Array(new SharedArrayBuffer(2)).fill(0x7a);
  assertEquals(decoder.decode(shared), 'zz');
  for (const value of [5, 'a', null, {}]) assertThrows(() => decoder.decode(value), TypeError);
  assertThrows(() => decoder.decode(bytes(), 5), TypeError);
  assertThrows(() => new TextDecoder('utf-8', 5), TypeError);
  const options = new TextDecoder('latin1', { fatal: 1, ignoreBOM: 'x' });
  assertEquals([options.fatal, options.ignoreBOM], [true, true]);
  assertEquals(decoder.decode(new Uint8Array(200_000).fill(0x61)).length, 200_000);
});

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test('TextEncoderStream keeps surrogate pairs together', async () => {
  const stream = new TextEncoderStream();
  assertEquals(stream.encoding, 'utf-8');
  const writer = stream.writable.getWriter();
  const chunks = collect(stream.readable);
  for (const text of ['a\ud83d', '\ude00', '', 'b\ud800']) writer.write(text);
  writer.close();
  const all = (await chunks).flatMap((chunk) => [...chunk]);
  assertEquals(all, [0x61, 0xf0, 0x9f, 0x98, 0x80, 0x62, 0xef, 0xbf, 0xbd]);
});

test('TextDecoderStream', async () => {
  const stream = new TextDecoderStream('utf-8', { ignoreBOM: true });
  assertEquals([stream.encoding, stream.fatal, stream.ignoreBOM], ['utf-8', false, true]);
  const writer = stream.writable.getWriter();
  const chunks = collect(stream.readable);
  for (const list of [[0xe2], [0x82, 0xac, 0x61], [0xe2]]) writer.write(bytes(...list));
  writer.close();
  assertEquals((await chunks).join(''), '€a\ufffd');
  const fatal = new TextDecoderStream('utf-8', { fatal: true });
  const failing = fatal.writable.getWriter();
  const reading = collect(fatal.readable);
  failing.write(bytes(0xff)).catch(() => {});
  failing.closed.catch(() => {});
  await assertRejects(reading, TypeError, 'Failed to decode input.');
  const wrong = new TextDecoderStream();
  const wrongWriter = wrong.writable.getWriter();
  wrongWriter.closed.catch(() => {});
  wrong.readable.getReader().read().catch(() => {});
  await assertRejects(wrongWriter.write('text'), TypeError);
  assertThrows(() => new TextDecoderStream('nope'), RangeError);
});

test('atob and btoa', () => {
  assertThrows(() => btoa(), TypeError, 'Failed to execute \'btoa\' on \'ServiceWorkerGlobalScope\': parameter 1 is not of type \'String\'.');
  assertEquals([btoa(''), btoa('a'), btoa('ab'), btoa('abc'), btoa('\xff\x00')], ['', 'YQ==', 'YWI=', 'YWJj', '/wA=']);
  assertEquals([atob(''), atob('YQ=='), atob('YQ'), atob(' Y W\tI\n=\f\r'), atob('YWJj')], ['', 'a', 'a', 'ab', 'abc']);
  assertEquals([btoa(undefined), btoa(null), atob(null)], ['dW5kZWZpbmVk', 'bnVsbA==', '\x9eée']);
  for (const text of ['Y', 'YQ=', 'YQ===', 'Y=Q=', '=', 'YW!j', 'YWJj=', 'YQ==YQ==', 'é', '-_-_']) {
    const error = assertThrows(() => atob(text), 'InvalidCharacterError');
    assertEquals(error.code, 5, text);
  }
  assertThrows(() => btoa('€'), 'InvalidCharacterError', 'btoa() can only operate on characters in the Latin1 (ISO/IEC 8859-1) range.');
  assertThrows(() => atob(), TypeError, "Failed to execute 'atob' on 'ServiceWorkerGlobalScope': parameter 1 is not of type 'string'.");
  let all = '';
  for (let i = 0; i < 256; i++) all += String.fromCharCode(i);
  assertEquals(atob(btoa(all)), all);
});
