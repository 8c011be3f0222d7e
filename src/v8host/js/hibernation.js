//! Hibernatable WebSockets: what `ctx` does with them, and their events. Publishes `rt.hibernation`.
//!
//! The host keeps such a socket, its tags and its attachment while the object is out of memory; the
//! `WebSocket` of JavaScript is made anew when somebody asks for it.
//! Messages are workerd's.

const { convert, decorate, illegalInvocation, isObject, method, mismatch, required, sequence } = rt.webidl;
const { SafeMap, newFrame, setFrame, websocket: W } = rt;
const { resolvedWith, then } = rt.promises;
const { EventState, release } = rt.dispatch;
const { Date, Error, ReflectApply, TypeError } = primordials;

const STATE = 'DurableObjectState';
const TAGS_MAX = 10;
const TAG_LENGTH_MAX = 256;
const TIMEOUT_MS_MAX = 604_800_000;

/** Kinds of what comes, as the host numbers them. */
const TEXT = 0;
const BINARY = 1;
const CLOSE = 2;
const LOST = 3;

class WebSocketRequestResponsePair {
  #request;
  #response;

  constructor(request, response) {
    required(arguments.length, 'Failed to construct \'WebSocketRequestResponsePair\'', 'string', 'string');
    this.#request = convert.USVString(request);
    this.#response = convert.USVString(response);
  }

  static is(value) {
    return isObject(value) && #request in value;
  }

  get request() {
    if (!isPair(this)) illegalInvocation();
    return this.#request;
  }

  get response() {
    if (!isPair(this)) illegalInvocation();
    return this.#response;
  }
}
const isPair = WebSocketRequestResponsePair.is;
delete WebSocketRequestResponsePair.is;
decorate(WebSocketRequestResponsePair);

/** The `WebSocket` of a cell with this number. */
function socketOf(cell, number) {
  cell.sockets ??= new SafeMap();
  let ws = cell.sockets.get(number);
  if (ws === undefined) {
    ws = W.wake(number, cell.slot);
    cell.sockets.set(number, ws);
  }
  return ws;
}

function checkSocket(value, name) {
  if (!W.isSocket(value)) mismatch(method(STATE, name), 0, 'WebSocket');
}

/** The tags, each once. */
function tagsOf(tags) {
  if (tags === undefined) return [];
  const list = typeof tags === 'string' ? null : sequence(tags, convert.USVString);
  if (list === null) mismatch(method(STATE, 'acceptWebSocket'), 1, 'Array');
  const distinct = [];
  for (let i = 0; i < list.length; i++) {
    const tag = list[i];
    if (distinct.length >= TAGS_MAX) throw new Error(`a Hibernatable WebSocket cannot have more than ${TAGS_MAX} tags`);
    if (tag.length > TAG_LENGTH_MAX) throw new Error(`"${tag}" is longer than the max tag length (${TAG_LENGTH_MAX} characters).`);
    let isNew = true;
    for (let j = 0; j < distinct.length; j++) if (distinct[j] === tag) isNew = false;
    if (isNew) distinct[distinct.length] = tag;
  }
  return distinct;
}

function accept(slot, ws, tags) {
  checkSocket(ws, 'acceptWebSocket');
  const distinct = tagsOf(tags);
  if (W.isAccepted(ws)) throw new Error('Cannot call `acceptWebSocket()` if the WebSocket was already accepted via `accept()`');
  const peer = W.peer(ws);
  if (peer === null || !W.isFresh(peer)) {
    throw new Error('Cannot call `acceptWebSocket()` on this WebSocket because its pair has already been accepted or used in a Response.');
  }
  if (!W.isFresh(ws)) throw new TypeError('Tried to make an api::WebSocket hibernatable when it was in an incompatible state.');
  W.check(ws);
  W.hibernate(ws, slot, distinct);
  const cell = rt.cellState.cellOf(slot);
  cell.sockets ??= new SafeMap();
  cell.sockets.set(W.id(ws), ws);
}

/** The newest first, as workerd has them; with a tag the oldest. */
function list(slot, tag) {
  const cell = rt.cellState.cellOf(slot);
  const numbers = ops.sockets_list(slot, tag === undefined ? undefined : convert.USVString(tag));
  const sockets = [];
  const last = numbers.length - 1;
  for (let i = 0; i <= last; i++) sockets[i] = socketOf(cell, numbers[tag === undefined ? last - i : i]);
  return sockets;
}

function setAuto(slot, pair) {
  if (pair === undefined) {
    ops.sockets_set_auto(slot, undefined, undefined);
    return;
  }
  if (!isPair(pair)) mismatch(method(STATE, 'setWebSocketAutoResponse'), 0, 'WebSocketRequestResponsePair');
  ops.sockets_set_auto(slot, pair.request, pair.response);
}

function setTimeout(slot, ms) {
  const time = ms === undefined ? 0 : convert.long(ms);
  if (time < 0) throw new TypeError('The value cannot be converted because it is negative and this API expects a positive number.');
  if (time > TIMEOUT_MS_MAX) throw new Error(`Event timeout should not exceed ${TIMEOUT_MS_MAX} ms.`);
  ops.sockets_set_timeout(slot, time);
}

/** Something came on a socket of the cell. */
rt.entry.cellSocket = (id, slot, number, kind, value, reason) => {
  const event = new EventState(id, slot);
  setFrame(newFrame(id, slot, undefined, undefined, event));
  let result;
  try {
    const cell = rt.cellState.cellOf(slot);
    const ws = socketOf(cell, number);
    result = call(cell, ws, kind, value, reason);
    if (kind !== TEXT && kind !== BINARY) cell.sockets.delete(number);
  } catch (error) {
    ops.uncaught(error);
    release(event);
    return;
  }
  then(resolvedWith(result), () => release(event), (error) => {
    ops.uncaught(error);
    release(event);
  });
};

/** Calls the handler for what came, if there is one. */
function call(cell, ws, kind, value, reason) {
  switch (kind) {
    case TEXT:
    case BINARY:
      return handle(cell.instance, 'webSocketMessage', [ws, value]);
    case CLOSE:
      W.detach(ws);
      W.closedIn(ws, value, reason);
      return handle(cell.instance, 'webSocketClose', [ws, value, reason, true]);
    case LOST:
      W.detach(ws);
      W.lost(ws);
      return handle(cell.instance, 'webSocketClose', [ws, 1006, 'WebSocket disconnected without sending Close frame.', false]);
    default:
      W.detach(ws);
      W.lost(ws);
      return handle(cell.instance, 'webSocketError', [ws, new Error(value)]);
  }
}

function handle(instance, name, args) {
  const handler = instance[name];
  return typeof handler === 'function' ? ReflectApply(handler, instance, args) : undefined;
}

rt.hibernation = {
  accept,
  list,
  tags: (ws) => {
    checkSocket(ws, 'getTags');
    return W.tags(ws);
  },
  setAuto,
  auto: (slot) => {
    const pair = ops.sockets_auto(slot);
    return pair === null ? null : new WebSocketRequestResponsePair(pair[0], pair[1]);
  },
  answeredAt: (ws) => {
    checkSocket(ws, 'getWebSocketAutoResponseTimestamp');
    const time = W.answeredAt(ws);
    return time === null ? null : new Date(time);
  },
  setTimeout,
  timeout: (slot) => ops.sockets_timeout(slot),
};
rt.expose('WebSocketRequestResponsePair', WebSocketRequestResponsePair);
