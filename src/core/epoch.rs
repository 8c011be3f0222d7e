//! Numbers of ownership.
//!
//! Invariant: an epoch of a cell has one writer, ever. The only ways to make one are the first,
//! the next of one that was read, and reading one.

use core::fmt;

use crate::node::SessionId;
use crate::txid::parse_hex16;

/// The number of one ownership of a cell; each claim adds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

/// Goes with every write, so that a stale owner's write is refused or lands aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencingToken {
    /// The epoch of the cell.
    pub epoch: Epoch,
    /// Whose epoch it is.
    pub session: SessionId,
}

impl Epoch {
    /// The epoch of a cell that never had an owner.
    pub const FIRST: Epoch = Epoch(1);

    /// An epoch read from a record or a key; zero is none.
    pub const fn from_record(n: u64) -> Option<Self> {
        if n == 0 { None } else { Some(Self(n)) }
    }
    /// The epoch of the next owner.
    ///
    /// # Panics
    /// After 2^64 claims.
    pub const fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("a cell is claimed fewer than 2^64 times"))
    }
    /// As a number.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// From exactly 16 lower-case hexadecimal digits, as in keys.
    pub fn parse(text: &str) -> Option<Self> {
        parse_hex16(text).and_then(Self::from_record)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
