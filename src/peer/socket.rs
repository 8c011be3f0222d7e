//! The messages of a WebSocket on their way through a node that does not own its cell.
//!
//! They follow each other in the body of the call, in both directions: one byte for the kind, the
//! length (`u32`), the message. Pings are answered by the node that holds the client's connection
//! and do not come here.
//!
//! Invariant: messages keep their order, and each direction has one close at its end. A body that
//! ends without one belonged to a connection that broke.

use bytes::{Buf as _, BufMut, Bytes, BytesMut};

use crate::FrameError;

/// The longest message, as Cloudflare takes them.
pub const MESSAGE_MAX: usize = 32 << 20;
/// The longest reason of a close (RFC 6455, section 5.5).
pub const REASON_MAX: usize = 123;

const HEADER_LEN: usize = 5;
/// Shorter messages are copied, so that they do not keep what came with them.
const SHARED_MIN: usize = 4_096;

/// What one side of a WebSocket says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Text: UTF-8, checked.
    Text(Bytes),
    /// Bytes.
    Binary(Bytes),
    /// The last one.
    Close(Close),
}

/// The end of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Close {
    /// `None`: the frame had no code (1005).
    pub code: Option<u16>,
    /// At most [`REASON_MAX`] bytes; empty without a code.
    pub reason: String,
}

mod kind {
    pub(super) const TEXT: u8 = 1;
    pub(super) const BINARY: u8 = 2;
    pub(super) const CLOSE: u8 = 3;
}

impl Message {
    /// As bytes.
    ///
    /// # Errors
    /// It is longer than a message may be.
    pub fn encode(&self) -> Result<Bytes, FrameError> {
        let (kind, payload): (u8, &[u8]) = match self {
            Self::Text(text) => (kind::TEXT, text),
            Self::Binary(bytes) => (kind::BINARY, bytes),
            Self::Close(close) => (kind::CLOSE, &close.payload()),
        };
        check_len(kind, payload.len())?;
        let mut out = Vec::with_capacity(HEADER_LEN + payload.len());
        out.put_u8(kind);
        out.put_u32(u32::try_from(payload.len()).expect("checked above"));
        out.put_slice(payload);
        Ok(out.into())
    }
}

impl Close {
    fn payload(&self) -> Vec<u8> {
        let Some(code) = self.code else { return Vec::new() };
        [&code.to_be_bytes()[..], self.reason.as_bytes()].concat()
    }

    fn read(payload: &[u8]) -> Result<Self, FrameError> {
        let Some((code, reason)) = payload.split_first_chunk() else {
            let none = payload.is_empty().then(Self::default);
            return none.ok_or(FrameError::Malformed("half a code in a close"));
        };
        let reason = std::str::from_utf8(reason);
        let reason = reason.map_err(|_| FrameError::Malformed("text is not UTF-8"))?;
        Ok(Self { code: Some(u16::from_be_bytes(*code)), reason: reason.to_owned() })
    }
}

fn check_len(kind: u8, len: usize) -> Result<(), FrameError> {
    let (what, max) = match kind {
        kind::TEXT | kind::BINARY => ("a message of a WebSocket", MESSAGE_MAX),
        kind::CLOSE => ("a close of a WebSocket", 2 + REASON_MAX),
        _ => return Err(FrameError::Malformed("the kind of a message")),
    };
    if len > max {
        return Err(FrameError::Length { what, len: len as u64, max: max as u64 });
    }
    Ok(())
}

/// Cuts a body into its messages.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: BytesMut,
    is_closed: bool,
}

impl Messages {
    /// Takes the next piece of the body. Holds no more of them than one message and one piece,
    /// if all complete ones are taken in between.
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// The next message that is complete.
    ///
    /// # Errors
    /// The body is not one of messages, or goes on after the close.
    pub fn take(&mut self) -> Result<Option<Message>, FrameError> {
        if self.is_closed && !self.bytes.is_empty() {
            return Err(FrameError::Order("a WebSocket goes on after its close"));
        }
        let Some(&[kind, a, b, c, d]) = self.bytes.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        check_len(kind, len)?;
        if self.bytes.len() < HEADER_LEN + len {
            return Ok(None);
        }
        self.bytes.advance(HEADER_LEN);
        let payload = if len < SHARED_MIN {
            let payload = Bytes::copy_from_slice(&self.bytes[..len]);
            self.bytes.advance(len);
            payload
        } else {
            self.bytes.split_to(len).freeze()
        };
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new(); // of a long message, perhaps
        }
        Ok(Some(match kind {
            kind::TEXT => {
                let text = std::str::from_utf8(&payload);
                text.map_err(|_| FrameError::Malformed("text is not UTF-8"))?;
                Message::Text(payload)
            }
            kind::BINARY => Message::Binary(payload),
            _ => {
                self.is_closed = true;
                Message::Close(Close::read(&payload)?)
            }
        }))
    }

    /// The close has come.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Message> {
        let long = prop::collection::vec(any::<u8>(), 0..9_000);
        prop_oneof![
            "\\PC{0,60}".prop_map(|text| Message::Text(text.into())),
            long.prop_map(|bytes| Message::Binary(bytes.into())),
        ]
    }

    fn close() -> impl Strategy<Value = Close> {
        prop_oneof![
            Just(Close::default()),
            (any::<u16>(), "[a-z]{0,123}")
                .prop_map(|(code, reason)| Close { code: Some(code), reason })
        ]
    }

    proptest! {
        #[test]
        fn messages_keep_their_order_however_they_are_cut(
            messages in prop::collection::vec(message(), 0..6),
            close in close(),
            cuts in prop::collection::vec(1..700_usize, 1..20),
        ) {
            let mut messages = messages;
            messages.push(Message::Close(close));
            let mut body = Vec::new();
            for message in &messages {
                body.extend_from_slice(&message.encode().expect("short"));
            }
            let (mut reader, mut read, mut rest) = (Messages::default(), Vec::new(), &body[..]);
            for &cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                reader.push(piece);
                rest = after;
                while let Some(message) = reader.take().expect("our own") {
                    read.push(message);
                }
            }
            prop_assert!(reader.is_closed());
            prop_assert_eq!(read, messages);
            reader.push(b"x");
            prop_assert!(matches!(reader.take(), Err(FrameError::Order(_))));
        }

        #[test]
        fn noise_never_panics(body in prop::collection::vec(0..5_u8, 0..200)) {
            let mut reader = Messages::default();
            reader.push(&body);
            while let Ok(Some(_)) = reader.take() {}
        }
    }

    #[test]
    fn a_length_is_refused_before_its_bytes_are_there() {
        for (kind, max) in [(1, MESSAGE_MAX), (2, MESSAGE_MAX), (3, 2 + REASON_MAX)] {
            let with = |len: usize| {
                let mut reader = Messages::default();
                let len = u32::try_from(len).expect("short").to_be_bytes();
                reader.push(&[&[kind][..], &len].concat());
                reader.take()
            };
            assert_eq!(with(max), Ok(None), "kind {kind}");
            assert!(matches!(with(max + 1), Err(FrameError::Length { .. })), "kind {kind}");
        }
        let long = Message::Binary(Bytes::from(vec![0; MESSAGE_MAX + 1]));
        assert!(matches!(long.encode(), Err(FrameError::Length { .. })));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for (body, told) in [
            (&b"\x04\0\0\0\0"[..], "the kind of a message"),
            (b"\x01\0\0\0\x01\xff", "text is not UTF-8"),
            (b"\x03\0\0\0\x01\x03", "half a code"),
        ] {
            let mut reader = Messages::default();
            reader.push(body);
            let error = reader.take().expect_err(told).to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
