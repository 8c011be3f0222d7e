//! `WebSocket`, `WebSocketPair` and their events. Publishes `rt.websocket`.
//!
//! A WebSocket is one end of two, and has a number. Its other end is with the host: a client, a
//! server, another object, or the second end of a pair. Nothing comes before the end was accepted,
//! and the next message comes when the turn of the one before has ended.
//! Invariant: one `close` event for an end; after it, or after an error, nothing more.
//! Source: WHATWG WebSockets; what differs, and the messages, are workerd's.

const {
  arity, bytesOf, constants, constructor, convert, decorate, dictionary, illegalConstructor, illegalInvocation, isBufferSource,
  isObject, method, mismatch, required, sequence, uncurry,
} = rt.webidl;
const { INTERNAL, SafeMap, body: B } = rt;
const { Event, ErrorEvent, EventTarget, dispatchTrusted, handlerAttribute } = rt.events;
const { Error, Object, String, Symbol, TypeError, Uint8Array } = globalThis;
const { defineProperty } = Object;
const startsWith = uncurry(String.prototype.startsWith);
const indexOf = uncurry(String.prototype.indexOf);
const slice = uncurry(String.prototype.slice);
const charCodeAt = uncurry(String.prototype.charCodeAt);

// --- Events.

class MessageEvent extends Event {
  #data = null;
  #origin = null;
  #lastEventId = '';
  #source = null;
  #ports = [];

  constructor(type, init = undefined) {
    const where = constructor('MessageEvent');
    required(arguments.length, where, 'string');
    super(type, init);
    const { data, origin, lastEventId, source, ports } = dictionary(init, where, 1, 'MessageEventInit');
    if (data !== undefined) this.#data = data;
    if (origin !== undefined) this.#origin = convert.USVString(origin);
    if (lastEventId !== undefined) this.#lastEventId = convert.DOMString(lastEventId);
    if (source !== undefined) this.#source = source;
    if (ports !== undefined) this.#ports = sequence(ports, convert.any) ?? [];
  }

