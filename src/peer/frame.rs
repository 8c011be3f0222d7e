//! Calls of cells between nodes, multiplexed on one connection.
//!
//! A call is one request, the chunks of its body, one response, the chunks of that one's body.
//! Either side ends it early with [`Cancel`]; [`Message::Window`] lets the other side send more of
//! a body. The form of a frame:
//!
//! ```text
//! at  0  u32  length of the payload
//!     4  u32  CRC-32 of all other bytes of the frame
//!     8  u8   kind
//!     9  [3]  zero
//!    12  u64  call
//!    20  u64  epoch           } the fencing token: the ownership that this call is for
//!    28  [16] session         }
//!    44  payload
//! ```
//!
//! Invariant: one frame has one spelling, so `encode(decode(x)) == x` as well.

use bytes::{BufMut, Bytes, BytesMut};
use celld_core::cell::CellId;
use celld_core::epoch::{Epoch, FencingToken};
use celld_core::node::SessionId;

use crate::FrameError;
use crate::wire::{Reader, put_bytes};

/// Bytes before the payload.
pub const HEADER_LEN: usize = 44;
/// The head of a request or response: 128 KiB of header fields and 16 KiB of URL, as the public
/// listener takes them, with the lengths that go with each of many short fields.
pub const HEAD_MAX: usize = 256 * 1024;
/// One piece of a body: large enough that the header does not count, small enough that a call
/// that waits behind it on the same connection does not notice.
pub const CHUNK_MAX: usize = 64 * 1024;
/// The words of a [`Cancel`]: for a log.
pub const REASON_MAX: usize = 1024;

/// The number of a call on its connection. The side that opens the call chooses it and never
/// uses it again, so a frame that comes late belongs to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// What one side tells the other about one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Which call.
    pub call: CallId,
    /// The ownership that the caller routed by. Who is not this owner any more refuses.
    pub token: FencingToken,
    /// What is told.
    pub message: Message,
}

/// The kinds of frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Opens the call.
    Request(Request),
    /// The head of the answer.
    Response(Response),
    /// A piece of the body of whoever sends it.
    Chunk(Bytes),
    /// The body of whoever sends it is complete.
    End,
    /// The call is over on both sides.
    Cancel(Cancel),
    /// The reader of a body takes this many bytes more. A body starts at zero.
    Window(u32),
}

/// Whether a body follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// There is none, which is something else than an empty one.
    Nothing,
    /// Chunks, then the end.
    Streamed,
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whose turn it is.
    pub cell: CellId,
    /// The method, as its caller spelt it.
    pub method: String,
    /// The whole URL, as the cell will see it.
    pub url: String,
    /// In order; names may repeat.
    pub headers: Vec<(String, Bytes)>,
    /// Whether a body follows.
    pub content: Content,
}

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// 101, or 200 to 599.
    pub status: u16,
    /// In order; names may repeat.
    pub headers: Vec<(String, Bytes)>,
    /// Whether a body follows.
    pub content: Content,
}

/// Why a call ends early. The caller acts differently on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// Nobody waits for the answer any more.
    Gone,
    /// It did not run, and the fencing token is stale: read the ownership again.
    NotOwner,
    /// It did not run, and may be tried again later.
    Overloaded,
    /// It may have run: never repeat it. The words are for a log.
    Failed(String),
}

/// Numbers of kinds on the wire.
mod kind {
    pub(super) const REQUEST: u8 = 1;
    pub(super) const RESPONSE: u8 = 2;
    pub(super) const CHUNK: u8 = 3;
    pub(super) const END: u8 = 4;
    pub(super) const CANCEL: u8 = 5;
    pub(super) const WINDOW: u8 = 6;
}

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Self::Request(_) => kind::REQUEST,
            Self::Response(_) => kind::RESPONSE,
            Self::Chunk(_) => kind::CHUNK,
            Self::End => kind::END,
            Self::Cancel(_) => kind::CANCEL,
            Self::Window(_) => kind::WINDOW,
        }
    }
}

