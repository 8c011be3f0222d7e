//! Writes an LTX file into a growing buffer.
//!
//! Invariant: what was appended between `begin` and `finish` is one whole file. The buffer may be
//! drained between calls; offsets count from `begin`.

use alloc::vec::Vec;

use crc_fast::Digest;
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

use super::{
    Fault, Header, LtxError, PAGE_HEADER_BYTES, PAGE_SIZED_BLOCK, Trailer, check_complete,
    check_order, flagged, new_digest, push_varint,
};
use crate::txid::Checksum;

/// Writes one file after the other; its tables (8 KiB and the index) are kept between them.
pub struct Encoder {
    table: CompressTable,
    /// The page index as it will be written, without its end mark.
    index: Vec<u8>,
    file: Option<File>,
}

struct File {
    header: Header,
    digest: Digest,
    written: u64,
    last: u32,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// Without a file.
    pub fn new() -> Self {
        Self { table: CompressTable::default(), index: Vec::new(), file: None }
    }

    /// Starts a file; one that was not finished is given up.
    ///
    /// # Errors
    /// The header is not one of version 3.
    pub fn begin(&mut self, header: &Header, out: &mut Vec<u8>) -> Result<(), LtxError> {
        header.validate()?;
        self.index.clear();
        let mut file = File { header: *header, digest: new_digest(), written: 0, last: 0 };
        file.push_hashed(&header.to_bytes(), out);
        self.file = Some(file);
        Ok(())
    }

    /// Appends a page. Pages ascend; a snapshot has all of them but the lock page.
    ///
    /// # Errors
    /// The page may not come here, or is not one page long. Nothing was appended.
    pub fn page(&mut self, pgno: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), LtxError> {
        let Some(file) = &mut self.file else {
            return Err(LtxError { offset: 0, fault: Fault::CallOrder });
        };
        let offset = file.written;
        let fail = |fault| LtxError { offset, fault };
        check_order(&file.header, file.last, pgno).map_err(fail)?;
        if data.len() != file.header.page_size as usize {
            let expected = file.header.page_size;
            return Err(fail(Fault::PageLength { found: data.len(), expected }));
        }
        let start = out.len();
        let block = start + PAGE_HEADER_BYTES + 4;
        out.resize(block + get_maximum_output_size(data.len()), 0);
        let Ok(size) = compress_into_with_table(data, &mut out[block..], &mut self.table) else {
            out.truncate(start);
            return Err(fail(Fault::Compression(pgno)));
        };
        out.truncate(block + size);
        out[start..start + 4].copy_from_slice(&pgno.to_be_bytes());
        out[start + 4..start + 6].copy_from_slice(&PAGE_SIZED_BLOCK.to_be_bytes());
        out[start + 6..block].copy_from_slice(&(size as u32).to_be_bytes());
        file.digest.update(&out[start..block]);
        file.digest.update(data);
        let frame = (out.len() - start) as u64;
        push_varint(u64::from(pgno), &mut self.index);
        push_varint(offset, &mut self.index);
        push_varint(frame, &mut self.index);
        file.written += frame;
        file.last = pgno;
        Ok(())
    }

    /// Appends index and trailer. `post`: checksum of the database after the file is applied.
    ///
    /// # Errors
    /// A snapshot lacks pages, or `post` is no checksum of such a database.
    pub fn finish(&mut self, post: Checksum, out: &mut Vec<u8>) -> Result<Trailer, LtxError> {
        let Some(mut file) = self.file.take() else {
            return Err(LtxError { offset: 0, fault: Fault::CallOrder });
        };
        let offset = file.written;
        let fail = |fault| LtxError { offset, fault };
        check_complete(&file.header, file.last).map_err(fail)?;
        if !file.header.post_fits(post) {
            return Err(fail(Fault::PostChecksum(post)));
        }
        file.push_hashed(&[0; PAGE_HEADER_BYTES], out);
        self.index.push(0);
        file.push_hashed(&self.index, out);
        file.push_hashed(&(self.index.len() as u64).to_be_bytes(), out);
        file.push_hashed(&post.get().to_be_bytes(), out);
        let trailer = Trailer { post, file: flagged(file.digest.finalize()) };
        out.extend_from_slice(&trailer.file.get().to_be_bytes());
        Ok(trailer)
    }

    /// Bytes that the encoder keeps between files.
    pub fn memory_bytes(&self) -> usize {
        // The table has 4096 entries of two bytes, or of four once pages of 64 KiB were seen.
        let table = match self.table {
            CompressTable::Small(_) => 8_192,
            CompressTable::Large(_) => 16_384,
        };
        self.index.capacity() + table
    }
}

impl File {
    fn push_hashed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.digest.update(bytes);
        self.written += bytes.len() as u64;
        out.extend_from_slice(bytes);
    }
}
