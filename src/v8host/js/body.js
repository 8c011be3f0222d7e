//! What requests and responses have in common: the body, its readers, and the headers.
//!
//! A body stays in the form it came in for as long as nobody looks into it: bytes, a string, the
//! number of a stream of the host. It becomes a `ReadableStream` when a script asks for `body`;
//! as long as that stream is untouched it still passes through to the host as what it was.
//! Publishes `rt.body` and the class `Body`. Source: Fetch Standard, section 5.3.

const { bytesOf, decorate, getter, illegalInvocation, isBufferSource, isObject, uncurry } = rt.webidl;
const { Deferred, rejectedWith, resolvedWith, then } = rt.promises;
const { CLOSED, ERRORED, READABLE, Reader, cancelStream, readInto, readableBytes, stateOf, tee } = rt.streams;
const { INTERNAL, SafeMap } = rt;
const { listGet, make: makeHeaders } = rt.headers;
const { Array, ArrayBuffer, Error, JSON, Object, String, Symbol, TypeError, Uint8Array } = globalThis;
const { isArray } = Array;
const { asyncIterator, iterator, toPrimitive } = Symbol;
const objectToString = Object.prototype.toString;
const { parse } = JSON;
const toWellFormed = uncurry(String.prototype.toWellFormed);
const charCodeAt = uncurry(String.prototype.charCodeAt);
const sliceString = uncurry(String.prototype.slice);
const indexOf = uncurry(String.prototype.indexOf);
const TypedArray = Object.getPrototypeOf(Uint8Array);
const setBytes = uncurry(TypedArray.prototype.set);
const bufferOf = getter(TypedArray.prototype, 'buffer');
const offsetOf = getter(TypedArray.prototype, 'byteOffset');
const lengthOf = getter(TypedArray.prototype, 'byteLength');
const bufferLength = getter(ArrayBuffer.prototype, 'byteLength');

const NONE = 0;
const BYTES = 1;
const HOST = 2;
const TEXT = 3;
const STREAM = 4;

const USED = 'Body has already been used. It can only be used once. Use tee() first if you need to read it twice.';
const LOCKED = 'This ReadableStream is currently locked to a reader.';
/** What is read whole at most: no isolate has room for more. */
const WHOLE_MAX = 128 * 1024 * 1024;

const TOO_LARGE = 'Memory limit would be exceeded before EOF.';
const NOT_BYTES = 'This ReadableStream did not return bytes.';
const FOREIGN = 'Cannot perform I/O on behalf of a different request. I/O objects (such as streams, request/response bodies, and '
  + 'others) created in the context of one request handler cannot be accessed from a different request\'s handler. This is a '
  + 'limitation of Cloudflare Workers which allows us to improve overall performance.';

// --- Streams of the host, which JavaScript reads.

/** Number of a stream -> who waits for its pieces: an object with `chunk`, `end` and `error`. */
const incoming = new SafeMap();

/** Whether what belongs to frame `owner` may be used now: same event, or same cell. */
function sameContext(owner) {
  const frame = rt.frame();
  if (owner === undefined || frame === undefined || owner === frame) return true;
  return owner.cell === undefined ? owner.event === frame.event : owner.cell === frame.cell;
}

/** Feeds a `ReadableStream`. */
class HostSource {
  constructor(id, length) {
    this.id = id;
    this.waiting = false;
    this.frame = rt.frame();
    this.stream = readableBytes(0, () => this.pull(), () => this.cancel());
    this.stream.length = length;
    this.stream.source = { kind: HOST, value: id, length, shared: false };
  }

  pull() {
    if (this.waiting) return undefined;
    if (!sameContext(this.frame)) return rejectedWith(new Error(FOREIGN));
    this.waiting = true;
    incoming.set(this.id, this);
    ops.stream_pull(this.id);
    return undefined;
  }

  cancel() {
    incoming.delete(this.id);
    ops.stream_cancel(this.id);
    return undefined;
  }

  chunk(bytes) {
    this.waiting = false;
    this.stream.controller.enqueue(bufferOf(bytes), offsetOf(bytes), lengthOf(bytes));
  }

  end() {
    this.stream.controller.finish();
  }

