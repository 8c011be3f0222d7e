//! `Headers`, over a flat list `[name, value, name, value, …]` as the border with the host has it.
//!
//! Invariant: names in a list are valid and lower case; values are valid and trimmed. Several
//! entries of one name stay apart, as `Set-Cookie` needs, and are joined when they are read.
//! Values are strings of any characters; the border writes them as UTF-8, as on Cloudflare.
//! Publishes `rt.headers`. Source: Fetch Standard, section 5.2; messages are workerd's.

const { decorate, illegalInvocation, isObject, method, mismatch, pairIterable, required, sequence, uncurry } = rt.webidl;
const { IteratorPrototype } = primordials;
const { SafeMap, INTERNAL } = rt;
const { Array, Object, Reflect, String, Symbol, TypeError } = globalThis;
const { apply } = Reflect;
const { keys } = Object;
const charCodeAt = uncurry(String.prototype.charCodeAt);
const slice = uncurry(String.prototype.slice);
const toLowerCase = uncurry(String.prototype.toLowerCase);
const sort = uncurry(Array.prototype.sort);

/** Which character codes a token (a header name, a method) may hold: RFC 9110, section 5.6.2. */
const TOKEN = new globalThis.Uint8Array(128);
for (const character of '!#$%&\'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ') {
  TOKEN[character.charCodeAt(0)] = 1;
}

function isToken(string) {
  if (string.length === 0) return false;
  for (let i = 0; i < string.length; i++) {
    const code = charCodeAt(string, i);
    if (code > 127 || TOKEN[code] === 0) return false;
  }
  return true;
}

/** Names that were seen, as they were written -> lower case. Bounded, as scripts choose names. */
const names = new SafeMap();
const NAMES_MAX = 512;
let namesCount = 0;

function nameOf(value) {
  const name = typeof value === 'string' ? value : `${value}`;
  const known = names.get(name);
  if (known !== undefined) return known;
  if (!isToken(name)) throw new TypeError('Invalid header name.');
  const lower = toLowerCase(name);
  if (namesCount < NAMES_MAX) {
    namesCount++;
    names.set(name, lower);
  }
  return lower;
}

const isSpace = (code) => code === 32 || code === 9 || code === 10 || code === 13;

function valueOf(value) {
  const text = typeof value === 'string' ? value : `${value}`;
  let start = 0;
  let end = text.length;
  while (start < end && isSpace(charCodeAt(text, start))) start++;
  while (start < end && isSpace(charCodeAt(text, end - 1))) end--;
  for (let i = start; i < end; i++) {
    const code = charCodeAt(text, i);
    if (code === 0 || code === 10 || code === 13) throw new TypeError('Invalid header value.');
  }
  return start === 0 && end === text.length ? text : slice(text, start, end);
}

// --- Lists.

function listGet(list, name) {
  let found = null;
  for (let i = 0; i < list.length; i += 2) {
    if (list[i] === name) found = found === null ? list[i + 1] : `${found}, ${list[i + 1]}`;
  }
  return found;
}

function listHas(list, name) {
  for (let i = 0; i < list.length; i += 2) if (list[i] === name) return true;
  return false;
}

function listAppend(list, name, value) {
  const end = list.length;
  list[end] = name;
  list[end + 1] = value;
}

/** Removes the entries of a name from `from` on. */
function listDelete(list, name, from) {
  let kept = from;
  for (let i = from; i < list.length; i += 2) {
    if (list[i] === name) continue;
    list[kept] = list[i];
    list[kept + 1] = list[i + 1];
    kept += 2;
  }
  list.length = kept;
}

function listSet(list, name, value) {
  for (let i = 0; i < list.length; i += 2) {
    if (list[i] !== name) continue;
    list[i + 1] = value;
    listDelete(list, name, i + 2);
    return;
  }
  listAppend(list, name, value);
}

function listCopy(list) {
  const copy = [];
  for (let i = 0; i < list.length; i++) copy[i] = list[i];
  return copy;
}

/** A copy without the header of this name. */
function listWithout(list, name) {
  const copy = listCopy(list);
  listDelete(copy, name, 0);
  return copy;
}

const byName = (a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0);

/** Pairs in the order in which a script sees them: by name, joined, cookies apart. */
function listPairs(list) {
  const pairs = [];
  const seen = new SafeMap();
  for (let i = 0; i < list.length; i += 2) {
    const name = list[i];
    const at = name === 'set-cookie' ? undefined : seen.get(name);
    if (at !== undefined) pairs[at][1] = `${pairs[at][1]}, ${list[i + 1]}`;
    else {
      seen.set(name, pairs.length);
      pairs[pairs.length] = [name, list[i + 1]];
    }
  }
  return sort(pairs, byName);
}

const NO_INIT = 'Failed to construct \'Headers\': constructor parameter 1 is not of type \'Headers or Sequence or object\'.';

/** The list of a `HeadersInit`: always a new one. `message` is for what is none. */
function listFrom(init, message = NO_INIT) {
  if (!isObject(init)) throw new TypeError(message);
  if (isHeaders(init)) return listCopy(listOf(init));
  const list = [];
  const pairs = sequence(init, (item) => sequence(item, (part) => part));
  if (pairs === null) {
    const own = keys(init);
    for (let i = 0; i < own.length; i++) listAppend(list, nameOf(own[i]), valueOf(init[own[i]]));
    return list;
  }
  for (let i = 0; i < pairs.length; i++) {
    const pair = pairs[i];
    if (pair === null || pair.length !== 2) {
      throw new TypeError('To initialize a Headers object from a sequence, each inner sequence must have exactly two elements.');
    }
    listAppend(list, nameOf(pair[0]), valueOf(pair[1]));
  }
  return list;
}

