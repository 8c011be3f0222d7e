// Copies of the built-ins that the runtime uses, taken before any user code can patch them.
// Names as in Node: `primordials.ArrayPrototypePush(array, value)` is an uncurried method,
// `primordials.ObjectFreeze` a static one, `primordials.Map` the constructor itself; a getter is
// `primordials.TypedArrayPrototypeGetByteLength(view)`.
const { bind, call, apply } = Function.prototype;
const uncurry = bind.bind(call);
primordials.uncurryThis = uncurry;
primordials.applyBind = bind.bind(apply);

const nameOf = (key) => {
  if (typeof key === 'symbol') {
    return `Symbol${key.description[7].toUpperCase()}${key.description.slice(8)}`;
  }
  return `${key[0].toUpperCase()}${key.slice(1)}`;
};

const copy = (source, prefix, convert) => {
  for (const key of Reflect.ownKeys(source)) {
    if (key === 'caller' || key === 'callee' || key === 'arguments') continue;
    const desc = Reflect.getOwnPropertyDescriptor(source, key);
    const name = nameOf(key);
    if ('get' in desc) {
      if (desc.get) primordials[`${prefix}Get${name}`] = uncurry(desc.get);
      if (desc.set) primordials[`${prefix}Set${name}`] = uncurry(desc.set);
    } else {
      primordials[`${prefix}${name}`] =
        typeof desc.value === 'function' ? convert(desc.value) : desc.value;
    }
  }
};

for (const name of ['Atomics', 'JSON', 'Math', 'Reflect', 'Proxy']) {
  const self = globalThis[name];
  if (typeof self === 'function') primordials[name] = self;
  copy(self, name, (value) => (typeof self === 'object' ? value.bind(self) : value));
}

const constructors = {
  AggregateError, Array, ArrayBuffer, BigInt, BigInt64Array, BigUint64Array, Boolean, DataView, Date,
  Error, EvalError, FinalizationRegistry, Float32Array, Float64Array, Function, Int16Array, Int32Array,
  Int8Array, Map, Number, Object, Promise, RangeError, ReferenceError, RegExp, Set,
  String, Symbol, SyntaxError, TypeError, URIError, Uint16Array, Uint32Array, Uint8Array,
  Uint8ClampedArray, WeakMap, WeakRef, WeakSet,
  TypedArray: Reflect.getPrototypeOf(Uint8Array),
};
for (const [name, original] of Object.entries(constructors)) {
  primordials[name] = original;
  // Static methods keep `this`: subclassing is not wanted inside the runtime.
  copy(original, name, (value) => (value === original.prototype ? value : value.bind(original)));
  primordials[`${name}Prototype`] = original.prototype;
  copy(original.prototype, `${name}Prototype`, uncurry);
}

const iterators = {
  ArrayIterator: [][Symbol.iterator](),
  StringIterator: ''[Symbol.iterator](),
};
for (const [name, it] of Object.entries(iterators)) {
  primordials[`${name}Prototype`] = Reflect.getPrototypeOf(it);
  copy(Reflect.getPrototypeOf(it), `${name}Prototype`, uncurry);
}
primordials.IteratorPrototype = Reflect.getPrototypeOf(Reflect.getPrototypeOf([][Symbol.iterator]()));
primordials.AsyncIteratorPrototype = Reflect.getPrototypeOf(
  Reflect.getPrototypeOf(async function* () {}).prototype,
);
for (const name of ['decodeURI', 'decodeURIComponent', 'encodeURI', 'encodeURIComponent', 'parseFloat', 'parseInt']) {
  primordials[name] = globalThis[name];
}
primordials.queueMicrotask = ops.queue_microtask;
Object.setPrototypeOf(primordials, null);
Object.freeze(primordials);
