//! `Event`, `CustomEvent`, `ErrorEvent`, `EventTarget`, and the events of the global scope.
//!
//! Publishes `rt.events`. There is no tree: the path of an event is its target alone, so that a
//! dispatch is the listeners with `capture` and then the others.
//! An exception of a listener is reported (`rt.reportException`) and stops nobody else, unless a
//! script has dispatched the event: then that gets it, as in workerd.
//! Source: DOM Standard, sections 2.2 to 2.10; HTML Standard, section 8.1.8 for handlers.

const {
  append, arity, constants, constructor, convert, decorate, dictionary, illegalInvocation, isObject, method, mismatch,
  required, uncurry,
} = rt.webidl;
const { defineProperty, create, getOwnPropertyDescriptor, setPrototypeOf } = Object;
const { apply } = Reflect;

let isEvent;
/** Calls the listeners of `target` (or of the global scope) for the event. */
let dispatch;
/** Marks an event as made by the runtime. */
let trust;

const NONE = 0;
const AT_TARGET = 2;

class Event {
  #type;
  #bubbles = false;
  #cancelable = false;
  #composed = false;
  #trusted = false;
  /** Undefined until it is dispatched, as in workerd. */
  #target = undefined;
  #current = undefined;
  #phase = NONE;
  #dispatching = false;
  #stopped = false;
  #stoppedNow = false;
  #canceled = false;
  #inPassive = false;

  constructor(type, init = undefined) {
    const where = constructor('Event');
    required(arguments.length, where, 'string');
    this.#type = convert.DOMString(type);
    if (init === undefined) return;
    const { bubbles, cancelable, composed } = dictionary(init, where, 1, 'EventInit');
    this.#bubbles = !!bubbles;
    this.#cancelable = !!cancelable;
    this.#composed = !!composed;
  }

  get type() {
    if (!isEvent(this)) illegalInvocation();
    return this.#type;
  }

  get target() {
    if (!isEvent(this)) illegalInvocation();
    return this.#target;
  }

  get srcElement() {
    if (!isEvent(this)) illegalInvocation();
    return this.#target;
  }

  get currentTarget() {
    if (!isEvent(this)) illegalInvocation();
    return this.#current;
  }

  composedPath() {
    if (!isEvent(this)) illegalInvocation();
    return this.#phase === NONE ? [] : [this.#current];
  }

  get eventPhase() {
    if (!isEvent(this)) illegalInvocation();
    return this.#phase;
  }

  stopPropagation() {
    if (!isEvent(this)) illegalInvocation();
    this.#stopped = true;
  }

  get cancelBubble() {
    if (!isEvent(this)) illegalInvocation();
    return this.#stopped;
  }

  set cancelBubble(value) {
    if (!isEvent(this)) illegalInvocation();
    if (value) this.#stopped = true;
  }

  stopImmediatePropagation() {
    if (!isEvent(this)) illegalInvocation();
    this.#stopped = true;
    this.#stoppedNow = true;
  }

  get bubbles() {
    if (!isEvent(this)) illegalInvocation();
    return this.#bubbles;
  }

  get cancelable() {
    if (!isEvent(this)) illegalInvocation();
    return this.#cancelable;
  }

  get returnValue() {
    if (!isEvent(this)) illegalInvocation();
    return !this.#canceled;
  }

  set returnValue(value) {
    if (!isEvent(this)) illegalInvocation();
    if (!value) this.#cancel();
  }

  preventDefault() {
    if (!isEvent(this)) illegalInvocation();
    this.#cancel();
  }

  get defaultPrevented() {
    if (!isEvent(this)) illegalInvocation();
    return this.#canceled;
  }

  get composed() {
    if (!isEvent(this)) illegalInvocation();
    return this.#composed;
  }

  get isTrusted() {
    if (!isEvent(this)) illegalInvocation();
    return this.#trusted;
  }

  get timeStamp() {
    if (!isEvent(this)) illegalInvocation();
    return 0;
  }

  #cancel() {
    if (this.#cancelable && !this.#inPassive) this.#canceled = true;
  }

