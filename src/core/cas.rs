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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// There is no such object.
    Absent,
    /// The object is still this version.
    Match(Etag),
}

/// How a conditional write ended.
#[derive(Clone, Debug, PartialEq, Eq)]
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
