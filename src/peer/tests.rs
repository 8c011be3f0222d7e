//! The codec against itself, against what it sends, and against bytes from nowhere.

use bytes::{Bytes, BytesMut};
use celld_core::cell::CellId;
use celld_core::epoch::{Epoch, FencingToken};
use celld_core::node::{NodeId, SessionId};
use proptest::prelude::*;

use super::*;

fn session() -> impl Strategy<Value = SessionId> {
    any::<u128>().prop_map(|n| SessionId::parse(&format!("{n:032x}")).expect("32 digits"))
}

fn token() -> impl Strategy<Value = FencingToken> {
    (1..=u64::MAX, session()).prop_map(|(epoch, session)| FencingToken {
        epoch: Epoch::from_record(epoch).expect("not zero"),
        session,
    })
}

fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn headers() -> impl Strategy<Value = Vec<(String, Bytes)>> {
    prop::collection::vec(("[a-z-]{1,20}", bytes(40)), 0..8)
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![Just(Content::Nothing), Just(Content::Streamed)]
}

fn message() -> impl Strategy<Value = Message> {
    let cell = ("[A-Za-z][A-Za-z0-9._-]{0,20}", any::<[u64; 4]>()).prop_map(|(namespace, n)| {
        let id = n.map(|n| format!("{n:016x}")).concat();
        CellId::new(&namespace, &id).expect("a good name")
    });
    let request = (cell, "[A-Z]{1,8}", "\\PC{0,60}", headers(), content()).prop_map(
        |(cell, method, url, headers, content)| Request { cell, method, url, headers, content },
    );
    let response = (prop_oneof![Just(101), 200..600_u16], headers(), content())
        .prop_map(|(status, headers, content)| Response { status, headers, content });
    let cancel = prop_oneof![
        Just(Cancel::Gone),
        Just(Cancel::NotOwner),
        Just(Cancel::Overloaded),
        "\\PC{0,60}".prop_map(Cancel::Failed),
    ];
    prop_oneof![
        request.prop_map(Message::Request),
        response.prop_map(Message::Response),
        bytes(300).prop_map(Message::Chunk),
        Just(Message::End),
        cancel.prop_map(Message::Cancel),
        any::<u32>().prop_map(Message::Window),
    ]
}

fn frame() -> impl Strategy<Value = Frame> {
    (any::<u64>(), token(), message()).prop_map(|(call, token, message)| Frame {
        call: CallId(call),
        token,
        message,
    })
}

fn hello() -> impl Strategy<Value = Hello> {
    ("[a-z0-9][a-z0-9-]{0,62}", session()).prop_map(|(node, session)| Hello {
        node: NodeId::parse(&node).expect("a good name"),
        session,
    })
}

fn encoded(frame: &Frame) -> BytesMut {
    let mut out = BytesMut::new();
    frame.encode(&mut out).expect("a frame that fits");
    out
}

/// A frame whose message can be exchanged, for tests of one case.
fn plain(message: Message) -> Frame {
    let session = SessionId::parse(&"0f".repeat(16)).expect("32 digits");
    Frame { call: CallId(7), token: FencingToken { epoch: Epoch::FIRST, session }, message }
}

/// Puts right the length and the checksum of a frame that was changed by hand.
fn sealed(mut bytes: BytesMut) -> BytesMut {
    let len = u32::try_from(bytes.len() - HEADER_LEN).expect("short").to_be_bytes();
    bytes[..4].copy_from_slice(&len);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&len);
    crc.update(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.finalize().to_be_bytes());
    bytes
}

