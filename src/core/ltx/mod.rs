//! LTX v3: files of page changes of a SQLite database for a range of TXIDs.
//!
//! Invariant: a file that decodes without an error has the bytes that its writer wrote (file
//! checksum), its pages ascend, and a snapshot (`min == 1`) holds every page.
//! Units: offsets and sizes in bytes of the file, page numbers from 1.
//! Source: superfly/ltx 0.5 (format version 3): 100-byte header, pages, page index, trailer, all
//! numbers big-endian, CRC-64/GO-ISO.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

use crc_fast::{CrcAlgorithm, Digest};

pub use self::decode::{Decoder, Item, Pages, Step};
pub use self::encode::Encoder;
use crate::txid::{Checksum, Txid};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 100;
/// Bytes before each page: its number and its flags.
pub const PAGE_HEADER_BYTES: usize = 6;
/// Bytes of the trailer: the checksum of the database, the checksum of the file.
pub const TRAILER_BYTES: usize = 16;
/// Set in every checksum, so that none is zero. Alone: the checksum of a database without pages.
pub const CHECKSUM_FLAG: u64 = 1 << 63;

const MAGIC: [u8; 4] = *b"LTX1";
/// The file does not carry checksums of the database. The only flag of a header in version 3.
const HEADER_NO_CHECKSUM: u32 = 1 << 1;
/// A size of four bytes follows, then one LZ4 block. Without it an LZ4 frame follows.
const PAGE_SIZED_BLOCK: u16 = 1;
/// SQLite keeps its locks at this byte and never writes the page around it.
const LOCK_BYTE: u32 = 0x4000_0000;

/// What a file says about itself before its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether `pre` and the trailer's checksum of the database are kept.
    pub checksummed: bool,
    /// Bytes of a page: a power of two, 512 to 65536.
    pub page_size: u32,
    /// Pages of the database after the file is applied.
    pub commit: u32,
    /// The first TXID that the file covers; 1: the file is a snapshot.
    pub min: Txid,
    /// The last TXID that the file covers.
    pub max: Txid,
    /// Milliseconds since 1970, for people and for restores to a time.
    pub timestamp_ms: u64,
    /// Checksum of the database that the file continues; zero in snapshots.
    pub pre: Checksum,
    /// Who wrote it, as a number; zero: not said.
    pub node: u64,
}

/// What a file says about itself after its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Checksum of the database after the file is applied; zero if the file keeps none.
    pub post: Checksum,
    /// Checksum of everything before it in the file, pages uncompressed.
    pub file: Checksum,
}

/// Why bytes are no LTX file, or a file cannot be written as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset} of the LTX file: {fault}")]
pub struct LtxError {
    /// Where, from the start of the file.
    pub offset: u64,
    /// What.
    pub fault: Fault,
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes end too early.
    #[error("it ends here, within {0}")]
    Truncated(&'static str),
    /// There are bytes after the trailer.
    #[error("there are bytes after its trailer")]
    TrailingBytes,
    /// Another kind of file.
    #[error("it starts with {0:02x?} instead of \"LTX1\"")]
    Magic([u8; 4]),
    /// A flag of another version of the format.
    #[error("header flags {0:#010x} are not of version 3")]
    HeaderFlags(u32),
    /// A flag of another version of the format.
    #[error("page flags {0:#06x} are not of version 3")]
    PageFlags(u16),
    /// Not a page size of SQLite.
    #[error("{0} is not a page size")]
    PageSize(u32),
    /// `min` is zero or greater than `max`.
    #[error("TXIDs {0} to {1} are no range")]
    TxidRange(Txid, Txid),
    /// The checksum before must be zero in a snapshot, and flagged elsewhere.
    #[error("checksum before applying is {0}, which a file with this first TXID cannot have")]
    PreChecksum(Checksum),
    /// The checksum after must have its flag, or be zero where none is kept.
    #[error("checksum after applying is {0}, which this file cannot have")]
    PostChecksum(Checksum),
    /// Pages must ascend and lie within the database; a snapshot leaves none out.
    #[error("page {found} comes after page {previous} in a database of {commit} pages")]
    PageOrder {
        /// The page.
        found: u32,
        /// The page before it; zero: none.
        previous: u32,
        /// Pages of the database.
        commit: u32,
    },
    /// A snapshot ended early.
    #[error("the snapshot ends after page {last} of {commit}")]
    SnapshotIncomplete {
        /// The last page it holds.
        last: u32,
        /// Pages of the database.
        commit: u32,
    },
    /// The page around byte 2^30 carries locks, never data.
    #[error("page {0} is the lock page")]
    LockPage(u32),
    /// A page of another length was given.
    #[error("page has {found} bytes instead of {expected}")]
    PageLength {
        /// Its length.
        found: usize,
        /// The length of the file's pages.
        expected: u32,
    },
    /// Longer than any compressed page.
    #[error("compressed page is {0} bytes long, more than a page can need")]
    CompressedLength(u32),
    /// LZ4 refused the bytes, or they are not exactly one page.
    #[error("page {0} does not decompress to one page")]
    Compression(u32),
    /// The index names other pages, offsets or sizes than the file has.
    #[error("the page index does not describe the pages of the file")]
    Index,
    /// Bytes changed since they were written.
    #[error("checksum of the file is {found}, its trailer says {expected}")]
    FileChecksum {
        /// Of the bytes.
        found: Checksum,
        /// In the trailer.
        expected: Checksum,
    },
    /// `Encoder::page` or `finish` without `begin`, or more calls after the end.
    #[error("the calls came in another order than begin, page, finish")]
    CallOrder,
}

impl Header {
    /// Whether the file holds the whole database.
    pub fn is_snapshot(&self) -> bool {
        self.min == Txid::new(1)
    }

