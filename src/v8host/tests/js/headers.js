// Headers: Fetch Standard, section 5.2, and what Cloudflare adds.
import { assert, assertEquals, assertThrows, test } from 'test';

export default {};

const cookies = () => {
  const headers = new Headers();
  headers.append('Set-Cookie', 'a=1');
  headers.append('set-cookie', 'b=2, c=3');
  return headers;
};

test('made of nothing, an object, pairs, other headers', () => {
  assertEquals([...new Headers()], []);
  assertEquals([...new Headers(undefined)], []);
  assertEquals([...new Headers({ B: '2', a: 1 })], [['a', '1'], ['b', '2']]);
  assertEquals([...new Headers([['b', '2'], ['A', '1'], ['b', '3']])], [['a', '1'], ['b', '2, 3']]);
  assertEquals([...new Headers(new Headers({ x: 'y' }))], [['x', 'y']]);
  assertEquals([...new Headers(new Map([['m', '1']]))], [['m', '1']]);
  assertEquals([...new Headers(new Set([['m', '1']]))], [['m', '1']]);
  assertEquals([...new Headers((function* () { yield ['g', 'h']; })())], [['g', 'h']]);
  assertEquals([...new Headers(Object.create({ inherited: '1' }))], []);
  assertEquals([...new Headers({ A: '1', a: '2' })], [['a', '1, 2']]);
  assertEquals([...new Headers([new Set(['k', 'v'])])], [['k', 'v']]);
});

test('bad initialisers', () => {
  for (const init of [null, 1, true, 'text', Symbol('s'), 1n]) assertThrows(() => new Headers(init), TypeError, /not of type 'Headers or Sequence or object'/);
  assertThrows(() => new Headers([['a']]), TypeError, 'To initialize a Headers object from a sequence, each inner sequence must have exactly two elements.');
  assertThrows(() => new Headers([['a', 'b', 'c']]), TypeError);
  assertThrows(() => new Headers([1]), TypeError);
  assertThrows(() => new Headers({ 'a b': '1' }), TypeError, 'Invalid header name.');
  assertThrows(() => new Headers({ a: '1\n2' }), TypeError, 'Invalid header value.');
  assertThrows(() => Headers(), TypeError);
});

test('a copy does not follow its original', () => {
  const first = new Headers({ a: '1' });
  const second = new Headers(first);
  second.set('a', '2');
  second.append('b', '3');
  assertEquals([...first], [['a', '1']]);
});

test('get, has, set, append, delete', () => {
  const headers = new Headers();
  assertEquals([headers.get('a'), headers.has('a')], [null, false]);
  headers.append('A', '1');
  headers.append('a', '2');
  assertEquals([headers.get('a'), headers.get('A'), headers.has('A')], ['1, 2', '1, 2', true]);
  headers.append('b', 'x');
  headers.append('a', '3');
  headers.set('a', '9');
  assertEquals([...headers], [['a', '9'], ['b', 'x']]);
  headers.delete('A');
  headers.delete('missing');
  assertEquals([...headers], [['b', 'x']]);
  assertEquals(headers.append('c', '1'), undefined);
  assertEquals([headers.set('c', undefined), headers.get('c')], [undefined, 'undefined']);
  headers.set('d', '');
  assertEquals([headers.get('d'), headers.has('d')], ['', true]);
  headers.append('d', '');
  assertEquals(headers.get('d'), ', ');
});

test('values are trimmed and checked', () => {
  const headers = new Headers();
  headers.set('a', ' \t\r\n x y \n\t ');
  assertEquals(headers.get('a'), 'x y');
  for (const value of ['a\0b', 'a\nb', 'a\rb']) {
    assertThrows(() => headers.set('b', value), TypeError, 'Invalid header value.');
    assertThrows(() => headers.append('b', value), TypeError, 'Invalid header value.');
  }
  headers.set('u', '\u00e9');
  assertEquals(headers.get('u'), '\u00e9');
  headers.set('u', '\u20ac');
  assertEquals(headers.get('u'), '\u20ac');
});

test('names are checked', () => {
  const headers = new Headers();
  for (const name of ['', ' ', 'a b', 'a:b', 'ü', 'a\n', '(', '@', 'a/b', '\u212a']) {
    for (const run of [() => headers.get(name), () => headers.has(name), () => headers.set(name, ''), () => headers.append(name, ''),
      () => headers.delete(name), () => headers.getAll(name)]) assertThrows(run, TypeError, 'Invalid header name.');
  }
  for (const character of "!#$%&'*+-.^_`|~09azAZ") headers.set(character, 'v');
  assertEquals(headers.get('~'), 'v');
});

test('iteration is sorted, joined, in lower case', () => {
  const headers = new Headers([['X-b', '1'], ['accept', '2'], ['x-A', '3'], ['X-B', '4']]);
  assertEquals([...headers.keys()], ['accept', 'x-a', 'x-b']);
  assertEquals([...headers.values()], ['2', '3', '1, 4']);
  assertEquals([...headers.entries()], [['accept', '2'], ['x-a', '3'], ['x-b', '1, 4']]);
  const seen = [];
  headers.forEach(function (value, name, object) {
    seen.push([value, name, object === headers, this.tag]);
  }, { tag: 't' });
  assertEquals(seen[2], ['1, 4', 'x-b', true, 't']);
  assertEquals(Headers.prototype[Symbol.iterator], Headers.prototype.entries);
  assertThrows(() => headers.forEach(), TypeError);
  assertThrows(() => headers.forEach({}), TypeError);
});

