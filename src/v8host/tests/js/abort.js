// AbortController and AbortSignal.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

test('abort sets the reason once and fires once', () => {
  const controller = new AbortController();
  const { signal } = controller;
  const seen = [];
  signal.onabort = (event) => seen.push('handler', event.type, event.isTrusted, event.target === signal);
  signal.addEventListener('abort', () => seen.push('listener'));
  assertEquals([signal.aborted, signal.reason], [false, undefined]);
  controller.abort();
  controller.abort('again');
  assertEquals(seen, ['handler', 'abort', true, true, 'listener']);
  assertEquals([signal.aborted, signal.reason.name, signal.reason.code, signal.reason.message],
    [true, 'AbortError', 20, 'The operation was aborted']);
  assertEquals(controller.signal, signal);
});

test('reasons are kept as they are', () => {
  for (const reason of [null, 0, 'text', new Error('e')]) {
    assertEquals(AbortSignal.abort(reason).reason, reason);
    const controller = new AbortController();
    controller.abort(reason);
    assertEquals(controller.signal.reason, reason);
  }
  assertEquals(AbortSignal.abort(undefined).reason.name, 'AbortError');
});

test('throwIfAborted', () => {
  const error = new Error('why');
  assertEquals(new AbortController().signal.throwIfAborted(), undefined);
  assertEquals(assertThrows(() => AbortSignal.abort(error).throwIfAborted(), Error), error);
});

test('signals cannot be constructed; members check this', () => {
  assertThrows(() => new AbortSignal(), TypeError, 'Illegal constructor');
  const { get } = Object.getOwnPropertyDescriptor(AbortSignal.prototype, 'aborted');
  assertThrows(() => get.call(new EventTarget()), TypeError, /^Illegal invocation/);
  assertThrows(() => AbortController.prototype.abort.call({}), TypeError);
  assert(AbortSignal.abort() instanceof EventTarget);
});

test('onabort takes functions and objects, all else is null', () => {
  const { signal } = new AbortController();
  assertEquals(signal.onabort, null);
  signal.onabort = 5;
  assertEquals(signal.onabort, null);
  const object = {};
  signal.onabort = object;
  assertEquals(signal.onabort, object);
  const handler = () => {};
  signal.onabort = handler;
  assertEquals(signal.onabort, handler);
  signal.onabort = null;
  assertEquals(signal.onabort, null);
});

test('a handler keeps its place when it is replaced', () => {
  const controller = new AbortController();
  const seen = [];
  controller.signal.onabort = () => seen.push('old');
  controller.signal.addEventListener('abort', () => seen.push('listener'));
  controller.signal.onabort = () => seen.push('new');
  controller.abort();
  assertEquals(seen, ['new', 'listener']);
});

test('timeout', async () => {
  const signal = AbortSignal.timeout(20);
  let seen;
  signal.onabort = () => { seen = signal.reason; };
  await scheduler.wait(10);
  assertEquals(signal.aborted, false);
  await scheduler.wait(15);
  assertEquals([signal.aborted, seen.name, seen.code, seen.message],
    [true, 'TimeoutError', 23, 'The operation was aborted due to timeout']);
  assertThrows(() => AbortSignal.timeout(), TypeError, "Failed to execute 'timeout' on 'AbortSignal': parameter 1 is not of type 'number'.");
});

test('any follows the first source', () => {
  const [a, b] = [new AbortController(), new AbortController()];
  const signal = AbortSignal.any([a.signal, b.signal]);
  const seen = [];
  signal.onabort = () => seen.push('dependent');
  b.signal.onabort = () => seen.push('source', signal.aborted);
  b.abort('b');
  a.abort('a');
  assertEquals(seen, ['source', true, 'dependent']);
  assertEquals(signal.reason, 'b');
});

test('any of nothing never aborts; of an aborted one it is aborted at once', () => {
  assertEquals(AbortSignal.any([]).aborted, false);
  const signal = AbortSignal.any([new AbortController().signal, AbortSignal.abort('r'), AbortSignal.abort('s')]);
  assertEquals([signal.aborted, signal.reason], [true, 'r']);
});

test('any of any', () => {
  const controller = new AbortController();
  const inner = AbortSignal.any([controller.signal]);
  const outer = AbortSignal.any(new Set([inner, controller.signal]));
  let calls = 0;
  outer.onabort = () => calls++;
  controller.abort();
  assertEquals([inner.aborted, outer.aborted, calls], [true, true, 1]);
  assertEquals(outer.reason, controller.signal.reason);
});

test('a dependent that somebody listens to is not lost', async () => {
  const controller = new AbortController();
  let calls = 0;
  for (let i = 0; i < 1000; i++) AbortSignal.any([controller.signal]).addEventListener('abort', () => calls++);
  for (let i = 0; i < 100; i++) await null;
  controller.abort();
  assertEquals(calls, 1000);
});

test('arguments of any are checked', () => {
  assertThrows(() => AbortSignal.any(5), TypeError, "Failed to execute 'any' on 'AbortSignal': parameter 1 is not of type 'Array'.");
  assertThrows(() => AbortSignal.any([AbortSignal.abort(), 5]), TypeError,
    "Incorrect type for array element 1: the provided value is not of type 'AbortSignal'.");
});

test('scheduler.wait and signals', async () => {
  await assertRejects(() => scheduler.wait(1000, { signal: AbortSignal.abort() }), 'AbortError');
  const controller = new AbortController();
  const promise = scheduler.wait(1000, { signal: controller.signal });
  controller.abort('stop');
  let reason;
  await promise.catch((error) => { reason = error; });
  assertEquals(reason, 'stop');
  await scheduler.wait(1, { signal: new AbortController().signal });
});
