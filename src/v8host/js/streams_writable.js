//! WritableStream with its writer and controller.
//!
//! Invariant: at most one of `inFlightWrite`, `inFlightClose` is set; `closeRequest` implies that no
//! write comes after it. A sink of ours returns promises like one of a script.
//! Source: Streams Standard, section 5.

const { decorate, illegalConstructor, isObject } = rt.webidl;
const { Deferred, markHandled, promiseCall, rejectedWith, resolvedWith, then } = rt.promises;
const { Queue, callback, checkSize, illegal, rejectedDeferred, strategyOf } = rt.streams;
const { INTERNAL } = rt;
const { Object, RangeError, Reflect, TypeError } = globalThis;
const { apply } = Reflect;

const WRITABLE = 0;
const CLOSED = 1;
const ERRORING = 2;
const ERRORED = 3;

const LOCKED = 'This WritableStream is currently locked to a writer.';
const RELEASED = 'This WritableStream writer has been released.';
const CLOSING = 'This WritableStream has been closed.';

/** In the queue: all writes before it are through, the sink may close. */
const CLOSE = { __proto__: null };

/** The state of a WritableStream. */
class Writable {
  constructor() {
    this.state = WRITABLE;
    this.error = undefined;
    this.writer = null;
    this.controller = null;
    this.writes = new Queue();
    this.inFlightWrite = null;
    this.closeRequest = null;
    this.inFlightClose = null;
    this.pendingAbort = null;
    this.backpressure = false;
    this.object = null;
  }

  closing() {
    return this.closeRequest !== null || this.inFlightClose !== null;
  }
}

/** The state of a writer. `ready` and `closed` are made when somebody asks for them. */
class Writer {
  constructor(stream) {
    if (stream.writer !== null) throw new TypeError(LOCKED);
    this.stream = stream;
    this.ready = null;
    this.closed = null;
    stream.writer = this;
  }
}

function nothing() {
  return undefined;
}

class WritableController {
  constructor(stream, mark, size) {
    this.stream = stream;
    this.queue = new Queue();
    this.total = 0;
    this.mark = mark;
    this.size = size;
    this.started = false;
    this.write = nothing;
    this.close = nothing;
    this.abort = nothing;
    this.abortSignal = null;
    this.abortReason = undefined;
    this.aborted = false;
    this.object = null;
    stream.controller = this;
    setBackpressure(stream, this.mark <= 0);
  }

  desired() {
    return this.mark - this.total;
  }

  forget() {
    this.write = nothing;
    this.close = nothing;
    this.abort = nothing;
    this.size = undefined;
  }

  errorSteps() {
    this.queue.clear();
    this.total = 0;
  }

  abortSteps(reason) {
    const result = this.abort(reason);
    this.forget();
    return result === undefined ? resolvedWith(undefined) : result;
  }

  /** The size of a chunk; a `size` that throws errors the stream. */
  sizeOf(chunk) {
    if (this.size === undefined) return 1;
    try {
      return this.size(chunk);
    } catch (error) {
      this.failIfNeeded(error);
      return 1;
    }
  }

  failIfNeeded(error) {
    if (this.stream.state === WRITABLE) this.fail(error);
  }

  fail(error) {
    this.forget();
    startErroring(this.stream, error);
  }

  put(chunk, size) {
    try {
      checkSize(size);
    } catch (error) {
      this.failIfNeeded(error);
      return;
    }
    this.queue.push({ chunk, size });
    this.total += size;
    const { stream } = this;
    if (!stream.closing() && stream.state === WRITABLE) setBackpressure(stream, this.desired() <= 0);
    this.advance();
  }

  putClose() {
    this.queue.push({ chunk: CLOSE, size: 0 });
    this.advance();
  }

  advance() {
    const { stream } = this;
    if (!this.started || stream.inFlightWrite !== null) return;
    if (stream.state === ERRORING) {
      finishErroring(stream);
      return;
    }
    if (this.queue.length === 0) return;
    const { chunk } = this.queue.peek();
    if (chunk === CLOSE) this.processClose();
    else this.processWrite(chunk);
  }

  shift() {
    this.total -= this.queue.shift().size;
    if (this.total < 0) this.total = 0;
  }

  processClose() {
    const { stream } = this;
    stream.inFlightClose = stream.closeRequest;
    stream.closeRequest = null;
    this.shift();
    const result = this.close();
    this.forget();
    then(result === undefined ? resolvedWith(undefined) : result, () => finishClose(stream), (reason) => {
      stream.inFlightClose.reject(reason);
      stream.inFlightClose = null;
      if (stream.pendingAbort !== null) {
        stream.pendingAbort.deferred.reject(reason);
        stream.pendingAbort = null;
      }
      dealWithRejection(stream, reason);
    });
  }

