//! JavaScript RPC: calls of methods of Durable Objects and entrypoints, by name.
//!
//! A call is one message, `[path, arguments]`, serialised as values in storage are, with instances of
//! classes refused; its answer is the value, serialised so too. Values are passed, objects by reference
//! (functions, `RpcTarget`s, stubs, streams) are refused with an error that says so: so a name behind a
//! call that has not been answered yet is a property of its value, and is looked up on this side.
//! Invariant: the arguments are serialised when the call is made, and calls on one stub go out in order.
//! Publishes `rt.rpc`. Shapes and messages are workerd's.

const { append, decorate, illegalConstructor, illegalInvocation, isObject } = rt.webidl;
const { INTERNAL, body: B } = rt;
const { Deferred, rejectedWith, resolvedWith, then } = rt.promises;
const { EventState, answerValue, fail } = rt.dispatch;
const {
  ArrayPrototypeJoin, ObjectDefineProperty, ObjectGetPrototypeOf, ObjectHasOwn, ObjectPrototype, ObjectSetPrototypeOf,
  PromisePrototypeCatch, PromisePrototypeFinally, PromisePrototypeThen, Proxy, ReflectApply, ReflectGet, SymbolDispose,
  SymbolToStringTag, TypeError,
} = primordials;

const PATH_MAX = 64;
/** Proxies around proxies of a stub. */
const DEPTH_MAX = 64;
/** Members that a stub does not take for names of methods: promises and JSON ask for them. */
const NO_METHOD = { __proto__: null, then: 1, toJSON: 1 };
/** Handlers of an object, and names with a meaning of their own: none is called by another. */
const RESERVED = {
  __proto__: null, alarm: 1, connect: 1, constructor: 1, dup: 1, fetch: 1, webSocketClose: 1, webSocketError: 1, webSocketMessage: 1,
};
const NO_RPC = 'The receiving Durable Object does not support RPC, because its class was not declared with `extends DurableObject`. '
  + 'In order to enable RPC, make sure your class extends the special class `DurableObject`, which can be imported from the module '
  + '"cloudflare:workers".';
const ONE_ARGUMENT = 'When calling a top-level handler function that is not declared as part of a class, you must always send exactly '
  + 'one argument. In order to support variable numbers of arguments, the server must use class-based syntax (extending '
  + 'WorkerEntrypoint) instead.';

// --- Messages.

function dispose() {
  // Nothing is held on the other side.
}

/** The value of an answer. `using` takes an object. */
function readAnswer(bytes) {
  const value = ops.rpc_read(bytes);
  if (isObject(value)) {
    ObjectDefineProperty(value, SymbolDispose, { __proto__: null, value: dispose, writable: true, enumerable: false, configurable: true });
  }
  return value;
}

// --- Looking a name up.

const missing = (name) => new TypeError(`The RPC receiver does not implement the method "${name}".`);
const noFunction = (path) => new TypeError(`"${ArrayPrototypeJoin(path, '.')}" is not a function.`);

/** What `name` is of a value behind the first name: own properties of plain objects, and methods of an `RpcTarget`. */
function memberOf(value, name, before) {
  if (!isObject(value)) throw missing(before);
  if (typeof value === 'function' || ObjectGetPrototypeOf(value) === ObjectPrototype) {
    if (ObjectHasOwn(value, name)) return value[name];
    throw missing(name);
  }
  if (value instanceof RpcTarget) {
    if (isMethod(value, name)) return value[name];
    throw missing(name);
  }
  // A getter may lead to another object.
  if (rt.stubs.isStub(value)) return value[name];
  throw missing(before);
}

/** Whether an instance may have it from its class. */
function isMethod(instance, name) {
  return !ObjectHasOwn(instance, name) && !(name in ObjectPrototype);
}

/** What `path` leads to behind its name `at`, of which `value` is the value, and what that is a member of. */
function walk(value, path, at) {
  let holder;
  for (; at < path.length; at++) {
    holder = value;
    value = memberOf(holder, path[at], at === 0 ? path[at] : path[at - 1]);
  }
  return { __proto__: null, value, holder };
}

/** A copy of `path`, with one more name. */
function longer(path, name) {
  const copy = [];
  for (let at = 0; at < path.length; at++) append(copy, path[at]);
  append(copy, name);
  return copy;
}

// --- The side that asks.

/**
 * A chain of names behind a stub or a call. `target` has `get(path)` and `call(path, args)`, which return
 * promises. Called, it calls; awaited, it asks for the value.
 */
