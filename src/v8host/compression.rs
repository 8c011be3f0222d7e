//! Compressed bytes: the coder and the decoder of a stream, in pieces of bounded size.
//!
//! Invariant: one step makes at most [`STEP_BYTES`], however small what it reads is, and a decoder
//! holds no more than its window (32 KiB; 16 MiB for Brotli).
//! Source: RFC 1950 to 1952 and 7932; messages are workerd's.

use brotli::enc::StandardAlloc;
use brotli::{BrotliDecompressStream, BrotliResult, BrotliState, CompressorWriter};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// What one step makes at most.
pub const STEP_BYTES: usize = 64 << 10;
/// Base-two logarithm of the window of gzip and deflate.
const WINDOW_BITS: u8 = 15;
/// A good deal smaller than level 1, and several times as fast as level 11: for streams.
const BROTLI_LEVEL: u32 = 5;
/// Of the window that a coder keeps: 256 KiB.
const BROTLI_WINDOW_BITS: u32 = 18;

/// How bytes are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// RFC 1952.
    Gzip,
    /// RFC 1950: what HTTP and the Compression Standard call deflate.
    Deflate,
    /// RFC 1951.
    DeflateRaw,
    /// RFC 7932.
    Brotli,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Format::Gzip => "Gzip",
            Format::Deflate | Format::DeflateRaw => "Deflate",
            Format::Brotli => "Brotli",
        }
    }
}

/// Whether another compressed stream may follow the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// What follows is an error.
    One,
    /// As files of gzip may be concatenated.
    Many,
}

