//! Reads an LTX file, from a slice or as its bytes arrive.
//!
//! Invariant: no memory is taken for a length that was not checked; the same bytes give the same
//! steps, however they are cut.

use alloc::vec;
use alloc::vec::Vec;

use crc_fast::Digest;
use lz4_flex::block::{decompress_into, decompress_into_with_dict, get_maximum_output_size};

use super::{
    Fault, HEADER_BYTES, Header, LtxError, PAGE_HEADER_BYTES, PAGE_SIZED_BLOCK, TRAILER_BYTES,
    Trailer, check_complete, check_order, flagged, new_digest, push_varint,
};
use crate::txid::Checksum;

const FRAME_MAGIC: u32 = 0x184d_2204;
/// Blocks of a frame: more than these for one page is no page.
const FRAME_BLOCKS_MAX: usize = 64;
/// A varint of 64 bits has at most ten bytes.
const VARINT_BYTES_MAX: usize = 10;

/// A file as far as it has arrived.
pub struct Decoder {
    state: State,
    offset: u64,
    digest: Digest,
    /// Of the index that the pages ask for.
    wanted_index: Digest,
    found_index: Digest,
    last: u32,
    pages: u64,
}

enum State {
    Header,
    Pages(Header),
    /// And how many bytes of the index were read.
    Index(Header, u64),
    Trailer(Header),
    Done,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed than were given; nothing was consumed.
    More,
    /// The header.
    Header(Header),
    /// A page; its content is in the buffer.
    Page(u32),
    /// An entry of the index, which repeats what is known.
    Index,
    /// The file is whole and unharmed.
    Done(Trailer),
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// At the start of a file.
    pub fn new() -> Self {
        Self {
            state: State::Header,
            offset: 0,
            digest: new_digest(),
            wanted_index: new_digest(),
            found_index: new_digest(),
            last: 0,
            pages: 0,
        }
    }

    /// Reads one thing from the front of `input`; the first number says how many bytes it was.
    /// `page` is resized to one page when the header has come.
    ///
    /// # Errors
    /// The bytes are no LTX file of version 3, or were changed.
    pub fn step(&mut self, input: &[u8], page: &mut Vec<u8>) -> Result<(usize, Step), LtxError> {
        let read = match &self.state {
            State::Header => self.read_header(input, page),
            State::Pages(header) => self.read_page(*header, input, page),
            State::Index(header, bytes) => self.read_index(*header, *bytes, input),
            State::Trailer(header) => self.read_trailer(*header, input),
            State::Done if input.is_empty() => Ok(None),
            State::Done => Err(Fault::TrailingBytes),
        };
        match read.map_err(|fault| self.fail(fault))? {
            None => Ok((0, Step::More)),
            Some((used, step)) => {
                self.offset += used as u64;
                Ok((used, step))
            }
        }
    }

    /// To be called when no bytes are left.
    ///
    /// # Errors
    /// The file is not complete.
    pub fn end(&self) -> Result<(), LtxError> {
        let within = match self.state {
            State::Header => "the header",
            State::Pages(_) => "the pages",
            State::Index(..) => "the page index",
            State::Trailer(_) => "the trailer",
            State::Done => return Ok(()),
        };
        Err(self.fail(Fault::Truncated(within)))
    }

    fn fail(&self, fault: Fault) -> LtxError {
        // Faults of the header say where by themselves.
        LtxError { offset: self.offset, fault }
    }

    fn read_header(&mut self, input: &[u8], page: &mut Vec<u8>) -> Read {
        let Some(bytes) = input.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::from_bytes(bytes).map_err(|error| {
            self.offset = error.offset;
            error.fault
        })?;
        self.digest.update(bytes);
        page.clear();
        page.resize(header.page_size as usize, 0);
        self.state = State::Pages(header);
        Ok(Some((HEADER_BYTES, Step::Header(header))))
    }

