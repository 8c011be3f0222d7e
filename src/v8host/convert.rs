//! Values between Rust and V8: strings, bytes, headers; and throwing.
//!
//! Invariant: nothing here panics on any value of JavaScript. A function that returns `None` has
//! left an exception pending (or execution is being terminated): return from the native function.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use v8::{Local, PinScope};

use crate::host::Body;
use crate::state::RealmState;

/// Up to here bytes are copied into a new buffer; above, the memory itself is handed over. A
/// hand-over costs an allocation and a finalizer in V8, about as much as copying this many bytes.
const COPY_MAX: usize = 16 * 1024;

/// A string of V8.
pub fn string<'s>(scope: &PinScope<'s, '_>, text: &str) -> Local<'s, v8::String> {
    let made = if text.is_ascii() {
        v8::String::new_from_one_byte(scope, text.as_bytes(), v8::NewStringType::Normal)
    } else {
        v8::String::new_from_utf8(scope, text.as_bytes(), v8::NewStringType::Normal)
    };
    // Only a text beyond V8's longest string (half a GiB) has no string.
    made.unwrap_or_else(|| v8::String::empty(scope))
}

/// A string of V8 from bytes that stand for Latin-1, as header values do.
pub fn latin1<'s>(scope: &PinScope<'s, '_>, bytes: &[u8]) -> Local<'s, v8::String> {
    v8::String::new_from_one_byte(scope, bytes, v8::NewStringType::Normal)
        .unwrap_or_else(|| v8::String::empty(scope))
}

/// A string that V8 keeps once: for names.
pub fn intern<'s>(scope: &PinScope<'s, '_>, name: &str) -> Local<'s, v8::String> {
    v8::String::new_from_utf8(scope, name.as_bytes(), v8::NewStringType::Internalized)
        .unwrap_or_else(|| v8::String::empty(scope))
}

/// The text of any value, as `String(value)`; lone surrogates become U+FFFD.
pub fn to_string(scope: &mut PinScope, value: Local<v8::Value>) -> Option<String> {
    let text = match Local::<v8::String>::try_from(value) {
        Ok(text) => text,
        Err(_) => value.to_string(scope)?,
    };
    Some(text_of(scope, text))
}

/// The strings of an array.
pub fn strings_of(scope: &mut PinScope, value: Local<v8::Value>) -> Option<Vec<String>> {
    let Ok(list) = Local::<v8::Array>::try_from(value) else {
        throw_type_error(scope, "an array of strings is expected");
        return None;
    };
    let mut strings = Vec::new();
    for at in 0..list.length() {
        let item = list.get_index(scope, at)?;
        strings.push(to_string(scope, item)?);
    }
    Some(strings)
}

/// The text of a string.
pub fn text_of(scope: &v8::Isolate, text: Local<v8::String>) -> String {
    let bytes = utf8_of(scope, text);
    // Valid by construction: V8 writes UTF-8 with lone surrogates replaced.
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The UTF-8 of a string.
pub fn utf8_of(scope: &v8::Isolate, text: Local<v8::String>) -> Vec<u8> {
    let length = text.length();
    let mut bytes = Vec::<u8>::with_capacity(length);
    if text.is_onebyte() {
        text.write_one_byte_uninit_v2(
            scope,
            0,
            bytes.spare_capacity_mut_exact(length),
            v8::WriteFlags::default(),
        );
        // SAFETY: the line above has written `length` bytes.
        unsafe { bytes.set_len(length) };
        if bytes.is_ascii() {
            return bytes;
        }
        return latin1_to_utf8(&bytes);
    }
    let length = text.utf8_length(scope);
    bytes.reserve(length);
    let written = text.write_utf8_uninit_v2(
        scope,
        bytes.spare_capacity_mut_exact(length),
        v8::WriteFlags::kReplaceInvalidUtf8,
        None,
    );
    // SAFETY: V8 has written so many bytes into the space reserved above.
    unsafe { bytes.set_len(written) };
    bytes
}

/// The bytes of a string that stands for Latin-1; `None` without an exception if it has others.
pub fn latin1_of(scope: &v8::Isolate, text: Local<v8::String>) -> Option<Vec<u8>> {
    if !text.contains_only_onebyte() {
        return None;
    }
    let length = text.length();
    let mut bytes = Vec::<u8>::with_capacity(length);
    text.write_one_byte_uninit_v2(
        scope,
        0,
        bytes.spare_capacity_mut_exact(length),
        v8::WriteFlags::default(),
    );
    // SAFETY: the line above has written `length` bytes.
    unsafe { bytes.set_len(length) };
    Some(bytes)
}

fn latin1_to_utf8(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|&byte| char::from(byte)).collect::<String>().into_bytes()
}

