// vars: {"TEXT": "a", "JSON": {"b": [1, 2]}}
// What the engine itself promises to JavaScript.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

const atStart = [];
for (const run of [() => setTimeout(() => {}, 0), () => fetch('http://echo.test/'), () => crypto.randomUUID()]) {
  try {
    atStart.push(await run());
  } catch (error) {
    atStart.push(error.message);
  }
}
const dateAtStart = Date.now();

export default {
  fetch: () => new Response('from the file'),
};

test('no I/O, timers or random values in the global scope', () => {
  for (const message of atStart) assert(String(message).startsWith('Disallowed operation called within global scope.'), message);
  assertEquals(atStart.length, 3);
});

test('time is 0 at start and stands still in a turn', async () => {
  assertEquals(dateAtStart, 0);
  const before = Date.now();
  assert(before > 1.6e12);
  for (let i = 0; i < 1e6; i++);
  assertEquals(Date.now(), before);
  assertEquals(+new Date(), before);
  assertEquals(new Date().constructor, Date);
  assertEquals(new Date(5).getTime(), 5);
  assert(new Date() instanceof Date);
  assertEquals(typeof Date(), 'string');
  await new Promise((resolve) => setTimeout(resolve, 50));
  assertEquals(Date.now(), before + 50);
});

test('a subclass of Date works', () => {
  class Day extends Date {}
  assert(new Day(1) instanceof Day);
  assertEquals(new Day(1).getTime(), 1);
});

test('vars are on env', (env) => {
  assertEquals(env.TEXT, 'a');
  assertEquals(env.JSON, { b: [1, 2] });
});

test('code from strings and from bytes is refused', async () => {
  assertThrows(() => eval('1'), EvalError);
  assertThrows(() => new Function('return 1'), EvalError);
  const empty = new Uint8Array([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]);
  await assertRejects(WebAssembly.compile(empty), WebAssembly.CompileError, 'WebAssembly.compile(): Wasm code generation disallowed by embedder');
  await assertRejects(WebAssembly.instantiate(empty), WebAssembly.CompileError);
});

test('import() of a module of the bundle, and of none', async () => {
  const { format } = await import('test');
  assertEquals(format('a'), '"a"');
  await assertRejects(import('./none.js'), Error, /^No such module "none\.js"\.\n {2}imported from "engine\.js"/);
});

test('unhandled rejections and exceptions in timers are reported', async () => {
  Promise.reject(new TypeError('nobody cares'));
  const late = Promise.reject(new Error('handled in time'));
  late.catch(() => {});
  setTimeout(() => {
    throw new RangeError('in a timer');
  }, 1);
  await new Promise((resolve) => setTimeout(resolve, 5));
  const lines = await (await fetch('http://harness.test/uncaught')).json();
  assertEquals(lines.map((line) => line.split('\n')[0]), ['TypeError: nobody cares', 'RangeError: in a timer']);
  assert(lines[0].includes('engine.js:'), lines[0]);
});

test('the runtime is out of reach', () => {
  for (const name of ['rt', 'ops', 'primordials']) assertEquals(typeof globalThis[name], 'undefined');
});

test('a request to the file itself', async () => {
  assertEquals(await (await fetch('http://self.test/')).text(), 'from the file');
});
