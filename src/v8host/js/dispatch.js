//! From the host to the handlers of a script: one event from its delivery to its end.
//!
//! Invariant: each event gets one `respond` or `respond_error`, and then one `done`, once its
//! handler, its `waitUntil`s and the stream of its response are through (`pending` is 0).
//! A handler that returns a Response at once costs no promise.
//! Publishes `rt.dispatch`. Durable Objects take part with `rt.dispatch.cellFetch`.

const { decorate, illegalConstructor, illegalInvocation, isObject, method, required } = rt.webidl;
const { resolvedWith, then } = rt.promises;
const { INTERNAL, SafeMap, body: B, env, newFrame, request: R, response: P, setFrame } = rt;
const { Error, Reflect, TypeError } = globalThis;
const { apply } = Reflect;
const { respond, respond_error: respondError, done } = ops;

/** An event under way. */
class EventState {
  constructor(id, cell) {
    this.id = id;
    this.cell = cell;
    this.pending = 1;
    this.passThrough = false;
    this.subrequests = 0;
    /** Its response is out, or its failure. */
    this.answered = false;
    /** Who of this realm has asked, with `respond` and `fail`, or null: the host has. */
    this.asked = null;
    /** The event that this is a part of, as one of this realm has asked. */
    this.outer = undefined;
  }
}

/** One part of an event is through. */
function release(event) {
  if (--event.pending > 0) return;
  if (event.asked !== null) {
    const { outer } = event;
    event.outer = undefined;
    if (outer !== undefined) release(outer);
    return;
  }
  forget(event);
  done(event.id);
}

/** Nothing of the event is left here. */
function forget(event) {
  if (signalCount > 0 && signals.delete(event.id)) signalCount--;
  // Timers of a cell live on with it; what an event without a cell has left running ends here.
  if (event.cell === undefined) rt.timers.forgetEvent(event.id);
}

/** Keeps an event alive until a promise settles, unless it is over; a rejection is reported. */
function hold(event, promise) {
  if (event.pending === 0) {
    then(resolvedWith(promise), undefined, (error) => ops.uncaught(error));
    return;
  }
  event.pending++;
  then(resolvedWith(promise), () => release(event), (error) => {
    ops.uncaught(error);
    release(event);
  });
}

// --- Signals of requests.

/** Event -> the signal of its request and the frame of who asked for it, if a script has. */
const signals = new SafeMap();
let signalCount = 0;

/** The signal of a request that came with `event`, or one that never fires. */
function signalOf(event) {
  if (event === undefined) return rt.abort.create();
  let known = signals.get(event);
  if (known === undefined) {
    known = { __proto__: null, signal: rt.abort.create(), frame: rt.frame() };
    signals.set(event, known);
    signalCount++;
  }
  return known.signal;
}

rt.entry.forget = (id) => {
  if (signalCount > 0 && signals.delete(id)) signalCount--;
  rt.timers.forgetEvent(id);
};

rt.entry.disconnected = (id) => {
  const known = signals.get(id);
  if (known === undefined) return;
  if (known.frame !== undefined) setFrame(known.frame);
  rt.abort.signal(known.signal, rt.domException('The client has disconnected.', 'AbortError'));
};

// --- `ctx`.

class ExecutionContext {
  #event;
  #props = undefined;

  constructor(key, event, props) {
    if (key !== INTERNAL) illegalConstructor();
    this.#event = event;
    this.#props = props;
  }

