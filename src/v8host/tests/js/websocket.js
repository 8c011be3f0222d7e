// durable object: ROOM=Room
// WebSockets of Workers, and those that objects accept without hibernation. Expectations are those of
// workerd, but for its messages to programmers of C++.
import { DurableObject } from 'cloudflare:workers';
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

const sleep = (ms = 10) => new Promise((resolve) => setTimeout(resolve, ms));
const upgrade = { headers: { Upgrade: 'websocket' } };

/** Everything that an end hears. */
function hear(ws, log = []) {
  ws.addEventListener('message', (event) => log.push(event.data));
  ws.addEventListener('close', (event) => log.push(['close', event.code, event.reason, event.wasClean, ws.readyState]));
  ws.addEventListener('error', (event) => log.push(['error', event.message, event.error.message, ws.readyState]));
  return log;
}

function pair() {
  const [first, second] = new WebSocketPair();
  return [first, second];
}

let late;

export class Room extends DurableObject {
  async fetch(request) {
    const [client, server] = Object.values(new WebSocketPair());
    const { pathname } = new URL(request.url);
    if (pathname === '/refuse') return new Response('no', { status: 403 });
    if (pathname === '/late') {
      late = [client, server];
      return new Response('kept');
    }
    server.accept();
    if (pathname === '/early') {
      server.send('before the response');
      server.send('and again');
    }
    server.addEventListener('message', (event) => server.send(`${this.ctx.id.name}: ${event.data}`));
    server.addEventListener('close', (event) => late?.push(event.code));
    return new Response(null, { status: 101, webSocket: client, headers: { 'x-room': 'yes' } });
  }
}

export default {
  fetch(request, env) {
    const url = new URL(request.url);
    if (url.pathname === '/pass') return env.ROOM.getByName('passed').fetch(request);
    const [client, server] = pair();
    if (url.pathname === '/used') return new Response(null, { status: 101, webSocket: server, headers: {} });
    server.accept();
    server.addEventListener('message', (event) => server.send(event.data));
    return new Response(null, { status: 101, webSocket: client });
  },
};

test('classes', () => {
  const two = new WebSocketPair();
  assertEquals([Object.keys(two), [...two].length, String(two), two[0] === [...two][0]], [['0', '1'], 2, '[object WebSocketPair]', true]);
  const [ws] = two;
  assert(ws instanceof WebSocket && ws instanceof EventTarget);
  assertEquals([ws.readyState, ws.url, ws.protocol, ws.extensions, ws.binaryType, ws.bufferedAmount], [1, null, '', '', 'blob', 0]);
  assertEquals([WebSocket.CONNECTING, WebSocket.OPEN, WebSocket.CLOSING, WebSocket.CLOSED, ws.READY_STATE_CLOSED], [0, 1, 2, 3, 3]);
  ws.binaryType = 'nonsense';
  assertEquals(ws.binaryType, 'blob');
  ws.binaryType = 'arraybuffer';
  assertEquals(ws.binaryType, 'arraybuffer');
  const message = new MessageEvent('x', { data: 5, origin: 'o' });
  assertEquals([message.data, message.origin, message.type, message.lastEventId, message.source, message.ports], [5, 'o', 'x', '', null, []]);
  const close = new CloseEvent('x', { code: 5, reason: 'r', wasClean: true });
  assertEquals([close.code, close.reason, close.wasClean], [5, 'r', true]);
  assertEquals([new CloseEvent('x').code, new CloseEvent('x').reason, new CloseEvent('x').wasClean], [0, '', false]);
});

test('messages keep their order and their kind', async () => {
  const [a, b] = pair();
  a.accept();
  a.send('one');
  b.accept();
  const log = hear(b);
  a.send(new Uint8Array([1, 2, 3]).subarray(1));
  a.send(new ArrayBuffer(2));
  a.send(5);
  a.send('\ud800');
  assertEquals(a.bufferedAmount, 'one'.length + 2 + 2 + 1 + 3);
  await sleep();
  assertEquals(a.bufferedAmount, 0);
  assertEquals([log[0], log[1].constructor.name, log[2].size, log[3], log[4]], ['one', 'Blob', 2, '5', '\ufffd']);
  assertEquals([...new Uint8Array(await log[1].arrayBuffer())], [2, 3]);
  b.binaryType = 'arraybuffer';
  a.send(new Uint8Array([7]));
  await sleep();
  assert(log[5] instanceof ArrayBuffer && new Uint8Array(log[5])[0] === 7);
  b.onmessage = ({ data }) => log.push(`on ${data}`);
  a.send('x');
  await sleep();
  assertEquals(log.slice(6), ['x', 'on x']);
});

