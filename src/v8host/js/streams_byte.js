//! Readable byte streams: their controller, BYOB requests and BYOB readers.
//!
//! Invariant: `total` is the sum of the lengths in `queue`; `pending` holds one descriptor for each
//! BYOB read under way (and one for a default read when buffers are allocated automatically); only
//! the first of them may be partly filled, and then the queue is empty.
//! A descriptor owns its buffer: a script's buffer is transferred, never shared.
//! Source: Streams Standard, sections 4.7 to 4.10. `readAtLeast` and `atLeast` are Cloudflare's.

const { convert, decorate, getter, illegalConstructor, isObject, uncurry } = rt.webidl;
const { rejectedWith, resolvedWith } = rt.promises;
const {
  CLOSED, ERRORED, READABLE, LOCKED, RELEASED, PromiseRequest, Queue, Readable, Reader, cancelStream, closeStream, closedOf,
  errorStream, illegal, pullIfNeeded, releaseReader, stateOf,
} = rt.streams;
const { INTERNAL } = rt;
const {
  ArrayBuffer, BigInt64Array, BigUint64Array, DataView, Float32Array, Float64Array, Int16Array, Int32Array, Int8Array, Math, Object,
  RangeError, TypeError, Uint16Array, Uint32Array, Uint8Array, Uint8ClampedArray,
} = globalThis;
const { isView } = ArrayBuffer;
const { min } = Math;

const transfer = uncurry(ArrayBuffer.prototype.transfer);
const isDetached = getter(ArrayBuffer.prototype, 'detached');
const sliceBuffer = uncurry(ArrayBuffer.prototype.slice);
const bufferLength = getter(ArrayBuffer.prototype, 'byteLength');
const TypedArray = Object.getPrototypeOf(Uint8Array);
const setBytes = uncurry(TypedArray.prototype.set);
const tagOf = getter(TypedArray.prototype, Symbol.toStringTag);
const arrayBuffer = getter(TypedArray.prototype, 'buffer');
const arrayOffset = getter(TypedArray.prototype, 'byteOffset');
const arrayLength = getter(TypedArray.prototype, 'byteLength');
const dataBuffer = getter(DataView.prototype, 'buffer');
const dataOffset = getter(DataView.prototype, 'byteOffset');
const dataLength = getter(DataView.prototype, 'byteLength');

const VIEWS = { __proto__: null, DataView };
const ELEMENT = { __proto__: null, DataView: 1 };
for (const View of [Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, BigInt64Array,
  BigUint64Array, Float32Array, Float64Array, globalThis.Float16Array]) {
  if (View === undefined) continue;
  VIEWS[View.name] = View;
  ELEMENT[View.name] = View.BYTES_PER_ELEMENT;
}

/** Who waits for what a descriptor is filled with. */
const NOBODY = 0;
const DEFAULT = 1;
const BYOB = 2;

/** The parts of a view, read past anything a script may have changed. */
function partsOf(view) {
  const tag = tagOf(view);
  if (tag === undefined) return { tag: 'DataView', buffer: dataBuffer(view), offset: dataOffset(view), length: dataLength(view) };
  return { tag, buffer: arrayBuffer(view), offset: arrayOffset(view), length: arrayLength(view) };
}

class PullInto {
  constructor(tag, buffer, offset, length, minimum, waiting) {
    this.tag = tag;
    this.buffer = buffer;
    this.bufferLength = bufferLength(buffer);
    this.offset = offset;
    this.length = length;
    this.filled = 0;
    this.minimum = minimum;
    this.waiting = waiting;
  }

  /** What the reader gets; the descriptor is over then. */
  view() {
    return new VIEWS[this.tag](transfer(this.buffer), this.offset, this.filled / ELEMENT[this.tag]);
  }
}

class ByteController {
  constructor(stream, mark) {
    this.stream = stream;
    this.byte = true;
    this.queue = new Queue();
    this.total = 0;
    this.mark = mark;
    this.autoAllocate = 0;
    this.pending = new Queue();
    this.request = null;
    this.started = false;
    this.closeRequested = false;
    this.pulling = false;
    this.pullAgain = false;
    this.onPulled = null;
    this.onFailed = null;
    this.pull = nothing;
    this.cancel = nothing;
    /** Told when a read has emptied the queue; `null` for most streams. */
    this.emptied = null;
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
  }