    fn validate(&self) -> Result<(), LtxError> {
        let fault = |offset, fault| Err(LtxError { offset, fault });
        if !(512..=65_536).contains(&self.page_size) || !self.page_size.is_power_of_two() {
            return fault(8, Fault::PageSize(self.page_size));
        }
        if self.min == Txid::ZERO || self.min > self.max {
            return fault(16, Fault::TxidRange(self.min, self.max));
        }
        let pre = self.pre.get();
        let fits = if self.is_snapshot() || !self.checksummed {
            pre == 0
        } else {
            pre & CHECKSUM_FLAG != 0
        };
        if fits { Ok(()) } else { fault(40, Fault::PreChecksum(self.pre)) }
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let flags = if self.checksummed { 0 } else { HEADER_NO_CHECKSUM };
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&flags.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.page_size.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.commit.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.min.get().to_be_bytes());
        bytes[24..32].copy_from_slice(&self.max.get().to_be_bytes());
        bytes[32..40].copy_from_slice(&self.timestamp_ms.to_be_bytes());
        bytes[40..48].copy_from_slice(&self.pre.get().to_be_bytes());
        // Bytes 48 to 72 describe a piece of a WAL; we have none.
        bytes[72..80].copy_from_slice(&self.node.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Self, LtxError> {
        let u32_at = |at: usize| {
            let mut number = [0; 4];
            number.copy_from_slice(&bytes[at..at + 4]);
            u32::from_be_bytes(number)
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
        let magic = u32_at(0).to_be_bytes();
        if magic != MAGIC {
            return Err(LtxError { offset: 0, fault: Fault::Magic(magic) });
        }
        let flags = u32_at(4);
        if flags & !HEADER_NO_CHECKSUM != 0 {
            return Err(LtxError { offset: 4, fault: Fault::HeaderFlags(flags) });
        }
        let header = Self {
            checksummed: flags & HEADER_NO_CHECKSUM == 0,
            page_size: u32_at(8),
            commit: u32_at(12),
            min: Txid::new(u64_at(16)),
            max: Txid::new(u64_at(24)),
            timestamp_ms: u64_at(32),
            pre: Checksum::new(u64_at(40)),
            node: u64_at(72),
        };
        header.validate()?;
        Ok(header)
    }

    /// Whether `post` is a checksum that this file can end with.
    fn post_fits(&self, post: Checksum) -> bool {
        match (self.checksummed, self.commit) {
            (false, _) => post.get() == 0,
            (true, 0) => post.get() == CHECKSUM_FLAG,
            (true, _) => post.get() & CHECKSUM_FLAG != 0,
        }
    }
}

/// The page that SQLite never writes, as it lies around its lock bytes.
pub const fn lock_page(page_size: u32) -> u32 {
    LOCK_BYTE / page_size + 1
}

/// Checksum of one page. The checksum of a database is that of all its pages by [`fold`].
pub fn page_checksum(pgno: u32, data: &[u8]) -> Checksum {
    let mut digest = new_digest();
    digest.update(&pgno.to_be_bytes());
    digest.update(data);
    flagged(digest.finalize())
}

/// The checksum of a database that gains or loses `page` (both are the same operation).
pub fn fold(database: Checksum, page: Checksum) -> Checksum {
    flagged(database.get() ^ page.get())
}

fn flagged(number: u64) -> Checksum {
    Checksum::new(number | CHECKSUM_FLAG)
}

fn new_digest() -> Digest {
    Digest::new(CrcAlgorithm::Crc64GoIso)
}

/// The page that a snapshot must hold after `previous`.
fn snapshot_successor(previous: u32, page_size: u32) -> u32 {
    let next = previous.saturating_add(1);
    if next == lock_page(page_size) { next.saturating_add(1) } else { next }
}

/// Checks that `found` may follow `previous` (zero: nothing).
fn check_order(header: &Header, previous: u32, found: u32) -> Result<(), Fault> {
    if found == lock_page(header.page_size) {
        return Err(Fault::LockPage(found));
    }
    let ascends = if header.is_snapshot() {
        found == snapshot_successor(previous, header.page_size)
    } else {
        found > previous
    };
    if ascends && found <= header.commit {
        Ok(())
    } else {
        Err(Fault::PageOrder { found, previous, commit: header.commit })
    }
}

/// Checks that a file whose last page is `last` may end.
fn check_complete(header: &Header, last: u32) -> Result<(), Fault> {
    let missing =
        header.is_snapshot() && snapshot_successor(last, header.page_size) <= header.commit;
    if missing { Err(Fault::SnapshotIncomplete { last, commit: header.commit }) } else { Ok(()) }
}

/// A number of the index: seven bits a byte, lowest first.
fn push_varint(mut number: u64, out: &mut alloc::vec::Vec<u8>) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