  error(reason) {
    this.stream.controller.fail(reason);
  }
}

/** Gathers pieces into one array. */
class Gatherer {
  constructor() {
    this.pieces = [];
    this.total = 0;
    this.done = new Deferred();
    this.frame = rt.frame();
  }

  /** Whether there was room for the piece; if there is none, nothing more may come. */
  add(bytes) {
    this.total += lengthOf(bytes);
    if (this.total > WHOLE_MAX) {
      this.pieces.length = 0;
      this.error(new TypeError(TOO_LARGE));
      return false;
    }
    this.pieces[this.pieces.length] = bytes;
    return true;
  }

  end() {
    const { pieces } = this;
    if (pieces.length === 1) {
      this.done.resolve(pieces[0]);
      return;
    }
    let all;
    try {
      all = new Uint8Array(this.total);
    } catch (error) {
      // The isolate's buffers are full.
      this.error(error);
      return;
    }
    let at = 0;
    for (let i = 0; i < pieces.length; i++) {
      setBytes(all, pieces[i], at);
      at += lengthOf(pieces[i]);
    }
    this.done.resolve(all);
  }

  error(reason) {
    this.done.reject(reason);
  }
}

class HostGatherer extends Gatherer {
  constructor(id) {
    super();
    this.id = id;
    incoming.set(id, this);
    ops.stream_pull(id);
  }

  chunk(bytes) {
    if (this.add(bytes)) {
      ops.stream_pull(this.id);
    } else {
      incoming.delete(this.id);
      ops.stream_cancel(this.id);
    }
  }
}

/** Gathers what a stream of a script gives; also a read request. */
class StreamGatherer extends Gatherer {
  constructor(stream) {
    super();
    this.reader = new Reader(stream, false);
    readInto(this.reader, this);
  }

  chunk(value) {
    if (!isBufferSource(value)) {
      const error = new TypeError(NOT_BYTES);
      cancelStream(this.reader.stream, error);
      this.error(error);
      return;
    }
    if (!this.add(bytesOf(value))) {
      cancelStream(this.reader.stream, new TypeError(TOO_LARGE));
      return;
    }
    // In a microtask, as a stream that always has a piece would grow the stack.
    then(resolvedWith(undefined), () => readInto(this.reader, this));
  }

  close() {
    this.end();
  }
}

rt.entry.chunk = (id, bytes) => {
  const receiver = incoming.get(id);
  if (receiver === undefined) return;
  if (receiver.frame !== undefined) rt.setFrame(receiver.frame);
  if (bytes === null || bytes === undefined) {
    incoming.delete(id);
    receiver.end();
  } else receiver.chunk(bytes);
};
rt.entry.chunkError = (id, name, message, stack, flags, thrown) => {
  const receiver = incoming.get(id);
  if (receiver === undefined) return;
  incoming.delete(id);
  if (receiver.frame !== undefined) rt.setFrame(receiver.frame);
  receiver.error(rt.failureError(name, message, stack, flags, thrown));
};

// --- Streams of JavaScript, which the host reads.

/** Number of a stream -> its pump. */
const outgoing = new SafeMap();

/** Answers the host's pulls; itself the read request. */
class Pump {
  constructor(stream, event) {
    this.id = ops.stream_new();
    this.reader = new Reader(stream, false);
    this.frame = rt.frame();
    this.event = event;
    outgoing.set(this.id, this);
  }

  pull() {
    readInto(this.reader, this);
  }

  chunk(value) {
    if (!isBufferSource(value)) {
      const error = new TypeError(NOT_BYTES);
      cancelStream(this.reader.stream, error);
      this.error(error);
      return;
    }
    const bytes = bytesOf(value);
    if (lengthOf(bytes) === 0) then(resolvedWith(undefined), () => this.pull());
    else ops.stream_chunk(this.id, bytes);
  }

  close() {
    ops.stream_chunk(this.id, null);
    this.finish();
  }

  error(reason) {
    ops.stream_error(this.id, reason);
    this.finish();
  }

  finish() {
    outgoing.delete(this.id);
    if (this.event !== null) rt.dispatch.release(this.event);
  }
}

