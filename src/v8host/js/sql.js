//! `storage.sql`: statements and cursors. Publishes `rt.sql`.
//!
//! Rows come from the host as one flat array of values, a page at a time; objects are made here. The
//! first row comes with the answer of `exec`, so a query of one row costs one call.
//! The host's columns, bindings and counters: `api/sql.rs`. Messages are workerd's.

const { decorate, illegalConstructor, illegalInvocation, isBufferSource, isObject, method, required } = rt.webidl;
const { INTERNAL } = rt;
const { ArrayPrototypeSlice, Error, IteratorPrototype, ObjectDefineProperty, ObjectSetPrototypeOf, TypeError } = primordials;

/** Rows of one call to the host when all are wanted; one by one otherwise, as rows may change. */
const PAGE = 256;
const NO_ROWS = [];

/** What the host binds: null, a number, a string or bytes. Other values become texts, as in workerd. */
function bindingOf(value) {
  switch (typeof value) {
    case 'string':
    case 'number':
      return value;
    case 'undefined':
      return null;
    case 'bigint':
      throw new TypeError('Cannot convert a BigInt value to a number');
    default:
      return value === null || isBufferSource(value) ? value : `${value}`;
  }
}

let read;

class Cursor {
  #slot;
  /** Number of the host's cursor, or -1 when the host has no more rows. */
  #id;
  #names;
  /** Values that have been fetched, from `#at` on. */
  #values;
  #at = 0;
  #rowsRead;
  #rowsWritten;

  constructor(token, slot, answer) {
    if (token !== INTERNAL) illegalConstructor();
    this.#slot = slot;
    this.#id = answer[0];
    this.#names = answer[1];
    this.#values = answer[2] ?? NO_ROWS;
    this.#rowsRead = answer[3];
    this.#rowsWritten = answer[4];
    if (this.#id >= 0) ops.sql_watch(slot, this.#id, this);
  }

  static {
    read = {
      isCursor: (value) => isObject(value) && #slot in value,
      /** The next row as `{…}` or `[…]`; `undefined` at the end. */
      row: (cursor, raw) => {
        if (cursor.#at === cursor.#values.length && !cursor.#fetch(1)) return undefined;
        return raw ? cursor.#array() : cursor.#object();
      },
      rest: (cursor, raw) => {
        const rows = [];
        for (let count = 0; ;) {
          while (cursor.#at < cursor.#values.length) rows[count++] = raw ? cursor.#array() : cursor.#object();
          if (!cursor.#fetch(PAGE)) return rows;
        }
      },
      hasMore: (cursor) => cursor.#at < cursor.#values.length || cursor.#id >= 0,
      end: (cursor) => {
        if (cursor.#id >= 0) ops.sql_close(cursor.#slot, cursor.#id);
        cursor.#id = -1;
        cursor.#values = NO_ROWS;
        cursor.#at = 0;
      },
    };
  }

  #fetch(max) {
    if (this.#id < 0) return false;
    const answer = ops.sql_fetch(this.#slot, this.#id, max);
    if (answer[0] === true) this.#id = -1;
    this.#values = answer[1];
    this.#at = 0;
    this.#rowsRead = answer[2];
    this.#rowsWritten = answer[3];
    return this.#values.length > 0;
  }

  #object() {
    const names = this.#names;
    const values = this.#values;
    const at = this.#at;
    const row = {};
    for (let i = 0; i < names.length; i++) row[names[i]] = values[at + i];
    this.#at = at + names.length;
    return row;
  }

  #array() {
    const at = this.#at;
    this.#at = at + this.#names.length;
    return ArrayPrototypeSlice(this.#values, at, this.#at);
  }

  next() {
    if (!read.isCursor(this)) illegalInvocation();
    const value = read.row(this, false);
    return { done: value === undefined, value };
  }

  toArray() {
    if (!read.isCursor(this)) illegalInvocation();
    return read.rest(this, false);
  }

  one() {
    if (!read.isCursor(this)) illegalInvocation();
    const row = read.row(this, false);
    if (row === undefined) throw new Error('Expected exactly one result from SQL query, but got no results.');
    if (read.hasMore(this)) {
      read.end(this);
      throw new Error('Expected exactly one result from SQL query, but got multiple results.');
    }
    return row;
  }

  raw() {
    if (!read.isCursor(this)) illegalInvocation();
    return new RawIterator(INTERNAL, this);
  }

  get columnNames() {
    if (!read.isCursor(this)) illegalInvocation();
    return ArrayPrototypeSlice(this.#names);
  }

  get rowsRead() {
    if (!read.isCursor(this)) illegalInvocation();
    return this.#rowsRead;
  }

  get rowsWritten() {
    if (!read.isCursor(this)) illegalInvocation();
    return this.#rowsWritten;
  }

  [Symbol.iterator]() {
    if (!read.isCursor(this)) illegalInvocation();
    return this;
  }
}
decorate(Cursor);

/** `cursor.raw()`: rows as arrays. Shares the rows of its cursor. */
class RawIterator {
  #cursor;

  constructor(token, cursor) {
    if (token !== INTERNAL) illegalConstructor();
    this.#cursor = cursor;
  }

  next() {
    if (!isObject(this) || !(#cursor in this)) illegalInvocation();
    const value = read.row(this.#cursor, true);
    return { done: value === undefined, value };
  }

  toArray() {
    if (!isObject(this) || !(#cursor in this)) illegalInvocation();
    return read.rest(this.#cursor, true);
  }
}
ObjectSetPrototypeOf(RawIterator.prototype, IteratorPrototype);
decorate(RawIterator);

/** Statements are prepared and kept by `exec` itself; the class is there for `instanceof`. */
class Statement {
  constructor() {
    illegalConstructor();
  }
}
decorate(Statement);

class SqlStorage {
  #slot;

  constructor(token, slot) {
    if (token !== INTERNAL) illegalConstructor();
    this.#slot = slot;
  }

  exec(query, ...bindings) {
    if (!isObject(this) || !(#slot in this)) illegalInvocation();
    required(arguments.length, method('SqlStorage', 'exec'), 'String');
    for (let i = 0; i < bindings.length; i++) bindings[i] = bindingOf(bindings[i]);
    return new Cursor(INTERNAL, this.#slot, ops.sql_exec(this.#slot, `${query}`, bindings));
  }

  get databaseSize() {
    if (!isObject(this) || !(#slot in this)) illegalInvocation();
    return ops.db_size(this.#slot);
  }
}
for (const [name, value] of [['Cursor', Cursor], ['Statement', Statement]]) {
  ObjectDefineProperty(SqlStorage.prototype, name, { __proto__: null, value, writable: true, configurable: true });
}
decorate(SqlStorage);

rt.sql = { SqlStorage, make: (slot) => new SqlStorage(INTERNAL, slot) };
