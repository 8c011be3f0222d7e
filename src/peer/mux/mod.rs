//! The calls of one connection, as a pure machine: bytes in, events out; wishes in, bytes out.
//!
//! Who connects is the [`Side::Caller`] and opens calls, who accepts is the [`Side::Answerer`].
//! A call is a head and a body in each direction; the answer may begin before the request has
//! ended. It is over when both bodies have ended and are read, or with a [`Refusal`] from either
//! side.
//!
//! - *Back-pressure.* A sender may send what its reader has allowed: [`WINDOW_FIRST`] at once, and
//!   then as much again as was read. A body that uses its window up gets a wider one, up to
//!   [`WINDOW_WIDE`], as long as the connection's store of [`WIDE_MAX`] lasts. So unread bytes are bounded by the number of calls
//!   times the first window, plus the store, whatever the other side does. No call waits for
//!   another one's reader.
//! - *Full.* A connection holds [`CALLS_MAX`] calls and [`HEADS_MAX`] bytes of heads that wait to be
//!   sent. A call beyond is refused as busy, and has not run. When answers to the other side's
//!   frames pile up because it does not read them, its frames are not read either
//!   ([`Mux::wants_bytes`]).
//! - *Fair.* Calls that have something to send take turns, one piece each.
//!
//! Invariant: each call ends once on each side, and a call of which nothing was sent surely did not
//! run. Units: `Mono` in µs.

mod receive;
#[cfg(test)]
mod sim;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use celld_core::time::{Micros, Mono};

use self::stream::{Flow, Head, Incoming, Outgoing, Stream};
pub use self::stream::{WINDOW_FIRST, WINDOW_WIDE};
use crate::FrameError;
use crate::frame::{CHUNK_MAX, CallId, CallKind, Code, Frame, HEAD_MAX, HEADER_LEN, More, Refusal};

/// Calls under way on one connection: several for each client of a busy shard.
pub const CALLS_MAX: usize = 16_384;
/// Bytes of heads that wait to be sent.
pub const HEADS_MAX: usize = 8 << 20;
/// Bytes that all wide windows of a connection have beyond their first ones.
pub const WIDE_MAX: u32 = 8 << 20;
/// Frames that answer the other side's and wait to be sent, beyond one for each call.
const NOTES_MAX: usize = 4_096;

/// Which end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It opens calls.
    Caller,
    /// It answers them.
    Answerer,
}

/// How long what is borne.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Then the other side is asked whether it is there.
    pub ping: Micros,
    /// Then it is taken for dead.
    pub silence: Micros,
    /// A caller closes its connection after it had no call for so long.
    pub idle: Micros,
}

impl Patience {
    /// A process that burns its core with JavaScript is silent and not dead, so this is long. A
    /// host that is gone is noticed by TCP within seconds.
    pub const NORMAL: Self = Self {
        ping: Micros::from_secs(5),
        silence: Micros::from_secs(60),
        idle: Micros::from_secs(60),
    };
}

/// What has happened on the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Answerer: a call to answer.
    Opened {
        /// Its number.
        call: CallId,
        /// What it asks for.
        kind: CallKind,
        /// Whether a body follows.
        more: More,
        /// For how long its caller waits, in milliseconds; 0: no limit.
        wait_ms: u32,
        /// Of this kind.
        head: Bytes,
    },
    /// Caller: the answer begins.
    Replied {
        /// To this call.
        call: CallId,
        /// Whether a body follows.
        more: More,
        /// Of the call's kind.
        head: Bytes,
    },
    /// A piece of the other side's body. Tell [`Mux::consumed`] when it is read.
    Data {
        /// Of this call.
        call: CallId,
        /// Whether more follows.
        more: More,
        /// Empty only at the end.
        bytes: Bytes,
    },
    /// The last piece is on its way: the next may come.
    Writable(CallId),
    /// Caller: the other side does not read the rest of the body. Nothing more can be sent.
    Stopped(CallId),
    /// The other side has ended the call.
    Over {
        /// This one.
        call: CallId,
        /// Why.
        refusal: Refusal,
    },
    /// Caller: no more calls can be opened here.
    GoneAway,
}

/// Whether the other side may have seen a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing of it was sent: it surely did not run.
    NotSent,
    /// It may have run, or may yet.
    MayHaveRun,
}