/// Exactly so many bytes of the free space of a vector.
trait SpareExact {
    fn spare_capacity_mut_exact(&mut self, length: usize) -> &mut [MaybeUninit<u8>];
}

impl SpareExact for Vec<u8> {
    fn spare_capacity_mut_exact(&mut self, length: usize) -> &mut [MaybeUninit<u8>] {
        &mut self.spare_capacity_mut()[..length]
    }
}

/// A copy of the bytes of an `ArrayBuffer` or a view; `None` without an exception for other values.
pub fn bytes_of(value: Local<v8::Value>) -> Option<Vec<u8>> {
    if let Ok(view) = Local::<v8::ArrayBufferView>::try_from(value) {
        let length = view.byte_length();
        let mut bytes = Vec::<u8>::with_capacity(length);
        let written = view.copy_contents_uninit(bytes.spare_capacity_mut_exact(length));
        // SAFETY: V8 has written so many bytes into the space reserved above.
        unsafe { bytes.set_len(written) };
        return Some(bytes);
    }
    if let Ok(buffer) = Local::<v8::ArrayBuffer>::try_from(value) {
        return Some(slice_of(buffer.data(), buffer.byte_length()).to_vec());
    }
    let shared = Local::<v8::SharedArrayBuffer>::try_from(value).ok()?;
    let store = shared.get_backing_store();
    Some(slice_of(store.data(), store.byte_length()).to_vec())
}

/// Runs `read` on the bytes of an `ArrayBuffer` or a view, without a copy. `read` gets no scope, so
/// no JavaScript can change them meanwhile.
pub fn with_bytes<R>(value: Local<v8::Value>, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
    if let Ok(view) = Local::<v8::ArrayBufferView>::try_from(value) {
        let mut small = [0_u8; 64];
        return Some(read(view.get_contents(&mut small)));
    }
    let buffer = Local::<v8::ArrayBuffer>::try_from(value).ok()?;
    Some(read(slice_of(buffer.data(), buffer.byte_length())))
}

fn slice_of<'a>(data: Option<std::ptr::NonNull<std::ffi::c_void>>, length: usize) -> &'a [u8] {
    match data {
        // SAFETY: V8 keeps `length` bytes there while the buffer lives; the callers above use the
        // slice at once and run no JavaScript meanwhile.
        Some(data) if length > 0 => unsafe {
            std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), length)
        },
        _ => &[],
    }
}

/// A new `ArrayBuffer` with these bytes.
pub fn array_buffer<'s>(
    scope: &mut PinScope<'s, '_>,
    bytes: Vec<u8>,
) -> Local<'s, v8::ArrayBuffer> {
    // `from_vec` keeps the memory of the vector; its capacity is accounted by V8 as external.
    let store = v8::ArrayBuffer::new_backing_store_from_vec(bytes).make_shared();
    v8::ArrayBuffer::with_backing_store(scope, &store)
}

/// A new `Uint8Array` with these bytes; `None`: the memory limit is reached, a `RangeError` is
/// pending.
pub fn uint8_array<'s>(
    scope: &mut PinScope<'s, '_>,
    bytes: Bytes,
) -> Option<Local<'s, v8::Uint8Array>> {
    let length = bytes.len();
    let buffer = if length <= COPY_MAX {
        let buffer = v8::ArrayBuffer::new(scope, length);
        if let Some(data) = buffer.data()
            && length > 0
        {
            // SAFETY: the new buffer has `length` bytes and nobody else sees it yet.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), data.as_ptr().cast::<u8>(), length)
            };
        }
        buffer
    } else {
        // Takes the memory itself when nobody shares it, copies it otherwise.
        array_buffer(scope, Vec::from(bytes))
    };
    v8::Uint8Array::new(scope, buffer, 0, length)
}

