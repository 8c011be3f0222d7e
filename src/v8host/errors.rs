//! From what JavaScript throws to a [`Failure`], and back.
//!
//! Invariant: any value may be thrown, also one whose getters throw; each gives a failure.

use bytes::Bytes;
use v8::{Local, PinScope};

use crate::api::structured_clone;
use crate::convert;
use crate::host::Failure;
use crate::stack;
use crate::state::RealmState;

/// Longest message that leaves a realm, in bytes: a thrown string may have half a GiB.
const TEXT_MAX: usize = 64 * 1024;

/// Longest name and stack, in bytes.
const NAME_MAX: usize = 1024;
const STACK_MAX: usize = 16 * 1024;

/// Longest form of what comes with an error, in bytes: with the texts it fits into the head of an
/// answer between nodes, which has 256 KiB.
const THROWN_MAX: usize = 160 * 1024;

/// Bits of the flags of a failure, as `answerError` passes them to JavaScript.
pub mod flags {
    /// `error.remote`
    pub const REMOTE: u32 = 1;
    /// `error.retryable`
    pub const RETRYABLE: u32 = 2;
    /// `error.overloaded`
    pub const OVERLOADED: u32 = 4;
    /// `error.durableObjectReset`
    pub const DURABLE_OBJECT_RESET: u32 = 8;
}

impl Failure {
    /// A failure of the engine itself, without a stack.
    pub fn new(name: &str, message: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            message: message.into(),
            stack: String::new(),
            remote: false,
            retryable: false,
            overloaded: false,
            durable_object_reset: false,
            thrown: Bytes::new(),
        }
    }

    /// The marks as bits: see [`flags`].
    pub fn flags(&self) -> u32 {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        bit(self.remote, flags::REMOTE)
            | bit(self.retryable, flags::RETRYABLE)
            | bit(self.overloaded, flags::OVERLOADED)
            | bit(self.durable_object_reset, flags::DURABLE_OBJECT_RESET)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: {}", self.name, self.message)?;
        if self.stack.is_empty() { Ok(()) } else { write!(out, "\n{}", self.stack) }
    }
}

/// What a thrown value says. Runs getters of the value, so JavaScript may run.
pub fn failure(scope: &mut PinScope, thrown: Local<v8::Value>) -> Failure {
    v8::tc_scope!(let scope, scope);
    let failure = describe(scope, thrown);
    scope.reset();
    failure
}

/// As [`failure`], with what else was thrown: for a caller of the cell that threw it.
pub fn failure_of_cell(scope: &mut PinScope, thrown: Local<v8::Value>) -> Failure {
    v8::tc_scope!(let scope, scope);
    let mut failure = describe(scope, thrown);
    scope.reset();
    failure.thrown = thrown_form(scope, thrown).unwrap_or_default();
    scope.reset();
    failure
}

/// `(name, message, stack, flags, thrown)` for `rt.failureError`; the last is the object of
/// [`Failure::thrown`], or `undefined`.
pub fn failure_parts<'s>(
    scope: &mut PinScope<'s, '_>,
    failure: &Failure,
) -> [Local<'s, v8::Value>; 5] {
    [
        convert::string(scope, &failure.name).into(),
        convert::string(scope, &failure.message).into(),
        convert::string(scope, &failure.stack).into(),
        v8::Integer::new_from_unsigned(scope, failure.flags()).into(),
        thrown(scope, &failure.thrown),
    ]
}

fn thrown<'s>(scope: &mut PinScope<'s, '_>, bytes: &[u8]) -> Local<'s, v8::Value> {
    let undefined = v8::undefined(scope).into();
    if bytes.is_empty() {
        return undefined;
    }
    v8::tc_scope!(let scope, scope);
    structured_clone::deserialize(scope, bytes).unwrap_or(undefined)
}

/// An object with the own properties of an error as `own`, with `exception` for a `DOMException`, of
/// which nothing else goes along, or with any other object as `value`. `None`: there is nothing to
/// tell, or something that cannot be cloned, which costs all of it in workerd too.
fn thrown_form(scope: &mut PinScope, thrown: Local<v8::Value>) -> Option<Bytes> {
    let object = Local::<v8::Object>::try_from(thrown).ok()?;
    let form = v8::Object::new(scope);
    let (name, kept) = if object.is_native_error() {
        ("own", own_properties(scope, object)?.into())
    } else if is_exception(scope, object) {
        ("exception", v8::Boolean::new(scope, true).into())
    } else {
        ("value", thrown)
    };
    let name = convert::intern(scope, name);
    form.create_data_property(scope, name.into(), kept)?;
    let bytes = structured_clone::serialize(scope, form.into())?;
    (bytes.len() <= THROWN_MAX).then(|| bytes.into())
}

