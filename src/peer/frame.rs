//! Frames: what the two ends of a connection tell each other about its calls.
//!
//! Who connects opens calls; who accepts answers them. A call is one head and body in each
//! direction; [`crate::mux`] says in which order its frames come. The form of a frame:
//!
//! ```text
//! at  0  u8   kind
//!     1  u24  length of the payload
//!     4  u64  call, or the number of a ping, or the last call that is served
//!    12  payload
//! ```
//!
//! There is no checksum: the records of TLS, which carry frames, have a better one. Fencing tokens
//! are in the heads of the calls that concern cells ([`crate::fetch`]).
//!
//! Invariant: one frame has one spelling, so `encode(decode(x)) == x` as well.

use bytes::{BufMut, Bytes};

use crate::FrameError;
use crate::wire::Reader;

/// Bytes before the payload.
pub const HEADER_LEN: usize = 12;
/// The head of a call or of its answer: 128 KiB of header fields and 16 KiB of URL, as the public
/// listener takes them, with the lengths that go with each of many short fields.
pub const HEAD_MAX: usize = 256 * 1024;
/// One piece of a body: one record of TLS, so that a call that waits behind it on the same
/// connection does not notice.
pub const CHUNK_MAX: usize = 16 * 1024 - HEADER_LEN - 1;
/// The words of a [`Refusal`]: for a log.
pub const WORDS_MAX: usize = 1_024;
/// What a reader allows at once, at most.
pub const CREDIT_MAX: u32 = 1 << 24;

/// Before the head of a call: its kind, whether its body ends here, its time.
const OPEN_FIXED: usize = 6;
/// Before the head of an answer: whether its body ends here.
const REPLY_FIXED: usize = 1;

/// The number of a call on its connection. They grow, and none is used twice, so a frame that
/// comes late belongs to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// What a call asks for: says how its heads and bodies are to be read. The frames do not care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKind(pub u8);

impl CallKind {
    /// A request to a cell: [`crate::fetch`].
    pub const FETCH: Self = Self(1);
    /// Is the node there, and how is it? [`crate::probe`].
    pub const PROBE: Self = Self(2);
    /// Of an operator: [`crate::operator`].
    pub const OPERATOR: Self = Self(3);
    /// Of the owner that hands a cell over: [`crate::take`].
    pub const TAKE: Self = Self(4);
    /// A call of a method of a cell: as [`Self::FETCH`], but the body is the message, and comes whole
    /// before the cell hears of it.
    pub const RPC: Self = Self(5);
}

/// Whether more of a body follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// This was the end of it.
    End,
    /// Pieces follow.
    Follows,
}

/// One frame; it borrows what it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Opens a call.
    Open {
        /// Which.
        call: CallId,
        /// What it asks for.
        kind: CallKind,
        /// Whether a body follows.
        more: More,
        /// For how long its caller will wait for the answer, in milliseconds; 0: no limit.
        wait_ms: u32,
        /// Of this kind.
        head: &'a [u8],
    },
    /// Answers a call.
    Reply {
        /// Which.
        call: CallId,
        /// Whether a body follows.
        more: More,
        /// Of the call's kind.
        head: &'a [u8],
    },
    /// A piece of the body of whoever sends it. Empty only at the end.
    Chunk {
        /// Of which call.
        call: CallId,
        /// Whether more follows.
        more: More,
        /// The piece.
        bytes: &'a [u8],
    },
    /// The reader of a body takes this many bytes more; never zero.
    Credit {
        /// Of which call.
        call: CallId,
        /// How many.
        bytes: u32,
    },
    /// Who answers does not read the rest of the caller's body.
    Stop {
        /// Of which call.
        call: CallId,
    },
    /// The call is over, in both directions.
    Reset {
        /// Which.
        call: CallId,
        /// Why.
        refusal: Refusal,
    },
    /// Is anybody there?
    Ping(u64),
    /// Yes; the number is the ping's.
    Pong(u64),
    /// Who answers takes no more calls: those after this one have not run and never will.
    GoAway {
        /// The last call that is served, or zero for none.
        last: u64,
    },
}

/// Why a call is over before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What its caller may do.
    pub code: Code,
    /// For a log; at most [`WORDS_MAX`] bytes are sent.
    pub words: String,
}

/// The kinds of [`Refusal`]. Callers act on them, so that a code keeps its meaning for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// The caller does not wait for the answer any more. The only one that a caller sends.
    Gone,
    /// It did not run: this node is not, or not any more, the owner that the call means. Read the
    /// ownership again.
    NotOwner,
    /// It did not run: a queue is full. Try again later.
    Busy,
    /// It did not run: this node stops. Try another one.
    Draining,
    /// It did not run: this node does not know such calls, or cannot read this one.
    Unsupported,
    /// It may have run: never repeat it.
    Failed,
    /// It did not run: such calls are not for who has made it.
    Forbidden,
    /// It was answered, and then the body of the answer failed where it is made: the words say how
    /// ([`crate::fetch::Failure::of_words`]). Never repeat it.
    Broken,
}