class Names {
  #target;
  #path;

  constructor(target, path) {
    if (path.length > PATH_MAX) throw new TypeError(`RPC pipelined property path is too deep (max ${PATH_MAX}).`);
    this.#target = target;
    this.#path = path;
  }

  get(itself, name, receiver) {
    if (name === 'toJSON') return undefined;
    if (typeof name === 'string' && !(name in RpcProperty.prototype)) return property(this.#target, longer(this.#path, name));
    const asked = () => this.#target.get(this.#path);
    return promiseMember(name, asked) ?? ReflectGet(RpcProperty.prototype, name, receiver);
  }

  apply(itself, self, args) {
    return pending(this.#target.call(this.#path, args));
  }
}

/** What is behind the value of a call. */
class Later {
  #promise;

  constructor(promise) {
    this.#promise = promise;
  }

  get(path) {
    return then(this.#promise, (value) => {
      const found = walk(value, path, 0).value;
      if (found === undefined) throw missing(path[path.length - 1]);
      return found;
    });
  }

  call(path) {
    return then(this.#promise, (value) => {
      walk(value, path, 0);
      // No value holds a function.
      throw noFunction(path);
    });
  }
}

/** A call: a promise of its value, and names behind that. */
class Pending {
  #promise;

  constructor(promise) {
    this.#promise = promise;
  }

