// The global fetch, and bodies that flow between JavaScript and the host.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

const encoder = new TextEncoder();
const held = {};

export default {
  async fetch(request) {
    const { pathname } = new URL(request.url);
    if (pathname === '/mirror') return new Response(request.body, request);
    if (pathname === '/upper') return new Response((await request.text()).toUpperCase());
    if (pathname === '/pass') return fetch('http://echo.test/passed?stream');
    if (pathname === '/hold') {
      return new Response(new ReadableStream({ pull: (c) => c.enqueue(encoder.encode('x')), cancel: (reason) => { held.reason = reason; } }));
    }
    if (pathname === '/broken') {
      let count = 0;
      return new Response(new ReadableStream({
        pull(controller) {
          if (count++ === 0) controller.enqueue(encoder.encode('first'));
          else controller.error(new RangeError('the source broke'));
        },
      }));
    }
    if (pathname === '/length') {
      const { readable, writable } = new FixedLengthStream(5);
      const writer = writable.getWriter();
      writer.write(encoder.encode('12345'));
      writer.close();
      return new Response(readable);
    }
    return new Response(null, { status: 404 });
  },
};

const echo = async (...args) => (await fetch(...args)).json();

test('a GET', async () => {
  const response = await fetch('http://echo.test/a?b#c');
  assert(response instanceof Response);
  assertEquals([response.status, response.ok, response.type], [200, true, 'default']);
  assertThrows(() => response.headers.set('a', 'b'), TypeError, "Can't modify immutable headers.");
  const got = await response.json();
  assertEquals([got.method, got.url, got.body, got.headers], ['GET', 'http://echo.test/a?b', '', []]);
  assertEquals(response.bodyUsed, true);
});

test('method, headers, body', async () => {
  const got = await echo('http://echo.test/', { method: 'put', headers: { 'X-A': '1', b: '\u00e9' }, body: 'b\u00f6dy' });
  assertEquals([got.method, got.body], ['PUT', 'b\u00f6dy']);
  assertEquals(got.headers.find(([name]) => name === 'x-a'), ['x-a', '1']);
  assertEquals(got.headers.find(([name]) => name === 'b'), ['b', '\u00e9']);
  assertEquals(got.headers.find(([name]) => name === 'content-type'), ['content-type', 'text/plain;charset=UTF-8']);
  assertEquals((await echo(new Request('http://echo.test/', { method: 'POST', body: encoder.encode('by') }))).body, 'by');
  assertEquals((await echo(new URL('http://echo.test/u'))).url, 'http://echo.test/u');
  assertEquals((await echo('http://echo.test/', { method: 'POST', body: new URLSearchParams({ a: 'b c' }) })).body, 'a=b+c');
});

test('a request is used up by fetch', async () => {
  const request = new Request('http://echo.test/', { method: 'POST', body: 'x' });
  await fetch(request);
  assertEquals(request.bodyUsed, true);
  await assertRejects(fetch(request), TypeError, /^Body has already been used/);
  const get = new Request('http://echo.test/');
  await fetch(get);
  await fetch(get);
});

test('bad arguments reject', async () => {
  await assertRejects(fetch(), TypeError);
  await assertRejects(fetch('foo'), TypeError, 'Invalid URL: foo');
  await assertRejects(fetch('ftp://a/'), TypeError, 'Fetch API cannot load: ftp://a/');
  await assertRejects(fetch('ftp://a/', {}), TypeError, 'Fetch API cannot load: ftp://a/');
  await assertRejects(fetch('http://a/', { method: 'bad' }), TypeError);
  await assertRejects(fetch('http://a/', { signal: 1 }), TypeError);
  assertEquals([fetch.name, fetch.length], ['fetch', 1]);
});

test('failures of the network', async () => {
  await assertRejects(fetch('http://refused.test/'), TypeError, 'internal error; the connection was refused');
});

test('statuses', async () => {
  const response = await fetch('http://status.test/404');
  assertEquals([response.status, response.ok], [404, false]);
  const moved = await fetch('http://status.test/302', { redirect: 'manual' });
  assertEquals([moved.status, moved.headers.get('location')], [302, 'http://echo.test/moved']);
});

test('a stream comes in pieces', async () => {
  const response = await fetch('http://echo.test/?stream');
  const pieces = [];
  for await (const piece of response.body) pieces.push(piece.length);
  assert(pieces.length > 5);
  assertEquals(pieces[0], 3);
  assertEquals((await (await fetch('http://echo.test/?stream')).json()).method, 'GET');
  assertEquals((await fetch('http://echo.test/?stream').then((r) => r.bytes()))[0], 123);
});