  static {
    isEvent = (value) => isObject(value) && #type in value;
    trust = (event) => {
      event.#trusted = true;
      return event;
    };
    dispatch = (target, registry, event, throws) => {
      if (event.#dispatching) throw rt.domException('The event is already being dispatched.', 'InvalidStateError');
      event.#dispatching = true;
      event.#target = target;
      event.#current = target;
      event.#phase = AT_TARGET;
      const list = registry[event.#type];
      try {
        if (list !== undefined) {
          // Listeners that are added meanwhile do not run: the length is the one of now. The list
          // itself is replaced, never changed, so that it stays as it was.
          Event.#invoke(target, registry, event, list, true, throws);
          Event.#invoke(target, registry, event, list, false, throws);
        }
      } finally {
        event.#phase = NONE;
        event.#dispatching = false;
        event.#stopped = false;
        event.#stoppedNow = false;
      }
      return !event.#canceled;
    };
  }

  static #invoke(target, registry, event, list, capture, throws) {
    if (event.#stopped) return;
    for (let i = 0; i < list.length; i++) {
      const listener = list[i];
      if (listener.removed || listener.capture !== capture) continue;
      if (listener.once) remove(registry, event.#type, listener);
      event.#inPassive = listener.passive;
      try {
        call(listener.callback, target, event);
      } catch (error) {
        if (throws) throw error;
        rt.reportException(error);
      } finally {
        event.#inPassive = false;
      }
      if (event.#stoppedNow) return;
    }
  }
}
arity(Event, 1);
decorate(Event);
constants(Event, { NONE: 0, CAPTURING_PHASE: 1, AT_TARGET: 2, BUBBLING_PHASE: 3 });

function call(callback, target, event) {
  if (typeof callback === 'function') {
    apply(callback, target, [event]);
    return;
  }
  const handleEvent = callback.handleEvent;
  if (typeof handleEvent !== 'function') {
    throw new TypeError("Incorrect type for the 'handleEvent' field on 'HandlerObject': the provided value is not of "
      + "type 'function'.");
  }
  apply(handleEvent, callback, [event]);
}

class CustomEvent extends Event {
  #detail = undefined;

  constructor(type, init = undefined) {
    required(arguments.length, constructor('CustomEvent'), 'string');
    super(type, init);
    if (init !== undefined && init !== null) this.#detail = init.detail;
  }

  get detail() {
    if (!isObject(this) || !(#detail in this)) illegalInvocation();
    return this.#detail;
  }
}
arity(CustomEvent, 1);
decorate(CustomEvent);

class ErrorEvent extends Event {
  #message = '';
  #filename = '';
  #lineno = 0;
  #colno = 0;
  #error = undefined;

  constructor(type, init = undefined) {
    required(arguments.length, constructor('ErrorEvent'), 'string');
    super(type, init);
    if (init === undefined || init === null) return;
    const { message, filename, lineno, colno, error } = init;
    if (message !== undefined) this.#message = convert.DOMString(message);
    if (filename !== undefined) this.#filename = convert.USVString(filename);
    if (lineno !== undefined) this.#lineno = convert.unsignedLong(lineno);
    if (colno !== undefined) this.#colno = convert.unsignedLong(colno);
    this.#error = error;
  }

  get message() {
    if (!isObject(this) || !(#message in this)) illegalInvocation();
    return this.#message;
  }

  get filename() {
    if (!isObject(this) || !(#filename in this)) illegalInvocation();
    return this.#filename;
  }

  get lineno() {
    if (!isObject(this) || !(#lineno in this)) illegalInvocation();
    return this.#lineno;
  }

  get colno() {
    if (!isObject(this) || !(#colno in this)) illegalInvocation();
    return this.#colno;
  }

  get error() {
    if (!isObject(this) || !(#error in this)) illegalInvocation();
    return this.#error;
  }
}
arity(ErrorEvent, 1);
decorate(ErrorEvent);

class PromiseRejectionEvent extends Event {
  #promise;
  #reason;

  constructor(type, init) {
    const where = constructor('PromiseRejectionEvent');
    required(arguments.length, where, 'string', 'PromiseRejectionEventInit');
    super(type, init);
    if (!isObject(init) || init.promise === undefined) mismatch(where, 1, 'PromiseRejectionEventInit');
    this.#promise = init.promise;
    this.#reason = init.reason;
  }

  get promise() {
    if (!isObject(this) || !(#promise in this)) illegalInvocation();
    return this.#promise;
  }

  get reason() {
    if (!isObject(this) || !(#reason in this)) illegalInvocation();
    return this.#reason;
  }
}
decorate(PromiseRejectionEvent);

// --- Targets. A registry is an object of type to list of listeners; a list is never changed in place.

function find(list, callback, capture) {
  if (list === undefined) return -1;
  for (let i = 0; i < list.length; i++) if (list[i].callback === callback && list[i].capture === capture) return i;
  return -1;
}

function remove(registry, type, listener) {
  const list = registry[type];
  if (list === undefined || listener.removed) return;
  listener.removed = true;
  const rest = [];
  for (let i = 0; i < list.length; i++) if (list[i] !== listener) append(rest, list[i]);
  if (rest.length === 0) delete registry[type];
  else registry[type] = rest;
}

/** What `addEventListener` does after its arguments are converted. */
function add(registry, type, callback, capture, once, passive) {
  const list = registry[type];
  if (find(list, callback, capture) >= 0) return null;
  const listener = { __proto__: null, callback, capture, once, passive, removed: false };
  const longer = [];
  if (list !== undefined) for (let i = 0; i < list.length; i++) append(longer, list[i]);
  append(longer, listener);
  registry[type] = longer;
  return listener;
}

function isListener(callback) {
  return callback === null || callback === undefined || isObject(callback);
}

const globalRegistry = create(null);
let registryOf;

class EventTarget {
  #registry = create(null);

  addEventListener(type, callback, options = undefined) {
    const target = this ?? globalThis;
    const registry = registryOf(target);
    const where = method('EventTarget', 'addEventListener');
    required(arguments.length, where, 'string', 'function or HandlerObject');
    type = convert.DOMString(type);
    if (!isListener(callback)) mismatch(where, 1, 'function or HandlerObject');
    let capture = false;
    let once = false;
    let passive = false;
    let signal;
    if (isObject(options)) {
      capture = !!options.capture;
      once = !!options.once;
      passive = !!options.passive;
      signal = options.signal;
      if (signal !== undefined && !rt.abort.isSignal(signal)) {
        throw new TypeError("Incorrect type for the 'signal' field on 'AddEventListenerOptions': the provided value is "
          + "not of type 'AbortSignal'.");
      }
    } else {
      capture = !!options;
    }
    if (callback === null || callback === undefined) return;
    if (signal !== undefined && rt.abort.aborted(signal)) return;
    const listener = add(registry, type, callback, capture, once, passive);
    if (listener === null) return;
    rt.abort.noticeListener(target, type);
    if (signal !== undefined) rt.abort.addAlgorithm(signal, () => remove(registry, type, listener));
  }

  removeEventListener(type, callback, options = undefined) {
    const registry = registryOf(this ?? globalThis);
    const where = method('EventTarget', 'removeEventListener');
    required(arguments.length, where, 'string', 'function or HandlerObject');
    type = convert.DOMString(type);
    if (!isListener(callback)) mismatch(where, 1, 'function or HandlerObject');
    const capture = isObject(options) ? !!options.capture : !!options;
    const list = registry[type];
    const index = find(list, callback, capture);
    if (index >= 0) remove(registry, type, list[index]);
  }

  dispatchEvent(event) {
    const target = this ?? globalThis;
    const registry = registryOf(target);
    if (!isEvent(event)) mismatch(method('EventTarget', 'dispatchEvent'), 0, 'Event');
    return dispatch(target, registry, event, true);
  }

  static {
    registryOf = (target) => {
      if (isObject(target)) {
        if (#registry in target) return target.#registry;
        if (target === globalThis) return globalRegistry;
      }
      return illegalInvocation();
    };
  }
}
decorate(EventTarget);

/**
 * Defines an event handler attribute such as `onabort` on a class of targets. The handler keeps the
 * place in the order of listeners that it had when it was first set, as HTML wants.
 */
function handlerAttribute(prototype, type) {
  const handlers = new WeakMap();
  const get = uncurry(WeakMap.prototype.get);
  const set = uncurry(WeakMap.prototype.set);
  const name = `on${type}`;
  const accessor = {
    get [name]() {
      registryOf(this);
      return get(handlers, this)?.value ?? null;
    },
    set [name](value) {
      const registry = registryOf(this);
      const handler = get(handlers, this);
      if (!isObject(value)) {
        if (handler !== undefined) {
          handler.value = null;
          remove(registry, type, handler.listener);
        }
        return;
      }
      if (handler !== undefined && !handler.listener.removed) {
        handler.value = value;
        return;
      }
      const fresh = { __proto__: null, value, listener: null };
      fresh.listener = add(registry, type, function (event) {
        if (typeof fresh.value !== 'function') return;
        if (apply(fresh.value, this, [event]) === false) event.preventDefault();
      }, false, false, false);
      set(handlers, this, fresh);
      rt.abort.noticeListener(this, type);
    },
  };
  const descriptor = getOwnPropertyDescriptor(accessor, name);
  const { get: read, set: write } = descriptor;
  defineProperty(prototype, name, { __proto__: null, get: read, set: write, enumerable: true, configurable: true });
}

// --- The global scope is a target too.

class WorkerGlobalScope extends EventTarget {
  constructor() {
    rt.webidl.illegalConstructor();
  }
}
decorate(WorkerGlobalScope);

class ServiceWorkerGlobalScope extends WorkerGlobalScope {}
decorate(ServiceWorkerGlobalScope);
setPrototypeOf(globalThis, ServiceWorkerGlobalScope.prototype);

/** Whether a script listens to this type on the global scope. */
function globalListens(type) {
  return globalRegistry[type] !== undefined;
}

/** Dispatches an event of the runtime on the global scope; false when its default was prevented. */
function dispatchGlobal(event) {
  return dispatch(globalThis, globalRegistry, trust(event), false);
}

rt.events = {
  Event,
  CustomEvent,
  ErrorEvent,
  EventTarget,
  PromiseRejectionEvent,
  /** Dispatches an event of the runtime on a target of ours. */
  dispatchTrusted: (target, event) => dispatch(target, registryOf(target), trust(event), false),
  globalListens,
  dispatchGlobal,
  handlerAttribute,
  isEvent,
  isTarget: (value) => isObject(value) && (value === globalThis || value instanceof EventTarget),
  /** Whether anybody listens to this type on a target of ours. */
  listens: (target, type) => registryOf(target)[type] !== undefined,
};
rt.expose('Event', Event);
rt.expose('CustomEvent', CustomEvent);
rt.expose('ErrorEvent', ErrorEvent);
rt.expose('PromiseRejectionEvent', PromiseRejectionEvent);
rt.expose('EventTarget', EventTarget);
rt.expose('WorkerGlobalScope', WorkerGlobalScope);
rt.expose('ServiceWorkerGlobalScope', ServiceWorkerGlobalScope);