fn is_exception(scope: &mut PinScope, object: Local<v8::Object>) -> bool {
    let state = RealmState::get(scope);
    let Some(class) = &state.names.dom_exception else { return false };
    let class = Local::new(scope, class);
    object.instance_of(scope, class.into()).unwrap_or(false)
}

fn own_properties<'s>(
    scope: &mut PinScope<'s, '_>,
    error: Local<v8::Object>,
) -> Option<Local<'s, v8::Object>> {
    let own = v8::GetPropertyNamesArgs {
        mode: v8::KeyCollectionMode::OwnOnly,
        property_filter: v8::PropertyFilter::SKIP_SYMBOLS,
        index_filter: v8::IndexFilter::IncludeIndices,
        key_conversion: v8::KeyConversionMode::ConvertToString,
    };
    let names = error.get_own_property_names(scope, own)?;
    let kept = v8::Object::new(scope);
    let mut is_empty = true;
    for index in 0..names.length() {
        let name = Local::<v8::Name>::try_from(names.get_index(scope, index)?).ok()?;
        if matches!(text(scope, name.into())?.as_str(), "message" | "stack") {
            continue;
        }
        let value = error.get(scope, name.into())?;
        kept.create_data_property(scope, name, value)?;
        is_empty = false;
    }
    (!is_empty).then_some(kept)
}

fn describe(scope: &mut PinScope, thrown: Local<v8::Value>) -> Failure {
    let Some(object) = error_like(scope, thrown) else {
        // workerd reports what is no error as its text.
        let message = text(scope, thrown).unwrap_or_default();
        return Failure::new("Error", message);
    };
    let mut name = property(scope, object, "name").unwrap_or_else(|| "Error".to_owned());
    truncate(&mut name, NAME_MAX);
    let message = property(scope, object, "message").unwrap_or_default();
    let stack = property(scope, object, "stack").unwrap_or_default();
    let mut stack = stack::frames_only(&stack);
    truncate(&mut stack, STACK_MAX);
    Failure {
        stack,
        name,
        message,
        remote: flag(scope, object, "remote"),
        retryable: flag(scope, object, "retryable"),
        overloaded: flag(scope, object, "overloaded"),
        durable_object_reset: flag(scope, object, "durableObjectReset"),
        thrown: Bytes::new(),
    }
}

/// As [`failure`], for an exception while modules are loaded: a syntax error has no stack, but a
/// place.
pub(crate) fn load_failure(scope: &mut PinScope, thrown: Local<v8::Value>) -> Failure {
    let place = place_of(scope, thrown);
    let mut failure = failure(scope, thrown);
    if failure.stack.is_empty()
        && let Some(place) = place
    {
        let state = RealmState::get(scope);
        failure.stack = stack::mapped(&state.script, &format!("    at {place}"));
    }
    failure
}

/// `file:line:column` of the message that V8 made for an exception.
fn place_of(scope: &mut PinScope, thrown: Local<v8::Value>) -> Option<String> {
    let message = v8::Exception::create_message(scope, thrown);
    let file = message.get_script_resource_name(scope)?;
    if file.is_undefined() {
        return None;
    }
    let file = convert::to_string(scope, file)?;
    let line = message.get_line_number(scope)?;
    Some(format!("{file}:{line}:{}", message.get_start_column() + 1))
}

/// An `Error`, or an object that looks like one (`DOMException` is no native error).
fn error_like<'t>(
    scope: &mut PinScope,
    thrown: Local<'t, v8::Value>,
) -> Option<Local<'t, v8::Object>> {
    let object = Local::<v8::Object>::try_from(thrown).ok()?;
    if thrown.is_native_error() {
        return Some(object);
    }
    let key = convert::intern(scope, "message");
    let message = object.get(scope, key.into())?;
    message.is_string().then_some(object)
}

fn property(scope: &mut PinScope, object: Local<v8::Object>, name: &str) -> Option<String> {
    let key = convert::intern(scope, name);
    let value = object.get(scope, key.into())?;
    if value.is_undefined() { None } else { text(scope, value) }
}

fn flag(scope: &mut PinScope, object: Local<v8::Object>, name: &str) -> bool {
    let key = convert::intern(scope, name);
    object.get(scope, key.into()).is_some_and(|value| value.is_true())
}

fn text(scope: &mut PinScope, value: Local<v8::Value>) -> Option<String> {
    // `String(symbol)` works where `symbol.toString` by V8's conversion throws.
    let mut text = match Local::<v8::Symbol>::try_from(value) {
        Ok(symbol) => {
            let description = symbol.description(scope);
            format!("Symbol({})", convert::to_string(scope, description).unwrap_or_default())
        }
        Err(_) => convert::to_string(scope, value)?,
    };
    truncate(&mut text, TEXT_MAX);
    Some(text)
}

fn truncate(text: &mut String, max: usize) {
    if text.len() > max {
        let end = text.floor_char_boundary(max);
        text.truncate(end);
        text.push('…');
    }
}
