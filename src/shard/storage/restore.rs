//! A cell from the bucket: one listing, a plan, its files in order.
//!
//! Invariant: what is returned is the database at the planned position, proven by the checksums
//! of every file and of the database before and after each; otherwise there is an error that
//! names the key. Memory is bounded: [`PIECES_MAX`] pieces of [`PIECE_BYTES`] at a time.

use celld_core::cell::CellId;
use celld_core::epoch::Epoch;
use celld_core::ltx::{Decoder, Header, LtxError, Step};
use celld_core::ownership::Base;
use celld_core::plan::{LtxFile, Plan, PlanError, Stray, plan};
use celld_core::txid::{Checksum, Position, Txid};
use celld_s3::{Bucket, StoreError};
use futures_util::stream::{self, StreamExt as _};
use std::io;
use std::ops::Range;

use super::ledger::PageSet;
use super::{Image, PAGE_BYTES, Place};

/// Reads under way at once: enough to hide the round trips of small files.
const PIECES_MAX: usize = 8;
/// Bytes of one read.
const PIECE_BYTES: u64 = 4 << 20;
/// Files may be compacted away between the listing and the read; then the listing is repeated.
const LISTINGS_MAX: u32 = 4;
/// Keys of one cell: far more than compaction leaves, and a bound for memory.
const KEYS_MAX: usize = 1 << 20;

/// A cell as the bucket has it.
pub struct Restored {
    /// Its database; `image.position()` says where it stands.
    pub image: Image,
    /// The files that it was built from, in order.
    pub files: Vec<LtxFile>,
    /// Files that those cover.
    pub superseded: Vec<LtxFile>,
    /// Keys that do not count, worth a line in the log.
    pub strays: Vec<Stray>,
}

