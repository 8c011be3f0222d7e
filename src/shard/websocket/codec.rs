//! Frames of the WebSocket protocol, from bytes and to bytes.
//!
//! The library reads and writes the heads of frames; what makes messages of them is here, because
//! the answer to a Close belongs to JavaScript, and a socket that rests must not cost a buffer.
//! Invariant: memory is taken for bytes that have come, not for a length that was announced.
//! Source: RFC 6455, sections 5 and 7.4.

use std::io::Cursor;

use bytes::{Buf as _, Bytes, BytesMut};
use celld_v8host::SocketMessage;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

/// Longest payload of a Close, a Ping or a Pong.
const CONTROL_BYTES_MAX: u64 = 125;
/// Shorter messages are copied out of the buffer, so that none of them keeps it whole.
const COPY_MAX: usize = 16 << 10;
/// A Close that says nothing.
pub(crate) const NO_CODE: u16 = 1005;

/// Which side of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    /// Masks what it sends.
    Client,
}

/// What the other side has sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    Message(SocketMessage),
    /// To be answered with the same bytes.
    Ping(Bytes),
    Pong,
}

/// What the other side may not do; the Close that tells it so.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub code: u16,
    pub text: String,
}

fn violation(code: u16, text: impl Into<String>) -> Violation {
    Violation { code, text: text.into() }
}

/// Makes messages of bytes.
pub(crate) struct Decoder {
    role: Role,
    bytes_max: usize,
    buffer: BytesMut,
    /// The fragments so far of a message, and whether it is a text.
    message: Option<(bool, BytesMut)>,
}

impl Decoder {
    /// For messages of at most `bytes_max`.
    pub fn new(role: Role, bytes_max: usize) -> Self {
        Self { role, bytes_max, buffer: BytesMut::new(), message: None }
    }

    /// Takes in what has come.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next thing that is whole; `None`: bytes are missing.
    ///
    /// # Errors
    /// The other side breaks the protocol: nothing after it can be understood.
    pub fn next(&mut self) -> Result<Option<Incoming>, Violation> {
        loop {
            let Some((head, payload)) = self.frame()? else {
                if self.buffer.is_empty() {
                    // A socket that rests has no buffer.
                    self.buffer = BytesMut::new();
                }
                return Ok(None);
            };
            match head.opcode {
                OpCode::Control(control) => return control_frame(control, &payload).map(Some),
                OpCode::Data(data) => {
                    if let Some(message) = self.data_frame(data, head.is_final, payload)? {
                        return Ok(Some(Incoming::Message(message)));
                    }
                }
            }
        }
    }

    /// One frame, unmasked.
    fn frame(&mut self) -> Result<Option<(FrameHeader, BytesMut)>, Violation> {
        let mut cursor = Cursor::new(&self.buffer[..]);
        let parsed = FrameHeader::parse(&mut cursor);
        let parsed = parsed.map_err(|error| violation(1002, error.to_string()))?;
        let Some((head, length)) = parsed else { return Ok(None) };
        let head_bytes = usize::try_from(cursor.position()).expect("within the buffer");
        self.check(&head, length)?;
        let length = usize::try_from(length).expect("checked against a limit");
        if self.buffer.len() < head_bytes + length {
            return Ok(None);
        }
        self.buffer.advance(head_bytes);
        let mut payload = self.buffer.split_to(length);
        if let Some(mask) = head.mask {
            apply_mask(&mut payload, mask);
        }
        Ok(Some((head, payload)))
    }