  processWrite(chunk) {
    const { stream } = this;
    stream.inFlightWrite = stream.writes.shift();
    const result = this.write(chunk);
    then(result === undefined ? resolvedWith(undefined) : result, () => {
      stream.inFlightWrite.resolve(undefined);
      stream.inFlightWrite = null;
      this.shift();
      if (!stream.closing() && stream.state === WRITABLE) setBackpressure(stream, this.desired() <= 0);
      this.advance();
    }, (reason) => {
      if (stream.state === WRITABLE) this.forget();
      stream.inFlightWrite.reject(reason);
      stream.inFlightWrite = null;
      dealWithRejection(stream, reason);
    });
  }

  /** Fires `controller.signal`. */
  signalAbort(reason) {
    if (this.aborted) return;
    this.aborted = true;
    this.abortReason = reason;
    if (this.abortSignal !== null) rt.abort.signal(this.abortSignal, reason);
  }

  signal() {
    if (this.abortSignal === null) {
      this.abortSignal = rt.abort.create();
      if (this.aborted) rt.abort.signal(this.abortSignal, this.abortReason);
    }
    return this.abortSignal;
  }
}

// --- Streams.

function setBackpressure(stream, backpressure) {
  const { writer } = stream;
  if (writer !== null && writer.ready !== null && backpressure !== stream.backpressure) {
    if (backpressure) writer.ready = new Deferred();
    else writer.ready.resolve(undefined);
  }
  stream.backpressure = backpressure;
}

function abortStream(stream, reason) {
  if (stream.state === CLOSED || stream.state === ERRORED) return resolvedWith(undefined);
  stream.controller.signalAbort(reason);
  // The signal runs code of scripts, which may have ended the stream.
  if (stream.state === CLOSED || stream.state === ERRORED) return resolvedWith(undefined);
  if (stream.pendingAbort !== null) return stream.pendingAbort.deferred.promise;
  const erroring = stream.state === ERRORING;
  const deferred = new Deferred();
  stream.pendingAbort = { deferred, reason: erroring ? undefined : reason, erroring };
  if (!erroring) startErroring(stream, reason);
  return deferred.promise;
}

function closeStream(stream) {
  if (stream.state === CLOSED || stream.state === ERRORED) return rejectedWith(new TypeError(CLOSING));
  stream.closeRequest = new Deferred();
  const { promise } = stream.closeRequest;
  const { writer } = stream;
  if (writer !== null && writer.ready !== null && stream.backpressure && stream.state === WRITABLE) writer.ready.resolve(undefined);
  stream.controller.putClose();
  return promise;
}

function dealWithRejection(stream, error) {
  if (stream.state === WRITABLE) startErroring(stream, error);
  else finishErroring(stream);
}

function startErroring(stream, reason) {
  stream.state = ERRORING;
  stream.error = reason;
  if (stream.writer !== null) failReady(stream.writer, reason);
  if (stream.inFlightWrite === null && stream.inFlightClose === null && stream.controller.started) finishErroring(stream);
}

function finishErroring(stream) {
  if (stream.inFlightWrite !== null || stream.inFlightClose !== null) return;
  stream.state = ERRORED;
  stream.controller.errorSteps();
  const reason = stream.error;
  while (stream.writes.length > 0) stream.writes.shift().reject(reason);
  const abort = stream.pendingAbort;
  stream.pendingAbort = null;
  if (abort === null) {
    rejectClosed(stream);
    return;
  }
  if (abort.erroring) {
    abort.deferred.reject(reason);
    rejectClosed(stream);
    return;
  }
  then(stream.controller.abortSteps(abort.reason), () => {
    abort.deferred.resolve(undefined);
    rejectClosed(stream);
  }, (error) => {
    abort.deferred.reject(error);
    rejectClosed(stream);
  });
}

function rejectClosed(stream) {
  if (stream.closeRequest !== null) {
    stream.closeRequest.reject(stream.error);
    stream.closeRequest = null;
  }
  const { writer } = stream;
  if (writer === null || writer.closed === null) return;
  markHandled(writer.closed.promise);
  writer.closed.reject(stream.error);
}