    fn read_page(&mut self, header: Header, input: &[u8], page: &mut Vec<u8>) -> Read {
        let Some(head) = input.first_chunk::<PAGE_HEADER_BYTES>() else { return Ok(None) };
        let pgno = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let flags = u16::from_be_bytes([head[4], head[5]]);
        if pgno == 0 && flags == 0 {
            check_complete(&header, self.last)?;
            self.digest.update(head);
            self.state = State::Index(header, 0);
            return Ok(Some((PAGE_HEADER_BYTES, Step::Index)));
        }
        if flags & !PAGE_SIZED_BLOCK != 0 {
            return Err(Fault::PageFlags(flags));
        }
        check_order(&header, self.last, pgno)?;
        page.resize(header.page_size as usize, 0);
        let body = &input[PAGE_HEADER_BYTES..];
        let hashed = if flags & PAGE_SIZED_BLOCK == 0 { 0 } else { 4 };
        let size =
            if hashed == 0 { read_frame(pgno, body, page)? } else { read_block(pgno, body, page)? };
        let Some(size) = size else { return Ok(None) };
        self.digest.update(&input[..PAGE_HEADER_BYTES + hashed]);
        self.digest.update(page);
        let used = PAGE_HEADER_BYTES + size;
        let mut entry = Vec::with_capacity(3 * VARINT_BYTES_MAX);
        push_varint(u64::from(pgno), &mut entry);
        push_varint(self.offset, &mut entry);
        push_varint(used as u64, &mut entry);
        self.wanted_index.update(&entry);
        self.last = pgno;
        self.pages += 1;
        Ok(Some((used, Step::Page(pgno))))
    }

    fn read_index(&mut self, header: Header, bytes: u64, input: &[u8]) -> Read {
        let Some((pgno, mut used)) = read_varint(input)? else { return Ok(None) };
        if pgno == 0 {
            let Some(size) = input[used..].first_chunk::<8>() else { return Ok(None) };
            let same = self.wanted_index.finalize() == self.found_index.finalize();
            if !same || u64::from_be_bytes(*size) != bytes + used as u64 {
                return Err(Fault::Index);
            }
            used += 8;
            self.state = State::Trailer(header);
        } else {
            for _ in 0..2 {
                let Some((_, more)) = read_varint(&input[used..])? else { return Ok(None) };
                used += more;
            }
            // One entry for each page: a longer index would be read without end.
            self.pages = self.pages.checked_sub(1).ok_or(Fault::Index)?;
            self.found_index.update(&input[..used]);
            self.state = State::Index(header, bytes + used as u64);
        }
        self.digest.update(&input[..used]);
        Ok(Some((used, Step::Index)))
    }

    fn read_trailer(&mut self, header: Header, input: &[u8]) -> Read {
        let Some(bytes) = input.first_chunk::<TRAILER_BYTES>() else { return Ok(None) };
        let (post, file) = bytes.split_at(8);
        let number = |half: &[u8]| half.iter().fold(0_u64, |n, &b| n << 8 | u64::from(b));
        let trailer =
            Trailer { post: Checksum::new(number(post)), file: Checksum::new(number(file)) };
        self.digest.update(post);
        let found = flagged(self.digest.finalize());
        if found != trailer.file {
            return Err(Fault::FileChecksum { found, expected: trailer.file });
        }
        if !header.post_fits(trailer.post) {
            return Err(Fault::PostChecksum(trailer.post));
        }
        self.state = State::Done;
        Ok(Some((TRAILER_BYTES, Step::Done(trailer))))
    }
}

/// Bytes used and what they are; `None`: more bytes are needed.
type Read = Result<Option<(usize, Step)>, Fault>;

/// A size of four bytes, then one LZ4 block.
fn read_block(pgno: u32, body: &[u8], page: &mut [u8]) -> Result<Option<usize>, Fault> {
    let Some(size) = body.first_chunk::<4>() else { return Ok(None) };
    let size = u32::from_be_bytes(*size);
    if size as usize > get_maximum_output_size(page.len()) {
        return Err(Fault::CompressedLength(size));
    }
    let end = 4 + size as usize;
    let Some(block) = body.get(4..end) else { return Ok(None) };
    match decompress_into(block, page) {
        Ok(written) if written == page.len() => Ok(Some(end)),
        Ok(_) | Err(_) => Err(Fault::Compression(pgno)),
    }
}

