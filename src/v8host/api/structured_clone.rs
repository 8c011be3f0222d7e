//! `structuredClone`, and the same serialisation for values in storage and messages of RPC.
//!
//! Invariant: bytes that anybody may have written give a value or an exception, never a panic; a
//! value holds nothing outside of its bytes, so that it can be read in another realm.
//! Format: V8's own (`0xff`, version, value); V8 reads all its older versions. A host object (one
//! of our classes) is a tag and its parts: only `DOMException` is one, other classes are refused by
//! their name.
//! Source: HTML Standard, section 2.7 (safe passing of structured data).

use std::cell::RefCell;

use v8::{
    Global, Local, PinScope, ValueDeserializerHelper, ValueDeserializerImpl, ValueSerializerHelper,
    ValueSerializerImpl,
};

use bytes::Bytes;

use super::exception;
use crate::convert;
use crate::op;
use crate::ops::Op;

/// Native functions of this file.
pub const OPS: &[Op] = &[
    op!("mark_interface", mark_interface),
    op!("structured_clone", structured_clone),
    op!("rpc_write", rpc_write),
    op!("rpc_read", rpc_read),
];

/// Tag of a `DOMException`: message, name and stack follow.
const TAG_DOM_EXCEPTION: u32 = 1;
/// Of RPC, as workerd has it.
const MESSAGE_MAX: usize = 32 << 20;
const DATA_CLONE_ERROR: &str = "DataCloneError";

/// Serialises a value for storage. `None`: an exception is pending (a `DataCloneError`, or what a
/// getter of the value has thrown).
pub fn serialize(scope: &mut PinScope, value: Local<v8::Value>) -> Option<Vec<u8>> {
    if let Some(bytes) = write_plain(scope, value) {
        return Some(bytes);
    }
    write(scope, value, &[], Use::Value)
}

/// Reads what [`serialize`] wrote. `None`: an exception is pending; the bytes are not such a value.
pub fn deserialize<'s>(scope: &mut PinScope<'s, '_>, bytes: &[u8]) -> Option<Local<'s, v8::Value>> {
    if let Some(value) = read_plain(scope, bytes) {
        return Some(value);
    }
    read(scope, bytes, &[])
}

/// Serialises a message of RPC. `None`: an exception is pending.
pub fn message(scope: &mut PinScope, value: Local<v8::Value>) -> Option<Bytes> {
    let bytes = write(scope, value, &[], Use::Rpc)?;
    if bytes.len() > MESSAGE_MAX {
        let text = format!(
            "Serialized RPC arguments or return values are limited to 32MiB, but the size of this value was: {} bytes.",
            bytes.len()
        );
        convert::throw_error(scope, &text);
        return None;
    }
    Some(bytes.into())
}

/// What V8 writes at the beginning.
const HEADER: [u8; 2] = [0xff, 16];
/// The oldest version whose plain values are those of today.
const VERSION_MIN: u8 = 13;

/// Writes what most values are, numbers, truth values and short texts, as V8 does: its serialiser
/// costs a microsecond to set up. `None`: another kind of value.
fn write_plain(scope: &mut PinScope, value: Local<v8::Value>) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend_from_slice(&HEADER);
    if value.is_int32() {
        let number = value.int32_value(scope)?;
        bytes.push(b'I');
        push_varint(&mut bytes, (number.cast_unsigned() << 1) ^ (number >> 31).cast_unsigned());
    } else if value.is_number() {
        bytes.push(b'N');
        bytes.extend_from_slice(&value.number_value(scope)?.to_ne_bytes());
    } else if value.is_boolean() {
        bytes.push(if value.is_true() { b'T' } else { b'F' });
    } else {
        let text = Local::<v8::String>::try_from(value).ok()?;
        if !text.is_onebyte() || text.length() > PLAIN_MAX {
            return None;
        }
        let text = convert::latin1_of(scope, text)?;
        bytes.push(b'"');
        push_varint(&mut bytes, u32::try_from(text.len()).ok()?);
        bytes.extend_from_slice(&text);
    }
    Some(bytes)
}

/// Longer texts go the long way, which is no longer for them.
const PLAIN_MAX: usize = 1024;

