// durable object: CELL=Cell
// Key-value storage: asynchronous, synchronous, transactions. Expectations are those of workerd.
import { DurableObject } from 'cloudflare:workers';
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

const cases = new Map();

export class Cell extends DurableObject {
  async fetch(request) {
    try {
      await cases.get(decodeURIComponent(new URL(request.url).pathname.slice(1)))(this.ctx.storage, this.ctx);
      return new Response('ok');
    } catch (error) {
      return new Response(error?.stack ?? String(error), { status: 500 });
    }
  }
}

function inCell(name, run) {
  cases.set(name, run);
  test(name, async (env) => {
    const response = await env.CELL.getByName(name).fetch(`http://cell/${encodeURIComponent(name)}`);
    if (response.status !== 200) throw new Error(await response.text());
  });
}

inCell('values come back as they were put', async (s) => {
  const values = [1, -0, 1.5, NaN, 'text', '\u{1F600}', true, null, 10n, [1, [2]], { a: { b: 1 } }, new Date(5), new Map([[1, 2]]),
    new Set(['a']), new Uint8Array([1, 2, 3]), new ArrayBuffer(4), /a/g, new TypeError('x')];
  for (const value of values) {
    await s.put('k', value);
    assertEquals(await s.get('k'), value);
    assertEquals(s.kv.get('k'), value);
  }
  const loop = {};
  loop.self = loop;
  await s.put('k', loop);
  const read = await s.get('k');
  assert(read.self === read && read !== loop);
});

inCell('get of one, of many, of none', async (s) => {
  await s.put('z', 1);
  await s.put({ k: 2, skipped: undefined });
  assertEquals(await s.get('z'), 1);
  assertEquals(await s.get('none'), undefined);
  assertEquals([...await s.get(['z', 'k', 'none', 'k', 'skipped'])], [['k', 2], ['z', 1]]);
  assertEquals(await s.get([]), new Map());
  assertEquals(await s.get(5), undefined);
  assertEquals(await s.get(undefined), undefined);
  await s.put(5, 'five');
  assertEquals(await s.get('5'), 'five');
  await s.put('', 'empty');
  assertEquals(await s.get(''), 'empty');
  await assertRejects(() => s.get(), TypeError, 'Failed to execute \'get\' on \'DurableObjectStorage\': parameter 1 is not of type \'string or Array\'.');
});

inCell('delete of one and of many', async (s) => {
  await s.put({ a: 1, b: 2, c: 3 });
  assertEquals(await s.delete('a'), true);
  assertEquals(await s.delete('a'), false);
  assertEquals(await s.delete(['a', 'b', 'c', 'd']), 2);
  assertEquals(await s.list(), new Map());
});

inCell('what put refuses', async (s) => {
  await assertRejects(() => s.put('x', undefined), TypeError, 'put() called with undefined value.');
  await assertRejects(() => s.put('x'), TypeError, 'put() called with undefined value.');
  await assertRejects(() => s.put(), TypeError, 'Failed to execute \'put\' on \'DurableObjectStorage\': parameter 1 is not of type \'string or object\'.');
  await assertRejects(() => s.put('x', () => 1), 'DataCloneError', '()=>1 could not be cloned.'.replace('()=>1', '() => 1'));
  await assertRejects(() => s.put('k'.repeat(2049), 1), RangeError, /^Keys cannot be larger than 2048 bytes/);
  await assertRejects(() => s.get('é'.repeat(1025)), RangeError, /^Keys cannot be larger than 2048 bytes/);
  await assertRejects(() => s.put('x', new Uint8Array(2 * 1024 * 1024 + 100)), RangeError, /^Values cannot be larger than/);
  const many = Object.fromEntries(Array.from({ length: 129 }, (_, i) => [`k${i}`, i]));
  await assertRejects(() => s.put(many), RangeError, 'Maximum number of pairs is 128.');
  await assertRejects(() => s.get(Object.keys(many)), RangeError, 'Maximum number of keys is 128.');
  await assertRejects(() => s.delete(Object.keys(many)), RangeError, 'Maximum number of keys is 128.');
  assertEquals(await s.list(), new Map(), 'nothing was written');
  await assertRejects(() => s.put({ a: 1, b: () => 1 }), 'DataCloneError');
  await assertRejects(() => s.put({ a: 1, ['b'.repeat(3000)]: 1 }), RangeError);
  assertEquals(await s.list(), new Map(), 'put of many is all or nothing');
  await s.put('x', new Uint8Array(2 * 1024 * 1024));
  assertEquals((await s.get('x')).length, 2 * 1024 * 1024);
});

