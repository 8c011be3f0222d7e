//! WebSockets: from one end to the other, wherever the two are.
//!
//! An end is a [`Duplex`]: what it sends goes into one pipe, what it hears comes out of another.
//! Whoever holds one pumps it: a connection of this shard ([`wire`]), JavaScript (`host/sockets`,
//! `cell/sockets` for hibernatable ones), the way to another shard ([`tunnel`]) or to another node
//! ([`node`]). To connect two ends is to hand a `Duplex` over, as bodies are handed over.
//!
//! Invariant: each direction carries its messages in order and ends once: with a Close, or with
//! the news that the sender is gone.

pub(crate) mod codec;
pub(crate) mod handshake;
pub(crate) mod node;
mod pipe;
pub(crate) mod tunnel;
pub(crate) mod wire;

use celld_v8host::{SocketEvent, SocketMessage};
pub(crate) use pipe::{Duplex, Receiver, Sender, connect};

/// Why a socket is closed whose cell goes elsewhere: whoever connects again finds it.
pub(crate) const RESTART: u16 = 1012;

/// A Close from us.
pub(crate) fn close(code: u16, reason: &str) -> SocketEvent {
    SocketEvent::Message(SocketMessage::Close { code, reason: reason.to_owned() })
}

/// Whether nothing may come after this.
pub(crate) fn is_last(event: &SocketEvent) -> bool {
    match event {
        SocketEvent::Message(SocketMessage::Text(_) | SocketMessage::Binary(_)) => false,
        SocketEvent::Message(SocketMessage::Close { .. })
        | SocketEvent::Lost
        | SocketEvent::Failed(_) => true,
    }
}

/// What it counts for in a queue.
pub(crate) fn weight(event: &SocketEvent) -> usize {
    match event {
        SocketEvent::Message(message) => message_weight(message),
        SocketEvent::Lost | SocketEvent::Failed(_) => EACH,
    }
}

/// Its bytes, and something for having been sent at all.
pub(crate) fn message_weight(message: &SocketMessage) -> usize {
    EACH + match message {
        SocketMessage::Text(text) => text.len(),
        SocketMessage::Binary(bytes) => bytes.len(),
        SocketMessage::Close { reason, .. } => reason.len(),
    }
}

/// About what a place in a queue takes.
const EACH: usize = 64;
