//! What the stream files share: promises that cannot be patched, a queue, and queuing strategies.
//!
//! Publishes `rt.streams`, a bag of internals which the other stream files fill. A stream is two
//! objects: a state (`Readable`, `Writable`: plain fields, all algorithms work on it) and, when a
//! script can see it, a public wrapper with one private field. So our own pipes and bodies never
//! go through anything that a script may have changed, and need no wrapper.
//! Source: Streams Standard, sections 5 to 8.

const { isObject, uncurry } = rt.webidl;
const { Map, Object, Promise, RangeError, Reflect, TypeError } = globalThis;
const { apply } = Reflect;
const { freeze, setPrototypeOf, getOwnPropertyNames, defineProperty } = Object;
const { isNaN } = Number;
const then = uncurry(Promise.prototype.then);
const resolvedWith = Promise.resolve.bind(Promise);
const rejectedWith = Promise.reject.bind(Promise);

/** A Map whose methods are its own: a script that patches `Map.prototype` does not reach it. */
class SafeMap extends Map {
  constructor() {
    super();
  }
}
for (const name of getOwnPropertyNames(Map.prototype)) {
  if (name === 'constructor' || name === 'size') continue;
  defineProperty(SafeMap.prototype, name, { __proto__: null, value: Map.prototype[name] });
}
setPrototypeOf(SafeMap.prototype, null);

function noop() {}

/** Keeps a rejection from being reported as unhandled. */
function markHandled(promise) {
  then(promise, undefined, noop);
}

/** A promise with its two ends. */
class Deferred {
  constructor() {
    this.promise = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}

/** First in, first out, amortised O(1): an array with a head that is cut off now and then. */
class Queue {
  constructor() {
    this.items = [];
    this.head = 0;
  }

  get length() {
    return this.items.length - this.head;
  }

  push(item) {
    this.items[this.items.length] = item;
  }

  peek() {
    return this.items[this.head];
  }

  shift() {
    const item = this.items[this.head];
    this.items[this.head++] = undefined;
    if (this.head === this.items.length) {
      this.items.length = 0;
      this.head = 0;
    } else if (this.head > 1024 && this.head * 2 > this.items.length) {
      const rest = [];
      for (let i = this.head; i < this.items.length; i++) rest[rest.length] = this.items[i];
      this.items = rest;
      this.head = 0;
    }
    return item;
  }

  clear() {
    this.items = [];
    this.head = 0;
  }
}
setPrototypeOf(Queue.prototype, null);

/** Proves to our constructors that the caller is one of ours. */
const INTERNAL = freeze({ __proto__: null });

/** Reads a callback out of a dictionary; `undefined` when it is not there. */
function callback(object, name, what) {
  const value = object[name];
  if (value === undefined) return undefined;
  if (typeof value !== 'function') throw new TypeError(`Incorrect type for the '${name}' field on '${what}': the provided value is not of type 'function'.`);
  return value;
}

/** Calls what a script gave us; a throw becomes a rejection, any value a promise. */
function promiseCall(fn, self, args) {
  try {
    return resolvedWith(apply(fn, self, args));
  } catch (error) {
    return rejectedWith(error);
  }
}

// --- Queuing strategies.

const NEGATIVE = 'The value cannot be converted because it is negative and this API expects a positive bigint.';

/** Reads `{highWaterMark, size}`: checks the mark, leaves `size` callable. */
function strategyOf(strategy, fallback) {
  if (strategy === undefined || strategy === null) return { mark: fallback, size: undefined };
  if (!isObject(strategy)) throw new TypeError('The queuing strategy is not an object.');
  const given = strategy.highWaterMark;
  const mark = given === undefined ? fallback : +given;
  const size = callback(strategy, 'size', 'StreamQueuingStrategy');
  if (isNaN(mark)) throw new TypeError('The value cannot be converted because it is not an integer.');
  if (given !== undefined && mark < 0) throw new TypeError(NEGATIVE);
  return { mark, size: size === undefined ? undefined : (chunk) => +apply(size, undefined, [chunk]) };
}

/** Throws unless `size` may be the size of a chunk in a queue. */
function checkSize(size) {
  if (!(size >= 0) || size === Infinity) {
    throw new RangeError('The size of a chunk must be a finite, non-negative number.');
  }
}

function markOf(init, name) {
  if (!isObject(init)) throw new TypeError(`Failed to construct '${name}': constructor parameter 1 is not of type 'QueuingStrategyInit'.`);
  const mark = init.highWaterMark;
  return mark === undefined ? undefined : +mark;
}

// Arrow functions have no prototype and cannot be constructed, which is what the standard wants.
const byteLengthSize = { size: (chunk) => chunk.byteLength }.size;
const countSize = { size: () => 1 }.size;

class ByteLengthQueuingStrategy {
  #mark;

  constructor(init) {
    this.#mark = markOf(init, 'ByteLengthQueuingStrategy');
  }

  get highWaterMark() {
    return this.#mark;
  }

  get size() {
    this.#mark; // The brand: throws on a foreign `this`.
    return byteLengthSize;
  }
}

class CountQueuingStrategy {
  #mark;

  constructor(init) {
    this.#mark = markOf(init, 'CountQueuingStrategy');
  }

  get highWaterMark() {
    return this.#mark;
  }

  get size() {
    this.#mark; // The brand: throws on a foreign `this`.
    return countSize;
  }
}
rt.webidl.decorate(ByteLengthQueuingStrategy);
rt.webidl.decorate(CountQueuingStrategy);
rt.expose('ByteLengthQueuingStrategy', ByteLengthQueuingStrategy);
rt.expose('CountQueuingStrategy', CountQueuingStrategy);

rt.SafeMap = SafeMap;
rt.INTERNAL = INTERNAL;
rt.promises = freeze({ Deferred, markHandled, noop, promiseCall, rejectedWith, resolvedWith, then });
rt.streams = { Queue, callback, checkSize, strategyOf };
