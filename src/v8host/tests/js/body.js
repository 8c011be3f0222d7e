// Bodies of requests and responses: Fetch Standard, section 5.3.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

export default {};

const USED = 'Body has already been used. It can only be used once. Use tee() first if you need to read it twice.';
const bytes = (...values) => new Uint8Array(values);
const stream = (...chunks) => new ReadableStream({
  pull(controller) {
    if (chunks.length > 0) controller.enqueue(chunks.shift());
    else controller.close();
  },
});
const encoder = new TextEncoder();

const kinds = {
  string: () => 'h\u00e9',
  bytes: () => encoder.encode('h\u00e9'),
  buffer: () => encoder.encode('h\u00e9').buffer,
  view: () => new DataView(bytes(0, 0x68, 0xc3, 0xa9, 0).buffer, 1, 3),
  blob: () => new Blob(['h', '\u00e9']),
  stream: () => stream(bytes(0x68, 0xc3), bytes(0xa9)),
  'byte stream': () => new ReadableStream({
    type: 'bytes',
    start(controller) {
      controller.enqueue(encoder.encode('h\u00e9'));
      controller.close();
    },
  }),
  'asynchronous iterable': async function* () {
    yield bytes(0x68, 0xc3);
    yield bytes(0xa9);
  },
  'iterable': function* () {
    yield* [bytes(0x68, 0xc3), bytes(0xa9)];
  },
  'array': () => [bytes(0x68), bytes(0xc3, 0xa9)],
  'object': () => ({ toString: () => 'h\u00e9' }),
  'string object': () => new String('h\u00e9'),
};

for (const [name, make] of Object.entries(kinds)) {
  test(`${name}: every reader`, async () => {
    assertEquals(await new Response(make()).text(), 'h\u00e9');
    assertEquals(await new Response(make()).bytes(), bytes(0x68, 0xc3, 0xa9));
    assertEquals(await new Response(make()).arrayBuffer(), bytes(0x68, 0xc3, 0xa9).buffer);
    const blob = await new Response(make(), { headers: { 'content-type': 'a/b' } }).blob();
    assertEquals([blob.type, await blob.text()], ['a/b', 'h\u00e9']);
    await assertRejects(new Response(make()).json(), SyntaxError);
    const request = new Request('http://a/', { method: 'POST', body: make() });
    assertEquals(await request.text(), 'h\u00e9');
  });

  test(`${name}: can be used once`, async () => {
    for (const reader of ['text', 'bytes', 'arrayBuffer', 'blob', 'json', 'formData']) {
      const response = new Response(make(), { headers: { 'content-type': 'application/x-www-form-urlencoded' } });
      assertEquals(response.bodyUsed, false);
      await response[reader]().catch(() => {});
      assertEquals(response.bodyUsed, true);
      for (const again of ['text', 'bytes', 'arrayBuffer', 'blob', 'json', 'formData']) await assertRejects(response[again](), TypeError, USED);
    }
  });

  test(`${name}: as a stream`, async () => {
    const response = new Response(make());
    const { body } = response;
    assertEquals([response.body === body, body.locked, response.bodyUsed], [true, false, false]);
    let text = '';
    const decoder = new TextDecoder();
    for await (const chunk of body) {
      assert(chunk instanceof Uint8Array);
      text += decoder.decode(chunk, { stream: true });
    }
    assertEquals([text, response.bodyUsed], ['h\u00e9', true]);
    await assertRejects(response.text(), TypeError, USED);
  });

  test(`${name}: clones`, async () => {
    const first = new Response(make());
    const second = first.clone();
    const third = second.clone();
    assertEquals(await Promise.all([third.text(), first.text(), second.text()]), ['h\u00e9', 'h\u00e9', 'h\u00e9']);
    assertThrows(() => first.clone(), TypeError, /locked/);
  });

  test(`${name}: clones do not share memory`, async () => {
    const first = new Response(make());
    void first.body;
    const second = first.clone();
    (await first.bytes()).fill(0);
    assertEquals(await second.text(), 'h\u00e9');
    const third = new Response(make());
    const fourth = third.clone();
    new Uint8Array(await fourth.arrayBuffer()).fill(0);
    assertEquals(await third.text(), 'h\u00e9');
  });
}

test('no body', async () => {
  for (const response of [new Response(), new Response(null), new Response(undefined)]) {
    assertEquals([response.body, response.bodyUsed], [null, false]);
    assertEquals([await response.text(), await response.text(), response.bodyUsed], ['', '', false]);
    assertEquals((await response.bytes()).length, 0);
    assertEquals((await response.arrayBuffer()).byteLength, 0);
    assertEquals((await response.blob()).size, 0);
    await assertRejects(response.json(), SyntaxError, 'Unexpected end of JSON input');
    assertEquals(response.clone().body, null);
  }
});

