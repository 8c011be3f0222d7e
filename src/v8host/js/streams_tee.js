//! Ways out of and into readable streams: `tee`, `ReadableStream.from`, asynchronous iteration.
//!
//! Publishes `tee`, `fromIterable` and `iterate` on `rt.streams`.
//! Source: Streams Standard, sections 4.9.1 (tee), 4.2.5 (asynchronous iteration).

const { getter, illegalInvocation, isObject, uncurry } = rt.webidl;
const { Deferred, promiseCall, rejectedWith, resolvedWith, then } = rt.promises;
const {
  DefaultController, ByteController, Readable, Reader, begin, cancelStream, closedOf, readInto, readByob, readableDefault,
  releaseReader,
} = rt.streams;
const { Object, Promise, Symbol, TypeError, Uint8Array } = globalThis;
const TypedArray = Object.getPrototypeOf(Uint8Array);
const sliceBytes = uncurry(TypedArray.prototype.slice);
const bufferOf = getter(TypedArray.prototype, 'buffer');
const offsetOf = getter(TypedArray.prototype, 'byteOffset');
const lengthOf = getter(TypedArray.prototype, 'byteLength');

/** Two branches of one stream, and the cancellation that only both together ask for. */
class Tee {
  constructor(stream) {
    this.stream = stream;
    this.reader = new Reader(stream, false);
    this.reading = false;
    this.canceled = [false, false];
    this.reasons = [undefined, undefined];
    this.again = [false, false];
    this.branches = [null, null];
    this.cancelled = new Deferred();
  }

  get first() {
    return this.branches[0];
  }

  get second() {
    return this.branches[1];
  }

  cancel(index, reason) {
    this.canceled[index] = true;
    this.reasons[index] = reason;
    if (this.canceled[1 - index]) this.cancelled.resolve(cancelStream(this.stream, [this.reasons[0], this.reasons[1]]));
    return this.cancelled.promise;
  }

  /** A reader whose stream errors errors both branches, while it is the one in use. */
  watch() {
    const { reader } = this;
    then(closedOf(reader), undefined, (reason) => {
      if (reader !== this.reader) return;
      this.branches[0].controller.fail(reason);
      this.branches[1].controller.fail(reason);
      this.settle();
    });
  }

  settle() {
    if (!this.canceled[0] || !this.canceled[1]) this.cancelled.resolve(undefined);
  }

  /** A chunk has been handed out: pulls that came meanwhile. */
  next() {
    this.reading = false;
    if (this.again[0]) this.pull(0);
    else if (this.again[1]) this.pull(1);
  }

  close() {
    this.reading = false;
    for (let i = 0; i < 2; i++) if (!this.canceled[i] && this.branches[i].controller.open()) this.branches[i].controller.close();
  }
}

class DefaultTee extends Tee {
  pull(index) {
    if (this.reading) {
      this.again[index] = true;
      return undefined;
    }
    this.reading = true;
    readInto(this.reader, {
      // In a microtask: an error of the stream that is on its way must come first.
      chunk: (value) => {
        then(resolvedWith(undefined), () => {
          this.again[0] = this.again[1] = false;
          if (!this.canceled[0]) this.branches[0].controller.enqueue(value);
          if (!this.canceled[1]) this.branches[1].controller.enqueue(value);
          this.next();
        });
      },
      close: () => {
        this.close();
        this.settle();
      },
      error: () => {
        this.reading = false;
      },
    });
    return undefined;
  }
}

const copyOf = (chunk) => sliceBytes(new Uint8Array(bufferOf(chunk), offsetOf(chunk), lengthOf(chunk)));

class ByteTee extends Tee {
  pull(index) {
    if (this.reading) {
      this.again[index] = true;
      return undefined;
    }
    this.reading = true;
    const { controller } = this.branches[index];
    if (controller.currentRequest() === null) this.readDefault();
    else this.readView(controller.request.view, index);
    return undefined;
  }

  use(byob) {
    if (this.reader.byob === byob) return;
    const old = this.reader;
    this.reader = null;
    releaseReader(old);
    this.reader = new Reader(this.stream, byob);
    this.watch();
  }

  give(index, chunk) {
    this.branches[index].controller.enqueue(bufferOf(chunk), offsetOf(chunk), lengthOf(chunk));
  }

  readDefault() {
    this.use(false);
    readInto(this.reader, {
      chunk: (chunk) => {
        then(resolvedWith(undefined), () => {
          this.again[0] = this.again[1] = false;
          const both = !this.canceled[0] && !this.canceled[1];
          const copy = both ? copyOf(chunk) : chunk;
          if (!this.canceled[0]) this.give(0, chunk);
          if (!this.canceled[1]) this.give(1, copy);
          this.next();
        });
      },
      close: () => {
        this.close();
        for (let i = 0; i < 2; i++) {
          const { controller } = this.branches[i];
          if (controller.pending.length > 0) controller.respondView(controller.pending.peek().buffer, 0);
        }
        this.settle();
      },
      error: () => {
        this.reading = false;
      },
    });
  }

