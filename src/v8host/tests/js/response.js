// Response: Fetch Standard, section 5.5, as Cloudflare has it.
import { assert, assertEquals, assertThrows, test } from 'test';

export default {};

const RANGE = 'Responses may only be constructed with status codes in the range 200 to 599, inclusive.';
const NULL_BODY = 'Response with null body status (101, 204, 205, or 304) cannot have a body.';

test('what a response is by default', () => {
  const response = new Response();
  assertEquals([response.status, response.statusText, response.ok, response.redirected, response.url, response.type, response.webSocket,
    response.cf, response.body, [...response.headers]], [200, '', true, false, '', 'default', null, undefined, null, []]);
  assertEquals(String(response), '[object Response]');
  assertEquals(Response.length, 0);
  assertEquals(response.headers === response.headers, true);
});

test('status', () => {
  for (const [given, status, ok] of [[200, 200, true], [299, 299, true], [300, 300, false], [404, 404, false], [599, 599, false], ['201', 201, true], [200.9, 200, true]]) {
    const response = new Response(null, { status: given });
    assertEquals([response.status, response.ok], [status, ok]);
  }
  for (const status of [0, 100, 101, 199, 600, -200, NaN, 'x', 65736]) assertThrows(() => new Response(null, { status }), RangeError, RANGE);
});

test('statuses without a body', async () => {
  for (const status of [204, 205, 304]) {
    assertThrows(() => new Response('x', { status }), TypeError, NULL_BODY);
    assertThrows(() => new Response(new ReadableStream(), { status }), TypeError, NULL_BODY);
    assertThrows(() => Response.json({}, { status }), TypeError, NULL_BODY);
    assertEquals(new Response(null, { status }).status, status);
    const empty = new Response('', { status });
    assertEquals([empty.status, empty.body, await empty.text()], [status, null, '']);
  }
});

test('statusText', () => {
  assertEquals(new Response(null, { statusText: 'Fine \u00e9' }).statusText, 'Fine \u00e9');
  for (const statusText of ['a\nb', 'a\rb', '\u20ac', '\0']) assertThrows(() => new Response(null, { statusText }), TypeError, 'Invalid statusText');
});

test('init', () => {
  const response = new Response('a', { status: 201, statusText: 'S', headers: [['a', '1'], ['a', '2']], cf: { x: 1 } });
  assertEquals([response.status, response.statusText, response.headers.get('a'), response.cf], [201, 'S', '1, 2', { x: 1 }]);
  for (const init of [1, 'x', true]) {
    assertThrows(() => new Response('', init), TypeError, "Failed to construct 'Response': constructor parameter 2 is not of type 'InitializerDict or Response'.");
  }
  new Response('', null);
  new Response('', { encodeBody: 'manual' });
  new Response('', { encodeBody: 'automatic' });
  assertThrows(() => new Response('', { encodeBody: 'x' }), TypeError, 'encodeBody: unexpected value: x');
  assertThrows(() => new Response(null, { webSocket: {} }), TypeError, /'webSocket'/);
  assertThrows(() => new Response('', { headers: { 'a b': '' } }), TypeError);
  assertThrows(() => new Response('', { headers: null }), TypeError, "Incorrect type for the 'headers' field on 'InitializerDict': the provided value is not of type 'Headers or Sequence or object'.");
});

test('a response as init', async () => {
  const first = new Response('a', { status: 404, statusText: 'Gone', headers: { x: '1' }, cf: { y: 1 } });
  const second = new Response('b', first);
  second.headers.set('x', '2');
  assertEquals([second.status, second.statusText, second.cf, first.headers.get('x'), await second.text()], [404, 'Gone', { y: 1 }, '1', 'b']);
  const third = new Response(first.body, first);
  assertEquals(await third.text(), 'a');
});

test('redirect', () => {
  const response = Response.redirect('http://a/b c');
  assertEquals([response.status, [...response.headers], response.body], [302, [['location', 'http://a/b%20c']], null]);
  for (const status of [301, 302, 303, 307, 308]) assertEquals(Response.redirect('http://a', status).status, status);
  for (const status of [200, 300, 304, 0]) {
    assertThrows(() => Response.redirect('http://a', status), RangeError, `${status} is not a redirect status code. It must be one of: 301, 302, 303, 307, or 308.`);
  }
  assertThrows(() => Response.redirect('foo'), TypeError, 'Unable to parse URL: foo');
  assertThrows(() => Response.redirect(), TypeError);
  assertThrows(() => response.headers.set('a', 'b'), TypeError, "Can't modify immutable headers.");
});

test('error', () => {
  const response = Response.error();
  assertEquals([response.type, response.status, response.ok, response.body, [...response.headers]], ['error', 0, false, null, []]);
  assertThrows(() => response.headers.set('a', 'b'), TypeError);
});

test('json', async () => {
  const response = Response.json({ a: [1, null, 'x'] });
  assertEquals([response.status, [...response.headers], await response.text()], [200, [['content-type', 'application/json']], '{"a":[1,null,"x"]}']);
  const other = Response.json(null, { status: 201, headers: { 'content-type': 'text/x', b: 'c' } });
  assertEquals([other.status, other.headers.get('content-type'), other.headers.get('b'), await other.json()], [201, 'text/x', 'c', null]);
  for (const value of [undefined, () => {}, Symbol('s')]) assertEquals(await Response.json(value).text(), 'undefined');
  assertThrows(() => Response.json(), TypeError, 'Failed to execute \'json\' on \'Response\': parameter 1 is not of type \'Value\'.');
  const cycle = {};
  cycle.self = cycle;
  assertThrows(() => Response.json(cycle), TypeError);
  Response.json(1).headers.set('may', 'change');
});

test('clone', async () => {
  const first = new Response('text', { status: 202, headers: { a: '1' } });
  const second = first.clone();
  second.headers.set('a', '2');
  assertEquals([second.status, first.headers.get('a'), second.headers.get('a')], [202, '1', '2']);
  assertEquals([await second.text(), await first.text()], ['text', 'text']);
  assertThrows(() => first.clone(), TypeError);
});

test('receivers', () => {
  for (const name of ['status', 'statusText', 'headers', 'ok', 'redirected', 'url', 'webSocket', 'cf', 'type']) {
    const descriptor = Object.getOwnPropertyDescriptor(Response.prototype, name);
    assert(descriptor.enumerable, name);
    for (const receiver of [{}, null, new Request('http://a')]) assertThrows(() => descriptor.get.call(receiver), TypeError, /^Illegal invocation/);
  }
  assertThrows(() => Response('x'), TypeError);
});

test('subclasses', async () => {
  class Mine extends Response {
    extra = 1;
  }
  const response = new Mine('x', { status: 201 });
  assertEquals([response.status, response.extra, await response.text(), response.constructor], [201, 1, 'x', Mine]);
});