/// The text of a header's value: UTF-8 as on Cloudflare, or Latin-1 when it is none.
fn header_value<'s>(scope: &PinScope<'s, '_>, bytes: &[u8]) -> Local<'s, v8::String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => string(scope, text),
        Err(_) => latin1(scope, bytes),
    }
}

/// Headers as JavaScript has them: `[name, value, name, value, …]`, names in lower case.
pub fn flat_headers<'s>(scope: &mut PinScope<'s, '_>, headers: &HeaderMap) -> Local<'s, v8::Array> {
    let mut flat: Vec<Local<v8::Value>> = Vec::with_capacity(headers.len() * 2);
    for (name, value) in headers {
        let name = v8::String::new_from_one_byte(
            scope,
            name.as_str().as_bytes(),
            v8::NewStringType::Internalized,
        );
        flat.push(name.unwrap_or_else(|| v8::String::empty(scope)).into());
        flat.push(header_value(scope, value.as_bytes()).into());
    }
    v8::Array::new_with_elements(scope, &flat)
}

/// Headers as `name LF value LF name LF value` in one string (neither has an LF): most are only
/// passed on. A flat array when a value is not ASCII.
pub fn packed_headers<'s>(
    scope: &mut PinScope<'s, '_>,
    headers: &HeaderMap,
) -> Local<'s, v8::Value> {
    let mut packed = Vec::with_capacity(512);
    for (name, value) in headers {
        if !packed.is_empty() {
            packed.push(b'\n');
        }
        packed.extend_from_slice(name.as_str().as_bytes());
        packed.push(b'\n');
        packed.extend_from_slice(value.as_bytes());
    }
    if packed.is_ascii() {
        latin1(scope, &packed).into()
    } else {
        flat_headers(scope, headers).into()
    }
}

/// What `js/response.js` gives a response that is a text.
const TEXT_HEADERS: &str = "content-type\ntext/plain;charset=UTF-8";

/// Headers from what [`packed_headers`] made.
fn unpack_headers(scope: &mut PinScope, packed: Local<v8::String>) -> Option<HeaderMap> {
    let packed = Bytes::from(utf8_of(scope, packed));
    if packed == TEXT_HEADERS {
        let value = HeaderValue::from_static("text/plain;charset=UTF-8");
        return Some(HeaderMap::from_iter([(http::header::CONTENT_TYPE, value)]));
    }
    let mut headers = HeaderMap::new();
    let mut from = 0;
    while from < packed.len() {
        let end = |from: usize| {
            let rest = &packed[from..];
            from + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
        };
        let name_end = end(from);
        let value_start = (name_end + 1).min(packed.len());
        let value_end = end(value_start);
        let name = HeaderName::from_bytes(&packed[from..name_end]);
        let value = HeaderValue::from_maybe_shared(packed.slice(value_start..value_end));
        let (Ok(name), Ok(value)) = (name, value) else {
            throw_type_error(scope, "headers: a packed list is expected");
            return None;
        };
        headers.append(name, value);
        from = value_end + 1;
    }
    Some(headers)
}

/// Of a response: a `Location` that names no place is not passed on, as in workerd.
#[must_use]
pub fn without_empty_location(mut headers: HeaderMap) -> HeaderMap {
    if headers.get(http::header::LOCATION).is_some_and(HeaderValue::is_empty) {
        headers.remove(http::header::LOCATION);
    }
    headers
}

