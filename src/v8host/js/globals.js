//! `performance`, `navigator`, `Cloudflare`, `self`, and the names of workerd that celld does not
//! have yet.
//!
//! A missing class is a function, so that `typeof` and `instanceof` work and code that only looks
//! for it goes on; to construct or to call it throws an error with its name. (A getter that throws
//! would break `typeof`; to leave the name out would say only "is not defined".)
//! Source: High Resolution Time; workerd for `timeOrigin`, which is 0, and for `navigator`.

const { decorate, illegalConstructor, illegalInvocation, isObject } = rt.webidl;
const { defineProperty, freeze } = Object;

let constructing = false;

class Performance extends rt.events.EventTarget {
  #brand = true;

  constructor() {
    if (!constructing) illegalConstructor();
    super();
  }

  get timeOrigin() {
    if (!isObject(this) || !(#brand in this)) illegalInvocation();
    return 0;
  }

  /** Milliseconds since 1970; the same number until the turn ends, so that nothing can be timed. */
  now() {
    if (!isObject(this) || !(#brand in this)) illegalInvocation();
    return rt.now();
  }

  toJSON() {
    if (!isObject(this) || !(#brand in this)) illegalInvocation();
    return { timeOrigin: 0 };
  }
}
decorate(Performance);

class Navigator {
  constructor() {
    if (!constructing) illegalConstructor();
  }

  sendBeacon() {
    throw new Error('navigator.sendBeacon is not implemented in celld yet');
  }
}
decorate(Navigator);

constructing = true;
const performance = new Performance();
const navigator = new Navigator();
constructing = false;
const facts = {
  userAgent: 'Cloudflare-Workers',
  hardwareConcurrency: 1,
  platform: '',
  language: 'en',
  languages: freeze(['en']),
};
for (const name of Object.keys(facts)) {
  defineProperty(navigator, name, { __proto__: null, value: facts[name], enumerable: true, configurable: true });
}
rt.expose('Performance', Performance);
rt.expose('performance', performance);
rt.expose('Navigator', Navigator);
rt.expose('navigator', navigator);

// --- Cloudflare.

let flags;
const Cloudflare = {
  /** What the configuration sets: `{flag: true}`. A flag that is off or unknown is not there. */
  get compatibilityFlags() {
    if (flags === undefined) {
      const names = ops.compatibility_flags();
      const found = { __proto__: null };
      for (let i = 0; i < names.length; i++) found[names[i]] = true;
      flags = freeze(found);
    }
    return flags;
  },
};
rt.expose('Cloudflare', Cloudflare);
rt.expose('self', globalThis);
rt.expose('origin', 'null');

// --- What is missing.

function missingClass(name) {
  const Missing = {
    // A method cannot be constructed: this must be a function.
    [name]: function () {
      throw new Error(`${name} is not implemented in celld yet`);
    },
  }[name];
  rt.expose(name, Missing);
}

/** An object whose members throw. */
function missingObject(name, members) {
  const object = {};
  for (let i = 0; i < members.length; i++) {
    const fail = () => {
      throw new Error(`${name}.${members[i]} is not implemented in celld yet`);
    };
    defineProperty(object, members[i], { __proto__: null, get: fail, enumerable: true, configurable: true });
  }
  rt.expose(name, object);
}

const CLASSES = [
  'HTMLRewriter', 'EventSource', 'MessageChannel', 'MessagePort',
  'URLPattern', 'CryptoKey', 'Cache', 'CacheStorage', 'setImmediate',
  'clearImmediate',
];
for (const name of CLASSES) if (!(name in globalThis)) missingClass(name);
if (!('caches' in globalThis)) missingObject('caches', ['default', 'open', 'match', 'has', 'delete', 'keys']);