/// What a payload of this kind is called, and how long it may be.
fn bound(kind: u8) -> Result<(&'static str, usize), FrameError> {
    match kind {
        kind::REQUEST => Ok(("the head of a request", HEAD_MAX)),
        kind::RESPONSE => Ok(("the head of a response", HEAD_MAX)),
        kind::CHUNK => Ok(("a piece of a body", CHUNK_MAX)),
        kind::END => Ok(("the end of a body", 0)),
        kind::CANCEL => Ok(("a cancellation", 1 + REASON_MAX)),
        kind::WINDOW => Ok(("a window", 4)),
        other => Err(FrameError::Kind(other)),
    }
}

fn check_len(kind: u8, len: usize) -> Result<u32, FrameError> {
    let (what, max) = bound(kind)?;
    let fits = u32::try_from(len).ok().filter(|_| len <= max);
    fits.ok_or(FrameError::Length { what, len: len as u64, max: max as u64 })
}

impl Frame {
    /// Appends the frame. `out` is as it was if there is an error.
    ///
    /// # Errors
    /// The payload is longer than its kind may be, or a head says what no head can say.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        let start = out.len();
        let result = self.append(out);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn append(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        let start = out.len();
        let kind = self.message.kind();
        out.put_u64(0); // length and checksum, when they are known
        out.put_u32(u32::from(kind) << 24);
        out.put_u64(self.call.0);
        out.put_u64(self.token.epoch.get());
        out.put_slice(&session_bytes(&self.token.session)?);
        match &self.message {
            Message::Request(request) => request.append(out)?,
            Message::Response(response) => response.append(out)?,
            Message::Chunk(bytes) => {
                check_len(kind, bytes.len())?; // before a copy of something too long
                out.put_slice(bytes);
            }
            Message::End => {}
            Message::Cancel(cancel) => cancel.append(out),
            Message::Window(bytes) => out.put_u32(*bytes),
        }
        let len = check_len(kind, out.len() - start - HEADER_LEN)?.to_be_bytes();
        let crc = checksum(len, &out[start + 8..]).to_be_bytes();
        out[start..start + 4].copy_from_slice(&len);
        out[start + 4..start + 8].copy_from_slice(&crc);
        Ok(())
    }
}

/// Of the length and of all that follows the checksum itself.
fn checksum(len: [u8; 4], rest: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&len);
    crc.update(rest);
    crc.finalize()
}

/// Reads a frame from the start of `buf`, and how many bytes it took. `None`: bytes are missing,
/// at most [`HEADER_LEN`] and the longest payload of its kind in all.
///
/// # Errors
/// The bytes are no frame; more of them cannot help.
pub fn decode(buf: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
    let Some(header) = buf.get(..HEADER_LEN) else { return Ok(None) };
    let mut header = Reader::new(header);
    let len_bytes: [u8; 4] = header.raw()?;
    let crc = header.u32()?;
    let kind = header.u8()?;
    let len = usize::try_from(u32::from_be_bytes(len_bytes)).unwrap_or(usize::MAX);
    check_len(kind, len)?;
    let Some(rest) = buf.get(8..HEADER_LEN + len) else { return Ok(None) };
    if checksum(len_bytes, rest) != crc {
        return Err(FrameError::Checksum);
    }
    if header.raw()? != [0_u8; 3] {
        return Err(FrameError::Malformed("its reserved bytes are not zero"));
    }
    let call = CallId(header.u64()?);
    let epoch =
        Epoch::from_record(header.u64()?).ok_or(FrameError::Malformed("its epoch is zero"))?;
    let session = session_from(header.raw()?)?;
    let mut payload = Reader::new(&buf[HEADER_LEN..HEADER_LEN + len]);
    let message = match kind {
        kind::REQUEST => Message::Request(Request::read(&mut payload)?),
        kind::RESPONSE => Message::Response(Response::read(&mut payload)?),
        kind::CHUNK => Message::Chunk(payload.rest()),
        kind::END => Message::End,
        kind::CANCEL => Message::Cancel(Cancel::read(&mut payload)?),
        kind::WINDOW => Message::Window(payload.u32()?),
        other => return Err(FrameError::Kind(other)),
    };
    payload.end()?;
    let token = FencingToken { epoch, session };
    Ok(Some((Frame { call, token, message }, HEADER_LEN + len)))
}

