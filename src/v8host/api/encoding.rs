//! `TextEncoder`, `TextDecoder`, `atob`, `btoa`: text to bytes and back.
//!
//! Invariant: a decoder that waits for more bytes (`stream: true`) lives here until its last piece,
//! an error, or the collection of its JavaScript object, whichever is first; all other decoding
//! keeps nothing.
//! Source: Encoding Standard (the crate `encoding_rs`); Infra Standard, "forgiving-base64".

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::slice;

use encoding_rs::{CoderResult, Decoder, DecoderResult, Encoding, REPLACEMENT};
use v8::{Local, PinScope};

use crate::convert;
use crate::op;
use crate::ops::Op;
use crate::state::RealmState;

/// Native functions of this file.
pub const OPS: &[Op] = &[
    op!("encode_utf8", encode_utf8),
    op!("encode_into", encode_into),
    op!("encoding_name", encoding_name),
    op!("decode", decode),
    op!("decode_stream", decode_stream),
    op!("base64_decode", base64_decode),
    op!("base64_encode", base64_encode),
];

/// Decoders in the middle of a stream.
#[derive(Default)]
struct Decoders {
    next: Cell<u32>,
    waiting: RefCell<HashMap<u32, Waiting>>,
}

struct Waiting {
    decoder: Decoder,
    /// Removes the entry when the TextDecoder has been collected.
    owner: v8::Weak<v8::Object>,
}

/// `encode_utf8(text)`: a `Uint8Array`.
fn encode_utf8(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(text) = args.get(0).to_string(scope) else { return };
    let bytes = convert::utf8_of(scope, text);
    if let Some(array) = convert::uint8_array(scope, bytes.into()) {
        rv.set(array.into());
    }
}

/// `encode_into(text, array)`: `[code units read, bytes written]`
fn encode_into(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(text) = args.get(0).to_string(scope) else { return };
    let Ok(array) = Local::<v8::Uint8Array>::try_from(args.get(1)) else {
        convert::throw_type_error(scope, "encode_into: a Uint8Array is expected");
        return;
    };
    let (mut read, mut written) = (0, 0);
    let data = array.data().cast::<u8>();
    if !data.is_null() && array.byte_length() > 0 {
        // SAFETY: V8 keeps `byte_length` bytes there while the view is alive; no JavaScript runs
        // and nobody else refers to them until `space` is gone.
        let space = unsafe { slice::from_raw_parts_mut(data, array.byte_length()) };
        written =
            text.write_utf8_v2(scope, space, v8::WriteFlags::kReplaceInvalidUtf8, Some(&mut read));
    }
    let pair =
        [v8::Number::new(scope, read as f64).into(), v8::Number::new(scope, written as f64).into()];
    rv.set(v8::Array::new_with_elements(scope, &pair).into());
}

fn encoding_of(scope: &mut PinScope, label: Local<v8::Value>) -> Option<&'static Encoding> {
    let label = convert::to_string(scope, label)?;
    // `replacement` decodes nothing: the standard has TextDecoder refuse it.
    Encoding::for_label(label.as_bytes()).filter(|encoding| *encoding != REPLACEMENT)
}

/// `encoding_name(label)`: the name in lower case, or `null` for an unknown label.
fn encoding_name(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    match encoding_of(scope, args.get(0)) {
        Some(encoding) => {
            rv.set(convert::string(scope, &encoding.name().to_ascii_lowercase()).into())
        }
        None => rv.set_null(),
    }
}

fn new_decoder(encoding: &'static Encoding, ignore_bom: bool) -> Decoder {
    // "ignore" in the words of the standard: a byte order mark is left in the text.
    if ignore_bom {
        encoding.new_decoder_without_bom_handling()
    } else {
        encoding.new_decoder_with_bom_removal()
    }
}

/// `decode(name, bytes, fatal, ignoreBOM)`: the text of all bytes, or `null` when they are invalid
/// and `fatal`.
fn decode(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(encoding) = encoding_of(scope, args.get(0)) else {
        convert::throw_type_error(scope, "decode: the encoding is unknown");
        return;
    };
    let (fatal, ignore_bom) = (args.get(2).is_true(), args.get(3).is_true());
    let mut decoder = new_decoder(encoding, ignore_bom);
    match decode_all(&mut decoder, args.get(1), fatal, true) {
        Some(text) => set_text(scope, &text, &mut rv),
        None => rv.set_null(),
    }
}