/// Headers from `[name, value, name, value, …]`, or packed.
pub fn headers_of(scope: &mut PinScope, flat: Local<v8::Value>) -> Option<HeaderMap> {
    if let Ok(packed) = Local::<v8::String>::try_from(flat) {
        return unpack_headers(scope, packed);
    }
    let Ok(flat) = Local::<v8::Array>::try_from(flat) else {
        return if flat.is_null_or_undefined() {
            Some(HeaderMap::new())
        } else {
            throw_type_error(scope, "headers: a flat array is expected");
            None
        };
    };
    let length = flat.length();
    let mut headers = HeaderMap::with_capacity(length as usize / 2);
    let mut at = 0;
    while at + 1 < length {
        let name = flat.get_index(scope, at)?;
        let value = flat.get_index(scope, at + 1)?;
        at += 2;
        let name = name.to_string(scope)?;
        let value = value.to_string(scope)?;
        let parsed = latin1_of(scope, name).and_then(|name| HeaderName::from_bytes(&name).ok());
        let Some(parsed) = parsed else {
            let text = text_of(scope, name);
            throw_type_error(scope, &format!("Invalid header name: {text:?}"));
            return None;
        };
        // UTF-8, as on Cloudflare; `flat_headers` reads it back.
        let Ok(value_parsed) = HeaderValue::from_maybe_shared(Bytes::from(utf8_of(scope, value)))
        else {
            throw_type_error(scope, &format!("Invalid header value of {parsed}"));
            return None;
        };
        headers.append(parsed, value_parsed);
    }
    Some(headers)
}

/// Kinds of body at the border: see `js/dispatch.js`.
pub mod body_kind {
    /// No body.
    pub const EMPTY: u32 = 0;
    /// A `Uint8Array`.
    pub const BYTES: u32 = 1;
    /// The number of a stream.
    pub const STREAM: u32 = 2;
    /// A string, which goes out as UTF-8.
    pub const STRING: u32 = 3;
}

/// A body from `(kind, value, length)`.
pub fn body_of(
    scope: &mut PinScope,
    kind: Local<v8::Value>,
    value: Local<v8::Value>,
    length: Local<v8::Value>,
) -> Option<Body> {
    match kind.uint32_value(scope)? {
        body_kind::EMPTY => Some(Body::Empty),
        body_kind::BYTES => match bytes_of(value) {
            Some(bytes) => Some(Body::Bytes(Bytes::from(bytes))),
            None => {
                throw_type_error(scope, "body: bytes are expected");
                None
            }
        },
        body_kind::STREAM => {
            let id = value.number_value(scope)?;
            let length = length.number_value(scope)?;
            // A length that is not known is -1 or undefined (NaN).
            let length = (length >= 0.0).then_some(length as u64);
            Some(Body::Stream { id: crate::host::StreamId(id as u64), length })
        }
        body_kind::STRING => {
            let text = value.to_string(scope)?;
            Some(Body::Bytes(Bytes::from(utf8_of(scope, text))))
        }
        kind => {
            throw_type_error(scope, &format!("body: kind {kind} does not exist"));
            None
        }
    }
}

/// Throws an `Error`.
pub fn throw_error(scope: &mut PinScope, message: &str) {
    let message = string(scope, message);
    let error = v8::Exception::error(scope, message);
    scope.throw_exception(error);
}

/// Throws a `TypeError`.
pub fn throw_type_error(scope: &mut PinScope, message: &str) {
    let message = string(scope, message);
    let error = v8::Exception::type_error(scope, message);
    scope.throw_exception(error);
}

/// Throws a `RangeError`.
pub fn throw_range_error(scope: &mut PinScope, message: &str) {
    let message = string(scope, message);
    let error = v8::Exception::range_error(scope, message);
    scope.throw_exception(error);
}

/// Throws a `DOMException` of this name (`DataCloneError`, …).
pub fn throw_dom_exception(scope: &mut PinScope, name: &str, message: &str) {
    let state = RealmState::get(scope);
    let Some(constructor) = &state.names.dom_exception else {
        throw_error(scope, &format!("{name}: {message}"));
        return;
    };
    let constructor = Local::new(scope, constructor);
    let message = string(scope, message);
    let name = string(scope, name);
    // Without an instance the constructor has thrown (out of stack): that exception is pending.
    if let Some(exception) = constructor.new_instance(scope, &[message.into(), name.into()]) {
        scope.throw_exception(exception.into());
    }
}