rt.entry.pull = (id) => {
  const pump = outgoing.get(id);
  if (pump === undefined) return;
  rt.setFrame(pump.frame);
  pump.pull();
};
rt.entry.cancel = (id, reason) => {
  const pump = outgoing.get(id);
  if (pump === undefined) return;
  rt.setFrame(pump.frame);
  const { stream } = pump.reader;
  const requests = pump.reader.requests;
  while (requests.length > 0) requests.shift();
  rt.promises.markHandled(cancelStream(stream, new Error(reason || 'The client has disconnected.')));
  pump.finish();
};

// --- Bodies.

/** A stream of bytes that are there already. `source` tells what they are. */
function streamOfBytes(kind, value, shared) {
  const stream = readableBytes(0, () => {
    const bytes = toBytes(kind, value, stream.source.shared);
    const { controller } = stream;
    if (lengthOf(bytes) > 0) controller.enqueue(bufferOf(bytes), offsetOf(bytes), lengthOf(bytes));
    controller.finish();
    return undefined;
  }, () => undefined);
  stream.source = { kind, value, length: -1, shared };
  return stream;
}

/** Bytes of a body that is no stream; a copy when somebody else reads the same ones. */
function toBytes(kind, value, shared) {
  if (kind === NONE) return new Uint8Array(0);
  if (kind === TEXT) return rt.encoding.encode(value);
  return shared ? new Uint8Array(value) : value;
}

/** The text of a string body as if it had been encoded and decoded. */
function textOf(value) {
  const text = toWellFormed(value);
  return text.length > 0 && charCodeAt(text, 0) === 0xfeff ? sliceString(text, 1) : text;
}

function wholeBuffer(bytes) {
  const buffer = bufferOf(bytes);
  if (bufferLength(buffer) === lengthOf(bytes)) return buffer;
  return bufferOf(new Uint8Array(bytes));
}

/** What a `BodyInit` other than a string is: `{kind, value, length, type, stream}`. */
function extract(init) {
  if (isObject(init)) {
    if (rt.isReadableStream(init)) {
      const stream = stateOf(init);
      if (stream.disturbed) throw new TypeError('This ReadableStream is disturbed (has already been read from), and cannot be used as a body.');
      if (stream.reader !== null) throw new TypeError('This ReadableStream is locked to a reader, and cannot be used as a body.');
      return { kind: STREAM, value: stream, type: null };
    }
    if (isBufferSource(init)) return { kind: BYTES, value: new Uint8Array(bytesOf(init)), type: null };
    const other = extractOther(init);
    if (other !== null) return other;
    if (isIterated(init)) return { kind: STREAM, value: rt.streams.fromIterable(init), type: null };
  }
  return { kind: TEXT, value: `${init}`, type: 'text/plain;charset=UTF-8' };
}

/**
 * Whether an object is a body of the pieces that it iterates over. As in workerd, one with a text of
 * its own is that text, unless its iteration is asynchronous.
 */
function isIterated(init) {
  if (typeof init[asyncIterator] === 'function') return true;
  if (typeof init[iterator] !== 'function') return false;
  return isArray(init) || (init.toString === objectToString && init[toPrimitive] === undefined);
}

/** The parts of classes that other files define: Blob, FormData, URLSearchParams. */
function extractOther(init) {
  if (rt.url.isSearchParams(init)) {
    return { kind: TEXT, value: rt.url.serializeSearchParams(init), type: 'application/x-www-form-urlencoded;charset=UTF-8' };
  }
  if (rt.formdata.isFormData(init)) return rt.formdata.extract(init);
  if (rt.blob.isBlob(init)) {
    const type = rt.blob.type(init);
    // A copy, as the body's bytes may be handed to a script.
    return { kind: BYTES, value: new Uint8Array(rt.blob.bytes(init)), type: type === '' ? null : type };
  }
  return null;
}

/** Headers as the host packs them, `name LF value LF name LF value`, as a flat list. */
function unpack(packed) {
  const list = [];
  if (packed === '') return list;
  let from = 0;
  let count = 0;
  for (;;) {
    const end = indexOf(packed, '\n', from);
    if (end < 0) break;
    list[count++] = sliceString(packed, from, end);
    from = end + 1;
  }
  list[count] = sliceString(packed, from);
  return list;
}

