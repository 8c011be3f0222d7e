//! `Blob` and `File`. Publishes `rt.blob`. Loaded after the streams.
//!
//! Invariant: the bytes of a blob never change: they are copied when it is made, and its slices share
//! them. Source: File API, sections 3 and 4; messages are workerd's.

const {
  append, bytesOf, constructor, convert, decorate, illegalInvocation, isBufferSource, isObject, mismatch, required,
  sequence, uncurry, getter,
} = rt.webidl;
const { ReadableStream, Uint8Array: SafeUint8Array } = globalThis;
const { apply } = Reflect;
const SafePromise = Promise;
const { resolve: promiseResolve, reject: promiseReject } = Promise;
const resolved = (value) => apply(promiseResolve, SafePromise, [value]);
const rejected = (error) => apply(promiseReject, SafePromise, [error]);
const { prototype: bytesPrototype } = Uint8Array;
const subarray = uncurry(bytesPrototype.subarray);
const copyOf = uncurry(bytesPrototype.slice);
const setBytes = uncurry(bytesPrototype.set);
const lengthOf = getter(Object.getPrototypeOf(bytesPrototype), 'byteLength');
const bufferOf = getter(Object.getPrototypeOf(bytesPrototype), 'buffer');
const lower = uncurry(String.prototype.toLowerCase);
const trim = uncurry(String.prototype.trim);
const sliceString = uncurry(String.prototype.slice);
const exec = uncurry(RegExp.prototype.exec);
const charCode = uncurry(String.prototype.charCodeAt);
const replace = uncurry(RegExp.prototype[Symbol.replace]);

/** Size of the pieces of `stream()`. */
const PIECE = 65_536;

let isBlob;
let isFile;
let blobBytes;
let blobType;
let make;

/** A type with a character that is no printable ASCII is no type; others are in lower case. */
function normalizeType(type) {
  for (let i = 0; i < type.length; i++) {
    const code = charCode(type, i);
    if (code < 0x20 || code > 0x7e) return '';
  }
  return lower(type);
}