/// Why a cell could not be restored. None of them means that the cell is empty.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The bucket did not answer; reads may be repeated.
    #[error("restore of cell {cell}: {source}")]
    Store {
        /// Which cell.
        cell: CellId,
        /// What the bucket said.
        source: StoreError,
    },
    /// Files are missing: repeating does not help.
    #[error("restore of cell {cell}: {source}")]
    Plan {
        /// Which cell.
        cell: CellId,
        /// Where the gap is.
        source: PlanError,
    },
    /// A file is damaged or of another history: repeating does not help.
    #[error("restore: the file {key} cannot be used: {source}")]
    File {
        /// Its key.
        key: String,
        /// What is wrong with it.
        source: FileError,
    },
    /// Files vanish while they are read, again and again.
    #[error("restore of cell {cell}: files vanished during {LISTINGS_MAX} attempts, last {key}")]
    Unsteady {
        /// Which cell.
        cell: CellId,
        /// The file that was missing last.
        key: String,
    },
    /// More keys than any cell has.
    #[error("restore of cell {cell}: its prefix has more than {KEYS_MAX} keys")]
    TooManyKeys {
        /// Which cell.
        cell: CellId,
    },
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Not LTX, cut, or changed.
    #[error(transparent)]
    Ltx(#[from] LtxError),
    /// Made for pages of another size.
    #[error("its pages have {0} bytes, those of cells have {PAGE_BYTES}")]
    PageSize(u32),
    /// It lacks what proves that files belong together.
    #[error("it carries no checksums of the database")]
    NoChecksums,
    /// Its pages may fit all the same: cells of one class begin alike.
    #[error("it is a file of another cell")]
    OtherCell,
    /// Its header and its key disagree.
    #[error("its header says TXIDs {0} to {1}, its key something else")]
    OtherTxids(Txid, Txid),
    /// It does not continue what came before.
    #[error("it follows TXID {wants}, but the database is at {at}")]
    Order {
        /// What it continues.
        wants: Txid,
        /// What there is.
        at: Txid,
    },
    /// It continues another history of the same length.
    #[error("it continues a database with checksum {wants}, but this one has {has}")]
    Before {
        /// What it continues.
        wants: Checksum,
        /// What there is.
        has: Checksum,
    },
    /// The pages are not all of those that changed.
    #[error("the database has checksum {has} after it, but it promises {wants}")]
    After {
        /// What it promises.
        wants: Checksum,
        /// What came out.
        has: Checksum,
    },
    /// The database is none that we open.
    #[error("the database after it is no SQLite database in rollback mode")]
    NoDatabase,
    /// The image could not be written here.
    #[error("the image could not be written: {0}")]
    Image(#[from] io::Error),
}

/// Builds an image from files, piece by piece.
pub struct Applier {
    image: Image,
    decoder: Decoder,
    header: Option<Header>,
    changed: PageSet,
    waiting: Vec<u8>,
    page: Vec<u8>,
}

impl Applier {
    /// On top of `image`.
    pub fn new(image: Image) -> Self {
        Self {
            image,
            decoder: Decoder::new(),
            header: None,
            changed: PageSet::default(),
            waiting: Vec::new(),
            page: Vec::new(),
        }
    }

    /// More bytes of the current file.
    ///
    /// # Errors
    /// The file cannot be used; the image is spoilt.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.waiting.extend_from_slice(bytes);
        let mut used = 0;
        loop {
            let (count, step) = self.decoder.step(&self.waiting[used..], &mut self.page)?;
            used += count;
            match step {
                Step::More => break,
                Step::Header(header) => self.begin(header)?,
                Step::Page(pgno) => self.write(pgno)?,
                Step::Index => {}
                Step::Done(trailer) => self.finish(trailer.post)?,
            }
        }
        self.waiting.drain(..used);
        Ok(())
    }

    /// The file has no more bytes.
    ///
    /// # Errors
    /// It is not complete.
    pub fn end_file(&mut self) -> Result<(), FileError> {
        self.decoder.end()?;
        self.decoder = Decoder::new();
        self.header = None;
        Ok(())
    }

    /// What was built.
    pub fn into_image(self) -> Image {
        self.image
    }

    /// Of the file that is being read, once its header has come.
    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    fn begin(&mut self, header: Header) -> Result<(), FileError> {
        if header.page_size as usize != PAGE_BYTES {
            return Err(FileError::PageSize(header.page_size));
        }
        if !header.checksummed {
            return Err(FileError::NoChecksums);
        }
        if header.node != self.image.tag() {
            return Err(FileError::OtherCell);
        }
        let Position { txid: at, checksum: has } = self.image.position();
        let wants = Txid::new(header.min.get() - 1);
        if wants != at {
            return Err(FileError::Order { wants, at });
        }
        if !header.is_snapshot() && header.pre != has {
            return Err(FileError::Before { wants: header.pre, has });
        }
        self.header = Some(header);
        Ok(())
    }

    fn write(&mut self, pgno: u32) -> Result<(), FileError> {
        let Ok(page) = <&[u8; PAGE_BYTES]>::try_from(self.page.as_slice()) else {
            return Err(FileError::PageSize(self.page.len() as u32));
        };
        for grown in self.image.pages() + 1..pgno {
            self.changed.insert(grown);
        }
        self.image.write(pgno, page)?;
        self.changed.insert(pgno);
        // At once, not after the file: a snapshot may be larger than memory.
        self.image.settle()?;
        Ok(())
    }

    fn finish(&mut self, wants: Checksum) -> Result<(), FileError> {
        let Some(header) = self.header else { return Ok(()) };
        self.image.set_pages(header.commit)?;
        let changed = self.changed.take_sorted();
        let has = self.image.enter(&changed, header.max)?.checksum;
        if has != wants {
            return Err(FileError::After { wants, has });
        }
        self.check_database()
    }

    /// SQLite would take another header for a database to be made anew, or look for a WAL.
    fn check_database(&self) -> Result<(), FileError> {
        let mut start = [0; 20];
        let count = self.image.read(0, &mut start)?;
        let rollback_mode = start[18..] == [1, 1];
        let sound = start.starts_with(b"SQLite format 3\0") && rollback_mode;
        if count == 0 || sound { Ok(()) } else { Err(FileError::NoDatabase) }
    }
}