test('an empty body is a body', async () => {
  const response = new Response('');
  assert(response.body instanceof ReadableStream);
  assertEquals(await response.body.getReader().read(), { value: undefined, done: true });
  assertEquals(new Response(bytes()).body instanceof ReadableStream, true);
  assertEquals(await new Response('').text(), '');
});

test('content types', () => {
  const type = (body) => new Response(body).headers.get('content-type');
  assertEquals(type('a'), 'text/plain;charset=UTF-8');
  assertEquals(type(new URLSearchParams('a=b')), 'application/x-www-form-urlencoded;charset=UTF-8');
  assertEquals(type(new Blob(['a'], { type: 'x/y' })), 'x/y');
  assertEquals(type(new Blob(['a'])), null);
  assertEquals(type(bytes(1)), null);
  assertEquals(type(stream()), null);
  assertEquals(type(null), null);
  assert(/^multipart\/form-data; boundary=[0-9a-f]{32}$/.test(type(new FormData())));
  assertEquals(new Response('a', { headers: { 'Content-Type': 'c/d' } }).headers.get('content-type'), 'c/d');
  assertEquals(new Request('http://a', { method: 'PUT', body: 'a' }).headers.get('content-type'), 'text/plain;charset=UTF-8');
});

test('text strips one byte order mark and replaces what is invalid', async () => {
  assertEquals(await new Response('\ufeff\ufeffa').text(), '\ufeffa');
  assertEquals(await new Response(bytes(0xef, 0xbb, 0xbf, 0x61)).text(), 'a');
  assertEquals(await new Response('\ud800a').text(), '\ufffda');
  assertEquals(await new Response(bytes(0xff, 0x61)).text(), '\ufffda');
  assertEquals(await new Response('\ufeff{"a":1}').json(), { a: 1 });
  assertEquals(await new Response(stream(bytes(0xef), bytes(0xbb), bytes(0xbf, 0x5b), bytes(0x5d))).json(), []);
});

test('json', async () => {
  assertEquals(await new Response('{"a":[1,"\u00e9",null]}').json(), { a: [1, '\u00e9', null] });
  await assertRejects(new Response('{').json(), SyntaxError);
  await assertRejects(new Response('').json(), SyntaxError, 'Unexpected end of JSON input');
});

test('memory of the caller is copied', async () => {
  const source = bytes(1, 2, 3);
  const response = new Response(source);
  const request = new Request('http://a', { method: 'POST', body: source.buffer });
  source.fill(9);
  assertEquals(await response.bytes(), bytes(1, 2, 3));
  assertEquals(await request.bytes(), bytes(1, 2, 3));
  const blob = new Blob([bytes(1)]);
  (await new Response(blob).bytes()).fill(7);
  assertEquals(await blob.bytes(), bytes(1));
});

test('locked and disturbed bodies', async () => {
  const locked = new Response('a');
  const reader = locked.body.getReader();
  for (const name of ['text', 'bytes', 'json', 'blob', 'arrayBuffer']) {
    await assertRejects(locked[name](), TypeError, 'This ReadableStream is currently locked to a reader.');
  }
  assertEquals(locked.bodyUsed, false);
  assertThrows(() => locked.clone(), TypeError, /locked/);
  assertThrows(() => new Response(locked.body), TypeError, 'This ReadableStream is locked to a reader, and cannot be used as a body.');
  reader.releaseLock();
  assertEquals(await locked.text(), 'a');

  const disturbed = new Response('ab');
  const second = disturbed.body.getReader();
  await second.read();
  second.releaseLock();
  assertEquals(disturbed.bodyUsed, true);
  await assertRejects(disturbed.text(), TypeError, USED);
  assertThrows(() => new Response(disturbed.body), TypeError, 'This ReadableStream is disturbed (has already been read from), and cannot be used as a body.');

  const cancelled = new Response('a');
  await cancelled.body.cancel();
  assertEquals(cancelled.bodyUsed, true);
});

test('streams must give bytes', async () => {
  for (const chunk of ['text', 1, null, {}, [1]]) {
    await assertRejects(new Response(stream(chunk)).text(), TypeError, 'This ReadableStream did not return bytes.');
  }
  let reason;
  await assertRejects(new Response(new ReadableStream({ pull: (c) => c.enqueue('x'), cancel: (r) => { reason = r; } })).bytes(), TypeError);
  assert(reason instanceof TypeError);
  assertEquals(await new Response(stream(bytes(65).buffer, new DataView(bytes(66, 67).buffer))).text(), 'ABC');
});

