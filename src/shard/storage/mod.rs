//! The storage of a cell: SQLite on an image of ours, and LTX files of what it commits.
//!
//! Invariant: every commit has exactly one TXID, all pages that it changed are in the file that
//! covers this TXID, and each file carries the checksum of the database before and after it. What
//! was rolled back leaves nothing.
//!
//! A turn's writes are one transaction; after the turn `commit_boundary` gives them a TXID, and
//! `encode_pending` makes one file of all commits since the last. A store and its connection
//! belong to one thread; either may be dropped first.

mod arena;
mod compaction;
mod heap;
mod image;
mod ledger;
mod packed;
pub mod restore;
#[cfg(test)]
mod tests;
mod vfs;

use std::cell::{Cell, RefCell};
use std::io;

use celld_core::ltx::{Encoder, LtxError};
use celld_core::time::Wall;
use celld_core::txid::{Checksum, Position, Txid};
use rusqlite::{Connection, OpenFlags};

pub use self::image::{Image, MEMORY_BYTES_MAX, Place};
use self::vfs::{Shared, State};

/// Bytes of a page; SQLite's own default, and the only size that we read.
pub const PAGE_BYTES: usize = 4_096;

/// A database may grow to 10 GB, as on Cloudflare.
const DATABASE_PAGES_MAX: u64 = (10 << 30) / PAGE_BYTES as u64;

/// Pages that SQLite keeps for itself while it writes; it reads the others where they lie. 64
/// pages hold the inner pages of any tree that is written to.
const CACHE_PAGES: u32 = 64;

/// Why storage did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The cell cannot be opened; the process is in a bad state.
    #[error("SQLite refused the file system of cells with code {0}")]
    Register(i32),
    /// SQLite's own.
    #[error("the database of the cell cannot be opened: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The image may be torn: drop store and connection and restore the cell.
    #[error("the image of the cell could not be written ({0}); it must be restored")]
    Broken(String),
    /// The file of a large image failed.
    #[error("the image of the cell cannot be read: {0}")]
    Image(#[from] io::Error),
    /// A fault of ours: pages that make no LTX file.
    #[error("the pages of the cell make no LTX file: {0}")]
    Ltx(#[from] LtxError),
    /// Encode what is pending first.
    #[error("commits of the cell are not encoded yet")]
    Pending,
    /// There is nothing to encode.
    #[error("the cell has no commits to encode")]
    Nothing,
    /// No file of the cell ends before this TXID.
    #[error("no file of the cell begins at TXID {0}")]
    NoBoundary(Txid),
    /// `compaction_step` without `begin_compaction`.
    #[error("no compaction of the cell was begun")]
    NoCompaction,
}

/// An LTX file that was encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First commit.
    pub min: Txid,
    /// Last commit.
    pub max: Txid,
    /// Checksum of the database before; zero if `min` is 1.
    pub pre: Checksum,
    /// Checksum of the database after.
    pub post: Checksum,
    /// Pages in the file.
    pub pages: u32,
    /// Bytes that were appended.
    pub bytes_len: u64,
}

/// The database of one resident cell.
pub struct CellStore {
    shared: Shared,
    /// The last commit; the image's own position is that of the last file.
    txid: Txid,
    spill_error: Option<io::Error>,
    /// One was told: the others would say the same.
    has_failed_to_spill: bool,
}

/// Memory of all databases of this thread: pages that are not in files, and SQLite.
pub fn memory_bytes() -> usize {
    arena::all_bytes()
}

thread_local! {
    /// One for all cells of a shard: its tables are larger than a small cell.
    static ENCODER: RefCell<Encoder> = RefCell::new(Encoder::new());
    static NEXT_NAME: Cell<u64> = const { Cell::new(0) };
}

impl State {
    fn check(&self) -> Result<(), StorageError> {
        self.broken.clone().map_or(Ok(()), |why| Err(StorageError::Broken(why)))
    }
}

impl CellStore {
    /// A cell without commits.
    ///
    /// # Errors
    /// SQLite does not open it.
    pub fn create(place: Place) -> Result<(Self, Connection), StorageError> {
        Self::open(Image::new(place))
    }

    /// A cell that was restored; it stands where the image stands.
    ///
    /// # Errors
    /// SQLite does not open it: the image holds no database.
    pub fn open(image: Image) -> Result<(Self, Connection), StorageError> {
        vfs::register().map_err(StorageError::Register)?;
        let txid = image.position().txid;
        let shared = State::new(image);
        let number = NEXT_NAME.replace(NEXT_NAME.get() + 1);
        let name = format!("cell-{number}");
        vfs::announce(&name, &shared);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_EXRESCODE;
        let opened = Connection::open_with_flags_and_vfs(&name, flags, vfs::NAME);
        vfs::withdraw(&name);
        let connection = opened?;
        connection.execute_batch(&format!(
            "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF;
             PRAGMA cache_spill=OFF; PRAGMA temp_store=MEMORY; PRAGMA cache_size={CACHE_PAGES};
             PRAGMA mmap_size=0x7fff0000; PRAGMA max_page_count={DATABASE_PAGES_MAX};"
        ))?;
        Ok((Self { shared, txid, spill_error: None, has_failed_to_spill: false }, connection))
    }