    /// What can be said of a frame before its payload is there.
    fn check(&self, head: &FrameHeader, length: u64) -> Result<(), Violation> {
        if head.rsv1 || head.rsv2 || head.rsv3 {
            return Err(violation(1002, "reserved bits of a frame are set"));
        }
        match (self.role, head.mask) {
            (Role::Server, None) => return Err(violation(1002, "a client must mask its frames")),
            (Role::Client, Some(_)) => {
                return Err(violation(1002, "a server may not mask its frames"));
            }
            (Role::Server, Some(_)) | (Role::Client, None) => {}
        }
        match head.opcode {
            OpCode::Control(_) if length > CONTROL_BYTES_MAX || !head.is_final => {
                Err(violation(1002, "a control frame is too long, or a fragment"))
            }
            OpCode::Control(_) => Ok(()),
            OpCode::Data(_) => {
                let before = self.message.as_ref().map_or(0, |(_, message)| message.len());
                let whole = length.saturating_add(before as u64);
                if whole > self.bytes_max as u64 {
                    let text = format!("Message is too large: {whole} > {}", self.bytes_max);
                    return Err(violation(1009, text));
                }
                Ok(())
            }
        }
    }

    fn data_frame(
        &mut self,
        data: Data,
        is_final: bool,
        payload: BytesMut,
    ) -> Result<Option<SocketMessage>, Violation> {
        let (is_text, whole) = match (data, self.message.take()) {
            (Data::Text | Data::Binary, None) => (data == Data::Text, payload),
            (Data::Continue, Some((is_text, mut before))) => {
                before.extend_from_slice(&payload);
                (is_text, before)
            }
            (Data::Text | Data::Binary, Some(_)) => {
                return Err(violation(1002, "a message begins before the one before has ended"));
            }
            (Data::Continue, None) => return Err(violation(1002, "a fragment of no message")),
            (Data::Reserved(code), _) => {
                return Err(violation(1002, format!("the opcode {code} is not one")));
            }
        };
        if !is_final {
            self.message = Some((is_text, whole));
            return Ok(None);
        }
        if is_text {
            let text = String::from_utf8(whole.to_vec());
            let text = text.map_err(|_| violation(1007, "a text is not UTF-8"))?;
            return Ok(Some(SocketMessage::Text(text)));
        }
        let bytes =
            if whole.len() <= COPY_MAX { Bytes::copy_from_slice(&whole) } else { whole.freeze() };
        Ok(Some(SocketMessage::Binary(bytes)))
    }
}

fn control_frame(control: Control, payload: &[u8]) -> Result<Incoming, Violation> {
    match control {
        Control::Ping => Ok(Incoming::Ping(Bytes::copy_from_slice(payload))),
        Control::Pong => Ok(Incoming::Pong),
        Control::Close => close_frame(payload).map(Incoming::Message),
        Control::Reserved(code) => Err(violation(1002, format!("the opcode {code} is not one"))),
    }
}

fn close_frame(payload: &[u8]) -> Result<SocketMessage, Violation> {
    let (code, reason) = match payload {
        [] => return Ok(SocketMessage::Close { code: NO_CODE, reason: String::new() }),
        [_] => return Err(violation(1002, "a Close has half of a code")),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
    };
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(violation(1002, format!("a Close may not have the code {code}")));
    }
    let reason = String::from_utf8(reason.to_vec());
    let reason = reason.map_err(|_| violation(1007, "the reason of a Close is not UTF-8"))?;
    Ok(SocketMessage::Close { code, reason })
}

/// Writes a message as one frame.
pub(crate) fn encode(role: Role, message: &SocketMessage, out: &mut Vec<u8>) {
    match message {
        SocketMessage::Text(text) => frame(role, OpCode::Data(Data::Text), text.as_bytes(), out),
        SocketMessage::Binary(bytes) => frame(role, OpCode::Data(Data::Binary), bytes, out),
        SocketMessage::Close { code: NO_CODE, .. } => {
            frame(role, OpCode::Control(Control::Close), &[], out);
        }
        SocketMessage::Close { code, reason } => {
            let mut payload = code.to_be_bytes().to_vec();
            payload.extend_from_slice(truncated(reason).as_bytes());
            frame(role, OpCode::Control(Control::Close), &payload, out);
        }
    }
}

/// Writes the answer to a Ping.
pub(crate) fn encode_pong(role: Role, bytes: &[u8], out: &mut Vec<u8>) {
    frame(role, OpCode::Control(Control::Pong), bytes, out);
}

/// As much of a reason as fits into a Close.
pub(crate) fn truncated(reason: &str) -> &str {
    let most = usize::try_from(CONTROL_BYTES_MAX).expect("small") - size_of::<u16>();
    &reason[..reason.floor_char_boundary(most)]
}

