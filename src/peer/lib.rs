//! Nodes speak to each other: who may, in what form, and the links that carry it.
//!
//! A connection is TLS between two nodes of one fleet ([`identity`]), opens with one greeting in
//! each direction ([`hello`]), and then carries frames ([`frame`]) of many calls at once ([`mux`]).
//! What calls say is in [`fetch`], [`probe`], [`operator`], [`take`] and [`socket`]. All of these
//! are pure: they hold no socket and no clock. A [`Link`] carries the calls of one shard to one
//! node, a [`Server`] takes those that come; [`tunnel`] carries WebSockets.
//!
//! Invariant: a length from the wire is checked against its maximum before memory is taken for
//! it, and nothing here panics, whatever the bytes are. Lengths are bytes; integers are
//! big-endian, as in LTX.

#![deny(missing_docs)]
// It panics when stderr is gone: `log!` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod body;
mod connection;
mod error;
pub mod fetch;
#[cfg(test)]
mod form;
pub mod frame;
pub mod hello;
pub mod identity;
mod link;
pub mod mux;
pub mod operator;
pub mod probe;
mod server;
pub mod socket;
pub mod take;
pub mod tunnel;
mod wire;

pub use body::{BodyReader, BodyWriter, WholeError, WriteError};
pub use error::{CallError, Cause};
pub use frame::{CallId, CallKind, Code, More, Refusal};
pub use hello::PROTOCOL;
pub use link::{Address, Answer, Ask, Asked, Link};
pub use mux::{Fate, Patience};
pub use server::{Call, Passed, Refused, Reply, Server};

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
    /// No message has this number in this version.
    #[error("a frame has the unknown kind {0}")]
    Kind(u8),
    /// TLS has brought it as it was sent, so the sender has a fault.
    #[error("a frame is malformed: {0}")]
    Malformed(&'static str),
    /// Each frame is sound, but not here.
    #[error("the peer does not keep to the protocol: {0}")]
    Order(&'static str),
}