    /// To be called after each turn, when no transaction is open: gives what was committed since
    /// the last call one TXID. `None`: nothing was.
    pub fn commit_boundary(&mut self) -> Option<Txid> {
        let mut state = self.shared.borrow_mut();
        if !std::mem::take(&mut state.committed) {
            return None;
        }
        if let Err(error) = state.image.settle()
            && !std::mem::replace(&mut self.has_failed_to_spill, true)
        {
            self.spill_error = Some(error);
        }
        self.txid = self.txid.next();
        Some(self.txid)
    }

    /// The last commit.
    pub fn txid(&self) -> Txid {
        self.txid
    }

    /// The last commit that was encoded, and the checksum there.
    pub fn encoded(&self) -> Position {
        self.shared.borrow().image.position()
    }

    /// Whether there are commits that were not encoded.
    pub fn pending(&self) -> bool {
        self.shared.borrow().committed || self.is_pending_in(&self.shared.borrow())
    }

    fn is_pending_in(&self, state: &State) -> bool {
        state.image.position().txid < self.txid
    }

    /// Appends one LTX file to `out`: every commit since the last call, each page once.
    ///
    /// # Errors
    /// [`StorageError::Nothing`] without commits. [`StorageError::Broken`] and
    /// [`StorageError::Image`]: the cell must be restored. `out` is as it was.
    pub fn encode_pending(
        &mut self,
        now: Wall,
        out: &mut Vec<u8>,
    ) -> Result<Segment, StorageError> {
        self.commit_boundary();
        let mut state = self.shared.borrow_mut();
        state.check()?;
        if !self.is_pending_in(&state) {
            return Err(StorageError::Nothing);
        }
        let before = state.image.position();
        let dirty = state.dirty.take_sorted();
        let (min, max) = (before.txid.next(), self.txid);
        let start = out.len();
        let encoded =
            state.image.enter(&dirty, max).map_err(StorageError::from).and_then(|after| {
                let pre = if min == Txid::new(1) { Checksum::new(0) } else { before.checksum };
                let header = compaction::header(&state.image, min, max, pre, now);
                let pages = encode(&state.image, &header, &dirty, after.checksum, out)?;
                let bytes_len = (out.len() - start) as u64;
                Ok(Segment { min, max, pre, post: after.checksum, pages, bytes_len })
            });
        if let Err(error) = &encoded {
            // The ledger has moved on without a file: nothing can follow.
            out.truncate(start);
            state.broken.get_or_insert_with(|| error.to_string());
        }
        encoded
    }

    /// For a cell that rests: a small database takes a fraction of its size until it is used again.
    pub fn rest(&mut self) {
        self.shared.borrow_mut().image.pack();
    }

    /// Size of the database.
    pub fn database_bytes(&self) -> u64 {
        self.shared.borrow().image.bytes()
    }

    /// Memory of image and bookkeeping; what SQLite takes comes on top.
    pub fn memory_bytes(&self) -> usize {
        let state = self.shared.borrow();
        let fixed = size_of::<State>() + size_of::<Self>();
        fixed + state.image.memory_bytes() + state.dirty.memory_bytes()
    }

    /// Whether the database has outgrown memory and lives in a file.
    pub fn is_in_file(&self) -> bool {
        self.shared.borrow().image.is_in_file()
    }

    /// Why the database could not move into a file, if it was to. It stays in memory. Told once.
    pub fn take_spill_error(&mut self) -> Option<io::Error> {
        self.spill_error.take()
    }
}

fn encode(
    image: &Image,
    header: &celld_core::ltx::Header,
    pages: &[u32],
    post: Checksum,
    out: &mut Vec<u8>,
) -> Result<u32, StorageError> {
    ENCODER.with_borrow_mut(|encoder| {
        let (mut buffer, mut count) = ([0; PAGE_BYTES], 0);
        encoder.begin(header, out)?;
        for &pgno in pages {
            if pgno <= image.pages() && pgno != ledger::LOCK_PAGE {
                encoder.page(pgno, image.page(pgno, &mut buffer)?, out)?;
                count += 1;
            }
        }
        encoder.finish(post, out)?;
        Ok(count)
    })
}
