//! Entrypoints of the main module in `ctx.exports`: `fetch` and calls of methods run in this realm.
//!
//! Invariant: such a call is a part of the event that asks, which does not end before it.
//! Publishes `rt.loopback` and `rt.export`. Shapes and messages are workerd's.

const { decorate, illegalConstructor, illegalInvocation, isObject, method, mismatch, required } = rt.webidl;
const { rejectedWith, resolvedWith, then } = rt.promises;
const { INTERNAL, body: B, headers: H, request: R, response: P } = rt;
const { Asked, Call, NO_HOST, count, withoutFragment } = rt.asking;
const {
  Error, FunctionPrototypeBind, ObjectDefineProperty, ObjectPrototype, ObjectSetPrototypeOf, StringPrototypeStartsWith: startsWith, TypeError,
} = primordials;
const { structuredClone } = globalThis;

/** A copy of what an entrypoint has thrown, as the caller of a cell gets one. */
rt.remote = (thrown) => {
  const { 0: name, 1: message, 2: stack, 3: flags, 4: form } = ops.failure_of(thrown);
  return rt.failureError(name, message, stack, flags | rt.REMOTE, form);
};

/** What an entrypoint is asked, and asked again when it redirects. */
class AskedLocally extends Asked {
  constructor(target, request, url, manual) {
    super(null, request, url, manual);
    this.target = target;
    this.call = null;
  }

  /** In a microtask, as an answer wants the call. */
  send() {
    then(resolvedWith(undefined), () => this.run());
    return NO_HOST;
  }

  run() {
    if (this.call.isAborted) return;
    const list = typeof this.list === 'object' ? H.listCopy(this.list) : this.list;
    const request = R.make(this.method, this.url, list, this.kind, this.value, this.length, undefined);
    // The same bytes may be asked with again.
    B.share(request);
    rt.dispatch.fetchLocally(rt.exports[this.target.name], this.target.props?.(), request, this);
  }

  respond(response) {
    let list = H.listCopy(B.list(response));
    if (H.listGet(list, 'location') === '') list = H.listWithout(list, 'location');
    let { kind, value, length } = B.take(response);
    if (this.method === 'HEAD') {
      B.drop(response);
      kind = B.NONE;
      value = undefined;
      length = -1;
    }
    const answer = P.make(P.status(response), P.statusText(response), list, kind, value, length, this.url, this.hops > 0, this.manual,
      P.webSocket(response));
    B.share(answer);
    this.call.answered(answer);
  }

  fail(thrown) {
    this.call.error(rt.remote(thrown));
  }

  failed() {
    // The stub stays whole.
  }
}

function ask(target, input, init) {
  rt.checkIo();
  const asIs = init === undefined && R.isRequest(input);
  const request = asIs ? input : new R.Request(input, init);
  const signal = R.signal(request);
  if (signal !== null && rt.abort.aborted(signal)) return rejectedWith(rt.abort.reason(signal));
  const url = withoutFragment(R.url(request));
  if (!startsWith(url, 'http://') && !startsWith(url, 'https://')) throw new TypeError(`Fetch API cannot load: ${url}`);
  count();
  const asked = new AskedLocally(target, request, url, !asIs && R.manual(request));
  B.take(request);
  asked.call = new Call(asked.send(), signal, asked, asked.manual);
  return asked.call.promise;
}

/** Gives private members to an object that is there: a stub can be called, too. */
class Extended {
  constructor(object) {
    return object ?? this;
  }
}

let stubs;

class Fetcher extends Extended {
  /** The `name` of the export, and what makes `props`, if any. */
  #target;

  static {
    stubs = {
      isStub: (value) => isObject(value) && #target in value,
      send: (stub, message) => {
        const { name, props } = stub.#target;
        return rt.rpc.callLocally(rt.exports[name], props?.(), ops.rpc_write(message));
      },
    };
  }

  constructor(token, target, object) {
    if (token !== INTERNAL) illegalConstructor();
    super(object);
    this.#target = target;
  }

  fetch(input, init = undefined) {
    if (!isObject(this) || !(#target in this)) illegalInvocation();
    try {
      if (arguments.length === 0) required(0, method('Fetcher', 'fetch'), 'Request or string');
      return ask(this.#target, input, init);
    } catch (error) {
      return rejectedWith(error);
    }
  }

  connect() {
    if (!isObject(this) || !(#target in this)) illegalInvocation();
    throw new Error('Fetcher.connect() is not implemented in celld yet.');
  }
}
ObjectSetPrototypeOf(Fetcher.prototype, rt.rpc.anyName(stubs.isStub, stubs.send));
decorate(Fetcher);

class LoopbackServiceStub extends Fetcher {}
decorate(LoopbackServiceStub);

class DurableObjectClass {
  constructor() {
    illegalConstructor();
  }
}
decorate(DurableObjectClass);

class LoopbackDurableObjectClass extends DurableObjectClass {}
decorate(LoopbackDurableObjectClass);

/** What calls of a stub give: `props` for `ctx.props`, or `undefined`. */
function propsOf(options, stub) {
  if (!isObject(options)) mismatch(method(stub, '(called as function)'), 0, 'Options');
  const { props } = options;
  if (props === undefined) return undefined;
  if (!isObject(props)) throw new TypeError('Incorrect type for the \'props\' field on \'Options\': the provided value is not of type \'Object\'.');
  const kept = structuredClone(props);
  return () => structuredClone(kept);
}

/** A function with nothing of its own, which can be called and constructed. */
function bare(callable) {
  const bound = FunctionPrototypeBind(callable, undefined);
  delete bound.name;
  delete bound.length;
  return bound;
}

function serviceStub(name) {
  const callable = bare(function stub(options) {
    return new Fetcher(INTERNAL, { name, props: propsOf(options, 'LoopbackServiceStub') }, undefined);
  });
  ObjectSetPrototypeOf(callable, LoopbackServiceStub.prototype);
  return new LoopbackServiceStub(INTERNAL, { name, props: undefined }, callable);
}

/** Nothing takes such a class yet: facets would. */
function classStub() {
  const callable = bare(function stub(options) {
    propsOf(options, 'LoopbackDurableObjectClass');
    return { __proto__: DurableObjectClass.prototype };
  });
  return ObjectSetPrototypeOf(callable, LoopbackDurableObjectClass.prototype);
}

/** `ctx.exports`: a namespace for each class that is bound, and what `rt.export` adds. */
rt.loopback = { __proto__: ObjectPrototype };

rt.export = (name, value) => {
  if (!isObject(value)) return;
  const { WorkerEntrypoint } = rt.modules['cloudflare:workers'];
  const isClass = typeof value === 'function' && !(value.prototype instanceof WorkerEntrypoint);
  ObjectDefineProperty(rt.loopback, name, {
    __proto__: null, value: isClass ? classStub() : serviceStub(name), writable: true, enumerable: true, configurable: true,
  });
};

let hasExports;
/** Whether the compatibility date or a flag puts `exports` into `ctx`. */
rt.hasExports = () => {
  hasExports ??= ops.has_ctx_exports();
  return hasExports;
};