impl Code {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Gone,
        Self::NotOwner,
        Self::Busy,
        Self::Draining,
        Self::Unsupported,
        Self::Failed,
        Self::Forbidden,
        Self::Broken,
    ];

    /// The number on the wire.
    fn number(self) -> u8 {
        match self {
            Self::Gone => 1,
            Self::NotOwner => 2,
            Self::Busy => 3,
            Self::Draining => 4,
            Self::Unsupported => 5,
            Self::Failed => 6,
            Self::Forbidden => 7,
            Self::Broken => 8,
        }
    }

    fn read(number: u8) -> Result<Self, FrameError> {
        let known = Self::ALL.into_iter().find(|code| code.number() == number);
        known.ok_or(FrameError::Malformed("the code of a refusal"))
    }

    /// Whether the call surely did not run.
    pub fn has_not_run(self) -> bool {
        match self {
            Self::NotOwner | Self::Busy | Self::Draining | Self::Unsupported | Self::Forbidden => {
                true
            }
            Self::Gone | Self::Failed | Self::Broken => false,
        }
    }
}

impl Refusal {
    /// With words for a log.
    pub fn new(code: Code, words: impl Into<String>) -> Self {
        Self { code, words: words.into() }
    }
}

/// Numbers of kinds on the wire.
mod kind {
    pub(super) const OPEN: u8 = 1;
    pub(super) const REPLY: u8 = 2;
    pub(super) const CHUNK: u8 = 3;
    pub(super) const CREDIT: u8 = 4;
    pub(super) const STOP: u8 = 5;
    pub(super) const RESET: u8 = 6;
    pub(super) const PING: u8 = 7;
    pub(super) const PONG: u8 = 8;
    pub(super) const GO_AWAY: u8 = 9;
}

/// What a payload of this kind is called, and its shortest and longest length.
fn bounds(kind: u8) -> Result<(&'static str, usize, usize), FrameError> {
    match kind {
        kind::OPEN => Ok(("the head of a call", OPEN_FIXED, OPEN_FIXED + HEAD_MAX)),
        kind::REPLY => Ok(("the head of an answer", REPLY_FIXED, REPLY_FIXED + HEAD_MAX)),
        kind::CHUNK => Ok(("a piece of a body", 1, 1 + CHUNK_MAX)),
        kind::CREDIT => Ok(("a credit", 4, 4)),
        kind::STOP => Ok(("a stop", 0, 0)),
        kind::RESET => Ok(("a refusal", 1, 1 + WORDS_MAX)),
        kind::PING => Ok(("a ping", 0, 0)),
        kind::PONG => Ok(("a pong", 0, 0)),
        kind::GO_AWAY => Ok(("a farewell", 0, 0)),
        other => Err(FrameError::Kind(other)),
    }
}

/// The length of the frame that starts with `header`.
///
/// # Errors
/// The kind is unknown, or cannot be so long or so short.
pub(crate) fn frame_len(header: &[u8; HEADER_LEN]) -> Result<usize, FrameError> {
    let [kind, a, b, c, ..] = *header;
    let len = u32::from_be_bytes([0, a, b, c]) as usize;
    let (what, min, max) = bounds(kind)?;
    if len > max {
        return Err(FrameError::Length { what, len: len as u64, max: max as u64 });
    }
    if len < min {
        return Err(FrameError::Malformed("a field reaches past the end"));
    }
    Ok(HEADER_LEN + len)
}

