// URL and URLSearchParams.
import { assert, assertEquals, assertThrows, test } from 'test';

const parts = (url) => [url.protocol, url.username, url.password, url.hostname, url.port, url.pathname, url.search, url.hash];

test('all parts of a URL', () => {
  const url = new URL('https://user:pass%40@Example.COM:8080/a/../b c?q=1&r=ü#frag ment');
  assertEquals(url.href, 'https://user:pass%40@example.com:8080/b%20c?q=1&r=%C3%BC#frag%20ment');
  assertEquals(parts(url), ['https:', 'user', 'pass%40', 'example.com', '8080', '/b%20c', '?q=1&r=%C3%BC', '#frag%20ment']);
  assertEquals([url.host, url.origin], ['example.com:8080', 'https://example.com:8080']);
  assertEquals([String(url), JSON.stringify({ url })], [url.href, `{"url":"${url.href}"}`]);
});

test('parsing', () => {
  const cases = [
    ['http://a', 'http://a/'],
    ['HTTP://A:80/', 'http://a/'],
    ['https://a:443/x', 'https://a/x'],
    ['http://a/./b/%2e%2E/c', 'http://a/c'],
    ['  http://a/\t\nb ', 'http://a/b'],
    ['http:\\\\a\\b', 'http://a/b'],
    ['http://0x7f.1/', 'http://127.0.0.1/'],
    ['http://[::0:1]/', 'http://[::1]/'],
    ['http://faß.de/', 'http://xn--fa-hia.de/'],
    ['http://☃.net/', 'http://xn--n3h.net/'],
    ['mailto:a@b', 'mailto:a@b'],
    ['data:text/plain,a b#c d', 'data:text/plain,a b#c%20d'],
    ['file:a', 'file:///a'],
    ['javascript:alert(1)', 'javascript:alert(1)'],
    ['foo://h/?q#', 'foo://h/?q#'],
    ['http://a/?', 'http://a/?'],
    ['http://a/#', 'http://a/#'],
    ["http://a/?a'b", 'http://a/?a%27b'],
    ["foo://a/?a'b", "foo://a/?a'b"],
    ['http://a/\ud800', 'http://a/%EF%BF%BD'],
    ['http://a@b@c/', 'http://a%40b@c/'],
    ['http://a:@b/', 'http://a@b/'],
    ['urn:isbn:123', 'urn:isbn:123'],
    ['foo://', 'foo://'],
    ['foo:/.//p', 'foo:/.//p'],
    ['file://', 'file:///'],
  ];
  for (const [input, href] of cases) assertEquals(new URL(input).href, href, input);
});

test('what is no URL', () => {
  for (const input of ['', 'a', '/a', '//a', 'http://', 'http://a:99999/', 'http://a b/', 'http://[::1', 'http://a%00b/', 'http://1.2.3.256/', 'https://?', '://a']) {
    assertThrows(() => new URL(input), TypeError, 'Invalid URL string.');
    assertEquals(URL.canParse(input), false, input);
    assertEquals(URL.parse(input), null, input);
  }
  assertThrows(() => new URL('a', 'b'), TypeError, 'Invalid URL string.');
  assertThrows(() => new URL(), TypeError, "Failed to construct 'URL': constructor parameter 1 is not of type 'USVString'.");
  assertThrows(() => new URL(Symbol()), TypeError);
});

test('relative to a base', () => {
  const base = 'http://a/b/c/d;p?q#f';
  const cases = [
    ['g', 'http://a/b/c/g'], ['./g', 'http://a/b/c/g'], ['g/', 'http://a/b/c/g/'], ['/g', 'http://a/g'], ['//g', 'http://g/'],
    ['?y', 'http://a/b/c/d;p?y'], ['g?y', 'http://a/b/c/g?y'], ['#s', 'http://a/b/c/d;p?q#s'], ['', 'http://a/b/c/d;p?q'],
    ['..', 'http://a/b/'], ['../../../g', 'http://a/g'], ['http:g', 'http://a/b/c/g'], ['https:g', 'https://g/'],
  ];
  for (const [input, href] of cases) assertEquals(new URL(input, base).href, href, input);
  assertEquals(new URL('x', new URL('http://a/b')).href, 'http://a/x');
  assertEquals(new URL('http://x', undefined).href, 'http://x/');
  assertEquals(URL.parse('x', base).href, 'http://a/b/c/x');
  assertEquals([URL.canParse('x', base), URL.canParse('x', 'x'), URL.canParse('http://x')], [true, false, true]);
  assertThrows(() => URL.canParse(), TypeError, "Failed to execute 'canParse' on 'URL': parameter 1 is not of type 'USVString'.");
});

test('origins', () => {
  const cases = [
    ['http://a:80/', 'http://a'], ['https://a:80/', 'https://a:80'], ['ws://a', 'ws://a'], ['ftp://a', 'ftp://a'],
    ['file:///a', 'null'], ['data:,a', 'null'], ['foo://a', 'null'], ['blob:https://a:1/b', 'https://a:1'], ['blob:d', 'null'],
  ];
  for (const [input, origin] of cases) assertEquals(new URL(input).origin, origin, input);
});

