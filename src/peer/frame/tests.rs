//! The codec of frames against itself, against what it sends, and against bytes from nowhere.

use proptest::prelude::*;

use super::*;
use crate::PROTOCOL;

/// A frame that owns its bytes.
#[derive(Clone, Debug)]
struct Owned(Frame<'static>);

fn bytes(min: usize, max: usize) -> impl Strategy<Value = &'static [u8]> {
    // Leaked: a few megabytes in all, and the frames stay what they are elsewhere.
    prop::collection::vec(any::<u8>(), min..max).prop_map(|bytes| &*bytes.leak())
}

fn more() -> impl Strategy<Value = More> {
    any::<bool>().prop_map(More::end_if)
}

fn call() -> impl Strategy<Value = CallId> {
    any::<u64>().prop_map(CallId)
}

fn frame() -> impl Strategy<Value = Owned> {
    let open = (call(), any::<u8>(), more(), any::<u32>(), bytes(0, 300)).prop_map(
        |(call, kind, more, wait_ms, head)| Frame::Open {
            call,
            kind: CallKind(kind),
            more,
            wait_ms,
            head,
        },
    );
    let reply = (call(), more(), bytes(0, 300)).prop_map(|(call, more, head)| Frame::Reply {
        call,
        more,
        head,
    });
    let chunk = (call(), more(), bytes(1, 300)).prop_map(|(call, more, bytes)| Frame::Chunk {
        call,
        more,
        bytes,
    });
    let credit = (call(), 1..=CREDIT_MAX).prop_map(|(call, bytes)| Frame::Credit { call, bytes });
    let reset = (call(), prop::sample::select(&Code::ALL[..]), "\\PC{0,60}")
        .prop_map(|(call, code, words)| Frame::Reset { call, refusal: Refusal::new(code, words) });
    prop_oneof![
        open,
        reply,
        chunk,
        credit,
        reset,
        call().prop_map(|call| Frame::Stop { call }),
        any::<u64>().prop_map(Frame::Ping),
        any::<u64>().prop_map(Frame::Pong),
        any::<u64>().prop_map(|last| Frame::GoAway { last }),
    ]
    .prop_map(Owned)
}

fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out).expect("a frame that fits");
    out
}

/// A header by hand.
fn header(kind: u8, len: usize) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    let word = u32::from(kind) << 24 | u32::try_from(len).expect("short");
    bytes[..4].copy_from_slice(&word.to_be_bytes());
    bytes[11] = 7;
    bytes
}

proptest! {
    #[test]
    fn frames_read_back_what_they_say(frames in prop::collection::vec(frame(), 1..5)) {
        let mut out = Vec::new();
        for Owned(frame) in &frames {
            frame.encode(&mut out).expect("a frame that fits");
        }
        let mut at = 0;
        for Owned(frame) in &frames {
            let (read, len) = decode(&out[at..]).expect("our own frame").expect("all of it");
            prop_assert_eq!(&read, frame);
            at += len;
        }
        prop_assert_eq!(decode(&out[at..]), Ok(None));
        prop_assert_eq!(at, out.len());
    }

    #[test]
    fn a_frame_that_is_not_whole_asks_for_more(frame in frame(), cut in any::<prop::sample::Index>()) {
        let bytes = encoded(&frame.0);
        prop_assert_eq!(decode(&bytes[..cut.index(bytes.len())]), Ok(None));
    }

    #[test]
    fn bytes_from_nowhere_are_refused_or_have_one_spelling(
        kind in 0..12_u8,
        payload in prop::collection::vec(prop_oneof![4 => Just(0_u8), 1 => any::<u8>()], 0..200),
    ) {
        let bytes = [&header(kind, payload.len())[..], &payload].concat();
        if let Ok(Some((frame, len))) = decode(&bytes) {
            prop_assert_eq!(encoded(&frame), &bytes[..len]);
        }
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _refused = decode(&bytes);
    }
}

#[test]
fn a_length_is_refused_before_its_bytes_are_there() {
    for (kind, max) in [
        (1, 6 + HEAD_MAX),
        (2, 1 + HEAD_MAX),
        (3, 1 + CHUNK_MAX),
        (4, 4),
        (5, 0),
        (6, 1 + WORDS_MAX),
        (7, 0),
        (8, 0),
        (9, 0),
    ] {
        let with = |len: usize| {
            decode(&header(kind, len)).map(|_| ()).map_err(|error| match error {
                FrameError::Length { len, max, .. } => (len, max),
                other => panic!("kind {kind}: {other}"),
            })
        };
        assert_eq!(with(max), Ok(()), "kind {kind}");
        assert_eq!(with(max + 1), Err((max as u64 + 1, max as u64)), "kind {kind}");
        assert_eq!(with(0xff_ffff), Err((0xff_ffff, max as u64)), "kind {kind}");
    }
}

