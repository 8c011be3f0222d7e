//! `Request`.
//!
//! A request of the host keeps its parts as they came; what a script never asks for is never made.
//! Publishes `rt.request`. Source: Fetch Standard, section 5.4; messages are workerd's.

const { arity, decorate, illegalInvocation, isObject } = rt.webidl;
const { INTERNAL, Body, body: B } = rt;
const { listAppend, listCopy, listFrom, listHas } = rt.headers;
const { String, TypeError } = globalThis;
const toUpperCase = rt.webidl.uncurry(String.prototype.toUpperCase);

const NO_HEADERS = 'Incorrect type for the \'headers\' field on \'RequestInitializerDict\': the provided value is not of type '
  + '\'Headers or Sequence or object\'.';

/** Methods that Cloudflare's HTTP library knows; others are refused as it does. */
const METHODS = { __proto__: null };
for (const name of ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'PATCH', 'PURGE', 'OPTIONS', 'TRACE', 'COPY', 'LOCK', 'MKCOL', 'MOVE',
  'PROPFIND', 'PROPPATCH', 'SEARCH', 'UNLOCK', 'ACL', 'REPORT', 'MKACTIVITY', 'CHECKOUT', 'MERGE', 'MSEARCH', 'NOTIFY', 'SUBSCRIBE',
  'UNSUBSCRIBE', 'QUERY', 'BAN']) METHODS[name] = name;

function methodOf(value) {
  const text = `${value}`;
  const method = METHODS[text] ?? METHODS[toUpperCase(text)];
  if (method === undefined) throw new TypeError(`Invalid HTTP method string: ${text}`);
  return method;
}

/** Redirect modes as the host counts them. */
const REDIRECTS = ['follow', 'manual'];
const FOLLOW = 0;

function redirectOf(value) {
  const mode = `${value}`;
  for (let i = 0; i < REDIRECTS.length; i++) if (REDIRECTS[i] === mode) return i;
  throw new TypeError('Invalid redirect value, must be one of "follow" or "manual" ("error" won\'t be implemented since it does '
    + 'not make sense at the edge; use "manual" and check the response status code).');
}

function cacheOf(value) {
  const mode = `${value}`;
  if (mode !== 'no-store' && mode !== 'no-cache') throw new TypeError(`Unsupported cache mode: ${mode}`);
  return mode;
}

/** The URL of what is no Request: a string, a URL, anything that has a text. */
function urlOf(input) {
  const text = `${input}`;
  try {
    return rt.url.normalize(text);
  } catch {
    throw new TypeError(`Invalid URL: ${text}`);
  }
}

/** Whether who reads, or who wrote, a body deals with its `content-encoding` alone. */
function isManual(name, value) {
  const mode = `${value}`;
  if (mode !== 'manual' && mode !== 'automatic') throw new TypeError(`${name}: unexpected value: ${mode}`);
  return mode === 'manual';
}

function signalOf(value) {
  if (value === undefined || value === null) return null;
  if (rt.abort.isSignal(value)) return value;
  throw new TypeError('Incorrect type for the \'signal\' field on \'RequestInitializerDict\': the provided value is not of type '
    + '\'AbortSignal\'.');
}

let isRequest;
let parts;

class Request extends Body {
  #method;
  #url;
  /** Index into `REDIRECTS`. */
  #redirect;
  /** `null`: none was given; one that never fires is made when a script asks. */
  #signal;
  #cf;
  #cache;
  /** `encodeResponseBody: 'manual'`. */
  #manual;
  /** The event that delivered it; `undefined` for requests of scripts. */
  #event;

  /** Scripts give `input` and `init`. Ours: INTERNAL, method, URL, list, kind, value, length, event. */
  constructor(input, init, url, list, kind, value, length, event) {
    if (input === INTERNAL) {
      super(INTERNAL, kind, value, length, list, true);
      this.#method = init;
      this.#url = url;
      this.#redirect = 1; // As workerd: what a script hands on is not followed behind the client's back.
      this.#signal = null;
      this.#cf = undefined;
      this.#cache = undefined;
      this.#manual = false;
      this.#event = event;
      return;
    }
    if (input === undefined) throw new TypeError('Failed to construct \'Request\': constructor parameter 1 is not of type \'Request or string\'.');
    const from = resolve(input, init);
    super(INTERNAL, from.kind, from.value, from.length, from.list, false);
    this.#method = from.method;
    this.#url = from.url;
    this.#redirect = from.redirect;
    this.#signal = from.signal;
    this.#cf = from.cf;
    this.#cache = from.cache;
    this.#manual = from.manual;
    this.#event = from.event;
  }

  static {
    isRequest = (value) => isObject(value) && #method in value;
    parts = {
      method: (request) => request.#method,
      url: (request) => request.#url,
      redirect: (request) => request.#redirect,
      cf: (request) => request.#cf,
      cache: (request) => request.#cache,
      manual: (request) => request.#manual,
      /** The signal, or `null` as long as nobody gave or asked for one. */
      signal: (request) => request.#signal,
      event: (request) => request.#event,
    };
  }