fn push_varint(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads what [`write_plain`] and V8 write for such values. `None`: V8 has to look at it.
fn read_plain<'s>(scope: &mut PinScope<'s, '_>, bytes: &[u8]) -> Option<Local<'s, v8::Value>> {
    let [0xff, version, tag, rest @ ..] = bytes else { return None };
    if !(VERSION_MIN..=HEADER[1]).contains(version) {
        return None;
    }
    match (tag, rest) {
        (b'I', rest) => {
            let (number, []) = take_varint(rest)? else { return None };
            let number = (number >> 1).cast_signed() ^ -(number & 1).cast_signed();
            Some(v8::Integer::new(scope, number).into())
        }
        (b'N', rest) => {
            let number = f64::from_ne_bytes(rest.try_into().ok()?);
            // V8 marks holes of arrays with a NaN of its own.
            let number = if number.is_nan() { f64::NAN } else { number };
            Some(v8::Number::new(scope, number).into())
        }
        (b'T', []) => Some(v8::Boolean::new(scope, true).into()),
        (b'F', []) => Some(v8::Boolean::new(scope, false).into()),
        (b'"', rest) => {
            let (length, text) = take_varint(rest)?;
            (text.len() == length as usize).then(|| convert::latin1(scope, text).into())
        }
        _ => None,
    }
}

/// A number of at most 28 bits and what follows it; longer ones are for V8.
fn take_varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut number = 0;
    for (at, &byte) in bytes.iter().take(4).enumerate() {
        number |= u32::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Some((number, &bytes[at + 1..]));
        }
    }
    None
}

fn write(
    scope: &mut PinScope,
    value: Local<v8::Value>,
    transfer: &[Local<v8::ArrayBuffer>],
    what_for: Use,
) -> Option<Vec<u8>> {
    let context = scope.get_current_context();
    let plain = match what_for {
        Use::Value => None,
        Use::Rpc => {
            let prototype = v8::Object::new(scope).get_prototype(scope)?;
            Some(Global::new(scope, prototype))
        }
    };
    let writer = Writer { plain: RefCell::new(plain), what_for };
    let serializer = v8::ValueSerializer::new(scope, Box::new(writer));
    serializer.write_header();
    for (id, buffer) in (0_u32..).zip(transfer) {
        serializer.transfer_array_buffer(id, *buffer);
    }
    // `Some(false)` does not happen: V8 answers true or throws.
    serializer.write_value(context, value)?.then(|| serializer.release())
}

fn read<'s>(
    scope: &mut PinScope<'s, '_>,
    bytes: &[u8],
    transferred: &[Local<v8::ArrayBuffer>],
) -> Option<Local<'s, v8::Value>> {
    let context = scope.get_current_context();
    let deserializer = v8::ValueDeserializer::new(scope, Box::new(Reader), bytes);
    for (id, buffer) in (0_u32..).zip(transferred) {
        deserializer.transfer_array_buffer(id, *buffer);
    }
    deserializer.read_header(context)?;
    deserializer.read_value(context)
}

/// `structured_clone(value, buffers)`: the clone. `buffers` is an array of distinct, attached
/// `ArrayBuffer`s; they are detached once the value has been serialised.
fn structured_clone(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    if let Some(clone) = try_clone(scope, args.get(0), args.get(1)) {
        rv.set(clone);
    }
}

fn try_clone<'s>(
    scope: &mut PinScope<'s, '_>,
    value: Local<v8::Value>,
    buffers: Local<v8::Value>,
) -> Option<Local<'s, v8::Value>> {
    let mut transfer = Vec::new();
    if let Ok(list) = Local::<v8::Array>::try_from(buffers) {
        for at in 0..list.length() {
            let buffer = list.get_index(scope, at)?;
            match Local::<v8::ArrayBuffer>::try_from(buffer) {
                Ok(buffer) if buffer.is_detachable() => transfer.push(buffer),
                _ => {
                    convert::throw_dom_exception(
                        scope,
                        DATA_CLONE_ERROR,
                        "An ArrayBuffer could not be transferred.",
                    );
                    return None;
                }
            }
        }
    }
    let bytes = write(scope, value, &transfer, Use::Value)?;
    // A getter of the value may have detached a buffer while it was written.
    if transfer.iter().any(|buffer| buffer.was_detached()) {
        let message = "An ArrayBuffer is detached and could not be cloned.";
        convert::throw_dom_exception(scope, DATA_CLONE_ERROR, message);
        return None;
    }
    let mut moved = Vec::with_capacity(transfer.len());
    for buffer in transfer {
        let store = buffer.get_backing_store();
        buffer.detach(None)?;
        moved.push(v8::ArrayBuffer::with_backing_store(scope, &store));
    }
    read(scope, &bytes, &moved)
}