proptest! {
    #[test]
    fn frames_read_back_what_they_say(frames in prop::collection::vec(frame(), 1..5)) {
        let mut out = BytesMut::new();
        for frame in &frames {
            frame.encode(&mut out).expect("a frame that fits");
        }
        let (mut at, mut read) = (0, Vec::new());
        while let Some((frame, len)) = decode(&out[at..]).expect("our own frame") {
            at += len;
            read.push(frame);
        }
        prop_assert_eq!((at, read), (out.len(), frames));
    }

    #[test]
    fn a_frame_that_is_not_whole_asks_for_more(frame in frame(), cut in any::<prop::sample::Index>()) {
        let bytes = encoded(&frame);
        prop_assert_eq!(decode(&bytes[..cut.index(bytes.len())]), Ok(None));
    }

    #[test]
    fn a_changed_bit_never_passes(frame in frame(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let mut bytes = encoded(&frame);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // A length that grew waits for bytes; whatever else changed is refused.
        match decode(&bytes) {
            Err(_) => {}
            Ok(answer) => prop_assert!(answer.is_none() && at < 4, "{answer:?} at {at}"),
        }
    }

    #[test]
    fn bytes_from_nowhere_are_refused_quietly(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(!matches!(decode(&bytes), Ok(Some(_))));
        prop_assert!(!matches!(Hello::decode(&bytes), Ok(Some(_))));
    }

    /// The checksum is right, so the readers of payloads themselves are met.
    #[test]
    fn a_faulty_sender_is_refused_or_has_one_spelling(
        token in token(),
        kind in 0..8_u8,
        payload in prop::collection::vec(prop_oneof![4 => Just(0_u8), 1 => any::<u8>()], 0..200),
    ) {
        let mut bytes = encoded(&Frame { call: CallId(1), token, message: Message::End });
        bytes[8] = kind;
        bytes.extend_from_slice(&payload);
        let bytes = sealed(bytes);
        if let Ok(Some((frame, len))) = decode(&bytes) {
            prop_assert_eq!(&encoded(&frame)[..], &bytes[..len]);
        }
    }

    #[test]
    fn a_greeting_reads_back_what_it_says(hello in hello(), cut in any::<prop::sample::Index>()) {
        let mut out = BytesMut::new();
        hello.encode(&mut out).expect("a greeting that fits");
        prop_assert!(out.len() <= HELLO_LEN_MAX);
        prop_assert_eq!(Hello::decode(&out[..cut.index(out.len())]), Ok(None));
        prop_assert_eq!(Hello::decode(&out), Ok(Some((hello, out.len()))));
    }
}

#[test]
fn a_length_is_refused_before_its_bytes_are_there() {
    for (kind, max) in
        [(1, HEAD_MAX), (2, HEAD_MAX), (3, CHUNK_MAX), (4, 0), (5, 1 + REASON_MAX), (6, 4)]
    {
        let mut header = [0; HEADER_LEN];
        header[8] = kind;
        let mut with = |len: usize| {
            header[..4].copy_from_slice(&u32::try_from(len).expect("short").to_be_bytes());
            decode(&header)
        };
        assert!(
            matches!(with(max + 1), Err(FrameError::Length { max: told, .. }) if told == max as u64),
            "kind {kind}"
        );
        assert!(matches!(with(u32::MAX as usize), Err(FrameError::Length { .. })), "kind {kind}");
        assert!(!matches!(with(max), Err(FrameError::Length { .. })), "kind {kind}");
    }
}

#[test]
fn what_is_too_long_is_not_sent_and_leaves_nothing() {
    let long = Bytes::from(vec![0; HEAD_MAX]);
    let head = Response {
        status: 200,
        headers: vec![("x".to_owned(), long.clone())],
        content: Content::Nothing,
    };
    let mut out = BytesMut::from(&b"before"[..]);
    for message in [Message::Response(head), Message::Chunk(long)] {
        assert!(matches!(plain(message).encode(&mut out), Err(FrameError::Length { .. })));
        assert_eq!(&out[..], b"before");
    }
    let largest = plain(Message::Chunk(Bytes::from(vec![1; CHUNK_MAX])));
    let bytes = encoded(&largest);
    assert_eq!(decode(&bytes), Ok(Some((largest, bytes.len()))));
}

#[test]
fn the_words_of_a_failure_are_cut_between_characters() {
    let frame = plain(Message::Cancel(Cancel::Failed("é".repeat(REASON_MAX))));
    let Ok(Some((read, _))) = decode(&encoded(&frame)) else { panic!("our own frame") };
    assert_eq!(read.message, Message::Cancel(Cancel::Failed("é".repeat(REASON_MAX / 2))));
}

#[test]
fn each_fault_of_a_sender_is_named() {
    let good = encoded(&plain(Message::Window(1)));
    let change = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        decode(&sealed(bytes))
    };
    assert_eq!(change(8, 99), Err(FrameError::Kind(99)));
    assert_eq!(change(9, 1), Err(FrameError::Malformed("its reserved bytes are not zero")));
    assert_eq!(change(27, 0), Err(FrameError::Malformed("its epoch is zero")));
    let mut damaged = good.clone();
    damaged[HEADER_LEN] ^= 1;
    assert_eq!(decode(&damaged), Err(FrameError::Checksum));
    let status = Response { status: 99, headers: Vec::new(), content: Content::Nothing };
    let refused = plain(Message::Response(status)).encode(&mut BytesMut::new());
    assert_eq!(refused, Err(FrameError::Malformed("the status of a response")));
}

#[test]
fn another_protocol_is_refused_by_its_first_bytes() {
    assert_eq!(Hello::decode(b"GET / HT"), Err(FrameError::Magic));
    assert_eq!(Hello::decode(b"CELLDPR\0\x00\x02\xff\xff"), Err(FrameError::Version(2)));
    assert!(matches!(
        Hello::decode(b"CELLDPR\0\x00\x01\xff\xff"),
        Err(FrameError::Length { len: 0xffff, .. })
    ));
    assert_eq!(Hello::decode(b""), Ok(None));
}

/// The form is a promise to other nodes: these bytes may change only with [`PROTOCOL`].
#[test]
fn the_bytes_of_version_one_stay() {
    let bytes = encoded(&plain(Message::Window(0x0102_0304)));
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let (length, crc_and_rest) = hex.split_at(8);
    let rest = &crc_and_rest[8..];
    assert_eq!(length, "00000004");
    assert_eq!(
        rest,
        "06000000000000000000000700000000000000010f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f01020304"
    );
    assert_eq!(PROTOCOL, 1);
}
