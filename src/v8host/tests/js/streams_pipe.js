// pipeTo and pipeThrough: Streams Standard, section 4.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

export default {};

const tick = async (turns = 30) => {
  for (let i = 0; i < turns; i++) await null;
};
const source = (...chunks) => new ReadableStream({
  pull(controller) {
    if (chunks.length > 0) controller.enqueue(chunks.shift());
    else controller.close();
  },
});
function sink(extra = {}) {
  const log = [];
  const stream = new WritableStream({
    write: (chunk) => { log.push(chunk); },
    close: () => { log.push('close'); },
    abort: (reason) => { log.push(['abort', reason]); },
    ...extra,
  });
  return { log, stream };
}

test('everything arrives, then the end', async () => {
  const { log, stream } = sink();
  const from = source(1, 2, 3);
  const done = from.pipeTo(stream);
  assertEquals([from.locked, stream.locked], [true, true]);
  assertEquals(await done, undefined);
  assertEquals([from.locked, stream.locked, log], [false, false, [1, 2, 3, 'close']]);
});

test('preventClose', async () => {
  const { log, stream } = sink();
  await source(1).pipeTo(stream, { preventClose: true });
  await source(2).pipeTo(stream);
  assertEquals(log, [1, 2, 'close']);
});

test('an error of the source aborts the destination', async () => {
  const error = new RangeError('source');
  const broken = () => new ReadableStream({ start(c) { c.enqueue(1); }, pull(c) { c.error(error); } }, { highWaterMark: 1 });
  const { log, stream } = sink();
  await assertRejects(broken().pipeTo(stream), RangeError, 'source');
  assertEquals(log.at(-1), ['abort', error]);
  const kept = sink();
  await assertRejects(broken().pipeTo(kept.stream, { preventAbort: true }), RangeError, 'source');
  await kept.stream.close();
  assertEquals(kept.log.at(-1), 'close');
});

test('an error of the destination cancels the source', async () => {
  let reason;
  const endless = () => new ReadableStream({ pull: (c) => c.enqueue(1), cancel: (r) => { reason = r; } });
  const error = new RangeError('sink');
  await assertRejects(endless().pipeTo(new WritableStream({ write() { throw error; } })), RangeError, 'sink');
  assertEquals(reason === error, true);
  reason = undefined;
  const from = endless();
  await assertRejects(from.pipeTo(new WritableStream({ write() { throw error; } }), { preventCancel: true }), RangeError, 'sink');
  assertEquals([reason, (await from.getReader().read()).value], [undefined, 1]);
});

test('a closed destination', async () => {
  let reason;
  const to = new WritableStream();
  await to.close();
  await assertRejects(new ReadableStream({ cancel: (r) => { reason = r; } }).pipeTo(to), TypeError);
  assert(reason instanceof TypeError);
});

test('back-pressure', async () => {
  let pulls = 0;
  const gates = [];
  const from = new ReadableStream({ pull: (c) => { c.enqueue(++pulls); } }, { highWaterMark: 0 });
  const done = from.pipeTo(new WritableStream({ write: () => new Promise((resolve) => gates.push(resolve)) }, { highWaterMark: 1 }));
  done.catch(() => {});
  await tick();
  assertEquals([pulls, gates.length], [1, 1]);
  gates[0]();
  await tick();
  assertEquals([pulls, gates.length], [2, 2]);
});

test('signals', async () => {
  const log = [];
  const controller = new AbortController();
  const from = new ReadableStream({ cancel: (r) => { log.push(['cancel', r]); } });
  const to = new WritableStream({ abort: (r) => { log.push(['abort', r]); } });
  const done = from.pipeTo(to, { signal: controller.signal });
  await tick();
  controller.abort('stop');
  assertEquals(await done.catch((e) => e), 'stop');
  assertEquals(log, [['abort', 'stop'], ['cancel', 'stop']]);
  await assertRejects(source(1).pipeTo(new WritableStream(), { signal: AbortSignal.abort() }), 'AbortError');
  await assertRejects(source(1).pipeTo(new WritableStream(), { signal: 1 }), TypeError);
  const kept = new ReadableStream({ cancel: () => { log.push('no'); } });
  const target = new WritableStream({ abort: () => { log.push('no'); } });
  await assertRejects(kept.pipeTo(target, { signal: AbortSignal.abort(), preventCancel: true, preventAbort: true }), 'AbortError');
  assertEquals([log.length, kept.locked, target.locked], [2, false, false]);
});

test('no chunk is lost when the pipe ends', async () => {
  const log = [];
  const controller = new AbortController();
  let open;
  const done = source(1, 2, 3).pipeTo(new WritableStream({
    write: (chunk) => {
      log.push(chunk);
      return new Promise((resolve) => { open = resolve; });
    },
    abort: () => { log.push('abort'); },
  }), { signal: controller.signal });
  await tick();
  controller.abort();
  await tick();
  open();
  await assertRejects(done, 'AbortError');
  assertEquals(log, [1, 'abort']);
});

test('pipeThrough', async () => {
  const doubled = source(1, 2).pipeThrough(new TransformStream({ transform: (chunk, c) => c.enqueue(chunk * 2) }));
  const out = [];
  for await (const chunk of doubled) out.push(chunk);
  assertEquals(out, [2, 4]);
  assertThrows(() => source().pipeThrough({}), TypeError,
    'Incorrect type for the \'readable\' field on \'Transform\': the provided value is not of type \'ReadableStream\'.');
  await assertRejects(source().pipeTo(5), TypeError,
    'Failed to execute \'pipeTo\' on \'ReadableStream\': parameter 1 is not of type \'WritableStream\'.');
  assertThrows(() => new ReadableStreamDefaultReader({}), TypeError,
    'Failed to construct \'ReadableStreamDefaultReader\': constructor parameter 1 is not of type \'ReadableStream\'.');
  assertThrows(() => new WritableStreamDefaultWriter({}), TypeError,
    'Failed to construct \'WritableStreamDefaultWriter\': constructor parameter 1 is not of type \'WritableStream\'.');
  assertThrows(() => source().pipeThrough(), TypeError);
  assertThrows(() => source().pipeThrough({ readable: new ReadableStream(), writable: {} }), TypeError);
  const pair = { readable: new ReadableStream(), writable: new WritableStream() };
  assertEquals(source().pipeThrough(pair), pair.readable);
  const broken = new ReadableStream({ pull(c) { c.error(new RangeError('b')); } }).pipeThrough(new TransformStream());
  await assertRejects(broken.getReader().read(), RangeError, 'b');
});

test('a body through a pipe', async () => {
  const upper = new Response('abc').body
    .pipeThrough(new TextDecoderStream())
    .pipeThrough(new TransformStream({ transform: (text, c) => c.enqueue(text.toUpperCase()) }))
    .pipeThrough(new TextEncoderStream());
  assertEquals(await new Response(upper).text(), 'ABC');
});