#[test]
fn what_is_too_long_is_not_sent_and_leaves_nothing() {
    let long = vec![0; HEAD_MAX + 1];
    let mut out = b"before".to_vec();
    let call = CallId(1);
    for frame in [
        Frame::Open { call, kind: CallKind(1), more: More::End, wait_ms: 0, head: &long },
        Frame::Reply { call, more: More::End, head: &long },
        Frame::Chunk { call, more: More::End, bytes: &long[..=CHUNK_MAX] },
        Frame::Chunk { call, more: More::Follows, bytes: &[] },
        Frame::Credit { call, bytes: 0 },
        Frame::Credit { call, bytes: CREDIT_MAX + 1 },
    ] {
        frame.encode(&mut out).expect_err("it cannot be said");
        assert_eq!(&out[..], b"before");
    }
    let largest = Frame::Chunk { call, more: More::End, bytes: &long[..CHUNK_MAX] };
    assert_eq!(encoded(&largest).len(), 16 * 1024, "one record of TLS");
}

#[test]
fn the_words_of_a_refusal_are_cut_between_characters() {
    let refusal = Refusal::new(Code::Failed, "é".repeat(WORDS_MAX));
    let bytes = encoded(&Frame::Reset { call: CallId(1), refusal });
    let Ok(Some((Frame::Reset { refusal, .. }, _))) = decode(&bytes) else { panic!("our own") };
    assert_eq!(refusal.words, "é".repeat(WORDS_MAX / 2));
}

#[test]
fn each_fault_of_a_sender_is_named() {
    let refused = |kind, payload: &[u8]| {
        let bytes = [&header(kind, payload.len())[..], payload].concat();
        decode(&bytes).expect_err("a fault")
    };
    assert_eq!(refused(99, b""), FrameError::Kind(99));
    assert_eq!(refused(1, b""), FrameError::Malformed("a field reaches past the end"));
    assert_eq!(refused(2, b"\x02"), FrameError::Malformed("whether a body goes on"));
    assert_eq!(
        refused(3, b"\x01"),
        FrameError::Malformed("an empty piece in the middle of a body")
    );
    assert_eq!(refused(4, &[0; 4]), FrameError::Malformed("the bytes of a credit"));
    assert_eq!(refused(6, b"\x00"), FrameError::Malformed("the code of a refusal"));
    assert_eq!(refused(6, b"\x01\xff"), FrameError::Malformed("text is not UTF-8"));
}

/// The form is a promise to other nodes: these bytes may change only with [`PROTOCOL`]. That of heads is
/// in `form.rs`.
#[test]
fn the_bytes_of_version_four_stay() {
    let hex = |frame: Frame<'_>| -> String {
        encoded(&frame).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let call = CallId(7);
    let (kind, head) = (CallKind(3), &b"ab"[..]);
    let open = Frame::Open { call, kind, more: More::Follows, wait_ms: 258, head };
    assert_eq!(
        hex(open),
        "010000080000000000000007".to_owned() + "03" + "01" + "00000102" + "6162"
    );
    let reply = Frame::Reply { call, more: More::End, head };
    assert_eq!(hex(reply), "020000030000000000000007".to_owned() + "00" + "6162");
    let chunk = Frame::Chunk { call, more: More::Follows, bytes: head };
    assert_eq!(hex(chunk), "030000030000000000000007".to_owned() + "01" + "6162");
    let credit = Frame::Credit { call, bytes: 0x0001_0203 };
    assert_eq!(hex(credit), "040000040000000000000007".to_owned() + "00010203");
    assert_eq!(hex(Frame::Stop { call }), "050000000000000000000007");
    for (number, code) in (1..).zip(Code::ALL) {
        let reset = hex(Frame::Reset { call, refusal: Refusal::new(code, "x") });
        assert_eq!(reset, format!("060000020000000000000007{number:02x}78"));
    }
    assert_eq!(hex(Frame::Ping(7)), "070000000000000000000007");
    assert_eq!(hex(Frame::Pong(7)), "080000000000000000000007");
    assert_eq!(hex(Frame::GoAway { last: 7 }), "090000000000000000000007");
    assert_eq!(PROTOCOL, 4);
}