/// `decode_stream(id, name, bytes, fatal, ignoreBOM, last, owner)`: `[id, text]`, or `null` when the
/// bytes are invalid and `fatal`. `id` is 0 for no decoder; the answer's id replaces it.
fn decode_stream(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let Some(encoding) = encoding_of(scope, args.get(1)) else {
        convert::throw_type_error(scope, "decode_stream: the encoding is unknown");
        return;
    };
    let Some(mut id) = args.get(0).uint32_value(scope) else { return };
    let (fatal, ignore_bom, last) =
        (args.get(3).is_true(), args.get(4).is_true(), args.get(5).is_true());
    let decoders = RealmState::get(scope).of::<Decoders>();
    let waiting = decoders.waiting.borrow_mut().remove(&id);
    let (mut decoder, owner) = match waiting {
        Some(waiting) => (waiting.decoder, Some(waiting.owner)),
        None => (new_decoder(encoding, ignore_bom), None),
    };
    let Some(text) = decode_all(&mut decoder, args.get(2), fatal, last) else {
        rv.set_null();
        return;
    };
    if last {
        id = 0;
    } else {
        let owner = match owner {
            Some(owner) => owner,
            None => {
                let Ok(object) = Local::<v8::Object>::try_from(args.get(6)) else {
                    convert::throw_type_error(
                        scope,
                        "decode_stream: the decoder object is expected",
                    );
                    return;
                };
                id = decoders.next_id();
                v8::Weak::with_finalizer(
                    scope,
                    object,
                    Box::new(move |isolate| {
                        RealmState::get(isolate).of::<Decoders>().waiting.borrow_mut().remove(&id);
                    }),
                )
            }
        };
        decoders.waiting.borrow_mut().insert(id, Waiting { decoder, owner });
    }
    let Some(text) = text_value(scope, &text) else { return };
    let pair = [v8::Integer::new_from_unsigned(scope, id).into(), text];
    rv.set(v8::Array::new_with_elements(scope, &pair).into());
}

impl Decoders {
    /// An id that is not in use; 0 is none.
    fn next_id(&self) -> u32 {
        loop {
            let id = self.next.get().wrapping_add(1);
            self.next.set(id);
            if id != 0 && !self.waiting.borrow().contains_key(&id) {
                return id;
            }
        }
    }
}

/// `None`: invalid bytes and `fatal`. A value that is no buffer counts as no bytes.
fn decode_all(
    decoder: &mut Decoder,
    bytes: Local<v8::Value>,
    fatal: bool,
    last: bool,
) -> Option<String> {
    match convert::with_bytes(bytes, |bytes| decode_bytes(decoder, bytes, fatal, last)) {
        Some(text) => text,
        // Shared memory is copied first, as others may write to it.
        None => decode_bytes(decoder, &convert::bytes_of(bytes).unwrap_or_default(), fatal, last),
    }
}

fn decode_bytes(
    decoder: &mut Decoder,
    mut bytes: &[u8],
    fatal: bool,
    last: bool,
) -> Option<String> {
    let mut text = String::new();
    loop {
        // No length overflows in practice; if it did, the decoder would ask for room again.
        let need = decoder.max_utf8_buffer_length(bytes.len()).unwrap_or(bytes.len());
        text.reserve(need.min(bytes.len().saturating_add(64)));
        if fatal {
            let (result, read) =
                decoder.decode_to_string_without_replacement(bytes, &mut text, last);
            match result {
                DecoderResult::InputEmpty => return Some(text),
                DecoderResult::OutputFull => text.reserve(bytes.len().max(64)),
                DecoderResult::Malformed(..) => return None,
            }
            bytes = &bytes[read..];
        } else {
            let (result, read, _) = decoder.decode_to_string(bytes, &mut text, last);
            match result {
                CoderResult::InputEmpty => return Some(text),
                CoderResult::OutputFull => text.reserve(bytes.len().max(64)),
            }
            bytes = &bytes[read..];
        }
    }
}

fn text_value<'s>(scope: &mut PinScope<'s, '_>, text: &str) -> Option<Local<'s, v8::Value>> {
    if text.len() > v8::String::MAX_LENGTH {
        convert::throw_range_error(
            scope,
            "Cannot create a string longer than 0x1fffffe8 characters",
        );
        return None;
    }
    Some(convert::string(scope, text).into())
}

fn set_text(scope: &mut PinScope, text: &str, rv: &mut v8::ReturnValue) {
    if let Some(text) = text_value(scope, text) {
        rv.set(text);
    }
}

/// `base64_decode(text)`: a string of bytes (Latin-1), or `null` when the text is no base64.
fn base64_decode(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let Some(text) = args.get(0).to_string(scope) else { return };
    let bytes = convert::latin1_of(scope, text)
        .and_then(|text| base64_simd::forgiving_decode_to_vec(&text).ok());
    match bytes {
        Some(bytes) => rv.set(convert::latin1(scope, &bytes).into()),
        None => rv.set_null(),
    }
}

/// `base64_encode(text)`: base64 of the bytes that the text stands for, or `null` when a character
/// is none.
fn base64_encode(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let Some(text) = args.get(0).to_string(scope) else { return };
    match convert::latin1_of(scope, text) {
        Some(bytes) => {
            let encoded = base64_simd::STANDARD.encode_to_string(&bytes);
            rv.set(convert::string(scope, &encoded).into());
        }
        None => rv.set_null(),
    }
}