test('what is wrong with a call', async () => {
  const [a, b] = pair();
  const unaccepted = 'You must call one of accept() or state.acceptWebSocket() on this WebSocket before sending messages.';
  assertThrows(() => a.send('x'), TypeError, unaccepted);
  assertThrows(() => a.close(), TypeError, unaccepted);
  assertThrows(() => a.send(), TypeError, "Failed to execute 'send' on 'WebSocket': parameter 1 is not of type 'ArrayBuffer or ArrayBufferView or string'.");
  a.accept();
  a.accept();
  for (const code of [999, 1004, 1005, 1006, 1015, 5000]) {
    assertThrows(() => a.close(code), 'InvalidAccessError', `Invalid WebSocket close code: ${code}.`);
  }
  assertThrows(() => a.close(undefined, 'x'), 'InvalidAccessError', 'If you specify a WebSocket close reason, you must also specify a code.');
  assertThrows(() => a.close(1000, 'ä'.repeat(62)), 'SyntaxError', 'WebSocket close reason must not be longer than 123 bytes when UTF-8 encoded.');
  a.close(1000, 'bye');
  a.close(1001);
  assertThrows(() => a.send('x'), TypeError, "Can't call WebSocket send() after close().");
  assertEquals([a.readyState, b.readyState], [2, 1]);
  assertThrows(() => new Response(null, { status: 101 }), RangeError);
  assertThrows(() => new Response(null, { webSocket: b }), RangeError, 'Responses with a WebSocket must have status code 101.');
  assertThrows(() => new Response('x', { status: 101, webSocket: b }), TypeError);
  assertThrows(() => new Response(null, { webSocket: {} }), TypeError,
    "Incorrect type for the 'webSocket' field on 'InitializerDict': the provided value is not of type 'WebSocket'.");
  const response = new Response(null, { status: 101, webSocket: b });
  assertEquals([response.webSocket === b, new Response(null, response).webSocket === b, new Response(null).webSocket], [true, true, null]);
  assertThrows(() => response.clone(), TypeError, 'Cannot clone a response to a WebSocket handshake.');
  for (const url of ['nope', 'http://x', 'ws://x/#a']) assertThrows(() => new WebSocket(url), 'SyntaxError', /^WebSocket Constructor: /);
  for (const protocols of ['a b', ['a', 'a'], ['']]) assertThrows(() => new WebSocket('ws://x/', protocols), 'SyntaxError');
});

test('a close is answered, and told once on each side', async () => {
  const [a, b] = pair();
  const log = [];
  a.accept();
  b.accept();
  hear(a, log);
  hear(b, log);
  a.close(3001, 'bye');
  b.send('on its way');
  await sleep();
  assertEquals(log, [['close', 3001, 'bye', true, 3], 'on its way', ['close', 3001, 'bye', true, 3]]);
  assertEquals([a.readyState, b.readyState], [3, 3]);
  assertThrows(() => b.send('late'), TypeError);
  b.close(1000);
  const [c, d] = pair();
  c.accept();
  d.accept();
  const codes = hear(d);
  c.close();
  await sleep();
  assertEquals(codes, [['close', 1005, '', true, 3]]);
});

test('allowHalfOpen leaves the answer to the script', async () => {
  const [a, b] = pair();
  const log = [];
  a.accept({ allowHalfOpen: true });
  b.accept({ allowHalfOpen: true });
  hear(a, log);
  hear(b, log);
  a.close();
  await sleep();
  assertEquals(log, [['close', 1005, '', true, 2]]);
  b.send('still');
  b.close(4001, 'd');
  await sleep();
  assertEquals(log.slice(1), ['still', ['close', 4001, 'd', true, 3]]);
  assertThrows(() => a.accept(5), TypeError);
});

test('an object and its caller talk', async (env) => {
  const response = await env.ROOM.getByName('r').fetch('http://x/', upgrade);
  assertEquals([response.status, response.headers.get('x-room'), response.webSocket.readyState], [101, 'yes', 1]);
  const ws = response.webSocket;
  const log = hear(ws);
  assertThrows(() => ws.send('x'), TypeError, /^You must call/);
  ws.accept();
  for (let i = 0; i < 100; i++) ws.send(`${i}`);
  await sleep();
  assertEquals(log, Array.from({ length: 100 }, (_, i) => `r: ${i}`));
  ws.close(1000, 'enough');
  await sleep();
  assertEquals(log[100], ['close', 1000, 'enough', true, 3]);
});

test('what was sent before the response comes first', async (env) => {
  const { webSocket } = await env.ROOM.getByName('r').fetch('http://x/early', upgrade);
  const log = hear(webSocket);
  await sleep();
  assertEquals(log, []);
  webSocket.accept();
  webSocket.send('hello');
  await sleep();
  assertEquals(log, ['before the response', 'and again', 'r: hello']);
  webSocket.close();
});

test('a Worker hands a WebSocket on, and one that has been used is used', async () => {
  const { webSocket } = await fetch('http://self.test/pass', upgrade);
  webSocket.accept();
  const log = hear(webSocket);
  webSocket.send('through');
  await sleep();
  assertEquals(log, ['passed: through']);
  webSocket.close();
  const own = await fetch('http://self.test/own', upgrade);
  own.webSocket.accept();
  const echo = hear(own.webSocket);
  own.webSocket.send('a');
  own.webSocket.close(1000);
  await sleep();
  assertEquals(echo, ['a', ['close', 1000, '', true, 3]]);
});