  waitUntil(promise) {
    if (!isObject(this) || !(#event in this)) illegalInvocation();
    required(arguments.length, method('ExecutionContext', 'waitUntil'), 'Promise');
    hold(this.#event, promise);
  }

  passThroughOnException() {
    if (!isObject(this) || !(#event in this)) illegalInvocation();
    this.#event.passThrough = true;
  }

  /** Ends the request with `reason`, and what runs now. */
  abort(reason = undefined) {
    if (!isObject(this) || !(#event in this)) illegalInvocation();
    const error = reason === undefined ? new Error('Worker execution was aborted due to call to ctx.abort().') : reason;
    fail(this.#event, error);
    throw error;
  }

  get props() {
    if (!isObject(this) || !(#event in this)) illegalInvocation();
    if (this.#props === undefined) this.#props = {};
    return this.#props;
  }

  get tracing() {
    if (!isObject(this) || !(#event in this)) illegalInvocation();
    return rt.tracing;
  }

  get exports() {
    if (!isObject(this) || !(#event in this)) illegalInvocation();
    return rt.hasExports() ? rt.loopback : undefined;
  }
}
decorate(ExecutionContext);

// --- Answers.

function fail(event, error) {
  if (event.answered) return;
  event.answered = true;
  if (event.asked === null) respondError(event.id, event.cell, error);
  else event.asked.fail(error);
  release(event);
}

/** Sends what a handler returned. */
function answer(event, response) {
  if (event.answered) return;
  if (!P.isResponse(response)) {
    fail(event, new TypeError('Incorrect type for Promise: the Promise did not resolve to \'Response\'.'));
    return;
  }
  let flows = false;
  let last = false;
  try {
    if (P.isError(response)) throw new TypeError('Response.error() cannot be sent to a client.');
    if (event.asked !== null) {
      event.asked.respond(response);
      event.answered = true;
      release(event);
      return;
    }
    const webSocket = P.webSocket(response);
    const socket = webSocket === null ? undefined : rt.websocket.use(webSocket, event);
    flows = B.send(response, event);
    if (flows) event.pending++;
    // The usual end: one call tells both, the response and that nothing comes after it.
    last = event.pending === 1;
    if (last) forget(event);
    respond(event.id, event.cell, P.status(response), P.statusText(response), B.listOrNone(response), B.kind(response),
      B.value(response), B.length(response), last, P.manual(response), socket);
  } catch (error) {
    if (flows) rt.entry.cancel(B.value(response), 'The response could not be sent.');
    fail(event, error);
    return;
  }
  event.answered = true;
  if (last) event.pending = 0;
  else release(event);
}

/** Sends what a call of RPC returned. */
function answerValue(event, value) {
  try {
    if (event.asked === null) ops.respond_value(event.id, event.cell, value);
    else event.asked.respondValue(value);
  } catch (error) {
    fail(event, error);
    return;
  }
  // A getter of the value may have ended the event; the first answer counts.
  if (event.answered) return;
  event.answered = true;
  release(event);
}

// --- Handlers.

/** Calls a handler of an export: a plain object, or a class made for each event. */
function callHandler(main, name, event, argument, props = undefined) {
  const context = new ExecutionContext(INTERNAL, event, props);
  if (typeof main === 'function') {
    const instance = new main(context, env);
    const handler = instance[name];
    if (typeof handler !== 'function') missing(name);
    return apply(handler, instance, [argument]);
  }
  const handler = isObject(main) ? main[name] : undefined;
  if (typeof handler !== 'function') missing(name);
  return apply(handler, main, [argument, env, context]);
}

function missing(name) {
  throw new Error(`Handler does not export a ${name}() function.`);
}

rt.entry.fetch = (id, cell, verb, url, list, kind, value, length) => {
  const event = new EventState(id, cell);
  setFrame(newFrame(id, cell, undefined, undefined, event));
  let result;
  try {
    const request = R.make(verb, url, list, kind, value, length, id);
    result = cell === undefined ? callHandler(rt.exports.default, 'fetch', event, request) : rt.dispatch.cellFetch(cell, request);
  } catch (error) {
    fail(event, error);
    return;
  }
  answerWith(event, result);
};

function answerWith(event, result) {
  if (P.isResponse(result)) answer(event, result);
  else then(resolvedWith(result), (response) => answer(event, response), (error) => fail(event, error));
}

/** Runs what one of this realm has asked for, as a part of the event that runs. */
function runLocally(asked, run) {
  const frame = rt.frame();
  const outer = frame.state;
  const event = new EventState(frame.event, frame.cell);
  event.asked = asked;
  if (outer !== undefined) {
    // Calls within calls within calls come to an end.
    event.subrequests = outer.subrequests;
    if (outer.pending > 0) {
      event.outer = outer;
      outer.pending++;
    }
  }
  rt.runIn(newFrame(frame.event, frame.cell, frame.section, undefined, event), run, undefined, event);
}

/** Runs `fetch` of an export for one of this realm. */
function fetchLocally(main, props, request, asked) {
  runLocally(asked, (event) => {
    let result;
    try {
      result = callHandler(main, 'fetch', event, request, props);
    } catch (error) {
      fail(event, error);
      return;
    }
    answerWith(event, result);
  });
}

class ScheduledController {
  #time;
  #cron;

  constructor(key, time, cron) {
    if (key !== INTERNAL) illegalConstructor();
    this.#time = time;
    this.#cron = cron;
  }

  get scheduledTime() {
    return this.#time;
  }

  get cron() {
    return this.#cron;
  }

  get type() {
    return 'scheduled';
  }

  /** Failed runs are not repeated here; the call is accepted, as programs make it. */
  noRetry() {
    this.#time; // The brand: throws on a foreign `this`.
  }
}
decorate(ScheduledController);

rt.entry.scheduled = (id, cron, time) => {
  const event = new EventState(id, undefined);
  setFrame(newFrame(id, undefined, undefined, undefined, event));
  let result;
  try {
    result = callHandler(rt.exports.default, 'scheduled', event, new ScheduledController(INTERNAL, time, cron));
  } catch (error) {
    fail(event, error);
    return;
  }
  then(resolvedWith(result), () => {
    if (event.answered) return;
    event.answered = true;
    respond(event.id, undefined, 200, '', undefined, B.NONE, undefined, 0, false, false);
    release(event);
  }, (error) => fail(event, error));
};

rt.expose('ExecutionContext', ExecutionContext);
rt.expose('ScheduledController', ScheduledController);
rt.dispatch = {
  EventState,
  ExecutionContext,
  answerValue,
  fail,
  fetchLocally,
  hold,
  release,
  runLocally,
  signalOf,
  /** Runs `fetch` of a cell's instance; set by the file for Durable Objects. */
  cellFetch: () => {
    throw new Error('Durable Objects are not set up in this realm.');
  },
};