  readView(view, index) {
    this.use(true);
    const own = this.branches[index].controller;
    const other = this.branches[1 - index].controller;
    readByob(this.stream, view, 1, {
      chunk: (chunk) => {
        then(resolvedWith(undefined), () => {
          this.again[0] = this.again[1] = false;
          const copy = this.canceled[1 - index] ? null : copyOf(chunk);
          if (!this.canceled[index]) own.respondView(bufferOf(chunk), lengthOf(chunk));
          if (copy !== null) this.give(1 - index, copy);
          this.next();
        });
      },
      close: (chunk) => {
        this.close();
        if (chunk !== undefined) {
          if (!this.canceled[index]) own.respondView(bufferOf(chunk), 0);
          if (!this.canceled[1 - index] && other.pending.length > 0) other.respondView(other.pending.peek().buffer, 0);
        }
        this.settle();
      },
      error: () => {
        this.reading = false;
      },
    });
  }
}

/** Splits a stream. Returns an object with the states `first` and `second`. */
function tee(stream) {
  const bytes = stream.controller.byte;
  const split = bytes ? new ByteTee(stream) : new DefaultTee(stream);
  for (let i = 0; i < 2; i++) {
    const branch = new Readable();
    const controller = bytes ? new ByteController(branch, 0) : new DefaultController(branch, 1, undefined);
    controller.pull = () => split.pull(i);
    controller.cancel = (reason) => split.cancel(i, reason);
    branch.length = stream.length;
    split.branches[i] = branch;
  }
  begin(split.first.controller, undefined);
  begin(split.second.controller, undefined);
  split.watch();
  return split;
}

// --- ReadableStream.from.

const NOT_ITERABLE = 'Failed to execute \'from\' on \'ReadableStream\': parameter 1 is not of type \'AsyncGenerator\'.';

/** The state of a stream that reads an iterable, asynchronous or not. */
function fromIterable(iterable) {
  if (iterable === undefined || iterable === null) throw new TypeError(NOT_ITERABLE);
  let open = iterable[Symbol.asyncIterator];
  const sync = open === undefined || open === null;
  if (sync) open = iterable[Symbol.iterator];
  if (typeof open !== 'function') throw new TypeError(NOT_ITERABLE);
  const iterator = uncurry(open)(iterable);
  if (!isObject(iterator)) throw new TypeError('The iterator of the iterable is not an object.');
  const { next } = iterator;
  const take = (step) => {
    if (!isObject(step)) throw new TypeError('The iterator gave a result that is not an object.');
    if (!sync) return step;
    const { done } = step;
    return then(resolvedWith(step.value), (value) => ({ __proto__: null, done, value }));
  };
  const stream = readableDefault(0, () => then(then(promiseCall(next, iterator, []), take), (step) => {
    if (step.done) stream.controller.close();
    else stream.controller.enqueue(step.value);
  }), (reason) => {
    let end;
    try {
      end = iterator.return;
      if (end === undefined || end === null) return resolvedWith(undefined);
      if (typeof end !== 'function') throw new TypeError('The iterator\'s return is not a function.');
    } catch (error) {
      return rejectedWith(error);
    }
    return then(promiseCall(end, iterator, [reason]), (result) => {
      if (!isObject(result)) throw new TypeError('The iterator\'s return() gave a result that is not an object.');
    });
  });
  return stream;
}

// --- Asynchronous iteration.

class StreamIterator {
  #reader;
  #preventCancel;
  #ongoing = null;
  #finished = false;

  constructor(reader, preventCancel) {
    this.#reader = reader;
    this.#preventCancel = preventCancel;
  }

  next() {
    try {
      if (!(#reader in this)) illegalInvocation();
    } catch (error) {
      return rejectedWith(error);
    }
    return this.#chain(() => this.#read());
  }

  return(value = undefined) {
    try {
      if (!(#reader in this)) illegalInvocation();
    } catch (error) {
      return rejectedWith(error);
    }
    return this.#chain(() => this.#leave(value));
  }

  /** One step at a time: a step that is asked for early waits for the one before. */
  #chain(step) {
    this.#ongoing = this.#ongoing === null ? step() : then(this.#ongoing, step, step);
    return this.#ongoing;
  }

  #read() {
    if (this.#finished) return resolvedWith({ value: undefined, done: true });
    const reader = this.#reader;
    return new Promise((resolve, reject) => {
      readInto(reader, {
        chunk: (value) => resolve({ value, done: false }),
        close: () => {
          this.#finished = true;
          releaseReader(reader);
          resolve({ value: undefined, done: true });
        },
        error: (reason) => {
          this.#finished = true;
          releaseReader(reader);
          reject(reason);
        },
      });
    });
  }

  #leave(value) {
    if (this.#finished) return resolvedWith({ value, done: true });
    this.#finished = true;
    const reader = this.#reader;
    const done = this.#preventCancel ? resolvedWith(undefined) : cancelStream(reader.stream, value);
    releaseReader(reader);
    return then(done, () => ({ value, done: true }));
  }
}
Object.setPrototypeOf(StreamIterator.prototype, Object.getPrototypeOf(Object.getPrototypeOf(async function* () {}.prototype)));
delete StreamIterator.prototype.constructor;
rt.webidl.decorate(StreamIterator, 'ReadableStream AsyncIterator');

Object.assign(rt.streams, { fromIterable, iterate: (reader, preventCancel) => new StreamIterator(reader, preventCancel), tee });
