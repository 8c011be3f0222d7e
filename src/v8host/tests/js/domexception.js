// DOMException: names, codes, prototype, stack.
import { assert, assertEquals, assertThrows, test } from 'test';

const CODES = {
  IndexSizeError: 1, HierarchyRequestError: 3, WrongDocumentError: 4, InvalidCharacterError: 5,
  NoModificationAllowedError: 7, NotFoundError: 8, NotSupportedError: 9, InUseAttributeError: 10, InvalidStateError: 11,
  SyntaxError: 12, InvalidModificationError: 13, NamespaceError: 14, InvalidAccessError: 15, TypeMismatchError: 17,
  SecurityError: 18, NetworkError: 19, AbortError: 20, URLMismatchError: 21, QuotaExceededError: 22, TimeoutError: 23,
  InvalidNodeTypeError: 24, DataCloneError: 25,
};

test('names with a legacy code have it, others have 0', () => {
  for (const [name, code] of Object.entries(CODES)) assertEquals(new DOMException('', name).code, code, name);
  for (const name of ['EncodingError', 'OperationError', 'Error', 'aborterror', '']) {
    assertEquals(new DOMException('', name).code, 0, name);
  }
});

test('defaults and conversions of the constructor', () => {
  const plain = new DOMException();
  assertEquals([plain.message, plain.name, plain.code], ['', 'Error', 0]);
  assertEquals(new DOMException(5, null).message, '5');
  assertEquals(new DOMException(undefined).message, '');
  assertEquals(new DOMException('a', undefined).name, 'Error');
  assertThrows(() => DOMException('a'), TypeError);
  assertThrows(() => new DOMException(Symbol('a')), TypeError);
});

test('it is an Error by prototype, with a stack of its own', () => {
  const error = new DOMException('the message', 'AbortError');
  assert(error instanceof Error && error instanceof DOMException);
  assertEquals(Object.getPrototypeOf(DOMException.prototype), Error.prototype);
  assertEquals(String(error), 'AbortError: the message');
  assertEquals(Object.prototype.toString.call(error), '[object DOMException]');
  assert(error.stack.startsWith('AbortError: the message\n    at '), error.stack);
  assert(!error.stack.split('\n')[1].includes('celld:'), error.stack);
});

test('constants are on the class and on the prototype', () => {
  assertEquals(DOMException.ABORT_ERR, 20);
  assertEquals(DOMException.prototype.DATA_CLONE_ERR, 25);
  assertEquals(Object.getOwnPropertyDescriptor(DOMException, 'SYNTAX_ERR'),
    { value: 12, writable: false, enumerable: true, configurable: false });
  assertEquals(Object.keys(DOMException).length, 25);
});

test('its parts are own properties that cannot be written, as in workerd', () => {
  const error = new DOMException('m', 'AbortError');
  assertThrows(() => { error.name = 'x'; }, TypeError);
  assertThrows(() => { error.message = 'x'; }, TypeError);
  assertEquals(Object.keys(error), ['code', 'name', 'message', 'stack']);
  assertEquals(Object.getOwnPropertyDescriptor(error, 'code'), { value: 20, writable: false, enumerable: true, configurable: true });
  const { stack, ...rest } = JSON.parse(JSON.stringify(error));
  assertEquals([rest, stack], [{ code: 20, name: 'AbortError', message: 'm' }, error.stack]);
  assertEquals(new DOMException('m', { name: 'x' }).name, '[object Object]');
  class Mine extends DOMException {}
  assertEquals(Object.keys(new Mine('q')), ['code', 'name', 'message', 'stack']);
});
