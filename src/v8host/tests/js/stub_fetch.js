// durable object: CELLS=Cell
// What `stub.fetch` makes of answers: redirects, HEAD, phrases. Expectations are those of workerd.
import { DurableObject } from 'cloudflare:workers';
import { assertEquals, assertRejects, test } from 'test';

export class Cell extends DurableObject {
  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    const [, what, code] = pathname.split('/');
    switch (what) {
      case 'to': {
        const location = searchParams.get('to') ?? '/echo';
        return new Response('elsewhere', { status: Number(code), headers: { location } });
      }
      case 'nowhere': return new Response('nowhere', { status: Number(code), headers: { location: '' } });
      case 'loop': return code === '0' ? new Response('end') : Response.redirect(`http://x/loop/${code - 1}`);
      case 'status': return new Response('x', { status: Number(code) });
      case 'named': return new Response('x', { statusText: 'Fine' });
      case 'throw': throw errors[code]();
      case 'breaks': {
        const source = { pull(controller) { controller.error(Object.assign(new Error('in the body'), { code: 9 })); } };
        return new Response(new ReadableStream(source, { highWaterMark: 0 }));
      }
      case 'flows': return new Response(new ReadableStream({ pull() {} }));
      case 'echo': {
        const { method, url, headers } = request;
        return Response.json({ method, url, headers: Object.fromEntries(headers), body: await request.text() });
      }
      default: return new Response('no such path', { status: 404 });
    }
  }
}

class Named extends Error {
  name = 'Named';
  code = 7;
}

const errors = {
  own: () => Object.assign(new TypeError('own', { cause: new RangeError('inner') }), { code: 42, extra: { a: [1, new Date(0)] } }),
  named: () => new Named('named'),
  marks: () => Object.assign(new Error('marks'), { remote: false, retryable: true, overloaded: true }),
  hidden: () => Object.defineProperty(new Error('hidden'), 'hid', { value: 1 }),
  many: () => new AggregateError([new Error('a')], 'many'),
  function: () => Object.assign(new Error('function'), { code: 1, call() {} }),
  getter: () => Object.defineProperty(Object.assign(new Error('getter'), { code: 1 }), 'bad', { get() { throw new Error('no'); } }),
  sizeable: () => Object.assign(new Error('sizeable'), { code: 'x'.repeat(150_000) }),
  large: () => Object.assign(new Error('large'), { code: 'x'.repeat(200_000) }),
  exception: () => Object.assign(new DOMException('exception', 'DataCloneError'), { extra: 5 }),
  ownException: () => new DOMException('ownException', 'Mine'),
  syntaxException: () => new DOMException('syntaxException', 'SyntaxError'),
  reason: () => AbortSignal.abort().reason,
  longNames: () => {
    const error = Object.assign(new Error('m'.repeat(70_000)), { name: 'n'.repeat(2_000), code: 'x'.repeat(150_000) });
    error.stack = `Error: m${'\n    at f (a.js:1:1)'.repeat(2_000)}`;
    return error;
  },
  string: () => 'a string',
  object: () => ({ code: 404, message: 'an object', at: [1] }),
  list: () => [1, 2],
  opaque: () => ({ call() {} }),
};

const cell = (env) => env.CELLS.getByName('c');

async function ask(env, url, init) {
  const response = await cell(env).fetch(url, init);
  return [response.status, response.url, response.redirected, await response.text()];
}

test('redirects are followed', async (env) => {
  for (const status of [301, 302, 303, 307, 308]) {
    const response = await cell(env).fetch(`http://x/to/${status}`, { headers: { a: 'b' } });
    assertEquals([response.status, response.url, response.redirected], [200, 'http://x/echo', true]);
    assertEquals(await response.json(), { method: 'GET', url: 'http://x/echo', headers: { a: 'b' }, body: '' });
  }
});

test('what method and body a redirect leaves', async (env) => {
  for (const [status, method, then] of [
    [301, 'POST', 'GET'], [302, 'POST', 'GET'], [303, 'POST', 'GET'], [303, 'PUT', 'GET'], [303, 'DELETE', 'GET'],
    [301, 'PUT', 'PUT'], [302, 'DELETE', 'DELETE'], [307, 'POST', 'POST'], [308, 'PUT', 'PUT'],
  ]) {
    for (const body of ['payload', new TextEncoder().encode('payload')]) {
      const response = await cell(env).fetch(`http://x/to/${status}`, { method, body });
      const heard = await response.json();
      assertEquals([heard.method, heard.body], [then, then === 'GET' ? '' : 'payload'], `${status} ${method}`);
    }
  }
  const head = await cell(env).fetch('http://x/to/303', { method: 'HEAD' });
  assertEquals([head.status, head.body, head.redirected], [200, null, true]);
});