/// Compressed bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// No stream of this format, a changed one, or bytes behind its end.
    #[error("{0} decompression failed.")]
    Damaged(&'static str),
    /// The end is missing.
    #[error("{0} compressed stream ended prematurely.")]
    Cut(&'static str),
}

/// Decompresses one stream.
pub struct Decoder {
    format: Format,
    members: Members,
    state: Unpacking,
}

enum Unpacking {
    Zlib(Decompress),
    Brotli(Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>),
    /// At the end of a stream.
    Ended,
}

fn unpacking(format: Format) -> Unpacking {
    match format {
        Format::Gzip => Unpacking::Zlib(Decompress::new_gzip(WINDOW_BITS)),
        Format::Deflate => Unpacking::Zlib(Decompress::new(true)),
        Format::DeflateRaw => Unpacking::Zlib(Decompress::new(false)),
        Format::Brotli => {
            // Strict: windows beyond those of RFC 7932 would take up to a gigabyte.
            let alloc = StandardAlloc::default;
            Unpacking::Brotli(Box::new(BrotliState::new_strict(alloc(), alloc(), alloc())))
        }
    }
}

impl Decoder {
    /// At the beginning.
    pub fn new(format: Format, members: Members) -> Self {
        Self { format, members, state: unpacking(format) }
    }

    /// Appends what the front of `input` becomes to `out`, and returns how many bytes that was. To be
    /// called again with the rest, and for as long as it appends [`STEP_BYTES`].
    ///
    /// # Errors
    /// [`CompressionError::Damaged`]
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, CompressionError> {
        let damaged = CompressionError::Damaged(self.format.name());
        if input.is_empty() && matches!(self.state, Unpacking::Ended) {
            return Ok(0);
        }
        let start = out.len();
        let (taken, has_ended) = match &mut self.state {
            Unpacking::Ended if self.members == Members::One => return Err(damaged),
            Unpacking::Ended => {
                self.state = unpacking(self.format);
                return self.step(input, out);
            }
            Unpacking::Zlib(zlib) => {
                out.resize(start + STEP_BYTES, 0);
                let (read, written) = (zlib.total_in(), zlib.total_out());
                let status = zlib.decompress(input, &mut out[start..], FlushDecompress::None);
                out.truncate(start + (zlib.total_out() - written) as usize);
                let status = status.map_err(|_| damaged)?;
                ((zlib.total_in() - read) as usize, status == Status::StreamEnd)
            }
            Unpacking::Brotli(brotli) => {
                out.resize(start + STEP_BYTES, 0);
                let (mut left, mut taken) = (input.len(), 0);
                let (mut room, mut made, mut total) = (STEP_BYTES, 0, 0);
                let result = BrotliDecompressStream(
                    &mut left,
                    &mut taken,
                    input,
                    &mut room,
                    &mut made,
                    &mut out[start..],
                    &mut total,
                    brotli,
                );
                out.truncate(start + made);
                match result {
                    BrotliResult::ResultSuccess => (taken, true),
                    BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => (taken, false),
                    BrotliResult::ResultFailure => return Err(damaged),
                }
            }
        };
        if has_ended {
            self.state = Unpacking::Ended;
        } else if taken == 0 && out.len() == start && !input.is_empty() {
            // Room and bytes, and no progress: it would be asked for ever.
            return Err(damaged);
        }
        Ok(taken)
    }

    /// To be called when no bytes are left.
    ///
    /// # Errors
    /// [`CompressionError::Cut`]
    pub fn end(&self) -> Result<(), CompressionError> {
        match self.state {
            Unpacking::Ended => Ok(()),
            Unpacking::Zlib(_) | Unpacking::Brotli(_) => {
                Err(CompressionError::Cut(self.format.name()))
            }
        }
    }
}

/// Compresses one stream.
pub struct Encoder(Packing);

enum Packing {
    Zlib(Compress),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
}

impl Encoder {
    /// At the beginning.
    pub fn new(format: Format) -> Self {
        let level = Compression::default();
        Self(match format {
            Format::Gzip => Packing::Zlib(Compress::new_gzip(level, WINDOW_BITS)),
            Format::Deflate => Packing::Zlib(Compress::new(level, true)),
            Format::DeflateRaw => Packing::Zlib(Compress::new(level, false)),
            Format::Brotli => {
                let (level, bits) = (BROTLI_LEVEL, BROTLI_WINDOW_BITS);
                let writer = CompressorWriter::new(Vec::new(), STEP_BYTES, level, bits);
                Packing::Brotli(Box::new(writer))
            }
        })
    }

    /// Takes all of `input`, of up to [`STEP_BYTES`], and appends what it has made so far to `out`.
    pub fn push(&mut self, input: &[u8], out: &mut Vec<u8>) {
        match &mut self.0 {
            Packing::Zlib(zlib) => deflate(zlib, input, FlushCompress::None, out),
            Packing::Brotli(writer) => {
                use std::io::Write as _;
                writer.write_all(input).expect("memory takes all");
                out.append(writer.get_mut());
            }
        }
    }

    /// Appends what is held back, so that a reader sees all that was pushed.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        match &mut self.0 {
            Packing::Zlib(zlib) => deflate(zlib, &[], FlushCompress::Sync, out),
            Packing::Brotli(writer) => {
                use std::io::Write as _;
                writer.flush().expect("memory takes all");
                out.append(writer.get_mut());
            }
        }
    }

    /// Appends the end.
    pub fn finish(self, out: &mut Vec<u8>) {
        match self.0 {
            Packing::Zlib(mut zlib) => deflate(&mut zlib, &[], FlushCompress::Finish, out),
            Packing::Brotli(writer) => out.append(&mut writer.into_inner()),
        }
    }
}

