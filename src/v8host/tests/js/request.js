// Request: Fetch Standard, section 5.4, as Cloudflare has it.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

export default {};

const GET_BODY = 'Request with a GET or HEAD method cannot have a body.';

test('what a request is by default', async () => {
  const request = new Request('http://a');
  assertEquals([request.method, request.url, request.redirect, request.integrity, request.keepalive, request.fetcher, request.body],
    ['GET', 'http://a/', 'follow', '', false, null, null]);
  assertEquals([request.cache, request.cf, request.bodyUsed, [...request.headers]], [undefined, undefined, false, []]);
  assert(request.signal instanceof AbortSignal);
  assertEquals([request.signal === request.signal, request.signal.aborted], [true, false]);
  assertEquals(String(request), '[object Request]');
  assertEquals(Request.length, 1);
});

test('URLs', () => {
  assertEquals(new Request('HTTP://User:p@Host:80/a b?c#d').url, 'http://User:p@host/a%20b?c#d');
  assertEquals(new Request(new URL('http://a/b')).url, 'http://a/b');
  assertEquals(new Request({ toString: () => 'http://a/c' }).url, 'http://a/c');
  assertThrows(() => new Request('foo'), TypeError, 'Invalid URL: foo');
  assertThrows(() => new Request('/path'), TypeError);
  assertThrows(() => new Request(), TypeError, "Failed to construct 'Request': constructor parameter 1 is not of type 'Request or string'.");
  assertThrows(() => Request('http://a'), TypeError);
});

test('methods', () => {
  for (const [given, expected] of [['get', 'GET'], ['Post', 'POST'], ['patch', 'PATCH'], ['PURGE', 'PURGE'], ['PropFind', 'PROPFIND'], [undefined, 'GET']]) {
    assertEquals(new Request('http://a', { method: given }).method, expected);
  }
  for (const method of ['foo', 'CONNECT', 'a b', '', 'G\u00cbT', 1]) {
    assertThrows(() => new Request('http://a', { method }), TypeError, `Invalid HTTP method string: ${method}`);
  }
});

test('bodies', async () => {
  assertThrows(() => new Request('http://a', { body: '' }), TypeError, GET_BODY);
  assertThrows(() => new Request('http://a', { method: 'HEAD', body: 'x' }), TypeError, GET_BODY);
  assertEquals(new Request('http://a', { body: null }).body, null);
  assertEquals(new Request('http://a', { method: 'POST', body: undefined }).body, null);
  const request = new Request('http://a', { method: 'DELETE', body: new URLSearchParams({ a: '1 2' }) });
  assertEquals([request.headers.get('content-type'), await request.text()], ['application/x-www-form-urlencoded;charset=UTF-8', 'a=1+2']);
});

test('redirect, cache, integrity, signal, cf', () => {
  for (const redirect of ['follow', 'manual']) assertEquals(new Request('http://a', { redirect }).redirect, redirect);
  for (const redirect of ['error', 'x']) assertThrows(() => new Request('http://a', { redirect }), TypeError, /^Invalid redirect value/);
  for (const cache of ['no-store', 'no-cache']) assertEquals(new Request('http://a', { cache }).cache, cache);
  assertThrows(() => new Request('http://a', { cache: 'force-cache' }), TypeError, 'Unsupported cache mode: force-cache');
  new Request('http://a', { integrity: '' });
  assertThrows(() => new Request('http://a', { integrity: 'sha256-x' }), TypeError, /integrity/);
  const { signal } = new AbortController();
  assertEquals(new Request('http://a', { signal }).signal === signal, true);
  new Request('http://a', { signal: null });
  assertThrows(() => new Request('http://a', { signal: {} }), TypeError, "Incorrect type for the 'signal' field on 'RequestInitializerDict': the provided value is not of type 'AbortSignal'.");
  const cf = { country: 'XX' };
  assertEquals(new Request('http://a', { cf }).cf, cf);
  new Request('http://a', { mode: 'cors', credentials: 'include', referrer: 'x', duplex: 'half' });
  for (const init of [1, 'x', true]) assertThrows(() => new Request('http://a', init), TypeError);
  new Request('http://a', null);
});

test('from another request', async () => {
  const cf = { a: 1 };
  const { signal } = new AbortController();
  const first = new Request('http://a/x', { method: 'POST', body: 'text', headers: { q: '1' }, redirect: 'manual', signal, cf });
  const second = new Request(first);
  assertEquals([second.method, second.url, second.redirect, second.signal === signal, second.cf], ['POST', 'http://a/x', 'manual', true, cf]);
  assertEquals([...second.headers], [['content-type', 'text/plain;charset=UTF-8'], ['q', '1']]);
  assertEquals([first.bodyUsed, second.bodyUsed, await second.text()], [true, false, 'text']);
  await assertRejects(first.text(), TypeError);
  assertThrows(() => new Request(first), TypeError, 'Cannot reconstruct a Request with a used body.');
});

test('from another request, with changes', async () => {
  const make = () => new Request('http://a', { method: 'POST', body: 'text', headers: { q: '1' } });
  assertEquals([...new Request(make(), { headers: { r: '2' } }).headers], [['r', '2']]);
  const replaced = make();
  const changed = new Request(replaced, { body: new Uint8Array([65]), method: 'PUT' });
  assertEquals([changed.method, replaced.bodyUsed, await changed.text(), changed.headers.get('q')], ['PUT', false, 'A', '1']);
  assertThrows(() => new Request(make(), { method: 'GET' }), TypeError, GET_BODY);
  const used = make();
  await used.text();
  assertEquals(await new Request(used, { body: 'new' }).text(), 'new');
  const other = new Request('http://b', make());
  assertEquals([other.url, other.method, await other.text()], ['http://b/', 'POST', 'text']);
});

test('clone', async () => {
  const first = new Request('http://a', { method: 'POST', body: 'text', headers: { q: '1' } });
  const second = first.clone();
  second.headers.set('q', '2');
  assertEquals([first.headers.get('q'), second.headers.get('q')], ['1', '2']);
  assertEquals([await first.text(), await second.text()], ['text', 'text']);
  assertThrows(() => first.clone(), TypeError);
  assertEquals(new Request('http://a').clone().method, 'GET');
  assertEquals(Request.prototype.clone.length, 0);
});

test('the request that came in', async (env, ctx, request) => {
  assertEquals([request.method, request.url.startsWith('http://test/run/'), request.redirect], ['GET', true, 'manual']);
  assert(request.signal instanceof AbortSignal);
  assertEquals([request.cf.country, request.cf === request.cf], [undefined, true]);
  const other = new Request(request, { headers: { a: 'b' } });
  assertEquals([other.headers.get('a'), other.url], ['b', request.url]);
  other.headers.set('a', 'c');
});

test('receivers', () => {
  for (const name of ['method', 'url', 'headers', 'redirect', 'fetcher', 'signal', 'cf', 'integrity', 'keepalive', 'cache']) {
    const descriptor = Object.getOwnPropertyDescriptor(Request.prototype, name);
    assert(descriptor.enumerable, name);
    for (const receiver of [{}, null, new Response()]) assertThrows(() => descriptor.get.call(receiver), TypeError, /^Illegal invocation/);
  }
  assertThrows(() => Request.prototype.clone.call({}), TypeError, /^Illegal invocation/);
});

test('subclasses', async () => {
  class Mine extends Request {
    get url() {
      return `${super.url}mine`;
    }
  }
  const request = new Mine('http://a', { method: 'POST', body: 'x' });
  assertEquals([request.url, await request.text(), request instanceof Request], ['http://a/mine', 'x', true]);
});
