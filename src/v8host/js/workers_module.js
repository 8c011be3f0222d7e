//! The modules `cloudflare:workers` and `cloudflare:workflows`.
//!
//! Names that celld does not implement yet are there, so that an import links; they throw when they
//! are constructed or called, and name themselves.

const { Error, ObjectDefineProperty, TypeError } = primordials;
const { isObject } = rt.webidl;
const { RpcPromise, RpcProperty, RpcTarget } = rt.rpc;

function missing(name) {
  throw new Error(`${name} of cloudflare:workers is not implemented in celld yet.`);
}

/** A class that nobody can construct. */
function missingClass(name) {
  const Class = { [name]: class { constructor() { missing(name); } } }[name];
  return Class;
}

function setContext(self, ctx, env) {
  for (const { 0: name, 1: value } of [['ctx', ctx], ['env', env]]) {
    ObjectDefineProperty(self, name, { __proto__: null, value, writable: true, enumerable: true, configurable: true });
  }
}

/** Base class of Durable Objects. */
class DurableObject {
  constructor(ctx, env) {
    if (!rt.cellState.isState(ctx)) {
      throw new TypeError('Failed to construct \'DurableObjectBase\': constructor parameter 1 is not of type \'DurableObjectState\'.');
    }
    setContext(this, ctx, env);
  }
}

/** Base class of entrypoints: the handlers are methods. */
class WorkerEntrypoint {
  constructor(ctx, env) {
    if (!isObject(ctx)) {
      throw new TypeError('Failed to construct \'WorkerEntrypoint\': constructor parameter 1 is not of type \'ExecutionContext\'.');
    }
    setContext(this, ctx, env);
  }
}

const RpcStub = missingClass('RpcStub');
const ServiceStub = missingClass('ServiceStub');
const WorkflowEntrypoint = missingClass('WorkflowEntrypoint');

rt.modules['cloudflare:workers'] = {
  __proto__: null,
  DurableObject,
  RpcPromise,
  RpcProperty,
  RpcStub,
  RpcTarget,
  ServiceStub,
  WorkerEntrypoint,
  WorkflowEntrypoint,
  env: rt.env,
  exports: rt.loopback,
  tracing: rt.tracing,
  waitUntil(promise) {
    rt.checkIo();
    rt.waitUntil(promise);
  },
  withEnv() {
    missing('withEnv()');
  },
  withEnvAndExports() {
    missing('withEnvAndExports()');
  },
  withExports() {
    missing('withExports()');
  },
  abortIsolate() {
    missing('abortIsolate()');
  },
};

rt.modules['cloudflare:workflows'] = {
  __proto__: null,
  NonRetryableError: class NonRetryableError extends Error {
    constructor(message, name = 'NonRetryableError') {
      super(message);
      ObjectDefineProperty(this, 'name', { __proto__: null, value: name, writable: true, configurable: true });
    }
  },
};
