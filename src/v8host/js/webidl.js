//! Web IDL for the classes of this folder: conversions, errors of arguments, and class decoration.
//!
//! Publishes `rt.webidl`. Everything it needs of the language is taken once, here, before any code
//! of a user runs, so that a patched global changes no conversion.
//! Messages are workerd's: "Failed to execute 'get' on 'URLSearchParams': parameter 1 is not of
//! type 'USVString'.". `where` is always the part before the colon: see `method` and `constructor`.
//! Source: Web IDL Standard, sections 3.2 (types), 3.6 to 3.7 (interfaces, iterables).

const {
  ArrayBuffer, BigInt, DataView, Function, Number, Object, Reflect, SharedArrayBuffer, String, Symbol,
  TypeError, Uint8Array,
} = globalThis;
const { isView } = ArrayBuffer;
const { defineProperty, getOwnPropertyDescriptor, getPrototypeOf, create, freeze } = Object;
const { ownKeys, getOwnPropertyDescriptor: ownDescriptor } = Reflect;
const { asIntN, asUintN } = BigInt;
const { abs, floor, sign, trunc } = Math;
const { isFinite, isNaN } = Number;
const { MAX_SAFE_INTEGER } = Number;

/** `uncurry(f)(self, ...args)` is `f.call(self, ...args)`, whatever happens to `call` later. */
const uncurry = Function.prototype.bind.bind(Function.prototype.call);
const getter = (prototype, name) => uncurry(getOwnPropertyDescriptor(prototype, name).get);

const toWellFormed = uncurry(String.prototype.toWellFormed);
const charCodeAt = uncurry(String.prototype.charCodeAt);
const isPrototypeOf = uncurry(Object.prototype.isPrototypeOf);
const startsWith = uncurry(String.prototype.startsWith);
const TypedArrayPrototype = getPrototypeOf(Uint8Array.prototype);
const viewTag = getter(TypedArrayPrototype, Symbol.toStringTag);
const viewBuffer = getter(TypedArrayPrototype, 'buffer');
const viewOffset = getter(TypedArrayPrototype, 'byteOffset');
const viewLength = getter(TypedArrayPrototype, 'byteLength');
const dataBuffer = getter(DataView.prototype, 'buffer');
const dataOffset = getter(DataView.prototype, 'byteOffset');
const dataLength = getter(DataView.prototype, 'byteLength');
const bufferLength = getter(ArrayBuffer.prototype, 'byteLength');
const sharedLength = SharedArrayBuffer ? getter(SharedArrayBuffer.prototype, 'byteLength') : null;
const IteratorPrototype = getPrototypeOf(getPrototypeOf([][Symbol.iterator]()));

const method = (iface, name) => `Failed to execute '${name}' on '${iface}'`;
const constructor = (iface) => `Failed to construct '${iface}'`;

/** Throws what workerd throws when a member is called on an object that is not of its class. */
function illegalInvocation() {
  throw new TypeError('Illegal invocation: function called with incorrect `this` reference. See '
    + 'https://developers.cloudflare.com/workers/observability/errors/#illegal-invocation-errors for details.');
}

/** Throws for classes that scripts may not construct. */
function illegalConstructor() {
  throw new TypeError('Illegal constructor');
}

/** Throws that argument `index` (from 0) is not of `type`. */
function mismatch(where, index, type) {
  const parameter = startsWith(where, 'Failed to construct') ? 'constructor parameter' : 'parameter';
  throw new TypeError(`${where}: ${parameter} ${index + 1} is not of type '${type}'.`);
}

/** Checks that as many arguments came as `types` has names; `count` is `arguments.length`. */
function required(count, where, ...types) {
  if (count < types.length) mismatch(where, count, types[count]);
}

/** Whether `typeof` says object or function: what Web IDL calls an object. */
function isObject(value) {
  return (typeof value === 'object' && value !== null) || typeof value === 'function';
}

function isArrayBuffer(value) {
  try {
    bufferLength(value);
    return true;
  } catch {
    return false;
  }
}

function isSharedArrayBuffer(value) {
  if (sharedLength === null) return false;
  try {
    sharedLength(value);
    return true;
  } catch {
    return false;
  }
}

/** Whether the value is an ArrayBuffer, a SharedArrayBuffer or a view on one. */
function isBufferSource(value) {
  return isObject(value) && (isView(value) || isArrayBuffer(value) || isSharedArrayBuffer(value));
}

/** The bytes of a BufferSource as a Uint8Array on the same memory (nothing is copied). */
function bytesOf(source) {
  if (!isView(source)) return new Uint8Array(source);
  if (viewTag(source) === undefined) return new Uint8Array(dataBuffer(source), dataOffset(source), dataLength(source));
  return new Uint8Array(viewBuffer(source), viewOffset(source), viewLength(source));
}

// --- Conversions. Each takes the value and throws a TypeError; the caller keeps the argument order.

function toDOMString(value) {
  return typeof value === 'string' ? value : `${value}`;
}

function toUSVString(value) {
  return toWellFormed(typeof value === 'string' ? value : `${value}`);
}