  get data() {
    if (!isObject(this) || !(#data in this)) illegalInvocation();
    return this.#data;
  }

  get origin() {
    if (!isObject(this) || !(#data in this)) illegalInvocation();
    return this.#origin;
  }

  get lastEventId() {
    if (!isObject(this) || !(#data in this)) illegalInvocation();
    return this.#lastEventId;
  }

  get source() {
    if (!isObject(this) || !(#data in this)) illegalInvocation();
    return this.#source;
  }

  get ports() {
    if (!isObject(this) || !(#data in this)) illegalInvocation();
    return this.#ports;
  }
}
arity(MessageEvent, 1);
decorate(MessageEvent);

class CloseEvent extends Event {
  #code = 0;
  #reason = '';
  #wasClean = false;

  constructor(type, init = undefined) {
    const where = constructor('CloseEvent');
    required(arguments.length, where, 'string');
    super(type, init);
    const { code, reason, wasClean } = dictionary(init, where, 1, 'CloseEventInit');
    if (code !== undefined) this.#code = convert.unsignedShort(code);
    if (reason !== undefined) this.#reason = convert.USVString(reason);
    this.#wasClean = !!wasClean;
  }

  get code() {
    if (!isObject(this) || !(#code in this)) illegalInvocation();
    return this.#code;
  }

  get reason() {
    if (!isObject(this) || !(#code in this)) illegalInvocation();
    return this.#reason;
  }

  get wasClean() {
    if (!isObject(this) || !(#code in this)) illegalInvocation();
    return this.#wasClean;
  }
}
arity(CloseEvent, 1);
decorate(CloseEvent);

// --- WebSocket.

/** What an end is. */
const CONNECTING = 0; // Made by `new WebSocket()`, which has no answer yet.
const FRESH = 1; // Neither accepted nor used in a response.
const ACCEPTED = 2;
const HIBERNATABLE = 3;
const USED = 4; // In a response, or given up.

/** Kinds of what comes, as the host numbers them. */
const TEXT = 0;
const BINARY = 1;
const CLOSE = 2;
const LOST = 3;

const NO_CODE = 1005;
const ABNORMAL = 1006;
const REASON_BYTES_MAX = 123;
const UNACCEPTED = 'You must call one of accept() or state.acceptWebSocket() on this WebSocket before sending messages.';
const LOST_REASON = 'WebSocket disconnected without sending Close frame.';
const OTHER_CELL = 'Cannot perform I/O on behalf of a different Durable Object. I/O objects (such as streams, '
  + 'request/response bodies, and others) created in the context of one Durable Object cannot be accessed from a different '
  + 'Durable Object in the same isolate. This is a limitation of Cloudflare Workers which allows us to improve overall performance.';
const OTHER_REQUEST = 'Cannot perform I/O on behalf of a different request. I/O objects (such as streams, request/response '
  + 'bodies, and others) created in the context of one request handler cannot be accessed from a different request\'s handler. '
  + 'This is a limitation of Cloudflare Workers which allows us to improve overall performance.';

/** Number -> the end that hears what comes there. */
const listening = new SafeMap();

/** The script's flags: read once in a realm. */
let flags;
const flag = (bit) => {
  flags ??= ops.socket_flags();
  return (flags & bit) !== 0;
};
const BLOBS = 1;
const REPLIES = 2;

const codeOf = (code) => {
  const number = convert.long(code);
  if (number < 1000 || number >= 5000 || number === 1004 || number === NO_CODE || number === ABNORMAL || number === 1015) {
    throw rt.domException(`Invalid WebSocket close code: ${number}.`, 'InvalidAccessError');
  }
  return number;
};

let W;

class WebSocket extends EventTarget {
  #id;
  #state;
  /** The other end, when it is one of a pair. */
  #peer = null;
  /** The object, or else the request, whose end it is. */
  #cell;
  #event;
  /** Where its events run. */
  #frame;
  /** The event that goes on for as long as this end hears something. */
  #held = null;
  #closedIn = false;
  #closedOut = false;
  #dead = false;
  #halfOpen = false;
  #blobs = undefined;
  #url = null;
  #protocol = '';
  #attachment = undefined;
  #tags = undefined;

  /** Scripts give `url` and `protocols`. Ours: INTERNAL, number, state. */
  constructor(url, protocols = undefined, state = FRESH) {
    super();
    rt.checkIo();
    this.#frame = rt.frame();
    this.#cell = this.#frame.cell;
    this.#event = this.#frame.event;
    if (url === INTERNAL) {
      this.#id = protocols;
      this.#state = state;
      return;
    }
    required(arguments.length, constructor('WebSocket'), 'string');
    this.#state = CONNECTING;
    this.#url = convert.USVString(url);
    connect(this, this.#url, protocols);
    W.hold(this);
  }

  static {
    W = {
      isSocket: (value) => isObject(value) && #id in value,
      id: (ws) => ws.#id,
      isAccepted: (ws) => ws.#state === ACCEPTED || ws.#state === HIBERNATABLE,
      isFresh: (ws) => ws.#state === FRESH,
      isHibernatable: (ws) => ws.#state === HIBERNATABLE,
      peer: (ws) => ws.#peer,
      pair: (first, second) => {
        first.#peer = second;
        second.#peer = first;
      },
      /** The host hears of a pair when something happens to it. */
      tell: (ws) => {
        if (ws.#peer === null || ws.#id !== undefined) return;
        ws.#id = ops.socket_new();
        ws.#peer.#id = ops.socket_new();
        ops.socket_pair(ws.#id, ws.#peer.#id);
      },
      /** From here on what comes is dispatched. */
      listen: (ws) => {
        W.tell(ws);
        ops.socket_accept(ws.#id);
        ws.#state = ACCEPTED;
        ws.#frame = rt.frame();
        listening.set(ws.#id, ws);
        // Of a pair whose other end is here nobody may ever close one: that is nobody's loss.
        if (ws.#peer === null || ws.#peer.#state === USED) W.hold(ws);
      },
      /** The event goes on until nothing comes any more. */
      hold: (ws, event = rt.frame().state) => {
        if (ws.#held !== null || event === undefined || event.pending === 0) return;
        event.pending++;
        ws.#held = event;
      },
      letGo: (ws) => {
        listening.delete(ws.#id);
        if (ws.#held !== null) rt.dispatch.release(ws.#held);
        ws.#held = null;
      },
      hibernate: (ws, cell, tags) => {
        W.tell(ws);
        ops.socket_hibernate(cell, ws.#id, tags);
        ws.#state = HIBERNATABLE;
        ws.#cell = cell;
        if (ws.#attachment !== undefined) ops.sockets_attach(cell, ws.#id, ws.#attachment);
      },
      /** An end that slept: made anew when it is asked for. */
      wake: (id, cell) => {
        const ws = new WebSocket(INTERNAL, id, HIBERNATABLE);
        ws.#cell = cell;
        ws.#closedOut = ops.sockets_has_closed(cell, id);
        return ws;
      },
      /** The host forgets the end after this turn: what it had is kept here. */
      detach: (ws) => {
        ws.#tags = ops.sockets_tags(ws.#cell, ws.#id);
        ws.#attachment = ops.sockets_attachment(ws.#cell, ws.#id);
      },
      tags: (ws) => {
        if (!W.isAccepted(ws)) {
          throw new Error('you must call \'acceptWebSocket()\' before attempting to access the tags of a WebSocket.');
        }
        if (ws.#state !== HIBERNATABLE) throw new Error('only hibernatable websockets can have tags.');
        return ws.#tags ?? ops.sockets_tags(ws.#cell, ws.#id);
      },
      answeredAt: (ws) => (ws.#state === HIBERNATABLE ? ops.sockets_answered_at(ws.#cell, ws.#id) : null),
      /** The other side will send nothing more; answered here unless the script is to do it. */
      closedIn: (ws, code, reason) => {
        ws.#closedIn = true;
        if (ws.#closedOut || ws.#halfOpen || !flag(REPLIES)) return;
        W.sendClose(ws, code, reason);
      },
      lost: (ws) => {
        ws.#closedIn = true;
        ws.#dead = true;
      },
      sendClose: (ws, code, reason) => {
        ws.#closedOut = true;
        ops.socket_close(ws.#id, code, reason, ws.#state === HIBERNATABLE ? ws.#cell : undefined);
      },
      check: (ws) => ws.#check(),
      /** Gives the end to whoever gets the response of this event; its number. */
      use: (ws, event) => {
        if (ws.#url !== null) {
          throw new TypeError('Can\'t return WebSocket in a Response if it was created with `new WebSocket()`');
        }
        if (ws.#state === USED) throw new TypeError('Can\'t return WebSocket that was already used in a response.');
        if (ws.#state === HIBERNATABLE) throw new TypeError('Can\'t return WebSocket in a Response after calling acceptWebSocket().');
        if (ws.#state === ACCEPTED) throw new TypeError('Can\'t return WebSocket in a Response after calling accept().');
        W.tell(ws);
        ws.#state = USED;
        if (ws.#peer !== null && ws.#peer.#state === ACCEPTED) W.hold(ws.#peer, event);
        return ws.#id;
      },
      /** `new WebSocket()` has its answer. */
      connected: (ws, other, protocol) => {
        ws.#id = other.#id;
        other.#state = USED;
        ws.#protocol = protocol;
        W.letGo(ws);
        W.listen(ws);
        dispatchTrusted(ws, new Event('open'));
      },
      isConnecting: (ws) => ws.#state === CONNECTING,
      /** Something came. */
      take: (ws, kind, value, reason) => {
        rt.setFrame(ws.#frame);
        switch (kind) {
          case TEXT:
            dispatchTrusted(ws, new MessageEvent('message', { __proto__: null, data: value }));
            return;
          case BINARY: {
            const data = ws.#blobs ?? flag(BLOBS) ? rt.blob.make(new Uint8Array(value), '') : value;
            dispatchTrusted(ws, new MessageEvent('message', { __proto__: null, data }));
            return;
          }
          case CLOSE:
            W.closedIn(ws, value, reason);
            ended(ws, value, reason, true);
            return;
          case LOST:
            W.lost(ws);
            ended(ws, ABNORMAL, LOST_REASON, false);
            return;
          default:
            W.lost(ws);
            failed(ws, new Error(value));
            W.letGo(ws);
        }
      },
    };
  }

  /** Whether this code may use it. */
  #check() {
    const frame = rt.frame();
    if (frame === undefined) rt.checkIo();
    if (frame.cell !== this.#cell) throw new Error(OTHER_CELL);
    if (this.#cell === undefined && frame.event !== this.#event) throw new Error(OTHER_REQUEST);
  }

  accept(options = undefined) {
    if (!W.isSocket(this)) illegalInvocation();
    const { allowHalfOpen } = dictionary(options, method('WebSocket', 'accept'), 0, 'AcceptOptions');
    this.#check();
    if (this.#url !== null) throw new TypeError('Websockets obtained from the \'new WebSocket()\' constructor cannot call accept');
    if (this.#state === USED) throw new TypeError('Can\'t accept() WebSocket that was already used in a response.');
    if (this.#state === HIBERNATABLE) throw new TypeError('Can\'t accept() WebSocket after enabling hibernation.');
    if (this.#state === ACCEPTED) return;
    this.#halfOpen = !!allowHalfOpen;
    W.listen(this);
  }

  send(message) {
    if (!W.isSocket(this)) illegalInvocation();
    required(arguments.length, method('WebSocket', 'send'), 'ArrayBuffer or ArrayBufferView or string');
    const data = isBufferSource(message) ? bytesOf(message) : convert.USVString(message);
    this.#check();
    if (this.#closedOut) throw new TypeError('Can\'t call WebSocket send() after close().');
    if (this.#dead) return;
    if (!W.isAccepted(this)) throw new TypeError(UNACCEPTED);
    ops.socket_send(this.#id, data);
  }

  close(code = undefined, reason = undefined) {
    if (!W.isSocket(this)) illegalInvocation();
    this.#check();
    if (this.#state === CONNECTING) {
      this.#state = USED;
      this.#dead = true;
      W.letGo(this);
      return;
    }
    if (this.#closedOut || this.#dead) return;
    if (!W.isAccepted(this)) throw new TypeError(UNACCEPTED);
    const number = code === undefined ? NO_CODE : codeOf(code);
    if (reason !== undefined && code === undefined) {
      throw rt.domException('If you specify a WebSocket close reason, you must also specify a code.', 'InvalidAccessError');
    }
    const text = reason === undefined ? '' : convert.USVString(reason);
    if (rt.encoding.encode(text).length > REASON_BYTES_MAX) {
      throw rt.domException(`WebSocket close reason must not be longer than ${REASON_BYTES_MAX} bytes when UTF-8 encoded.`, 'SyntaxError');
    }
    W.sendClose(this, number, text);
  }

  serializeAttachment(attachment) {
    if (!W.isSocket(this)) illegalInvocation();
    required(arguments.length, method('WebSocket', 'serializeAttachment'), 'Value');
    const bytes = ops.socket_pack(attachment);
    if (this.#state === HIBERNATABLE && this.#tags === undefined) ops.sockets_attach(this.#cell, this.#id, bytes);
    else this.#attachment = bytes;
  }

  deserializeAttachment() {
    if (!W.isSocket(this)) illegalInvocation();
    const asleep = this.#state === HIBERNATABLE && this.#tags === undefined;
    const bytes = asleep ? ops.sockets_attachment(this.#cell, this.#id) : this.#attachment;
    return bytes === undefined ? null : ops.socket_unpack(bytes);
  }

  get readyState() {
    if (!W.isSocket(this)) illegalInvocation();
    if (this.#dead || (this.#closedIn && this.#closedOut)) return 3;
    if (this.#closedIn || this.#closedOut) return 2;
    return this.#state === CONNECTING ? 0 : 1;
  }

  get bufferedAmount() {
    if (!W.isSocket(this)) illegalInvocation();
    return this.#id === undefined ? 0 : ops.socket_buffered(this.#id);
  }

  get url() {
    if (!W.isSocket(this)) illegalInvocation();
    return this.#url;
  }

  get protocol() {
    if (!W.isSocket(this)) illegalInvocation();
    return this.#protocol;
  }

  get extensions() {
    if (!W.isSocket(this)) illegalInvocation();
    return '';
  }

  get binaryType() {
    if (!W.isSocket(this)) illegalInvocation();
    return this.#blobs ?? flag(BLOBS) ? 'blob' : 'arraybuffer';
  }

  set binaryType(type) {
    if (!W.isSocket(this)) illegalInvocation();
    const word = convert.DOMString(type);
    if (word === 'blob' || word === 'arraybuffer') this.#blobs = word === 'blob';
  }
}
arity(WebSocket, 1);
constants(WebSocket, {
  READY_STATE_CONNECTING: 0, CONNECTING: 0, READY_STATE_OPEN: 1, OPEN: 1, READY_STATE_CLOSING: 2, CLOSING: 2,
  READY_STATE_CLOSED: 3, CLOSED: 3,
});
for (const type of ['open', 'message', 'close', 'error']) handlerAttribute(WebSocket.prototype, type);
decorate(WebSocket);

function ended(ws, code, reason, wasClean) {
  try {
    dispatchTrusted(ws, new CloseEvent('close', { __proto__: null, code, reason, wasClean }));
  } finally {
    W.letGo(ws);
  }
}

function failed(ws, error) {
  const message = `Uncaught ${error.name}: ${error.message}`;
  dispatchTrusted(ws, new ErrorEvent('error', { __proto__: null, message, error }));
}

/** The host has something for an end that was accepted. */
rt.entry.socket = (id, kind, value, reason) => {
  const ws = listening.get(id);
  if (ws !== undefined) W.take(ws, kind, value, reason);
};

// --- `new WebSocket()`.

const NOT_TOKEN = '()<>@,;:\\"/[]?={}';
const SYNTAX = 'SyntaxError';
const WHERE = 'WebSocket Constructor: ';

function isToken(text) {
  if (text === '') return false;
  for (let i = 0; i < text.length; i++) {
    const code = charCodeAt(text, i);
    if (code < 0x21 || code > 0x7e || indexOf(NOT_TOKEN, text[i]) >= 0) return false;
  }
  return true;
}

/** The value of the header, or undefined. */
function protocolsOf(protocols) {
  if (protocols === undefined) return undefined;
  const list = typeof protocols === 'string' ? null : sequence(protocols, convert.USVString);
  if (list === null) {
    const word = convert.USVString(protocols);
    if (!isToken(word)) throw rt.domException(`${WHERE}The protocol header token is invalid.`, SYNTAX);
    return word;
  }
  let header = '';
  for (let i = 0; i < list.length; i++) {
    if (!isToken(list[i])) throw rt.domException(`${WHERE}One of the protocol header tokens is invalid.`, SYNTAX);
    for (let j = 0; j < i; j++) {
      if (list[i] === list[j]) throw rt.domException(`${WHERE}The protocols header cannot have repeating values.`, SYNTAX);
    }
    header += i === 0 ? list[i] : `, ${list[i]}`;
  }
  return header === '' ? undefined : header;
}

/** The answer that `new WebSocket()` waits for. */
class Handshake {
  constructor(id, ws) {
    this.id = id;
    this.ws = ws;
    this.frame = rt.frame();
  }

  response(response) {
    const socket = rt.response.webSocket(response);
    const { ws } = this;
    if (!W.isConnecting(ws)) {
      // Given up meanwhile: the connection ends as soon as it is accepted.
      if (socket === null) return;
      socket.accept();
      socket.close();
      return;
    }
    if (socket === null) {
      this.error(new TypeError('Failed to establish the WebSocket connection: expected server to reply with HTTP status code '
        + `101 (switching protocols), but received ${rt.response.status(response)} instead.`));
      return;
    }
    W.connected(ws, socket, B.headers(response).get('sec-websocket-protocol'));
  }

  error(reason) {
    const { ws } = this;
    if (!W.isConnecting(ws)) return;
    W.lost(ws);
    failed(ws, reason);
    ended(ws, ABNORMAL, 'Failed to establish websocket connection', false);
  }
}

function connect(ws, url, protocols) {
  let href;
  try {
    href = rt.url.normalize(url);
  } catch {
    throw rt.domException(`${WHERE}The url is invalid.`, SYNTAX);
  }
  if (!startsWith(href, 'ws:') && !startsWith(href, 'wss:')) {
    throw rt.domException(`${WHERE}The url scheme must be ws or wss.`, SYNTAX);
  }
  if (indexOf(href, '#') >= 0) throw rt.domException(`${WHERE}The url fragment must be empty.`, SYNTAX);
  const list = ['upgrade', 'websocket'];
  const header = protocolsOf(protocols);
  if (header !== undefined) {
    list[2] = 'sec-websocket-protocol';
    list[3] = header;
  }
  const id = ops.fetch('GET', `http${slice(href, 2)}`, list, B.NONE, undefined, -1, 1);
  rt.calls.add(new Handshake(id, ws));
}

// --- WebSocketPair.

class WebSocketPair {
  constructor() {
    const first = new WebSocket(INTERNAL, undefined);
    const second = new WebSocket(INTERNAL, undefined);
    W.pair(first, second);
    defineProperty(this, 0, { __proto__: null, value: first, enumerable: true, configurable: true });
    defineProperty(this, 1, { __proto__: null, value: second, enumerable: true, configurable: true });
  }

  *[Symbol.iterator]() {
    yield this[0];
    yield this[1];
  }
}
decorate(WebSocketPair);

rt.websocket = {
  ...W,
  /** An end that came with a response. */
  make: (id) => new WebSocket(INTERNAL, id),
};
rt.expose('MessageEvent', MessageEvent);
rt.expose('CloseEvent', CloseEvent);
rt.expose('WebSocket', WebSocket);
rt.expose('WebSocketPair', WebSocketPair);
