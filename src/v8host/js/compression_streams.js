//! `CompressionStream` and `DecompressionStream`, on a transform of ours.
//!
//! Invariant: what a small chunk unpacks to is handed on piece by piece, each when the one before was
//! taken, so that it needs little memory however much it is.
//! Source: Compression Standard; messages are workerd's.

const { bytesOf, decorate, illegalInvocation, isBufferSource, isObject } = rt.webidl;
const { then } = rt.promises;
const { transformOf } = rt;
const { TypeError } = globalThis;

const FORMATS = { __proto__: null, gzip: 0, deflate: 1, 'deflate-raw': 2 };

const NOT_BYTES = 'This TransformStream is being used as a byte stream, but received an object of non-ArrayBuffer/ArrayBufferView '
  + 'type on its writable side.';

/** The host's coder lives as long as this. */
class Coder {
  constructor(format, unpacks) {
    const number = FORMATS[`${format}`];
    if (number === undefined) throw new TypeError('The compression format must be either \'deflate\', \'deflate-raw\' or \'gzip\'.');
    this.id = ops.compression_new(this, number, unpacks);
  }

  /** Hands on what there is. */
  drain(state) {
    for (;;) {
      const piece = ops.compression_read(this.id);
      if (piece === null) return undefined;
      state.enqueue(piece);
      if (state.backpressure) return then(state.change.promise, () => this.drain(state));
    }
  }

  transform(chunk, state) {
    if (!isBufferSource(chunk)) throw new TypeError(NOT_BYTES);
    ops.compression_write(this.id, bytesOf(chunk));
    return this.drain(state);
  }

  flush(state) {
    ops.compression_end(this.id);
    return this.drain(state);
  }
}

function start(format, unpacks) {
  const coder = new Coder(format, unpacks);
  return transformOf((chunk, state) => coder.transform(chunk, state), (state) => coder.flush(state));
}

class CompressionStream {
  #state;

  constructor(format) {
    this.#state = start(format, false);
  }

  get readable() {
    if (!isObject(this) || !(#state in this)) illegalInvocation();
    return rt.wrapReadable(this.#state.readable);
  }

  get writable() {
    if (!isObject(this) || !(#state in this)) illegalInvocation();
    return rt.wrapWritable(this.#state.writable);
  }
}
decorate(CompressionStream);

class DecompressionStream {
  #state;

  constructor(format) {
    this.#state = start(format, true);
  }

  get readable() {
    if (!isObject(this) || !(#state in this)) illegalInvocation();
    return rt.wrapReadable(this.#state.readable);
  }

  get writable() {
    if (!isObject(this) || !(#state in this)) illegalInvocation();
    return rt.wrapWritable(this.#state.writable);
  }
}
decorate(DecompressionStream);

rt.expose('CompressionStream', CompressionStream);
rt.expose('DecompressionStream', DecompressionStream);