test('errors of a stream reach the reader', async () => {
  const broken = () => new ReadableStream({
    pull(controller) {
      controller.error(new RangeError('broken'));
    },
  });
  await assertRejects(new Response(broken()).text(), RangeError, 'broken');
  await assertRejects(new Response(broken()).json(), RangeError, 'broken');
  const [a, b] = [new Response(broken())].flatMap((response) => [response.clone(), response]);
  await assertRejects(a.text(), RangeError, 'broken');
  await assertRejects(b.text(), RangeError, 'broken');
});

test('a body can be given on', async () => {
  const first = new Response('abc');
  const second = new Response(first.body);
  assertEquals(second.body, first.body);
  assertEquals(await second.text(), 'abc');
  assertEquals(first.bodyUsed, true);
  const third = new Request('http://a', { method: 'POST', body: new Response('xyz').body, duplex: 'half' });
  assertEquals(await third.text(), 'xyz');
});

test('BYOB reads of a body', async () => {
  const reader = new Response('abcdef').body.getReader({ mode: 'byob' });
  assertEquals(await reader.read(new Uint8Array(4)), { value: encoder.encode('abcd'), done: false });
  assertEquals((await reader.read(new Uint8Array(4))).value, encoder.encode('ef'));
  assertEquals(await reader.read(new Uint8Array(4)), { value: bytes(), done: true });
});

test('large streams', async () => {
  let left = 300;
  const response = new Response(new ReadableStream({
    pull(controller) {
      if (left-- > 0) controller.enqueue(new Uint8Array(10_000).fill(left));
      else controller.close();
    },
  }));
  const all = await response.bytes();
  assertEquals([all.length, all[0], all.at(-1)], [3_000_000, 299 & 255, 0]);
});

test('receivers', async () => {
  for (const name of ['text', 'json', 'bytes', 'arrayBuffer', 'blob', 'formData']) {
    await assertRejects(Response.prototype[name].call({}), TypeError, /^Illegal invocation/);
  }
  const descriptor = (name) => Object.getOwnPropertyDescriptor(Body.prototype, name);
  for (const name of ['body', 'bodyUsed']) assertThrows(() => descriptor(name).get.call({}), TypeError, /^Illegal invocation/);
  assertThrows(() => new Body(), TypeError, 'Illegal constructor');
  assertEquals(Object.getPrototypeOf(Response), Body);
});

test('what counts as an iterable', async () => {
  class Own {
    * [Symbol.iterator]() {
      yield bytes(0x69);
    }
  }
  class Text extends Own {
    toString() {
      return 'text';
    }
  }
  class Primitive extends Own {
    [Symbol.toPrimitive]() {
      return 'primitive';
    }
  }
  class Both extends Text {
    async * [Symbol.asyncIterator]() {
      yield bytes(0x61);
    }
  }
  const cases = [
    [new Own(), null, 'i'],
    [new Both(), null, 'a'],
    [new Set([bytes(0x73).buffer]), null, 's'],
    [[], null, ''],
    [new Text(), 'text/plain;charset=UTF-8', 'text'],
    [new Primitive(), 'text/plain;charset=UTF-8', 'primitive'],
    [{ [Symbol.iterator]: 5 }, 'text/plain;charset=UTF-8', '[object Object]'],
    [new URL('http://a/'), 'text/plain;charset=UTF-8', 'http://a/'],
  ];
  for (const [init, type, text] of cases) {
    const response = new Response(init);
    assertEquals([response.headers.get('content-type'), await response.text()], [type, text]);
  }
  for (const init of [['a'], [1], new Map([[1, 2]]), new Headers({ a: 'b' })]) {
    await assertRejects(new Response(init).text(), TypeError, 'This ReadableStream did not return bytes.');
  }
  async function* fails() {
    yield bytes(1);
    throw new RangeError('in the middle');
  }
  await assertRejects(new Response(fails()).text(), RangeError, 'in the middle');
});

test('the type of a blob is the media type of the header', async () => {
  for (const [header, type] of [
    ['text/plain;charset=UTF-8', 'text/plain;charset=UTF-8'], ['TEXT/X;A=B', 'text/x;a=B'], ['text/x; y=z', 'text/x;y=z'],
    ['text/x; y', 'text/x'], ['text/x;', 'text/x'], ['text/x; y="q q"', 'text/x;y="q q"'], ['bogus', ''], ['', ''], [' a/b ', 'a/b'],
    ['application/json ; charset = utf-8', 'application/json'],
  ]) assertEquals((await new Response('x', { headers: { 'content-type': header } }).blob()).type, type, header);
});

test('cf must be an object', () => {
  for (const cf of [5, null, 'x']) {
    assertThrows(() => new Request('http://x', { cf }), TypeError,
      'Incorrect type for the \'cf\' field on \'RequestInitializerDict\': the provided value is not of type \'Object\'.');
    assertThrows(() => new Response('', { cf }), TypeError,
      'Incorrect type for the \'cf\' field on \'InitializerDict\': the provided value is not of type \'Object\'.');
  }
});
