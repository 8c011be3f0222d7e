//! `TextEncoder`, `TextDecoder`, `atob`, `btoa`. Publishes `rt.encoding`.
//!
//! Source: Encoding Standard, sections 7.1 to 7.5; HTML Standard, section 8.3 (base64); messages are
//! workerd's.

const {
  arity, bytesOf, constructor, convert, decorate, illegalInvocation, isBufferSource, isObject, getter, method, mismatch,
  required,
} = rt.webidl;
const { Uint8Array: SafeUint8Array } = globalThis;
const viewTag = getter(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag);
const SCOPE = 'ServiceWorkerGlobalScope';
const EMPTY = new Uint8Array(0);

class TextEncoder {
  #brand = true;

  get encoding() {
    if (!isObject(this) || !(#brand in this)) illegalInvocation();
    return 'utf-8';
  }

  encode(input = '') {
    if (!isObject(this) || !(#brand in this)) illegalInvocation();
    const text = convert.DOMString(input);
    return text === '' ? new SafeUint8Array(0) : ops.encode_utf8(text);
  }

  encodeInto(source, destination) {
    if (!isObject(this) || !(#brand in this)) illegalInvocation();
    const where = method('TextEncoder', 'encodeInto');
    required(arguments.length, where, 'string', 'Uint8Array');
    const text = convert.DOMString(source);
    if (!isObject(destination) || viewTag(destination) !== 'Uint8Array') mismatch(where, 1, 'Uint8Array');
    const { 0: read, 1: written } = ops.encode_into(text, destination);
    return { read, written };
  }
}
decorate(TextEncoder);

class TextDecoder {
  #encoding;
  #fatal = false;
  #ignoreBOM = false;
  /** Number of the native decoder of a stream under way; 0 when there is none. */
  #stream = 0;

  constructor(label = 'utf-8', options = undefined) {
    label = convert.DOMString(label);
    if (options !== undefined && options !== null) {
      if (!isObject(options)) mismatch(constructor('TextDecoder'), 1, 'ConstructorOptions');
      this.#fatal = !!options.fatal;
      this.#ignoreBOM = !!options.ignoreBOM;
    }
    const name = ops.encoding_name(label);
    if (name === null) throw new RangeError(`"${label}" is not a valid encoding.`);
    this.#encoding = name;
  }

  get encoding() {
    if (!isObject(this) || !(#encoding in this)) illegalInvocation();
    return this.#encoding;
  }

  get fatal() {
    if (!isObject(this) || !(#encoding in this)) illegalInvocation();
    return this.#fatal;
  }

  get ignoreBOM() {
    if (!isObject(this) || !(#encoding in this)) illegalInvocation();
    return this.#ignoreBOM;
  }

  decode(input = undefined, options = undefined) {
    if (!isObject(this) || !(#encoding in this)) illegalInvocation();
    const where = method('TextDecoder', 'decode');
    let bytes = EMPTY;
    if (input !== undefined) {
      if (!isBufferSource(input)) mismatch(where, 0, 'BufferSource');
      bytes = bytesOf(input);
    }
    if (options !== undefined && options !== null && !isObject(options)) mismatch(where, 1, 'DecodeOptions');
    const more = !!options?.stream;
    let text;
    if (this.#stream === 0 && !more) {
      text = ops.decode(this.#encoding, bytes, this.#fatal, this.#ignoreBOM);
    } else {
      const stream = this.#stream;
      this.#stream = 0;
      const result = ops.decode_stream(stream, this.#encoding, bytes, this.#fatal, this.#ignoreBOM, !more, this);
      text = result === null ? null : result[1];
      if (result !== null) this.#stream = result[0];
    }
    if (text === null) throw new TypeError('Failed to decode input.');
    return text;
  }
}
arity(TextDecoder.prototype.decode, 0);
decorate(TextDecoder);

rt.encoding = {
  TextDecoder,
  TextEncoder,
  /** UTF-8 of a string, as a new Uint8Array. */
  encode: ops.encode_utf8,
  /** Text of bytes as "UTF-8 decode" has it: a byte order mark goes, invalid bytes become U+FFFD. */
  decode: (bytes) => ops.decode('utf-8', bytes, false, false),
};
rt.expose('TextEncoder', TextEncoder);
rt.expose('TextDecoder', TextDecoder);

rt.expose('atob', function atob(data) {
  required(arguments.length, method(SCOPE, 'atob'), 'string');
  const text = ops.base64_decode(convert.DOMString(data));
  if (text === null) {
    throw rt.domException("atob() called with invalid base64-encoded data. (Only whitespace, '+', '/', alphanumeric "
      + "ASCII, and up to two terminal '=' signs when the input data length is divisible by 4 are allowed.)",
    'InvalidCharacterError');
  }
  return text;
});

rt.expose('btoa', function btoa(data) {
  required(arguments.length, method(SCOPE, 'btoa'), 'String');
  const text = ops.base64_encode(convert.DOMString(data));
  if (text === null) {
    throw rt.domException('btoa() can only operate on characters in the Latin1 (ISO/IEC 8859-1) range.',
      'InvalidCharacterError');
  }
  return text;
});