/// Builds the database of `cell` from its files. `base`: of the ownership record; `limit`: the
/// epoch that restores.
///
/// # Errors
/// The cell cannot be restored as it must be; never an older or partial state instead.
pub async fn restore(
    bucket: &Bucket,
    cell: &CellId,
    base: Base,
    limit: Epoch,
    place: Place,
) -> Result<Restored, RestoreError> {
    let mut missing = String::new();
    for _ in 0..LISTINGS_MAX {
        let listing = list(bucket, cell).await?;
        let keys = listing.iter().map(|(key, size)| (key.as_str(), *size));
        let planned = plan(cell, keys, base, limit);
        let Plan { files, superseded, strays } = match planned {
            Ok(planned) => planned,
            Err(source) => return Err(RestoreError::Plan { cell: cell.clone(), source }),
        };
        match apply(bucket, cell, &files, place.clone()).await? {
            Applied::All(image) => return Ok(Restored { image, files, superseded, strays }),
            Applied::Missing(key) => missing = key,
        }
    }
    Err(RestoreError::Unsteady { cell: cell.clone(), key: missing })
}

async fn list(bucket: &Bucket, cell: &CellId) -> Result<Vec<(String, u64)>, RestoreError> {
    let prefix = cell.ltx_prefix();
    let mut keys: Vec<(String, u64)> = Vec::new();
    loop {
        let after = keys.last().map(|(key, _)| key.as_str());
        let page = bucket.list(&prefix, after).await;
        let page = page.map_err(|source| RestoreError::Store { cell: cell.clone(), source })?;
        keys.extend(page.entries.into_iter().map(|entry| (entry.key, entry.size)));
        if !page.more {
            return Ok(keys);
        }
        if keys.len() > KEYS_MAX {
            return Err(RestoreError::TooManyKeys { cell: cell.clone() });
        }
    }
}

enum Applied {
    All(Image),
    /// This file is gone since it was listed.
    Missing(String),
}

async fn apply(
    bucket: &Bucket,
    cell: &CellId,
    files: &[LtxFile],
    place: Place,
) -> Result<Applied, RestoreError> {
    let keys: Vec<_> = files.iter().map(|file| file.key(cell)).collect();
    let pieces = files
        .iter()
        .zip(&keys)
        .flat_map(|(file, key)| pieces_of(file).map(move |r| (file, key, r)));
    let reads = pieces.map(|(file, key, range)| async move {
        let last = range.end == file.bytes;
        (file, key, last, bucket.get_range(key, range).await)
    });
    let mut reads = stream::iter(reads).buffered(PIECES_MAX);
    let mut applier = Applier::new(Image::new(place));
    while let Some((file, key, last, read)) = reads.next().await {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(StoreError::Missing { .. }) => return Ok(Applied::Missing(key.clone())),
            Err(source) => return Err(RestoreError::Store { cell: cell.clone(), source }),
        };
        let fed = applier.feed(&bytes).and_then(|()| match applier.header() {
            Some(header) if (header.min, header.max) != (file.min, file.max) => {
                Err(FileError::OtherTxids(header.min, header.max))
            }
            Some(_) | None if last => applier.end_file(),
            Some(_) | None => Ok(()),
        });
        fed.map_err(|source| RestoreError::File { key: key.clone(), source })?;
    }
    Ok(Applied::All(applier.into_image()))
}

/// The ranges in which a file is read; one that is empty is asked for, too.
fn pieces_of(file: &LtxFile) -> impl Iterator<Item = Range<u64>> + use<> {
    let bytes = file.bytes;
    (0..bytes.div_ceil(PIECE_BYTES).max(1))
        .map(move |n| n * PIECE_BYTES..((n + 1) * PIECE_BYTES).min(bytes))
}