impl Request {
    fn append(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        put_bytes(out, "a namespace", self.cell.namespace().as_bytes())?;
        put_bytes(out, "an id", self.cell.id().as_bytes())?;
        put_bytes(out, "a method", self.method.as_bytes())?;
        put_bytes(out, "a URL", self.url.as_bytes())?;
        self.content.append(out);
        append_headers(out, &self.headers)
    }

    fn read(payload: &mut Reader<'_>) -> Result<Self, FrameError> {
        let (namespace, id) = (payload.text()?, payload.text()?);
        Ok(Self {
            cell: CellId::new(namespace, id).ok_or(FrameError::Malformed("the cell's name"))?,
            method: payload.text()?.to_owned(),
            url: payload.text()?.to_owned(),
            content: Content::read(payload)?,
            headers: read_headers(payload)?,
        })
    }
}

impl Response {
    fn append(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        out.put_u16(check_status(self.status)?);
        self.content.append(out);
        append_headers(out, &self.headers)
    }

    fn read(payload: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            status: check_status(payload.u16()?)?,
            content: Content::read(payload)?,
            headers: read_headers(payload)?,
        })
    }
}

fn check_status(status: u16) -> Result<u16, FrameError> {
    let fits = status == 101 || (200..=599).contains(&status);
    fits.then_some(status).ok_or(FrameError::Malformed("the status of a response"))
}

impl Content {
    fn append(self, out: &mut BytesMut) {
        out.put_u8(match self {
            Self::Nothing => 0,
            Self::Streamed => 1,
        });
    }

    fn read(payload: &mut Reader<'_>) -> Result<Self, FrameError> {
        match payload.u8()? {
            0 => Ok(Self::Nothing),
            1 => Ok(Self::Streamed),
            _ => Err(FrameError::Malformed("whether a body follows")),
        }
    }
}

impl Cancel {
    fn append(&self, out: &mut BytesMut) {
        match self {
            Self::Gone => out.put_u8(0),
            Self::NotOwner => out.put_u8(1),
            Self::Overloaded => out.put_u8(2),
            Self::Failed(words) => {
                out.put_u8(3);
                // Cut rather than refused: the words are for a log, and the end must arrive.
                out.put_slice(&words.as_bytes()[..words.floor_char_boundary(REASON_MAX)]);
            }
        }
    }

    fn read(payload: &mut Reader<'_>) -> Result<Self, FrameError> {
        match payload.u8()? {
            0 => Ok(Self::Gone),
            1 => Ok(Self::NotOwner),
            2 => Ok(Self::Overloaded),
            3 => {
                let words = String::from_utf8(payload.rest().into());
                words.map(Self::Failed).map_err(|_| FrameError::Malformed("text is not UTF-8"))
            }
            _ => Err(FrameError::Malformed("the reason of a cancellation")),
        }
    }
}

/// To the end of the payload: their number need not be trusted, as it is not sent.
fn append_headers(out: &mut BytesMut, headers: &[(String, Bytes)]) -> Result<(), FrameError> {
    for (name, value) in headers {
        put_bytes(out, "the name of a header", name.as_bytes())?;
        put_bytes(out, "the value of a header", value)?;
    }
    Ok(())
}

fn read_headers(payload: &mut Reader<'_>) -> Result<Vec<(String, Bytes)>, FrameError> {
    let mut headers = Vec::new();
    while !payload.is_empty() {
        let name = payload.text()?.to_owned();
        headers.push((name, Bytes::copy_from_slice(payload.bytes()?)));
    }
    Ok(headers)
}

/// Half as long as its text.
pub(crate) fn session_bytes(session: &SessionId) -> Result<[u8; 16], FrameError> {
    let number = u128::from_str_radix(session.as_str(), 16);
    number.map(u128::to_be_bytes).map_err(|_| FrameError::Malformed("the name of a session"))
}

pub(crate) fn session_from(bytes: [u8; 16]) -> Result<SessionId, FrameError> {
    SessionId::parse(&format!("{:032x}", u128::from_be_bytes(bytes)))
        .ok_or(FrameError::Malformed("the name of a session"))
}
