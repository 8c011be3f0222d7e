//! The global `fetch`, and the calls to the host that wait for an answer.
//!
//! Publishes `rt.calls` (for whatever asks the host and waits), `rt.send` (a request to the network or
//! to a cell), `rt.asking` (its parts) and `rt.failureError` (a failure of the host as an error of
//! JavaScript).
//! Source: Fetch Standard, section 5.6; messages are workerd's.

const { isObject, uncurry } = rt.webidl;
const { Deferred, rejectedWith } = rt.promises;
const { SafeMap, body: B, frame, request: R, response: P, setFrame } = rt;
const { listGet, listWithout } = rt.headers;
const {
  AggregateError, Error, EvalError, Object, RangeError, ReferenceError, String, SyntaxError, TypeError, URIError,
} = globalThis;
const { defineProperty, keys } = Object;
const startsWith = uncurry(String.prototype.startsWith);
const indexOf = uncurry(String.prototype.indexOf);
const slice = uncurry(String.prototype.slice);

const ERRORS = { __proto__: null, Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };
/** Names of DOMExceptions that cross from the host or from another cell. */
const EXCEPTIONS = {
  __proto__: null, AbortError: 1, TimeoutError: 1, DataCloneError: 1, NetworkError: 1, NotSupportedError: 1, InvalidStateError: 1,
  OperationError: 1, QuotaExceededError: 1, SyntaxError: 0, InvalidAccessError: 1, InvalidCharacterError: 1, NotFoundError: 1,
};

function errorOf(name, message) {
  if (EXCEPTIONS[name] === 1) return rt.domException(message, name);
  if (name === 'AggregateError') return new AggregateError([], message);
  const error = new (ERRORS[name] ?? Error)(message);
  if (ERRORS[name] === undefined && name !== '') put(error, 'name', name, false);
  return error;
}

/**
 * An error of JavaScript for a failure of the host; `flags` as `Failure::flags`. `thrown` comes with what the code of
 * a cell has thrown: the object `own` with the properties of an error, `exception` if it was a DOMException, or, if it
 * was no error, the object itself as `value`.
 */
function failureError(name, message, stack, flags, thrown) {
  const error = thrown?.value ?? (thrown?.exception === true ? rt.domException(message, name) : errorOf(name, message));
  if (thrown?.value === undefined && stack !== '') put(error, 'stack', `${name}: ${message}\n${stack}`, false);
  const own = thrown?.own;
  if (own !== undefined) {
    const names = keys(own);
    for (let i = 0; i < names.length; i++) put(error, names[i], own[names[i]]);
  }
  if (flags & rt.REMOTE) put(error, 'remote', true);
  if (flags & rt.RETRYABLE) put(error, 'retryable', true);
  if (flags & rt.OVERLOADED) put(error, 'overloaded', true);
  if (flags & rt.DURABLE_OBJECT_RESET) put(error, 'durableObjectReset', true);
  return error;
}

/** Whether the object that was asked is lost, and not only what its code has thrown says so. */
function isLoss(flags, thrown) {
  const said = thrown?.own ?? thrown?.value;
  if (flags & rt.OVERLOADED && said?.overloaded !== true) return false;
  return (flags & rt.RETRYABLE && said?.retryable !== true) || (flags & rt.DURABLE_OBJECT_RESET && said?.durableObjectReset !== true);
}

function put(error, name, value, enumerable = true) {
  defineProperty(error, name, { __proto__: null, value, writable: true, enumerable, configurable: true });
}

// --- Calls that wait.

/** Calls that wait at the same time, of which most have a place of their own. */
const PLACES = 64;

/**
 * Number of a call -> an object with `id`, `response(…)`, `done()` and `error(reason, isLoss)`. Few wait at a
 * time and numbers are given in order, so that most have a place of an array for themselves: a Map
 * that is filled and emptied again and again is made anew every few calls.
 */
class Waiting {
  constructor() {
    this.places = [];
    this.others = new SafeMap();
    for (let place = 0; place < PLACES; place++) this.places[place] = undefined;
  }

  add(call) {
    const place = call.id % PLACES;
    if (this.places[place] === undefined) this.places[place] = call;
    else this.others.set(call.id, call);
  }

  /** Takes the call out. */
  take(id) {
    const place = id % PLACES;
    let call = this.places[place];
    if (call !== undefined && call.id === id) {
      this.places[place] = undefined;
      return call;
    }
    call = this.others.get(id);
    if (call !== undefined) this.others.delete(id);
    return call;
  }
}
const waiting = new Waiting();