function toByteString(value) {
  const string = toDOMString(value);
  for (let i = 0; i < string.length; i++) {
    if (charCodeAt(string, i) > 255) {
      throw new TypeError(`Cannot convert argument to a ByteString because the character at index ${i} `
        + `has a value of ${charCodeAt(string, i)} which is greater than 255.`);
    }
  }
  return string;
}

/** Ties go to the even neighbour, as `[Clamp]` wants. */
function roundHalfEven(x) {
  const low = floor(x);
  const rest = x - low;
  if (rest < 0.5) return low;
  if (rest > 0.5) return low + 1;
  return low % 2 === 0 ? low : low + 1;
}

const plusZero = (x) => (x === 0 ? 0 : x);

/**
 * Makes the conversion to an integer type. `mode` is undefined (wraps around), 'enforce' or 'clamp'.
 * 64-bit types have the bounds of a safe integer in the two modes, and wrap through BigInt else.
 */
function integer(bits, signed) {
  const wide = bits === 64;
  const top = wide ? MAX_SAFE_INTEGER : 2 ** (signed ? bits - 1 : bits) - 1;
  const bottom = signed ? (wide ? -MAX_SAFE_INTEGER : -(2 ** (bits - 1))) : 0;
  return (value, mode) => {
    let x = +value;
    if (mode === 'enforce') {
      if (!isFinite(x)) throw new TypeError('Value is not a finite number.');
      x = trunc(x);
      if (x < bottom || x > top) {
        throw new TypeError(`Value out of range. Must be between ${bottom} and ${top} (inclusive).`);
      }
      return plusZero(x);
    }
    if (mode === 'clamp') {
      if (isNaN(x)) return 0;
      return plusZero(roundHalfEven(x < bottom ? bottom : x > top ? top : x));
    }
    if (!isFinite(x)) return 0;
    x = plusZero(sign(x) * floor(abs(x)));
    if (x >= bottom && x <= top) return x;
    if (wide) return Number((signed ? asIntN : asUintN)(64, BigInt(x)));
    const modulus = 2 ** bits;
    x %= modulus;
    if (x < 0) x += modulus;
    return signed && x > top ? x - modulus : plusZero(x);
  };
}

function toDouble(value) {
  const x = +value;
  if (!isFinite(x)) throw new TypeError('The provided value is non-finite.');
  return x;
}

const convert = freeze({
  any: (value) => value,
  boolean: (value) => !!value,
  byte: integer(8, true),
  octet: integer(8, false),
  short: integer(16, true),
  unsignedShort: integer(16, false),
  long: integer(32, true),
  unsignedLong: integer(32, false),
  longLong: integer(64, true),
  unsignedLongLong: integer(64, false),
  double: toDouble,
  unrestrictedDouble: (value) => +value,
  DOMString: toDOMString,
  USVString: toUSVString,
  ByteString: toByteString,
});

/** Converts argument `index` to an enumeration; an unknown word is a TypeError that shows it. */
function enumeration(value, words, where, name) {
  const word = toDOMString(value);
  for (let i = 0; i < words.length; i++) if (words[i] === word) return word;
  throw new TypeError(`${where}: The provided value '${word}' is not a valid enum value of type ${name}.`);
}

/** An options argument: `undefined` and `null` give an empty one; what is no object is refused. */
function dictionary(value, where, index, name) {
  if (value === undefined || value === null) return create(null);
  if (!isObject(value)) mismatch(where, index, name);
  return value;
}

/** `sequence<T>` out of any iterable; `null` when the value has no iterator, for unions. */
function sequence(value, convertItem) {
  if (!isObject(value)) return null;
  const open = value[Symbol.iterator];
  if (open === undefined || open === null) return null;
  if (typeof open !== 'function') throw new TypeError('The value\'s Symbol.iterator is not a function.');
  const iterator = uncurry(open)(value);
  if (!isObject(iterator)) throw new TypeError('Result of the Symbol.iterator method is not an object.');
  const next = iterator.next;
  const list = [];
  for (;;) {
    const step = uncurry(next)(iterator);
    if (!isObject(step)) throw new TypeError(`Iterator result ${toDOMString(step)} is not an object.`);
    if (step.done) return list;
    append(list, convertItem(step.value));
  }
}

/** `record<K, V>` as a list of pairs, in property order; only own enumerable properties count. */
function record(value, convertKey, convertValue) {
  const list = [];
  const seen = create(null);
  const keys = ownKeys(value);
  for (let i = 0; i < keys.length; i++) {
    const descriptor = ownDescriptor(value, keys[i]);
    if (descriptor === undefined || !descriptor.enumerable) continue;
    const key = convertKey(keys[i]);
    const item = convertValue(value[keys[i]]);
    if (key in seen) list[seen[key]][1] = item;
    else {
      seen[key] = list.length;
      append(list, [key, item]);
    }
  }
  return list;
}

/** Adds to the end of an array of ours, past setters that a script may put on Array.prototype. */
function append(list, value) {
  defineProperty(list, list.length, { __proto__: null, value, writable: true, enumerable: true, configurable: true });
}