test('setters', () => {
  const cases = [
    ['protocol', 'https', 'https://u:p@h:8080/p?q#f'], ['protocol', 'ws:x', 'ws://u:p@h:8080/p?q#f'], ['protocol', 'foo', null], ['protocol', '1', null],
    ['username', 'x y', 'http://x%20y:p@h:8080/p?q#f'], ['username', '', 'http://:p@h:8080/p?q#f'],
    ['password', 'a:b', 'http://u:a%3Ab@h:8080/p?q#f'], ['password', '', 'http://u@h:8080/p?q#f'],
    ['host', 'x', 'http://u:p@x:8080/p?q#f'], ['host', 'x:9', 'http://u:p@x:9/p?q#f'], ['host', 'x:80', 'http://u:p@x/p?q#f'], ['host', '', null],
    ['hostname', 'x', 'http://u:p@x:8080/p?q#f'], ['hostname', '', null],
    ['port', '9', 'http://u:p@h:9/p?q#f'], ['port', '80', 'http://u:p@h/p?q#f'], ['port', '', 'http://u:p@h/p?q#f'], ['port', '12x', 'http://u:p@h:12/p?q#f'], ['port', 'x', null], ['port', '70000', null],
    ['pathname', 'a b', 'http://u:p@h:8080/a%20b?q#f'], ['pathname', '', 'http://u:p@h:8080/?q#f'], ['pathname', '/a?b#c', 'http://u:p@h:8080/a%3Fb%23c?q#f'],
    ['search', 'x', 'http://u:p@h:8080/p?x#f'], ['search', '?x', 'http://u:p@h:8080/p?x#f'], ['search', '', 'http://u:p@h:8080/p#f'], ['search', 'a#b', 'http://u:p@h:8080/p?a%23b#f'],
    ['hash', 'x', 'http://u:p@h:8080/p?q#x'], ['hash', '#x y', 'http://u:p@h:8080/p?q#x%20y'], ['hash', '', 'http://u:p@h:8080/p?q'],
  ];
  for (const [name, value, href] of cases) {
    const url = new URL('http://u:p@h:8080/p?q#f');
    url[name] = value;
    assertEquals(url.href, href ?? 'http://u:p@h:8080/p?q#f', `${name} = ${value}`);
  }
  const url = new URL('http://a:443/');
  url.protocol = 'https';
  assertEquals([url.href, url.port], ['https://a/', '']);
  const bare = new URL('foo:/p');
  bare.pathname = '//x';
  assertEquals([bare.href, bare.host, bare.pathname], ['foo:/.//x', '', '//x']);
  const mail = new URL('mailto:a');
  mail.host = 'x';
  mail.pathname = 'x';
  assertEquals(mail.href, 'mailto:a');
});

test('href', () => {
  const url = new URL('http://a/?x=1');
  const params = url.searchParams;
  url.href = 'https://b/?y=2';
  assertEquals([url.host, params.get('y'), params.get('x')], ['b', '2', null]);
  assertThrows(() => { url.href = 'nope'; }, TypeError, "Failed to set the 'href' property on 'URL': the provided value is not of type 'valid URL string'.");
  assertEquals(url.href, 'https://b/?y=2');
  assertThrows(() => { url.origin = 'x'; }, TypeError);
});

test('shape of URL', () => {
  assertEquals(URL.length, 1);
  assertEquals(Object.prototype.toString.call(new URL('http://a')), '[object URL]');
  assert(Object.getOwnPropertyDescriptor(URL.prototype, 'href').enumerable);
  assertEquals(Object.getOwnPropertyDescriptor(globalThis, 'URL').enumerable, false);
  assertThrows(() => Object.getOwnPropertyDescriptor(URL.prototype, 'href').get.call({}), TypeError, /^Illegal invocation/);
  assertThrows(() => Object.getOwnPropertyDescriptor(URL.prototype, 'hash').set.call({}, ''), TypeError);
  assertThrows(() => URL.createObjectURL(new Blob([])), Error, 'URL.createObjectURL() is not implemented');
  assertThrows(() => URL.revokeObjectURL('a'), Error, 'URL.revokeObjectURL() is not implemented');
  const url = new URL('http://a');
  assertEquals(url.searchParams, url.searchParams);
});

test('searchParams and search follow each other', () => {
  const url = new URL('http://a/?a=1&b=2#f');
  const params = url.searchParams;
  params.append('c', 'x y&');
  assertEquals(url.href, 'http://a/?a=1&b=2&c=x+y%26#f');
  params.delete('a');
  params.set('b', '3');
  assertEquals([url.search, url.hash, url.pathname], ['?b=3&c=x+y%26', '#f', '/']);
  url.search = '?z=9';
  assertEquals([...params], [['z', '9']]);
  params.delete('z');
  assertEquals([url.search, url.href], ['', 'http://a/#f']);
  url.hash = '';
  params.append('q', '1');
  url.pathname = '/p';
  assertEquals(url.href, 'http://a/p?q=1');
  const raw = new URL('http://a/?x=%7E&y=a b');
  assertEquals(raw.search, '?x=%7E&y=a%20b');
  raw.searchParams.sort();
  assertEquals(raw.search, '?x=%7E&y=a+b');
});

