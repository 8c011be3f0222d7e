//! `ctx.tracing` and `tracing` of cloudflare:workers. Nobody traces: spans are there, and record nothing.
//!
//! The active span follows promises, in `store` of the frame. Publishes `rt.tracing`.
//! Source: behaviour and messages of workerd without a tracer.

const { convert, decorate, illegalConstructor, illegalInvocation, isObject, method, mismatch, required } = rt.webidl;
const { INTERNAL } = rt;
const { ArrayIsArray, ObjectDefineProperty, ObjectKeys, ReflectApply, TypeError } = primordials;
const { DOMString } = convert;

/** Checks the value of an attribute as if it were recorded. */
function checkAttribute(value) {
  if (value === undefined || value === null || typeof value === 'boolean' || typeof value === 'string') return;
  if (typeof value === 'bigint') throw new TypeError('Cannot convert a BigInt value to a number');
  if (typeof value !== 'number') DOMString(value);
}

let isSpan;

class Span {
  #brand;

  constructor(token) {
    if (token !== INTERNAL) illegalConstructor();
  }

  static {
    isSpan = (value) => isObject(value) && #brand in value;
  }

  get isTraced() {
    if (!isSpan(this)) illegalInvocation();
    return false;
  }

  spanContext() {
    if (!isSpan(this)) illegalInvocation();
    return { traceId: '00000000000000000000000000000000', spanId: '0000000000000000', traceFlags: 0 };
  }

  setAttribute(name, value = undefined) {
    if (!isSpan(this)) illegalInvocation();
    if (arguments.length === 0) required(0, method('Span', 'setAttribute'), 'string');
    DOMString(name);
    checkAttribute(value);
    return this;
  }

  setAttributes(attributes) {
    if (!isSpan(this)) illegalInvocation();
    if (!isObject(attributes) || ArrayIsArray(attributes)) mismatch(method('Span', 'setAttributes'), 0, 'object');
    const names = ObjectKeys(attributes);
    for (let i = 0; i < names.length; i++) checkAttribute(attributes[names[i]]);
    return this;
  }

  recordException(exception) {
    if (!isSpan(this)) illegalInvocation();
    required(arguments.length, method('Span', 'recordException'), 'Value');
  }

  updateName(name) {
    if (!isSpan(this)) illegalInvocation();
    if (arguments.length === 0) required(0, method('Span', 'updateName'), 'string');
    DOMString(name);
    return this;
  }

  setStatus(status) {
    if (!isSpan(this)) illegalInvocation();
    if (!isObject(status)) mismatch(method('Span', 'setStatus'), 0, 'TracingSpanStatus');
    const code = status.code === undefined ? undefined : DOMString(status.code);
    if (code !== 'unset' && code !== 'ok' && code !== 'error') {
      throw new TypeError('Span status code must be \'unset\', \'ok\', or \'error\'.');
    }
    return this;
  }

  end() {
    if (!isSpan(this)) illegalInvocation();
  }
}
decorate(Span);

/** Runs `callback` with `span` as the active one, also in what follows from its promises. */
function runWith(span, callback, args) {
  const frame = rt.frame();
  // The global scope has no frame, and none may come from here: it would look like an event.
  if (frame === undefined) return ReflectApply(callback, globalThis, args);
  const store = { __proto__: frame.store ?? null, span };
  const inner = rt.newFrame(frame.event, frame.cell, frame.section, store, frame.state);
  rt.setFrame(inner);
  try {
    return ReflectApply(callback, globalThis, args);
  } finally {
    rt.setFrame(frame);
  }
}

/** `name, callback, ...args` of a method: a new span goes before the arguments. */
function enter(name, args) {
  const where = method('Tracing', name);
  if (args.length === 0) required(0, where, 'string');
  DOMString(args[0]);
  if (typeof args[1] !== 'function') mismatch(where, 1, 'Function');
  const span = new Span(INTERNAL);
  const given = [span];
  for (let i = 2; i < args.length; i++) given[i - 1] = args[i];
  return runWith(span, args[1], given);
}

let isTracing;

class Tracing {
  #brand;

  constructor(token) {
    if (token !== INTERNAL) illegalConstructor();
  }

  static {
    isTracing = (value) => isObject(value) && #brand in value;
  }

  enterSpan(...args) {
    if (!isTracing(this)) illegalInvocation();
    return enter('enterSpan', args);
  }

  startActiveSpan(...args) {
    if (!isTracing(this)) illegalInvocation();
    return enter('startActiveSpan', args);
  }

  startSpan(name) {
    if (!isTracing(this)) illegalInvocation();
    if (arguments.length === 0) required(0, method('Tracing', 'startSpan'), 'string');
    DOMString(name);
    return new Span(INTERNAL);
  }

  getActiveSpan() {
    if (!isTracing(this)) illegalInvocation();
    const frame = rt.frame();
    return frame === undefined ? undefined : frame.store?.span ?? new Span(INTERNAL);
  }

  withActiveSpan(span, callback, ...args) {
    if (!isTracing(this)) illegalInvocation();
    const where = method('Tracing', 'withActiveSpan');
    if (!isSpan(span)) mismatch(where, 0, 'Span');
    if (typeof callback !== 'function') mismatch(where, 1, 'Function');
    return runWith(span, callback, args);
  }
}
ObjectDefineProperty(Tracing.prototype, 'Span', { __proto__: null, value: Span, writable: true, configurable: true });
decorate(Tracing);

rt.tracing = new Tracing(INTERNAL);
