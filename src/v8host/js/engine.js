// What every other file builds on: publishing globals, the clock, the frame that follows promises,
// the restrictions of the global scope, and `env`.
const { ObjectDefineProperty, ReflectConstruct, Date: NativeDate, DatePrototype, DatePrototypeToString } = primordials;

// Functions that the host calls, by name: `rt.entry.fetch = (event, cell, …) => …`.
rt.entry = { __proto__: null };
// Built-in modules: specifier -> object whose own properties are the exports.
rt.modules = { __proto__: null };
// The module namespace of the main module: set by the host once it has been evaluated.
rt.exports = undefined;
// The `env` of handlers: filled by `rt.entry.setup` before user code runs.
rt.env = {};

rt.define = (target, name, value) =>
  ObjectDefineProperty(target, name, { __proto__: null, value, enumerable: false, writable: true, configurable: true });
rt.expose = (name, value) => rt.define(globalThis, name, value);

// Flags of a failure, as `Failure` of the host has them.
rt.REMOTE = 1;
rt.RETRYABLE = 2;
rt.OVERLOADED = 4;
rt.DURABLE_OBJECT_RESET = 8;

// [0]: milliseconds since 1970 of the turn; written by the host before each turn. Time stands
// still while JavaScript runs. During start-up it is 0, as on Cloudflare.
const clock = new Float64Array(4);
rt.clock = clock;
rt.now = () => clock[0];

// The frame follows promise reactions: `{event, cell, section, store, state}` or undefined (global
// scope). `store` is for AsyncLocalStorage, `state` is the event itself as long as a handler runs in
// it (see dispatch.js). Frames are immutable: a change makes a new one.
rt.frame = ops.origin_get;
rt.setFrame = ops.origin_set;
rt.newFrame = (event, cell, section, store, state) => ({ event, cell, section, store, state });
// Runs `fn` inside of `frame`.
rt.runIn = (frame, fn, self, ...args) => {
  const before = ops.origin_get();
  ops.origin_set(frame);
  try {
    return primordials.ReflectApply(fn, self, args);
  } finally {
    ops.origin_set(before);
  }
};
// Throws when there is no event: I/O, timers and random values need one.
rt.checkIo = ops.check_io;

// `Date` with our clock. `Date.prototype` stays the native one.
function Date(...args) {
  if (new.target === undefined) return DatePrototypeToString(new NativeDate(clock[0]));
  if (args.length === 0) return ReflectConstruct(NativeDate, [clock[0]], new.target);
  return ReflectConstruct(NativeDate, args, new.target);
}
ObjectDefineProperty(Date, 'length', { __proto__: null, value: 7, configurable: true });
ObjectDefineProperty(Date, 'prototype', { __proto__: null, value: DatePrototype, writable: false, enumerable: false, configurable: false });
const DateMethods = {
  now() {
    return clock[0];
  },
};
rt.define(Date, 'now', DateMethods.now);
rt.define(Date, 'parse', NativeDate.parse);
rt.define(Date, 'UTC', NativeDate.UTC);
rt.define(DatePrototype, 'constructor', Date);
rt.expose('Date', Date);

// `bindings`: `[kind, name, ...details]` each. Kinds register a maker: `rt.bindings.durableObject`.
rt.bindings = { __proto__: null };
rt.entry.setup = (vars, bindings) => {
  const env = rt.env;
  for (const name of primordials.ReflectOwnKeys(vars)) env[name] = vars[name];
  for (let i = 0; i < bindings.length; i++) {
    const { 0: kind, 1: name } = bindings[i];
    const make = rt.bindings[kind];
    if (make === undefined) throw new primordials.Error(`binding ${name}: kind ${kind} is not supported`);
    env[name] = make(bindings[i]);
  }
};

// A promise of `namespace` once the module's evaluation is over: for `import()`.
rt.importThen = (evaluated, namespace) => primordials.PromisePrototypeThen(evaluated, () => namespace);
