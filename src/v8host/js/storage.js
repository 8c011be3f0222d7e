//! `ctx.storage`: asynchronous and synchronous key-value calls, transactions. Publishes `rt.storage`.
//!
//! Every call reaches SQLite at once; an asynchronous one gives a promise that has settled already.
//! Nobody outside sees a write before it is durable: the output gate holds whatever leaves the cell.
//! `allowConcurrency`, `allowUnconfirmed` and `noCache` are accepted and change nothing: there is no
//! cache, no call is ever pending, and confirmed is the safe reading of unconfirmed.
//! Messages are workerd's.

const { convert, decorate, illegalConstructor, illegalInvocation, isObject, method, mismatch, required, sequence, uncurry } = rt.webidl;
const { INTERNAL, SafeMap } = rt;
const { then } = rt.promises;
const {
  Error, IteratorPrototype, Map, MathTrunc, ObjectDefineProperty, ObjectKeys, ObjectSetPrototypeOf, RangeError, TypeError,
} = primordials;
const mapSet = uncurry(Map.prototype.set);
const { DOMString } = convert;

const KEYS_MAX = 128;
/** Pairs of one page of `kv.list()`: read again when something was written meanwhile. */
const PAGE = 64;
const STORAGE = 'DurableObjectStorage';

/** How often this realm wrote; tells an iterator that its page is old. */
let writes = 0;

/** `{start, startAfter, end, prefix, reverse, limit}` with what the host expects. */
function listOptions(options, where) {
  const list = { start: undefined, startAfter: undefined, end: undefined, prefix: undefined, reverse: false, limit: undefined };
  if (options === undefined || options === null) return list;
  if (!isObject(options)) mismatch(where, 0, 'ListOptions');
  const { start, startAfter, end, prefix, reverse, limit } = options;
  if (start !== undefined && start !== null) list.start = DOMString(start);
  if (startAfter !== undefined && startAfter !== null) list.startAfter = DOMString(startAfter);
  if (end !== undefined && end !== null) list.end = DOMString(end);
  if (prefix !== undefined && prefix !== null) list.prefix = DOMString(prefix);
  if (reverse !== undefined && reverse !== null) list.reverse = !!reverse;
  if (limit !== undefined && limit !== null) {
    list.limit = MathTrunc(+limit);
    if (!(list.limit > 0)) throw new TypeError('List limit must be positive.');
  }
  if (list.start !== undefined && list.startAfter !== undefined) {
    throw new TypeError('list() cannot be called with both start and startAfter values.');
  }
  return list;
}

function listFlat(slot, list, limit) {
  return ops.kv_list(slot, list.start, list.startAfter, list.end, list.prefix, list.reverse, limit);
}

/** `[key, value, …]` as a Map. */
function mapOf(flat) {
  const map = new Map();
  for (let i = 0; i < flat.length; i += 2) mapSet(map, flat[i], flat[i + 1]);
  return map;
}

/** An array of keys, or null when the argument is one key. */
function keysOf(value) {
  if (typeof value === 'string') return null;
  const keys = sequence(value, DOMString);
  if (keys !== null && keys.length > KEYS_MAX) throw new RangeError(`Maximum number of keys is ${KEYS_MAX}.`);
  return keys;
}

/** Options that change nothing here: they must be an object all the same. */
function checkOptions(options, where, index, type) {
  if (options !== undefined && options !== null && !isObject(options)) mismatch(where, index, type);
}

// --- What storage and transaction have in common. `slot` is the cell's number.

function getValue(slot, key) {
  const keys = keysOf(key);
  return keys === null ? ops.kv_get(slot, DOMString(key)) : mapOf(ops.kv_get_many(slot, keys));
}

function putValue(slot, args, where) {
  const key = args[0];
  if (!isObject(key)) {
    if (args.length === 0) mismatch(where, 0, 'string or object');
    if (args[1] === undefined) throw new TypeError('put() called with undefined value.');
    checkOptions(args[2], where, 2, 'PutOptions');
    writes++;
    ops.kv_put(slot, DOMString(key), args[1]);
    return;
  }
  const names = ObjectKeys(key);
  if (names.length > KEYS_MAX) throw new RangeError(`Maximum number of pairs is ${KEYS_MAX}.`);
  const flat = [];
  let count = 0;
  for (let i = 0; i < names.length; i++) {
    const value = key[names[i]];
    if (value === undefined) continue;
    flat[count++] = names[i];
    flat[count++] = value;
  }
  writes++;
  ops.kv_put_many(slot, flat);
}

function deleteValue(slot, key) {
  const keys = keysOf(key);
  writes++;
  return keys === null ? ops.kv_delete(slot, DOMString(key)) : ops.kv_delete_many(slot, keys);
}

function listValues(slot, options, where) {
  const list = listOptions(options, where);
  return mapOf(listFlat(slot, list, list.limit));
}

/** workerd's, without a history too: programs that note where they stand go on. */
const NO_BOOKMARK = '00000000-00000000-00000000-00000000000000000000000000000000';
const NO_HISTORY = 'This Durable Object\'s storage back-end does not implement point-in-time recovery.';