test('a body that flowed cannot be sent again', async (env) => {
  const flowing = () => new ReadableStream({
    start(controller) {
      controller.enqueue(new TextEncoder().encode('s'));
      controller.close();
    },
  });
  for (const status of [301, 302, 307]) {
    const sent = cell(env).fetch(`http://x/to/${status}`, { method: 'POST', body: flowing() });
    await assertRejects(sent, TypeError, /^A request with a one-time-use body/);
  }
  const [status, , , text] = await ask(env, 'http://x/to/303', { method: 'POST', body: flowing() });
  assertEquals([status, JSON.parse(text).method], [200, 'GET']);
});

test('where a redirect leads', async (env) => {
  for (const [location, url] of [
    ['//y/echo', 'http://y/echo'], ['?a=b', 'http://x/to/302?a=b'], ['/echo#part', 'http://x/echo'], ['HTTP://X:80/echo', 'http://x/echo'],
    ['ftp://x/echo', 'ftp://x/echo'],
  ]) {
    const target = `http://x/to/302?to=${encodeURIComponent(location)}#mine`;
    if (location === '?a=b') {
      // Leads to itself without a `to`, which leads to /echo.
      assertEquals((await ask(env, target)).slice(0, 3), [200, 'http://x/echo', true]);
    } else assertEquals((await ask(env, target)).slice(0, 3), [200, url, true], location);
  }
  for (const location of ['http://[', 'mailto:a@b', 'data:text/plain,hi']) {
    const asked = ask(env, `http://x/to/302?to=${encodeURIComponent(location)}`);
    await assertRejects(asked, TypeError, 'Invalid Location header; unable to follow redirect.');
  }
});

test('what is not followed', async (env) => {
  const manual = { redirect: 'manual' };
  assertEquals(await ask(env, 'http://x/to/302', manual), [302, 'http://x/to/302', false, 'elsewhere']);
  assertEquals(await ask(env, new Request('http://x/to/302', manual)), [302, 'http://x/to/302', false, 'elsewhere']);
  assertEquals(await ask(env, 'http://x/to/300'), [300, 'http://x/to/300', false, 'elsewhere']);
  assertEquals(await ask(env, 'http://x/to/302?to='), [302, 'http://x/to/302?to=', false, 'elsewhere']);
  assertEquals(await ask(env, 'http://x/status/302'), [302, 'http://x/status/302', false, 'x']);
  assertEquals(await ask(env, 'http://x/status/200#part'), [200, 'http://x/status/200', false, 'x']);
});

test('twenty redirects', async (env) => {
  assertEquals(await ask(env, 'http://x/loop/20'), [200, 'http://x/loop/0', true, 'end']);
  await assertRejects(ask(env, 'http://x/loop/21'), TypeError, /^Too many redirects\.http:\/\/x\/loop\/21, http:\/\/x\/loop\/20, .*, http:\/\/x\/loop\/1$/);
});

test('another origin does not get the authorization', async (env) => {
  const headers = { authorization: 'a', cookie: 'c' };
  const heard = async (to) => JSON.parse((await ask(env, `http://x/to/307?to=${encodeURIComponent(to)}`, { headers }))[3]).headers;
  assertEquals(await heard('http://x/echo'), headers);
  assertEquals(await heard('https://x/echo'), { cookie: 'c' });
  assertEquals(await heard('http://x:99/echo'), { cookie: 'c' });
});

test('the answer to HEAD has no body', async (env) => {
  for (const path of ['status/200', 'flows']) {
    const response = await cell(env).fetch(`http://x/${path}`, { method: 'HEAD' });
    assertEquals([response.status, response.body, await response.text()], [200, null, '']);
  }
});

