//! What is known of each page: its checksum, and the commit that last changed it.
//!
//! Invariant: `checksum` is that of the whole database as LTX defines it, for the pages as they
//! were last entered. The lock page has no checksum.
//! Units: page numbers count from 1, as SQLite's.

use celld_core::ltx;
use celld_core::txid::{Checksum, Txid};

use super::PAGE_BYTES;

pub(super) const LOCK_PAGE: u32 = ltx::lock_page(PAGE_BYTES as u32);

/// 16 bytes for each page: 0.4 % of the database.
pub(super) struct Ledger {
    pages: Vec<Entry>,
    checksum: Checksum,
}

#[derive(Clone, Copy)]
struct Entry {
    checksum: Checksum,
    txid: Txid,
}

const UNKNOWN: Entry = Entry { checksum: Checksum::new(0), txid: Txid::ZERO };

impl Ledger {
    pub(super) fn new() -> Self {
        Self { pages: Vec::new(), checksum: Checksum::new(ltx::CHECKSUM_FLAG) }
    }

    /// Of all pages.
    pub(super) fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Forgets the pages behind `pages`, or makes room up to there.
    pub(super) fn resize(&mut self, pages: u32) {
        for entry in self.pages.iter().skip(pages as usize) {
            self.checksum = ltx::fold(self.checksum, entry.checksum);
        }
        self.pages.resize(pages as usize, UNKNOWN);
    }

    /// Enters what a page holds since commit `txid`.
    ///
    /// # Panics
    /// The page is behind the size.
    pub(super) fn enter(&mut self, pgno: u32, data: &[u8], txid: Txid) {
        let entry = &mut self.pages[pgno as usize - 1];
        let checksum = ltx::page_checksum(pgno, data);
        self.checksum = ltx::fold(ltx::fold(self.checksum, entry.checksum), checksum);
        *entry = Entry { checksum, txid };
    }

    /// The pages that changed at or after `min`, ascending.
    pub(super) fn changed_since(&self, min: Txid) -> Vec<u32> {
        let numbered = (1_u32..).zip(&self.pages);
        numbered.filter(|(pgno, e)| e.txid >= min && *pgno != LOCK_PAGE).map(|(n, _)| n).collect()
    }

    /// Every page but the lock page.
    pub(super) fn all(&self) -> Vec<u32> {
        (1..=self.pages.len() as u32).filter(|&pgno| pgno != LOCK_PAGE).collect()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Entry>()
    }
}

/// A set of page numbers that remembers which were put in: cheap to fill, cheap to empty.
#[derive(Default)]
pub(super) struct PageSet {
    bits: Vec<u64>,
    list: Vec<u32>,
}

impl PageSet {
    pub(super) fn insert(&mut self, pgno: u32) {
        let (word, bit) = (pgno as usize / 64, 1_u64 << (pgno % 64));
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        if self.bits[word] & bit == 0 {
            self.bits[word] |= bit;
            self.list.push(pgno);
        }
    }

    /// Empties the set into ascending order.
    pub(super) fn take_sorted(&mut self) -> Vec<u32> {
        let mut list = std::mem::take(&mut self.list);
        for &pgno in &list {
            self.bits[pgno as usize / 64] = 0;
        }
        list.sort_unstable();
        list
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bits.capacity() * 8 + self.list.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_pages_in_any_order_of_change() {
        let page = |n: u8| [n; PAGE_BYTES];
        let mut ledger = Ledger::new();
        ledger.resize(3);
        for (pgno, n) in [(3, 9), (1, 1), (2, 2), (3, 3)] {
            ledger.enter(pgno, &page(n), Txid::new(u64::from(n)));
        }
        let sums = (1..=3).map(|n| ltx::page_checksum(n, &page(n as u8)));
        let expected = sums.fold(Checksum::new(ltx::CHECKSUM_FLAG), ltx::fold);
        assert_eq!(ledger.checksum(), expected);
        assert_eq!(ledger.changed_since(Txid::new(2)), [2, 3]);
        ledger.resize(1);
        assert_eq!(ledger.checksum(), ltx::page_checksum(1, &page(1)));
        ledger.resize(0);
        assert_eq!(ledger.checksum().get(), ltx::CHECKSUM_FLAG);
    }

    #[test]
    fn a_set_of_pages_empties_in_order() {
        let mut set = PageSet::default();
        [70, 3, 70, 1].into_iter().for_each(|pgno| set.insert(pgno));
        assert_eq!(set.take_sorted(), [1, 3, 70]);
        set.insert(3);
        assert_eq!(set.take_sorted(), [3]);
    }
}