function finishClose(stream) {
  stream.inFlightClose.resolve(undefined);
  stream.inFlightClose = null;
  if (stream.state === ERRORING) {
    stream.error = undefined;
    if (stream.pendingAbort !== null) {
      stream.pendingAbort.deferred.resolve(undefined);
      stream.pendingAbort = null;
    }
  }
  stream.state = CLOSED;
  if (stream.writer !== null && stream.writer.closed !== null) stream.writer.closed.resolve(undefined);
}

// --- Writers.

/** `ready` becomes a rejection: the pending promise rejects, a settled one is replaced. */
function failReady(writer, reason) {
  if (writer.ready === null) return;
  const stream = writer.stream;
  if (stream !== null && stream.backpressure && !stream.closing()) {
    writer.ready.reject(reason);
    markHandled(writer.ready.promise);
  } else writer.ready = rejectedDeferred(reason);
}

function readyOf(writer) {
  if (writer.ready !== null) return writer.ready.promise;
  const { stream } = writer;
  if (stream === null) writer.ready = rejectedDeferred(new TypeError(RELEASED));
  else if (stream.state === ERRORING || stream.state === ERRORED) writer.ready = rejectedDeferred(stream.error);
  else {
    writer.ready = new Deferred();
    if (stream.state === CLOSED || stream.closing() || !stream.backpressure) writer.ready.resolve(undefined);
  }
  return writer.ready.promise;
}

function closedOf(writer) {
  if (writer.closed !== null) return writer.closed.promise;
  const { stream } = writer;
  if (stream === null) writer.closed = rejectedDeferred(new TypeError(RELEASED));
  else if (stream.state === ERRORED && stream.pendingAbort === null) writer.closed = rejectedDeferred(stream.error);
  else {
    writer.closed = new Deferred();
    if (stream.state === CLOSED) writer.closed.resolve(undefined);
  }
  return writer.closed.promise;
}

function desiredSize(writer) {
  const { stream } = writer;
  if (stream.state === ERRORED || stream.state === ERRORING) return null;
  return stream.state === CLOSED ? 0 : stream.controller.desired();
}

function releaseWriter(writer) {
  const { stream } = writer;
  if (stream === null) return;
  const reason = new TypeError(RELEASED);
  failReady(writer, reason);
  if (writer.closed !== null) {
    if (stream.state === WRITABLE || stream.state === ERRORING) {
      writer.closed.reject(reason);
      markHandled(writer.closed.promise);
    } else writer.closed = rejectedDeferred(reason);
  }
  stream.writer = null;
  writer.stream = null;
}

/** Writes without checks of arguments. Returns a promise. */
function writeChunk(writer, chunk) {
  const { stream } = writer;
  const { controller } = stream;
  const size = controller.sizeOf(chunk);
  if (stream !== writer.stream) return rejectedWith(new TypeError(RELEASED));
  if (stream.state === ERRORED) return rejectedWith(stream.error);
  if (stream.closing() || stream.state === CLOSED) return rejectedWith(new TypeError(CLOSING));
  if (stream.state === ERRORING) return rejectedWith(stream.error);
  const request = new Deferred();
  stream.writes.push(request);
  controller.put(chunk, size);
  return request.promise;
}

/** The end of a pipe: closes, or says what had happened already. */
function closeWithErrors(writer) {
  const { stream } = writer;
  if (stream.closing() || stream.state === CLOSED) return resolvedWith(undefined);
  if (stream.state === ERRORED) return rejectedWith(stream.error);
  return closeStream(stream);
}

class WritableStreamDefaultWriter {
  #s;

  constructor(stream) {
    this.#s = stream === INTERNAL ? arguments[1] : new Writer(stateOf(stream, 'Failed to construct \'WritableStreamDefaultWriter\': constructor parameter 1'));
  }

