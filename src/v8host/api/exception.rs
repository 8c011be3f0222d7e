//! What `DOMException` needs of Rust: the codes of names, and exceptions that are read from bytes.
//!
//! Source: Web IDL Standard, section 2.8.1.

use v8::{Local, PinScope};

use crate::convert;
use crate::op;
use crate::ops::Op;
use crate::state::RealmState;

/// Native functions of this file.
pub const OPS: &[Op] =
    &[op!("exception_code", exception_code), op!("is_cloned_exception", is_cloned_exception)];

/// Names with a legacy code, in the order of their codes from 1; empty where no name is in use.
const NAMES: [&str; 25] = [
    "IndexSizeError",
    "",
    "HierarchyRequestError",
    "WrongDocumentError",
    "InvalidCharacterError",
    "",
    "NoModificationAllowedError",
    "NotFoundError",
    "NotSupportedError",
    "InUseAttributeError",
    "InvalidStateError",
    "SyntaxError",
    "InvalidModificationError",
    "NamespaceError",
    "InvalidAccessError",
    "",
    "TypeMismatchError",
    "SecurityError",
    "NetworkError",
    "AbortError",
    "URLMismatchError",
    "QuotaExceededError",
    "TimeoutError",
    "InvalidNodeTypeError",
    "DataCloneError",
];

/// 0: the name has no code.
fn code_of(name: &str) -> u32 {
    let place = NAMES.iter().position(|known| *known == name && !name.is_empty());
    place.map_or(0, |place| place as u32 + 1)
}

/// `exception_code(name)`. Needs no realm.
fn exception_code(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    if let Some(name) = convert::to_string(scope, args.get(0)) {
        rv.set_uint32(code_of(&name));
    }
}

/// `is_cloned_exception(object)`: whether [`put_together`] has made it.
fn is_cloned_exception(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let Ok(object) = Local::<v8::Object>::try_from(args.get(0)) else { return };
    let mark = mark(scope);
    rv.set_bool(!object.is_proxy() && object.has_private(scope, mark).unwrap_or(false));
}

fn mark<'s>(scope: &mut PinScope<'s, '_>) -> Local<'s, v8::Private> {
    let name = convert::intern(scope, "celld:exception");
    v8::Private::for_api(scope, Some(name))
}

/// A `DOMException` without its constructor: V8 forbids JavaScript while it reads a clone.
pub(super) fn put_together<'s>(
    scope: &mut PinScope<'s, '_>,
    message: Local<'s, v8::String>,
    name: Local<'s, v8::String>,
    stack: Local<'s, v8::String>,
) -> Option<Local<'s, v8::Object>> {
    let state = RealmState::get(scope);
    let constructor = Local::new(scope, state.names.dom_exception.as_ref()?);
    let key = convert::intern(scope, "prototype");
    let prototype = constructor.get(scope, key.into())?;
    let exception = v8::Object::new(scope);
    exception.set_prototype(scope, prototype)?;
    let mark = mark(scope);
    let marked = v8::Boolean::new(scope, true);
    exception.set_private(scope, mark, marked.into())?;
    let code = code_of(&convert::text_of(scope, name));
    let code = v8::Integer::new_from_unsigned(scope, code);
    for (key, value, attribute) in [
        ("code", code.into(), v8::PropertyAttribute::READ_ONLY),
        ("name", name.into(), v8::PropertyAttribute::READ_ONLY),
        ("message", message.into(), v8::PropertyAttribute::READ_ONLY),
        ("stack", stack.into(), v8::PropertyAttribute::NONE),
    ] {
        let key = convert::intern(scope, key);
        exception.define_own_property(scope, key.into(), value, attribute)?;
    }
    Some(exception)
}
