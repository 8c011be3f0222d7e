//! The database of a cell as this node has it: its pages, in memory or in a file.
//!
//! A small one is packed while its cell rests (`packed`), and unpacked by the first use.
//!
//! Invariant: between turns the image is exactly at the last commit: SQLite writes pages only
//! while it commits (`cache_spill=OFF`), and writes the old ones back if that fails. The image is
//! a cache: what is durable are the LTX files. A file has no name and ends with the process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use celld_core::cell::CellId;
use celld_core::txid::{Checksum, Position, Txid};

use super::PAGE_BYTES;
use super::arena::Arena;
use super::ledger::{LOCK_PAGE, Ledger};
use super::packed::Packed;

/// Databases up to here stay in memory.
pub const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// Where an image may be, and whose it is.
#[derive(Clone, Debug)]
pub struct Place {
    /// For the files of large databases; on the disk of this machine.
    pub dir: PathBuf,
    /// A database that grows beyond it moves into a file.
    pub memory_bytes_max: u64,
    /// `CellId::tag`: goes into every file of the cell, and must be in those that it is built from.
    pub tag: u64,
}

impl Place {
    /// With the usual limit.
    pub fn new(dir: &Path, cell: &CellId) -> Self {
        Self { dir: dir.to_owned(), memory_bytes_max: MEMORY_BYTES_MAX, tag: cell.tag() }
    }
}

/// The pages of one database and what is known of them.
pub struct Image {
    backing: Backing,
    pages: u32,
    place: Place,
    pub(super) ledger: Ledger,
    /// The ends of files and the checksums there, ascending: where a compacted file can begin.
    pub(super) marks: Vec<Position>,
}

enum Backing {
    Memory(Arena),
    Packed(Packed),
    File(File),
}

impl Image {
    /// Without a page.
    pub fn new(place: Place) -> Self {
        Self {
            backing: Backing::Memory(Arena::default()),
            pages: 0,
            place,
            ledger: Ledger::new(),
            marks: vec![Position::default()],
        }
    }

    /// The last commit that was entered, and the checksum there.
    pub fn position(&self) -> Position {
        self.marks.last().copied().unwrap_or_default()
    }

    /// Whose it is: `CellId::tag`.
    pub fn tag(&self) -> u64 {
        self.place.tag
    }