  get closed() {
    if (!(#s in this)) return rejectedWith(illegal());
    return closedOf(this.#s);
  }

  get desiredSize() {
    if (this.#s.stream === null) throw new TypeError(RELEASED);
    return desiredSize(this.#s);
  }

  get ready() {
    if (!(#s in this)) return rejectedWith(illegal());
    return readyOf(this.#s);
  }

  abort(reason = undefined) {
    if (!isObject(this) || !(#s in this)) return rejectedWith(illegal());
    const { stream } = this.#s;
    return stream === null ? rejectedWith(new TypeError(RELEASED)) : abortStream(stream, reason);
  }

  close() {
    if (!isObject(this) || !(#s in this)) return rejectedWith(illegal());
    const { stream } = this.#s;
    if (stream === null) return rejectedWith(new TypeError(RELEASED));
    return stream.closing() ? rejectedWith(new TypeError(CLOSING)) : closeStream(stream);
  }

  releaseLock() {
    releaseWriter(this.#s);
  }

  write(chunk = undefined) {
    if (!isObject(this) || !(#s in this)) return rejectedWith(illegal());
    return this.#s.stream === null ? rejectedWith(new TypeError(RELEASED)) : writeChunk(this.#s, chunk);
  }
}
decorate(WritableStreamDefaultWriter);

class WritableStreamDefaultController {
  #s;

  constructor(key, state) {
    if (key !== INTERNAL) illegalConstructor();
    this.#s = state;
  }

  get signal() {
    return this.#s.signal();
  }

  error(reason = undefined) {
    this.#s.failIfNeeded(reason);
  }
}
decorate(WritableStreamDefaultController);

let stateOf;

class WritableStream {
  #s;

  constructor(underlyingSink = undefined, strategy = undefined) {
    if (underlyingSink === INTERNAL) {
      this.#s = strategy;
      strategy.object = this;
      return;
    }
    const sink = underlyingSink === undefined || underlyingSink === null ? {} : underlyingSink;
    if (!isObject(sink)) throw new TypeError('Failed to construct \'WritableStream\': the underlying sink is not an object.');
    const { mark, size } = strategyOf(strategy, 1);
    const stream = new Writable();
    this.#s = stream;
    stream.object = this;
    setUp(stream, sink, mark, size);
  }

  static {
    /** `what`: the value, for a message. */
    stateOf = (stream, what) => {
      if (!isObject(stream) || !(#s in stream)) throw new TypeError(`${what} is not of type 'WritableStream'.`);
      return stream.#s;
    };
  }

  get locked() {
    return this.#s.writer !== null;
  }

  abort(reason = undefined) {
    if (!isObject(this) || !(#s in this)) return rejectedWith(illegal());
    return this.#s.writer === null ? abortStream(this.#s, reason) : rejectedWith(new TypeError(LOCKED));
  }

  close() {
    if (!isObject(this) || !(#s in this)) return rejectedWith(illegal());
    const stream = this.#s;
    if (stream.writer !== null) return rejectedWith(new TypeError(LOCKED));
    return stream.closing() ? rejectedWith(new TypeError(CLOSING)) : closeStream(stream);
  }

  getWriter() {
    return new WritableStreamDefaultWriter(INTERNAL, new Writer(this.#s));
  }
}
decorate(WritableStream);

/** Starts a controller with what `start` returned. */
function begin(controller, started) {
  then(resolvedWith(started), () => {
    controller.started = true;
    controller.advance();
  }, (reason) => {
    controller.started = true;
    dealWithRejection(controller.stream, reason);
  });
}

function setUp(stream, sink, mark, size) {
  const abort = callback(sink, 'abort', 'UnderlyingSink');
  const close = callback(sink, 'close', 'UnderlyingSink');
  const start = callback(sink, 'start', 'UnderlyingSink');
  const write = callback(sink, 'write', 'UnderlyingSink');
  const controller = new WritableController(stream, mark, size);
  const object = new WritableStreamDefaultController(INTERNAL, controller);
  controller.object = object;
  if (write !== undefined) controller.write = (chunk) => promiseCall(write, sink, [chunk, object]);
  if (close !== undefined) controller.close = () => promiseCall(close, sink, []);
  if (abort !== undefined) controller.abort = (reason) => promiseCall(abort, sink, [reason]);
  begin(controller, start === undefined ? undefined : apply(start, sink, [object]));
}

/** A writable stream of ours, started. */
function writableOf(mark, write, close, abort) {
  const stream = new Writable();
  const controller = new WritableController(stream, mark, undefined);
  controller.write = write;
  controller.close = close;
  controller.abort = abort;
  controller.started = true;
  return stream;
}

rt.expose('WritableStream', WritableStream);
rt.expose('WritableStreamDefaultWriter', WritableStreamDefaultWriter);
rt.expose('WritableStreamDefaultController', WritableStreamDefaultController);
rt.wrapWritable = (stream) => (stream.object === null ? new WritableStream(INTERNAL, stream) : stream.object);
Object.assign(rt.streams, {
  Writable, WritableController, Writer, abortStream, beginWritable: begin, closeWithErrors, desiredSize, readyOf, releaseWriter,
  writableOf, writableState: stateOf, writeChunk, writerClosed: closedOf,
  WRITABLE, WRITABLE_ERRORED: ERRORED, WRITABLE_ERRORING: ERRORING, WRITABLE_CLOSED: CLOSED,
});
