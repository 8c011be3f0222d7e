//! Bytes of the other side.
//!
//! Invariant: whatever they are, they cost no more memory than the windows and one frame. What
//! breaks the order of a call ends the connection: both sides would not mean the same any more.

use super::*;
use crate::frame::{self, CREDIT_MAX, frame_len, owned};

impl Mux {
    /// Whether bytes are to be read. Not while answers to the last ones pile up.
    pub fn wants_bytes(&self) -> bool {
        self.notes.len() < NOTES_MAX + self.calls.len()
    }

    /// Takes what has come at `now`, in pieces as it likes.
    ///
    /// # Errors
    /// The other side has a fault, or is none of ours. The connection is of no use any more.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        now: Mono,
        events: &mut VecDeque<Event>,
    ) -> Result<(), FrameError> {
        if !bytes.is_empty() {
            self.heard = now;
            self.is_pinged = false;
        }
        if !self.partial.is_empty() {
            let mut partial = std::mem::take(&mut self.partial);
            bytes = complete(&mut partial, bytes)?;
            match frame::decode(&partial)? {
                Some((frame, _)) => self.on_frame(frame, events)?,
                None => {
                    self.partial = partial;
                    return Ok(());
                }
            }
            if partial.capacity() <= PARTIAL_KEPT {
                partial.clear();
                self.partial = partial;
            }
        }
        while let Some((frame, len)) = frame::decode(bytes)? {
            self.on_frame(frame, events)?;
            bytes = &bytes[len..];
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    fn on_frame(
        &mut self,
        frame: Frame<'_>,
        events: &mut VecDeque<Event>,
    ) -> Result<(), FrameError> {
        match (self.side, frame) {
            (_, Frame::Ping(number)) => self.pong = Some(number),
            // That it came is all that it says.
            (_, Frame::Pong(_)) => {}
            (Side::Answerer, Frame::Open { call, kind, more, wait_ms, head }) => {
                if self.on_open(call, more)? {
                    let head = owned(head);
                    events.push_back(Event::Opened { call, kind, more, wait_ms, head });
                }
            }
            (Side::Caller, Frame::Reply { call, more, head }) => {
                if self.on_reply(call, more)? {
                    events.push_back(Event::Replied { call, more, head: owned(head) });
                }
            }
            (_, Frame::Chunk { call, more, bytes }) => {
                if self.on_chunk(call, more, bytes.len())? {
                    events.push_back(Event::Data { call, more, bytes: owned(bytes) });
                }
            }
            (_, Frame::Credit { call, bytes }) => self.on_credit(call, bytes)?,
            (Side::Caller, Frame::Stop { call }) => self.on_stop(call, events)?,
            (_, Frame::Reset { call, refusal }) => self.on_reset(call, refusal, events)?,
            (Side::Caller, Frame::GoAway { last }) => self.on_go_away(last, events)?,
            (Side::Caller, Frame::Open { .. })
            | (Side::Answerer, Frame::Reply { .. } | Frame::Stop { .. } | Frame::GoAway { .. }) => {
                return Err(FrameError::Order("a frame that only the other side may send"));
            }
        }
        Ok(())
    }

    /// The call of a frame; `None`: it is over here, and the frame is late.
    fn find(&mut self, call: CallId) -> Result<Option<&mut Stream>, FrameError> {
        const NEVER: FrameError = FrameError::Order("a frame of a call that was never opened");
        if call.0 == 0 || call.0 > self.last {
            return Err(NEVER);
        }
        let stream = self.calls.get_mut(&call.0);
        // A caller's call is not known to the other side before it was sent.
        if self.side == Side::Caller && stream.as_ref().is_some_and(|s| !s.out.is_begun) {
            return Err(NEVER);
        }
        Ok(stream)
    }

    /// Whether it is news.
    fn on_open(&mut self, call: CallId, more: More) -> Result<bool, FrameError> {
        if call.0 <= self.last {
            return Err(FrameError::Order("a call is opened twice, or out of turn"));
        }
        self.last = call.0;
        if self.is_going {
            return Ok(false); // the farewell has told that it does not run
        }
        if self.calls.len() >= CALLS_MAX {
            let refusal = Refusal::new(Code::Busy, "too many calls are under way");
            self.notes.push_back(Note::Reset(call, refusal));
            return Ok(false);
        }
        let into = Incoming::new(Flow::from_more(more), true);
        self.calls.insert(call.0, Stream::new(Outgoing::new(None, Flow::Open), into));
        Ok(true)
    }

    fn on_reply(&mut self, call: CallId, more: More) -> Result<bool, FrameError> {
        let Some(stream) = self.find(call)? else { return Ok(false) };
        if stream.into.is_begun {
            return Err(FrameError::Order("a call is answered twice"));
        }
        stream.into.is_begun = true;
        stream.into.flow = Flow::from_more(more);
        self.forget_if_over(call.0);
        Ok(true)
    }

    fn on_chunk(&mut self, call: CallId, more: More, len: usize) -> Result<bool, FrameError> {
        let Some(stream) = self.find(call)? else { return Ok(false) };
        let into = &mut stream.into;
        if !into.is_begun {
            return Err(FrameError::Order("a body before its head"));
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        into.window = into
            .window
            .checked_sub(len)
            .ok_or(FrameError::Order("more of a body than its reader has allowed"))?;
        match into.flow {
            Flow::Open => {}
            Flow::Stopped => return Ok(false),
            Flow::Ended | Flow::Ending => {
                return Err(FrameError::Order("a body goes on after its end"));
            }
        }
        into.unread += len;
        into.flow = Flow::from_more(more);
        self.forget_if_over(call.0);
        Ok(true)
    }

    fn on_credit(&mut self, call: CallId, bytes: u32) -> Result<(), FrameError> {
        let Some(stream) = self.find(call)? else { return Ok(()) };
        let out = &mut stream.out;
        let credit = out.credit.checked_add(bytes).filter(|credit| *credit <= CREDIT_MAX);
        out.credit = credit.ok_or(FrameError::Order("more credit than there can be"))?;
        if out.is_sendable() {
            self.make_ready(call.0);
        }
        Ok(())
    }

    fn on_stop(&mut self, call: CallId, events: &mut VecDeque<Event>) -> Result<(), FrameError> {
        let Some(stream) = self.find(call)? else { return Ok(()) };
        match stream.out.flow {
            Flow::Open | Flow::Ending => {
                stream.out.flow = Flow::Stopped;
                stream.out.piece = Bytes::new();
                events.push_back(Event::Stopped(call));
                self.forget_if_over(call.0);
            }
            // It was on its way while the end was, too.
            Flow::Ended => {}
            Flow::Stopped => return Err(FrameError::Order("a body is stopped twice")),
        }
        Ok(())
    }

    fn on_reset(
        &mut self,
        call: CallId,
        refusal: Refusal,
        events: &mut VecDeque<Event>,
    ) -> Result<(), FrameError> {
        let side = self.side;
        let Some(stream) = self.find(call)? else { return Ok(()) };
        match side {
            Side::Caller if stream.into.is_begun && refusal.code.has_not_run() => {
                return Err(FrameError::Order("a call that was answered is said not to have run"));
            }
            Side::Answerer if refusal.code != Code::Gone => {
                return Err(FrameError::Order("a caller ends its call as only answerers do"));
            }
            Side::Caller | Side::Answerer => {}
        }
        self.forget(call.0);
        events.push_back(Event::Over { call, refusal });
        Ok(())
    }

    fn on_go_away(&mut self, last: u64, events: &mut VecDeque<Event>) -> Result<(), FrameError> {
        if self.has_farewell {
            return Err(FrameError::Order("a second farewell"));
        }
        (self.is_going, self.has_farewell) = (true, true);
        let refused: Vec<u64> =
            self.calls.range(last.saturating_add(1)..).map(|(n, _)| *n).collect();
        for call in refused {
            self.forget(call);
            let refusal = Refusal::new(Code::Draining, "the node is stopping");
            events.push_back(Event::Over { call: CallId(call), refusal });
        }
        events.push_back(Event::GoneAway);
        Ok(())
    }
}

/// Capacity for cut frames that is kept for the next one: enough for all but long heads.
const PARTIAL_KEPT: usize = 2 * CHUNK_MAX;

/// Moves bytes to a frame that began earlier, as far as it goes, and returns the rest.
fn complete<'a>(partial: &mut Vec<u8>, bytes: &'a [u8]) -> Result<&'a [u8], FrameError> {
    let mut rest = bytes;
    let mut move_to = |partial: &mut Vec<u8>, len: usize| {
        let missing = len.saturating_sub(partial.len()).min(rest.len());
        let (head, tail) = rest.split_at(missing);
        partial.extend_from_slice(head);
        rest = tail;
    };
    move_to(partial, HEADER_LEN);
    if let Some(header) = partial.first_chunk::<HEADER_LEN>() {
        let len = frame_len(header)?;
        move_to(partial, len);
    }
    Ok(rest)
}
