//! `DOMException`, which all other files throw. Publishes `rt.DOMException` and `rt.domException`.
//!
//! Invariant: `code` follows from `name` alone. The stack is taken where the exception is made.
//! As in workerd, `code`, `name`, `message` and `stack` are own properties that show in JSON.
//! Source: Web IDL Standard, section 2.8.1 (names and codes), section 4.3 (the interface).

const { captureStackTrace } = Error;
const { defineProperty, setPrototypeOf } = Object;
const { constants, decorate, isObject, convert } = rt.webidl;

let isDOMException;

const fixed = (value) => ({ __proto__: null, value, enumerable: true, configurable: true });

class DOMException {
  #brand;

  constructor(message = '', name = 'Error') {
    const text = convert.DOMString(message);
    const word = convert.DOMString(name);
    defineProperty(this, 'code', fixed(ops.exception_code(word)));
    defineProperty(this, 'name', fixed(word));
    defineProperty(this, 'message', fixed(text));
    captureStackTrace(this, new.target);
    defineProperty(this, 'stack', { __proto__: null, enumerable: true });
  }

  static {
    // V8 lets no constructor run where it reads a clone: such an object has a private property.
    isDOMException = (value) => isObject(value) && (#brand in value || ops.is_cloned_exception(value));
  }
}

setPrototypeOf(DOMException.prototype, Error.prototype);
decorate(DOMException);
constants(DOMException, {
  INDEX_SIZE_ERR: 1,
  DOMSTRING_SIZE_ERR: 2,
  HIERARCHY_REQUEST_ERR: 3,
  WRONG_DOCUMENT_ERR: 4,
  INVALID_CHARACTER_ERR: 5,
  NO_DATA_ALLOWED_ERR: 6,
  NO_MODIFICATION_ALLOWED_ERR: 7,
  NOT_FOUND_ERR: 8,
  NOT_SUPPORTED_ERR: 9,
  INUSE_ATTRIBUTE_ERR: 10,
  INVALID_STATE_ERR: 11,
  SYNTAX_ERR: 12,
  INVALID_MODIFICATION_ERR: 13,
  NAMESPACE_ERR: 14,
  INVALID_ACCESS_ERR: 15,
  VALIDATION_ERR: 16,
  TYPE_MISMATCH_ERR: 17,
  SECURITY_ERR: 18,
  NETWORK_ERR: 19,
  ABORT_ERR: 20,
  URL_MISMATCH_ERR: 21,
  QUOTA_EXCEEDED_ERR: 22,
  TIMEOUT_ERR: 23,
  INVALID_NODE_TYPE_ERR: 24,
  DATA_CLONE_ERR: 25,
});

rt.DOMException = DOMException;
rt.isDOMException = isDOMException;
/** A new exception: message first, as the constructor has it. */
rt.domException = (message, name) => new DOMException(message, name);
rt.expose('DOMException', DOMException);