test('a loop may change what it walks over', () => {
  const headers = new Headers({ a: '1', b: '2', c: '3', d: '4' });
  const seen = [];
  for (const [name] of headers) {
    seen.push(name);
    headers.delete(name);
    headers.set(`z-${name}`, '');
  }
  assertEquals(seen, ['a', 'b', 'c', 'd']);
  assertEquals([...headers.keys()], ['z-a', 'z-b', 'z-c', 'z-d']);
});

test('each entry is a new array', () => {
  const headers = new Headers({ a: '1' });
  const [entry] = headers;
  entry[1] = 'changed';
  assertEquals(headers.get('a'), '1');
  assertEquals([...headers], [['a', '1']]);
});

test('iterators', () => {
  const iterator = new Headers({ a: '1' }).entries();
  assertEquals(iterator[Symbol.iterator](), iterator);
  assertEquals(iterator.next(), { value: ['a', '1'], done: false });
  assertEquals(iterator.next(), { value: undefined, done: true });
  assertThrows(() => iterator.next.call({}), TypeError);
  assertEquals(Object.getPrototypeOf(Object.getPrototypeOf(iterator)), Object.getPrototypeOf(Object.getPrototypeOf([].values())));
  assertEquals(iterator.map(([name]) => name).toArray(), []);
});

test('cookies stay apart', () => {
  const headers = cookies();
  assertEquals(headers.getSetCookie(), ['a=1', 'b=2, c=3']);
  assertEquals(headers.getAll('Set-Cookie'), ['a=1', 'b=2, c=3']);
  assertEquals(headers.get('set-cookie'), 'a=1, b=2, c=3');
  headers.set('a', 'x');
  assertEquals([...headers], [['a', 'x'], ['set-cookie', 'a=1'], ['set-cookie', 'b=2, c=3']]);
  assertEquals(new Headers(headers).getSetCookie(), ['a=1', 'b=2, c=3']);
  headers.set('Set-Cookie', 'only');
  assertEquals(headers.getSetCookie(), ['only']);
  headers.delete('set-cookie');
  assertEquals([headers.getSetCookie(), headers.getAll('set-cookie')], [[], []]);
  assertThrows(() => headers.getAll('a'), TypeError, 'getAll() can only be used with the header name "Set-Cookie".');
});

test('headers of a request that came in cannot be changed', (env, ctx, request) => {
  for (const run of [() => request.headers.set('a', 'b'), () => request.headers.append('a', 'b'), () => request.headers.delete('a')]) {
    assertThrows(run, TypeError, "Can't modify immutable headers.");
  }
  const copy = new Headers(request.headers);
  copy.set('a', 'b');
  assertEquals([copy.get('a'), request.headers.get('a')], ['b', null]);
  const clone = request.clone();
  clone.headers.set('a', 'b');
  assertEquals(clone.headers.get('a'), 'b');
  assertEquals(request.headers, request.headers);
});

test('arguments and receivers', () => {
  const headers = new Headers();
  assertThrows(() => headers.get(), TypeError, "Failed to execute 'get' on 'Headers': parameter 1 is not of type 'string'.");
  assertThrows(() => headers.set('a'), TypeError);
  assertThrows(() => headers.append(), TypeError);
  for (const name of ['get', 'set', 'append', 'delete', 'has', 'getAll', 'getSetCookie', 'entries', 'keys', 'values', 'forEach']) {
    assertThrows(() => Headers.prototype[name].call({}, 'a', 'b'), TypeError, /^Illegal invocation/);
    assertThrows(() => Headers.prototype[name].call(null, 'a', 'b'), TypeError, /^Illegal invocation/);
  }
  assertEquals(String(headers), '[object Headers]');
  assert(Object.getOwnPropertyDescriptor(Headers.prototype, 'get').enumerable);
});

test('patched globals change nothing inside', () => {
  const { get } = Map.prototype;
  const { toLowerCase } = String.prototype;
  Map.prototype.get = () => 'patched';
  String.prototype.toLowerCase = () => 'patched';
  Array.prototype.push = new Proxy(Array.prototype.push, { apply: (target, self, args) => Reflect.apply(target, self, args) });
  try {
    assertEquals(new Headers({ 'X-Fresh-Name': '1' }).get('x-fresh-name'), '1');
  } finally {
    Map.prototype.get = get;
    String.prototype.toLowerCase = toLowerCase;
  }
});

test('many headers', () => {
  const headers = new Headers();
  for (let i = 0; i < 2000; i++) headers.append(`x-${i % 1000}`, String(i));
  assertEquals([...headers].length, 1000);
  assertEquals(headers.get('x-7'), '7, 1007');
  assertEquals([...headers.keys()], [...headers.keys()].sort());
});
