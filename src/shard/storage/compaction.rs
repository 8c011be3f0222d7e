//! One LTX file for many commits, made from the live image in small steps.
//!
//! Invariant: the file shows the database at one commit, however much is written while it is
//! made: a page that it still needs is copied before it changes. Steps bound the time for which a
//! shard stands still; copies are bounded by what is written meanwhile.
//! Which range is due, and what it makes superfluous, is decided by `celld_core::compaction`.

use std::collections::BTreeMap;
use std::io;

use celld_core::ltx::{Encoder, Header};
use celld_core::time::Wall;
use celld_core::txid::{Checksum, Position, Txid};

use super::image::Image;
use super::vfs::State;
use super::{CellStore, PAGE_BYTES, Segment, StorageError};

/// A file that is being made.
pub(super) struct Cut {
    header: Header,
    post: Checksum,
    encoder: Encoder,
    /// Pages of the file, ascending; those from `next` on are still to come.
    pages: Vec<u32>,
    next: usize,
    /// What pages held at the cut, where that has changed since.
    saved: BTreeMap<u32, Box<[u8; PAGE_BYTES]>>,
    bytes: u64,
}

impl Cut {
    pub(super) fn needs(&self, pgno: u32) -> bool {
        let coming = &self.pages[self.next..];
        coming.binary_search(&pgno).is_ok() && !self.saved.contains_key(&pgno)
    }

    pub(super) fn save(&mut self, pgno: u32, image: &Image) -> io::Result<()> {
        let mut copy = Box::new([0; PAGE_BYTES]);
        let mut buffer = [0; PAGE_BYTES];
        copy.copy_from_slice(image.page(pgno, &mut buffer)?);
        self.saved.insert(pgno, copy);
        Ok(())
    }

    fn step(
        &mut self,
        pages: usize,
        image: &Image,
        out: &mut Vec<u8>,
    ) -> Result<bool, StorageError> {
        let start = out.len();
        let mut buffer = [0; PAGE_BYTES];
        if self.next == 0 {
            self.encoder.begin(&self.header, out)?;
        }
        let end = self.pages.len().min(self.next.saturating_add(pages));
        for &pgno in &self.pages[self.next..end] {
            match self.saved.remove(&pgno) {
                Some(copy) => self.encoder.page(pgno, &copy[..], out)?,
                None => self.encoder.page(pgno, image.page(pgno, &mut buffer)?, out)?,
            }
        }
        self.next = end;
        let done = end == self.pages.len();
        if done {
            self.encoder.finish(self.post, out)?;
        }
        self.bytes += (out.len() - start) as u64;
        Ok(done)
    }
}

impl CellStore {
    /// Starts a file of all commits from `min` to now. `min` 1: a snapshot. It is made by
    /// [`Self::compaction_step`]; one that was not finished is given up. Returns its last commit.
    ///
    /// # Errors
    /// [`StorageError::Pending`]: commits are not encoded yet; call it right after
    /// [`Self::encode_pending`]. [`StorageError::NoBoundary`]: no file begins at `min`.
    pub fn begin_compaction(&mut self, min: Txid, now: Wall) -> Result<Txid, StorageError> {
        let mut state = self.shared.borrow_mut();
        state.check()?;
        if state.committed || self.is_pending_in(&state) {
            return Err(StorageError::Pending);
        }
        let last = state.image.position();
        let before = min.get().checked_sub(1).map(Txid::new);
        let mark = state.image.marks.iter().find(|mark| Some(mark.txid) == before).copied();
        let Some(mark) = mark.filter(|mark| mark.txid < last.txid) else {
            return Err(StorageError::NoBoundary(min));
        };
        let snapshot = min == Txid::new(1);
        let ledger = &state.image.ledger;
        let pages = if snapshot { ledger.all() } else { ledger.changed_since(min) };
        let pre = if snapshot { Checksum::new(0) } else { mark.checksum };
        let header = header(&state.image, min, last.txid, pre, now);
        let (encoder, saved) = (Encoder::new(), BTreeMap::new());
        let post = last.checksum;
        state.cut = Some(Cut { header, post, encoder, pages, next: 0, saved, bytes: 0 });
        Ok(last.txid)
    }

    /// Appends up to `pages` more pages to `out` (about 8 µs each). `Some`: the file is complete.
    ///
    /// # Errors
    /// No file was begun, or the image cannot be read; the file is given up.
    pub fn compaction_step(
        &mut self,
        pages: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Segment>, StorageError> {
        let mut guard = self.shared.borrow_mut();
        guard.check()?;
        let State { cut, image, .. } = &mut *guard;
        let Some(mut running) = cut.take() else { return Err(StorageError::NoCompaction) };
        if !running.step(pages, image, out)? {
            *cut = Some(running);
            return Ok(None);
        }
        let (header, post) = (running.header, running.post);
        Ok(Some(Segment {
            min: header.min,
            max: header.max,
            pre: header.pre,
            post,
            pages: running.pages.len() as u32,
            bytes_len: running.bytes,
        }))
    }

    /// Gives up a file that was begun.
    pub fn abandon_compaction(&mut self) {
        self.shared.borrow_mut().cut = None;
    }

    /// Forgets where files within `min..=max` ended: one file has taken their place.
    pub fn forget_boundaries(&mut self, min: Txid, max: Txid) {
        let inside = |mark: &Position| mark.txid >= min && mark.txid < max;
        self.shared.borrow_mut().image.marks.retain(|mark| !inside(mark));
    }
}

/// Of a file that leads to the state of `image`.
pub(super) fn header(image: &Image, min: Txid, max: Txid, pre: Checksum, now: Wall) -> Header {
    Header {
        checksummed: true,
        page_size: PAGE_BYTES as u32,
        commit: image.pages(),
        min,
        max,
        timestamp_ms: now.as_millis(),
        pre,
        // Which node wrote a file its epoch tells; which cell it is of, only this.
        node: image.tag(),
    }
}
