//! `Response`.
//!
//! Publishes `rt.response`. Source: Fetch Standard, section 5.5; messages are workerd's.

const { arity, convert, decorate, illegalInvocation, isObject } = rt.webidl;
const { INTERNAL, Body, body: B, request: { isManual } } = rt;
const { listAppend, listCopy, listFrom, listHas, isHeaders, listOf } = rt.headers;
const { JSON, RangeError, String, TypeError } = globalThis;
const { stringify } = JSON;
const charCodeAt = rt.webidl.uncurry(String.prototype.charCodeAt);

const NO_HEADERS = 'Incorrect type for the \'headers\' field on \'InitializerDict\': the provided value is not of type '
  + '\'Headers or Sequence or object\'.';
const TEXT_TYPE = 'text/plain;charset=UTF-8';
/** Packed, as body.js has it: most responses have just these headers, which nobody looks at here. */
const TEXT_HEADERS = `content-type\n${TEXT_TYPE}`;
const JSON_HEADERS = 'content-type\napplication/json';

const isNullBody = (status) => status === 101 || status === 204 || status === 205 || status === 304;
const isRedirect = (status) => status === 301 || status === 302 || status === 303 || status === 307 || status === 308;

function statusTextOf(value) {
  const text = `${value}`;
  for (let i = 0; i < text.length; i++) {
    const code = charCodeAt(text, i);
    if ((code < 32 && code !== 9) || code === 127 || code > 255) throw new TypeError('Invalid statusText');
  }
  return text;
}


let isResponse;
let parts;

class Response extends Body {
  #status;
  /** `null`: the usual phrase of the status, of an answer that came without one. */
  #statusText;
  #url;
  #redirected;
  #cf;
  #manual;
  #error;
  #webSocket = null;

  /**
   * Scripts give `body` and `init`. Ours: INTERNAL, status, text, list, kind, value, length, url, redirected, asSent, webSocket.
   */
  constructor(body = null, init = undefined, statusText = '', list = undefined, kind = 0, value = undefined, length = -1, url = '',
    redirected = false, asSent = false, webSocket = null) {
    if (body === INTERNAL) {
      super(INTERNAL, kind, value, length, list, true);
      this.#status = init;
      this.#statusText = statusText;
      this.#url = url;
      this.#redirected = redirected;
      this.#cf = undefined;
      this.#manual = asSent;
      this.#error = false;
      this.#webSocket = webSocket;
      return;
    }
    let status = 200;
    let socket = null;
    let text = '';
    let headers;
    let cf;
    let manual = false;
    if (init !== undefined && init !== null) {
      if (!isObject(init)) throw new TypeError('Failed to construct \'Response\': constructor parameter 2 is not of type \'InitializerDict or Response\'.');
      if (isResponse(init)) {
        status = init.#status;
        text = init.statusText;
        headers = listCopy(B.list(init));
        cf = init.#cf;
        manual = init.#manual;
        socket = init.#webSocket;
      } else {
        const given = init.headers;
        const { status: code, statusText: phrase, cf: properties, encodeBody, webSocket } = init;
        if (webSocket !== undefined && webSocket !== null) {
          if (!rt.websocket.isSocket(webSocket)) {
            throw new TypeError('Incorrect type for the \'webSocket\' field on \'InitializerDict\': the provided value is not of type \'WebSocket\'.');
          }
          socket = webSocket;
        }
        if (code !== undefined) status = checkStatus(convert.long(code), socket);
        else if (socket !== null) checkStatus(status, socket);
        if (phrase !== undefined) text = statusTextOf(phrase);
        if (given !== undefined) headers = isHeaders(given) ? listCopy(listOf(given)) : listFrom(given, NO_HEADERS);
        if (properties !== undefined && !isObject(properties)) {
          throw new TypeError('Incorrect type for the \'cf\' field on \'InitializerDict\': the provided value is not of type \'Object\'.');
        }
        cf = properties;
        if (encodeBody !== undefined) manual = isManual('encodeBody', encodeBody);
      }
    }
    if (typeof body === 'string') {
      if (isNullBody(status)) {
        checkNullBody(body === '');
        super(INTERNAL, 0, undefined, -1, headers, false);
      } else {
        if (headers === undefined) headers = TEXT_HEADERS;
        else if (!listHas(headers, 'content-type')) listAppend(headers, 'content-type', TEXT_TYPE);
        super(INTERNAL, 3, body, -1, headers, false);
      }
    } else if (body === null || body === undefined) super(INTERNAL, 0, undefined, -1, headers, false);
    else {
      const content = B.extract(body);
      if (isNullBody(status)) checkNullBody(content.kind === 1 && content.value.length === 0);
      const { type } = content;
      if (type !== null) {
        if (headers === undefined) headers = ['content-type', type];
        else if (!listHas(headers, 'content-type')) listAppend(headers, 'content-type', type);
      }
      super(INTERNAL, isNullBody(status) ? 0 : content.kind, content.value, -1, headers, false);
    }
    this.#status = status;
    this.#statusText = text;
    this.#url = '';
    this.#redirected = false;
    this.#cf = cf;
    this.#manual = manual;
    this.#error = false;
    this.#webSocket = socket;
  }