/// `rpc_write(value)`: it as bytes, in a `Uint8Array`.
fn rpc_write(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(bytes) = message(scope, args.get(0)) else { return };
    if let Some(array) = convert::uint8_array(scope, bytes) {
        rv.set(array.into());
    }
}

/// `rpc_read(bytes)`: the value that they hold.
fn rpc_read(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(bytes) = convert::bytes_of(args.get(0)) else {
        return convert::throw_type_error(scope, "rpc_read: bytes are expected");
    };
    if let Some(value) = read(scope, &bytes, &[]) {
        rv.set(value);
    }
}

/// `mark_interface(prototype, name)`: objects below this prototype are of a class of ours. Needs no
/// realm, as the prototypes are made for the snapshot.
fn mark_interface(scope: &mut PinScope, args: v8::FunctionCallbackArguments, _rv: v8::ReturnValue) {
    if let Ok(prototype) = Local::<v8::Object>::try_from(args.get(0)) {
        let mark = interface_mark(scope);
        prototype.set_private(scope, mark, args.get(1));
    }
}

fn interface_mark<'s>(scope: &mut PinScope<'s, '_>) -> Local<'s, v8::Private> {
    let name = convert::intern(scope, "celld:interface");
    v8::Private::for_api(scope, Some(name))
}

/// The name of the class of ours that `object` is an instance of.
fn interface_of<'s>(
    scope: &mut PinScope<'s, '_>,
    object: Local<'s, v8::Object>,
) -> Option<Local<'s, v8::Value>> {
    let mark = interface_mark(scope);
    let mut next = object.get_prototype(scope);
    while let Some(prototype) = next.and_then(|value| Local::<v8::Object>::try_from(value).ok()) {
        // A proxy in the chain has no private fields, and its prototype may be anything.
        if prototype.is_proxy() {
            return None;
        }
        if prototype.has_private(scope, mark)? {
            return prototype.get_private(scope, mark);
        }
        next = prototype.get_prototype(scope);
    }
    None
}

/// What a value is serialised for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Instances of the script's classes become plain objects.
    Value,
    /// They are refused, as workerd does.
    Rpc,
}

/// What workerd passes by reference, or with a stream.
const BY_REFERENCE: [&str; 10] = [
    "RpcTarget",
    "DurableObject",
    "Fetcher",
    "ReadableStream",
    "WritableStream",
    "Request",
    "Response",
    "Headers",
    "AbortSignal",
    "Blob",
];
const NOT_YET: &str = "is not implemented in celld yet";

struct Writer {
    /// The last prototype found to belong to no class of ours: nearly always `Object.prototype`, so
    /// that most objects cost one comparison. [`Use::Rpc`]: always that one.
    plain: RefCell<Option<Global<v8::Value>>>,
    what_for: Use,
}

