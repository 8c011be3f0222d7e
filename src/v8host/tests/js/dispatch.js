// An event from its delivery to its end: handlers, ctx, failures.
import * as workers from 'cloudflare:workers';
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

const log = [];

export default {
  fetch(request, env, ctx) {
    switch (new URL(request.url).pathname) {
      case '/sync':
        return new Response('sync');
      case '/promise':
        return Promise.resolve(new Response('promise'));
      case '/thenable':
        return { then: (resolve) => resolve(new Response('thenable')) };
      case '/throw':
        throw new RangeError('thrown');
      case '/reject':
        return Promise.reject(new TypeError('rejected'));
      case '/nothing':
        return undefined;
      case '/text':
        return 'text';
      case '/object':
        return Promise.resolve({ status: 200 });
      case '/used': {
        const response = new Response('x');
        return response.text().then(() => response);
      }
      case '/error':
        return Response.error();
      case '/wait':
        ctx.waitUntil(scheduler.wait(20).then(() => log.push('waited')));
        ctx.waitUntil('no promise');
        return new Response('early');
      case '/wait-by-module':
        workers.waitUntil(scheduler.wait(20).then(() => log.push('waited')));
        return new Response('early');
      case '/wait-fails':
        ctx.waitUntil(Promise.reject(new RangeError('in the background')));
        return new Response('fine');
      case '/pass-through':
        ctx.passThroughOnException();
        throw new RangeError('not passed');
      case '/abort':
        ctx.waitUntil(scheduler.wait(20).then(() => log.push('waited')));
        try {
          ctx.abort(new RangeError('enough'));
        } catch (error) {
          log.push(`${error}`);
        }
        return new Response('too late');
      case '/abort-plainly':
        return scheduler.wait(1).then(() => ctx.abort());
      case '/this':
        return new Response(String(this === undefined ? 'undefined' : typeof this.fetch));
      default:
        return Response.json([request.method, Object.prototype.toString.call(env), ctx.constructor.name, ctx.props]);
    }
  },
  scheduled(controller, env, ctx) {
    log.push([controller.cron, typeof controller.scheduledTime, controller.type, controller.noRetry(), typeof ctx.waitUntil]);
    if (controller.cron === 'fail') throw new RangeError('cron');
  },
};

const text = async (path) => (await fetch(`http://self.test${path}`)).text();
const WRONG = "Incorrect type for Promise: the Promise did not resolve to 'Response'.";

test('a response at once, later, from a thenable', async () => {
  assertEquals([await text('/sync'), await text('/promise'), await text('/thenable')], ['sync', 'promise', 'thenable']);
  assertEquals(await text('/this'), 'function');
  assertEquals(JSON.parse(await text('/arguments')), ['GET', '[object Object]', 'ExecutionContext', {}]);
});

test('failures of the handler', async () => {
  await assertRejects(text('/throw'), RangeError, 'thrown');
  await assertRejects(text('/reject'), TypeError, 'rejected');
  await assertRejects(text('/pass-through'), RangeError, 'not passed');
  for (const path of ['/nothing', '/text', '/object']) await assertRejects(text(path), TypeError, WRONG);
  await assertRejects(text('/used'), TypeError, /^Body has already been used/);
  await assertRejects(text('/error'), TypeError);
});

test('waitUntil', async () => {
  for (const path of ['/wait', '/wait-by-module']) {
    log.length = 0;
    assertEquals(await text(path), 'early');
    assertEquals(log, []);
    await scheduler.wait(50);
    assertEquals(log, ['waited']);
  }
});

test('a rejection in waitUntil is reported', async () => {
  assertEquals(await text('/wait-fails'), 'fine');
  const lines = await (await fetch('http://harness.test/uncaught')).json();
  assertEquals(lines.length, 1);
  assert(lines[0].includes('in the background'), lines[0]);
});

test('scheduled', async () => {
  log.length = 0;
  await fetch('http://harness.test/scheduled?cron=5');
  assertEquals(log, [['5', 'number', 'scheduled', undefined, 'function']]);
});

