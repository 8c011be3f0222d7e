//! Compare-and-swap in the bucket: what guards a write, and how a write can end.
//!
//! Invariant: an outcome that is not known is its own case. Who holds one reads the object back;
//! every record carries a nonce that no other write of it has, so the read tells which stands.

use alloc::string::String;
use core::fmt;

/// The version of an object, as the store spells it. Opaque: only equality means anything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Etag(String);

/// What the object must be for a conditional write to apply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// There is no such object.
    Absent,
    /// The object is still this version.
    Match(Etag),
}

/// How a conditional write ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CasOutcome {
    /// It applied; the object is now this version.
    Applied(Etag),
    /// It did not apply and never will: the guard did not hold.
    Refused,
    /// No answer that means either: it may have applied, or may yet. Read the object back.
    Unknown,
}

impl Etag {
    /// From the store's spelling, quotes and all.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
    /// As the store spelled it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tells one write of a record from every other write of it, so that a read-back knows which
/// stands, and no two writes have equal bytes (and with them equal ETags).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(String);

impl Nonce {
    /// The `n`th write made under one random `seed`.
    pub fn numbered(seed: u128, n: u32) -> Self {
        Self(alloc::format!("{seed:032x}.{n}"))
    }
    /// Checks the spelling: 1 to 64 of `A-Z a-z 0-9 . -`.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
        ((1..=64).contains(&text.len()) && text.bytes().all(plain)).then(|| Self(text.into()))
    }
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