rt.entry.answerResponse = (id, status, statusText, list, kind, value, length, url, redirected, socket) => {
  const call = waiting.take(id);
  if (call === undefined) {
    // Given up meanwhile: the body will not be read.
    if (kind === B.HOST) ops.stream_cancel(value);
    return;
  }
  if (call.frame !== undefined) setFrame(call.frame);
  const webSocket = socket === undefined ? null : rt.websocket.make(socket);
  const { asked } = call;
  if (asked === undefined || asked === null) {
    call.response(P.make(status, statusText, list, kind, value, length, url, redirected, call.manual, webSocket));
    return;
  }
  if (asked.method === 'HEAD' && kind !== B.NONE) {
    // What an object answers is not cut by a protocol on the way.
    if (kind === B.HOST) ops.stream_cancel(value);
    kind = B.NONE;
    value = undefined;
    length = -1;
  }
  call.answered(P.make(status, statusText, list, kind, value, length, asked.url, asked.hops > 0, call.manual, webSocket));
};
rt.entry.answerDone = (id) => {
  const call = waiting.take(id);
  if (call === undefined) return;
  if (call.frame !== undefined) setFrame(call.frame);
  call.done();
};
rt.entry.answerError = (id, name, message, stack, flags, thrown) => {
  const call = waiting.take(id);
  if (call === undefined) return;
  if (call.frame !== undefined) setFrame(call.frame);
  call.error(failureError(name, message, stack, flags, thrown), isLoss(flags, thrown));
};

/** A call whose good end is `undefined`, as a promise. */
class Done extends Deferred {
  constructor(id) {
    super();
    this.id = id;
    this.frame = frame();
  }

  done() {
    this.resolve(undefined);
  }

  error(reason) {
    this.reject(reason);
  }
}

/** Redirects that are followed, as browsers and Cloudflare do. */
const HOPS_MAX = 20;
const ONE_TIME = 'A request with a one-time-use body (it was initialized from a stream, not a buffer) encountered a redirect '
  + 'requiring the body to be retransmitted. To avoid this error in the future, construct this request from a buffer-like '
  + 'body initializer.';

/** What the object of a stub is asked, and asked again when it redirects. */
class Asked {
  constructor(stub, request, url, manual) {
    this.stub = stub;
    this.method = R.method(request);
    this.url = url;
    this.list = B.listOrNone(request);
    this.kind = B.kind(request);
    this.value = B.value(request);
    this.length = B.length(request);
    this.redirect = R.redirect(request);
    this.manual = manual;
    this.hops = 0;
    /** For the message of one hop too many. */
    this.visited = '';
    this.request = request;
  }

  /** Returns the number of the call. */
  send() {
    return rt.stubs.call(this.stub, this.method, this.url, this.list, this.kind, this.value, this.length, this.redirect, this.manual);
  }

  /** The call has failed. */
  failed(reason, isLoss) {
    rt.stubs.failed(this.stub, reason, isLoss);
  }

  /** Asks for what a redirect leads to. Returns the number of the call. */
  follow(status, location) {
    const target = rt.url.locate(location, this.url);
    if (target === null) throw new TypeError('Invalid Location header; unable to follow redirect.');
    this.visited += this.hops === 0 ? this.url : `, ${this.url}`;
    if (this.hops === HOPS_MAX) throw new TypeError(`Too many redirects.${this.visited}`);
    if (status !== 303 && (this.kind === B.HOST || this.kind === B.STREAM)) throw new TypeError(ONE_TIME);
    this.hops += 1;
    if (becomesGet(status, this.method)) {
      this.method = 'GET';
      this.kind = B.NONE;
      this.value = undefined;
      this.length = -1;
    }
    if (!rt.url.isSameOrigin(target, this.url)) this.list = listWithout(B.list(this.request), 'authorization');
    this.url = target;
    return this.send();
  }
}

/** As the Fetch Standard has it: only a POST becomes a GET with any redirect. */
function becomesGet(status, method) {
  if (status === 303) return method !== 'GET' && method !== 'HEAD';
  return method === 'POST' && (status === 301 || status === 302);
}

/** The number of calls of which the host knows nothing. */
const NO_HOST = 0;

/** A request under way. */
class Call extends Deferred {
  /** `asked`: of a call to a cell or an entrypoint, or null. `manual`: the body comes as it is sent. */
  constructor(id, signal, asked, manual) {
    super();
    this.id = id;
    this.asked = asked;
    this.manual = manual;
    this.frame = frame();
    this.signal = signal;
    this.answer = null;
    this.isAborted = false;
    this.onAbort = null;
    if (id !== NO_HOST) waiting.add(this);
    if (signal === null) return;
    this.onAbort = () => this.aborted();
    rt.abort.addAlgorithm(signal, this.onAbort);
  }