  dropPending() {
    this.endRequest();
    this.pending.clear();
  }

  /** The BYOB request that a script holds answers no more. */
  endRequest() {
    if (this.request === null) return;
    this.request.controller = null;
    this.request.view = null;
    this.request = null;
  }

  cancelSteps(reason) {
    this.dropPending();
    this.queue.clear();
    this.total = 0;
    const result = this.cancel(reason);
    this.forget();
    return result === undefined ? resolvedWith(undefined) : result;
  }

  releaseSteps() {
    if (this.pending.length === 0) return;
    const first = this.pending.peek();
    first.waiting = NOBODY;
    this.pending.clear();
    this.pending.push(first);
  }

  /** A default read. */
  pullSteps(request) {
    if (this.total > 0) {
      this.giveFromQueue(request);
      return;
    }
    if (this.autoAllocate > 0) {
      let buffer;
      try {
        buffer = new ArrayBuffer(this.autoAllocate);
      } catch (error) {
        request.error(error);
        return;
      }
      this.pending.push(new PullInto('Uint8Array', buffer, 0, this.autoAllocate, 1, DEFAULT));
    }
    this.stream.reader.requests.push(request);
    pullIfNeeded(this);
  }

  /** A BYOB read. `minimum` is in elements of the view. */
  pullInto(view, minimum, request) {
    const { tag, buffer, offset, length } = partsOf(view);
    let into;
    try {
      into = new PullInto(tag, transfer(buffer), offset, length, minimum * ELEMENT[tag], BYOB);
    } catch (error) {
      request.error(error);
      return;
    }
    const { stream } = this;
    if (this.pending.length > 0) {
      this.pending.push(into);
      stream.reader.requests.push(request);
      return;
    }
    if (stream.state === CLOSED) {
      request.close(into.view());
      return;
    }
    if (this.total > 0) {
      if (this.fill(into)) {
        const filled = into.view();
        this.drained();
        request.chunk(filled);
        return;
      }
      if (this.closeRequested && into.filled > 0 && into.filled % ELEMENT[tag] === 0) {
        // Less than the minimum, but all there will ever be: as `readAtLeast` promises.
        this.drained();
        request.chunk(into.view());
        return;
      }
      if (this.closeRequested) {
        const error = new TypeError('The stream ends in the middle of an element of the view.');
        this.fail(error);
        request.error(error);
        return;
      }
    }
    this.pending.push(into);
    stream.reader.requests.push(request);
    pullIfNeeded(this);
  }

  /** Fills a descriptor from the queue; whether it has its minimum, in whole elements. */
  fill(into) {
    const most = min(this.total, into.length - into.filled);
    const reach = into.filled + most;
    const aligned = reach - (reach % ELEMENT[into.tag]);
    const ready = aligned >= into.minimum;
    let left = ready ? aligned - into.filled : most;
    const target = new Uint8Array(into.buffer);
    while (left > 0) {
      const head = this.queue.peek();
      const count = min(left, head.length);
      setBytes(target, new Uint8Array(head.buffer, head.offset, count), into.offset + into.filled);
      if (head.length === count) this.queue.shift();
      else {
        head.offset += count;
        head.length -= count;
      }
      this.total -= count;
      into.filled += count;
      left -= count;
    }
    if (this.total === 0 && this.emptied !== null) this.emptied();
    return ready;
  }

  drained() {
    if (this.total === 0 && this.emptied !== null) this.emptied();
    if (this.total === 0 && this.closeRequested) {
      this.forget();
      closeStream(this.stream);
    } else pullIfNeeded(this);
  }

  giveFromQueue(request) {
    const head = this.queue.shift();
    this.total -= head.length;
    this.drained();
    request.chunk(new Uint8Array(head.buffer, head.offset, head.length));
  }

  put(buffer, offset, length) {
    this.queue.push({ buffer, offset, length });
    this.total += length;
  }

