// durable object: ROOM=Room
// durable object: MUTE=Mute
// Hibernatable WebSockets. Expectations are those of workerd.
import { DurableObject } from 'cloudflare:workers';
import { assert, assertEquals, assertThrows, test } from 'test';

const sleep = (ms = 10) => new Promise((resolve) => setTimeout(resolve, ms));
const log = [];
const taken = () => log.splice(0);
let job;

/** A socket of the object with this name. */
async function connect(env, name, path = 'http://x/') {
  const { webSocket } = await env.ROOM.getByName(name).fetch(path, { headers: { Upgrade: 'websocket' } });
  webSocket.accept();
  const heard = [];
  webSocket.addEventListener('message', ({ data }) => heard.push(data));
  webSocket.addEventListener('close', ({ code, reason, wasClean }) => heard.push(['close', code, reason, wasClean]));
  return [webSocket, heard];
}

const run = async (env, name, f) => {
  job = f;
  const response = await env.ROOM.getByName(name).fetch('http://x/run');
  const text = await response.text();
  if (response.status !== 200) throw new Error(text);
  return JSON.parse(text);
};

export class Room extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    log.push(`constructor ${ctx.getWebSockets().length}`);
  }

  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === '/run') {
      try {
        return Response.json((await job.call(this, this.ctx)) ?? null);
      } catch (error) {
        return new Response(error.stack, { status: 500 });
      }
    }
    const [client, server] = Object.values(new WebSocketPair());
    this.ctx.acceptWebSocket(server, searchParams.getAll('tag'));
    server.serializeAttachment({ n: searchParams.get('n') });
    if (pathname === '/early') server.send('early');
    return new Response(null, { status: 101, webSocket: client });
  }

  async webSocketMessage(ws, message) {
    log.push(['message', typeof message === 'string' ? message : [...new Uint8Array(message)], ws.deserializeAttachment()?.n, this.ctx.getTags(ws), ws.readyState]);
    switch (message) {
      case 'close':
        ws.close(3001, 'bye');
        break;
      case 'throw':
        throw new Error('of webSocketMessage');
      case 'slow':
        await sleep(100);
        ws.send('slow');
        break;
      case 'all':
        for (const other of this.ctx.getWebSockets()) other.send('to all');
        break;
      case 'keep':
        ws.serializeAttachment({ n: 'kept' });
        break;
      default:
        ws.send(message);
    }
  }

  async webSocketClose(ws, code, reason, wasClean) {
    log.push(['close', code, reason, wasClean, ws.readyState, this.ctx.getWebSockets().length]);
    await sleep();
    log.push(['later', this.ctx.getWebSockets().length, ws.deserializeAttachment(), this.ctx.getTags(ws)]);
  }

  webSocketError(ws, error) {
    log.push(['error', error.message, ws.readyState]);
  }
}

export class Mute extends DurableObject {
  fetch() {
    const [client, server] = Object.values(new WebSocketPair());
    this.ctx.acceptWebSocket(server);
    return new Response(null, { status: 101, webSocket: client });
  }
}

test('messages are events of the object, with tags and attachment', async (env) => {
  const [ws, heard] = await connect(env, 'a', 'http://x/early?n=5&tag=x&tag=y&tag=x');
  ws.send('hello');
  ws.send(new Uint8Array([1, 2]));
  await sleep();
  assertEquals(taken(), ['constructor 0', ['message', 'hello', '5', ['x', 'y'], 1], ['message', [1, 2], '5', ['x', 'y'], 1]]);
  assertEquals([heard[0], heard[1], heard[2].size], ['early', 'hello', 2]);
  ws.close(4000, 'enough');
  await sleep(50);
  assertEquals(taken(), [['close', 4000, 'enough', true, 3, 1], ['later', 0, { n: '5' }, ['x', 'y']]]);
  assertEquals(heard.slice(3), [['close', 4000, 'enough', true]]);
});

test('sockets outlive the object', async (env) => {
  const [ws, heard] = await connect(env, 'b', 'http://x/?n=1&tag=t');
  ws.send('keep');
  await sleep();
  taken();
  await fetch('http://harness.test/evict');
  ws.send('after');
  await sleep();
  assertEquals(taken(), ['constructor 1', ['message', 'after', 'kept', ['t'], 1]]);
  assertEquals(heard, ['after']);
  await fetch('http://harness.test/evict');
  ws.close();
  await sleep(50);
  assertEquals(taken(), ['constructor 1', ['close', 1005, '', true, 3, 1], ['later', 0, { n: 'kept' }, ['t']]]);
});

