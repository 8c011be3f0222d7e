//! Durable Objects: namespaces, ids and stubs on one side, the cell's `ctx` and its sections on the
//! other. Publishes `rt.cells` (slot -> cell), `rt.cellState` and `rt.namespaceOf`.
//!
//! Invariant: code of a cell runs in a frame with the cell's slot; code in a section runs in a frame
//! with the section's number too, and the host lets answers to that section through.
//! Messages are workerd's.

const {
  decorate, dictionary, illegalConstructor, illegalInvocation, isObject, method, mismatch, required,
} = rt.webidl;
const { INTERNAL, SafeMap } = rt;
const { markHandled, rejectedWith, resolvedWith, then } = rt.promises;
const {
  Error, ObjectDefineProperty, ObjectFreeze, ObjectHasOwn, ObjectKeys, ObjectSetPrototypeOf, ReflectApply, TypeError,
} = primordials;

const NO_JURISDICTION = 'Jurisdiction restrictions are not implemented in celld.';

const readOnly = (target, name, value) => ObjectDefineProperty(target, name, { __proto__: null, value, enumerable: true });

// --- Ids.

let ids;

class DurableObjectId {
  #hex;
  /** Key of the namespace that the id is for. */
  #namespace;
  #name;
  /**
   * Own properties that cannot be written, for JSON. Freezing all of the object takes a fraction of the
   * microsecond that defining them so would.
   */
  name;
  jurisdiction = undefined;

  constructor(token, hex, namespace, name) {
    if (token !== INTERNAL) illegalConstructor();
    this.#hex = hex;
    this.#namespace = namespace;
    this.#name = name;
    this.name = name;
    ObjectFreeze(this);
  }

  static {
    ids = {
      isId: (value) => isObject(value) && #hex in value,
      hex: (id) => id.#hex,
      namespace: (id) => id.#namespace,
      name: (id) => id.#name,
    };
  }

  toString() {
    if (!ids.isId(this)) illegalInvocation();
    return this.#hex;
  }

  equals(other) {
    if (!ids.isId(this)) illegalInvocation();
    if (!ids.isId(other)) mismatch(method('DurableObjectId', 'equals'), 0, 'DurableObjectId');
    return this.#hex === other.#hex;
  }
}
decorate(DurableObjectId);

// --- Stubs.

/** Stubs are numbered in a realm: calls on one stub arrive in order. */
let stubs = 0;

/** The class of stubs, which workerd calls `DurableObject` too. */
class DurableObject {
  #number;
  #class;
  #namespace;
  #hex;
  #name;
  /** Own properties, as those of ids. */
  name;
  id;
  /** The failure that broke this stub: every later call fails with it. */
  #broken = null;

  constructor(token, className, namespace, id) {
    if (token !== INTERNAL) illegalConstructor();
    const name = ids.name(id);
    stubs += 1;
    this.#number = stubs;
    this.#class = className;
    this.#namespace = namespace;
    this.#hex = ids.hex(id);
    this.#name = name;
    this.name = name;
    this.id = id;
    ObjectFreeze(this);
  }