  /** What a read left half filled when its reader went goes back into the queue. */
  requeue(into) {
    if (into.filled > 0) this.put(sliceBuffer(into.buffer, into.offset, into.offset + into.filled), 0, into.filled);
    this.pending.shift();
  }

  /** Takes a chunk whose buffer is ours. */
  enqueue(buffer, offset, length) {
    if (!this.open()) return;
    const { stream, pending } = this;
    if (pending.length > 0) {
      const first = pending.peek();
      if (isDetached(first.buffer)) throw new TypeError('The buffer of the BYOB request has been detached.');
      this.endRequest();
      first.buffer = transfer(first.buffer);
      if (first.waiting === NOBODY) this.requeue(first);
    }
    const reader = stream.reader;
    if (reader === null) this.put(buffer, offset, length);
    else if (reader.byob) {
      this.put(buffer, offset, length);
      this.commitAll(this.fillPending());
    } else {
      while (reader.requests.length > 0 && this.total > 0) this.giveFromQueue(reader.requests.shift());
      if (reader.requests.length === 0) this.put(buffer, offset, length);
      else {
        if (pending.length > 0) pending.shift();
        reader.requests.shift().chunk(new Uint8Array(buffer, offset, length));
      }
    }
    pullIfNeeded(this);
  }

  fillPending() {
    const filled = [];
    while (this.pending.length > 0 && this.total > 0) {
      if (!this.fill(this.pending.peek())) break;
      filled[filled.length] = this.pending.shift();
    }
    return filled;
  }

  commitAll(filled) {
    for (let i = 0; i < filled.length; i++) this.commit(filled[i]);
  }

  commit(into) {
    const request = this.stream.reader.requests.shift();
    const view = into.view();
    if (this.stream.state === CLOSED) request.close(into.waiting === BYOB ? view : undefined);
    else request.chunk(view);
  }

  /** `count` bytes were written into the first descriptor, whose buffer is ours again. */
  respond(count) {
    const first = this.pending.peek();
    this.endRequest();
    if (this.stream.state === CLOSED) this.commitClosed();
    else this.commitFilled(first, count);
    pullIfNeeded(this);
  }

  /** The first descriptor was filled in a buffer of ours that replaces its own. */
  respondView(buffer, count) {
    this.pending.peek().buffer = transfer(buffer);
    this.respond(count);
  }

  commitFilled(first, count) {
    first.filled += count;
    if (first.waiting === NOBODY) {
      this.requeue(first);
      this.commitAll(this.fillPending());
      return;
    }
    if (first.filled < first.minimum) return;
    this.pending.shift();
    const rest = first.filled % ELEMENT[first.tag];
    if (rest > 0) {
      const end = first.offset + first.filled;
      this.put(sliceBuffer(first.buffer, end - rest, end), 0, rest);
      first.filled -= rest;
    }
    const filled = this.fillPending();
    this.commit(first);
    this.commitAll(filled);
  }

  /** The stream has closed: every BYOB read that waits gets its buffer back. */
  commitClosed() {
    if (this.pending.length > 0 && this.pending.peek().waiting === NOBODY) this.pending.shift();
    const reader = this.stream.reader;
    if (reader === null || !reader.byob) return;
    while (reader.requests.length > 0 && this.pending.length > 0) this.commit(this.pending.shift());
  }

  close() {
    if (this.total > 0) {
      this.closeRequested = true;
      return;
    }
    if (this.pending.length > 0 && this.pending.peek().filled % ELEMENT[this.pending.peek().tag] !== 0) {
      const error = new TypeError('The stream ends in the middle of an element of the view.');
      this.fail(error);
      throw error;
    }
    this.forget();
    closeStream(this.stream);
  }

  /** The end of a source of ours: it answers waiting BYOB reads by itself. */
  finish() {
    if (!this.open()) return;
    const first = this.pending.peek();
    const partly = first !== undefined && first.filled >= ELEMENT[first.tag] && first.waiting === BYOB;
    if (partly) {
      first.filled -= first.filled % ELEMENT[first.tag];
      this.commit(this.pending.shift());
    }
    this.close();
    if (this.stream.state === CLOSED) {
      this.endRequest();
      this.commitClosed();
    }
  }

