//! ReadableStream with its default controller and default reader; states of all readable streams.
//!
//! Invariant: `reader.stream.reader === reader` while a reader holds its stream; a request in
//! `reader.requests` implies that the stream is readable and its queue is empty.
//! A read request is an object with `chunk(value)`, `close()` and `error(reason)`, called once.
//! `pull` of a controller returns `undefined` when it is through at once (our own sources), or a
//! promise. `closed` promises are made when somebody asks for them.
//! Source: Streams Standard, section 4.

const { decorate, illegalConstructor, illegalInvocation, isObject } = rt.webidl;
const { Deferred, markHandled, promiseCall, rejectedWith, resolvedWith, then } = rt.promises;
const { Queue, callback, checkSize, strategyOf } = rt.streams;
const { INTERNAL } = rt;
const { Object, Promise, Reflect, Symbol, TypeError } = globalThis;
const { apply } = Reflect;

const READABLE = 0;
const CLOSED = 1;
const ERRORED = 2;

const LOCKED = 'This ReadableStream is currently locked to a reader.';
const RELEASED = 'This ReadableStream reader has been released.';

/** The state of a ReadableStream. */
class Readable {
  constructor() {
    this.state = READABLE;
    this.error = undefined;
    this.disturbed = false;
    this.reader = null;
    this.controller = null;
    /** Where an untouched body comes from (see body.js); null for streams of scripts. */
    this.source = null;
    /** Bytes that will come, when that is known before; else -1. */
    this.length = -1;
    /** The public wrapper, once there is one. */
    this.object = null;
  }
}

/** The state of a reader of either kind. */
class Reader {
  constructor(stream, byob) {
    if (stream.reader !== null) throw new TypeError(LOCKED);
    this.stream = stream;
    this.byob = byob;
    this.requests = new Queue();
    this.closed = null;
    stream.reader = this;
  }
}

