// `import { test, assertEquals } from 'test'`: what conformance files are written with.
// A test is `test(name, async (env, ctx, request) => …)`; it runs as one request and passes when it
// does not throw.

const tests = [];

export function test(name, run) {
  tests.push({ name, run });
}

class AssertionError extends Error {
  name = 'AssertionError';
}

export function fail(message) {
  throw new AssertionError(message);
}

export function assert(value, message = 'the value is not truthy') {
  if (!value) fail(message);
}

export function format(value, depth = 0) {
  if (typeof value === 'string') return JSON.stringify(value);
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value === 'function') return `function ${value.name}`;
  if (typeof value !== 'object' || value === null) return Object.is(value, -0) ? '-0' : String(value);
  if (depth > 4) return '…';
  if (value instanceof Error) return `${value.name}: ${value.message}`;
  if (ArrayBuffer.isView(value)) return `${value.constructor.name}(${value.byteLength}) [${[...new Uint8Array(value.buffer, value.byteOffset, value.byteLength)]}]`;
  if (value instanceof ArrayBuffer) return `ArrayBuffer [${[...new Uint8Array(value)]}]`;
  if (value instanceof Date) return `Date(${+value})`;
  if (value instanceof Map || value instanceof Set) return `${value.constructor.name} ${format([...value], depth + 1)}`;
  if (Array.isArray(value)) return `[${value.map((item) => format(item, depth + 1)).join(', ')}]`;
  const fields = Object.entries(value).map(([key, item]) => `${key}: ${format(item, depth + 1)}`);
  return `${value.constructor?.name ?? 'null'} {${fields.join(', ')}}`;
}

export function isEqual(a, b) {
  if (Object.is(a, b)) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (Object.getPrototypeOf(a) !== Object.getPrototypeOf(b)) return false;
  if (a instanceof Date) return +a === +b;
  if (a instanceof RegExp) return String(a) === String(b);
  if (a instanceof ArrayBuffer) return isEqual(new Uint8Array(a), new Uint8Array(b));
  if (a instanceof Map || a instanceof Set) return isEqual([...a], [...b]);
  if (a instanceof Error && (a.name !== b.name || a.message !== b.message)) return false;
  const keys = Reflect.ownKeys(a).filter((key) => Object.prototype.propertyIsEnumerable.call(a, key));
  const others = Reflect.ownKeys(b).filter((key) => Object.prototype.propertyIsEnumerable.call(b, key));
  return keys.length === others.length && keys.every((key) => Object.hasOwn(b, key) && isEqual(a[key], b[key]));
}

// Deep and strict: prototypes count, -0 is not 0, NaN is NaN.
export function assertEquals(actual, expected, message) {
  if (!isEqual(actual, expected)) {
    fail(`${message ? `${message}: ` : ''}got ${format(actual)}, expected ${format(expected)}`);
  }
}

export function assertNotEquals(actual, other, message = 'equal values') {
  if (isEqual(actual, other)) fail(`${message}: ${format(actual)}`);
}

function check(error, expected, message) {
  if (expected === undefined) return error;
  const name = typeof expected === 'function' ? expected.name : expected;
  if (typeof expected === 'function' ? !(error instanceof expected) : error?.name !== name) {
    fail(`got ${format(error)}, expected a ${name}`);
  }
  if (message instanceof RegExp ? !message.test(error.message) : message !== undefined && error.message !== message) {
    fail(`got the message ${format(error.message)}, expected ${format(message)}`);
  }
  return error;
}

// `expected`: a class, or the name of a DOMException; `message`: a string or a RegExp. Gives back
// what was thrown.
export function assertThrows(run, expected, message) {
  let error;
  try {
    run();
  } catch (thrown) {
    error = thrown;
    return check(error, expected, message);
  }
  return fail(`nothing was thrown, expected ${typeof expected === 'function' ? expected.name : expected}`);
}

export async function assertRejects(run, expected, message) {
  let error;
  try {
    await (typeof run === 'function' ? run() : run);
  } catch (thrown) {
    error = thrown;
    return check(error, expected, message);
  }
  return fail(`nothing was thrown, expected ${typeof expected === 'function' ? expected.name : expected}`);
}

// Called by the harness.
export async function run(request, env, ctx) {
  const { pathname } = new URL(request.url);
  if (pathname === '/list') return new Response(JSON.stringify(tests.map(({ name }) => name)));
  const { run } = tests[Number(pathname.slice(5))];
  try {
    await run(env, ctx, request);
    return new Response('ok');
  } catch (error) {
    return new Response(error?.stack ?? format(error), { status: 500 });
  }
}
