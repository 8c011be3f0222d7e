//! `setTimeout`, `setInterval`, `scheduler.wait`, `queueMicrotask`. Publishes `rt.timers`.
//!
//! Invariant: a timer runs in the frame (event, cell, section) that set it, and at most 10,000 are
//! active for one owner: a cell, or an event without a cell. Units: milliseconds.
//! An id is a number, as in workerd without `nodejs_compat`: the host's number of the first timer,
//! so that none is used twice in a realm.
//! Source: HTML Standard, section 8.6; workerd for the bound.

const {
  convert, decorate, getter, illegalConstructor, illegalInvocation, isObject, method, mismatch, required, uncurry,
} = rt.webidl;
const { apply } = Reflect;
const { isFinite } = Number;
const { trunc } = Math;
const SafeMap = Map;
const SafeSet = Set;
const SafePromise = Promise;
const mapGet = uncurry(Map.prototype.get);
const mapSet = uncurry(Map.prototype.set);
const mapRemove = uncurry(Map.prototype.delete);
const setAdd = uncurry(Set.prototype.add);
const setRemove = uncurry(Set.prototype.delete);
const setEach = uncurry(Set.prototype.forEach);
const setSize = getter(Set.prototype, 'size');

/** workerd's bound. */
const ACTIVE_MAX = 10_000;
/** The longest delay that a timer may have, about 24.8 days; a longer one counts as this. */
const DELAY_MAX = 2 ** 31 - 1;
const SCOPE = 'ServiceWorkerGlobalScope';

/** Host's number of the running timer -> timer. */
const active = new SafeMap();
/** Id that the script knows -> timer; for intervals only, whose host number changes. */
const intervals = new SafeMap();
/** Owner -> the Set of its timers. */
const owners = new SafeMap();

/** Cells and events are numbered apart, both from 0. */
const ownerOf = (frame) => (frame === undefined ? -1 : frame.cell === undefined ? -2 - frame.event : frame.cell);

function delayOf(value) {
  const ms = trunc(+value);
  if (!isFinite(ms)) return ms > 0 ? DELAY_MAX : 0;
  return ms < 0 ? 0 : ms > DELAY_MAX ? DELAY_MAX : ms;
}

function start(callback, delay, args, repeat) {
  rt.checkIo();
  const frame = rt.frame();
  const owner = ownerOf(frame);
  let own = mapGet(owners, owner);
  if (own === undefined) {
    own = new SafeSet();
    mapSet(owners, owner, own);
  } else if (setSize(own) >= ACTIVE_MAX) {
    throw rt.domException('You have exceeded the number of active timeouts you may set. max active timeouts: '
      + `${ACTIVE_MAX}, current active timeouts: ${setSize(own)}`, 'QuotaExceededError');
  }
  const hostId = ops.set_timer(delay);
  const timer = { __proto__: null, id: hostId, hostId, callback, delay, args, repeat, frame, owner };
  mapSet(active, hostId, timer);
  setAdd(own, timer);
  if (repeat) mapSet(intervals, hostId, timer);
  return hostId;
}

/** Takes a timer out of all lists; the host does not hear of it. */
function forget(timer) {
  if (!mapRemove(active, timer.hostId)) return;
  if (timer.repeat) mapRemove(intervals, timer.id);
  const own = mapGet(owners, timer.owner);
  setRemove(own, timer);
  if (setSize(own) === 0) mapRemove(owners, timer.owner);
}

/** Stops a timer; an id that is unknown or over is no error. */
function cancel(id) {
  const timer = mapGet(intervals, id) ?? mapGet(active, id);
  if (timer === undefined || timer.id !== id) return;
  forget(timer);
  ops.clear_timer(timer.hostId);
}