    /// Size in pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES as u64
    }

    /// Memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let pages = match &self.backing {
            Backing::Memory(arena) => arena.memory_bytes(),
            Backing::Packed(packed) => packed.memory_bytes(),
            Backing::File(_) => 0,
        };
        pages + self.ledger.memory_bytes() + self.marks.capacity() * size_of::<Position>()
    }

    /// Packs the pages of a small database, unless SQLite holds addresses of them.
    pub(super) fn pack(&mut self) {
        if let Backing::Memory(arena) = &self.backing
            && !arena.is_borrowed()
            && let Some(packed) = Packed::new(arena, self.pages)
        {
            self.backing = Backing::Packed(packed);
        }
    }

    /// Has the pages where SQLite can read and write them.
    ///
    /// # Errors
    /// No memory.
    fn unpack(&mut self) -> io::Result<()> {
        if let Backing::Packed(packed) = &self.backing {
            self.backing = Backing::Memory(packed.unpack()?);
        }
        Ok(())
    }

    /// The content of page `pgno`; pages that are packed or in a file are read into `buffer`.
    ///
    /// # Errors
    /// The page is behind the end, or the file cannot be read.
    pub(super) fn page<'a>(
        &'a self,
        pgno: u32,
        buffer: &'a mut [u8; PAGE_BYTES],
    ) -> io::Result<&'a [u8]> {
        if pgno == 0 || pgno > self.pages {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.backing.page(pgno, buffer)
    }

    /// Copies bytes from `offset` on; returns how many there were.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(&self, mut offset: u64, target: &mut [u8]) -> io::Result<usize> {
        let size = self.bytes();
        let wanted = size.saturating_sub(offset).min(target.len() as u64) as usize;
        let target = &mut target[..wanted];
        if let Backing::File(file) = &self.backing {
            file.read_exact_at(target, offset)?;
            return Ok(wanted);
        }
        let (mut filled, mut buffer) = (0, [0; PAGE_BYTES]);
        while filled < wanted {
            let pgno = (offset / PAGE_BYTES as u64) as u32 + 1;
            let page = self.backing.page(pgno, &mut buffer)?;
            let from = &page[(offset % PAGE_BYTES as u64) as usize..];
            let count = from.len().min(wanted - filled);
            target[filled..filled + count].copy_from_slice(&from[..count]);
            (filled, offset) = (filled + count, offset + count as u64);
        }
        Ok(wanted)
    }

    /// Writes a page; the database grows to hold it, with zeros in between.
    ///
    /// # Errors
    /// No memory, or the file cannot be written.
    pub(super) fn write(&mut self, pgno: u32, data: &[u8; PAGE_BYTES]) -> io::Result<()> {
        self.unpack()?;
        if pgno > self.pages {
            self.grow(pgno)?;
        }
        match &mut self.backing {
            Backing::Packed(_) => unreachable!("it was unpacked"),
            Backing::Memory(arena) => arena.write(pgno as usize - 1, data),
            Backing::File(file) => file.write_all_at(data, offset_of(pgno))?,
        }
        Ok(())
    }

    fn grow(&mut self, pages: u32) -> io::Result<()> {
        match &mut self.backing {
            Backing::Packed(_) => unreachable!("it was unpacked"),
            Backing::Memory(arena) => {
                if !arena.reserve(pages as usize) {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
                for page in self.pages..pages {
                    arena.write(page as usize, &[0; PAGE_BYTES]);
                }
            }
            // What lies behind the end of a file is zero.
            Backing::File(file) => file.set_len(offset_of(pages + 1))?,
        }
        self.pages = pages;
        Ok(())
    }

    /// Makes the database `pages` long.
    ///
    /// # Errors
    /// No memory, or the file cannot be cut.
    pub(super) fn set_pages(&mut self, pages: u32) -> io::Result<()> {
        self.unpack()?;
        if pages > self.pages {
            return self.grow(pages);
        }
        match &mut self.backing {
            Backing::Packed(_) => unreachable!("it was unpacked"),
            Backing::Memory(arena) => arena.cut(pages as usize),
            Backing::File(file) => file.set_len(offset_of(pages + 1))?,
        }
        self.pages = pages;
        Ok(())
    }

    /// The address of a page for SQLite, to be given back. `None`: it has to be read.
    pub(super) fn lend(&mut self, pgno: u32) -> Option<NonNull<u8>> {
        // Without memory for it: reading the page says so.
        self.unpack().ok()?;
        let Backing::Memory(arena) = &mut self.backing else { return None };
        if pgno == 0 || pgno > self.pages {
            return None;
        }
        arena.borrow();
        Some(arena.address(pgno as usize - 1))
    }

    /// Whether SQLite holds addresses of pages.
    pub(super) fn is_lent(&self) -> bool {
        matches!(&self.backing, Backing::Memory(arena) if arena.is_borrowed())
    }

    pub(super) fn give_back(&mut self) {
        if let Backing::Memory(arena) = &mut self.backing {
            arena.give_back();
        }
    }

    /// Moves a database that has grown too large into a file, unless SQLite holds pages of it.
    ///
    /// # Errors
    /// The file cannot be made or written. The image stays as it is, and its limit is doubled, so
    /// that a full disk is not filled again at each commit.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if self.bytes() <= self.place.memory_bytes_max {
            return Ok(());
        }
        if self.is_lent() {
            return Ok(());
        }
        let Backing::Memory(arena) = &self.backing else { return Ok(()) };
        let moved = unnamed_file(&self.place.dir).and_then(|file| {
            for page in 0..self.pages {
                file.write_all_at(arena.page(page as usize), offset_of(page + 1))?;
            }
            Ok(file)
        });
        match moved {
            Ok(file) => {
                self.backing = Backing::File(file);
                Ok(())
            }
            Err(error) => {
                self.place.memory_bytes_max = self.place.memory_bytes_max.saturating_mul(2);
                Err(error)
            }
        }
    }

    /// Enters pages that changed up to commit `txid` into the ledger, and the position after it.
    pub(super) fn enter(&mut self, changed: &[u32], txid: Txid) -> io::Result<Position> {
        self.ledger.resize(self.pages);
        let mut buffer = [0; PAGE_BYTES];
        for &pgno in changed.iter().filter(|&&pgno| pgno <= self.pages && pgno != LOCK_PAGE) {
            self.ledger.enter(pgno, self.backing.page(pgno, &mut buffer)?, txid);
        }
        let position = Position { txid, checksum: self.checksum() };
        self.marks.push(position);
        Ok(position)
    }

    /// Of the pages as they were last entered.
    pub(super) fn checksum(&self) -> Checksum {
        self.ledger.checksum()
    }

    /// Whether its pages are in a file.
    pub fn is_in_file(&self) -> bool {
        matches!(self.backing, Backing::File(_))
    }
}

impl Backing {
    /// A page that is there.
    fn page<'a>(&'a self, pgno: u32, buffer: &'a mut [u8; PAGE_BYTES]) -> io::Result<&'a [u8]> {
        match self {
            Self::Memory(arena) => return Ok(arena.page(pgno as usize - 1)),
            Self::Packed(packed) => packed.page(pgno as usize - 1, buffer)?,
            Self::File(file) => file.read_exact_at(buffer, offset_of(pgno))?,
        }
        Ok(buffer)
    }
}

fn offset_of(pgno: u32) -> u64 {
    u64::from(pgno.saturating_sub(1)) * PAGE_BYTES as u64
}

/// A new file whose name is already gone, so that a crash leaves nothing behind.
fn unnamed_file(dir: &Path) -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(dir)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!("image-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}
