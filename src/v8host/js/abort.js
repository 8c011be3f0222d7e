//! `AbortController` and `AbortSignal`. Publishes `rt.abort` for whatever takes a signal.
//!
//! Invariant: a signal aborts once; its reason never changes after. A signal of `any` is marked
//! before the first event of its sources is fired, so that all of them agree.
//! Memory: a source holds its dependents weakly until somebody listens to one, as a signal that
//! lives long (a request's) may be given to `any` many times.
//! Source: DOM Standard, section 3.

const {
  append, convert, decorate, getter, illegalConstructor, illegalInvocation, isObject, method, mismatch, required, sequence,
  uncurry,
} = rt.webidl;
const { Event, EventTarget, dispatchTrusted, handlerAttribute, listens } = rt.events;
const { apply } = Reflect;
const SafeSet = Set;
const SafeWeakRef = WeakRef;
const setAdd = uncurry(Set.prototype.add);
const setHas = uncurry(Set.prototype.has);
const setRemove = uncurry(Set.prototype.delete);
const setEach = uncurry(Set.prototype.forEach);
const setSize = getter(Set.prototype, 'size');
const deref = uncurry(WeakRef.prototype.deref);

const MAKE = Symbol('make');
/** `AbortSignal.timeout` counts like setTimeout, whose delays have 31 bits; beyond, it never fires. */
const DELAY_MAX = 2 ** 31 - 1;

let isSignal;
let isAborted;
let reasonOf;
let abortSignal;
let addAlgorithm;
let removeAlgorithm;
let dependOn;
let keep;

const abortError = () => rt.domException('The operation was aborted', 'AbortError');

class AbortSignal extends EventTarget {
  #aborted = false;
  #reason = undefined;
  /** Functions of the runtime that run before the event; a Set, or null as long as there are none. */
  #algorithms = null;
  /** For a signal of `any`: the signals, themselves no dependents, that abort it. */
  #sources = null;
  /** Weak references to the signals that this one aborts. */
  #dependents = null;
  /** The dependents that somebody listens to: kept alive by their source. */
  #kept = null;
  /** Size of `#dependents` at which dead references are swept next. */
  #sweepAt = 16;

  constructor(token) {
    if (token !== MAKE) illegalConstructor();
    super();
  }

  get aborted() {
    if (!isSignal(this)) illegalInvocation();
    return this.#aborted;
  }

  get reason() {
    if (!isSignal(this)) illegalInvocation();
    return this.#reason;
  }

