//! Positions in the history of a cell.
//!
//! Invariant: TXIDs are contiguous over the life of a cell, across epochs. Printed as 16
//! hexadecimal digits, as in the names of LTX files.

use core::fmt;

/// The number of a commit of a cell. Zero: nothing was ever committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Txid(u64);

/// The rolling checksum of a database: the XOR of the checksums of its pages (LTX v3), with the
/// highest bit set. Zero only for the empty database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Checksum(u64);

/// Where a cell stands: its last commit, and the checksum of the database after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// The last commit.
    pub txid: Txid,
    /// Of the whole database after it.
    pub checksum: Checksum,
}

impl Txid {
    /// Before the first commit.
    pub const ZERO: Txid = Txid(0);
    /// A position read from a record or a file.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }
    /// As a number.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// The commit after this one.
    ///
    /// # Panics
    /// After 2^64 commits.
    pub const fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("a cell has fewer than 2^64 commits"))
    }
    /// From exactly 16 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        parse_hex16(text).map(Self)
    }
}

impl fmt::Display for Txid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Checksum {
    /// From its number.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }
    /// As a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Exactly 16 lower-case hexadecimal digits, as names of objects write numbers.
pub(crate) fn parse_hex16(text: &str) -> Option<u64> {
    let plain =
        text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if plain { u64::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn a_txid_reads_back_what_it_prints() {
        let txid = Txid::new(0xab_cdef);
        assert_eq!(txid.to_string(), "0000000000abcdef");
        assert_eq!(Txid::parse("0000000000abcdef"), Some(txid));
    }

    #[test]
    fn other_spellings_of_a_txid_are_refused() {
        for text in ["", "1", "0000000000ABCDEF", "+000000000abcdef", "00000000000abcdef"] {
            assert_eq!(Txid::parse(text), None, "{text:?}");
        }
    }
}