const TYPE = /^([!#$%&'*+\-.^_`|~0-9a-z]+\/[!#$%&'*+\-.^_`|~0-9a-z]+)[\t\n\r ]*(?:;|$)/i;
const PARAMETER = /^[\t\n\r ]*(?:([!#$%&'*+\-.^_`|~0-9a-z]+)=(?:("(?:[^"\\]|\\.)*")[^;]*|([^;"]+))|[^;]*)(?:;|$)/i;

/** A `Content-Type` as the type of a blob: one that is none is empty, and so are bad parameters. */
function typeOfHeader(text) {
  text = trim(text);
  const essence = exec(TYPE, text);
  if (essence === null) return '';
  let type = lower(essence[1]);
  for (let rest = sliceString(text, essence[0].length); rest !== '';) {
    const parameter = exec(PARAMETER, rest);
    if (parameter === null) break;
    rest = sliceString(rest, parameter[0].length);
    const value = parameter[2] ?? (parameter[3] === undefined ? '' : trim(parameter[3]));
    if (parameter[1] !== undefined && value !== '') type += `;${lower(parameter[1])}=${value}`;
  }
  return type;
}

function concat(parts, native) {
  const pieces = [];
  let total = 0;
  for (let i = 0; i < parts.length; i++) {
    const part = parts[i];
    let bytes;
    if (typeof part === 'string') {
      bytes = ops.encode_utf8(native ? replace(/\r\n|\r/g, part, '\n') : part);
    } else if (isBlob(part)) {
      bytes = blobBytes(part);
    } else {
      bytes = bytesOf(part);
    }
    append(pieces, bytes);
    total += lengthOf(bytes);
  }
  const all = new SafeUint8Array(total);
  let at = 0;
  for (let i = 0; i < pieces.length; i++) {
    setBytes(all, pieces[i], at);
    at += lengthOf(pieces[i]);
  }
  return all;
}

function partOf(part) {
  return isBufferSource(part) || isBlob(part) ? part : convert.USVString(part);
}

function readOptions(options, where, index) {
  if (options === undefined || options === null) return { native: false, type: '' };
  if (!isObject(options)) mismatch(where, index, 'Options');
  const { endings, type } = options;
  const native = endings !== undefined
    && rt.webidl.enumeration(endings, ['transparent', 'native'], where, 'EndingType') === 'native';
  return { native, type: type === undefined ? '' : normalizeType(convert.DOMString(type)) };
}

const MADE = Symbol('made');

class Blob {
  #bytes;
  #type;

  constructor(parts = undefined, options = undefined) {
    if (parts === MADE) {
      this.#bytes = options.bytes;
      this.#type = options.type;
      return;
    }
    const where = constructor(new.target === File ? 'File' : 'Blob');
    const list = parts === undefined ? [] : sequence(parts, partOf);
    if (list === null) mismatch(where, 0, 'Array');
    const { native, type } = readOptions(options, where, new.target === File ? 2 : 1);
    this.#bytes = concat(list, native);
    this.#type = type;
  }

  get size() {
    return lengthOf(blobBytes(this));
  }

  get type() {
    if (!isBlob(this)) illegalInvocation();
    return this.#type;
  }

  slice(start = undefined, end = undefined, type = undefined) {
    const bytes = blobBytes(this);
    const size = lengthOf(bytes);
    const place = (value, missing) => {
      if (value === undefined) return missing;
      const at = convert.longLong(value, 'clamp');
      return at < 0 ? (size + at < 0 ? 0 : size + at) : at > size ? size : at;
    };
    const from = place(start, 0);
    const to = place(end, size);
    return make(subarray(bytes, from, to < from ? from : to),
      type === undefined ? '' : normalizeType(convert.DOMString(type)));
  }

  arrayBuffer() {
    try {
      return resolved(bufferOf(copyOf(blobBytes(this))));
    } catch (error) {
      return rejected(error);
    }
  }

  bytes() {
    try {
      return resolved(copyOf(blobBytes(this)));
    } catch (error) {
      return rejected(error);
    }
  }

  text() {
    try {
      return resolved(rt.encoding.decode(blobBytes(this)));
    } catch (error) {
      return rejected(error);
    }
  }

  stream() {
    const bytes = blobBytes(this);
    const size = lengthOf(bytes);
    let at = 0;
    return new ReadableStream({
      type: 'bytes',
      pull(controller) {
        if (at >= size) {
          controller.close();
          controller.byobRequest?.respond(0);
          return;
        }
        const end = at + PIECE > size ? size : at + PIECE;
        controller.enqueue(copyOf(bytes, at, end));
        at = end;
      },
    });
  }

  static {
    isBlob = (value) => isObject(value) && #bytes in value;
    blobBytes = (self) => {
      if (!isBlob(self)) illegalInvocation();
      return self.#bytes;
    };
    blobType = (self) => self.#type;
    make = (bytes, type) => new Blob(MADE, { __proto__: null, bytes, type });
  }
}
rt.webidl.arity(Blob, 0);
decorate(Blob);

class File extends Blob {
  #name;
  #lastModified;

  constructor(parts, name, options = undefined) {
    if (parts === MADE) {
      super(MADE, options);
      this.#name = name;
      this.#lastModified = options.lastModified;
      return;
    }
    const where = constructor('File');
    required(arguments.length, where, 'Array', 'string');
    super(parts === undefined ? null : parts, options);
    this.#name = convert.USVString(name);
    const modified = options?.lastModified;
    this.#lastModified = modified === undefined ? rt.now() : convert.longLong(modified);
  }

  get name() {
    if (!isFile(this)) illegalInvocation();
    return this.#name;
  }

  get lastModified() {
    if (!isFile(this)) illegalInvocation();
    return this.#lastModified;
  }

  static {
    isFile = (value) => isObject(value) && #name in value;
  }
}
rt.webidl.arity(File, 2);
decorate(File);

rt.blob = {
  Blob,
  File,
  /** The bytes of a blob, not a copy: whoever gets them must not change them. */
  bytes: blobBytes,
  isBlob,
  isFile,
  type: blobType,
  /** A blob around bytes that nobody changes any more, with the type of a `Content-Type`. */
  make: (bytes, header) => make(bytes, typeOfHeader(header)),
  makeFile: (bytes, type, name) =>
    new File(MADE, name, { __proto__: null, bytes, type, lastModified: rt.now() }),
};
rt.expose('Blob', Blob);
rt.expose('File', File);
