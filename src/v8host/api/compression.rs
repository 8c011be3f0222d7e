//! `CompressionStream`, `DecompressionStream`: their coders, as JavaScript feeds and empties them.
//!
//! Invariant: a coder lives here until its end, an error, or the collection of its JavaScript
//! object, whichever is first; there are never more than [`CODERS_MAX`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use v8::{FunctionCallbackArguments, Local, PinScope, ReturnValue};

use crate::compression::{CompressionError, Decoder, Encoder, Format, Members, STEP_BYTES};
use crate::convert;
use crate::op;
use crate::ops::Op;
use crate::state::RealmState;

/// Native functions of this file.
pub const OPS: &[Op] = &[
    op!("compression_new", compression_new),
    op!("compression_write", compression_write),
    op!("compression_read", compression_read),
    op!("compression_end", compression_end),
];

/// Open coders of a realm: a quarter of a megabyte each, as much as its buffers may take.
const CODERS_MAX: usize = 512;

#[derive(Default)]
struct Coders {
    next: Cell<u32>,
    open: RefCell<HashMap<u32, Coder>>,
}

struct Coder {
    work: Work,
    /// Removes the entry when the stream has been collected.
    owner: v8::Weak<v8::Object>,
}

enum Work {
    Pack {
        encoder: Encoder,
        out: Vec<u8>,
    },
    /// `at`: how much of `input` was taken. `has_more`: the last step made all that it may.
    Unpack {
        decoder: Decoder,
        input: Vec<u8>,
        at: usize,
        has_more: bool,
    },
    /// What the end left.
    Ended(Vec<u8>),
}

/// `compression_new(owner, format, unpacks) -> coder`; `format` is 0 gzip, 1 deflate, 2 deflate-raw.
fn compression_new(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Ok(owner) = Local::<v8::Object>::try_from(args.get(0)) else {
        return convert::throw_type_error(scope, "compression_new: an object is expected");
    };
    let format = match args.get(1).uint32_value(scope) {
        Some(0) => Format::Gzip,
        Some(1) => Format::Deflate,
        Some(_) => Format::DeflateRaw,
        None => return,
    };
    let coders = RealmState::get(scope).of::<Coders>();
    if coders.open.borrow().len() >= CODERS_MAX {
        // Some may belong to streams that nobody has any more; their finalizers run later.
        scope.low_memory_notification();
        coders.open.borrow_mut().retain(|_, coder| !coder.owner.is_empty());
    }
    if coders.open.borrow().len() >= CODERS_MAX {
        let text = format!("more than {CODERS_MAX} compression streams are open");
        return convert::throw_range_error(scope, &text);
    }
    let work = if args.get(2).is_true() {
        let decoder = Decoder::new(format, Members::One);
        Work::Unpack { decoder, input: Vec::new(), at: 0, has_more: false }
    } else {
        Work::Pack { encoder: Encoder::new(format), out: Vec::new() }
    };
    let id = coders.next.get();
    coders.next.set(id.checked_add(1).expect("a realm opens fewer than 2^32 coders"));
    let forget = move |isolate: &mut v8::Isolate| {
        RealmState::get(isolate).of::<Coders>().open.borrow_mut().remove(&id);
    };
    let owner = v8::Weak::with_finalizer(scope, owner, Box::new(forget));
    coders.open.borrow_mut().insert(id, Coder { work, owner });
    rv.set_uint32(id);
}

/// `compression_write(coder, bytes)`: the bytes are used or copied. All that came before has been
/// read.
fn compression_write(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    with_coder(scope, &args, |scope, work| {
        let Some(bytes) = convert::bytes_of(args.get(1)) else {
            convert::throw_type_error(scope, "compression_write: bytes are expected");
            return Ok(());
        };
        match work {
            Work::Pack { encoder, out } => {
                bytes.chunks(STEP_BYTES).for_each(|piece| encoder.push(piece, out));
            }
            Work::Unpack { input, at, .. } => (*input, *at) = (bytes, 0),
            Work::Ended(_) => {}
        }
        Ok(())
    });
}

/// `compression_read(coder) -> Uint8Array | null`: what there is now, for a decoder up to 64 KiB.
fn compression_read(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let mut made = Vec::new();
    with_coder(scope, &args, |_, work| {
        match work {
            Work::Pack { out, .. } | Work::Ended(out) => made = std::mem::take(out),
            Work::Unpack { decoder, input, at, has_more } => {
                while made.is_empty() && (*has_more || *at < input.len()) {
                    *at += decoder.step(&input[*at..], &mut made)?;
                    *has_more = made.len() == STEP_BYTES;
                }
            }
        }
        Ok(())
    });
    if made.is_empty() {
        return rv.set_null();
    }
    made.shrink_to_fit();
    if let Some(array) = convert::uint8_array(scope, made.into()) {
        rv.set(array.into());
    }
}

/// `compression_end(coder)`: nothing more is written.
fn compression_end(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    with_coder(scope, &args, |_, work| {
        let left = match std::mem::replace(work, Work::Ended(Vec::new())) {
            Work::Pack { encoder, mut out } => {
                encoder.finish(&mut out);
                out
            }
            Work::Unpack { decoder, .. } => {
                decoder.end()?;
                Vec::new()
            }
            Work::Ended(left) => left,
        };
        *work = Work::Ended(left);
        Ok(())
    });
}

/// Lends the coder that the first argument names to `act`. One that failed is gone, and one that is
/// gone has nothing.
fn with_coder(
    scope: &mut PinScope,
    args: &FunctionCallbackArguments,
    act: impl FnOnce(&mut PinScope, &mut Work) -> Result<(), CompressionError>,
) {
    let Some(id) = args.get(0).uint32_value(scope) else { return };
    let coders = RealmState::get(scope).of::<Coders>();
    let Some(mut coder) = coders.open.borrow_mut().remove(&id) else { return };
    match act(scope, &mut coder.work) {
        Ok(()) if matches!(&coder.work, Work::Ended(left) if left.is_empty()) => {}
        Ok(()) => {
            coders.open.borrow_mut().insert(id, coder);
        }
        Err(error) => convert::throw_type_error(scope, &error.to_string()),
    }
}