/// A call cannot be opened now; it did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Too many calls, or too much that waits to be sent.
    #[error("the connection is busy: {0}")]
    Busy(&'static str),
    /// The other side takes no more calls.
    #[error("the node is stopping")]
    Draining,
    /// The head is too long.
    #[error(transparent)]
    Head(#[from] FrameError),
}

/// The call is over, or its reader wants no more: what was to be sent is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotWanted;

/// Nothing has come for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent;

/// One end of a connection.
#[derive(Debug)]
pub struct Mux {
    side: Side,
    patience: Patience,
    calls: BTreeMap<u64, Stream>,
    /// The call that was opened last.
    last: u64,
    /// No more calls are opened.
    is_going: bool,
    /// The answerer's last call is told.
    has_farewell: bool,
    /// Calls that have something to send, and some that have ended meanwhile.
    ready: VecDeque<u64>,
    /// Calls that owe a credit, and some that have ended meanwhile.
    credits: VecDeque<u64>,
    /// What goes before all bodies.
    notes: VecDeque<Note>,
    /// Answered once: the last one stands for all.
    pong: Option<u64>,
    pings: u64,
    heard: Mono,
    is_pinged: bool,
    /// Bytes of heads that wait.
    heads: usize,
    /// Taken from [`WIDE_MAX`].
    wide: u32,
    /// The beginning of a frame.
    partial: Vec<u8>,
}

/// A frame without a body's bytes.
#[derive(Debug)]
enum Note {
    Stop(CallId),
    Reset(CallId, Refusal),
    Ping(u64),
    GoAway(u64),
}

impl Mux {
    /// A connection on which nothing has happened yet.
    pub fn new(side: Side, patience: Patience, now: Mono) -> Self {
        Self {
            side,
            patience,
            calls: BTreeMap::new(),
            last: 0,
            is_going: false,
            has_farewell: false,
            ready: VecDeque::new(),
            credits: VecDeque::new(),
            notes: VecDeque::new(),
            pong: None,
            pings: 0,
            heard: now,
            is_pinged: false,
            heads: 0,
            wide: 0,
            partial: Vec::new(),
        }
    }

    /// What it was made with.
    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// Opens a call.
    ///
    /// # Errors
    /// It cannot be opened, and nothing of it is sent.
    ///
    /// # Panics
    /// This is the answerer.
    pub fn open(
        &mut self,
        kind: CallKind,
        wait_ms: u32,
        head: Bytes,
        more: More,
    ) -> Result<CallId, OpenError> {
        assert!(self.side == Side::Caller, "only a caller opens calls");
        check_head("the head of a call", &head)?;
        if self.is_going {
            return Err(OpenError::Draining);
        }
        if self.calls.len() >= CALLS_MAX {
            return Err(OpenError::Busy("too many calls are under way"));
        }
        if self.heads + head.len() > HEADS_MAX {
            return Err(OpenError::Busy("too many calls wait to be sent"));
        }
        self.heads += head.len();
        self.last += 1;
        let flow = match more {
            More::End => Flow::Ending,
            More::Follows => Flow::Open,
        };
        let out = Outgoing::new(Some(Head::Open { kind, wait_ms, head }), flow);
        self.calls.insert(self.last, Stream::new(out, Incoming::new(Flow::Open, false)));
        self.make_ready(self.last);
        Ok(CallId(self.last))
    }

    /// Answers a call.
    ///
    /// # Errors
    /// [`FrameError::Length`]: the head is too long. A call that is over takes any answer.
    ///
    /// # Panics
    /// It has an answer already.
    pub fn reply(&mut self, call: CallId, head: Bytes, more: More) -> Result<(), FrameError> {
        check_head("the head of an answer", &head)?;
        let Some(stream) = self.calls.get_mut(&call.0) else { return Ok(()) };
        let out = &mut stream.out;
        assert!(out.head.is_none() && !out.is_begun, "a call has one answer");
        self.heads += head.len();
        out.head = Some(Head::Reply { head });
        if more == More::End {
            out.flow = Flow::Ending;
        }
        self.make_ready(call.0);
        Ok(())
    }

    /// Sends a piece of a body; [`Event::Writable`] tells when the next may come.
    ///
    /// # Errors
    /// Nobody wants it any more.
    ///
    /// # Panics
    /// The piece before is still here, or the end was announced.
    pub fn send(&mut self, call: CallId, piece: Bytes) -> Result<(), NotWanted> {
        let stream = self.calls.get_mut(&call.0).ok_or(NotWanted)?;
        let out = &mut stream.out;
        match out.flow {
            Flow::Open => assert!(out.piece.is_empty(), "one piece at a time"),
            Flow::Stopped => return Err(NotWanted),
            Flow::Ending | Flow::Ended => unreachable!("a body ends once"),
        }
        out.piece = piece;
        if out.is_sendable() {
            self.make_ready(call.0);
        }
        Ok(())
    }

    /// Ends a body, after the piece that is here.
    pub fn end(&mut self, call: CallId) {
        let Some(stream) = self.calls.get_mut(&call.0) else { return };
        if stream.out.flow == Flow::Open {
            stream.out.flow = Flow::Ending;
            if stream.out.is_sendable() {
                self.make_ready(call.0);
            }
        }
    }

    /// The reader has taken `bytes`: as many more may come.
    pub fn consumed(&mut self, call: CallId, bytes: usize) {
        let Some(stream) = self.calls.get_mut(&call.0) else { return };
        let into = &mut stream.into;
        into.unread = into.unread.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
        if let Some(more) = into.widening().filter(|more| self.wide + more <= WIDE_MAX) {
            into.target += more;
            self.wide += more;
        }
        if into.is_credit_due() && !stream.owes_credit {
            stream.owes_credit = true;
            self.credits.push_back(call.0);
        }
        self.forget_if_over(call.0);
    }

    /// The rest of the other side's body is not wanted. A caller that does not want the answer
    /// ends the call: then its fate is told.
    pub fn drop_reader(&mut self, call: CallId) -> Option<Fate> {
        let stream = self.calls.get_mut(&call.0)?;
        stream.into.unread = 0;
        match (stream.into.flow, self.side) {
            (Flow::Open, Side::Caller) => {
                let refusal = Refusal::new(Code::Gone, "nobody waits for the answer");
                return Some(self.reset(call, refusal));
            }
            (Flow::Open, Side::Answerer) => {
                stream.into.flow = Flow::Stopped;
                self.notes.push_back(Note::Stop(call));
            }
            (Flow::Ending | Flow::Ended | Flow::Stopped, _) => {}
        }
        self.forget_if_over(call.0);
        None
    }

    /// No more of this side's body can be sent. If it has not ended, the call does, and its fate
    /// is told: what is not whole must not look so.
    pub fn drop_writer(&mut self, call: CallId, words: &str) -> Option<Fate> {
        let code = match self.side {
            Side::Caller => Code::Gone,
            Side::Answerer => Code::Failed,
        };
        match self.calls.get(&call.0)?.out.flow {
            Flow::Open => Some(self.reset(call, Refusal::new(code, words))),
            Flow::Ending | Flow::Ended | Flow::Stopped => None,
        }
    }

    /// Answerer: ends a call for this reason, once the head and the piece that are here are sent.
    /// [`Event::Over`] tells when.
    pub fn fail(&mut self, call: CallId, why: Refusal) {
        let Some(stream) = self.calls.get_mut(&call.0) else { return };
        if stream.out.flow == Flow::Open {
            stream.out.failure = Some(why);
            if stream.out.is_sendable() {
                self.make_ready(call.0);
            }
        }
    }

    /// Ends a call at once, in both directions. Does nothing to one that is over.
    pub fn reset(&mut self, call: CallId, refusal: Refusal) -> Fate {
        let Some(stream) = self.forget(call.0) else { return Fate::MayHaveRun };
        match self.side {
            Side::Caller if !stream.out.is_begun => Fate::NotSent,
            Side::Caller | Side::Answerer => {
                self.notes.push_back(Note::Reset(call, refusal));
                Fate::MayHaveRun
            }
        }
    }

    /// Answerer: takes no more calls. Those that are here go on.
    pub fn go_away(&mut self) {
        if !self.has_farewell {
            (self.is_going, self.has_farewell) = (true, true);
            self.notes.push_back(Note::GoAway(self.last));
        }
    }

    /// Caller: opens no more calls. Those that are here go on.
    pub fn retire(&mut self) {
        self.is_going = true;
    }

    /// Whether no more calls can be opened.
    pub fn is_going(&self) -> bool {
        self.is_going
    }

    /// Calls under way.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether no call is under way and nothing waits to be sent.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.notes.is_empty() && self.pong.is_none()
    }

    /// Asks for a sign of life where none came for long.
    ///
    /// # Errors
    /// None came for too long.
    pub fn tick(&mut self, now: Mono) -> Result<(), Silent> {
        let silence = now.since(self.heard);
        if silence >= self.patience.silence {
            return Err(Silent);
        }
        if silence >= self.patience.ping && !self.is_pinged {
            self.is_pinged = true;
            self.pings += 1;
            self.notes.push_back(Note::Ping(self.pings));
        }
        Ok(())
    }

    /// Appends frames until `out` holds `len` bytes or nothing is left to send; a last frame may
    /// reach past that.
    pub fn fill(&mut self, out: &mut Vec<u8>, len: usize, events: &mut VecDeque<Event>) {
        if let Some(number) = self.pong.take() {
            put(out, &Frame::Pong(number));
        }
        while out.len() < len {
            let Some(note) = self.notes.pop_front() else { break };
            put(out, &note.frame());
        }
        while out.len() < len {
            let Some(call) = self.credits.pop_front() else { break };
            self.send_credit(call, out);
        }
        while out.len() < len {
            let Some(call) = self.ready.pop_front() else { break };
            self.send_turn(call, out, events);
        }
    }

    /// Whether [`Mux::fill`] has something to send. (It may turn out to be nothing.)
    pub fn wants_fill(&self) -> bool {
        !(self.ready.is_empty() && self.credits.is_empty() && self.notes.is_empty())
            || self.pong.is_some()
    }

    /// The connection has ended, and with it these calls, in their order. No more are opened.
    pub fn close(&mut self) -> impl Iterator<Item = (CallId, Fate)> {
        let side = self.side;
        let calls = std::mem::take(&mut self.calls);
        *self = Self { is_going: true, ..Self::new(side, self.patience, self.heard) };
        calls.into_iter().map(move |(call, stream)| {
            let fate = match side {
                Side::Caller if !stream.out.is_begun => Fate::NotSent,
                Side::Caller | Side::Answerer => Fate::MayHaveRun,
            };
            (CallId(call), fate)
        })
    }

    fn send_credit(&mut self, call: u64, out: &mut Vec<u8>) {
        let Some(stream) = self.calls.get_mut(&call) else { return };
        stream.owes_credit = false;
        let bytes = stream.into.grant();
        if stream.into.flow == Flow::Open && bytes > 0 {
            stream.into.window += bytes;
            put(out, &Frame::Credit { call: CallId(call), bytes });
        }
    }

    /// The head if it waits, and a piece or the end.
    fn send_turn(&mut self, number: u64, out: &mut Vec<u8>, events: &mut VecDeque<Event>) {
        let Some(stream) = self.calls.get_mut(&number) else { return };
        stream.is_ready = false;
        let (call, side) = (CallId(number), &mut stream.out);
        if let Some(head) = side.head.take() {
            let more = More::end_if(side.can_send_end());
            let len = match head {
                Head::Open { kind, wait_ms, head } => {
                    put(out, &Frame::Open { call, kind, more, wait_ms, head: &head });
                    head.len()
                }
                Head::Reply { head } => {
                    put(out, &Frame::Reply { call, more, head: &head });
                    head.len()
                }
            };
            self.heads -= len;
            side.is_begun = true;
            if more == More::End {
                side.flow = Flow::Ended;
            }
        }
        if side.can_send_piece() {
            let len = side.piece.len().min(CHUNK_MAX).min(side.credit as usize);
            let bytes = side.piece.split_to(len);
            side.credit -= u32::try_from(len).expect("no more than the credit");
            let more = More::end_if(side.can_send_end());
            put(out, &Frame::Chunk { call, more, bytes: &bytes });
            if side.piece.is_empty() {
                side.piece = Bytes::new(); // lets go of what it was cut from
                match more {
                    More::End => side.flow = Flow::Ended,
                    More::Follows => events.push_back(Event::Writable(call)),
                }
            }
        } else if side.can_send_end() {
            put(out, &Frame::Chunk { call, more: More::End, bytes: &[] });
            side.flow = Flow::Ended;
        }
        if side.can_fail()
            && let Some(refusal) = side.failure.take()
        {
            // The note is sent after what stands in `out`.
            self.reset(call, refusal.clone());
            events.push_back(Event::Over { call, refusal });
            return;
        }
        if side.is_sendable() {
            self.make_ready(number);
        } else {
            self.forget_if_over(number);
        }
    }

    fn make_ready(&mut self, call: u64) {
        let Some(stream) = self.calls.get_mut(&call) else { return };
        if stream.is_ready {
            return;
        }
        stream.is_ready = true;
        self.ready.push_back(call);
        // Calls that were given up leave their numbers behind.
        if self.ready.len() > 2 * self.calls.len() + 64 {
            let calls = &self.calls;
            self.ready.retain(|call| calls.contains_key(call));
        }
    }

    fn forget_if_over(&mut self, call: u64) {
        if self.calls.get(&call).is_some_and(Stream::is_over) {
            self.forget(call);
        }
    }

    fn forget(&mut self, call: u64) -> Option<Stream> {
        let stream = self.calls.remove(&call)?;
        self.wide -= stream.into.widened();
        match &stream.out.head {
            Some(Head::Open { head, .. } | Head::Reply { head }) => self.heads -= head.len(),
            None => {}
        }
        Some(stream)
    }
}

impl Note {
    fn frame(self) -> Frame<'static> {
        match self {
            Self::Stop(call) => Frame::Stop { call },
            Self::Reset(call, refusal) => Frame::Reset { call, refusal },
            Self::Ping(number) => Frame::Ping(number),
            Self::GoAway(last) => Frame::GoAway { last },
        }
    }
}

fn check_head(what: &'static str, head: &[u8]) -> Result<(), FrameError> {
    if head.len() > HEAD_MAX {
        let (len, max) = (head.len() as u64, HEAD_MAX as u64);
        return Err(FrameError::Length { what, len, max });
    }
    Ok(())
}

fn put(out: &mut Vec<u8>, frame: &Frame<'_>) {
    frame.encode(out).expect("lengths were checked when the frame was wanted");
}
