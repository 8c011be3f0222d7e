//! `crypto`: random values, `subtle.digest`, `DigestStream`. Loaded after the streams.
//!
//! The members of `crypto.subtle` that are missing reject with a `NotSupportedError` that names
//! them. Random values need an event, as in workerd: there is none in the global scope.
//! Source: Web Cryptography Level 2, sections 10 and 14; messages are workerd's.

const {
  arity, bytesOf, constructor, convert, decorate, getter, illegalConstructor, illegalInvocation, isBufferSource, isObject,
  method, mismatch, required, uncurry,
} = rt.webidl;
const { WritableStream } = globalThis;
const { isView } = ArrayBuffer;
const { apply } = Reflect;
const SafePromise = Promise;
const { resolve: promiseResolve, reject: promiseReject } = Promise;
const resolved = (value) => apply(promiseResolve, SafePromise, [value]);
const rejected = (error) => apply(promiseReject, SafePromise, [error]);
const upper = uncurry(String.prototype.toUpperCase);
const viewTag = getter(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag);
const then = uncurry(Promise.prototype.then);

const RANDOM_MAX = 65_536;
const INTEGER_VIEWS = {
  __proto__: null,
  Int8Array: true,
  Uint8Array: true,
  Uint8ClampedArray: true,
  Int16Array: true,
  Uint16Array: true,
  Int32Array: true,
  Uint32Array: true,
  BigInt64Array: true,
  BigUint64Array: true,
};
const DIGESTS = { __proto__: null, 'SHA-1': true, 'SHA-256': true, 'SHA-384': true, 'SHA-512': true, MD5: true };

let constructing = false;

/** The name of a digest in capitals; throws what workerd throws for others. */
function digestName(algorithm, where) {
  let name;
  if (typeof algorithm === 'string') name = algorithm;
  else if (isObject(algorithm)) name = algorithm.name === undefined ? '' : convert.DOMString(algorithm.name);
  else mismatch(where, 0, 'string or HashAlgorithm');
  name = upper(name);
  if (!DIGESTS[name]) {
    throw rt.domException('Unrecognized or unimplemented digest algorithm requested.', 'NotSupportedError');
  }
  return name;
}

class SubtleCrypto {
  #brand = true;

  constructor() {
    if (!constructing) illegalConstructor();
  }

  digest(algorithm, data) {
    try {
      if (!isObject(this) || !(#brand in this)) illegalInvocation();
      const where = method('SubtleCrypto', 'digest');
      required(arguments.length, where, 'string or HashAlgorithm', 'BufferSource');
      if (!isBufferSource(data)) mismatch(where, 1, 'BufferSource');
      return resolved(ops.digest(digestName(algorithm, where), bytesOf(data)));
    } catch (error) {
      return rejected(error);
    }
  }

  timingSafeEqual(a, b) {
    if (!isObject(this) || !(#brand in this)) illegalInvocation();
    const where = method('SubtleCrypto', 'timingSafeEqual');
    required(arguments.length, where, 'BufferSource', 'BufferSource');
    if (!isBufferSource(a)) mismatch(where, 0, 'BufferSource');
    if (!isBufferSource(b)) mismatch(where, 1, 'BufferSource');
    return ops.timing_safe_equal(bytesOf(a), bytesOf(b));
  }

  static {
    const later = {
      encrypt: 3,
      decrypt: 3,
      sign: 3,
      verify: 4,
      generateKey: 3,
      deriveKey: 5,
      deriveBits: 2,
      importKey: 5,
      exportKey: 2,
      wrapKey: 4,
      unwrapKey: 7,
    };
    for (const name of Object.keys(later)) {
      const member = {
        [name]() {
          return rejected(rt.domException(`crypto.subtle.${name} is not implemented in celld yet`, 'NotSupportedError'));
        },
      };
      Object.defineProperty(SubtleCrypto.prototype, name, {
        __proto__: null, value: arity(member[name], later[name]), writable: true, configurable: true,
      });
    }
  }
}
decorate(SubtleCrypto);

/** A WritableStream that hashes what is written to it. */
class DigestStream extends WritableStream {
  #state;

  constructor(algorithm) {
    const where = constructor('DigestStream');
    required(arguments.length, where, 'string or HashAlgorithm');
    const name = digestName(algorithm, where);
    const state = { __proto__: null, digest: undefined, written: 0n, id: 0, resolve: undefined, reject: undefined };
    state.digest = new SafePromise((resolve, reject) => {
      state.resolve = resolve;
      state.reject = reject;
    });
    // A digest that nobody asks for is no unhandled rejection.
    then(state.digest, undefined, () => {});
    super({
      write(chunk) {
        let bytes;
        if (typeof chunk === 'string') bytes = rt.encoding.encode(chunk);
        else if (isBufferSource(chunk)) bytes = bytesOf(chunk);
        else {
          const error = new TypeError('DigestStream is a byte stream but received an object of non-ArrayBuffer/'
            + 'ArrayBufferView/string type on its writable side.');
          state.reject(error);
          throw error;
        }
        state.written += BigInt(bytes.length);
        ops.digest_update(state.id, bytes);
      },
      close() {
        state.resolve(ops.digest_finish(state.id));
      },
      abort(reason) {
        state.reject(reason);
      },
    });
    this.#state = state;
    state.id = ops.digest_start(name, this);
  }

  get digest() {
    if (!isObject(this) || !(#state in this)) illegalInvocation();
    return this.#state.digest;
  }

  get bytesWritten() {
    if (!isObject(this) || !(#state in this)) illegalInvocation();
    return this.#state.written;
  }
}
decorate(DigestStream);

class Crypto {
  #subtle;

  constructor() {
    if (!constructing) illegalConstructor();
    this.#subtle = new SubtleCrypto();
  }

  get subtle() {
    if (!isObject(this) || !(#subtle in this)) illegalInvocation();
    return this.#subtle;
  }

  get DigestStream() {
    if (!isObject(this) || !(#subtle in this)) illegalInvocation();
    return DigestStream;
  }

  getRandomValues(array) {
    if (!isObject(this) || !(#subtle in this)) illegalInvocation();
    const where = method('Crypto', 'getRandomValues');
    required(arguments.length, where, 'ArrayBufferView');
    if (!isView(array)) mismatch(where, 0, 'ArrayBufferView');
    const tag = viewTag(array);
    if (tag === undefined || !INTEGER_VIEWS[tag]) {
      throw rt.domException('ArrayBufferView argument to getRandomValues() must be an integer-typed view.',
        'TypeMismatchError');
    }
    const bytes = bytesOf(array);
    if (bytes.length > RANDOM_MAX) {
      throw rt.domException(`getRandomValues() only accepts buffers of size <= 64K but provided ${bytes.length} bytes.`,
        'QuotaExceededError');
    }
    rt.checkIo();
    ops.random_fill(bytes);
    return array;
  }

  randomUUID() {
    if (!isObject(this) || !(#subtle in this)) illegalInvocation();
    rt.checkIo();
    return ops.random_uuid();
  }
}
decorate(Crypto);

constructing = true;
rt.expose('crypto', new Crypto());
constructing = false;
rt.expose('Crypto', Crypto);
rt.expose('SubtleCrypto', SubtleCrypto);