  fail(reason) {
    if (this.stream.state !== READABLE) return;
    this.dropPending();
    this.queue.clear();
    this.total = 0;
    this.forget();
    errorStream(this.stream, reason);
  }

  /** The BYOB request for the first descriptor, or `null`. */
  currentRequest() {
    if (this.request === null && this.pending.length > 0) {
      const first = this.pending.peek();
      const view = new Uint8Array(first.buffer, first.offset + first.filled, first.length - first.filled);
      this.request = { controller: this, view, object: null };
      this.request.object = new ReadableStreamBYOBRequest(INTERNAL, this.request);
    }
    return this.request === null ? null : this.request.object;
  }
}

function nothing() {}

class ReadableByteStreamController {
  #s;

  constructor(key, state) {
    if (key !== INTERNAL) illegalConstructor();
    this.#s = state;
  }

  get byobRequest() {
    return this.#s.currentRequest();
  }

  get desiredSize() {
    return this.#s.desired();
  }

  close() {
    if (!this.#s.open()) throw new TypeError('The stream controller cannot be closed: it is closed or errored already.');
    this.#s.close();
  }

  enqueue(chunk) {
    const controller = this.#s;
    if (!isView(chunk)) throw new TypeError('Failed to execute \'enqueue\' on \'ReadableByteStreamController\': parameter 1 is not of type \'BufferSource\'.');
    const { buffer, offset, length } = partsOf(chunk);
    if (length === 0) throw new TypeError('Cannot enqueue a zero-length ArrayBuffer.');
    if (!controller.open()) throw new TypeError('Unable to enqueue: the stream is closed or errored.');
    const first = controller.pending.peek();
    if (first !== undefined && isDetached(first.buffer)) throw new TypeError('The buffer of the BYOB request has been detached.');
    controller.enqueue(transfer(buffer), offset, length);
  }

  error(reason = undefined) {
    this.#s.fail(reason);
  }
}
decorate(ReadableByteStreamController);

class ReadableStreamBYOBRequest {
  #s;

  constructor(key, state) {
    if (key !== INTERNAL) illegalConstructor();
    this.#s = state;
  }

  get view() {
    return this.#s.view;
  }

  get atLeast() {
    const { controller } = this.#s;
    if (controller === null) return null;
    const first = controller.pending.peek();
    return first.filled < first.minimum ? first.minimum - first.filled : 1;
  }

  respond(bytesWritten) {
    const count = convert.unsignedLongLong(bytesWritten, 'enforce');
    const { controller, view } = this.#s;
    if (controller === null) throw new TypeError('This BYOB request has been invalidated.');
    if (isDetached(arrayBuffer(view))) throw new TypeError('The buffer of the BYOB request has been detached.');
    const first = controller.pending.peek();
    if (controller.stream.state === CLOSED) {
      if (count !== 0) throw new TypeError('The stream is closed: respond with 0 bytes.');
    } else {
      if (count === 0) throw new TypeError('The bytesWritten must be more than zero while the stream is open.');
      if (first.filled + count > first.length) throw new RangeError(`Too many bytes [${count}] in response to a BYOB read request.`);
    }
    first.buffer = transfer(first.buffer);
    controller.respond(count);
  }

