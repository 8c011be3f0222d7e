//! `crypto`: random values and digests.
//!
//! Invariant: randomness is the operating system's. A digest of a stream lives here until it is
//! finished or its JavaScript object has been collected.
//! Source: Web Cryptography Level 2; workerd for MD5, `timingSafeEqual` and `DigestStream`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::slice;

use md5::{Digest as _, Md5};
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use v8::{Local, PinScope};

use crate::convert;
use crate::op;
use crate::ops::Op;
use crate::state::RealmState;

/// Native functions of this file.
pub const OPS: &[Op] = &[
    op!("random_fill", random_fill),
    op!("random_uuid", random_uuid),
    op!("digest", digest_once),
    op!("digest_start", digest_start),
    op!("digest_update", digest_update),
    op!("digest_finish", digest_finish),
    op!("timing_safe_equal", timing_safe_equal),
];

/// Digests of streams under way.
#[derive(Default)]
struct Digests {
    last: Cell<u32>,
    open: RefCell<HashMap<u32, Open>>,
}

struct Open {
    hash: Hash,
    /// Removes the entry when the DigestStream has been collected.
    _owner: v8::Weak<v8::Object>,
}

/// A digest under way.
enum Hash {
    Sha(digest::Context),
    Md5(Md5),
}

impl Hash {
    /// By its name in capitals, as `js/crypto.js` sends it.
    fn new(name: &str) -> Option<Self> {
        let algorithm = match name {
            "SHA-1" => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            "SHA-256" => &digest::SHA256,
            "SHA-384" => &digest::SHA384,
            "SHA-512" => &digest::SHA512,
            "MD5" => return Some(Self::Md5(Md5::new())),
            _ => return None,
        };
        Some(Self::Sha(digest::Context::new(algorithm)))
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha(context) => context.update(bytes),
            Self::Md5(context) => context.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Sha(context) => context.finish().as_ref().to_vec(),
            Self::Md5(context) => context.finalize().to_vec(),
        }
    }
}

/// Runs `read` on the bytes of any buffer or view; other values count as no bytes.
fn read_bytes<R>(value: Local<v8::Value>, mut read: impl FnMut(&[u8]) -> R) -> R {
    match convert::with_bytes(value, &mut read) {
        Some(result) => result,
        // Shared memory is copied first, as others may write to it.
        None => read(&convert::bytes_of(value).unwrap_or_default()),
    }
}

fn fill(scope: &mut PinScope, bytes: &mut [u8]) -> Option<()> {
    if SystemRandom::new().fill(bytes).is_ok() {
        return Some(());
    }
    convert::throw_error(scope, "The operating system gives no random bytes.");
    None
}

/// `random_fill(view)`: fills the view.
fn random_fill(scope: &mut PinScope, args: v8::FunctionCallbackArguments, _rv: v8::ReturnValue) {
    let Ok(view) = Local::<v8::ArrayBufferView>::try_from(args.get(0)) else {
        convert::throw_type_error(scope, "random_fill: a view is expected");
        return;
    };
    let data = view.data().cast::<u8>();
    if data.is_null() || view.byte_length() == 0 {
        return;
    }
    // SAFETY: V8 keeps `byte_length` bytes there while the view is alive; no JavaScript runs and
    // nobody else refers to them until `bytes` is gone.
    let bytes = unsafe { slice::from_raw_parts_mut(data, view.byte_length()) };
    fill(scope, bytes);
}

/// `random_uuid()`: a UUID of version 4.
fn random_uuid(
    scope: &mut PinScope,
    _args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let mut bytes = [0_u8; 16];
    if fill(scope, &mut bytes).is_none() {
        return;
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    rv.set(convert::string(scope, &text).into());
}

fn hash_of(scope: &mut PinScope, name: Local<v8::Value>) -> Option<Hash> {
    let name = convert::to_string(scope, name)?;
    let hash = Hash::new(&name);
    if hash.is_none() {
        convert::throw_type_error(scope, "digest: the algorithm is unknown");
    }
    hash
}

/// `digest(name, bytes)`: an `ArrayBuffer`.
fn digest_once(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(mut hash) = hash_of(scope, args.get(0)) else { return };
    read_bytes(args.get(1), |bytes| hash.update(bytes));
    rv.set(convert::array_buffer(scope, hash.finish()).into());
}

/// `digest_start(name, owner)`: the number of a new digest, which lives as long as `owner`.
fn digest_start(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let Some(hash) = hash_of(scope, args.get(0)) else { return };
    let Ok(owner) = Local::<v8::Object>::try_from(args.get(1)) else {
        convert::throw_type_error(scope, "digest_start: an object is expected");
        return;
    };
    let digests = RealmState::get(scope).of::<Digests>();
    let mut id = digests.last.get().wrapping_add(1);
    while digests.open.borrow().contains_key(&id) {
        id = id.wrapping_add(1);
    }
    digests.last.set(id);
    let weak = v8::Weak::with_finalizer(
        scope,
        owner,
        Box::new(move |isolate| {
            RealmState::get(isolate).of::<Digests>().open.borrow_mut().remove(&id);
        }),
    );
    digests.open.borrow_mut().insert(id, Open { hash, _owner: weak });
    rv.set(v8::Integer::new_from_unsigned(scope, id).into());
}

/// `digest_update(id, bytes)`
fn digest_update(scope: &mut PinScope, args: v8::FunctionCallbackArguments, _rv: v8::ReturnValue) {
    let Some(id) = args.get(0).uint32_value(scope) else { return };
    let digests = RealmState::get(scope).of::<Digests>();
    if let Some(open) = digests.open.borrow_mut().get_mut(&id) {
        read_bytes(args.get(1), |bytes| open.hash.update(bytes));
    }
}

/// `digest_finish(id)`: an `ArrayBuffer`; the digest is gone then.
fn digest_finish(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let Some(id) = args.get(0).uint32_value(scope) else { return };
    let digests = RealmState::get(scope).of::<Digests>();
    let open = digests.open.borrow_mut().remove(&id);
    match open {
        Some(open) => rv.set(convert::array_buffer(scope, open.hash.finish()).into()),
        None => convert::throw_type_error(scope, "digest_finish: the digest is over"),
    }
}

/// `timing_safe_equal(a, b)`: whether the bytes are equal, in a time that depends on their length
/// only.
fn timing_safe_equal(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let b = convert::bytes_of(args.get(1)).unwrap_or_default();
    let equal = read_bytes(args.get(0), |a| {
        if a.len() != b.len() {
            return None;
        }
        let difference = a
            .iter()
            .zip(&b)
            .fold(0_u8, |difference, (a, b)| std::hint::black_box(difference | (a ^ b)));
        Some(difference == 0)
    });
    match equal {
        Some(equal) => rv.set_bool(equal),
        None => convert::throw_type_error(scope, "Input buffers must have the same byte length."),
    }
}