/// An LZ4 frame (the form of older writers). Its own checksums are skipped: the file's cover it.
fn read_frame(pgno: u32, body: &[u8], page: &mut [u8]) -> Result<Option<usize>, Fault> {
    let bad = Fault::Compression(pgno);
    let Some(start) = body.first_chunk::<6>() else { return Ok(None) };
    let magic = u32::from_le_bytes([start[0], start[1], start[2], start[3]]);
    let flags = start[4];
    let dictionary = flags & 1 != 0;
    if magic != FRAME_MAGIC || flags >> 6 != 1 || dictionary {
        return Err(bad);
    }
    let (linked, block_sums) = (flags & 0x20 == 0, flags & 0x10 != 0);
    let (content_size, content_sum) = (flags & 0x08 != 0, flags & 0x04 != 0);
    // Magic, flags, block descriptor, the content's size, one byte of header checksum.
    let mut at = 6 + if content_size { 8 } else { 0 } + 1;
    let mut filled = 0;
    for _ in 0..FRAME_BLOCKS_MAX {
        let Some(word) = body.get(at..).and_then(|rest| rest.first_chunk::<4>()) else {
            return Ok(None);
        };
        let word = u32::from_le_bytes(*word);
        at += 4;
        if word == 0 {
            at += if content_sum { 4 } else { 0 };
            let whole = filled == page.len();
            return if !whole { Err(bad) } else { Ok((body.len() >= at).then_some(at)) };
        }
        let size = (word & 0x7fff_ffff) as usize;
        if size > get_maximum_output_size(page.len()) {
            return Err(Fault::CompressedLength(size as u32));
        }
        let Some(block) = body.get(at..at + size) else { return Ok(None) };
        let (done, room) = page.split_at_mut(filled);
        filled += if word >> 31 == 1 {
            room.get_mut(..size).ok_or(bad)?.copy_from_slice(block);
            size
        } else if linked {
            decompress_into_with_dict(block, room, done).map_err(|_| bad)?
        } else {
            decompress_into(block, room).map_err(|_| bad)?
        };
        at += size + if block_sums { 4 } else { 0 };
    }
    Err(bad)
}

fn read_varint(input: &[u8]) -> Result<Option<(u64, usize)>, Fault> {
    let mut number = 0_u64;
    for (at, &byte) in input.iter().take(VARINT_BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * at);
        if shifted >> (7 * at) != bits {
            return Err(Fault::Index);
        }
        number |= shifted;
        if byte & 0x80 == 0 {
            return Ok(Some((number, at + 1)));
        }
    }
    if input.len() >= VARINT_BYTES_MAX { Err(Fault::Index) } else { Ok(None) }
}

/// What [`Pages`] found next.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A page and its content.
    Page(u32, &'a [u8]),
    /// The file is whole and unharmed.
    End(Trailer),
}

/// A whole file in memory, page by page.
pub struct Pages<'a> {
    decoder: Decoder,
    rest: &'a [u8],
    page: Vec<u8>,
    header: Header,
}

impl<'a> Pages<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// `file` does not start with one.
    pub fn new(file: &'a [u8]) -> Result<Self, LtxError> {
        let (mut decoder, mut page) = (Decoder::new(), vec![]);
        match decoder.step(file, &mut page)? {
            (used, Step::Header(header)) => Ok(Self { decoder, rest: &file[used..], page, header }),
            _ => Err(LtxError { offset: file.len() as u64, fault: Fault::Truncated("the header") }),
        }
    }

    /// What the file says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next page, or the end. That pages are what the writer wrote is known only at the end.
    ///
    /// # Errors
    /// The file is cut or changed.
    pub fn next_item(&mut self) -> Result<Item<'_>, LtxError> {
        loop {
            let (used, step) = self.decoder.step(self.rest, &mut self.page)?;
            self.rest = &self.rest[used..];
            match step {
                Step::Page(pgno) => return Ok(Item::Page(pgno, &self.page)),
                Step::Done(trailer) if self.rest.is_empty() => return Ok(Item::End(trailer)),
                Step::Done(_) => {
                    return Err(self.decoder.fail(Fault::TrailingBytes));
                }
                Step::More => {
                    // What is there is the start of something that does not end.
                    let error = self.decoder.end().err();
                    let fault = error.map_or(Fault::CallOrder, |error| error.fault);
                    return Err(self.decoder.fail(fault));
                }
                Step::Header(_) | Step::Index => {}
            }
        }
    }
}
