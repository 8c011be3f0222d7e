//! TransformStream, and the byte streams of Cloudflare: IdentityTransformStream, FixedLengthStream.
//!
//! Invariant: `backpressure` is true exactly when a write has to wait for a pull of the readable
//! side; `change` is resolved at each change of it.
//! Source: Streams Standard, section 6; the Workers documentation for the byte streams.

const { bytesOf, decorate, getter, illegalConstructor, isBufferSource, isObject } = rt.webidl;
const { Deferred, promiseCall, rejectedWith, resolvedWith, then } = rt.promises;
const {
  DefaultController, ERRORED, Readable, WRITABLE_ERRORED, WRITABLE_ERRORING, Writable, WritableController, begin, beginWritable,
  callback, readableBytes, strategyOf, writableOf,
} = rt.streams;
const { INTERNAL } = rt;
const { Number, Object, RangeError, Reflect, TypeError, Uint8Array } = globalThis;
const { isNaN, isSafeInteger } = Number;
const { trunc } = globalThis.Math;
const { apply } = Reflect;
const bufferOf = getter(Object.getPrototypeOf(Uint8Array.prototype), 'buffer');

/** The state of a TransformStream and of its controller. */
class Transform {
  constructor() {
    this.readable = null;
    this.writable = null;
    this.backpressure = false;
    this.change = null;
    this.finish = null;
    this.transform = nothing;
    this.flush = nothing;
    this.cancel = nothing;
    this.object = null;
  }

  setBackpressure(backpressure) {
    if (this.change !== null) this.change.resolve(undefined);
    this.change = new Deferred();
    this.backpressure = backpressure;
  }

  forget() {
    this.transform = nothing;
    this.flush = nothing;
    this.cancel = nothing;
  }

  enqueue(chunk) {
    const { controller } = this.readable;
    if (!controller.open()) throw new TypeError('Unable to enqueue: the readable side is closed or errored.');
    try {
      controller.enqueue(chunk);
    } catch (error) {
      this.errorWritable(error);
      throw this.readable.error;
    }
    const backpressure = !controller.shouldPull();
    if (backpressure !== this.backpressure) this.setBackpressure(true);
  }

  fail(reason) {
    this.readable.controller.fail(reason);
    this.errorWritable(reason);
  }

  errorWritable(reason) {
    this.forget();
    this.writable.controller.failIfNeeded(reason);
    this.unblock();
  }

  unblock() {
    if (this.backpressure) this.setBackpressure(false);
  }

  terminate() {
    const { controller } = this.readable;
    if (controller.open()) controller.close();
    this.errorWritable(new TypeError('The transform stream has been terminated'));
  }

  run(chunk) {
    return then(promiseOf(this.transform(chunk)), undefined, (reason) => {
      this.fail(reason);
      throw reason;
    });
  }

  write(chunk) {
    if (!this.backpressure) return this.run(chunk);
    return then(this.change.promise, () => {
      if (this.writable.state === WRITABLE_ERRORING) throw this.writable.error;
      return this.run(chunk);
    });
  }

  abort(reason) {
    if (this.finish !== null) return this.finish.promise;
    this.finish = new Deferred();
    const { readable } = this;
    const result = promiseOf(this.cancel(reason));
    this.forget();
    then(result, () => {
      if (readable.state === ERRORED) this.finish.reject(readable.error);
      else {
        readable.controller.fail(reason);
        this.finish.resolve(undefined);
      }
    }, (error) => {
      readable.controller.fail(error);
      this.finish.reject(error);
    });
    return this.finish.promise;
  }

  close() {
    if (this.finish !== null) return this.finish.promise;
    this.finish = new Deferred();
    const { readable } = this;
    const result = promiseOf(this.flush());
    this.forget();
    then(result, () => {
      if (readable.state === ERRORED) this.finish.reject(readable.error);
      else {
        if (readable.controller.open()) readable.controller.close();
        this.finish.resolve(undefined);
      }
    }, (error) => {
      readable.controller.fail(error);
      this.finish.reject(error);
    });
    return this.finish.promise;
  }

  cancelReadable(reason) {
    if (this.finish !== null) return this.finish.promise;
    this.finish = new Deferred();
    const { writable } = this;
    const result = promiseOf(this.cancel(reason));
    this.forget();
    then(result, () => {
      if (writable.state === WRITABLE_ERRORED) this.finish.reject(writable.error);
      else {
        writable.controller.failIfNeeded(reason);
        this.unblock();
        this.finish.resolve(undefined);
      }
    }, (error) => {
      writable.controller.failIfNeeded(error);
      this.unblock();
      this.finish.reject(error);
    });
    return this.finish.promise;
  }