  throwIfAborted() {
    if (!isSignal(this)) illegalInvocation();
    if (this.#aborted) throw this.#reason;
  }

  static abort(reason = undefined) {
    const signal = new AbortSignal(MAKE);
    signal.#aborted = true;
    signal.#reason = reason === undefined ? abortError() : reason;
    return signal;
  }

  static timeout(delay) {
    required(arguments.length, method('AbortSignal', 'timeout'), 'number');
    const ms = convert.unsignedLongLong(delay);
    const signal = new AbortSignal(MAKE);
    if (ms <= DELAY_MAX) {
      rt.timers.after(ms, () => {
        abortSignal(signal, rt.domException('The operation was aborted due to timeout', 'TimeoutError'));
      });
    }
    return signal;
  }

  static any(signals) {
    const where = method('AbortSignal', 'any');
    required(arguments.length, where, 'Array');
    let index = 0;
    const list = sequence(signals, (value) => {
      if (!isSignal(value)) {
        throw new TypeError(`Incorrect type for array element ${index}: the provided value is not of type `
          + "'AbortSignal'.");
      }
      index++;
      return value;
    });
    if (list === null) mismatch(where, 0, 'Array');
    const signal = new AbortSignal(MAKE);
    for (let i = 0; i < list.length; i++) {
      if (list[i].#aborted) {
        signal.#aborted = true;
        signal.#reason = list[i].#reason;
        return signal;
      }
    }
    for (let i = 0; i < list.length; i++) dependOn(signal, list[i]);
    return signal;
  }

  static {
    isSignal = (value) => isObject(value) && #aborted in value;
    isAborted = (signal) => signal.#aborted;
    reasonOf = (signal) => signal.#reason;

    addAlgorithm = (signal, algorithm) => {
      if (signal.#aborted) return;
      signal.#algorithms ??= new SafeSet();
      setAdd(signal.#algorithms, algorithm);
      keep(signal);
    };
    removeAlgorithm = (signal, algorithm) => {
      if (signal.#algorithms === null || !setRemove(signal.#algorithms, algorithm)) return;
      if (setSize(signal.#algorithms) === 0 && !listens(signal, 'abort')) signal.#release();
    };

    // Sources are flattened: a dependent of a dependent hangs on the first sources.
    dependOn = (signal, source) => {
      signal.#sources ??= new SafeSet();
      if (source.#sources !== null) {
        setEach(source.#sources, (root) => dependOn(signal, root));
        return;
      }
      if (setHas(signal.#sources, source)) return;
      setAdd(signal.#sources, source);
      source.#dependents ??= [];
      if (source.#dependents.length >= source.#sweepAt) source.#sweep();
      append(source.#dependents, new SafeWeakRef(signal));
    };
    keep = (signal) => {
      if (signal.#sources === null) return;
      setEach(signal.#sources, (source) => {
        source.#kept ??= new SafeSet();
        setAdd(source.#kept, signal);
      });
    };

    abortSignal = (signal, reason) => {
      if (signal.#aborted) return;
      signal.#aborted = true;
      signal.#reason = reason === undefined ? abortError() : reason;
      const fired = [signal];
      const dependents = signal.#dependents ?? [];
      for (let i = 0; i < dependents.length; i++) {
        const dependent = deref(dependents[i]);
        if (dependent === undefined || dependent.#aborted) continue;
        dependent.#aborted = true;
        dependent.#reason = signal.#reason;
        append(fired, dependent);
      }
      for (let i = 0; i < fired.length; i++) fired[i].#fire();
    };
  }

  /** Sources no longer hold this dependent. */
  #release() {
    if (this.#sources === null) return;
    setEach(this.#sources, (source) => {
      if (source.#kept !== null) setRemove(source.#kept, this);
    });
  }

  #sweep() {
    const alive = [];
    for (let i = 0; i < this.#dependents.length; i++) {
      if (deref(this.#dependents[i]) !== undefined) append(alive, this.#dependents[i]);
    }
    this.#dependents = alive;
    this.#sweepAt = alive.length * 2 < 16 ? 16 : alive.length * 2;
  }

  #fire() {
    const algorithms = this.#algorithms;
    this.#release();
    this.#algorithms = null;
    this.#dependents = null;
    this.#kept = null;
    this.#sources = null;
    if (algorithms !== null) {
      setEach(algorithms, (algorithm) => {
        try {
          apply(algorithm, undefined, []);
        } catch (error) {
          rt.reportException(error);
        }
      });
    }
    if (listens(this, 'abort')) dispatchTrusted(this, new Event('abort'));
  }
}
handlerAttribute(AbortSignal.prototype, 'abort');
decorate(AbortSignal);

class AbortController {
  #signal = new AbortSignal(MAKE);

  get signal() {
    if (!isObject(this) || !(#signal in this)) illegalInvocation();
    return this.#signal;
  }

  abort(reason = undefined) {
    if (!isObject(this) || !(#signal in this)) illegalInvocation();
    abortSignal(this.#signal, reason);
  }
}
decorate(AbortController);

const { any } = AbortSignal;

rt.abort = {
  isSignal,
  aborted: isAborted,
  reason: reasonOf,
  /** A new signal; `signal` aborts it. */
  create: () => new AbortSignal(MAKE),
  signal: abortSignal,
  /** A signal that aborts with one of `sources` (signals); its own `signal` works too. */
  any,
  addAlgorithm,
  removeAlgorithm,
  /** Told by `addEventListener`, so that a listened-to dependent lives as long as its sources. */
  noticeListener: (target, type) => {
    if (type === 'abort' && isSignal(target) && !isAborted(target)) keep(target);
  },
};
rt.expose('AbortController', AbortController);
rt.expose('AbortSignal', AbortSignal);