impl ValueSerializerImpl for Writer {
    fn throw_data_clone_error<'s>(
        &self,
        scope: &mut PinScope<'s, '_>,
        message: Local<'s, v8::String>,
    ) {
        let mut message = convert::text_of(scope, message);
        // V8 says what it is: only of a function it says its text.
        let is_function = message.ends_with(" could not be cloned.")
            && !["Symbol(", "#<", "[object ", "An ArrayBuffer "]
                .iter()
                .any(|other| message.starts_with(other));
        if self.what_for == Use::Rpc && is_function {
            let what = "functions, names of a stub and calls that are not awaited";
            message.push_str(&format!(" Passing {what} over RPC {NOT_YET}."));
        }
        convert::throw_dom_exception(scope, DATA_CLONE_ERROR, &message);
    }

    fn has_custom_host_object(&self, _isolate: &v8::Isolate) -> bool {
        true
    }

    fn is_host_object<'s>(
        &self,
        scope: &mut PinScope<'s, '_>,
        object: Local<'s, v8::Object>,
    ) -> Option<bool> {
        let Some(prototype) = object.get_prototype(scope) else {
            return Some(false);
        };
        if self.plain.borrow().as_ref().is_some_and(|plain| *plain == prototype) {
            return Some(false);
        }
        if self.what_for == Use::Rpc {
            return Some(!object.is_native_error());
        }
        let found = interface_of(scope, object).is_some();
        if !found {
            *self.plain.borrow_mut() = Some(Global::new(scope, prototype));
        }
        Some(found)
    }

    fn write_host_object<'s>(
        &self,
        scope: &mut PinScope<'s, '_>,
        object: Local<'s, v8::Object>,
        serializer: &dyn ValueSerializerHelper,
    ) -> Option<bool> {
        let class = match interface_of(scope, object) {
            Some(class) => convert::to_string(scope, class)?,
            None => String::new(),
        };
        if class != "DOMException" {
            // Of an object that is made by a class of the script.
            let own = object.get_constructor_name();
            let name = match class.as_str() {
                "" | "RpcTarget" => convert::text_of(scope, own),
                ours => ours.to_owned(),
            };
            let why = if self.what_for == Use::Rpc && BY_REFERENCE.contains(&class.as_str()) {
                format!("Passing {class} over RPC {NOT_YET}.")
            } else {
                "This type does not support serialization.".to_owned()
            };
            let message = format!("Could not serialize object of type \"{name}\". {why}");
            convert::throw_dom_exception(scope, DATA_CLONE_ERROR, &message);
            return None;
        }
        serializer.write_uint32(TAG_DOM_EXCEPTION);
        let context = scope.get_current_context();
        for part in ["message", "name", "stack"] {
            let key = convert::intern(scope, part);
            let text = object.get(scope, key.into())?.to_string(scope)?;
            serializer.write_value(context, text.into())?;
        }
        Some(true)
    }

    fn get_shared_array_buffer_id<'s>(
        &self,
        scope: &mut PinScope<'s, '_>,
        _buffer: Local<'s, v8::SharedArrayBuffer>,
    ) -> Option<u32> {
        convert::throw_dom_exception(
            scope,
            DATA_CLONE_ERROR,
            "#<SharedArrayBuffer> could not be cloned.",
        );
        None
    }

    fn get_wasm_module_transfer_id(
        &self,
        scope: &mut PinScope<'_, '_>,
        _module: Local<v8::WasmModuleObject>,
    ) -> Option<u32> {
        convert::throw_dom_exception(scope, DATA_CLONE_ERROR, "#<Module> could not be cloned.");
        None
    }
}

struct Reader;

impl Reader {
    fn refuse(scope: &mut PinScope) {
        convert::throw_error(scope, "Unable to deserialize cloned data.");
    }
}

impl ValueDeserializerImpl for Reader {
    fn read_host_object<'s>(
        &self,
        scope: &mut PinScope<'s, '_>,
        deserializer: &dyn ValueDeserializerHelper,
    ) -> Option<Local<'s, v8::Object>> {
        let mut tag = 0;
        if !deserializer.read_uint32(&mut tag) || tag != TAG_DOM_EXCEPTION {
            Self::refuse(scope);
            return None;
        }
        let context = scope.get_current_context();
        let mut parts = [v8::String::empty(scope); 3];
        for part in &mut parts {
            let value = deserializer.read_value(context)?;
            let Ok(text) = Local::<v8::String>::try_from(value) else {
                Self::refuse(scope);
                return None;
            };
            *part = text;
        }
        let [message, name, stack] = parts;
        let made = exception::put_together(scope, message, name, stack);
        if made.is_none() {
            Self::refuse(scope);
        }
        made
    }

    fn get_shared_array_buffer_from_id<'s>(
        &self,
        scope: &mut PinScope<'s, '_>,
        _id: u32,
    ) -> Option<Local<'s, v8::SharedArrayBuffer>> {
        Self::refuse(scope);
        None
    }

    fn get_wasm_module_from_id<'s>(
        &self,
        scope: &mut PinScope<'s, '_>,
        _id: u32,
    ) -> Option<Local<'s, v8::WasmModuleObject>> {
        Self::refuse(scope);
        None
    }
}

#[cfg(test)]
mod tests;