  aborted() {
    const reason = rt.abort.reason(this.signal);
    if (this.answer !== null) {
      B.abort(this.answer, reason);
      return;
    }
    if (this.id !== NO_HOST) {
      waiting.take(this.id);
      ops.abandon(this.id);
    }
    this.isAborted = true;
    this.reject(reason);
  }

  /** A cell or an entrypoint has answered: with a redirect to follow, or for good. */
  answered(response) {
    if (this.isAborted) {
      B.drop(response);
      return;
    }
    const status = P.status(response);
    if (P.isRedirect(status) && this.asked.redirect === R.FOLLOW) {
      const location = listGet(B.list(response), 'location');
      if (location !== null && location !== '') {
        B.drop(response);
        try {
          this.id = this.asked.follow(status, location);
          if (this.id !== NO_HOST) waiting.add(this);
        } catch (error) {
          this.error(error);
        }
        return;
      }
    }
    this.response(response);
  }

  response(response) {
    if (this.signal !== null) {
      // The signal still ends the body, as long as it flows.
      if (B.kind(response) === B.HOST) this.answer = response;
      else rt.abort.removeAlgorithm(this.signal, this.onAbort);
    }
    this.resolve(response);
  }

  error(reason, isLoss = false) {
    if (this.signal !== null) rt.abort.removeAlgorithm(this.signal, this.onAbort);
    if (this.asked !== null) this.asked.failed(reason, isLoss);
    this.reject(reason);
  }
}

// --- Requests.

/** What one event may send; asked for once, as the start-up snapshot does not know it. */
let subrequestsMax = -1;

/** One more request of the event that runs. */
function count() {
  const event = frame()?.state;
  if (event === undefined) return;
  if (subrequestsMax < 0) subrequestsMax = ops.subrequests_max();
  if (event.subrequests >= subrequestsMax) throw new Error('Too many subrequests.');
  event.subrequests++;
}

/** Requests go out without the fragment. */
function withoutFragment(url) {
  const at = indexOf(url, '#');
  return at < 0 ? url : slice(url, 0, at);
}

/**
 * Sends a request to the cell of a stub, or to the network when `stub` is null. Returns a promise of
 * a Response. Throws what the arguments deserve.
 */
function send(input, init, stub) {
  const asIs = init === undefined && R.isRequest(input);
  const request = asIs ? input : new R.Request(input, init);
  // Of a request that was made before it is not asked, as in workerd.
  const manual = !asIs && R.manual(request);
  const signal = R.signal(request);
  if (signal !== null && rt.abort.aborted(signal)) return rejectedWith(rt.abort.reason(signal));
  count();
  B.send(request, null);
  const url = withoutFragment(R.url(request));
  if (stub !== null) {
    const asked = new Asked(stub, request, url, manual);
    return new Call(asked.send(), signal, asked, manual).promise;
  }
  const id = network(R.method(request), url, B.listOrNone(request), B.kind(request), B.value(request), B.length(request),
    R.redirect(request), manual);
  return new Call(id, signal, null, manual).promise;
}

function network(method, url, list, kind, value, length, redirect, manual) {
  if (!startsWith(url, 'http://') && !startsWith(url, 'https://')) throw new TypeError(`Fetch API cannot load: ${url}`);
  return ops.fetch(method, url, list, kind, value, length, redirect, manual);
}

function fetch(input, init = undefined) {
  try {
    if (arguments.length === 0) {
      throw new TypeError('Failed to execute \'fetch\' on \'ServiceWorkerGlobalScope\': parameter 1 is not of type \'Request or string\'.');
    }
    if (typeof input === 'string' && init === undefined) {
      const url = withoutFragment(R.urlOf(input));
      count();
      return new Call(network('GET', url, undefined, B.NONE, undefined, -1, 0, false), null, null, false).promise;
    }
    return send(input, init, null);
  } catch (error) {
    return rejectedWith(error);
  }
}

rt.webidl.arity(fetch, 1);
rt.expose('fetch', fetch);
rt.failureError = failureError;
rt.send = send;
rt.asking = { Asked, Call, NO_HOST, count, withoutFragment };
rt.calls = {
  /** A call with `id`, `frame`, `response(…)` and `error(reason, isLoss)`. */
  add: (call) => waiting.add(call),
  /** A promise of `undefined` for a call that ends in `Answer::Done`. */
  wait: (id) => {
    const call = new Done(id);
    waiting.add(call);
    return call.promise;
  },
};
