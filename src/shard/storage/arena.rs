//! The pages of a database in memory: chunks that never move.
//!
//! Invariant: a page keeps its address until it is cut off and nobody borrows pages (`xFetch`).
//! SQLite may look up to 256 bytes behind a page of a damaged database; behind each chunk there
//! are as many.
//! Units: page indexes count from 0.

use std::alloc::{GlobalAlloc as _, Layout, System};
use std::cell::Cell;
use std::ptr::NonNull;

use super::PAGE_BYTES;

/// As much as SQLite's own mapping of a file leaves behind its end.
const SLACK_BYTES: usize = 256;
/// Chunks double up to this: 256 KiB, a small part of what then exists.
const CHUNK_PAGES_MAX: usize = 64;
/// Chunks below the largest: 2, 2, 4, 8, 16, 32 and 64 pages.
const SMALL_CHUNKS: usize = 7;
/// Pages in all of these.
const SMALL_PAGES: usize = 128;

thread_local! {
    /// Of all databases of this thread, which none of them leaves.
    static ALL_BYTES: Cell<isize> = const { Cell::new(0) };
}

/// What the databases of this thread take: their pages, packed or not, and SQLite itself.
pub(super) fn all_bytes() -> usize {
    // What SQLite takes for all may be given back by another thread.
    usize::try_from(ALL_BYTES.get()).unwrap_or(0)
}

/// Counts bytes that were taken.
pub(super) fn take(bytes: usize) {
    ALL_BYTES.set(ALL_BYTES.get().wrapping_add_unsigned(bytes));
}

/// Counts bytes that were given back.
pub(super) fn give(bytes: usize) {
    ALL_BYTES.set(ALL_BYTES.get().wrapping_sub_unsigned(bytes));
}

/// Bytes that count as taken until it is dropped.
pub(super) struct Counted(usize);

impl Counted {
    pub(super) fn new(bytes: usize) -> Self {
        take(bytes);
        Self(bytes)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        give(self.0);
    }
}

/// Grows by chunks: no page is ever copied to make room.
#[derive(Default)]
pub(super) struct Arena {
    chunks: Vec<Chunk>,
    /// Cut off while pages were borrowed.
    retired: Vec<Chunk>,
    borrowed: usize,
}

/// From the system's allocator, as all of SQLite's memory: the program's has size classes, and the
/// first chunk, a little more than two pages, would cost two and a half.
struct Chunk {
    start: NonNull<u8>,
    pages: usize,
}

impl Chunk {
    /// `None`: there is no memory.
    fn new(pages: usize) -> Option<Self> {
        // SAFETY: the layout is never empty.
        let start = unsafe { System.alloc_zeroed(Self::layout(pages)) };
        let start = NonNull::new(start)?;
        take(Self::layout(pages).size());
        Some(Self { start, pages })
    }

    fn layout(pages: usize) -> Layout {
        Layout::from_size_align(pages * PAGE_BYTES + SLACK_BYTES, 16)
            .expect("a chunk is some hundred kilobytes")
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and freed once.
        unsafe { System.dealloc(self.start.as_ptr(), Self::layout(self.pages)) }
        give(Self::layout(self.pages).size());
    }
}

/// The chunk of a page, and the page within it.
fn locate(page: usize) -> (usize, usize) {
    if page < 2 {
        (0, page)
    } else if page < SMALL_PAGES {
        let power = page.ilog2() as usize;
        (power, page - (1 << power))
    } else {
        let rest = page - SMALL_PAGES;
        (SMALL_CHUNKS + rest / CHUNK_PAGES_MAX, rest % CHUNK_PAGES_MAX)
    }
}

fn chunk_pages(chunk: usize) -> usize {
    match chunk {
        0 => 2,
        1..SMALL_CHUNKS => 1 << chunk,
        _ => CHUNK_PAGES_MAX,
    }
}

impl Arena {
    /// Makes room for `pages`. New pages may hold what was cut off before.
    pub(super) fn reserve(&mut self, pages: usize) -> bool {
        while pages > 0 && self.chunks.len() <= locate(pages - 1).0 {
            let Some(chunk) = Chunk::new(chunk_pages(self.chunks.len())) else { return false };
            self.chunks.push(chunk);
        }
        true
    }

    /// Gives up what lies behind the first `pages`.
    pub(super) fn cut(&mut self, pages: usize) {
        let keep = if pages == 0 { 0 } else { locate(pages - 1).0 + 1 };
        let keep = keep.min(self.chunks.len());
        let gone = self.chunks.drain(keep..);
        if self.borrowed == 0 { drop(gone) } else { self.retired.extend(gone) }
    }

    /// Where a page is, for as long as it is not cut off.
    ///
    /// # Panics
    /// There is no room for that page.
    pub(super) fn address(&self, page: usize) -> NonNull<u8> {
        let (chunk, within) = locate(page);
        let chunk = &self.chunks[chunk];
        debug_assert!(within < chunk.pages);
        // SAFETY: `within` is less than the pages of the chunk, by `locate` and `chunk_pages`.
        unsafe { chunk.start.add(within * PAGE_BYTES) }
    }

    pub(super) fn page(&self, page: usize) -> &[u8] {
        // SAFETY: the address has PAGE_BYTES initialised bytes; they change only in `write`, which
        // takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.address(page).as_ptr(), PAGE_BYTES) }
    }

    /// Overwrites a page. SQLite may hold its address, so no `&mut` to it is made.
    pub(super) fn write(&mut self, page: usize, data: &[u8; PAGE_BYTES]) {
        // SAFETY: source and target are PAGE_BYTES long and do not overlap: `data` is borrowed by
        // the caller, and the page is reachable only through `&mut self`.
        unsafe { self.address(page).as_ptr().copy_from_nonoverlapping(data.as_ptr(), PAGE_BYTES) }
    }

    /// Says that the address of a page was given to SQLite.
    pub(super) fn borrow(&mut self) {
        self.borrowed += 1;
    }

    pub(super) fn give_back(&mut self) {
        self.borrowed = self.borrowed.saturating_sub(1);
        if self.borrowed == 0 {
            self.retired.clear();
        }
    }

    pub(super) fn is_borrowed(&self) -> bool {
        self.borrowed > 0
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let chunks = self.chunks.iter().chain(&self.retired);
        chunks.map(|chunk| Chunk::layout(chunk.pages).size()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_one_place() {
        let mut next = (0, 0);
        for page in 0..1_000 {
            assert_eq!(locate(page), next, "page {page}");
            next = if next.1 + 1 == chunk_pages(next.0) {
                (next.0 + 1, 0)
            } else {
                (next.0, next.1 + 1)
            };
        }
    }

    #[test]
    fn a_borrowed_page_stays_readable_after_a_cut() {
        let mut arena = Arena::default();
        assert!(arena.reserve(3));
        arena.write(2, &[7; PAGE_BYTES]);
        let address = arena.address(2);
        arena.borrow();
        arena.cut(1);
        // SAFETY: the page was borrowed before the cut.
        assert_eq!(unsafe { address.read() }, 7);
        let before = arena.memory_bytes();
        assert_eq!(all_bytes(), before);
        arena.give_back();
        assert!(arena.memory_bytes() < before);
        drop(arena);
        assert_eq!(all_bytes(), 0);
    }
}