function fire(timer) {
  if (timer.repeat) {
    // The next run is set before this one, so that a callback that throws or clears changes nothing.
    mapRemove(active, timer.hostId);
    timer.hostId = ops.set_timer(timer.delay);
    mapSet(active, timer.hostId, timer);
  } else {
    forget(timer);
  }
  try {
    apply(timer.callback, globalThis, timer.args);
  } catch (error) {
    rt.reportException(error);
  }
}

/** The host says that a timer is due. A timer that was cleared meanwhile is no longer known. */
rt.entry.timer = (hostId) => {
  const timer = mapGet(active, hostId);
  if (timer !== undefined) rt.runIn(timer.frame, fire, undefined, timer);
};

function forgetAll(owner) {
  const own = mapGet(owners, owner);
  if (own !== undefined) setEach(own, forget);
}

rt.timers = {
  /** Runs `callback` once after so many milliseconds; gives an id for `cancel`. */
  after: (ms, callback) => start(callback, delayOf(ms), [], false),
  cancel,
  /** For the engine, when it closes a cell: the host has dropped its timers. */
  forgetCell: (cell) => forgetAll(cell),
  /** For the engine, when the last of an event without a cell is over. */
  forgetEvent: (event) => forgetAll(-2 - event),
};

function timerFunction(name, repeat) {
  const where = method(SCOPE, name);
  return (callback, delay, args) => {
    if (typeof callback !== 'function') mismatch(where, 0, 'function');
    return start(callback, delayOf(delay), args, repeat);
  };
}
const timeout = timerFunction('setTimeout', false);
const interval = timerFunction('setInterval', true);

rt.expose('setTimeout', function setTimeout(callback, delay = 0, ...args) {
  return timeout(callback, delay, args);
});
rt.expose('setInterval', function setInterval(callback, delay = 0, ...args) {
  return interval(callback, delay, args);
});
rt.expose('clearTimeout', function clearTimeout(id = undefined) {
  if (id !== undefined && id !== null) cancel(+id);
});
rt.expose('clearInterval', function clearInterval(id = undefined) {
  if (id !== undefined && id !== null) cancel(+id);
});

rt.expose('queueMicrotask', function queueMicrotask(callback) {
  if (typeof callback !== 'function') mismatch(method(SCOPE, 'queueMicrotask'), 0, 'function');
  const frame = rt.frame();
  primordials.queueMicrotask(() => {
    try {
      rt.runIn(frame, callback, undefined);
    } catch (error) {
      rt.reportException(error);
    }
  });
});

let constructing = false;

class Scheduler {
  #brand = true;

  constructor() {
    if (!constructing) illegalConstructor();
  }

  wait(delay, options = undefined) {
    if (!isObject(this) || !(#brand in this)) illegalInvocation();
    const where = method('Scheduler', 'wait');
    // Like each operation that gives a promise, it rejects rather than throws.
    return new SafePromise((resolve, reject) => {
      required(arguments.length, where, 'number');
      const ms = convert.longLong(delay);
      if (options !== undefined && options !== null && !isObject(options)) mismatch(where, 1, 'WaitOptions');
      const signal = options?.signal;
      if (signal === undefined || signal === null) {
        start(resolve, delayOf(ms), [], false);
        return;
      }
      if (!rt.abort.isSignal(signal)) {
        throw new TypeError("Incorrect type for the 'signal' field on 'WaitOptions': the provided value is not of type "
          + "'AbortSignal'.");
      }
      if (rt.abort.aborted(signal)) {
        reject(rt.abort.reason(signal));
        return;
      }
      let id;
      const onAbort = () => {
        cancel(id);
        reject(rt.abort.reason(signal));
      };
      id = start(() => {
        rt.abort.removeAlgorithm(signal, onAbort);
        resolve();
      }, delayOf(ms), [], false);
      rt.abort.addAlgorithm(signal, onAbort);
    });
  }
}
rt.webidl.arity(Scheduler.prototype.wait, 1);
decorate(Scheduler);
constructing = true;
rt.expose('scheduler', new Scheduler());
constructing = false;