fn deflate(zlib: &mut Compress, mut input: &[u8], flush: FlushCompress, out: &mut Vec<u8>) {
    loop {
        out.reserve(STEP_BYTES);
        let room = out.capacity() - out.len();
        let (read, written) = (zlib.total_in(), zlib.total_out());
        let status = zlib.compress_vec(input, out, flush).expect("any bytes can be compressed");
        input = &input[(zlib.total_in() - read) as usize..];
        let is_full = (zlib.total_out() - written) as usize == room;
        if status == Status::StreamEnd || (input.is_empty() && !is_full) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Format; 4] = [Format::Gzip, Format::Deflate, Format::DeflateRaw, Format::Brotli];

    fn compress(format: Format, pieces: &[&[u8]]) -> Vec<u8> {
        let (mut encoder, mut out) = (Encoder::new(format), Vec::new());
        for piece in pieces.iter().flat_map(|piece| piece.chunks(STEP_BYTES)) {
            encoder.push(piece, &mut out);
        }
        encoder.finish(&mut out);
        out
    }

    /// Decompresses what comes in pieces of `piece` bytes, and checks what each step makes.
    fn unpack(
        mut decoder: Decoder,
        input: &[u8],
        piece: usize,
    ) -> Result<Vec<u8>, CompressionError> {
        let mut all = Vec::new();
        for mut input in input.chunks(piece) {
            loop {
                let start = all.len();
                let taken = decoder.step(input, &mut all)?;
                input = &input[taken..];
                let made = all.len() - start;
                assert!(made <= STEP_BYTES);
                if input.is_empty() && made < STEP_BYTES {
                    break;
                }
            }
        }
        decoder.end().map(|()| all)
    }

    fn noise(bytes: u32) -> Vec<u8> {
        (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn what_is_compressed_comes_back_however_it_is_cut() {
        let (noise, zeros) = (noise(300_000), vec![0; 3_000_000]);
        for format in ALL {
            for whole in [&b""[..], b"hello", &noise, &zeros] {
                let packed = compress(format, &[whole]);
                for piece in [1, 7, 4096, usize::MAX] {
                    let decoder = Decoder::new(format, Members::One);
                    let back = unpack(decoder, &packed, piece);
                    assert!(back == Ok(whole.to_vec()), "{format:?} {} by {piece}", whole.len());
                }
            }
        }
    }

    #[test]
    fn what_was_flushed_can_be_read_before_the_end() {
        for format in ALL {
            let (mut encoder, mut packed) = (Encoder::new(format), Vec::new());
            encoder.push(b"first", &mut packed);
            encoder.flush(&mut packed);
            let (mut decoder, mut out) = (Decoder::new(format, Members::One), Vec::new());
            decoder.step(&packed, &mut out).expect("good bytes");
            assert_eq!(out, b"first", "{format:?}");
        }
    }

    #[test]
    fn cut_changed_and_longer_streams_are_errors() {
        let name = |format: Format| format.name();
        for format in ALL {
            let packed = compress(format, &[b"some words, some words and some more words"]);
            let unpack = |bytes: &[u8]| unpack(Decoder::new(format, Members::One), bytes, 5);
            for end in 0..packed.len() {
                assert_eq!(unpack(&packed[..end]), Err(CompressionError::Cut(name(format))));
            }
            let longer = [&packed[..], b"x"].concat();
            assert_eq!(unpack(&longer), Err(CompressionError::Damaged(name(format))));
        }
        let garbage = unpack(Decoder::new(Format::Gzip, Members::Many), b"not gzip at all", 3);
        assert_eq!(garbage, Err(CompressionError::Damaged("Gzip")));
        // A changed byte of the content is found by the checksum at the end.
        let mut packed = compress(Format::Gzip, &[b"hello world"]);
        packed[12] ^= 1;
        let changed = unpack(Decoder::new(Format::Gzip, Members::Many), &packed, 3);
        assert!(changed.is_err(), "{changed:?}");
    }

    #[test]
    fn concatenated_members_are_one_stream_where_that_is_allowed() {
        let member = compress(Format::Gzip, &[b"once "]);
        let twice = [&member[..], &member].concat();
        let many = unpack(Decoder::new(Format::Gzip, Members::Many), &twice, 4);
        assert_eq!(many.as_deref(), Ok(&b"once once "[..]));
        let junk = [&member[..], b"junk"].concat();
        let trailing = unpack(Decoder::new(Format::Gzip, Members::Many), &junk, 4);
        assert_eq!(trailing, Err(CompressionError::Damaged("Gzip")));
    }

    #[test]
    fn a_window_beyond_the_standard_is_refused_before_memory_is_taken() {
        // The first bytes of a stream with a "large window" of 2^30 bytes.
        let large = [0x11, 0x1e, 0x00, 0x00, 0x00, 0x00];
        let refused = unpack(Decoder::new(Format::Brotli, Members::One), &large, 6);
        assert_eq!(refused, Err(CompressionError::Damaged("Brotli")));
    }
}