// --- Transactions.

/** A transaction under way. */
class Transaction {
  constructor(slot, id) {
    this.slot = slot;
    this.id = id;
    this.state = 'open';
  }

  check(name) {
    if (this.state === 'open') return;
    if (this.state === 'rolled back') throw new Error(`Cannot ${name}() on rolled back transaction`);
    throw new Error(`Cannot call ${name}() on transaction that has already committed: did you move \`txn\` outside of the closure?`);
  }
}

let inner;

class DurableObjectTransaction {
  #inner;

  constructor(token, transaction) {
    if (token !== INTERNAL) illegalConstructor();
    this.#inner = transaction;
  }

  static {
    inner = (value) => {
      if (!isObject(value) || !(#inner in value)) illegalInvocation();
      return value.#inner;
    };
  }

  async get(key, options = undefined) {
    const transaction = inner(this);
    required(arguments.length, method('DurableObjectTransaction', 'get'), 'string or Array');
    checkOptions(options, method('DurableObjectTransaction', 'get'), 1, 'GetOptions');
    transaction.check('get');
    return getValue(transaction.slot, key);
  }

  async list(options = undefined) {
    const transaction = inner(this);
    transaction.check('list');
    return listValues(transaction.slot, options, method('DurableObjectTransaction', 'list'));
  }

  async put(...args) {
    const transaction = inner(this);
    transaction.check('put');
    putValue(transaction.slot, args, method('DurableObjectTransaction', 'put'));
  }

  async delete(key, options = undefined) {
    const transaction = inner(this);
    required(arguments.length, method('DurableObjectTransaction', 'delete'), 'string or Array');
    transaction.check('delete');
    return deleteValue(transaction.slot, key);
  }

  async deleteAll() {
    inner(this);
    throw new Error('Cannot call deleteAll() within a transaction');
  }

  rollback() {
    const transaction = inner(this);
    if (transaction.state === 'rolled back') return;
    transaction.check('rollback');
    transaction.state = 'rolled back';
    writes++;
    ops.tx_rollback(transaction.slot, transaction.id);
  }

  async getAlarm(options = undefined) {
    const transaction = inner(this);
    transaction.check('getAlarm');
    return rt.alarms.get(transaction.slot, options, 'DurableObjectTransaction');
  }

  async setAlarm(time, options = undefined) {
    const transaction = inner(this);
    transaction.check('setAlarm');
    rt.alarms.set(transaction.slot, time, options, 'DurableObjectTransaction');
  }

  async deleteAlarm(options = undefined) {
    const transaction = inner(this);
    transaction.check('deleteAlarm');
    rt.alarms.remove(transaction.slot, options, 'DurableObjectTransaction');
  }
}
rt.webidl.arity(DurableObjectTransaction.prototype.put, 1);
decorate(DurableObjectTransaction);

/** Cell and section -> the promise of the last transaction that was started there. */
const lines = new SafeMap();

/** Runs transactions of one section one after the other: their savepoints must not interleave. */
async function transact(slot, closure) {
  rt.checkIo();
  const frame = rt.frame();
  const place = frame?.section === undefined ? `${slot}` : `${slot}/${frame.section}`;
  const before = lines.get(place);
  const run = (async () => {
    // Also without one before it: what the caller does after the call is not part of it.
    await before;
    return runTransaction(slot, closure);
  })();
  const settled = then(run, rt.promises.noop, rt.promises.noop);
  lines.set(place, settled);
  try {
    return await run;
  } finally {
    if (lines.get(place) === settled) lines.delete(place);
  }
}

function runTransaction(slot, closure) {
  return rt.cellState.section(slot, false, async () => {
    const transaction = new Transaction(slot, ops.tx_begin(slot, true));
    let result;
    try {
      result = await closure(new DurableObjectTransaction(INTERNAL, transaction));
    } catch (error) {
      if (transaction.state === 'open') {
        transaction.state = 'over';
        writes++;
        ops.tx_rollback(slot, transaction.id);
      }
      throw error;
    }
    if (transaction.state === 'open') {
      transaction.state = 'over';
      ops.tx_release(slot, transaction.id);
    }
    return result;
  });
}

function transactSync(slot, closure) {
  const id = ops.tx_begin(slot, false);
  let result;
  try {
    result = closure();
  } catch (error) {
    writes++;
    ops.tx_rollback(slot, id);
    throw error;
  }
  ops.tx_release(slot, id);
  return result;
}

// --- `storage.kv`.

class ListIterator {
  #slot;
  #list;
  #page = [];
  #at = 0;
  #version = -1;
  #done = false;

  constructor(token, slot, list) {
    if (token !== INTERNAL) illegalConstructor();
    this.#slot = slot;
    this.#list = list;
  }

  /** A page holds no statement of SQLite open, so the iterator never stands in the way of a write. */
  #fill() {
    const list = this.#list;
    const limit = list.limit === undefined || list.limit > PAGE ? PAGE : list.limit;
    this.#page = listFlat(this.#slot, list, limit);
    this.#at = 0;
    this.#version = writes;
    return this.#page.length > 0;
  }

  next() {
    if (!isObject(this) || !(#slot in this)) illegalInvocation();
    if (this.#done) return { done: true, value: undefined };
    if ((this.#version !== writes || this.#at === this.#page.length) && !this.#fill()) {
      this.#done = true;
      return { done: true, value: undefined };
    }
    const key = this.#page[this.#at];
    const value = this.#page[this.#at + 1];
    this.#at += 2;
    const list = this.#list;
    // The next page begins behind this key.
    if (list.reverse) {
      list.end = key;
    } else {
      list.startAfter = key;
      list.start = undefined;
    }
    if (list.limit !== undefined) {
      list.limit -= 1;
      if (list.limit === 0) this.#done = true;
    }
    return { done: false, value: [key, value] };
  }
}
ObjectSetPrototypeOf(ListIterator.prototype, IteratorPrototype);
decorate(ListIterator);

class SyncKvStorage {
  #slot;

  constructor(token, slot) {
    if (token !== INTERNAL) illegalConstructor();
    this.#slot = slot;
  }

  get(key) {
    if (!isObject(this) || !(#slot in this)) illegalInvocation();
    if (arguments.length === 0) required(0, method('SyncKvStorage', 'get'), 'string');
    return ops.kv_get(this.#slot, DOMString(key));
  }

  list(options = undefined) {
    if (!isObject(this) || !(#slot in this)) illegalInvocation();
    return new ListIterator(INTERNAL, this.#slot, listOptions(options, method('SyncKvStorage', 'list')));
  }

  put(key, value) {
    if (!isObject(this) || !(#slot in this)) illegalInvocation();
    if (arguments.length < 2) required(arguments.length, method('SyncKvStorage', 'put'), 'string', 'Value');
    writes++;
    ops.kv_put(this.#slot, DOMString(key), value);
  }

  delete(key) {
    if (!isObject(this) || !(#slot in this)) illegalInvocation();
    required(arguments.length, method('SyncKvStorage', 'delete'), 'string');
    writes++;
    return ops.kv_delete(this.#slot, DOMString(key));
  }
}
decorate(SyncKvStorage);

// --- `storage`.

let slotOf;

class DurableObjectStorage {
  #slot;

  constructor(token, slot) {
    if (token !== INTERNAL) illegalConstructor();
    this.#slot = slot;
    ObjectDefineProperty(this, 'kv', { __proto__: null, value: new SyncKvStorage(INTERNAL, slot), enumerable: true });
    ObjectDefineProperty(this, 'sql', { __proto__: null, value: rt.sql.make(slot), enumerable: true });
  }

  static {
    slotOf = (value) => {
      if (!isObject(value) || !(#slot in value)) illegalInvocation();
      return value.#slot;
    };
  }

  async get(key, options = undefined) {
    const slot = slotOf(this);
    required(arguments.length, method(STORAGE, 'get'), 'string or Array');
    checkOptions(options, method(STORAGE, 'get'), 1, 'GetOptions');
    return getValue(slot, key);
  }

  async list(options = undefined) {
    return listValues(slotOf(this), options, method(STORAGE, 'list'));
  }

  async put(...args) {
    putValue(slotOf(this), args, method(STORAGE, 'put'));
  }

  async delete(key, options = undefined) {
    const slot = slotOf(this);
    required(arguments.length, method(STORAGE, 'delete'), 'string or Array');
    return deleteValue(slot, key);
  }

  async deleteAll(options = undefined) {
    const slot = slotOf(this);
    writes++;
    ops.db_delete_all(slot);
  }

  async transaction(closure) {
    const slot = slotOf(this);
    if (typeof closure !== 'function') mismatch(method(STORAGE, 'transaction'), 0, 'function');
    return transact(slot, closure);
  }

  transactionSync(closure) {
    const slot = slotOf(this);
    if (typeof closure !== 'function') mismatch(method(STORAGE, 'transactionSync'), 0, 'function');
    return transactSync(slot, closure);
  }

  async sync() {
    return rt.calls.wait(ops.sync(slotOf(this)));
  }

  async getAlarm(options = undefined) {
    return rt.alarms.get(slotOf(this), options, STORAGE);
  }

  async setAlarm(time, options = undefined) {
    rt.alarms.set(slotOf(this), time, options, STORAGE);
  }

  async deleteAlarm(options = undefined) {
    rt.alarms.remove(slotOf(this), options, STORAGE);
  }

  async getCurrentBookmark() {
    slotOf(this);
    return NO_BOOKMARK;
  }

  async getBookmarkForTime() {
    slotOf(this);
    throw new Error(NO_HISTORY);
  }

  async onNextSessionRestoreBookmark() {
    slotOf(this);
    throw new Error(NO_HISTORY);
  }
}
rt.webidl.arity(DurableObjectStorage.prototype.put, 1);
decorate(DurableObjectStorage);

rt.storage = {
  make: (slot) => new DurableObjectStorage(INTERNAL, slot),
  /** A write that does not come through these classes. */
  wrote: () => {
    writes++;
  },
};