function cookiesOf(list) {
  const cookies = [];
  for (let i = 0; i < list.length; i += 2) if (list[i] === 'set-cookie') cookies[cookies.length] = list[i + 1];
  return cookies;
}

const ENTRIES = 0;
const KEYS = 1;
const VALUES = 2;

/** Steps through the headers as they were when it was made, as on Cloudflare: loops may delete. */
class HeadersIterator {
  #pairs;
  #kind;
  #next = 0;

  constructor(pairs, kind) {
    this.#pairs = pairs;
    this.#kind = kind;
  }

  next() {
    if (!isObject(this) || !(#pairs in this)) illegalInvocation();
    if (this.#next >= this.#pairs.length) return { value: undefined, done: true };
    const pair = this.#pairs[this.#next++];
    return { value: this.#kind === ENTRIES ? [pair[0], pair[1]] : pair[this.#kind - 1], done: false };
  }
}
Object.setPrototypeOf(HeadersIterator.prototype, IteratorPrototype);
delete HeadersIterator.prototype.constructor;
decorate(HeadersIterator, 'Headers Iterator');

let isHeaders;
let listOf;
let pairsOf;

class Headers {
  #list;
  #immutable;
  /** What iteration shows, until the list changes. */
  #pairs = null;

  constructor(init = undefined) {
    if (init === INTERNAL) {
      this.#list = arguments[1];
      this.#immutable = arguments[2];
      return;
    }
    this.#list = init === undefined ? [] : listFrom(init);
    this.#immutable = false;
  }

  static {
    isHeaders = (value) => isObject(value) && #list in value;
    listOf = (headers) => headers.#list;
  }

  #change() {
    if (this.#immutable) throw new TypeError('Can\'t modify immutable headers.');
    this.#pairs = null;
  }

  append(name, value) {
    if (!isHeaders(this)) illegalInvocation();
    required(arguments.length, method('Headers', 'append'), 'string', 'string');
    const key = nameOf(name);
    const text = valueOf(value);
    this.#change();
    listAppend(this.#list, key, text);
  }

  delete(name) {
    if (!isHeaders(this)) illegalInvocation();
    required(arguments.length, method('Headers', 'delete'), 'string');
    const key = nameOf(name);
    this.#change();
    listDelete(this.#list, key, 0);
  }

  get(name) {
    if (!isHeaders(this)) illegalInvocation();
    required(arguments.length, method('Headers', 'get'), 'string');
    return listGet(this.#list, nameOf(name));
  }

  getAll(name) {
    if (!isHeaders(this)) illegalInvocation();
    required(arguments.length, method('Headers', 'getAll'), 'string');
    if (nameOf(name) !== 'set-cookie') {
      throw new TypeError('getAll() can only be used with the header name "Set-Cookie".');
    }
    return cookiesOf(this.#list);
  }

  getSetCookie() {
    if (!isHeaders(this)) illegalInvocation();
    return cookiesOf(this.#list);
  }

  has(name) {
    if (!isHeaders(this)) illegalInvocation();
    required(arguments.length, method('Headers', 'has'), 'string');
    return listHas(this.#list, nameOf(name));
  }

  set(name, value) {
    if (!isHeaders(this)) illegalInvocation();
    required(arguments.length, method('Headers', 'set'), 'string', 'string');
    const key = nameOf(name);
    const text = valueOf(value);
    this.#change();
    listSet(this.#list, key, text);
  }

  static {
    pairsOf = (headers) => {
      if (!isHeaders(headers)) illegalInvocation();
      if (headers.#pairs === null) headers.#pairs = listPairs(headers.#list);
      return headers.#pairs;
    };
    pairIterable(Headers, 'Headers', pairsOf);
  }
}

// In place of those of `pairIterable`, whose iterators see changes.
const snapshots = {
  entries() {
    return new HeadersIterator(pairsOf(this), ENTRIES);
  },
  keys() {
    return new HeadersIterator(pairsOf(this), KEYS);
  },
  values() {
    return new HeadersIterator(pairsOf(this), VALUES);
  },
  forEach(callback, thisArg = undefined) {
    const pairs = pairsOf(this);
    if (typeof callback !== 'function') mismatch(method('Headers', 'forEach'), 0, 'function');
    for (let i = 0; i < pairs.length; i++) apply(callback, thisArg, [pairs[i][1], pairs[i][0], this]);
  },
};
for (const name of Reflect.ownKeys(snapshots)) {
  Object.defineProperty(Headers.prototype, name, { __proto__: null, value: snapshots[name] });
}
Object.defineProperty(Headers.prototype, Symbol.iterator, { __proto__: null, value: snapshots.entries });
decorate(Headers);
rt.expose('Headers', Headers);

rt.headers = Object.freeze({
  isHeaders, isToken, listAppend, listCopy, listFrom, listGet, listHas, listOf, listSet, listWithout, nameOf, valueOf,
  /** The public object of a list, which it owns from then on. */
  make: (list, immutable) => new Headers(INTERNAL, list, immutable),
});