test('ctx', (env, ctx) => {
  assertEquals(String(ctx), '[object ExecutionContext]');
  const { waitUntil, passThroughOnException } = ctx;
  assertThrows(() => waitUntil(Promise.resolve()), TypeError, /^Illegal invocation/);
  assertThrows(() => passThroughOnException(), TypeError, /^Illegal invocation/);
  assertThrows(() => ctx.waitUntil(), TypeError);
  assertThrows(() => new ctx.constructor(), TypeError, 'Illegal constructor');
  assertEquals(ctx.props === ctx.props, true);
});

test('streams of one event are not for another', async () => {
  // Kept on purpose: a body of this event, read from the next one.
  globalThis.kept = (await fetch('http://echo.test/?stream')).body.getReader();
});

test('… and say so', async () => {
  const reader = globalThis.kept;
  delete globalThis.kept;
  await assertRejects(reader.read(), Error, /^Cannot perform I\/O on behalf of a different request\./);
});

test('ctx.abort ends the request', async () => {
  log.length = 0;
  await assertRejects(text('/abort'), RangeError, 'enough');
  await scheduler.wait(30);
  assertEquals(log, ['RangeError: enough', 'waited']);
  await assertRejects(text('/abort-plainly'), Error, 'Worker execution was aborted due to call to ctx.abort().');
  await fetch('http://harness.test/uncaught');
});

test('ctx.tracing has spans that record nothing', async (env, ctx) => {
  const { tracing } = ctx;
  assert(tracing === workers.tracing);
  assertEquals(tracing.enterSpan('a', (...given) => given.slice(1), 1, 2), [1, 2]);
  assertEquals(tracing.startActiveSpan('a', (span) => `${span}`), '[object Span]');
  assert(tracing.enterSpan('a', function () { return this; }) === globalThis);
  await assertRejects(tracing.enterSpan('a', async () => { throw new RangeError('inner'); }), RangeError, 'inner');
  assertThrows(() => tracing.enterSpan(), TypeError, 'Failed to execute \'enterSpan\' on \'Tracing\': parameter 1 is not of type \'string\'.');
  assertThrows(() => tracing.enterSpan('a', {}), TypeError, 'Failed to execute \'enterSpan\' on \'Tracing\': parameter 2 is not of type \'Function\'.');
  assertThrows(() => tracing.withActiveSpan({}, () => 1), TypeError, 'Failed to execute \'withActiveSpan\' on \'Tracing\': parameter 1 is not of type \'Span\'.');
  assertThrows(() => tracing.enterSpan.call({}, 'a', () => 1), TypeError, /^Illegal invocation/);
  const span = tracing.startSpan('b');
  assertEquals([span.isTraced, span.end(), span.recordException(new Error('e'))], [false, undefined, undefined]);
  assertEquals(span.spanContext(), { traceId: '0'.repeat(32), spanId: '0'.repeat(16), traceFlags: 0 });
  for (const value of [1, 'x', true, undefined, null, {}, [1]]) assert(span.setAttribute('a', value) === span);
  assert(span.setAttributes({ a: 1 }).updateName('c').setStatus({ code: 'error' }) === span);
  assertThrows(() => span.setAttribute('a', 1n), TypeError, 'Cannot convert a BigInt value to a number');
  assertThrows(() => span.setAttributes([]), TypeError, 'Failed to execute \'setAttributes\' on \'Span\': parameter 1 is not of type \'object\'.');
  assertThrows(() => span.setStatus({ code: 1 }), TypeError, 'Span status code must be \'unset\', \'ok\', or \'error\'.');
  assertThrows(() => new tracing.Span(), TypeError, 'Illegal constructor');
  await tracing.withActiveSpan(span, async () => {
    assert(tracing.getActiveSpan() === span);
    await scheduler.wait(1);
    assert(tracing.getActiveSpan() === span, 'it follows promises');
    assert(tracing.enterSpan('d', (inner) => tracing.getActiveSpan() === inner));
  });
  assert(tracing.getActiveSpan() !== span);
});