test('an object refuses, and an object keeps', async (env) => {
  const refused = await env.ROOM.getByName('r').fetch('http://x/refuse', upgrade);
  assertEquals([refused.status, refused.webSocket, await refused.text()], [403, null, 'no']);
  await env.ROOM.getByName('r').fetch('http://x/late', upgrade);
  const [client] = late;
  assertThrows(() => client.accept(), Error, /^Cannot perform I\/O on behalf of a different Durable Object/);
  late = undefined;
});

test('a WebSocket that is lost or broken says so once', async () => {
  const [a] = pair();
  a.accept();
  const log = hear(a);
  await fetch('http://harness.test/lose');
  await sleep();
  assertEquals(log, [['close', 1006, 'WebSocket disconnected without sending Close frame.', false, 3]]);
  a.send('nobody hears it');
  a.close();
  const [b] = pair();
  b.accept();
  const broken = hear(b);
  await fetch('http://harness.test/break');
  await sleep();
  assertEquals(broken, [['error', 'Uncaught Error: WebSocket protocol error', 'WebSocket protocol error', 3]]);
  assertEquals(log.length, 1);
});

test('new WebSocket', async () => {
  const ws = new WebSocket('ws://ws.test/echo', ['p1', 'p2']);
  const log = [[ws.readyState, ws.url, ws.protocol]];
  ws.onopen = (event) => log.push([event.type, ws.readyState, ws.protocol]);
  hear(ws, log);
  assertThrows(() => ws.send('x'), TypeError);
  assertThrows(() => ws.accept(), TypeError);
  await sleep();
  ws.send('hi');
  await sleep();
  ws.close(1000, 'done');
  await sleep();
  assertEquals(log, [[0, 'ws://ws.test/echo', ''], ['open', 1, 'p1'], 'hi', ['close', 1000, 'done', true, 3]]);
  assertThrows(() => new Response(null, { status: 101, webSocket: ws }).webSocket.accept(), TypeError);
  const refused = new WebSocket('ws://ws.test/refuse');
  const errors = hear(refused);
  await sleep();
  const text = 'Failed to establish the WebSocket connection: expected server to reply with HTTP status code 101 (switching protocols), but received 403 instead.';
  assertEquals(errors, [['error', `Uncaught TypeError: ${text}`, text, 3], ['close', 1006, 'Failed to establish websocket connection', false, 3]]);
  const given = new WebSocket('ws://ws.test/echo');
  const silent = hear(given);
  given.close();
  await sleep();
  assertEquals([silent, given.readyState], [[], 3]);
});

test('fetch with an upgrade reaches a server outside', async () => {
  const response = await fetch('http://ws.test/echo', upgrade);
  assertEquals([response.status, response.webSocket.url], [101, null]);
  response.webSocket.accept();
  const log = hear(response.webSocket);
  response.webSocket.send('there and back');
  await sleep();
  assertEquals(log, ['there and back']);
  response.webSocket.close();
  assertEquals((await fetch('http://ws.test/refuse', upgrade)).webSocket, null);
});

test('a WebSocket of another request is refused', async () => {
  const [a] = pair();
  globalThis.kept = a;
  const { status } = await fetch('http://self.test/');
  assertEquals(status, 101);
  assertEquals(globalThis.kept.readyState, 1);
});

test('a WebSocket of the request before is refused', () => {
  assertThrows(() => globalThis.kept.accept(), Error, /^Cannot perform I\/O on behalf of a different request/);
});

test('one turn does not send without end', () => {
  const [a] = pair();
  a.accept();
  const large = new Uint8Array(16 << 20);
  for (let i = 0; i < 4; i++) a.send(large);
  assertThrows(() => a.send(large), Error, /more than 67108864 bytes at once/);
  const longest = 32 << 20;
  assertThrows(() => a.send(new Uint8Array(longest + 1)), RangeError, /33554433 bytes is longer than 33554432 bytes/);
  assertThrows(() => a.send('ä'.repeat(longest / 2) + 'a'), RangeError, /longer than/);
});

test('attachments of a plain WebSocket', async () => {
  const [a] = pair();
  assertEquals(a.deserializeAttachment(), null);
  assertThrows(() => a.serializeAttachment(), TypeError);
  assertThrows(() => a.serializeAttachment(() => 1), 'DataCloneError');
  assertThrows(() => a.serializeAttachment('x'.repeat(20000)), Error, /cannot be larger than 16384 bytes\.'attachment' was 20006 bytes\./);
  a.serializeAttachment({ a: new Date(0), m: new Map([[1, 2]]) });
  const back = a.deserializeAttachment();
  assertEquals([+back.a, back.m.get(1), back === a.deserializeAttachment()], [0, 2, false]);
  a.serializeAttachment(undefined);
  assertEquals(a.deserializeAttachment(), undefined);
});