  fetch(input, init = undefined) {
    if (!isObject(this) || !(#number in this)) illegalInvocation();
    if (this.#broken !== null) return rejectedWith(this.#broken);
    try {
      if (arguments.length === 0) required(0, method('Fetcher', 'fetch'), 'Request or string');
      return rt.send(input, init, this);
    } catch (error) {
      return rejectedWith(error);
    }
  }

  connect() {
    if (!isObject(this) || !(#number in this)) illegalInvocation();
    throw new Error('Fetcher.connect() is not implemented in celld yet.');
  }

  static {
    rt.stubs = {
      __proto__: null,
      call: (stub, verb, url, headers, kind, value, length, redirect, manual) => ops.fetch_cell(
        stub.#number, stub.#class, stub.#namespace, stub.#hex, stub.#name, verb, url, headers, kind, value, length, redirect, manual),
      isStub: (value) => isObject(value) && #number in value,
      /** Sends a message of RPC. Returns a promise of the answer's bytes. */
      send: (stub, message) => {
        if (stub.#broken !== null) return rejectedWith(stub.#broken);
        const id = ops.call_cell(stub.#number, stub.#class, stub.#namespace, stub.#hex, stub.#name, message);
        return new rt.rpc.Sent(id, (reason, isLoss) => rt.stubs.failed(stub, reason, isLoss)).promise;
      },
      /** An exception of the object's own code leaves the stub whole; the loss of the object breaks it. */
      failed: (stub, error, isLoss) => {
        if (isLoss) stub.#broken = error;
      },
    };
  }
}
ObjectSetPrototypeOf(DurableObject.prototype, rt.rpc.anyName(rt.stubs.isStub, rt.stubs.send));
decorate(DurableObject);

// --- Namespaces.

/** Names whose ids a namespace remembers: an id costs two HMACs. */
const NAMES_MAX = 1024;

class DurableObjectNamespace {
  #class;
  #namespace;
  /** Name -> hexadecimal digits of its id. */
  #names = new SafeMap();
  #namesCount = 0;

  constructor(token, className, namespace) {
    if (token !== INTERNAL) illegalConstructor();
    this.#class = className;
    this.#namespace = namespace;
  }

  static #check(value) {
    if (!isObject(value) || !(#class in value)) illegalInvocation();
  }

  #hexOf(name) {
    const known = this.#names.get(name);
    if (known !== undefined) return known;
    const hex = ops.id_of_name(this.#namespace, name);
    if (this.#namesCount === NAMES_MAX) {
      this.#names.clear();
      this.#namesCount = 0;
    }
    this.#namesCount += 1;
    this.#names.set(name, hex);
    return hex;
  }

  #make(hex, name) {
    return new DurableObjectId(INTERNAL, hex, this.#namespace, name);
  }

  newUniqueId(options = undefined) {
    DurableObjectNamespace.#check(this);
    const { jurisdiction } = dictionary(options, method('DurableObjectNamespace', 'newUniqueId'), 0, 'NewUniqueIdOptions');
    if (jurisdiction !== undefined && jurisdiction !== null) throw new Error(NO_JURISDICTION);
    return this.#make(ops.id_unique(this.#namespace), undefined);
  }

  idFromName(name) {
    DurableObjectNamespace.#check(this);
    if (arguments.length === 0) required(0, method('DurableObjectNamespace', 'idFromName'), 'string');
    const text = `${name}`;
    return this.#make(this.#hexOf(text), text);
  }

  idFromString(text) {
    DurableObjectNamespace.#check(this);
    required(arguments.length, method('DurableObjectNamespace', 'idFromString'), 'string');
    return this.#make(ops.id_check(this.#namespace, `${text}`), undefined);
  }

  get(id, options = undefined) {
    DurableObjectNamespace.#check(this);
    if (!ids.isId(id)) mismatch(method('DurableObjectNamespace', 'get'), 0, 'DurableObjectId');
    if (options !== undefined) dictionary(options, method('DurableObjectNamespace', 'get'), 1, 'GetDurableObjectOptions');
    if (ids.namespace(id) !== this.#namespace) {
      throw new TypeError('get called on the wrong Durable Object namespace for this ID.');
    }
    return new DurableObject(INTERNAL, this.#class, this.#namespace, id);
  }

  getByName(name, options = undefined) {
    DurableObjectNamespace.#check(this);
    if (arguments.length === 0) required(0, method('DurableObjectNamespace', 'getByName'), 'string');
    if (options !== undefined) dictionary(options, method('DurableObjectNamespace', 'getByName'), 1, 'GetDurableObjectOptions');
    const text = `${name}`;
    return new DurableObject(INTERNAL, this.#class, this.#namespace, this.#make(this.#hexOf(text), text));
  }

  jurisdiction(name = undefined) {
    DurableObjectNamespace.#check(this);
    if (name !== undefined && name !== null) throw new Error(NO_JURISDICTION);
    return this;
  }
}
decorate(DurableObjectNamespace);

/** `durable_objects.bindings` of the script: `[kind, name, class, namespace]` each. */
const bound = [];

rt.bindings.durableObject = (binding) => {
  const namespace = new DurableObjectNamespace(INTERNAL, binding[2], binding[3]);
  bound[bound.length] = binding;
  if (!ObjectHasOwn(rt.loopback, binding[2])) {
    ObjectDefineProperty(rt.loopback, binding[2], { __proto__: null, value: namespace, writable: true, enumerable: true, configurable: true });
  }
  return namespace;
};

/** The names of the classes among exports, for a message. */
function classesOf(exports) {
  const names = ObjectKeys(exports);
  let list = '';
  for (let i = 0; i < names.length; i++) {
    if (names[i] === 'default' || typeof exports[names[i]] !== 'function') continue;
    list += list === '' ? `"${names[i]}"` : `, "${names[i]}"`;
  }
  return list === '' ? 'no class' : list;
}

// The engine sets it once the main module has been evaluated: a class that is bound and missing
// makes the script fail to load.
let exportsOfMain;
ObjectDefineProperty(rt, 'exports', {
  __proto__: null,
  get: () => exportsOfMain,
  set: (exports) => {
    for (let i = 0; i < bound.length; i++) {
      const { 1: name, 2: className } = bound[i];
      if (typeof exports[className] !== 'function') {
        throw new TypeError(`The Durable Object binding "${name}" names the class "${className}", `
          + `which the main module does not export; it exports ${classesOf(exports)}.`);
      }
    }
    exportsOfMain = exports;
    const names = ObjectKeys(exports);
    for (let i = 0; i < names.length; i++) if (!ObjectHasOwn(rt.loopback, names[i])) rt.export(names[i], exports[names[i]]);
  },
});

// --- Cells.

/** workerd's bound on sections inside of sections. */
const DEPTH_MAX = 64;

/** A cell that lives in this realm. */
class Cell {
  constructor(slot, ctx) {
    this.slot = slot;
    this.ctx = ctx;
    this.instance = undefined;
    /** Section -> how many sections it is inside of, itself included; made when needed. */
    this.depths = null;
    /** Sections that run. */
    this.open = 0;
    this.constructed = false;
    this.reported = false;
    /** Number -> the hibernatable WebSocket that a script has seen; made when needed. */
    this.sockets = null;
  }
}

/** Slot -> cell. */
const cells = new SafeMap();

function cellOf(slot) {
  const cell = cells.get(slot);
  if (cell === undefined) {
    throw new Error('This Durable Object has been reset or evicted: its state can no longer be used.');
  }
  return cell;
}

/** Tells the host once the constructor and all that it blocked on is over. */
function maybeOpened(cell) {
  if (cell.constructed && cell.open === 0 && !cell.reported) {
    cell.reported = true;
    ops.opened(cell.slot);
  }
}

/**
 * Runs `callback` while the cell's input gate lets nothing through but what belongs to it. With
 * `resets` a failure of the callback resets the cell.
 */
function section(slot, resets, callback) {
  const cell = cellOf(slot);
  const frame = rt.frame();
  const outer = frame?.cell === slot ? frame.section : undefined;
  const depth = outer === undefined ? 1 : (cell.depths?.get(outer) ?? 0) + 1;
  if (depth > DEPTH_MAX) throw new Error(`Calls to blockConcurrencyWhile() are nested more than ${DEPTH_MAX} deep.`);
  const number = ops.block_begin(slot, outer);
  cell.depths ??= new SafeMap();
  cell.depths.set(number, depth);
  cell.open += 1;
  const running = rt.runIn(rt.newFrame(frame?.event, slot, number, frame?.store, frame?.state), run, undefined, callback);
  const ended = then(running, () => {
    over(cell, number);
    ops.block_end(slot, number, false, undefined);
    maybeOpened(cell);
  }, (error) => {
    over(cell, number);
    ops.block_end(slot, number, resets, error);
    if (!resets) maybeOpened(cell);
    else if (!cell.reported) failOpening(cell, error);
  });
  markHandled(ended);
  return running;
}

/** A callback that throws at once rejects too. */
async function run(callback) {
  return callback();
}

function over(cell, number) {
  cell.open -= 1;
  cell.depths.delete(number);
}

function failOpening(cell, error) {
  if (cell.reported) return;
  cell.reported = true;
  ops.opened_error(cell.slot, error);
}

const missing = (member) => {
  throw new Error(`DurableObjectState.${member} is not implemented in celld yet.`);
};

let slotOf;

class DurableObjectState {
  #slot;

  constructor(token, slot, id) {
    if (token !== INTERNAL) illegalConstructor();
    this.#slot = slot;
    readOnly(this, 'id', id);
    readOnly(this, 'storage', rt.storage.make(slot));
    readOnly(this, 'props', {});
    if (rt.hasExports()) readOnly(this, 'exports', rt.loopback);
  }

  static {
    slotOf = (value) => {
      if (!isObject(value) || !(#slot in value)) illegalInvocation();
      return value.#slot;
    };
  }

  waitUntil(promise) {
    slotOf(this);
    required(arguments.length, method('DurableObjectState', 'waitUntil'), 'Promise');
    rt.waitUntil(promise);
  }

  blockConcurrencyWhile(callback) {
    const slot = slotOf(this);
    if (typeof callback !== 'function') mismatch(method('DurableObjectState', 'blockConcurrencyWhile'), 0, 'function');
    rt.checkIo();
    const running = section(slot, true, callback);
    // The failure resets the object, which is how it is reported.
    markHandled(running);
    return running;
  }

  abort(reason = undefined) {
    const slot = slotOf(this);
    const error = new Error(reason === undefined ? 'Application called abort() to reset Durable Object.' : `${reason}`);
    error.durableObjectReset = true;
    ops.abort_cell(slot, error);
    cells.delete(slot);
    throw error;
  }

  acceptWebSocket(ws, tags = undefined) {
    rt.hibernation.accept(slotOf(this), ws, tags);
  }

  getWebSockets(tag = undefined) {
    return rt.hibernation.list(slotOf(this), tag);
  }

  getTags(ws) {
    slotOf(this);
    return rt.hibernation.tags(ws);
  }

  setWebSocketAutoResponse(pair = undefined) {
    rt.hibernation.setAuto(slotOf(this), pair);
  }

  getWebSocketAutoResponse() {
    return rt.hibernation.auto(slotOf(this));
  }

  getWebSocketAutoResponseTimestamp(ws) {
    slotOf(this);
    return rt.hibernation.answeredAt(ws);
  }

  setHibernatableWebSocketEventTimeout(ms = undefined) {
    rt.hibernation.setTimeout(slotOf(this), ms);
  }

  getHibernatableWebSocketEventTimeout() {
    return rt.hibernation.timeout(slotOf(this));
  }
}
decorate(DurableObjectState);
const facet = (name) => () => missing(`facets.${name}()`);
const facets = ObjectFreeze({ get: facet('get'), abort: facet('abort'), delete: facet('delete'), clone: facet('clone') });
ObjectDefineProperty(DurableObjectState.prototype, 'facets', {
  __proto__: null, value: facets, writable: false, enumerable: true, configurable: true,
});
ObjectDefineProperty(DurableObjectState.prototype, 'container', {
  __proto__: null, value: undefined, writable: false, enumerable: true, configurable: true,
});

/** `new Class(ctx, env)`, in the frame of the event that opens the cell. */
rt.entry.openCell = (event, slot, className, hex, name, namespace) => {
  rt.setFrame(rt.newFrame(event, slot, undefined, undefined, undefined));
  const ctx = new DurableObjectState(INTERNAL, slot, new DurableObjectId(INTERNAL, hex, namespace, name));
  const cell = new Cell(slot, ctx);
  cells.set(slot, cell);
  try {
    const Class = exportsOfMain[className];
    if (typeof Class !== 'function') throw new TypeError(`The main module exports no Durable Object class "${className}".`);
    cell.instance = new Class(ctx, rt.env);
  } catch (error) {
    failOpening(cell, error);
    return;
  }
  cell.constructed = true;
  maybeOpened(cell);
};

/** Runs `fetch` of the instance. */
rt.dispatch.cellFetch = (slot, request) => {
  const cell = cellOf(slot);
  const handler = cell.instance.fetch;
  if (typeof handler !== 'function') throw new TypeError('Handler does not export a fetch() function.');
  return ReflectApply(handler, cell.instance, [request]);
};

/** Keeps the event that runs now from ending before the promise settles; a rejection is reported. */
rt.waitUntil = (promise) => {
  const event = rt.frame()?.state;
  if (event !== undefined) {
    rt.dispatch.hold(event, promise);
  } else {
    // It opens the cell: what runs in the cell keeps it awake by itself.
    then(resolvedWith(promise), undefined, (error) => ops.uncaught(error));
  }
};

rt.entry.closeCell = (slot) => {
  cells.delete(slot);
  rt.timers.forgetCell(slot);
};

rt.cells = cells;
rt.cellState = {
  section,
  cellOf,
  /** `ctx.id.name`. */
  nameOf: (cell) => ids.name(cell.ctx.id),
  isState: (value) => isObject(value) && value instanceof DurableObjectState,
  State: DurableObjectState,
};