test('getWebSockets finds by tag, and finds the same object again', async (env) => {
  const [one, first] = await connect(env, 'c', 'http://x/?n=1&tag=a&tag=b');
  const [, second] = await connect(env, 'c', 'http://x/?n=2&tag=b&tag=');
  assertEquals(await run(env, 'c', (ctx) => {
    const n = (tag) => ctx.getWebSockets(tag).map((ws) => ws.deserializeAttachment().n);
    return [n(), n('a'), n('b'), n(''), n('none'), ctx.getWebSockets('a')[0] === ctx.getWebSockets()[1]];
  }), [['2', '1'], ['1'], ['1', '2'], ['2'], [], true]);
  one.send('all');
  await sleep();
  assertEquals([first, second], [['to all'], ['to all']]);
  taken();
});

test('an object that closes may still hear, and says nothing more', async (env) => {
  const [ws, heard] = await connect(env, 'd', 'http://x/?n=1');
  ws.send('close');
  await sleep(50);
  assertEquals(heard, [['close', 3001, 'bye', true]]);
  assertEquals(taken().slice(1), [['message', 'close', '1', [], 1], ['close', 3001, 'bye', true, 3, 1], ['later', 0, { n: '1' }, []]]);
});

test('a Close that was sent is remembered over an eviction', async (env) => {
  await connect(env, 'e', 'http://x/?n=1');
  await run(env, 'e', (ctx) => ctx.getWebSockets()[0].close(1000));
  taken();
  const [ws] = await connect(env, 'e2', 'http://x/?n=1');
  assertEquals(await run(env, 'e2', (ctx) => ctx.getWebSockets()[0].readyState), 1);
  ws.close();
  await sleep(50);
  taken();
});

test('handlers do not wait for each other', async (env) => {
  const [ws, heard] = await connect(env, 'f', 'http://x/');
  ws.send('slow');
  ws.send('fast');
  await sleep(200);
  assertEquals(heard, ['fast', 'slow']);
  taken();
});

test('a handler that throws is reported, and the socket lives on', async (env) => {
  const [ws, heard] = await connect(env, 'g', 'http://x/');
  ws.send('throw');
  ws.send('after');
  await sleep();
  assertEquals(heard, ['after']);
  const uncaught = await (await fetch('http://harness.test/uncaught')).json();
  assertEquals(uncaught.length, 1);
  assert(uncaught[0].includes('of webSocketMessage'), uncaught[0]);
  taken();
});

test('lost and broken sockets', async (env) => {
  await connect(env, 'h', 'http://x/?n=1');
  taken();
  await fetch('http://harness.test/lose');
  await sleep(50);
  const seen = taken();
  assert(seen.some((entry) => JSON.stringify(entry) === JSON.stringify(['close', 1006, 'WebSocket disconnected without sending Close frame.', false, 3, 1])), JSON.stringify(seen));
  await connect(env, 'i', 'http://x/?n=1');
  taken();
  await fetch('http://harness.test/break');
  await sleep(50);
  // Every socket of this file hears it.
  const errors = taken().filter(([kind]) => kind === 'error');
  assert(errors.length > 0);
  for (const error of errors) assertEquals(error, ['error', 'WebSocket protocol error', 3]);
  await fetch('http://harness.test/uncaught');
});

test('an automatic response does not wake the object', async (env) => {
  const [ws, heard] = await connect(env, 'j', 'http://x/');
  await run(env, 'j', (ctx) => {
    assertEquals(ctx.getWebSocketAutoResponse(), null);
    ctx.setWebSocketAutoResponse(new WebSocketRequestResponsePair('ping', 'pong'));
    assertEquals(ctx.getWebSocketAutoResponseTimestamp(ctx.getWebSockets()[0]), null);
  });
  await fetch('http://harness.test/evict');
  taken();
  ws.send('ping');
  ws.send('ping');
  await sleep();
  assertEquals([heard, taken()], [['pong', 'pong'], []]);
  await run(env, 'j', (ctx) => {
    const { request, response } = ctx.getWebSocketAutoResponse();
    assertEquals([request, response], ['ping', 'pong']);
    const time = ctx.getWebSocketAutoResponseTimestamp(ctx.getWebSockets()[0]);
    assert(time instanceof Date && Date.now() - time < 1000);
    ctx.setWebSocketAutoResponse();
    assertEquals(ctx.getWebSocketAutoResponse(), null);
  });
  ws.send('ping');
  await sleep();
  assertEquals(heard, ['pong', 'pong', 'ping']);
  taken();
});