inCell('list in the order of UTF-8 bytes', async (s) => {
  await s.put({ b: 1, a: 2, 'é': 3, '\u{1F600}': 4, '\uffff': 5, ba: 6 });
  const keys = async (options) => [...(await s.list(options)).keys()];
  assertEquals(await keys(), ['a', 'b', 'ba', 'é', '\uffff', '\u{1F600}']);
  assertEquals([...await s.list({ reverse: true, limit: 2 })], [['\u{1F600}', 4], ['\uffff', 5]]);
  assertEquals(await keys({ prefix: 'b' }), ['b', 'ba']);
  assertEquals(await keys({ prefix: 'b', start: 'ba' }), ['ba']);
  assertEquals(await keys({ prefix: 'b', start: 'a', end: 'z' }), ['b', 'ba']);
  assertEquals(await keys({ start: 'b', end: 'c' }), ['b', 'ba']);
  assertEquals(await keys({ startAfter: 'b', limit: 1 }), ['ba']);
  assertEquals(await keys({ start: 'c', end: 'b' }), []);
  await assertRejects(() => s.list({ limit: 0 }), TypeError, 'List limit must be positive.');
  await assertRejects(() => s.list({ limit: -1 }), TypeError, 'List limit must be positive.');
  await assertRejects(() => s.list({ start: 'a', startAfter: 'b' }), TypeError, 'list() cannot be called with both start and startAfter values.');
});

inCell('the synchronous calls', async (s) => {
  const { kv } = s;
  assertEquals(kv.put('a', 1), undefined);
  assertEquals(kv.get('a'), 1);
  assertEquals(kv.get('none'), undefined);
  assertEquals(kv.delete('a'), true);
  assertEquals(kv.delete('a'), false);
  assertThrows(() => kv.get(), TypeError, 'Failed to execute \'get\' on \'SyncKvStorage\': parameter 1 is not of type \'string\'.');
  assertThrows(() => kv.list({ limit: 0 }), TypeError, 'List limit must be positive.');
});

inCell('an iterator of kv.list sees and never blocks writes', async (s) => {
  const { kv } = s;
  for (let i = 0; i < 200; i++) kv.put(`k${String(i).padStart(3, '0')}`, i);
  const all = [...kv.list()];
  assertEquals(all.length, 200);
  assertEquals(all[199], ['k199', 199]);
  assertEquals([...kv.list({ reverse: true })].map(([key]) => key), all.map(([key]) => key).reverse());
  assertEquals([...kv.list({ limit: 100, start: 'k050' })].length, 100);
  assertEquals([...kv.list({ limit: 3, reverse: true, end: 'k010' })].map(([, value]) => value), [9, 8, 7]);
  const seen = [];
  for (const [key] of kv.list({ prefix: 'k19' })) {
    seen.push(key);
    kv.delete(key);
    if (key === 'k190') kv.delete('k191');
    if (key === 'k199') kv.put('k1999', 1);
  }
  assertEquals(seen, ['k190', 'k192', 'k193', 'k194', 'k195', 'k196', 'k197', 'k198', 'k199', 'k1999']);
  const open = kv.list();
  open.next();
  s.sql.exec('CREATE TABLE t (a)');
  await s.sync();
  assertEquals(open.next().value[0], 'k001');
  assertEquals(Object.prototype.toString.call(open), '[object ListIterator]');
});

inCell('transactionSync keeps or takes back', async (s) => {
  assertEquals(s.transactionSync(() => 5), 5);
  s.transactionSync(() => {
    s.kv.put('a', 1);
    assertThrows(() => s.transactionSync(() => {
      s.kv.put('b', 1);
      throw new Error('no');
    }), Error, 'no');
  });
  assertEquals([...s.kv.list()], [['a', 1]]);
  assertThrows(() => s.transactionSync(), TypeError, 'Failed to execute \'transactionSync\' on \'DurableObjectStorage\': parameter 1 is not of type \'function\'.');
});

inCell('transaction keeps, takes back, and spans awaits', async (s) => {
  const tick = () => new Promise((resolve) => setTimeout(resolve, 1));
  assertEquals(await s.transaction(async (txn) => {
    await txn.put('a', 1);
    await tick();
    assertEquals(txn.constructor.name, 'DurableObjectTransaction');
    return txn.get('a');
  }), 1);
  assertEquals(await s.transaction(() => 7), 7);
  await assertRejects(() => s.transaction(async (txn) => {
    await txn.put('b', 1);
    await tick();
    throw new Error('boo');
  }), Error, 'boo');
  assertEquals(await s.get('b'), undefined);
  assertEquals(await s.transaction(async (txn) => {
    await txn.put('c', 1);
    txn.rollback();
    txn.rollback();
    await assertRejects(() => txn.put('c', 2), Error, 'Cannot put() on rolled back transaction');
    return 5;
  }), 5);
  assertEquals(await s.get('c'), undefined);
  let leaked;
  await s.transaction(async (txn) => {
    leaked = txn;
  });
  const over = (name) => `Cannot call ${name}() on transaction that has already committed: did you move \`txn\` outside of the closure?`;
  await assertRejects(() => leaked.put('d', 1), Error, over('put'));
  assertThrows(() => leaked.rollback(), Error, over('rollback'));
});