// --- Classes.

const interfaces = new Set();
const setAdd = uncurry(Set.prototype.add);
const setHas = uncurry(Set.prototype.has);

/** Whether this is the prototype of a class that was decorated. */
const isInterface = (prototype) => setHas(interfaces, prototype);

/**
 * Gives a class what Web IDL gives an interface: enumerable members on the prototype and on the
 * class itself, and `Symbol.toStringTag`. Private and symbol members stay as they are. The prototype
 * is marked as ours: `structuredClone` refuses its objects, `console` shows their attributes.
 */
function decorate(Class, tag = Class.name) {
  const enumerable = { __proto__: null, enumerable: true };
  for (const key of ownKeys(Class)) {
    if (typeof key === 'string' && key !== 'prototype' && key !== 'name' && key !== 'length') {
      defineProperty(Class, key, enumerable);
    }
  }
  for (const key of ownKeys(Class.prototype)) {
    if (typeof key === 'string' && key !== 'constructor') defineProperty(Class.prototype, key, enumerable);
  }
  defineProperty(Class.prototype, Symbol.toStringTag, { __proto__: null, value: tag, configurable: true });
  setAdd(interfaces, Class.prototype);
  ops.mark_interface(Class.prototype, tag);
  return Class;
}

/** Interface constants: on the class and on its prototype, read only. */
function constants(Class, values) {
  for (const name of ownKeys(values)) {
    const descriptor = { __proto__: null, value: values[name], enumerable: true };
    defineProperty(Class, name, descriptor);
    defineProperty(Class.prototype, name, descriptor);
  }
}

/** Sets `length` of a function or class whose parameters JavaScript would count otherwise. */
function arity(callable, length) {
  defineProperty(callable, 'length', { __proto__: null, value: length, configurable: true });
  return callable;
}

/**
 * Makes a class a pair iterable: `entries`, `keys`, `values`, `forEach` and `Symbol.iterator`.
 * `pairs(self)` returns the list of `[key, value]` that stands now, and throws on a wrong `this`;
 * it is asked again before each step, so that an iterator sees changes, as the standard wants.
 * `entry`, when given, makes what is handed out of one stored pair.
 */
function pairIterable(Class, tag, pairs, entry = (pair) => pair) {
  append(iterables, { __proto__: null, prototype: Class.prototype, pairs, entry });
  class PairIterator {
    #owner;
    #kind;
    #index = 0;

    constructor(owner, kind) {
      this.#owner = owner;
      this.#kind = kind;
    }

    next() {
      if (!isObject(this) || !(#owner in this)) illegalInvocation();
      const list = pairs(this.#owner);
      if (this.#index >= list.length) return { value: undefined, done: true };
      const pair = entry(list[this.#index++]);
      const value = this.#kind === 'entries' ? [pair[0], pair[1]] : this.#kind === 'keys' ? pair[0] : pair[1];
      return { value, done: false };
    }
  }
  Object.setPrototypeOf(PairIterator.prototype, IteratorPrototype);
  delete PairIterator.prototype.constructor;
  decorate(PairIterator, `${tag} Iterator`);

  const members = {
    entries() {
      pairs(this);
      return new PairIterator(this, 'entries');
    },
    keys() {
      pairs(this);
      return new PairIterator(this, 'keys');
    },
    values() {
      pairs(this);
      return new PairIterator(this, 'values');
    },
    forEach(callback, thisArg = undefined) {
      let list = pairs(this);
      if (typeof callback !== 'function') mismatch(method(tag, 'forEach'), 0, 'function');
      const call = uncurry(callback);
      for (let i = 0; i < list.length; i++) {
        const pair = entry(list[i]);
        call(thisArg, pair[1], pair[0], this);
        list = pairs(this);
      }
    },
  };
  for (const name of ownKeys(members)) {
    defineProperty(Class.prototype, name, {
      __proto__: null, value: members[name], writable: true, enumerable: true, configurable: true,
    });
  }
  defineProperty(Class.prototype, Symbol.iterator, {
    __proto__: null, value: members.entries, writable: true, configurable: true,
  });
}

const iterables = [];

/** The pairs of an object of a pair iterable class, for `console`; null for other objects. */
function pairsOf(object) {
  for (let i = 0; i < iterables.length; i++) {
    const { prototype, pairs, entry } = iterables[i];
    if (!isPrototypeOf(prototype, object)) continue;
    try {
      const stored = pairs(object);
      const list = [];
      for (let j = 0; j < stored.length; j++) append(list, entry(stored[j]));
      return list;
    } catch {
      return null;
    }
  }
  return null;
}

rt.webidl = freeze({
  append, arity, bytesOf, constants, constructor, convert, decorate, dictionary, enumeration, getter, illegalConstructor,
  illegalInvocation, isArrayBuffer, isBufferSource, isInterface, isObject, isSharedArrayBuffer, method, mismatch, pairIterable,
  pairsOf, record, required, sequence, uncurry,
});
