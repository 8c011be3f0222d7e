//! Pipes: everything that a readable stream gives is written to a writable one.
//!
//! Publishes `pipe` and `pipeOptions` on `rt.streams`. A pipe reads only when the destination wants
//! more, and loses no chunk that it has read: a shutdown waits for the writes under way.
//! Source: Streams Standard, section 4.9.1 (ReadableStreamPipeTo).

const { isObject } = rt.webidl;
const { Deferred, markHandled, resolvedWith, then } = rt.promises;
const {
  CLOSED, ERRORED, READABLE, Reader, WRITABLE, WRITABLE_CLOSED, WRITABLE_ERRORED, WRITABLE_ERRORING, Writer, abortStream, cancelStream,
  closeWithErrors, closedOf, desiredSize, readInto, readyOf, releaseReader, releaseWriter, writeChunk, writerClosed,
} = rt.streams;
const { Object, TypeError } = globalThis;

const NONE = { __proto__: null, preventAbort: false, preventCancel: false, preventClose: false, signal: undefined };

/** Reads a `StreamPipeOptions` dictionary. */
function pipeOptions(options) {
  if (options === undefined || options === null) return NONE;
  if (!isObject(options)) throw new TypeError('The options of a pipe are not an object.');
  const preventAbort = !!options.preventAbort;
  const preventCancel = !!options.preventCancel;
  const preventClose = !!options.preventClose;
  const { signal } = options;
  if (signal !== undefined && !rt.abort.isSignal(signal)) throw new TypeError('The signal of a pipe is not of type \'AbortSignal\'.');
  return { __proto__: null, preventAbort, preventCancel, preventClose, signal };
}

/** The reason why a pipe ends; `failed` tells an error of `undefined` from none. */
class Pipe {
  constructor(source, target, options) {
    this.source = source;
    this.target = target;
    this.options = options;
    this.reader = new Reader(source, false);
    this.writer = new Writer(target);
    this.closing = false;
    this.write = resolvedWith(undefined);
    this.done = new Deferred();
    this.onAbort = null;
    source.disturbed = true;
  }

  start() {
    const { signal } = this.options;
    if (signal !== undefined) {
      if (rt.abort.aborted(signal)) {
        this.aborted();
        return;
      }
      this.onAbort = () => this.aborted();
      rt.abort.addAlgorithm(signal, this.onAbort);
    }
    if (this.ended()) return;
    const look = () => this.ended();
    then(closedOf(this.reader), look, look);
    then(writerClosed(this.writer), look, look);
    this.step();
  }

  /** Looks whether one side has ended, and shuts the pipe down then. */
  ended() {
    if (this.closing) return true;
    const { source, target, options } = this;
    if (source.state === ERRORED) {
      const reason = source.error;
      this.shutdown(options.preventAbort ? null : () => abortStream(target, reason), true, reason);
    } else if (target.state === WRITABLE_ERRORED || target.state === WRITABLE_ERRORING) {
      const reason = target.error;
      this.shutdown(options.preventCancel ? null : () => cancelStream(source, reason), true, reason);
    } else if (source.state === CLOSED) {
      this.shutdown(options.preventClose ? null : () => closeWithErrors(this.writer), false, undefined);
    } else if (target.closing() || target.state === WRITABLE_CLOSED) {
      const reason = new TypeError('The destination of the pipe has been closed.');
      this.shutdown(options.preventCancel ? null : () => cancelStream(source, reason), true, reason);
    } else return false;
    return true;
  }

  aborted() {
    const { source, target, options } = this;
    const reason = rt.abort.reason(options.signal);
    this.shutdown(() => {
      const abort = !options.preventAbort && target.state === WRITABLE ? abortStream(target, reason) : resolvedWith(undefined);
      const cancel = !options.preventCancel && source.state === READABLE ? cancelStream(source, reason) : resolvedWith(undefined);
      markHandled(cancel);
      return then(abort, () => cancel);
    }, true, reason);
  }

  step() {
    if (this.closing || this.ended()) return;
    if (desiredSize(this.writer) <= 0) {
      const again = () => this.step();
      then(readyOf(this.writer), again, again);
      return;
    }
    readInto(this.reader, {
      // In a microtask: an error that is on its way must come first.
      chunk: (value) => {
        this.write = then(resolvedWith(undefined), () => {
          if (this.writer.stream === null) return undefined;
          const write = writeChunk(this.writer, value);
          markHandled(write);
          this.step();
          return write;
        });
        markHandled(this.write);
      },
      close: () => this.ended(),
      error: () => this.ended(),
    });
  }

  shutdown(action, failed, reason) {
    if (this.closing) return;
    this.closing = true;
    const perform = () => {
      if (action === null) {
        this.finish(failed, reason);
        return;
      }
      then(action(), () => this.finish(failed, reason), (error) => this.finish(true, error));
    };
    if (this.target.state === WRITABLE && !this.target.closing()) this.drain(perform);
    else perform();
  }

  /** Calls `perform` once every chunk that was read has been written. */
  drain(perform) {
    const { write } = this;
    const look = () => (write === this.write ? perform() : this.drain(perform));
    then(write, look, look);
  }

  finish(failed, reason) {
    releaseWriter(this.writer);
    releaseReader(this.reader);
    if (this.onAbort !== null) rt.abort.removeAlgorithm(this.options.signal, this.onAbort);
    if (failed) this.done.reject(reason);
    else this.done.resolve(undefined);
  }
}

/** Pipes; both streams are locked until the promise that it returns settles. */
function pipe(source, target, options) {
  const run = new Pipe(source, target, options);
  run.start();
  return run.done.promise;
}

Object.assign(rt.streams, { pipe, pipeOptions });
