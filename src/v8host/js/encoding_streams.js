//! `TextEncoderStream` and `TextDecoderStream`, on `TransformStream`.
//!
//! Source: Encoding Standard, sections 7.6 and 7.7.

const { convert, decorate, illegalInvocation, isBufferSource, isObject, getter, uncurry } = rt.webidl;
const { TextDecoder, encode } = rt.encoding;
const { TransformStream } = globalThis;
const readableOf = getter(TransformStream.prototype, 'readable');
const writableOf = getter(TransformStream.prototype, 'writable');
const enqueue = uncurry(TransformStreamDefaultController.prototype.enqueue);
const decode = uncurry(TextDecoder.prototype.decode);
const encodingOf = getter(TextDecoder.prototype, 'encoding');
const fatalOf = getter(TextDecoder.prototype, 'fatal');
const ignoreBOMOf = getter(TextDecoder.prototype, 'ignoreBOM');
const charCode = uncurry(String.prototype.charCodeAt);
const slice = uncurry(String.prototype.slice);

/** UTF-8 of U+FFFD: what a lone surrogate becomes. */
const REPLACEMENT = [0xef, 0xbf, 0xbd];

class TextEncoderStream {
  #transform;
  /** The first half of a surrogate pair that the last chunk ended with, or ''. */
  #half = '';

  constructor() {
    this.#transform = new TransformStream({
      transform: (chunk, controller) => {
        let text = this.#half + convert.DOMString(chunk);
        this.#half = '';
        const last = text === '' ? 0 : charCode(text, text.length - 1);
        if (last >= 0xd800 && last <= 0xdbff) {
          this.#half = slice(text, -1);
          text = slice(text, 0, -1);
        }
        if (text !== '') enqueue(controller, encode(text));
      },
      flush: (controller) => {
        if (this.#half !== '') enqueue(controller, new Uint8Array(REPLACEMENT));
      },
    });
  }

  get encoding() {
    if (!isObject(this) || !(#transform in this)) illegalInvocation();
    return 'utf-8';
  }

  get readable() {
    if (!isObject(this) || !(#transform in this)) illegalInvocation();
    return readableOf(this.#transform);
  }

  get writable() {
    if (!isObject(this) || !(#transform in this)) illegalInvocation();
    return writableOf(this.#transform);
  }
}
decorate(TextEncoderStream);

class TextDecoderStream {
  #decoder;
  #transform;

  constructor(label = 'utf-8', options = undefined) {
    const decoder = new TextDecoder(label, options);
    this.#decoder = decoder;
    this.#transform = new TransformStream({
      transform(chunk, controller) {
        if (!isBufferSource(chunk)) {
          throw new TypeError('This TransformStream is being used as a byte stream, but received a value that is not a '
            + 'BufferSource.');
        }
        const text = decode(decoder, chunk, { stream: true });
        if (text !== '') enqueue(controller, text);
      },
      flush(controller) {
        const text = decode(decoder);
        if (text !== '') enqueue(controller, text);
      },
    });
  }

  get encoding() {
    if (!isObject(this) || !(#transform in this)) illegalInvocation();
    return encodingOf(this.#decoder);
  }

  get fatal() {
    if (!isObject(this) || !(#transform in this)) illegalInvocation();
    return fatalOf(this.#decoder);
  }

  get ignoreBOM() {
    if (!isObject(this) || !(#transform in this)) illegalInvocation();
    return ignoreBOMOf(this.#decoder);
  }

  get readable() {
    if (!isObject(this) || !(#transform in this)) illegalInvocation();
    return readableOf(this.#transform);
  }

  get writable() {
    if (!isObject(this) || !(#transform in this)) illegalInvocation();
    return writableOf(this.#transform);
  }
}
decorate(TextDecoderStream);

rt.expose('TextEncoderStream', TextEncoderStream);
rt.expose('TextDecoderStream', TextDecoderStream);
