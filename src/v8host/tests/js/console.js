// console: levels, format strings, inspection, counters, groups, tables.
import { assert, assertEquals, test } from 'test';

/** The lines that `run` logs, as `[level, text]`. */
async function logged(run) {
  await (await fetch('http://harness.test/logs')).text();
  await run();
  return (await fetch('http://harness.test/logs')).json();
}

async function shown(...args) {
  const lines = await logged(() => console.log(...args));
  return typeof lines[0] === 'string' ? lines[0].slice(lines[0].indexOf(': ') + 2) : lines[0][1];
}

async function assertShown(value, text) {
  assertEquals(await shown(value), text);
}

test('levels', async () => {
  const lines = await logged(() => {
    console.log('a');
    console.info('b');
    console.warn('c');
    console.error('d');
    console.debug('e');
  });
  assertEquals(JSON.stringify(lines).toLowerCase().match(/log|info|warn|error|debug/g), ['log', 'info', 'warn', 'error', 'debug']);
});

test('primitive values', async () => {
  assertEquals(await shown('a', 1, -0, 2n, true, null, undefined, Symbol('s'), ''), 'a 1 -0 2n true null undefined Symbol(s) ');
  assertEquals(await shown(), '');
  await assertShown(['a\'b', 'a"\'', 'x\ny\t\\', '\x01'], `[ "a'b", \`a"'\`, 'x\\ny\\t\\\\', '\\x01' ]`);
});

test('format strings', async () => {
  assertEquals(await shown('%s is %d years and %i months', 'Bob', 42.5, 42.9), 'Bob is 42.5 years and 42 months');
  assertEquals(await shown('%f %j %O', '1.5x', { a: [1] }, { b: 2 }), '1.5 {"a":[1]} { b: 2 }');
  assertEquals(await shown('a%cb', 'color: red', 'c'), 'ab c');
  assertEquals(await shown('100%', 5), '100% 5');
  assertEquals(await shown('%% %s', 'x'), '% x');
  assertEquals(await shown('%s'), '%s');
  assertEquals(await shown('%x %s', 'y'), '%x y');
  assertEquals(await shown('%d %i', 10n, Symbol('x')), '10n NaN');
  assertEquals(await shown('%s %s', { a: { b: {} } }, -0), '{ a: [Object] } -0');
  assertEquals(await shown('%s', { toString: () => 'mine' }), 'mine');
  assertEquals(await shown('%o', [1]), '[ 1, [length]: 1 ]');
  assertEquals(await shown('%s', 'x', 'rest', { a: 1 }), 'x rest { a: 1 }');
});

test('objects and arrays', async () => {
  await assertShown({}, '{}');
  await assertShown([], '[]');
  await assertShown({ a: 1, 'b-c': 'x', [Symbol('s')]: 2 }, "{ a: 1, 'b-c': 'x', Symbol(s): 2 }");
  await assertShown({ a: { b: { c: { d: 1 } } } }, '{ a: { b: { c: [Object] } } }');
  await assertShown([[[[1]]]], '[ [ [ [Array] ] ] ]');
  await assertShown([1, , 3, undefined], '[ 1, <1 empty item>, 3, undefined ]');
  await assertShown(Object.create(null), '[Object: null prototype] {}');
  await assertShown({ get a() { throw new Error(); }, set b(v) {}, get c() { return 1; }, set c(v) {} }, '{ a: [Getter], b: [Setter], c: [Getter/Setter] }');
  await assertShown(new (class Foo { x = 1; })(), 'Foo { x: 1 }');
  await assertShown(new (class Bar extends Array {})(), 'Bar(0) []');
  await assertShown({ [Symbol.toStringTag]: 'T' }, "Object [T] { Symbol(Symbol.toStringTag): 'T' }");
  await assertShown(Array.from({ length: 101 }, () => 7).slice(0, 7), '[\n  7, 7, 7, 7,\n  7, 7, 7\n]');
  assert((await shown(new Array(150).fill(0))).endsWith('... 50 more items\n]'));
  await assertShown({ a: 'x'.repeat(40), b: 'y'.repeat(40) }, `{\n  a: '${'x'.repeat(40)}',\n  b: '${'y'.repeat(40)}'\n}`);
});

test('circles', async () => {
  const a = { name: 'a' };
  a.self = a;
  await assertShown(a, "<ref *1> { name: 'a', self: [Circular *1] }");
  const b = { list: [] };
  b.list.push(b);
  await assertShown({ b }, '{ b: <ref *1> { list: [ [Circular *1] ] } }');
});