  pull() {
    this.setBackpressure(false);
    return this.change.promise;
  }
}

function nothing() {
  return undefined;
}

/** `undefined` of our own callbacks, or the promise of a script's. */
function promiseOf(result) {
  return result === undefined ? resolvedWith(undefined) : result;
}

class TransformStreamDefaultController {
  #s;

  constructor(key, state) {
    if (key !== INTERNAL) illegalConstructor();
    this.#s = state;
  }

  get desiredSize() {
    return this.#s.readable.controller.desired();
  }

  enqueue(chunk = undefined) {
    this.#s.enqueue(chunk);
  }

  error(reason = undefined) {
    this.#s.fail(reason);
  }

  terminate() {
    this.#s.terminate();
  }
}
decorate(TransformStreamDefaultController);

class TransformStream {
  #s;

  constructor(transformer = undefined, writableStrategy = undefined, readableStrategy = undefined) {
    const given = transformer === undefined || transformer === null ? {} : transformer;
    if (!isObject(given)) throw new TypeError('Failed to construct \'TransformStream\': the transformer is not an object.');
    const writable = strategyOf(writableStrategy, 1);
    const readable = strategyOf(readableStrategy, 0);
    const cancel = callback(given, 'cancel', 'Transformer');
    const flush = callback(given, 'flush', 'Transformer');
    if (given.readableType !== undefined) throw new TypeError('transformer.readableType must be undefined.');
    const start = callback(given, 'start', 'Transformer');
    const transform = callback(given, 'transform', 'Transformer');
    if (given.writableType !== undefined) throw new TypeError('transformer.writableType must be undefined.');
    const state = new Transform();
    this.#s = state;
    const started = new Deferred();
    connect(state, started, writable, readable);
    const object = new TransformStreamDefaultController(INTERNAL, state);
    state.object = object;
    if (transform === undefined) state.transform = (chunk) => guard(state, chunk);
    else state.transform = (chunk) => promiseCall(transform, given, [chunk, object]);
    if (flush !== undefined) state.flush = () => promiseCall(flush, given, [object]);
    if (cancel !== undefined) state.cancel = (reason) => promiseCall(cancel, given, [reason]);
    started.resolve(start === undefined ? undefined : apply(start, given, [object]));
  }

