// structuredClone.
import { assert, assertEquals, assertNotEquals, assertThrows, test } from 'test';

test('values that are cloned', () => {
  const values = [undefined, null, true, 0, -0, NaN, Infinity, 1.5, 123n, -(2n ** 100n), '', 'aü😀', '\ud800', new Date(5), new Date(NaN),
    /a\/b/giu, [1, [2, { a: 3 }]], { a: { b: undefined } }, new Map([[{ k: 1 }, new Set([1, 'x'])]]), new Set(), new ArrayBuffer(3), new Uint8Array([1, 2, 3]),
    new Float64Array([1.5, NaN]), new BigInt64Array([5n]), Object(1), Object('s'), Object(5n), Object(false)];
  for (const value of values) {
    const clone = structuredClone(value);
    if (typeof value === 'object' && value !== null) {
      assert(clone !== value);
      assertEquals(Object.prototype.toString.call(clone), Object.prototype.toString.call(value));
    }
    if (!(value instanceof Object) || !('valueOf' in value) || typeof value.valueOf() === 'object') assertEquals(clone, value);
    else assertEquals(clone.valueOf(), value.valueOf());
  }
  const view = structuredClone(new DataView(new ArrayBuffer(8), 2, 4));
  assertEquals([view.byteOffset, view.byteLength, view.buffer.byteLength], [2, 4, 8]);
});

test('identity and cycles are kept', () => {
  const shared = { x: 1 };
  const value = { a: shared, b: shared, list: [] };
  value.self = value;
  value.list.push(value);
  const clone = structuredClone(value);
  assert(clone.a === clone.b && clone.a !== shared && clone.self === clone && clone.list[0] === clone);
  const buffer = new ArrayBuffer(4);
  const views = structuredClone([new Uint8Array(buffer), new Uint16Array(buffer)]);
  assert(views[0].buffer === views[1].buffer);
});

test('holes, accessors, symbols, prototypes', () => {
  const sparse = structuredClone([1, , 3]);
  assertEquals([sparse.length, 1 in sparse], [3, false]);
  const extra = Object.assign([1], { name: 'x' });
  assertEquals(structuredClone(extra).name, 'x');
  let reads = 0;
  const clone = structuredClone({ get a() { reads++; return 5; }, [Symbol('s')]: 1 });
  assertEquals([Object.getOwnPropertyDescriptor(clone, 'a').value, reads, Object.getOwnPropertySymbols(clone).length], [5, 1, 0]);
  class Point { x = 1; get y() { return 2; } }
  const point = structuredClone(new Point());
  assertEquals([point.constructor, point.x, point.y], [Object, 1, undefined]);
  assertEquals(structuredClone(Object.create(null, { a: { value: 1, enumerable: true } })).a, 1);
  assertThrows(() => structuredClone({ get a() { throw new RangeError('mine'); } }), RangeError, 'mine');
});

test('errors keep class, message, stack and cause', () => {
  for (const Class of [Error, TypeError, RangeError, SyntaxError, EvalError, ReferenceError, URIError]) {
    const error = new Class('m', { cause: { a: 1 } });
    const clone = structuredClone(error);
    assert(clone instanceof Class && clone !== error);
    assertEquals([clone.name, clone.message, clone.stack, clone.cause], [error.name, 'm', error.stack, { a: 1 }]);
  }
  const custom = structuredClone(Object.assign(new Error('m'), { name: 'Mine' }));
  assertEquals([custom.name, custom.constructor], ['Error', Error]);
});

test('DOMException', () => {
  const error = new DOMException('m', 'AbortError');
  const clone = structuredClone({ error }).error;
  assert(clone instanceof DOMException && clone !== error);
  assertEquals([clone.name, clone.message, clone.code, clone.stack], ['AbortError', 'm', 20, error.stack]);
  assertEquals(Object.keys(clone), ['code', 'name', 'message', 'stack']);
  assertEquals(structuredClone(clone).code, 20);
  assertThrows(() => { clone.code = 1; }, TypeError);
});