test('what is wrong with a call', async (env) => {
  await run(env, 'k', (ctx) => {
    const pair = () => Object.values(new WebSocketPair());
    const where = (name, n, type) => `Failed to execute '${name}' on 'DurableObjectState': parameter ${n} is not of type '${type}'.`;
    const [a, b] = pair();
    assertThrows(() => ctx.acceptWebSocket(a, Array.from({ length: 11 }, (_, i) => `t${i}`)), Error, 'a Hibernatable WebSocket cannot have more than 10 tags');
    assertThrows(() => ctx.acceptWebSocket(a, ['x'.repeat(257)]), Error, /" is longer than the max tag length \(256 characters\)\.$/);
    assertThrows(() => ctx.acceptWebSocket(a, 'x'), TypeError, where('acceptWebSocket', 2, 'Array'));
    assertThrows(() => ctx.acceptWebSocket({}), TypeError, where('acceptWebSocket', 1, 'WebSocket'));
    assertThrows(() => ctx.acceptWebSocket(), TypeError, where('acceptWebSocket', 1, 'WebSocket'));
    assertThrows(() => ctx.getTags(a), Error, "you must call 'acceptWebSocket()' before attempting to access the tags of a WebSocket.");
    assertThrows(() => ctx.getTags({}), TypeError, where('getTags', 1, 'WebSocket'));
    ctx.acceptWebSocket(a, ['a']);
    const accepted = 'Cannot call `acceptWebSocket()` if the WebSocket was already accepted via `accept()`';
    const taken = 'Cannot call `acceptWebSocket()` on this WebSocket because its pair has already been accepted or used in a Response.';
    assertThrows(() => ctx.acceptWebSocket(a), Error, accepted);
    assertThrows(() => ctx.acceptWebSocket(b), Error, taken);
    assertThrows(() => a.accept(), TypeError, "Can't accept() WebSocket after enabling hibernation.");
    const [c, d] = pair();
    c.accept();
    assertThrows(() => ctx.acceptWebSocket(c), Error, accepted);
    assertThrows(() => ctx.acceptWebSocket(d), Error, taken);
    assertThrows(() => ctx.getTags(c), Error, 'only hibernatable websockets can have tags.');
    assertThrows(() => ctx.setWebSocketAutoResponse({}), TypeError, where('setWebSocketAutoResponse', 1, 'WebSocketRequestResponsePair'));
    assertThrows(() => ctx.setWebSocketAutoResponse(null), TypeError, where('setWebSocketAutoResponse', 1, 'WebSocketRequestResponsePair'));
    assertThrows(() => ctx.setWebSocketAutoResponse(new WebSocketRequestResponsePair('ä'.repeat(1025), 'b')), RangeError,
      'Request cannot be larger than 2048 bytes. A request of size 2050 was provided.');
    assertThrows(() => ctx.setWebSocketAutoResponse(new WebSocketRequestResponsePair('a', 'b'.repeat(2049))), RangeError,
      'Response cannot be larger than 2048 bytes. A response of size 2049 was provided.');
    assertThrows(() => new WebSocketRequestResponsePair('a'), TypeError, "Failed to construct 'WebSocketRequestResponsePair': constructor parameter 2 is not of type 'string'.");
    assertThrows(() => ctx.getWebSocketAutoResponseTimestamp({}), TypeError, where('getWebSocketAutoResponseTimestamp', 1, 'WebSocket'));
    assertEquals(ctx.getHibernatableWebSocketEventTimeout(), null);
    ctx.setHibernatableWebSocketEventTimeout(1000);
    assertEquals(ctx.getHibernatableWebSocketEventTimeout(), 1000);
    assertThrows(() => ctx.setHibernatableWebSocketEventTimeout(604_800_001), Error, 'Event timeout should not exceed 604800000 ms.');
    assertThrows(() => ctx.setHibernatableWebSocketEventTimeout(-1), TypeError);
    ctx.setHibernatableWebSocketEventTimeout();
    assertEquals(ctx.getHibernatableWebSocketEventTimeout(), null);
  });
  taken();
});

test('a class without handlers keeps its sockets all the same', async (env) => {
  const { webSocket } = await env.MUTE.getByName('x').fetch('http://x/', { headers: { Upgrade: 'websocket' } });
  webSocket.accept();
  const closed = new Promise((resolve) => webSocket.addEventListener('close', resolve));
  webSocket.send('nobody hears');
  webSocket.close(1000);
  assertEquals((await closed).code, 1000);
});
