// durable object: CELL=Cell
// SQL storage. Expectations are those of workerd.
import { DurableObject } from 'cloudflare:workers';
import { assert, assertEquals, assertThrows, test } from 'test';

const cases = new Map();

export class Cell extends DurableObject {
  async fetch(request) {
    try {
      await cases.get(decodeURIComponent(new URL(request.url).pathname.slice(1)))(this.ctx.storage.sql, this.ctx.storage);
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

const filled = (sql) => sql.exec('CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES (1, \'one\'), (2, \'two\'), (3, \'three\')');
const ROWS = [{ a: 1, b: 'one' }, { a: 2, b: 'two' }, { a: 3, b: 'three' }];

inCell('ways to read a cursor', (sql) => {
  filled(sql);
  const query = 'SELECT * FROM t';
  assertEquals(sql.exec(query).toArray(), ROWS);
  assertEquals([...sql.exec(query)], ROWS);
  assertEquals(sql.exec(query).next(), { done: false, value: ROWS[0] });
  assertEquals(sql.exec('SELECT * FROM t WHERE a = ?', 2).one(), ROWS[1]);
  assertEquals(sql.exec(query).columnNames, ['a', 'b']);
  assertEquals([...sql.exec(query).raw()], [[1, 'one'], [2, 'two'], [3, 'three']]);
  assertEquals(sql.exec(query).raw().toArray(), [[1, 'one'], [2, 'two'], [3, 'three']]);
  const cursor = sql.exec(query);
  assert(cursor[Symbol.iterator]() === cursor && cursor instanceof sql.Cursor);
  assertEquals(cursor.next().value, ROWS[0]);
  assertEquals(cursor.raw().next(), { done: false, value: [2, 'two'] });
  assertEquals(cursor.toArray(), [ROWS[2]]);
  assertEquals(cursor.next(), { done: true, value: undefined });
  assertEquals(cursor.toArray(), []);
  assertEquals(sql.exec('SELECT 1 AS x, 2 AS x').raw().toArray(), [[1, 2]]);
  assertEquals(sql.exec('SELECT 1 AS x, 2 AS x').one(), { x: 2 });
  for (const row of sql.exec(query)) if (row.a === 2) break;
});

inCell('one() wants exactly one row', (sql) => {
  filled(sql);
  assertThrows(() => sql.exec('SELECT * FROM t WHERE a = 99').one(), Error, 'Expected exactly one result from SQL query, but got no results.');
  for (const query of ['SELECT * FROM t', 'SELECT * FROM t WHERE a < 3']) {
    assertThrows(() => sql.exec(query).one(), Error, 'Expected exactly one result from SQL query, but got multiple results.');
  }
});

inCell('values in and out', (sql) => {
  const round = (value) => Object.values(sql.exec('SELECT ?1 AS v, typeof(?1) AS t', value).one());
  assertEquals(round(true), ['true', 'text']);
  assertEquals(round(undefined), [null, 'null']);
  assertEquals(round(null), [null, 'null']);
  assertEquals(round(1), [1, 'real']);
  assertEquals(round(2 ** 60), [2 ** 60, 'real']);
  assertEquals(round(NaN), [null, 'null']);
  assertEquals(round(Infinity), [Infinity, 'real']);
  assertEquals(round('s\0\u{1F600}'), ['s\0\u{1F600}', 'text']);
  assertEquals(round(''), ['', 'text']);
  assertEquals(round('\ud800'), ['\ufffd', 'text']);
  assertEquals(round(new Uint8Array([1, 2])), [new Uint8Array([1, 2]).buffer, 'blob']);
  assertEquals(round(new ArrayBuffer(0)), [new ArrayBuffer(0), 'blob']);
  assertEquals(round(new DataView(new ArrayBuffer(3), 1)), [new ArrayBuffer(2), 'blob']);
  assertEquals(round({}), ['[object Object]', 'text']);
  assertThrows(() => round(10n), TypeError, 'Cannot convert a BigInt value to a number');
  assertThrows(() => round(Symbol('x')), TypeError, 'Cannot convert a Symbol value to a string');
  assertEquals(sql.exec('SELECT 9007199254740993 AS v, -9223372036854775808 AS w, 5 AS x, 1.0 AS y').raw().next().value,
    [9007199254740992, -9223372036854775808, 5, 1]);
  sql.exec('CREATE TABLE n (i INTEGER, t TEXT, b)');
  sql.exec('INSERT INTO n VALUES (?, ?, ?)', 5, 5, 5);
  assertEquals(sql.exec('SELECT typeof(i), typeof(t), typeof(b) FROM n').raw().next().value, ['integer', 'text', 'real']);
});

inCell('several statements, bindings for the last', (sql) => {
  const cursor = sql.exec('CREATE TABLE m (a); INSERT INTO m VALUES (1); INSERT INTO m VALUES (2); SELECT a FROM m WHERE a > ?;', 1);
  assertEquals(cursor.toArray(), [{ a: 2 }]);
  assertThrows(() => sql.exec('SELECT ?; SELECT 1', 1), Error,
    'When executing multiple SQL statements in a single call, only the last statement can have parameters.');
});

inCell('errors as workerd words them', (sql) => {
  filled(sql);
  const fails = (message, ...args) => assertThrows(() => sql.exec(...args), Error, message);
  fails('Wrong number of parameter bindings for SQL query.', 'SELECT ?');
  fails('Wrong number of parameter bindings for SQL query.', 'SELECT 1', 1);
  fails('SQL code did not contain a statement.', '');
  fails('near "SELEC": syntax error at offset 0: SQLITE_ERROR', 'SELEC 1');
  fails('no such table: nope: SQLITE_ERROR', 'SELECT * FROM nope');
  fails('UNIQUE constraint failed: t.a: SQLITE_CONSTRAINT (extended: SQLITE_CONSTRAINT_PRIMARYKEY)', 'INSERT INTO t VALUES (1, 2)');
  fails('not authorized: SQLITE_AUTH', 'ATTACH \':memory:\' AS x');
  fails(/please use the state\.storage\.transaction\(\) or state\.storage\.transactionSync\(\) APIs/, 'BEGIN');
  fails('near "5": syntax error at offset 0: SQLITE_ERROR', 5);
  assertThrows(() => sql.exec(), TypeError, 'Failed to execute \'exec\' on \'SqlStorage\': parameter 1 is not of type \'String\'.');
  assertThrows(() => sql.exec('SELECT ?', new Uint8Array(5 << 20)), Error, /SQLITE_TOOBIG/);
});

inCell('reserved names stay hidden', (sql, storage) => {
  storage.kv.put('a', 1);
  assertThrows(() => sql.exec('SELECT * FROM _cf_KV'), Error, 'access to _cf_KV.key is prohibited: SQLITE_AUTH');
  assertThrows(() => sql.exec('DROP TABLE _cf_KV'), Error, 'not authorized: SQLITE_AUTH');
  assertThrows(() => sql.exec('CREATE TABLE _CF_x (a)'), Error, 'not authorized: SQLITE_AUTH');
  assertEquals(storage.kv.get('a'), 1);
});

inCell('an open cursor never blocks', async (sql, storage) => {
  sql.exec('CREATE TABLE c (n INTEGER PRIMARY KEY)');
  for (let n = 1; n <= 600; n++) sql.exec('INSERT INTO c VALUES (?)', n);
  const over = sql.exec('SELECT n FROM c');
  over.next();
  sql.exec('INSERT INTO c VALUES (601)');
  await storage.put('k', 1);
  await new Promise((resolve) => setTimeout(resolve, 1));
  assertEquals(over.toArray().length, 600);
  const dropped = sql.exec('SELECT n FROM c');
  dropped.next();
  sql.exec('DROP TABLE c');
  await storage.sync();
  assertEquals(dropped.toArray().length, 600);
});

inCell('many abandoned cursors', async (sql) => {
  filled(sql);
  for (let i = 0; i < 5000; i++) sql.exec('SELECT * FROM t').next();
  sql.exec('DROP TABLE t');
});

inCell('RETURNING writes all at once', (sql) => {
  filled(sql);
  const cursor = sql.exec('UPDATE t SET b = upper(b) RETURNING a, b');
  assertEquals(cursor.rowsWritten, 3);
  assertEquals(sql.exec('SELECT count(*) AS n FROM t WHERE b = upper(b)').one(), { n: 3 });
  assertEquals(cursor.toArray(), [{ a: 1, b: 'ONE' }, { a: 2, b: 'TWO' }, { a: 3, b: 'THREE' }]);
});

inCell('counters and size', (sql) => {
  filled(sql);
  const all = sql.exec('SELECT * FROM t');
  all.toArray();
  assertEquals([all.rowsRead, all.rowsWritten], [3, 0]);
  assertEquals(sql.exec('UPDATE t SET b = 1').rowsWritten, 3);
  assert(sql.databaseSize >= 4096 && sql.databaseSize % 4096 === 0);
});

inCell('a failed transactionSync takes SQL back', (sql, storage) => {
  filled(sql);
  assertThrows(() => storage.transactionSync(() => {
    sql.exec('DELETE FROM t');
    throw new Error('no');
  }), Error, 'no');
  assertEquals(sql.exec('SELECT count(*) AS n FROM t').one().n, 3);
});