  get method() {
    if (!isRequest(this)) illegalInvocation();
    return this.#method;
  }

  get url() {
    if (!isRequest(this)) illegalInvocation();
    return this.#url;
  }

  get headers() {
    if (!isRequest(this)) illegalInvocation();
    return B.headers(this);
  }

  get redirect() {
    if (!isRequest(this)) illegalInvocation();
    return REDIRECTS[this.#redirect];
  }

  get fetcher() {
    if (!isRequest(this)) illegalInvocation();
    return null;
  }

  get signal() {
    if (!isRequest(this)) illegalInvocation();
    if (this.#signal === null) this.#signal = rt.dispatch.signalOf(this.#event);
    return this.#signal;
  }

  get cf() {
    if (!isRequest(this)) illegalInvocation();
    // Cloudflare describes the client here; scripts look for fields of it without a check.
    if (this.#cf === undefined && this.#event !== undefined) this.#cf = {};
    return this.#cf;
  }

  get integrity() {
    if (!isRequest(this)) illegalInvocation();
    return '';
  }

  get keepalive() {
    if (!isRequest(this)) illegalInvocation();
    return false;
  }

  get cache() {
    if (!isRequest(this)) illegalInvocation();
    return this.#cache;
  }

  clone() {
    if (!isRequest(this)) illegalInvocation();
    const copy = B.clone(this);
    const request = new Request(INTERNAL, this.#method, this.#url, listCopy(B.list(this)), copy.kind, copy.value, copy.length,
      this.#event);
    B.share(request);
    B.unlockHeaders(request);
    request.#redirect = this.#redirect;
    request.#signal = this.#signal;
    request.#cf = this.#cf;
    request.#cache = this.#cache;
    return request;
  }
}
arity(Request, 1);
decorate(Request);

/** The parts of `new Request(input, init)`. */
function resolve(input, init) {
  let from;
  if (isRequest(input)) {
    from = {
      method: parts.method(input),
      url: parts.url(input),
      redirect: parts.redirect(input),
      signal: parts.signal(input),
      cf: parts.cf(input),
      cache: parts.cache(input),
      event: parts.event(input),
      manual: false,
      list: undefined,
      kind: B.NONE,
      value: undefined,
      length: -1,
    };
  } else {
    from = {
      method: 'GET', url: urlOf(input), redirect: 0, signal: null, cf: undefined, cache: undefined, event: undefined, manual: false,
      list: undefined, kind: B.NONE, value: undefined, length: -1,
    };
  }
  let replaced = false;
  let hasHeaders = false;
  if (init !== undefined && init !== null) {
    if (!isObject(init)) throw new TypeError('Failed to construct \'Request\': constructor parameter 2 is not of type \'RequestInitializerDict or Request\'.');
    const { method, headers, body, redirect, cf, cache, integrity, signal, encodeResponseBody } = init;
    if (method !== undefined) from.method = methodOf(method);
    if (headers !== undefined) {
      from.list = listFrom(headers, NO_HEADERS);
      hasHeaders = true;
    }
    if (redirect !== undefined) from.redirect = redirectOf(redirect);
    if (encodeResponseBody !== undefined) from.manual = isManual('encodeResponseBody', encodeResponseBody);
    if (cf !== undefined) {
      if (!isObject(cf)) throw new TypeError('Incorrect type for the \'cf\' field on \'RequestInitializerDict\': the provided value is not of type \'Object\'.');
      from.cf = cf;
    }
    if (cache !== undefined) from.cache = cacheOf(cache);
    if (integrity !== undefined && integrity !== '') {
      throw new TypeError('Subrequest integrity checking is not implemented. The integrity option must be either undefined or an empty string.');
    }
    if (signal !== undefined) from.signal = signalOf(signal);
    if (body !== undefined && body !== null) {
      if (from.method === 'GET' || from.method === 'HEAD') throw new TypeError('Request with a GET or HEAD method cannot have a body.');
      replaced = true;
      if (!hasHeaders) from.list = isRequest(input) ? listCopy(B.list(input)) : [];
      const content = B.extract(body);
      from.kind = content.kind;
      from.value = content.value;
      if (content.type !== null && !listHas(from.list, 'content-type')) listAppend(from.list, 'content-type', content.type);
    }
  }
  if (isRequest(input)) {
    if (!hasHeaders && !replaced) from.list = listCopy(B.list(input));
    if (!replaced) {
      if (B.used(input)) throw new TypeError('Cannot reconstruct a Request with a used body.');
      const taken = B.take(input);
      if (taken.kind !== B.NONE && (from.method === 'GET' || from.method === 'HEAD')) {
        throw new TypeError('Request with a GET or HEAD method cannot have a body.');
      }
      from.kind = taken.kind;
      from.value = taken.value;
      from.length = taken.length;
    }
  }
  return from;
}

rt.expose('Request', Request);
rt.request = {
  FOLLOW,
  isRequest,
  ...parts,
  urlOf,
  isManual,
  /** A request that the host delivers. Its headers cannot be changed. */
  make: (method, url, list, kind, value, length, event) =>
    new Request(INTERNAL, method, url, list, kind, value, length, event),
  Request,
};
