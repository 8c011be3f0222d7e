//! The codec against itself, against damage, and against what other programs wrote.

use std::vec::Vec;
use std::{format, vec};

use proptest::prelude::*;

use super::*;

fn header(min: u64, commit: u32, page_size: u32) -> Header {
    let pre = if min == 1 { 0 } else { CHECKSUM_FLAG | 1 };
    Header {
        checksummed: true,
        page_size,
        commit,
        min: Txid::new(min),
        max: Txid::new(min + 2),
        timestamp_ms: 1_000,
        pre: Checksum::new(pre),
        node: 7,
    }
}

fn encode(header: &Header, pages: &[(u32, Vec<u8>)], post: u64) -> (Vec<u8>, Trailer) {
    let (mut encoder, mut out) = (Encoder::new(), vec![]);
    encoder.begin(header, &mut out).expect("a good header");
    for (pgno, data) in pages {
        encoder.page(*pgno, data, &mut out).expect("a good page");
    }
    let trailer = encoder.finish(Checksum::new(post | CHECKSUM_FLAG), &mut out).expect("the end");
    (out, trailer)
}

type Decoded = (Header, Vec<(u32, Vec<u8>)>, Trailer);

fn decode(file: &[u8]) -> Result<Decoded, LtxError> {
    let mut pages = Pages::new(file)?;
    let header = *pages.header();
    let mut found = vec![];
    loop {
        match pages.next_item()? {
            Item::Page(pgno, data) => found.push((pgno, data.to_vec())),
            Item::End(trailer) => return Ok((header, found, trailer)),
        }
    }
}

/// As `decode`, but the bytes come in pieces of `piece`.
fn decode_in_pieces(file: &[u8], piece: usize) -> Result<usize, LtxError> {
    let (mut decoder, mut page, mut waiting, mut count) = (Decoder::new(), vec![], vec![], 0);
    for bytes in file.chunks(piece) {
        waiting.extend_from_slice(bytes);
        loop {
            let (used, step) = decoder.step(&waiting, &mut page)?;
            waiting.drain(..used);
            match step {
                Step::More => break,
                Step::Page(_) => count += 1,
                Step::Done(_) if waiting.is_empty() => break,
                Step::Header(_) | Step::Index | Step::Done(_) => {}
            }
        }
    }
    decoder.end().map(|()| count)
}

fn patterned(seed: u8) -> Vec<u8> {
    (0..512_u32).map(|i| seed.wrapping_add((i % 7) as u8)).collect()
}

/// One page as the reference's LZ4 writes it: 17 literals, one match, 7 literals.
fn reference_block(page: &[u8]) -> Vec<u8> {
    let mut block = vec![0xff, 2];
    block.extend_from_slice(&page[..17]);
    block.extend_from_slice(&[7, 0, 255, 214, 0x70]);
    block.extend_from_slice(&page[505..]);
    block
}

/// Two files that superfly/ltx pins in its own tests by the checksum in their trailer. It covers
/// the index, and with it offsets and sizes.
#[test]
fn files_of_the_reference_encoder_are_read() {
    let mut sparse = header(2, 16, 512);
    (sparse.max, sparse.node) = (Txid::new(3), 0);
    let mut snapshot = header(1, 6, 512);
    (snapshot.max, snapshot.node) = (Txid::new(4), 0);
    let cases = [
        (sparse, vec![2_u32, 5, 9, 16], 2, 0xe27f_4c18_f0da_2c10_u64),
        (snapshot, vec![1, 2, 3, 4, 5, 6], 3, 0xd926_9676_72f7_ca53),
    ];
    for (header, pgnos, post, checksum) in cases {
        let (mut file, mut index) = (header.to_bytes().to_vec(), vec![]);
        for &pgno in &pgnos {
            let block = reference_block(&patterned(pgno as u8));
            push_varint(u64::from(pgno), &mut index);
            push_varint(file.len() as u64, &mut index);
            push_varint(block.len() as u64 + 10, &mut index);
            file.extend_from_slice(&pgno.to_be_bytes());
            file.extend_from_slice(&[0, 1, 0, 0, 0, block.len() as u8]);
            file.extend_from_slice(&block);
        }
        file.extend_from_slice(&[0; PAGE_HEADER_BYTES]);
        file.extend_from_slice(&index);
        file.push(0);
        file.extend_from_slice(&(index.len() as u64 + 1).to_be_bytes());
        file.extend_from_slice(&(CHECKSUM_FLAG | post).to_be_bytes());
        file.extend_from_slice(&checksum.to_be_bytes());
        let (found, pages, trailer) = decode(&file).expect("a file of the reference");
        assert_eq!((found, trailer.file.get()), (header, checksum));
        assert!(pages.iter().zip(&pgnos).all(|(page, &n)| *page == (n, patterned(n as u8))));
        // Our own differs only in the blocks, as our LZ4 finds shorter ones.
        let (ours, _) = encode(&header, &pages, post);
        assert_eq!(decode(&ours).expect("our own").1, pages);
    }
}