test('what cannot be cloned', () => {
  const cases = [
    [() => {}, '()=>{} could not be cloned.'], [Symbol('x'), 'Symbol(x) could not be cloned.'], [Promise.resolve(), '#<Promise> could not be cloned.'],
    [new WeakMap(), '#<WeakMap> could not be cloned.'], [new WeakRef({}), '#<WeakRef> could not be cloned.'], [new Proxy({}, {}), '#<Object> could not be cloned.'],
    [new URL('http://a'), 'Could not serialize object of type "URL". This type does not support serialization.'],
    [new Event('x'), 'Could not serialize object of type "Event". This type does not support serialization.'],
    [new (class extends EventTarget {})(), 'Could not serialize object of type "EventTarget". This type does not support serialization.'],
    [new AbortController().signal, 'Could not serialize object of type "AbortSignal". This type does not support serialization.'],
  ];
  for (const [value, message] of cases) {
    for (const input of [value, [value], { a: value }, new Map([[1, value]])]) {
      const error = assertThrows(() => structuredClone(input), 'DataCloneError');
      if (typeof value !== 'function') assertEquals(error.message, message);
      else assert(error.message.endsWith('could not be cloned.'), error.message);
      assertEquals(error.code, 25);
    }
  }
  assertThrows(() => structuredClone(new SharedArrayBuffer(1)), 'DataCloneError');
});

test('transfer', () => {
  const buffer = new ArrayBuffer(8, { maxByteLength: 16 });
  const view = new Uint8Array(buffer).fill(7);
  const plain = new Uint8Array([1, 2, 3]);
  const clone = structuredClone({ view, plain }, { transfer: [buffer, plain.buffer] });
  assertEquals([buffer.detached, buffer.byteLength, plain.length], [true, 0, 0]);
  assertEquals([clone.view[0], clone.view.length, clone.view.buffer.maxByteLength], [7, 8, 16]);
  assertEquals(clone.plain, new Uint8Array([1, 2, 3]));
  const unused = new ArrayBuffer(4);
  assertEquals(structuredClone('x', { transfer: new Set([unused]) }), 'x');
  assertEquals(unused.detached, true);
});

test('a failed clone detaches nothing', () => {
  const buffer = new ArrayBuffer(8);
  assertThrows(() => structuredClone([buffer, () => {}], { transfer: [buffer] }), 'DataCloneError');
  assertEquals(buffer.byteLength, 8);
});

test('the transfer list is checked', () => {
  const buffer = new ArrayBuffer(1);
  assertThrows(() => structuredClone(1, { transfer: [5] }), TypeError, 'Object is not transferable');
  assertThrows(() => structuredClone(1, { transfer: [{}] }), TypeError, 'Object is not transferable');
  assertThrows(() => structuredClone(1, { transfer: [buffer, buffer] }), 'DataCloneError');
  structuredClone(1, { transfer: [buffer] });
  assertThrows(() => structuredClone(1, { transfer: [buffer] }), 'DataCloneError');
  assertThrows(() => structuredClone(buffer), 'DataCloneError', 'An ArrayBuffer is detached and could not be cloned.');
  assertThrows(() => structuredClone(1, { transfer: 5 }), TypeError,
    "Incorrect type for the 'transfer' field on 'StructuredCloneOptions': the provided value is not of type 'Array'.");
  assertThrows(() => structuredClone(1, 5), TypeError,
    "Failed to execute 'structuredClone' on 'ServiceWorkerGlobalScope': parameter 2 is not of type 'StructuredCloneOptions'.");
  assertThrows(() => structuredClone(), TypeError,
    "Failed to execute 'structuredClone' on 'ServiceWorkerGlobalScope': parameter 1 is not of type 'Value'.");
  assertEquals(structuredClone(1, undefined), 1);
  assertEquals(structuredClone(1, {}), 1);
});

test('a getter that detaches what is transferred', () => {
  const buffer = new ArrayBuffer(4);
  const value = { get a() { buffer.transfer(); return 1; }, buffer };
  assertThrows(() => structuredClone(value, { transfer: [buffer] }), 'DataCloneError');
});

test('a deep value is an error, not a crash', () => {
  let deep = [];
  for (let i = 0; i < 200_000; i++) deep = [deep];
  assertThrows(() => structuredClone(deep), RangeError);
  assertNotEquals(structuredClone([[]]), []);
});