test('BYOB, tee and clone of a stream of the host', async () => {
  const reader = (await fetch('http://echo.test/?stream')).body.getReader({ mode: 'byob' });
  const { value } = await reader.readAtLeast(7, new Uint8Array(8));
  assert(value.length >= 7 && value.length <= 8);
  await reader.cancel();
  const response = await fetch('http://echo.test/?stream');
  const clone = response.clone();
  assertEquals(await clone.text(), await response.text());
  const [a, b] = (await fetch('http://echo.test/?stream')).body.tee();
  const [x, y] = await Promise.all([new Response(a).text(), new Response(b).text()]);
  assertEquals([x, x.length > 10], [y, true]);
});

test('a stream goes out', async () => {
  const body = new ReadableStream({
    start(controller) {
      controller.enqueue(encoder.encode('one '));
      controller.enqueue(new Uint8Array(0));
      controller.enqueue(encoder.encode('two').buffer);
      controller.close();
    },
  });
  assertEquals((await echo('http://echo.test/', { method: 'POST', body })).body, 'one two');
  assertEquals(body.locked, true);
  const broken = new ReadableStream({ pull: (c) => c.error(new RangeError('out')) });
  await assertRejects(fetch('http://echo.test/', { method: 'POST', body: broken }), RangeError, 'out');
  const text = new ReadableStream({ pull: (c) => c.enqueue('text') });
  await assertRejects(fetch('http://echo.test/', { method: 'POST', body: text }), TypeError, 'This ReadableStream did not return bytes.');
});

test('streams pass through untouched', async () => {
  const text = await (await fetch('http://self.test/pass')).text();
  assert(text.includes('echo.test/passed'));
  const first = await fetch('http://echo.test/?stream');
  const again = await echo('http://echo.test/', { method: 'POST', body: first.body });
  assertEquals([JSON.parse(again.body).method, first.bodyUsed], ['GET', true]);
  await assertRejects(first.text(), TypeError);
});

test('to a handler and back', async () => {
  assertEquals(await (await fetch('http://self.test/upper', { method: 'POST', body: 'abc' })).text(), 'ABC');
  const chunks = ['a', 'b', 'c'];
  const body = new ReadableStream({ pull: (c) => (chunks.length ? c.enqueue(encoder.encode(chunks.shift())) : c.close()) });
  const mirror = await fetch('http://self.test/mirror', { method: 'POST', body, headers: { h: '1' } });
  assertEquals([await mirror.text(), mirror.headers.get('h')], ['abc', '1']);
  assertEquals(await (await fetch('http://self.test/length')).text(), '12345');
});

test('header values are UTF-8 on the wire', async () => {
  const headers = { a: '\u20ac', b: '\u00e9', c: '\u00c3\u00a9', 'set-cookie': 'x' };
  const mirror = await fetch('http://self.test/mirror', { headers });
  assertEquals([mirror.headers.get('a'), mirror.headers.get('b'), mirror.headers.get('c')], ['\u20ac', '\u00e9', '\u00c3\u00a9']);
});

test('a response that breaks', async () => {
  const response = await fetch('http://self.test/broken');
  const reader = response.body.getReader();
  assertEquals(new TextDecoder().decode((await reader.read()).value), 'first');
  await assertRejects(reader.read(), RangeError, 'the source broke');
});

test('a reader that leaves cancels the writer', async () => {
  held.reason = undefined;
  const response = await fetch('http://self.test/hold');
  const reader = response.body.getReader();
  await reader.read();
  await reader.cancel();
  await scheduler.wait(5);
  assert(held.reason instanceof Error);
});

test('signals', async () => {
  await assertRejects(fetch('http://echo.test/', { signal: AbortSignal.abort() }), 'AbortError');
  const reason = new RangeError('mine');
  await assertRejects(fetch('http://echo.test/', { signal: AbortSignal.abort(reason) }), RangeError, 'mine');
  const controller = new AbortController();
  const pending = fetch('http://echo.test/', { signal: controller.signal });
  controller.abort();
  await assertRejects(pending, 'AbortError');
  const late = new AbortController();
  const response = await fetch('http://self.test/hold', { signal: late.signal });
  const reader = response.body.getReader();
  await reader.read();
  late.abort(reason);
  await assertRejects(reader.read(), RangeError, 'mine');
  const unread = new AbortController();
  const other = await fetch('http://echo.test/?stream', { signal: unread.signal });
  unread.abort(reason);
  await assertRejects(other.text(), RangeError, 'mine');
  const done = new AbortController();
  const fine = await fetch('http://echo.test/', { signal: done.signal });
  done.abort();
  assertEquals((await fine.json()).method, 'GET');
});
