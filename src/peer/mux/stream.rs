//! One call on one end of its connection: what it still has to send, and what may still come.
//!
//! Invariant: a sender never sends what its reader has not allowed. Units: bytes of bodies; heads
//! and frames are not counted.

use bytes::Bytes;

use crate::frame::{CallKind, More, Refusal};

/// What each body may send before its reader has said anything: small bodies need no round trip.
pub const WINDOW_FIRST: u32 = 16 * 1024;
/// What a body may have under way at most: a quarter of a gigabyte in a second at a round trip of
/// one millisecond. A power of two times the first window.
pub const WINDOW_WIDE: u32 = 256 * 1024;

/// One call.
#[derive(Debug)]
pub(super) struct Stream {
    pub out: Outgoing,
    pub into: Incoming,
    /// It stands in the queue of those that have something to send.
    pub is_ready: bool,
    /// It stands in the queue of those that owe their sender a credit.
    pub owes_credit: bool,
}

/// The direction away from here.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The head, until it is sent.
    pub head: Option<Head>,
    /// The head is sent.
    pub is_begun: bool,
    /// What is left of the piece that goes next.
    pub piece: Bytes,
    pub flow: Flow,
    /// Why the call ends after what is here.
    pub failure: Option<Refusal>,
    /// What the reader has allowed and is not sent.
    pub credit: u32,
}

/// A head that waits to be sent.
#[derive(Debug)]
pub(super) enum Head {
    Open { kind: CallKind, wait_ms: u32, head: Bytes },
    Reply { head: Bytes },
}

/// How far a direction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// More may come.
    Open,
    /// Outgoing only: what is here is the last.
    Ending,
    /// The end has been sent, or has come.
    Ended,
    /// The reader does not want the rest.
    Stopped,
}

/// The direction to here.
#[derive(Debug)]
pub(super) struct Incoming {
    pub flow: Flow,
    /// The head has come. Of a call: it is what opened it.
    pub is_begun: bool,
    /// What the sender may still send.
    pub window: u32,
    /// What has come and is not read.
    pub unread: u32,
    /// What `window` and `unread` may be together.
    pub target: u32,
}

impl Flow {
    pub fn from_more(more: More) -> Self {
        match more {
            More::End => Self::Ended,
            More::Follows => Self::Open,
        }
    }

    fn is_over(self) -> bool {
        match self {
            Self::Open | Self::Ending => false,
            Self::Ended | Self::Stopped => true,
        }
    }
}

impl Stream {
    pub fn new(out: Outgoing, into: Incoming) -> Self {
        Self { out, into, is_ready: false, owes_credit: false }
    }

    /// Nothing more can happen, and nothing lies here unread.
    pub fn is_over(&self) -> bool {
        self.out.flow.is_over() && self.into.flow.is_over() && self.into.unread == 0
    }
}

impl Outgoing {
    pub fn new(head: Option<Head>, flow: Flow) -> Self {
        let (piece, failure) = (Bytes::new(), None);
        Self { head, is_begun: false, piece, flow, failure, credit: WINDOW_FIRST }
    }

    /// Whether a frame can be sent now.
    pub fn is_sendable(&self) -> bool {
        self.head.is_some()
            || self.is_begun && (self.can_send_piece() || self.can_send_end() || self.can_fail())
    }

    pub fn can_send_piece(&self) -> bool {
        !self.piece.is_empty() && self.credit > 0
    }

    pub fn can_send_end(&self) -> bool {
        self.piece.is_empty() && self.flow == Flow::Ending
    }

    pub fn can_fail(&self) -> bool {
        self.piece.is_empty() && self.failure.is_some()
    }
}

impl Incoming {
    pub fn new(flow: Flow, is_begun: bool) -> Self {
        Self { flow, is_begun, window: WINDOW_FIRST, unread: 0, target: WINDOW_FIRST }
    }

    /// What a wider window takes from the connection's store, if the body uses up the one it has.
    /// It doubles each time, so that a body gets what it needs, and a socket that is idle for the
    /// rest of its life keeps little.
    pub fn widening(&self) -> Option<u32> {
        let is_short = self.flow == Flow::Open && self.window < self.target / 2;
        (is_short && self.target < WINDOW_WIDE).then_some(self.target)
    }

    /// What was taken from the connection's store.
    pub fn widened(&self) -> u32 {
        self.target - WINDOW_FIRST
    }

    /// What the sender can be allowed beyond what it has and what lies here unread.
    pub fn grant(&self) -> u32 {
        self.target.saturating_sub(self.window).saturating_sub(self.unread)
    }

    /// Whether that is worth a frame. A sender that has less than three quarters of its window
    /// gets one as soon as its reader has read, so that it cannot starve.
    pub fn is_credit_due(&self) -> bool {
        self.flow == Flow::Open && self.grant() > self.target / 4
    }
}