test('built-in classes', async () => {
  await assertShown(new Map([['a', { b: 1 }]]), "Map(1) { 'a' => { b: 1 } }");
  await assertShown(new Set([1, 'x']), "Set(2) { 1, 'x' }");
  await assertShown(new Date(0), '1970-01-01T00:00:00.000Z');
  await assertShown(new Date(NaN), 'Invalid Date');
  await assertShown(/a/gi, '/a/gi');
  await assertShown(new Uint8Array(3), 'Uint8Array(3) [ 0, 0, 0 ]');
  await assertShown(new ArrayBuffer(2), 'ArrayBuffer { [Uint8Contents]: <00 00>, byteLength: 2 }');
  await assertShown([Object(1), Object('a'), Object(1n), Object(false)], "[ [Number: 1], [String: 'a'], [BigInt: 1n], [Boolean: false] ]");
  await assertShown([Promise.resolve(1), new Promise(() => {})], '[ Promise { 1 }, Promise { <pending> } ]');
  await assertShown(new WeakMap(), 'WeakMap { <items unknown> }');
  await assertShown(new Proxy({ a: 1 }, { get() { throw new Error(); } }), 'Proxy({ a: 1 })');
  await assertShown([function f() {}, class A {}, class B extends Map {}, () => {}, async () => {}, function* g() {}],
    '[\n  [Function: f],\n  [class A],\n  [class B extends Map],\n  [Function (anonymous)],\n  [AsyncFunction (anonymous)],\n  [GeneratorFunction: g]\n]');
  await assertShown(Object.assign(function f() {}, { x: 1 }), '[Function: f] { x: 1 }');
});

test('errors', async () => {
  const error = new TypeError('bad', { cause: new Error('root') });
  const text = await shown(error);
  assert(text.startsWith('TypeError: bad\n    at '), text);
  assert(text.includes('[cause]: Error: root\n'), text);
  assert((await shown(Object.assign(new Error('p'), { code: 5 }))).endsWith('{\n  code: 5\n}'));
  assert((await shown(new DOMException('m', 'AbortError'))).startsWith('AbortError: m\n    at '));
  assert((await shown({ e: new Error('in') })).startsWith('{\n  e: Error: in\n      at '));
});

test('classes of the runtime show their attributes', async () => {
  await assertShown(new URLSearchParams('a=1&a=2'), "URLSearchParams(2) { 'a' => '1', 'a' => '2' }");
  await assertShown(new Headers({ a: 'b' }), "Headers(1) { 'a' => 'b' }");
  await assertShown(new Blob(['a'], { type: 'a/b' }), "Blob { size: 1, type: 'a/b' }");
  const url = await shown(new URL('http://a/b?c#d'));
  assert(url.includes("href: 'http://a/b?c#d'") && url.startsWith('URL {'), url);
  assert((await shown(AbortSignal.abort('r'))).includes("reason: 'r'"));
  await assertShown(new TextDecoder(), "TextDecoder { encoding: 'utf-8', fatal: false, ignoreBOM: false }");
});

test('custom inspection', async () => {
  const custom = Symbol.for('nodejs.util.inspect.custom');
  await assertShown({ [custom]: () => 'mine' }, 'mine');
  await assertShown([{ [custom]: (depth) => ({ depth }) }], '[ { depth: 1 } ]');
});

test('hostile values do not throw', async () => {
  const hostile = [
    new Proxy({}, { ownKeys() { throw new Error(); }, getPrototypeOf() { throw new Error(); } }),
    Object.create(new Proxy({}, { get() { throw new Error(); }, getPrototypeOf() { throw new Error(); } })),
    { get constructor() { throw new Error(); } },
    Object.defineProperty(new Error('x'), 'stack', { get() { throw new Error(); } }),
    { [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error(); } },
    { toString() { throw new Error(); } },
  ];
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  for (const value of [...hostile, proxy]) {
    for (const form of ['%s', '%o', '%d', '%j', '%O', '']) console.log(form, value);
    console.log(value, [value]);
  }
  let deep = {};
  for (let i = 0; i < 50_000; i++) deep = { deep };
  console.dir(deep, { depth: null });
});

test('counters, timers, assertions', async () => {
  const text = JSON.stringify(await logged(async () => {
    console.count();
    console.count('x');
    console.count('x');
    console.countReset('x');
    console.count('x');
    console.countReset('none');
    console.assert(true, 'not shown');
    console.assert(false, 'because %s', 'x');
    console.assert(false);
    console.time('t');
    await scheduler.wait(1500);
    console.timeLog('t', 'extra');
    console.timeEnd('t');
    console.timeEnd('t');
  }));
  for (const part of ['default: 1', 'x: 1', 'x: 2', "Count for 'none' does not exist", 'Assertion failed: because x', 't: 1.500s extra', "Timer 't' does not exist"]) {
    assert(text.includes(part), `${part} in ${text}`);
  }
  assert(!text.includes('not shown'));
});

test('groups and tables', async () => {
  const text = JSON.stringify(await logged(() => {
    console.group('outer');
    console.groupCollapsed('inner');
    console.log('a\nb');
    console.groupEnd();
    console.log('c');
    console.groupEnd();
    console.groupEnd();
    console.log('d');
    console.table([{ a: 1, b: 'x' }, { a: 2 }]);
    console.table(5);
  }));
  for (const part of ['  inner', '    a\\\\n    b', '  c', '│ (index) │ a │ b   │', "│ 0       │ 1 │ 'x' │"]) {
    assert(text.replaceAll('\\n', '\\\\n').includes(part) || text.includes(part.replaceAll('\\\\n', '\\n')), `${part} in ${text}`);
  }
});

test('trace has a stack; members need no this', async () => {
  const { trace, log } = console;
  const lines = JSON.stringify(await logged(() => trace('here %d', 1)));
  assert(lines.includes('Trace: here 1\\n    at '), lines);
  log('free');
  assertEquals(String(console), '[object console]');
});