inCell('transactions nest, and siblings wait for each other', async (s) => {
  assertEquals(await s.transaction(async (txn) => {
    await txn.put('n', 1);
    await assertRejects(() => s.transaction(async () => {
      await s.put('n', 2);
      throw new Error('inner');
    }), Error, 'inner');
    return s.get('n');
  }), 1);
  const order = [];
  const one = (name, fails) => s.transaction(async (txn) => {
    order.push(`${name} in`);
    await txn.put(name, 1);
    await new Promise((resolve) => setTimeout(resolve, 5));
    order.push(`${name} out`);
    if (fails) throw new Error(name);
  });
  const results = await Promise.allSettled([one('x', false), one('y', true), one('z', false)]);
  assertEquals(results.map(({ status }) => status), ['fulfilled', 'rejected', 'fulfilled']);
  assertEquals(order, ['x in', 'x out', 'y in', 'y out', 'z in', 'z out']);
  assertEquals([...(await s.list({ start: 'x' })).keys()], ['x', 'z']);
});

inCell('what follows a transaction in the same turn is not part of it', async (s) => {
  const failing = s.transaction(async (txn) => {
    await txn.put('in', 1);
    throw new Error('no');
  });
  s.kv.put('beside', 1);
  await assertRejects(failing, Error, 'no');
  assertEquals([...await s.list()], [['beside', 1]]);
});

inCell('deleteAll', async (s) => {
  await s.put('a', 1);
  s.sql.exec('CREATE TABLE t (a); INSERT INTO t VALUES (1)');
  await assertRejects(() => s.transaction((txn) => txn.deleteAll()), Error, 'Cannot call deleteAll() within a transaction');
  await assertRejects(() => s.transaction(() => s.deleteAll()), Error, 'Cannot call deleteAll() within a transaction');
  await s.deleteAll();
  assertEquals(await s.list(), new Map());
  assertEquals(s.sql.exec('SELECT name FROM sqlite_master').toArray(), []);
  await s.put('a', 2);
  assertEquals(await s.get('a'), 2);
});

inCell('options are accepted and what is missing says so', async (s) => {
  await s.put('a', 1, { allowConcurrency: true, allowUnconfirmed: true, noCache: true });
  await s.put({ b: 1 }, { allowUnconfirmed: true });
  assertEquals(await s.get('a', { allowConcurrency: true, noCache: true }), 1);
  assertEquals((await s.list({ allowConcurrency: true, noCache: true })).size, 2);
  await s.sync();
  assertEquals(await s.getCurrentBookmark(), '00000000-00000000-00000000-00000000000000000000000000000000');
  for (const name of ['getBookmarkForTime', 'onNextSessionRestoreBookmark']) {
    await assertRejects(() => s[name](Date.now()), Error, /does not implement point-in-time recovery/);
  }
  assertEquals(s.constructor.name, 'DurableObjectStorage');
  assertEquals(Object.keys(s), ['kv', 'sql']);
});

let leaked;
inCell('storage of another object: it is kept', async (s) => {
  leaked = s;
});
inCell('storage of another object: it is refused', async () => {
  await assertRejects(() => leaked.get('a'), Error, /^Cannot perform I\/O on behalf of a different Durable Object\./);
  assertThrows(() => leaked.sql.exec('SELECT 1'), Error, /different Durable Object/);
});
test('storage of an object is refused outside of it', async () => {
  await assertRejects(() => leaked.get('a'), Error, /different Durable Object/);
});

inCell('data outlives the instance', async (s) => {
  const runs = (await s.get('runs') ?? 0) + 1;
  await s.put('runs', runs);
  assertEquals(runs, cases.runs = (cases.runs ?? 0) + 1);
});
test('data outlives the instance, evicted', async (env) => {
  await fetch('http://harness.test/evict');
  const response = await env.CELL.getByName('data outlives the instance').fetch(`http://cell/${encodeURIComponent('data outlives the instance')}`);
  assertEquals(await response.text(), 'ok');
  assertEquals(cases.runs, 2);
});
