// crypto: random values, digests, DigestStream, and what is refused.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

const hex = (buffer) => [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
const text = (string) => new TextEncoder().encode(string);

test('digests of known texts', async () => {
  const cases = [
    ['SHA-1', 'abc', 'a9993e364706816aba3e25717850c26c9cd0d89d'],
    ['SHA-256', 'abc', 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'],
    ['SHA-384', 'abc', 'cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7'],
    ['SHA-512', 'abc', 'ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f'],
    ['MD5', 'abc', '900150983cd24fb0d6963f7d28e17f72'],
    ['MD5', '', 'd41d8cd98f00b204e9800998ecf8427e'],
    ['sha-256', '', 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'],
  ];
  for (const [name, input, expected] of cases) {
    assertEquals(hex(await crypto.subtle.digest(name, text(input))), expected, name);
    assertEquals(hex(await crypto.subtle.digest({ name }, text(input).buffer)), expected, name);
  }
  const bytes = text('xabcx');
  assertEquals(hex(await crypto.subtle.digest('MD5', bytes.subarray(1, 4))), '900150983cd24fb0d6963f7d28e17f72');
  assert((await crypto.subtle.digest('SHA-1', new Uint8Array())) instanceof ArrayBuffer);
});

test('digest refuses', async () => {
  for (const name of ['SHA1', 'SHA256', 'nope', '', {}, { name: 'SHA-3' }]) {
    await assertRejects(crypto.subtle.digest(name, new Uint8Array()), 'NotSupportedError', 'Unrecognized or unimplemented digest algorithm requested.');
  }
  await assertRejects(crypto.subtle.digest('SHA-1', 5), TypeError, "Failed to execute 'digest' on 'SubtleCrypto': parameter 2 is not of type 'BufferSource'.");
  await assertRejects(crypto.subtle.digest('SHA-1'), TypeError);
  await assertRejects(crypto.subtle.digest(), TypeError, "Failed to execute 'digest' on 'SubtleCrypto': parameter 1 is not of type 'string or HashAlgorithm'.");
});

test('members that are missing say so', async () => {
  for (const name of ['encrypt', 'decrypt', 'sign', 'verify', 'generateKey', 'deriveKey', 'deriveBits', 'importKey', 'exportKey', 'wrapKey', 'unwrapKey']) {
    await assertRejects(crypto.subtle[name](), 'NotSupportedError', `crypto.subtle.${name} is not implemented in celld yet`);
  }
});

test('getRandomValues', () => {
  for (const Class of [Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, BigInt64Array, BigUint64Array]) {
    const array = new Class(64);
    assertEquals(crypto.getRandomValues(array), array);
    assert(array.some((item) => item != 0), Class.name);
  }
  const part = new Uint8Array(64);
  crypto.getRandomValues(part.subarray(16, 48));
  assert(part.subarray(0, 16).every((item) => item === 0) && part.subarray(48).every((item) => item === 0));
  assertEquals(crypto.getRandomValues(new Uint8Array(0)).length, 0);
  assertEquals(crypto.getRandomValues(new Uint8Array(65_536)).length, 65_536);
  const error = assertThrows(() => crypto.getRandomValues(new Uint8Array(65_537)), 'QuotaExceededError', 'getRandomValues() only accepts buffers of size <= 64K but provided 65537 bytes.');
  assertEquals(error.code, 22);
  for (const array of [new Float32Array(1), new Float64Array(1), new DataView(new ArrayBuffer(1))]) {
    assertThrows(() => crypto.getRandomValues(array), 'TypeMismatchError', 'ArrayBufferView argument to getRandomValues() must be an integer-typed view.');
  }
  for (const value of [5, null, new ArrayBuffer(1), [1]]) assertThrows(() => crypto.getRandomValues(value), TypeError);
  const { getRandomValues } = crypto;
  assertThrows(() => getRandomValues(new Uint8Array(1)), TypeError, /^Illegal invocation/);
});

test('randomUUID', () => {
  const seen = new Set();
  for (let i = 0; i < 100; i++) {
    const uuid = crypto.randomUUID();
    assert(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(uuid), uuid);
    seen.add(uuid);
  }
  assertEquals(seen.size, 100);
});

test('timingSafeEqual', () => {
  const equal = (a, b) => crypto.subtle.timingSafeEqual(text(a), text(b));
  assertEquals([equal('abc', 'abc'), equal('abc', 'abd'), equal('', '')], [true, false, true]);
  assertEquals(crypto.subtle.timingSafeEqual(text('ab').buffer, new DataView(text('ab').buffer)), true);
  assertThrows(() => equal('a', 'ab'), TypeError, 'Input buffers must have the same byte length.');
  assertThrows(() => crypto.subtle.timingSafeEqual('a', 'a'), TypeError);
});

test('DigestStream', async () => {
  const stream = new crypto.DigestStream('SHA-256');
  assert(stream instanceof WritableStream);
  const writer = stream.getWriter();
  writer.write(text('a'));
  writer.write('b');
  writer.write(text('c').buffer);
  await writer.close();
  assertEquals(hex(await stream.digest), 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad');
  assertEquals(stream.bytesWritten, 3n);
  const piped = new crypto.DigestStream({ name: 'md5' });
  await new Blob(['abc']).stream().pipeTo(piped);
  assertEquals(hex(await piped.digest), '900150983cd24fb0d6963f7d28e17f72');
});

test('DigestStream: two at once, abort, wrong chunks', async () => {
  const [a, b] = [new crypto.DigestStream('MD5'), new crypto.DigestStream('MD5')];
  const [wa, wb] = [a.getWriter(), b.getWriter()];
  for (const [one, two] of ['1x', '2y', '3z']) {
    await wa.write(one);
    await wb.write(two);
  }
  await Promise.all([wa.close(), wb.close()]);
  assertEquals([hex(await a.digest), hex(await b.digest)], [hex(await crypto.subtle.digest('MD5', text('123'))), hex(await crypto.subtle.digest('MD5', text('xyz')))]);
  const aborted = new crypto.DigestStream('MD5');
  await aborted.abort(new Error('enough'));
  await assertRejects(aborted.digest, Error, 'enough');
  const wrong = new crypto.DigestStream('MD5');
  const writer = wrong.getWriter();
  writer.closed.catch(() => {});
  await assertRejects(writer.write(5), TypeError, 'DigestStream is a byte stream but received an object of non-ArrayBuffer/ArrayBufferView/string type on its writable side.');
  await assertRejects(wrong.digest, TypeError);
  assertThrows(() => new crypto.DigestStream('nope'), 'NotSupportedError');
  assertThrows(() => new crypto.DigestStream(), TypeError);
});

test('classes cannot be constructed', () => {
  assertThrows(() => new Crypto(), TypeError, 'Illegal constructor');
  assertThrows(() => new SubtleCrypto(), TypeError, 'Illegal constructor');
  assert(crypto instanceof Crypto && crypto.subtle instanceof SubtleCrypto);
  assertEquals(crypto.subtle, crypto.subtle);
});