fn frame(role: Role, opcode: OpCode, payload: &[u8], out: &mut Vec<u8>) {
    let mask = match role {
        Role::Server => None,
        Role::Client => Some(random_mask()),
    };
    let head = FrameHeader { opcode, mask, ..FrameHeader::default() };
    let length = payload.len() as u64;
    out.reserve(head.len(length) + payload.len());
    head.format(length, out).expect("a vector takes what it is given");
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(mask) = mask {
        apply_mask(&mut out[start..], mask);
    }
}

/// Nobody between the two ends may be able to guess it.
fn random_mask() -> [u8; 4] {
    let mut mask = [0; 4];
    getrandom::fill(&mut mask).expect("the system has a random source");
    mask
}

fn apply_mask(payload: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from_ne_bytes([mask, mask].concat().try_into().expect("eight bytes"));
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 100_000;

    fn decoder(role: Role) -> Decoder {
        Decoder::new(role, LIMIT)
    }

    fn text(text: &str) -> SocketMessage {
        SocketMessage::Text(text.to_owned())
    }

    /// A frame as a client sends it.
    fn raw(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![first];
        match payload.len() {
            short @ 0..=125 => bytes.push(0x80 | u8::try_from(short).expect("short")),
            long => {
                bytes.push(0x80 | 126);
                bytes.extend_from_slice(&u16::try_from(long).expect("a test").to_be_bytes());
            }
        }
        bytes.extend_from_slice(&[1, 2, 3, 4]);
        bytes.extend(payload.iter().zip([1, 2, 3, 4].iter().cycle()).map(|(a, b)| a ^ b));
        bytes
    }

    fn all(bytes: &[u8]) -> Result<Vec<Incoming>, Violation> {
        let mut decoder = decoder(Role::Server);
        decoder.feed(bytes);
        let mut found = vec![];
        while let Some(incoming) = decoder.next()? {
            found.push(incoming);
        }
        Ok(found)
    }

    fn code(bytes: &[u8]) -> u16 {
        all(bytes).expect_err("it must be refused").code
    }

    #[test]
    fn what_one_side_writes_the_other_reads_however_it_is_cut() {
        let messages = [
            text(""),
            text("ä€😀"),
            text(&"long ".repeat(15_000)),
            SocketMessage::Binary(Bytes::from(vec![7; 70_000])),
            SocketMessage::Binary(Bytes::new()),
            SocketMessage::Close { code: 4_001, reason: "enough".to_owned() },
            SocketMessage::Close { code: NO_CODE, reason: String::new() },
        ];
        for (from, to) in [(Role::Server, Role::Client), (Role::Client, Role::Server)] {
            let mut bytes = vec![];
            for message in &messages {
                encode(from, message, &mut bytes);
            }
            for piece in [1, 3, 4_096, bytes.len()] {
                let mut decoder = decoder(to);
                let mut found = vec![];
                for chunk in bytes.chunks(piece) {
                    decoder.feed(chunk);
                    while let Some(incoming) = decoder.next().expect("sound frames") {
                        found.push(incoming);
                    }
                }
                let expected: Vec<_> = messages.iter().cloned().map(Incoming::Message).collect();
                assert!(found == expected, "{from:?}, {piece} bytes at a time");
                assert_eq!(decoder.buffer.capacity(), 0, "a buffer stays");
            }
        }
    }

    #[test]
    fn fragments_make_a_message_and_control_frames_may_come_between() {
        let bytes = [
            raw(0x01, "ä".as_bytes().split_at(1).0),
            raw(0x89, b"ping"),
            raw(0x00, "ä".as_bytes().split_at(1).1),
            raw(0x8a, b""),
            raw(0x80, b"!"),
        ];
        let ping = Incoming::Ping(Bytes::from_static(b"ping"));
        assert_eq!(
            all(&bytes.concat()),
            Ok(vec![ping, Incoming::Pong, Incoming::Message(text("ä!"))])
        );
    }

    #[test]
    fn what_breaks_the_protocol_is_refused_with_its_code() {
        assert_eq!(code(&[0x81, 0x01, b'a']), 1002, "not masked");
        for first in [0xc1, 0xa1, 0x91] {
            assert_eq!(code(&raw(first, b"a")), 1002, "reserved bits");
        }
        for first in [0x83, 0x87, 0x8b, 0x8f] {
            assert_eq!(code(&raw(first, b"a")), 1002, "reserved opcodes");
        }
        assert_eq!(code(&raw(0x09, b"")), 1002, "a fragment of a Ping");
        assert_eq!(code(&raw(0x89, &[0; 126])), 1002, "a long Ping");
        assert_eq!(code(&raw(0x80, b"a")), 1002, "a fragment of nothing");
        assert_eq!(code(&[raw(0x01, b"a"), raw(0x81, b"b")].concat()), 1002, "two at a time");
        assert_eq!(code(&raw(0x81, &[0xff, 0xfe])), 1007, "not UTF-8");
        assert_eq!(code(&raw(0x88, &[3])), 1002, "half of a code");
        for bad in [0_u16, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000] {
            assert_eq!(code(&raw(0x88, &bad.to_be_bytes())), 1002, "{bad}");
        }
        assert_eq!(code(&raw(0x88, &[3, 232, 0xff])), 1007, "a reason that is not UTF-8");
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_before_it_has_come() {
        let mut head = vec![0x82, 0x80 | 127];
        head.extend_from_slice(&u64::MAX.to_be_bytes());
        head.extend_from_slice(&[0; 4]);
        assert_eq!(code(&head), 1009);
        let half = vec![0; LIMIT / 2 + 1];
        assert_eq!(code(&[raw(0x02, &half), raw(0x80, &half)].concat()), 1009);
    }

    /// What came until the end or a violation, of bytes that come in such pieces.
    fn heard(bytes: &[u8], piece: usize) -> (Vec<Incoming>, Option<Violation>) {
        let mut decoder = decoder(Role::Server);
        let mut found = vec![];
        for chunk in bytes.chunks(piece) {
            decoder.feed(chunk);
            loop {
                match decoder.next() {
                    Ok(Some(incoming)) => found.push(incoming),
                    Ok(None) => break,
                    Err(violation) => return (found, Some(violation)),
                }
            }
        }
        (found, None)
    }

    /// Frames as they may be, and bytes that are none.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let first = prop_oneof![
            Just(0x81_u8),
            Just(0x82),
            Just(0x01),
            Just(0x00),
            Just(0x80),
            Just(0x88),
            Just(0x89),
            any::<u8>(),
        ];
        let payload = prop_oneof![vec(b'a'..=b'z', 0..200), vec(any::<u8>(), 0..8)];
        let frame = (first, payload).prop_map(|(first, payload)| raw(first, &payload));
        let piece = prop_oneof![4 => frame, 1 => vec(any::<u8>(), 0..20)];
        vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_mean_the_same_however_they_are_cut(bytes in hostile(), piece in 1_usize..50) {
            prop_assert_eq!(heard(&bytes, piece), heard(&bytes, bytes.len().max(1)));
        }
    }

    #[test]
    fn masks_are_their_own_inverse_at_every_length() {
        for length in 0..40 {
            let bytes: Vec<u8> = (0..length).collect();
            let mut masked = bytes.clone();
            apply_mask(&mut masked, [9, 8, 7, 6]);
            for (at, byte) in masked.iter().enumerate() {
                assert_eq!(*byte, bytes[at] ^ [9, 8, 7, 6][at % 4]);
            }
        }
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        let close = SocketMessage::Close { code: 1000, reason: "ä".repeat(100) };
        let mut bytes = vec![];
        encode(Role::Server, &close, &mut bytes);
        let mut decoder = decoder(Role::Client);
        decoder.feed(&bytes);
        let Ok(Some(Incoming::Message(SocketMessage::Close { reason, .. }))) = decoder.next()
        else {
            panic!("no Close");
        };
        assert_eq!(reason, "ä".repeat(61));
    }
}
