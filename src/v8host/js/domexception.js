//! `DOMException`, which all other files throw. Publishes `rt.DOMException` and `rt.domException`.
//!
//! Invariant: `code` follows from `name` alone. The stack is taken where the exception is made.
//! Source: Web IDL Standard, section 2.8.1 (names and codes), section 4.3 (the interface).

const { captureStackTrace } = Error;
const { defineProperty, setPrototypeOf } = Object;
const { constants, decorate, illegalInvocation, isObject, convert } = rt.webidl;

/** Names with a legacy code, in the order of their codes from 1; empty where no name is in use. */
const NAMES = [
  'IndexSizeError', '', 'HierarchyRequestError', 'WrongDocumentError', 'InvalidCharacterError', '',
  'NoModificationAllowedError', 'NotFoundError', 'NotSupportedError', 'InUseAttributeError', 'InvalidStateError',
  'SyntaxError', 'InvalidModificationError', 'NamespaceError', 'InvalidAccessError', '', 'TypeMismatchError',
  'SecurityError', 'NetworkError', 'AbortError', 'URLMismatchError', 'QuotaExceededError', 'TimeoutError',
  'InvalidNodeTypeError', 'DataCloneError',
];

const codes = { __proto__: null };
for (let i = 0; i < NAMES.length; i++) if (NAMES[i] !== '') codes[NAMES[i]] = i + 1;

let isDOMException;
let nameOf;

/**
 * `[message, name]` of an exception that `structuredClone` or storage has read. V8 lets no
 * constructor run there, so that such an object has its parts in a private property instead.
 */
const cloned = (value) => (isObject(value) ? ops.cloned_exception(value) : undefined);

class DOMException {
  #message;
  #name;

  constructor(message = '', name = 'Error') {
    this.#message = convert.DOMString(message);
    // An object in the second place carries options, as Node has it; Web IDL knows only a name.
    if (isObject(name)) {
      const { name: given = 'Error', cause } = name;
      this.#name = convert.DOMString(given);
      if ('cause' in name) {
        defineProperty(this, 'cause', { __proto__: null, value: cause, writable: true, configurable: true });
      }
    } else {
      this.#name = convert.DOMString(name);
    }
    captureStackTrace(this, new.target);
  }

  get name() {
    return nameOf(this);
  }

  get message() {
    if (isObject(this) && #message in this) return this.#message;
    return (cloned(this) ?? illegalInvocation())[0];
  }

  get code() {
    return codes[nameOf(this)] ?? 0;
  }

  static {
    nameOf = (self) => {
      if (isObject(self) && #name in self) return self.#name;
      return (cloned(self) ?? illegalInvocation())[1];
    };
    isDOMException = (value) => isObject(value) && (#name in value || cloned(value) !== undefined);
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