let B;

class Body {
  #kind;
  #value;
  #length;
  #used = false;
  /** The same bytes belong to a clone: they may not be handed out. */
  #shared = false;
  /** The flat list of headers, the same packed in a string as long as nobody looks, or undefined. */
  #list;
  #headers = null;
  #immutable;

  constructor(key, kind, value, length, list, immutable) {
    if (key !== INTERNAL) rt.webidl.illegalConstructor();
    this.#kind = kind;
    this.#value = value;
    this.#length = length;
    this.#list = list;
    this.#immutable = immutable;
  }

  static {
    B = {
      kind: (body) => body.#kind,
      value: (body) => body.#value,
      length: (body) => body.#length,
      /** The flat list of headers, made when there is none. */
      list: (body) => {
        const list = body.#list;
        if (typeof list === 'object') return list;
        body.#list = list === undefined ? [] : unpack(list);
        return body.#list;
      },
      /** Headers of a copy may be changed, also when those of the original may not. */
      unlockHeaders: (body) => {
        body.#immutable = false;
      },
      /** Gives a new body without content its content. */
      fill: (body, kind, value, list) => {
        body.#kind = kind;
        body.#value = value;
        body.#list = list;
      },
      /** The public headers, made when they are asked for. */
      headers: (body) => {
        if (body.#headers === null) body.#headers = makeHeaders(B.list(body), body.#immutable);
        return body.#headers;
      },
      /** What there is of headers: a flat list, packed ones, `undefined`. For the host. */
      listOrNone: (body) => body.#list,
      isBody: (value) => isObject(value) && #kind in value,
      used: (body) => body.#used || (body.#kind === STREAM && body.#value.disturbed),
      /** Throws unless the body can be read from its beginning. */
      check: (body) => {
        if (body.#used) throw new TypeError(USED);
        if (body.#kind !== STREAM) return;
        if (body.#value.disturbed) throw new TypeError(USED);
        if (body.#value.reader !== null) throw new TypeError(LOCKED);
      },
      /**
       * Gives the body to the host: after it `kind` is none, bytes, text or a stream's number, and
       * `value` and `length` go with it. When it is a stream that JavaScript makes, `event` (if not
       * null) is released once that stream is through. Returns whether it will be.
       */
      send: (body, event) => {
        if (body.#kind === NONE) return false;
        B.check(body);
        body.#used = true;
        if (body.#kind === HOST) return false;
        if (body.#kind !== STREAM) return false;
        const stream = body.#value;
        if (stream.source !== null && stream.state !== ERRORED) {
          const { source } = stream;
          stream.disturbed = true;
          stream.reader = new Reader(stream, false);
          body.#kind = source.kind;
          body.#value = source.value;
          body.#length = source.length;
          return false;
        }
        const pump = new Pump(stream, event);
        body.#kind = HOST;
        body.#value = pump.id;
        body.#length = stream.length;
        return true;
      },
      /** Nobody will read the body. */
      drop: (body) => {
        if (body.#kind === HOST) ops.stream_cancel(body.#value);
        if (body.#kind === STREAM) rt.promises.markHandled(cancelStream(body.#value, undefined));
      },
      /** Moves the body of a request into a new one, which `new Request(request)` does. */
      take: (body) => {
        B.check(body);
        const taken = { kind: body.#kind, value: body.#value, length: body.#length, type: null };
        if (body.#kind !== NONE) body.#used = true;
        return taken;
      },
      /** A second body with the same content, for `clone`. */
      clone: (body) => {
        if (body.#kind === NONE) return { kind: NONE, value: undefined, length: -1 };
        if (body.#used || (body.#kind === STREAM && body.#value.reader !== null)) throw new TypeError(LOCKED);
        B.check(body);
        if (body.#kind === TEXT) return { kind: TEXT, value: body.#value, length: -1 };
        if (body.#kind === BYTES) {
          body.#shared = true;
          return { kind: BYTES, value: body.#value, length: -1 };
        }
        const { source } = body.#kind === STREAM ? body.#value : { source: null };
        if (source !== null && source.kind !== HOST) {
          source.shared = true;
          return { kind: source.kind, value: source.value, length: -1 };
        }
        const split = tee(B.stream(body));
        body.#kind = STREAM;
        body.#value = split.first;
        return { kind: STREAM, value: split.second, length: split.second.length };
      },
      share: (body) => {
        if (body.#kind === BYTES) body.#shared = true;
      },
      /** The state of the stream of this body, made when it is asked for. */
      stream: (body) => {
        if (body.#kind === STREAM) return body.#value;
        const stream = body.#kind === HOST ? new HostSource(body.#value, body.#length).stream
          : streamOfBytes(body.#kind, body.#value, body.#shared);
        body.#kind = STREAM;
        body.#value = stream;
        if (body.#used) {
          stream.disturbed = true;
          stream.state = CLOSED;
        }
        return stream;
      },
      /** The signal of the fetch that this body came with has fired. */
      abort: (body, reason) => {
        if (body.#kind === STREAM) {
          const stream = body.#value;
          if (stream.source === null || stream.source.kind !== HOST) return;
          const id = stream.source.value;
          if (stream.state === READABLE) ops.stream_cancel(id);
          incoming.delete(id);
          stream.controller.fail(reason);
          return;
        }
        if (body.#kind !== HOST) return;
        const receiver = incoming.get(body.#value);
        if (receiver === undefined && body.#used) return;
        ops.stream_cancel(body.#value);
        if (receiver !== undefined) {
          incoming.delete(body.#value);
          receiver.error(reason);
          return;
        }
        B.stream(body).controller.fail(reason);
      },
      /** Reads everything; `finish(bytes)` makes the value of the promise. */
      consume: (body, finish) => {
        try {
          if (!B.isBody(body)) illegalInvocation();
          B.check(body);
          if (body.#kind !== STREAM && body.#kind !== HOST) {
            if (body.#kind !== NONE) body.#used = true;
            return resolvedWith(finish(toBytes(body.#kind, body.#value, body.#shared), body));
          }
          let gatherer;
          if (body.#kind === HOST) {
            body.#used = true;
            gatherer = new HostGatherer(body.#value);
          } else gatherer = new StreamGatherer(body.#value);
          return then(gatherer.done.promise, (bytes) => finish(bytes, body));
        } catch (error) {
          return rejectedWith(error);
        }
      },
      /** The text of a body that is a string, without a detour over bytes; `null` when it is none. */
      quickText: (body) => {
        if (body.#kind !== TEXT || body.#used) return null;
        body.#used = true;
        return textOf(body.#value);
      },
    };
  }

  get body() {
    if (!B.isBody(this)) illegalInvocation();
    return this.#kind === NONE ? null : rt.wrapReadable(B.stream(this));
  }

  get bodyUsed() {
    if (!B.isBody(this)) illegalInvocation();
    return B.used(this);
  }

  arrayBuffer() {
    return B.consume(this, wholeBuffer);
  }

  bytes() {
    return B.consume(this, (bytes) => bytes);
  }

  text() {
    if (isObject(this) && #kind in this) {
      const text = B.quickText(this);
      if (text !== null) return resolvedWith(text);
    }
    return B.consume(this, (bytes) => rt.encoding.decode(bytes));
  }

  json() {
    if (isObject(this) && #kind in this) {
      const text = B.quickText(this);
      if (text !== null) {
        try {
          return resolvedWith(parse(text));
        } catch (error) {
          return rejectedWith(error);
        }
      }
    }
    return B.consume(this, (bytes) => parse(rt.encoding.decode(bytes)));
  }

  formData() {
    try {
      if (!B.isBody(this)) illegalInvocation();
      B.check(this);
      const type = listGet(B.list(this), 'content-type');
      rt.formdata.checkType(type);
      return B.consume(this, (bytes) => rt.formdata.parse(type, bytes));
    } catch (error) {
      return rejectedWith(error);
    }
  }

  blob() {
    return B.consume(this, (bytes, body) => rt.blob.make(bytes, listGet(B.list(body), 'content-type') ?? ''));
  }
}
decorate(Body);
rt.expose('Body', Body);
rt.Body = Body;
rt.body = Object.assign(B, { NONE, BYTES, HOST, TEXT, STREAM, extract, sameContext });
