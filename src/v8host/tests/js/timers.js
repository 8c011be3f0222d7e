// Timers, scheduler.wait, queueMicrotask.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

test('order, arguments, ids', async () => {
  const seen = [];
  const first = setTimeout((...args) => seen.push(['b', ...args]), 20, 1, 'x');
  const second = setTimeout(function () { seen.push(['a', arguments.length]); }, 10);
  assertEquals([typeof first, typeof second, first !== second, first > 0], ['number', 'number', true, true]);
  setTimeout(() => seen.push(['0']));
  setTimeout(() => seen.push(['-']), -5);
  setTimeout(() => seen.push(['n']), 'nope');
  await scheduler.wait(30);
  assertEquals(seen, [['0'], ['-'], ['n'], ['a', 0], ['b', 1, 'x']]);
});

test('clearing', async () => {
  let ran = 0;
  const id = setTimeout(() => ran++, 5);
  clearTimeout(id);
  clearTimeout(id);
  clearTimeout(`${setTimeout(() => ran++, 5)}`);
  clearInterval(setTimeout(() => ran++, 5));
  for (const junk of [undefined, null, 0, -1, NaN, 1e9, {}, 'x']) clearTimeout(junk);
  const later = setTimeout(() => ran++, 10);
  setTimeout(() => clearTimeout(later), 5);
  await scheduler.wait(30);
  assertEquals(ran, 0);
});

test('intervals', async () => {
  const times = [];
  const start = Date.now();
  const id = setInterval((value) => {
    times.push(Date.now() - start, value);
    if (times.length === 6) clearInterval(id);
  }, 10, 'v');
  await scheduler.wait(100);
  assertEquals(times, [10, 'v', 20, 'v', 30, 'v']);
});

test('a callback that throws is reported, and an interval goes on', async () => {
  let runs = 0;
  const id = setInterval(() => {
    runs++;
    throw new Error('from an interval');
  }, 5);
  await scheduler.wait(12);
  clearInterval(id);
  assertEquals(runs, 2);
  const reported = await (await fetch('http://harness.test/uncaught')).text();
  assert(reported.includes('from an interval'), reported);
});

test('callbacks must be functions', () => {
  for (const value of ['alert(1)', undefined, null, {}, 5]) {
    assertThrows(() => setTimeout(value, 1), TypeError, "Failed to execute 'setTimeout' on 'ServiceWorkerGlobalScope': parameter 1 is not of type 'function'.");
    assertThrows(() => setInterval(value, 1), TypeError);
    assertThrows(() => queueMicrotask(value), TypeError, "Failed to execute 'queueMicrotask' on 'ServiceWorkerGlobalScope': parameter 1 is not of type 'function'.");
  }
  assertThrows(() => setTimeout(), TypeError);
  assertThrows(() => setTimeout(() => {}, Symbol()), TypeError);
});

test('at most 10,000 timers are active', () => {
  const ids = [];
  const error = assertThrows(() => {
    for (let i = 0; i < 10_001; i++) ids.push(setTimeout(() => {}, 1e6));
  }, 'QuotaExceededError', /^You have exceeded the number of active timeouts you may set\. max active timeouts: 10000/);
  assertEquals(error.code, 22);
  assertEquals(ids.length, 10_000);
  clearTimeout(ids[0]);
  ids.push(setTimeout(() => {}, 1e6));
  for (const id of ids) clearTimeout(id);
  clearTimeout(setTimeout(() => {}, 1));
});

test('scheduler.wait', async () => {
  const start = Date.now();
  assertEquals(await scheduler.wait(15), undefined);
  assertEquals(Date.now() - start, 15);
  await scheduler.wait('3');
  await assertRejects(() => scheduler.wait(), TypeError, "Failed to execute 'wait' on 'Scheduler': parameter 1 is not of type 'number'.");
  await assertRejects(() => scheduler.wait(1, { signal: {} }), TypeError);
  await assertRejects(() => scheduler.wait(1, 5), TypeError);
  assertEquals(Object.prototype.toString.call(scheduler), '[object Scheduler]');
  assertThrows(() => new scheduler.constructor(), TypeError, 'Illegal constructor');
});

test('microtasks run before timers and in order', async () => {
  const seen = [];
  setTimeout(() => seen.push('timer'));
  queueMicrotask(() => {
    seen.push('micro 1');
    queueMicrotask(() => seen.push('micro 3'));
  });
  Promise.resolve().then(() => seen.push('micro 2'));
  seen.push('now');
  await scheduler.wait(1);
  assertEquals(seen, ['now', 'micro 1', 'micro 2', 'micro 3', 'timer']);
});

test('a microtask that throws is reported', async () => {
  queueMicrotask(() => { throw new Error('from a microtask'); });
  await scheduler.wait(1);
  const reported = await (await fetch('http://harness.test/uncaught')).text();
  assert(reported.includes('from a microtask'), reported);
});

test('I/O is allowed in what timers and microtasks run', async () => {
  const status = await new Promise((resolve, reject) => {
    setTimeout(() => queueMicrotask(() => fetch('http://status.test/204').then((response) => resolve(response.status), reject)), 5);
  });
  assertEquals(status, 204);
});

test('callbacks are called on the global object', async () => {
  const seen = await new Promise((resolve) => setTimeout(function () { 'use strict'; resolve(this); }, 1));
  assert(seen === globalThis);
});