test('making URLSearchParams', () => {
  const text = (init) => new URLSearchParams(init).toString();
  assertEquals(text(), '');
  assertEquals(text('?a=1&b'), 'a=1&b=');
  assertEquals(text('??a'), '%3Fa=');
  assertEquals(text('a=b=c&&=d&e%20f=+'), 'a=b%3Dc&=d&e+f=+');
  assertEquals(text([['a', 1], new Set(['b', 'c'])]), 'a=1&b=c');
  assertEquals(text(new Map([['a', 'b']])), 'a=b');
  assertEquals(text({ b: undefined, a: [1, 2] }), 'b=undefined&a=1%2C2');
  assertEquals(text(new URLSearchParams('x=1&x=2')), 'x=1&x=2');
  assertEquals(text(null), 'null=');
  assertEquals(text(undefined), '');
  assertEquals(text({ '\ud800': '\udc00' }), '%EF%BF%BD=%EF%BF%BD');
  assertEquals(text('a=%F0%9F%92%A9&b=%FF&c=%zz'), 'a=%F0%9F%92%A9&b=%EF%BF%BD&c=%25zz');
  assertEquals(text([['*-._~', "!'()"]]), '*-._%7E=%21%27%28%29');
  assertThrows(() => new URLSearchParams([['a']]), TypeError, 'Invalid URL search params sequence.');
  assertThrows(() => new URLSearchParams([1]), TypeError, "Incorrect type: the provided value is not of type 'Sequence'.");
  assertThrows(() => new URLSearchParams({ a: Symbol() }), TypeError);
});

test('reading and changing URLSearchParams', () => {
  const params = new URLSearchParams('a=1&b=2&a=3');
  assertEquals([params.get('a'), params.get('z'), params.getAll('a'), params.getAll('z')], ['1', null, ['1', '3'], []]);
  assertEquals([params.has('a'), params.has('a', '3'), params.has('a', '9'), params.has('a', undefined), params.size], [true, true, false, true, 3]);
  params.set('a', 'x');
  assertEquals(String(params), 'a=x&b=2');
  params.set('n', 5);
  params.append('b', null);
  assertEquals(String(params), 'a=x&b=2&n=5&b=null');
  params.delete('b', '2');
  assertEquals(String(params), 'a=x&n=5&b=null');
  params.delete('b', undefined);
  assertEquals(String(params), 'a=x&n=5');
  for (const name of ['get', 'getAll', 'has', 'delete']) {
    assertThrows(() => params[name](), TypeError, `Failed to execute '${name}' on 'URLSearchParams': parameter 1 is not of type 'USVString'.`);
  }
  assertThrows(() => params.append('a'), TypeError, "Failed to execute 'append' on 'URLSearchParams': parameter 2 is not of type 'USVString'.");
  assertThrows(() => params.set('a'), TypeError);
  assertThrows(() => URLSearchParams.prototype.get.call({}, 'a'), TypeError, /^Illegal invocation/);
});

test('sorting is stable and by code units', () => {
  const params = new URLSearchParams('z=1&ﬃ&🌈&a=2&z=0&a=1');
  params.sort();
  assertEquals([...params.keys()], ['a', 'a', 'z', 'z', '🌈', 'ﬃ']);
  assertEquals(params.getAll('z'), ['1', '0']);
});

test('iteration', () => {
  const params = new URLSearchParams('a=1&b=2');
  assertEquals([...params], [['a', '1'], ['b', '2']]);
  assertEquals([[...params.keys()], [...params.values()], [...params.entries()]], [['a', 'b'], ['1', '2'], [['a', '1'], ['b', '2']]]);
  assertEquals(params[Symbol.iterator], params.entries);
  const seen = [];
  const self = {};
  params.forEach(function (value, key, all) { seen.push(value, key, all === params, this === self); }, self);
  assertEquals(seen, ['1', 'a', true, true, '2', 'b', true, true]);
  assertThrows(() => params.forEach(5), TypeError, "Failed to execute 'forEach' on 'URLSearchParams': parameter 1 is not of type 'function'.");
  const iterator = params.keys();
  assertEquals(Object.prototype.toString.call(iterator), '[object URLSearchParams Iterator]');
  assertEquals(iterator[Symbol.iterator](), iterator);
  assertThrows(() => iterator.next.call({}), TypeError);
  const keys = [];
  for (const key of params.keys()) {
    keys.push(key);
    if (key === 'a') params.append('c', '3');
  }
  assertEquals(keys, ['a', 'b', 'c']);
});