test('a status has its usual phrase', async (env) => {
  for (const [status, phrase] of [[200, 'OK'], [404, 'Not Found'], [418, "I'm a teapot"], [299, 'Successful'], [499, 'Client Error'], [599, 'Server Error']]) {
    const response = await cell(env).fetch(`http://x/status/${status}`);
    assertEquals([response.statusText, response.clone().statusText, new Response('', response).statusText], [phrase, phrase, phrase]);
  }
  assertEquals((await cell(env).fetch('http://x/named')).statusText, 'Fine');
  assertEquals(new Response('').statusText, '');
});

async function thrown(env, what) {
  const error = await cell(env).fetch(`http://x/throw/${what}`).then(() => null, (reason) => reason);
  const { stack, message, ...own } = Object.getOwnPropertyDescriptors(error);
  return [`${error}`, Object.fromEntries(Object.entries(own).map(([name, { value }]) => [name, value]))];
}

test('own properties of an error come with it', async (env) => {
  const [text, { cause, ...own }] = await thrown(env, 'own');
  assertEquals([text, own], ['TypeError: own', { code: 42, extra: { a: [1, new Date(0)] }, remote: true }]);
  assertEquals([cause instanceof RangeError, cause.message], [true, 'inner']);
  assertEquals(await thrown(env, 'named'), ['Named: named', { name: 'Named', code: 7, remote: true }]);
  assertEquals(await thrown(env, 'marks'), ['Error: marks', { remote: true, retryable: true, overloaded: true }]);
  assertEquals(await thrown(env, 'hidden'), ['Error: hidden', { hid: 1, remote: true }]);
  assertEquals(await thrown(env, 'many'), ['AggregateError: many', { errors: [new Error('a')], remote: true }]);
  assertEquals(await thrown(env, 'string'), ['Error: a string', { remote: true }]);
  await fetch('http://harness.test/uncaught');
});

test('a DOMException comes as one, whatever its name is, and without what else it has', async (env) => {
  const caught = (what) => cell(env).fetch(`http://x/throw/${what}`).then(() => null, (reason) => reason);
  for (const [what, text, code] of [
    ['exception', 'DataCloneError: exception', 25], ['ownException', 'Mine: ownException', 0],
    ['syntaxException', 'SyntaxError: syntaxException', 12], ['reason', 'AbortError: The operation was aborted', 20],
  ]) {
    const error = await caught(what);
    assertEquals([error instanceof DOMException, `${error}`, error.code, error.extra, error.remote], [true, text, code, undefined, true]);
  }
  await fetch('http://harness.test/uncaught');
});

test('what comes with an error may have 160 KiB, its texts less', async (env) => {
  const caught = (what) => cell(env).fetch(`http://x/throw/${what}`).then(() => null, (reason) => reason);
  assertEquals((await caught('sizeable')).code.length, 150_000);
  const error = await caught('longNames');
  assertEquals(error.message, `${'m'.repeat(65_536)}…`);
  assertEquals(error.code.length, 150_000);
  await fetch('http://harness.test/uncaught');
});

test('a Location that names no place is not passed on', async (env) => {
  for (const status of [200, 302]) {
    const response = await cell(env).fetch(`http://x/nowhere/${status}`);
    assertEquals([response.status, [...response.headers.keys()], await response.text()], [status, ['content-type'], 'nowhere']);
  }
  assertEquals(new Response('', { headers: { location: '' } }).headers.get('location'), '');
});

test('an object that is no error comes as it is', async (env) => {
  const caught = (what) => cell(env).fetch(`http://x/throw/${what}`).then(() => null, (reason) => reason);
  const object = await caught('object');
  assertEquals([object instanceof Error, object], [false, { code: 404, message: 'an object', at: [1], remote: true }]);
  const list = await caught('list');
  assertEquals([Array.isArray(list), [...list], list.remote], [true, [1, 2], true]);
  assertEquals(await thrown(env, 'opaque'), ['Error: [object Object]', { remote: true }]);
  await fetch('http://harness.test/uncaught');
});

test('what cannot be cloned, or is large, costs all properties', async (env) => {
  for (const what of ['function', 'getter', 'large']) assertEquals(await thrown(env, what), [`Error: ${what}`, { remote: true }]);
  await fetch('http://harness.test/uncaught');
});

test('a body that fails says that it did elsewhere', async (env) => {
  const response = await cell(env).fetch('http://x/breaks');
  const error = await assertRejects(response.text(), Error, 'in the body');
  assertEquals([error.remote, error.code], [true, 9]);
});
