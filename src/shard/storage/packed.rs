//! The pages of a small database whose cell rests, without their zeros.
//!
//! Most of a small database is empty: a counter's three pages are 12 KiB of which 300 bytes say
//! something. Whoever uses the cell again gets all pages back; that is little more than copying
//! them.
//! Units: page indexes count from 0; lengths are in words of 8 bytes.

use std::io;

use super::PAGE_BYTES;
use super::arena::{Arena, Counted};

/// 128 KiB: packed within some 40 µs and unpacked within 10, beside a rest of a minute or more.
const PAGES_MAX: u32 = 32;
const WORD_BYTES: usize = 8;
const PAGE_WORDS: usize = PAGE_BYTES / WORD_BYTES;

/// Takes the place of an [`Arena`].
pub(super) struct Packed {
    /// For each page, until it is full: how many words are as they were, those, and how many zeros
    /// follow. The counts have two bytes, little-endian.
    bytes: Box<[u8]>,
    pages: usize,
    #[expect(dead_code, reason = "counts until it is dropped")]
    counted: Counted,
}

impl Packed {
    /// `None`: there are many pages, or none, or they would hardly become smaller.
    pub(super) fn new(arena: &Arena, pages: u32) -> Option<Self> {
        if pages == 0 || pages > PAGES_MAX {
            return None;
        }
        let pages = pages as usize;
        let mut bytes = Vec::new();
        for page in 0..pages {
            push(arena.page(page), &mut bytes);
            if bytes.len() >= pages * PAGE_BYTES / 2 {
                return None;
            }
        }
        let counted = Counted::new(bytes.len());
        Some(Self { bytes: bytes.into_boxed_slice(), pages, counted })
    }

    /// All pages where they can be changed.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn unpack(&self) -> io::Result<Arena> {
        let mut arena = Arena::default();
        if !arena.reserve(self.pages) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let (mut rest, mut buffer) = (&self.bytes[..], [0; PAGE_BYTES]);
        for page in 0..self.pages {
            rest = expand(rest, &mut buffer)?;
            arena.write(page, &buffer);
        }
        Ok(arena)
    }

    /// Reads one page.
    ///
    /// # Errors
    /// A fault of ours: there is no such page.
    pub(super) fn page(&self, page: usize, buffer: &mut [u8; PAGE_BYTES]) -> io::Result<()> {
        let mut rest = &self.bytes[..];
        for _ in 0..=page {
            rest = expand(rest, buffer)?;
        }
        Ok(())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }
}

fn push(page: &[u8], out: &mut Vec<u8>) {
    let (words, _) = page.as_chunks::<WORD_BYTES>();
    let is_zero = |at: usize| words.get(at).is_none_or(|word| *word == [0; WORD_BYTES]);
    let count = |words: usize| (words as u16).to_le_bytes();
    let mut at = 0;
    while at < PAGE_WORDS {
        let start = at;
        // A single zero would cost half of what it saves.
        while at < PAGE_WORDS && !(is_zero(at) && is_zero(at + 1)) {
            at += 1;
        }
        out.extend_from_slice(&count(at - start));
        out.extend_from_slice(words[start..at].as_flattened());
        let zeros = at;
        while at < PAGE_WORDS && is_zero(at) {
            at += 1;
        }
        out.extend_from_slice(&count(at - zeros));
    }
}

/// The first page goes into `page`; returns what is behind it.
fn expand<'a>(mut rest: &'a [u8], page: &mut [u8; PAGE_BYTES]) -> io::Result<&'a [u8]> {
    let torn = || io::Error::new(io::ErrorKind::InvalidData, "packed pages are damaged");
    let mut at = 0;
    while at < PAGE_BYTES {
        let kept = rest.split_off(..2).ok_or_else(torn)?;
        let kept = usize::from(u16::from_le_bytes([kept[0], kept[1]])) * WORD_BYTES;
        let kept = rest.split_off(..kept).ok_or_else(torn)?;
        page.get_mut(at..at + kept.len()).ok_or_else(torn)?.copy_from_slice(kept);
        at += kept.len();
        let zeros = rest.split_off(..2).ok_or_else(torn)?;
        let zeros = usize::from(u16::from_le_bytes([zeros[0], zeros[1]])) * WORD_BYTES;
        page.get_mut(at..at + zeros).ok_or_else(torn)?.fill(0);
        at += zeros;
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(pages: &[[u8; PAGE_BYTES]]) -> Arena {
        let mut arena = Arena::default();
        assert!(arena.reserve(pages.len()));
        pages.iter().enumerate().for_each(|(at, page)| arena.write(at, page));
        arena
    }

    /// No two words of zeros beside each other.
    fn full() -> [u8; PAGE_BYTES] {
        std::array::from_fn(|at| if (at / WORD_BYTES).is_multiple_of(2) { 0 } else { at as u8 | 1 })
    }

    #[test]
    fn pages_come_back_as_they_were() {
        let mut pages = vec![[0; PAGE_BYTES]; PAGES_MAX as usize];
        pages[1] = full();
        pages[2][4_000..].fill(7);
        pages[3][0] = 1;
        pages[4][PAGE_BYTES - 1] = 1;
        pages[5][100..3_000].copy_from_slice(&full()[..2_900]);
        let packed = Packed::new(&arena(&pages), PAGES_MAX).unwrap();
        assert!(packed.memory_bytes() < 2 * PAGE_BYTES, "{}", packed.memory_bytes());
        let whole = packed.unpack().unwrap();
        let mut buffer = [1; PAGE_BYTES];
        for (at, page) in pages.iter().enumerate() {
            assert_eq!(whole.page(at), page);
            packed.page(at, &mut buffer).unwrap();
            assert_eq!(&buffer, page);
        }
        assert!(packed.page(pages.len(), &mut buffer).is_err());
    }

    #[test]
    fn what_would_gain_little_is_left_alone() {
        let pages = [full(); 2];
        assert!(Packed::new(&arena(&pages), 2).is_none());
        assert!(Packed::new(&arena(&pages), 0).is_none());
        let many = vec![[0; PAGE_BYTES]; PAGES_MAX as usize + 1];
        assert!(Packed::new(&arena(&many), PAGES_MAX + 1).is_none());
    }
}