/// Version 1 has the same header and checksums; its pages and index differ.
#[test]
fn header_and_page_checksum_agree_with_an_independent_crate() {
    use litetx::PageChecksum as _;
    let data = patterned(3);
    let theirs = data.page_checksum(litetx::PageNum::new(9).expect("a page number"));
    assert_eq!(page_checksum(9, &data).get(), theirs.into_inner());
    let (file, _) = encode(&header(2, 16, 512), &[(2, data)], 2);
    let (_, theirs) = litetx::Decoder::new(file.as_slice()).expect("a header");
    assert_eq!((theirs.commit.into_inner(), theirs.page_size.into_inner()), (16, 512));
    assert_eq!((theirs.min_txid.into_inner(), theirs.max_txid.into_inner()), (2, 4));
    assert_eq!(theirs.pre_apply_checksum.map(|c| c.into_inner()), Some(CHECKSUM_FLAG | 1));
}

/// Frames as older writers made them: one LZ4 frame for each page, without a size.
#[test]
fn pages_in_lz4_frames_are_read() {
    use lz4_flex::frame::{BlockMode, FrameEncoder, FrameInfo};
    use std::io::Write as _;
    for (mode, sums) in [(BlockMode::Independent, true), (BlockMode::Linked, false)] {
        let pages: Vec<_> = [2_u32, 5].map(|n| (n, patterned(n as u8))).into();
        let head = header(2, 16, 512);
        let (mut file, mut digest, mut index) = (head.to_bytes().to_vec(), new_digest(), vec![]);
        digest.update(&file);
        for (pgno, data) in &pages {
            let info = FrameInfo::new().block_mode(mode).content_checksum(sums);
            let mut frame = FrameEncoder::with_frame_info(info.block_checksums(sums), vec![]);
            frame.write_all(data).expect("memory");
            let frame = frame.finish().expect("memory");
            let start = file.len();
            file.extend_from_slice(&pgno.to_be_bytes());
            file.extend_from_slice(&[0, 0]);
            digest.update(&file[start..]);
            digest.update(data);
            file.extend_from_slice(&frame);
            push_varint(u64::from(*pgno), &mut index);
            push_varint(start as u64, &mut index);
            push_varint((file.len() - start) as u64, &mut index);
        }
        let end = file.len();
        file.extend_from_slice(&[0; PAGE_HEADER_BYTES]);
        file.extend_from_slice(&index);
        file.push(0);
        file.extend_from_slice(&(index.len() as u64 + 1).to_be_bytes());
        file.extend_from_slice(&(CHECKSUM_FLAG | 5).to_be_bytes());
        digest.update(&file[end..]);
        file.extend_from_slice(&flagged(digest.finalize()).get().to_be_bytes());
        let (_, found, _) = decode(&file).expect("the older form");
        assert_eq!(found, pages);
        assert_eq!(decode_in_pieces(&file, 1), Ok(2));
    }
}

