// compatibility flags: some_flag, other_flag
// performance, navigator, Cloudflare, self, and names that are missing.
import { assert, assertEquals, assertThrows, test } from 'test';

test('performance stands still in a turn', async () => {
  const before = performance.now();
  for (let i = 0; i < 1e6; i++);
  assertEquals(performance.now(), before);
  await scheduler.wait(25);
  assertEquals(performance.now() - before, 25);
  assertEquals([performance.timeOrigin, performance.timeOrigin + performance.now()], [0, Date.now()]);
  assertEquals(performance.toJSON().timeOrigin, 0);
  assertThrows(() => performance.now.call({}), TypeError, /^Illegal invocation/);
  assertThrows(() => new Performance(), TypeError, 'Illegal constructor');
  assert(performance instanceof EventTarget);
});

test('navigator', () => {
  assertEquals([navigator.userAgent, navigator.hardwareConcurrency, navigator.platform, navigator.language, navigator.languages],
    ['Cloudflare-Workers', 1, '', 'en', ['en']]);
  assertEquals(String(navigator), '[object Navigator]');
  assertThrows(() => { navigator.userAgent = 'x'; }, TypeError);
  assertThrows(() => navigator.sendBeacon('http://a'), Error, 'navigator.sendBeacon is not implemented in celld yet');
});

test('compatibility flags of the configuration', () => {
  const { compatibilityFlags } = Cloudflare;
  assertEquals([compatibilityFlags.some_flag, compatibilityFlags.other_flag, compatibilityFlags.third], [true, true, undefined]);
  assert(Object.isFrozen(compatibilityFlags));
  assertEquals(Cloudflare.compatibilityFlags, compatibilityFlags);
});

test('self', () => {
  assert(self === globalThis);
  assertEquals(origin, 'null');
  assertThrows(() => new ServiceWorkerGlobalScope(), TypeError, 'Illegal constructor');
});

test('globals are not enumerable, and can be replaced', () => {
  for (const name of ['URL', 'fetch', 'setTimeout', 'console', 'crypto', 'Event', 'structuredClone']) {
    const descriptor = Object.getOwnPropertyDescriptor(globalThis, name);
    assertEquals([descriptor.enumerable, descriptor.writable, descriptor.configurable], [false, true, true], name);
  }
});

test('nothing of the runtime can be reached', () => {
  for (const name of ['rt', 'ops', 'primordials']) assertEquals(typeof globalThis[name], 'undefined', name);
});

test('missing classes are functions that say what is missing', () => {
  for (const name of ['HTMLRewriter', 'EventSource', 'MessageChannel', 'URLPattern', 'CryptoKey']) {
    const Class = globalThis[name];
    assertEquals([typeof Class, Class.name], ['function', name]);
    assertThrows(() => new Class(), Error, `${name} is not implemented in celld yet`);
    assertThrows(() => Class(), Error, `${name} is not implemented in celld yet`);
    assertEquals({} instanceof Class, false);
  }
  assertThrows(() => caches.default, Error, 'caches.default is not implemented in celld yet');
  assertThrows(() => caches.open('x'), Error, 'caches.open is not implemented in celld yet');
  assertEquals(typeof caches, 'object');
});

test('patched built-ins do not break the runtime', async () => {
  const saved = [Array.prototype.push, Map.prototype.get, String.prototype.charCodeAt, Array.prototype[Symbol.iterator], Promise.prototype.then];
  const results = [];
  try {
    Array.prototype.push = Map.prototype.get = String.prototype.charCodeAt = () => { throw new Error('patched'); };
    results[0] = new URLSearchParams('?a=1').get('a');
    results[1] = structuredClone(new Map([[1, 2]])).size;
    const target = new EventTarget();
    target.addEventListener('x', () => { results[2] = 'event'; });
    target.dispatchEvent(new Event('x'));
    clearTimeout(setTimeout(() => {}, 1));
    results[3] = new TextDecoder().decode(new TextEncoder().encode('é'));
  } finally {
    [Array.prototype.push, Map.prototype.get, String.prototype.charCodeAt] = saved;
  }
  assertEquals(results, ['1', 1, 'event', 'é']);
});