impl Frame<'_> {
    /// Appends the frame. `out` is as it was if there is an error.
    ///
    /// # Errors
    /// The payload is longer than its kind may be, or says what no frame can say.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        match self {
            Self::Open { call, kind, more, wait_ms, head } => {
                start(out, kind::OPEN, call.0, OPEN_FIXED + head.len())?;
                out.put_u8(kind.0);
                out.put_u8(more.number());
                out.put_u32(*wait_ms);
                out.put_slice(head);
            }
            Self::Reply { call, more, head } => {
                start(out, kind::REPLY, call.0, REPLY_FIXED + head.len())?;
                out.put_u8(more.number());
                out.put_slice(head);
            }
            Self::Chunk { call, more, bytes } => {
                check_chunk(*more, bytes)?;
                start(out, kind::CHUNK, call.0, 1 + bytes.len())?;
                out.put_u8(more.number());
                out.put_slice(bytes);
            }
            Self::Credit { call, bytes } => {
                check_credit(*bytes)?;
                start(out, kind::CREDIT, call.0, 4)?;
                out.put_u32(*bytes);
            }
            Self::Stop { call } => start(out, kind::STOP, call.0, 0)?,
            Self::Reset { call, refusal } => {
                // Cut rather than refused: the words are for a log, and the end must arrive.
                let words = &refusal.words[..refusal.words.floor_char_boundary(WORDS_MAX)];
                start(out, kind::RESET, call.0, 1 + words.len())?;
                out.put_u8(refusal.code.number());
                out.put_slice(words.as_bytes());
            }
            Self::Ping(number) => start(out, kind::PING, *number, 0)?,
            Self::Pong(number) => start(out, kind::PONG, *number, 0)?,
            Self::GoAway { last } => start(out, kind::GO_AWAY, *last, 0)?,
        }
        Ok(())
    }
}

/// The header, once the length is known to be allowed.
fn start(out: &mut Vec<u8>, kind: u8, call: u64, len: usize) -> Result<(), FrameError> {
    let (what, _, max) = bounds(kind)?;
    let fits = u32::try_from(len).ok().filter(|_| len <= max);
    let len = fits.ok_or(FrameError::Length { what, len: len as u64, max: max as u64 })?;
    out.put_u32(u32::from(kind) << 24 | len);
    out.put_u64(call);
    Ok(())
}

/// Reads a frame from the start of `buf`, and how many bytes it took. `None`: bytes are missing,
/// at most [`HEADER_LEN`] and the longest payload of its kind in all.
///
/// # Errors
/// The bytes are no frame; more of them cannot help.
pub fn decode(buf: &[u8]) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
    let Some(header) = buf.first_chunk::<HEADER_LEN>() else { return Ok(None) };
    let len = frame_len(header)?;
    let Some(payload) = buf.get(HEADER_LEN..len) else { return Ok(None) };
    let [kind, _, _, _, number @ ..] = *header;
    let number = u64::from_be_bytes(number);
    let call = CallId(number);
    let mut payload = Reader::new(payload);
    let frame = match kind {
        kind::OPEN => Frame::Open {
            call,
            kind: CallKind(payload.u8()?),
            more: More::read(&mut payload)?,
            wait_ms: payload.u32()?,
            head: payload.rest(),
        },
        kind::REPLY => Frame::Reply { call, more: More::read(&mut payload)?, head: payload.rest() },
        kind::CHUNK => {
            let (more, bytes) = (More::read(&mut payload)?, payload.rest());
            check_chunk(more, bytes)?;
            Frame::Chunk { call, more, bytes }
        }
        kind::CREDIT => {
            let bytes = payload.u32()?;
            check_credit(bytes)?;
            Frame::Credit { call, bytes }
        }
        kind::STOP => Frame::Stop { call },
        kind::RESET => {
            let code = Code::read(payload.u8()?)?;
            let words = std::str::from_utf8(payload.rest());
            let words = words.map_err(|_| FrameError::Malformed("text is not UTF-8"))?;
            Frame::Reset { call, refusal: Refusal::new(code, words) }
        }
        kind::PING => Frame::Ping(number),
        kind::PONG => Frame::Pong(number),
        kind::GO_AWAY => Frame::GoAway { last: number },
        other => return Err(FrameError::Kind(other)),
    };
    payload.end()?;
    Ok(Some((frame, len)))
}

/// An empty piece in the middle would be work for nothing, again and again.
fn check_chunk(more: More, bytes: &[u8]) -> Result<(), FrameError> {
    match more {
        More::Follows if bytes.is_empty() => {
            Err(FrameError::Malformed("an empty piece in the middle of a body"))
        }
        More::Follows | More::End => Ok(()),
    }
}

fn check_credit(bytes: u32) -> Result<(), FrameError> {
    let fits = (1..=CREDIT_MAX).contains(&bytes);
    fits.then_some(()).ok_or(FrameError::Malformed("the bytes of a credit"))
}

impl More {
    /// `End` if nothing follows.
    pub fn end_if(is_end: bool) -> Self {
        if is_end { Self::End } else { Self::Follows }
    }

    fn number(self) -> u8 {
        match self {
            Self::End => 0,
            Self::Follows => 1,
        }
    }

    fn read(payload: &mut Reader<'_>) -> Result<Self, FrameError> {
        match payload.u8()? {
            0 => Ok(Self::End),
            1 => Ok(Self::Follows),
            _ => Err(FrameError::Malformed("whether a body goes on")),
        }
    }
}

/// Cuts what a reader must own out of a frame.
pub(crate) fn owned(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

#[cfg(test)]
mod tests;