#[test]
fn every_cut_is_an_error_and_a_changed_byte_never_gives_other_pages() {
    let noise = (0..512_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let pages = [(2, patterned(1)), (3, noise)];
    let (file, _) = encode(&header(2, 16, 512), &pages, 2);
    for end in 0..file.len() {
        let error = decode(&file[..end]).expect_err("a cut file");
        assert!(matches!(error.fault, Fault::Truncated(_)), "{end}: {error}");
    }
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut changed = file.clone();
            changed[at] ^= 1 << bit;
            // The checksum covers pages, not their compressed form, which may have two spellings.
            if let Ok((_, found, _)) = decode(&changed) {
                assert_eq!(found, pages, "byte {at} bit {bit}");
            }
        }
    }
    let mut longer = file.clone();
    longer.push(0);
    assert_eq!(decode(&longer).expect_err("too long").fault, Fault::TrailingBytes);
}

#[test]
fn a_size_beyond_any_page_is_refused_before_memory_is_taken() {
    let (mut file, _) = encode(&header(2, 16, 512), &[(2, patterned(1))], 2);
    file[106..110].copy_from_slice(&u32::MAX.to_be_bytes());
    let error = decode(&file).expect_err("a length of 4 GiB");
    assert_eq!(error, LtxError { offset: 100, fault: Fault::CompressedLength(u32::MAX) });
}

#[test]
fn pages_out_of_order_and_the_lock_page_are_refused() {
    let lock = lock_page(65_536);
    let (mut encoder, mut out) = (Encoder::new(), vec![]);
    encoder.begin(&header(2, lock + 9, 65_536), &mut out).expect("a good header");
    let page = vec![1; 65_536];
    encoder.page(5, &page, &mut out).expect("a good page");
    let size = out.len();
    for pgno in [0, 4, 5, lock, lock + 10] {
        encoder.page(pgno, &page, &mut out).expect_err("not a page that may come");
        assert_eq!(out.len(), size, "nothing is left of page {pgno}");
    }
    encoder.page(lock + 1, &page, &mut out).expect("the page after the lock page");
    encoder.finish(Checksum::new(CHECKSUM_FLAG), &mut out).expect("the end");
    assert_eq!(decode(&out).expect("a good file").1.len(), 2);
}

#[test]
fn a_snapshot_must_hold_every_page() {
    let (mut encoder, mut out) = (Encoder::new(), vec![]);
    encoder.begin(&header(1, 3, 512), &mut out).expect("a good header");
    encoder.page(2, &patterned(2), &mut out).expect_err("page 1 is missing");
    encoder.page(1, &patterned(1), &mut out).expect("page 1");
    encoder.page(3, &patterned(3), &mut out).expect_err("page 2 is missing");
    let error = encoder.finish(Checksum::new(CHECKSUM_FLAG), &mut out).expect_err("1 of 3");
    assert_eq!(error.fault, Fault::SnapshotIncomplete { last: 1, commit: 3 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(
        min in 1_u64..4,
        power in 9_u32..14,
        kinds in prop::collection::vec((any::<u8>(), any::<bool>(), 1_u32..5), 0..20),
        piece in 1_usize..3_000,
    ) {
        let (page_size, mut pgno, mut pages) = (1 << power, 0, vec![]);
        for (seed, random, gap) in kinds {
            pgno += if min == 1 { 1 } else { gap };
            let mut state = u32::from(seed);
            let data = (0..page_size).map(|_| {
                state = if random { state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) } else { state };
                (state >> 24) as u8
            }).collect::<Vec<u8>>();
            pages.push((pgno, data));
        }
        let header = header(min, pgno, page_size);
        let post = if pgno == 0 { 0 } else { 77 };
        let (file, trailer) = encode(&header, &pages, post);
        prop_assert_eq!(decode_in_pieces(&file, piece), Ok(pages.len()));
        prop_assert_eq!(decode(&file), Ok((header, pages, trailer)), "{}", format!("{} bytes", file.len()));
    }

    #[test]
    fn bytes_of_chance_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..600), commit in 0_u8..9) {
        if bytes.len() > HEADER_BYTES {
            let good = header(2, u32::from(commit), 512).to_bytes();
            bytes[..HEADER_BYTES].copy_from_slice(&good);
            // Small page numbers and flags, so that the pages are looked at.
            for (at, byte) in [0, 0, 0, 1, 0, bytes[HEADER_BYTES] & 1].into_iter().enumerate() {
                if let Some(place) = bytes.get_mut(HEADER_BYTES + at) { *place = byte; }
            }
        }
        prop_assert!(decode(&bytes).is_err());
    }
}