/** A read request that settles a promise with `{value, done}`. */
class PromiseRequest {
  constructor() {
    this.promise = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  chunk(value) {
    this.resolve({ value, done: false });
  }

  close(value) {
    this.resolve({ value, done: true });
  }

  error(reason) {
    this.reject(reason);
  }
}

// --- Streams.

function closeStream(stream) {
  stream.state = CLOSED;
  const reader = stream.reader;
  if (reader === null) return;
  if (reader.closed !== null) reader.closed.resolve(undefined);
  if (reader.byob) return;
  const requests = reader.requests;
  while (requests.length > 0) requests.shift().close(undefined);
}

function errorStream(stream, reason) {
  stream.state = ERRORED;
  stream.error = reason;
  const reader = stream.reader;
  if (reader === null) return;
  if (reader.closed !== null) {
    markHandled(reader.closed.promise);
    reader.closed.reject(reason);
  }
  failRequests(reader, reason);
}

function failRequests(reader, reason) {
  const requests = reader.requests;
  reader.requests = new Queue();
  while (requests.length > 0) requests.shift().error(reason);
}

/** Returns a promise of `undefined`. */
function cancelStream(stream, reason) {
  stream.disturbed = true;
  if (stream.state === CLOSED) return resolvedWith(undefined);
  if (stream.state === ERRORED) return rejectedWith(stream.error);
  closeStream(stream);
  const reader = stream.reader;
  if (reader !== null && reader.byob) {
    const requests = reader.requests;
    reader.requests = new Queue();
    while (requests.length > 0) requests.shift().close(undefined);
  }
  return then(stream.controller.cancelSteps(reason), () => undefined);
}

// --- Readers.

function readInto(reader, request) {
  const stream = reader.stream;
  stream.disturbed = true;
  if (stream.state === READABLE) stream.controller.pullSteps(request);
  else if (stream.state === CLOSED) request.close(undefined);
  else request.error(stream.error);
}

function releaseReader(reader) {
  const stream = reader.stream;
  if (stream === null) return;
  const reason = new TypeError(RELEASED);
  if (reader.closed !== null) {
    if (stream.state === READABLE) reader.closed.reject(reason);
    else reader.closed = rejectedDeferred(reason);
    markHandled(reader.closed.promise);
  }
  stream.controller.releaseSteps();
  stream.reader = null;
  reader.stream = null;
  failRequests(reader, reason);
}

function rejectedDeferred(reason) {
  const deferred = new Deferred();
  deferred.reject(reason);
  markHandled(deferred.promise);
  return deferred;
}

/** The promise that `reader.closed` shows. */
function closedOf(reader) {
  if (reader.closed !== null) return reader.closed.promise;
  const stream = reader.stream;
  if (stream === null) reader.closed = rejectedDeferred(new TypeError(RELEASED));
  else if (stream.state === ERRORED) reader.closed = rejectedDeferred(stream.error);
  else {
    reader.closed = new Deferred();
    if (stream.state === CLOSED) reader.closed.resolve(undefined);
  }
  return reader.closed.promise;
}

// --- What both kinds of controllers share.

/** Runs the source's `pull` until it is behind nothing; see the head of this file. */
function pullIfNeeded(controller) {
  if (!controller.shouldPull()) return;
  if (controller.pulling) {
    controller.pullAgain = true;
    return;
  }
  controller.pulling = true;
  do {
    controller.pullAgain = false;
    const result = controller.pull(controller);
    if (result !== undefined) {
      if (controller.onPulled === null) {
        controller.onPulled = () => {
          controller.pulling = false;
          if (controller.pullAgain) {
            controller.pullAgain = false;
            pullIfNeeded(controller);
          }
        };
        controller.onFailed = (reason) => controller.fail(reason);
      }
      then(result, controller.onPulled, controller.onFailed);
      return;
    }
  } while (controller.pullAgain && controller.shouldPull());
  controller.pulling = false;
}

/** Starts a controller with what `start` of a script returned. */
function begin(controller, started) {
  then(resolvedWith(started), () => {
    controller.started = true;
    pullIfNeeded(controller);
  }, (reason) => controller.fail(reason));
}

/** Gives a controller the callbacks of an underlying source. */
function adopt(controller, source, pull, cancel) {
  if (pull !== undefined) controller.pull = (self) => promiseCall(pull, source, [controllerObject(self)]);
  if (cancel !== undefined) controller.cancel = (reason) => promiseCall(cancel, source, [reason]);
}

function nothing() {}

class DefaultController {
  constructor(stream, mark, size) {
    this.stream = stream;
    this.byte = false;
    this.queue = new Queue();
    this.total = 0;
    this.mark = mark;
    this.size = size;
    this.started = false;
    this.closeRequested = false;
    this.pulling = false;
    this.pullAgain = false;
    this.onPulled = null;
    this.onFailed = null;
    this.pull = nothing;
    this.cancel = nothing;
    this.object = null;
    stream.controller = this;
  }

  open() {
    return !this.closeRequested && this.stream.state === READABLE;
  }

  desired() {
    if (this.stream.state === ERRORED) return null;
    return this.stream.state === CLOSED ? 0 : this.mark - this.total;
  }

  shouldPull() {
    if (!this.open() || !this.started) return false;
    const reader = this.stream.reader;
    if (reader !== null && reader.requests.length > 0) return true;
    return this.mark - this.total > 0;
  }

  forget() {
    this.pull = nothing;
    this.cancel = nothing;
    this.size = undefined;
  }

  pullSteps(request) {
    if (this.queue.length === 0) {
      this.stream.reader.requests.push(request);
      pullIfNeeded(this);
      return;
    }
    const entry = this.queue.shift();
    this.total -= entry.size;
    if (this.total < 0) this.total = 0;
    if (this.closeRequested && this.queue.length === 0) {
      this.forget();
      closeStream(this.stream);
    } else pullIfNeeded(this);
    request.chunk(entry.value);
  }

  cancelSteps(reason) {
    this.queue.clear();
    this.total = 0;
    const result = this.cancel(reason);
    this.forget();
    return result === undefined ? resolvedWith(undefined) : result;
  }

  releaseSteps() {}

  enqueue(value) {
    if (!this.open()) return;
    const reader = this.stream.reader;
    if (reader !== null && reader.requests.length > 0) reader.requests.shift().chunk(value);
    else {
      let size = 1;
      if (this.size !== undefined) {
        try {
          size = this.size(value);
          checkSize(size);
        } catch (error) {
          this.fail(error);
          throw error;
        }
      }
      this.queue.push({ value, size });
      this.total += size;
    }
    pullIfNeeded(this);
  }