  get(itself, name, receiver) {
    if (name === 'toJSON') return undefined;
    if (typeof name === 'string' && !(name in RpcPromise.prototype)) return property(new Later(this.#promise), [name]);
    if (name === SymbolDispose) return dispose;
    return promiseMember(name, () => this.#promise) ?? ReflectGet(RpcPromise.prototype, name, receiver);
  }

  apply() {
    return pending(then(this.#promise, () => {
      throw new TypeError('The result of this RPC is not a function.');
    }));
  }
}

/** `then`, `catch` and `finally`, for the promise that `ask` returns. */
function promiseMember(name, ask) {
  switch (name) {
    case 'then':
      return (fulfilled, rejected) => PromisePrototypeThen(ask(), fulfilled, rejected);
    case 'catch':
      return (rejected) => PromisePrototypeCatch(ask(), rejected);
    case 'finally':
      return (settled) => PromisePrototypeFinally(ask(), settled);
    default:
      return undefined;
  }
}

/** Marks objects that may be passed by reference, once that is implemented. */
class RpcTarget {}
ops.mark_interface(RpcTarget.prototype, 'RpcTarget');

/** Of a name or a call these are its proxy's. */
class Awaitable {
  constructor() {
    illegalConstructor();
  }

  then() {
    illegalInvocation();
  }

  catch() {
    illegalInvocation();
  }

  finally() {
    illegalInvocation();
  }
}

class RpcProperty extends Awaitable {}
decorate(RpcProperty);

class RpcPromise extends Awaitable {}
decorate(RpcPromise);
for (const Class of [RpcProperty, RpcPromise]) {
  const value = `Js${Class.name}`;
  ObjectDefineProperty(Class.prototype, SymbolToStringTag, { __proto__: null, value, writable: false, enumerable: false, configurable: true });
}

/** A function with nothing of its own but the prototype. */
function callable(prototype) {
  const target = () => {};
  delete target.name;
  delete target.length;
  return ObjectSetPrototypeOf(target, prototype);
}

// What is put into `Object.prototype` is no trap.
ObjectSetPrototypeOf(Names.prototype, null);
ObjectSetPrototypeOf(Pending.prototype, null);

const property = (target, path) => new Proxy(callable(RpcProperty.prototype), new Names(target, path));
const pending = (promise) => new Proxy(callable(RpcPromise.prototype), new Pending(promise));

/** The stub that a proxy, or an object which inherits from it, stands for, if any. */
function behind(object, isStub) {
  for (let depth = 0; isObject(object) && depth < DEPTH_MAX; depth++) {
    if (isStub(object)) return object;
    object = ops.proxy_target(object) ?? ObjectGetPrototypeOf(object);
  }
  return undefined;
}

/**
 * What the class of a stub inherits from: any name that it does not have is one of what it stands for.
 * `send(stub, message)` serialises the message, and returns a promise of the answer's bytes.
 */
function anyName(isStub, send) {
  class Target {
    #stub;

    constructor(stub) {
      this.#stub = stub;
    }

    /** The value, which is a promise's. */
    get(path) {
      return this.call(path, undefined);
    }

    call(path, args) {
      try {
        rt.checkIo();
        rt.asking.count();
        return then(send(this.#stub, [path, args]), readAnswer);
      } catch (error) {
        return rejectedWith(error);
      }
    }
  }
  return new Proxy({ __proto__: null }, {
    __proto__: null,
    has: (target, name) => (typeof name === 'string' && NO_METHOD[name] !== 1) || name in ObjectPrototype,
    get(target, name, receiver) {
      const isName = typeof name === 'string' && NO_METHOD[name] !== 1 && !(name in ObjectPrototype);
      const stub = isName ? behind(receiver, isStub) : undefined;
      return stub === undefined ? ReflectGet(ObjectPrototype, name, receiver) : property(new Target(stub), [name]);
    },
  });
}

/** A call that the host has, and the bytes of its answer. */
class Sent extends Deferred {
  constructor(id, failed) {
    super();
    this.id = id;
    this.frame = rt.frame();
    this.failed = failed;
    rt.calls.add(this);
  }

  response(response) {
    then(B.consume(response, (bytes) => bytes), (bytes) => this.resolve(bytes), (error) => this.reject(error));
  }

  error(reason, isLoss) {
    this.failed(reason, isLoss);
    this.reject(reason);
  }
}

// --- The side that is asked.

/** Calls what a message asks for. `root`: has the first name. `rest`: further arguments. */
function perform(root, message, isRoot, rest) {
  const { 0: path, 1: args } = message;
  const first = path[0];
  if (RESERVED[first] === 1) throw new TypeError(`'${first}' is a reserved method and cannot be called over RPC.`);
  if (!isRoot(root, first)) throw missing(first);
  const { value, holder = root } = walk(root[first], path, 1);
  const last = path[path.length - 1];
  if (value === undefined) throw missing(last);
  if (args === undefined) return value;
  if (typeof value !== 'function') throw noFunction(path);
  if (rest === undefined) return ReflectApply(value, holder, args);
  if (args.length !== 1) {
    throw new TypeError(`Attempted to call RPC function "${last}" with the wrong number of arguments. ${ONE_ARGUMENT}`);
  }
  return ReflectApply(value, holder, [args[0], rest[0], rest[1]]);
}

/** Answers an event with what `run` returns. */
function answerWith(event, run) {
  let result;
  try {
    result = run();
  } catch (error) {
    fail(event, error);
    return;
  }
  then(resolvedWith(result), (value) => {
    if (!event.answered) answerValue(event, value);
  }, (error) => fail(event, error));
}

rt.entry.rpc = (id, slot, message) => {
  const event = new EventState(id, slot);
  rt.setFrame(rt.newFrame(id, slot, undefined, undefined, event));
  answerWith(event, () => {
    const { instance } = rt.cellState.cellOf(slot);
    const { DurableObject } = rt.modules['cloudflare:workers'];
    if (!(instance instanceof DurableObject)) throw new TypeError(NO_RPC);
    return perform(instance, message, isMethod, undefined);
  });
};

/** A call of an entrypoint of this realm, as a part of the event that runs. Returns a promise of the answer's bytes. */
function callLocally(main, props, message) {
  const answered = new Deferred();
  const asked = {
    __proto__: null,
    respondValue: (value) => answered.resolve(ops.rpc_write(value)),
    fail: (error) => answered.reject(rt.remote(error)),
  };
  // In a microtask, as an answer wants the call.
  then(resolvedWith(undefined), () => rt.dispatch.runLocally(asked, (event) => answerWith(event, () => {
    const context = new rt.dispatch.ExecutionContext(INTERNAL, event, props);
    if (typeof main === 'function') return perform(new main(context, rt.env), ops.rpc_read(message), isMethod, undefined);
    return perform(main, ops.rpc_read(message), (root, name) => isObject(root) && name in root && !(name in ObjectPrototype), [rt.env, context]);
  })));
  return answered.promise;
}

/** The name of the class of a name or a call whose proxy has this target. */
function classOf(target) {
  if (typeof target !== 'function') return undefined;
  const prototype = ObjectGetPrototypeOf(target);
  if (prototype === RpcProperty.prototype) return 'RpcProperty';
  return prototype === RpcPromise.prototype ? 'RpcPromise' : undefined;
}

rt.rpc = { __proto__: null, classOf, RpcPromise, RpcProperty, RpcTarget, Sent, anyName, callLocally };