  static {
    isResponse = (value) => isObject(value) && #status in value;
    parts = {
      status: (response) => response.#status,
      /** Empty: the usual phrase. */
      statusText: (response) => response.#statusText ?? '',
      isError: (response) => response.#error,
      url: (response) => response.#url,
      redirected: (response) => response.#redirected,
      manual: (response) => response.#manual,
      webSocket: (response) => response.#webSocket,
    };
  }

  static error() {
    const response = new Response(INTERNAL, 0);
    response.#error = true;
    return response;
  }

  static redirect(url, status = 302) {
    if (arguments.length === 0) throw new TypeError('Failed to execute \'redirect\' on \'Response\': parameter 1 is not of type \'string\'.');
    let location;
    try {
      location = rt.url.normalize(`${url}`);
    } catch {
      throw new TypeError(`Unable to parse URL: ${url}`);
    }
    const code = convert.long(status);
    if (!isRedirect(code)) throw new RangeError(`${code} is not a redirect status code. It must be one of: 301, 302, 303, 307, or 308.`);
    return new Response(INTERNAL, code, '', ['location', location]);
  }

  static json(data, init = undefined) {
    if (arguments.length === 0) throw new TypeError('Failed to execute \'json\' on \'Response\': parameter 1 is not of type \'Value\'.');
    // What has no JSON text is the word "undefined", as in workerd.
    const text = `${stringify(data)}`;
    if (init === undefined) {
      const response = new Response(null);
      B.fill(response, 3, text, JSON_HEADERS);
      return response;
    }
    const response = new Response(null, init);
    if (isNullBody(response.#status)) checkNullBody(false);
    const list = B.list(response);
    if (!listHas(list, 'content-type')) listAppend(list, 'content-type', 'application/json');
    B.fill(response, 3, text, list);
    return response;
  }

  clone() {
    if (!isResponse(this)) illegalInvocation();
    if (this.#webSocket !== null) throw new TypeError('Cannot clone a response to a WebSocket handshake.');
    const copy = B.clone(this);
    const response = new Response(INTERNAL, this.#status, this.#statusText, listCopy(B.list(this)), copy.kind, copy.value,
      copy.length, this.#url, this.#redirected);
    B.share(response);
    B.unlockHeaders(response);
    response.#cf = this.#cf;
    response.#manual = this.#manual;
    response.#error = this.#error;
    return response;
  }

  get status() {
    if (!isResponse(this)) illegalInvocation();
    return this.#status;
  }

  get statusText() {
    if (!isResponse(this)) illegalInvocation();
    if (this.#statusText === null) this.#statusText = ops.status_phrase(this.#status);
    return this.#statusText;
  }

  get headers() {
    if (!isResponse(this)) illegalInvocation();
    return B.headers(this);
  }

  get ok() {
    if (!isResponse(this)) illegalInvocation();
    return this.#status >= 200 && this.#status < 300;
  }

  get redirected() {
    if (!isResponse(this)) illegalInvocation();
    return this.#redirected;
  }

  get url() {
    if (!isResponse(this)) illegalInvocation();
    return this.#url;
  }

  get webSocket() {
    if (!isResponse(this)) illegalInvocation();
    return this.#webSocket;
  }

  get cf() {
    if (!isResponse(this)) illegalInvocation();
    return this.#cf;
  }

  get type() {
    if (!isResponse(this)) illegalInvocation();
    return this.#error ? 'error' : 'default';
  }
}
arity(Response, 0);
decorate(Response);

function checkStatus(status, socket = null) {
  if (socket !== null) {
    if (status !== 101) throw new RangeError('Responses with a WebSocket must have status code 101.');
    return status;
  }
  if (status < 200 || status > 599) {
    throw new RangeError('Responses may only be constructed with status codes in the range 200 to 599, inclusive.');
  }
  return status;
}

/** A body with a status that has none: only an empty one is let through, as on Cloudflare. */
function checkNullBody(empty) {
  if (!empty) throw new TypeError('Response with null body status (101, 204, 205, or 304) cannot have a body.');
}

rt.expose('Response', Response);
rt.response = {
  isRedirect,
  isResponse,
  ...parts,
  /** A response that the host delivers. Its headers cannot be changed. */
  make: (status, statusText, list, kind, value, length, url, redirected, manual, webSocket) =>
    new Response(INTERNAL, status, statusText === '' ? null : statusText, list, kind, value, length, url, redirected, manual, webSocket),
  Response,
};