  respondWithNewView(view) {
    if (!isView(view)) throw new TypeError('parameter 1 is not of type \'ArrayBufferView\'.');
    const { buffer, offset, length } = partsOf(view);
    const { controller } = this.#s;
    if (controller === null) throw new TypeError('This BYOB request has been invalidated.');
    if (isDetached(buffer)) throw new TypeError('The buffer of the view has been detached.');
    const first = controller.pending.peek();
    if (controller.stream.state === CLOSED) {
      if (length !== 0) throw new TypeError('The stream is closed: respond with an empty view.');
    } else if (length === 0) throw new TypeError('The bytesWritten must be more than zero while the stream is open.');
    if (first.offset + first.filled !== offset) throw new RangeError('The view starts at another place than that of the BYOB request.');
    if (first.bufferLength !== bufferLength(buffer)) throw new RangeError('The buffer of the view has another length than that of the BYOB request.');
    if (first.filled + length > first.length) throw new RangeError('The view is longer than that of the BYOB request.');
    first.buffer = transfer(buffer);
    controller.respond(length);
  }
}
decorate(ReadableStreamBYOBRequest);

/** Takes BYOB readers; anything else is told so. */
function byobState(stream) {
  if (stream.controller.byte !== true) throw new TypeError('This ReadableStream does not support BYOB reads.');
  if (stream.reader !== null) throw new TypeError(LOCKED);
  return new Reader(stream, true);
}

/** Checks a BYOB read and starts it; `minimum` in elements. */
function readView(reader, view, minimum) {
  const { buffer, length, tag } = partsOf(view);
  if (length === 0) throw new TypeError('You must call read() on a "byob" reader with a positive-sized TypedArray object.');
  if (isDetached(buffer)) throw new TypeError('Unable to use a zero-length or detached ArrayBuffer.');
  if (minimum === 0) throw new TypeError('The minimum of a read must be at least 1.');
  if (minimum * ELEMENT[tag] > length) throw new RangeError('The minimum of a read must not exceed the length of the view.');
  const stream = reader.stream;
  if (stream === null) throw new TypeError(RELEASED);
  const request = new PromiseRequest();
  readByob(stream, view, minimum, request);
  return request.promise;
}

/** A BYOB read without checks, for our own code too. */
function readByob(stream, view, minimum, request) {
  stream.disturbed = true;
  if (stream.state === ERRORED) request.error(stream.error);
  else stream.controller.pullInto(view, minimum, request);
}

class ReadableStreamBYOBReader {
  #s;

  constructor(stream) {
    this.#s = stream === INTERNAL ? arguments[1] : byobState(stateOf(stream));
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

  read(view, options = undefined) {
    try {
      const reader = this.#s;
      if (!isView(view)) throw new TypeError('Failed to execute \'read\' on \'ReadableStreamBYOBReader\': parameter 1 is not of type \'ArrayBufferView\'.');
      const given = options === undefined || options === null ? undefined : options.min;
      return readView(reader, view, given === undefined ? 1 : convert.unsignedLongLong(given, 'enforce'));
    } catch (error) {
      return rejectedWith(error);
    }
  }

  readAtLeast(minElements, view) {
    try {
      const reader = this.#s;
      if (!isView(view)) throw new TypeError('Failed to execute \'readAtLeast\' on \'ReadableStreamBYOBReader\': parameter 2 is not of type \'ArrayBufferView\'.');
      return readView(reader, view, convert.unsignedLongLong(minElements, 'enforce'));
    } catch (error) {
      return rejectedWith(error);
    }
  }

  releaseLock() {
    releaseReader(this.#s);
  }
}
decorate(ReadableStreamBYOBReader);

/** The controller of a stream that a script described with `type: 'bytes'`. */
function byteController(stream, mark, size, autoAllocate) {
  if (size !== undefined) throw new RangeError('The strategy of a byte stream cannot have a size function.');
  const controller = new ByteController(stream, mark < 0 ? 0 : mark);
  if (autoAllocate !== undefined) {
    const bytes = convert.unsignedLongLong(autoAllocate, 'enforce');
    if (bytes === 0) throw new TypeError('The autoAllocateChunkSize option cannot be zero.');
    controller.autoAllocate = bytes;
  }
  return controller;
}

/** A byte stream of ours, started. */
function readableBytes(mark, pull, cancel) {
  const stream = new Readable();
  const controller = new ByteController(stream, mark);
  controller.pull = pull;
  controller.cancel = cancel;
  controller.started = true;
  return stream;
}

rt.expose('ReadableStreamBYOBReader', ReadableStreamBYOBReader);
rt.expose('ReadableStreamBYOBRequest', ReadableStreamBYOBRequest);
rt.expose('ReadableByteStreamController', ReadableByteStreamController);

Object.assign(rt.streams, {
  ByteController, ReadableByteStreamController, byobState, byteController, partsOf, readByob, readableBytes, transfer,
  byobReader: (stream) => new ReadableStreamBYOBReader(INTERNAL, byobState(stream)),
});
