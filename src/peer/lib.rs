//! Frames between nodes: a pure codec. It holds no socket, no clock and no state; the links that
//! carry frames feed it bytes.
//!
//! A connection opens with one [`Hello`] in each direction; frames follow. A node that meets a
//! protocol version it does not know closes the connection: it never guesses.
//!
//! Invariant: a length from the wire is checked against its maximum before memory is taken for
//! it, and `decode` never panics, whatever the bytes are. Lengths are bytes; integers are
//! big-endian, as in LTX.

#![deny(missing_docs)]

mod frame;
mod hello;
mod wire;

#[cfg(test)]
mod tests;

pub use frame::{
    CHUNK_MAX, CallId, Cancel, Content, Frame, HEAD_MAX, HEADER_LEN, Message, REASON_MAX, Request,
    Response, decode,
};
pub use hello::{HELLO_LEN_MAX, Hello, PROTOCOL};

/// Why bytes are no frame, or a frame cannot become bytes. The stream that held them is out of
/// step for good: close the connection, and end its calls as unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not one of ours is at the other end.
    #[error("the peer does not speak this protocol: its first bytes are not a greeting")]
    Magic,
    /// Another release is at the other end: an operator has to bring both to one protocol.
    #[error("the peer speaks version {0} of the protocol, and this node only {PROTOCOL}")]
    Version(u16),
    /// Refused before anything of this length was read or stored.
    #[error("{what} of {len} bytes; at most {max} are allowed")]
    Length {
        /// Which part.
        what: &'static str,
        /// What it would be.
        len: u64,
        /// What is allowed.
        max: u64,
    },
    /// The bytes changed on their way.
    #[error("a frame does not match its checksum")]
    Checksum,
    /// No message has this number in this version.
    #[error("a frame has the unknown kind {0}")]
    Kind(u8),
    /// The checksum holds, so the sender has a fault.
    #[error("a frame is malformed: {0}")]
    Malformed(&'static str),
}