  get readable() {
    return rt.wrapReadable(this.#s.readable);
  }

  get writable() {
    return rt.wrapWritable(this.#s.writable);
  }
}
decorate(TransformStream);

/** The identity transform of a transformer without `transform`. */
function guard(state, chunk) {
  try {
    state.enqueue(chunk);
  } catch (error) {
    return rejectedWith(error);
  }
  return undefined;
}

/** Makes the two sides of a transform. `started` holds both back until it is resolved. */
function connect(state, started, writableStrategy, readableStrategy) {
  const writable = new Writable();
  const sink = new WritableController(writable, writableStrategy.mark, writableStrategy.size);
  sink.write = (chunk) => state.write(chunk);
  sink.close = () => state.close();
  sink.abort = (reason) => state.abort(reason);
  const readable = new Readable();
  const source = new DefaultController(readable, readableStrategy.mark, readableStrategy.size);
  source.pull = () => state.pull();
  source.cancel = (reason) => state.cancelReadable(reason);
  state.writable = writable;
  state.readable = readable;
  state.setBackpressure(true);
  beginWritable(sink, started.promise);
  begin(source, started.promise);
}

/**
 * A transform of ours, for encoders and compressors: `transform(chunk, state)` and `flush(state)`
 * return nothing or a promise, may throw, and hand chunks on with `state.enqueue(chunk)`.
 * Returns the state, whose `readable` and `writable` are `rt.wrapReadable`'s and `rt.wrapWritable`'s.
 */
function transformOf(transform, flush, writableMark = 1, readableMark = 0) {
  const state = new Transform();
  const started = new Deferred();
  connect(state, started, { mark: writableMark, size: undefined }, { mark: readableMark, size: undefined });
  const call = (fn, ...args) => {
    try {
      return fn(...args);
    } catch (error) {
      return rejectedWith(error);
    }
  };
  state.transform = (chunk) => call(transform, chunk, state);
  state.flush = flush === undefined ? nothing : () => call(flush, state);
  started.resolve(undefined);
  return state;
}

// --- Byte streams without a transformer: a write ends when its bytes have been read.

const NOT_BYTES = 'This TransformStream is being used as a byte stream, but received an object of non-ArrayBuffer/ArrayBufferView '
  + 'type on its writable side.';

/** Counts the bytes of a FixedLengthStream; `-1` counts nothing. */
class Identity {
  constructor(length, mark) {
    this.left = length;
    this.waiting = null;
    this.readable = readableBytes(0, nothing, (reason) => this.cancelled(reason));
    this.readable.controller.emptied = () => this.settle();
    this.readable.length = length;
    this.writable = writableOf(mark ?? 1, (chunk) => this.write(chunk), () => this.close(), (reason) => this.abort(reason));
    // A mark that a script gives counts bytes, as on Cloudflare.
    if (mark !== undefined) this.writable.controller.size = (chunk) => (isBufferSource(chunk) ? bytesOf(chunk).byteLength : 1);
  }

  write(chunk) {
    // A string is written as UTF-8, as on Cloudflare.
    const bytes = typeof chunk === 'string' ? rt.encoding.encode(chunk) : chunk;
    if (!isBufferSource(bytes)) return this.refuse(new TypeError(NOT_BYTES));
    const { controller } = this.readable;
    // A copy: the writer may use its buffer again before the bytes are read.
    const source = bytesOf(bytes);
    const { length } = source;
    if (length === 0) return undefined;
    if (this.left >= 0) {
      if (length > this.left) return this.refuse(new TypeError('Attempt to write too many bytes through a FixedLengthStream.'));
      this.left -= length;
    }
    if (!controller.open()) return rejectedWith(new TypeError('The readable side of the stream is closed.'));
    const copy = new Uint8Array(source);
    const wanted = this.readable.reader !== null && this.readable.reader.requests.length > 0;
    controller.enqueue(bufferOf(copy), 0, length);
    if (wanted && controller.total === 0) return undefined;
    this.waiting = new Deferred();
    return this.waiting.promise;
  }

  refuse(error) {
    this.readable.controller.fail(error);
    return rejectedWith(error);
  }

  /** What was written has been read. */
  settle() {
    const { waiting } = this;
    this.waiting = null;
    if (waiting !== null) waiting.resolve(undefined);
  }

  close() {
    if (this.left > 0) return this.refuse(new TypeError('FixedLengthStream did not see all expected bytes before close().'));
    this.readable.controller.finish();
    return undefined;
  }

  abort(reason) {
    this.readable.controller.fail(reason);
    return undefined;
  }

  cancelled(reason) {
    this.writable.controller.failIfNeeded(reason);
    const { waiting } = this;
    this.waiting = null;
    if (waiting !== null) waiting.reject(reason);
    return undefined;
  }
}

/** `{highWaterMark}` of the byte streams, in bytes: how much a writer may be ahead. */
function markOf(options) {
  if (options === undefined || options === null) return undefined;
  const mark = options.highWaterMark;
  return mark === undefined ? undefined : strategyOf({ highWaterMark: mark }, 1).mark;
}

class IdentityTransformStream {
  #s;

  constructor(options = undefined) {
    this.#s = options === INTERNAL ? arguments[1] : new Identity(-1, markOf(options));
  }

  get readable() {
    return rt.wrapReadable(this.#s.readable);
  }

  get writable() {
    return rt.wrapWritable(this.#s.writable);
  }
}
decorate(IdentityTransformStream);

class FixedLengthStream extends IdentityTransformStream {
  constructor(expectedLength, options = undefined) {
    if (expectedLength === undefined) throw new TypeError('Failed to construct \'FixedLengthStream\': constructor parameter 1 is not of type \'bigint\'.');
    const given = Number(expectedLength);
    if (isNaN(given)) throw new TypeError('The value cannot be converted because it is not an integer.');
    if (given < 0) throw new TypeError('The value cannot be converted because it is negative and this API expects a positive bigint.');
    const length = trunc(given);
    if (!isSafeInteger(length)) throw new TypeError('FixedLengthStream requires an integer expected length less than 2^53.');
    super(INTERNAL, new Identity(length, markOf(options)));
  }
}
decorate(FixedLengthStream);

rt.expose('TransformStream', TransformStream);
rt.expose('TransformStreamDefaultController', TransformStreamDefaultController);
rt.expose('IdentityTransformStream', IdentityTransformStream);
rt.expose('FixedLengthStream', FixedLengthStream);
rt.transformOf = transformOf;