  close() {
    this.closeRequested = true;
    if (this.queue.length > 0) return;
    this.forget();
    closeStream(this.stream);
  }

  fail(reason) {
    if (this.stream.state !== READABLE) return;
    this.queue.clear();
    this.total = 0;
    this.forget();
    errorStream(this.stream, reason);
  }
}

class ReadableStreamDefaultController {
  #s;

  constructor(key, state) {
    if (key !== INTERNAL) illegalConstructor();
    this.#s = state;
  }

  get desiredSize() {
    return this.#s.desired();
  }

  close() {
    if (!this.#s.open()) throw new TypeError('The stream controller cannot be closed: it is closed or errored already.');
    this.#s.close();
  }

  enqueue(chunk = undefined) {
    if (!this.#s.open()) throw new TypeError('Unable to enqueue');
    this.#s.enqueue(chunk);
  }

  error(reason = undefined) {
    this.#s.fail(reason);
  }
}
decorate(ReadableStreamDefaultController);

/** The wrapper that scripts see, made once. */
function controllerObject(controller) {
  if (controller.object === null) {
    const Class = controller.byte ? rt.streams.ReadableByteStreamController : ReadableStreamDefaultController;
    controller.object = new Class(INTERNAL, controller);
  }
  return controller.object;
}

class ReadableStreamDefaultReader {
  #s;

  constructor(stream) {
    this.#s = stream === INTERNAL ? arguments[1] : new Reader(stateOf(stream), false);
  }

  get closed() {
    if (!(#s in this)) return rejectedWith(illegal());
    return closedOf(this.#s);
  }

  cancel(reason = undefined) {
    if (!isObject(this) || !(#s in this)) return rejectedWith(illegal());
    const stream = this.#s.stream;
    return stream === null ? rejectedWith(new TypeError(RELEASED)) : cancelStream(stream, reason);
  }

  read() {
    if (!isObject(this) || !(#s in this)) return rejectedWith(illegal());
    if (this.#s.stream === null) return rejectedWith(new TypeError(RELEASED));
    const request = new PromiseRequest();
    readInto(this.#s, request);
    return request.promise;
  }

  releaseLock() {
    releaseReader(this.#s);
  }
}
decorate(ReadableStreamDefaultReader);

/** The error that members returning promises reject with on a foreign `this`. */
function illegal() {
  try {
    illegalInvocation();
  } catch (error) {
    return error;
  }
  return undefined;
}

let stateOf;
let isReadableStream;

class ReadableStream {
  #s;

  constructor(underlyingSource = undefined, strategy = undefined) {
    if (underlyingSource === INTERNAL) {
      this.#s = strategy;
      strategy.object = this;
      return;
    }
    const source = underlyingSource === undefined || underlyingSource === null ? {} : underlyingSource;
    if (!isObject(source)) throw new TypeError('Failed to construct \'ReadableStream\': the underlying source is not an object.');
    const { mark, size } = strategyOf(strategy, -1);
    const stream = new Readable();
    this.#s = stream;
    stream.object = this;
    rt.streams.setUp(stream, source, mark, size);
  }

  static {
    stateOf = (stream) => {
      if (!isReadableStream(stream)) {
        throw new TypeError('Failed to construct \'ReadableStreamDefaultReader\': constructor parameter 1 is not of type \'ReadableStream\'.');
      }
      return stream.#s;
    };
    isReadableStream = (value) => isObject(value) && #s in value;
  }

  static from(iterable) {
    return wrap(rt.streams.fromIterable(iterable));
  }

  get locked() {
    return this.#s.reader !== null;
  }

  cancel(reason = undefined) {
    if (!isObject(this) || !(#s in this)) return rejectedWith(illegal());
    if (this.#s.reader !== null) return rejectedWith(new TypeError(LOCKED));
    return cancelStream(this.#s, reason);
  }

  getReader(options = undefined) {
    const mode = options === undefined || options === null ? undefined : options.mode;
    const stream = this.#s;
    if (mode === undefined) return new ReadableStreamDefaultReader(INTERNAL, new Reader(stream, false));
    if (`${mode}` !== 'byob') throw new TypeError('mode must be undefined or \'byob\' in call to getReader().');
    return rt.streams.byobReader(stream);
  }

  pipeThrough(transform, options = undefined) {
    const source = this.#s;
    const readable = transform?.readable;
    if (!isReadableStream(readable)) throw new TypeError('Incorrect type for the \'readable\' field on \'Transform\': the provided value is not of type \'ReadableStream\'.');
    const writable = rt.streams.writableState(transform.writable, 'Incorrect type for the \'writable\' field on \'Transform\': the provided value');
    const settings = rt.streams.pipeOptions(options);
    if (source.reader !== null) throw new TypeError(LOCKED);
    if (writable.writer !== null) throw new TypeError('This WritableStream is currently locked to a writer.');
    markHandled(rt.streams.pipe(source, writable, settings));
    return readable;
  }

  pipeTo(destination, options = undefined) {
    try {
      const source = this.#s;
      const writable = rt.streams.writableState(destination, 'Failed to execute \'pipeTo\' on \'ReadableStream\': parameter 1');
      const settings = rt.streams.pipeOptions(options);
      if (source.reader !== null) throw new TypeError(LOCKED);
      if (writable.writer !== null) throw new TypeError('This WritableStream is currently locked to a writer.');
      return rt.streams.pipe(source, writable, settings);
    } catch (error) {
      return rejectedWith(error);
    }
  }

  tee() {
    const branches = rt.streams.tee(this.#s, false);
    return [wrap(branches.first), wrap(branches.second)];
  }

  values(options = undefined) {
    const preventCancel = !!(options === undefined || options === null ? undefined : options.preventCancel);
    return rt.streams.iterate(new Reader(this.#s, false), preventCancel);
  }
}
decorate(ReadableStream);
Object.defineProperty(ReadableStream.prototype, Symbol.asyncIterator, {
  __proto__: null, value: ReadableStream.prototype.values, writable: true, configurable: true,
});

/** Sets a stream up from what a script gave: an underlying source and its strategy. */
function setUp(stream, source, mark, size) {
  const autoAllocate = source.autoAllocateChunkSize;
  const cancel = callback(source, 'cancel', 'UnderlyingSource');
  const expected = source.expectedLength;
  const pull = callback(source, 'pull', 'UnderlyingSource');
  const start = callback(source, 'start', 'UnderlyingSource');
  const type = source.type;
  if (expected !== undefined && +expected >= 0) stream.length = +expected;
  let controller;
  if (type === undefined) controller = new DefaultController(stream, mark < 0 ? 1 : mark, size);
  else if (`${type}` === 'bytes') controller = rt.streams.byteController(stream, mark, size, autoAllocate);
  else throw new TypeError(`"${type}" is not a valid type of ReadableStream.`);
  adopt(controller, source, pull, cancel);
  begin(controller, start === undefined ? undefined : apply(start, source, [controllerObject(controller)]));
}

/** The public stream of a state. */
function wrap(stream) {
  return stream.object === null ? new ReadableStream(INTERNAL, stream) : stream.object;
}

/** A stream of ours with a default controller, started. */
function readableDefault(mark, pull, cancel) {
  const stream = new Readable();
  const controller = new DefaultController(stream, mark, undefined);
  controller.pull = pull;
  controller.cancel = cancel;
  controller.started = true;
  return stream;
}

rt.expose('ReadableStream', ReadableStream);
rt.expose('ReadableStreamDefaultReader', ReadableStreamDefaultReader);
rt.expose('ReadableStreamDefaultController', ReadableStreamDefaultController);

rt.isReadableStream = isReadableStream;
rt.wrapReadable = wrap;
Object.assign(rt.streams, {
  READABLE, CLOSED, ERRORED, LOCKED, RELEASED, PromiseRequest, Readable, Reader, DefaultController, begin, cancelStream, closeStream,
  closedOf, controllerObject, errorStream, illegal, pullIfNeeded, readInto, readableDefault, rejectedDeferred, releaseReader,
  setUp, stateOf,
});
