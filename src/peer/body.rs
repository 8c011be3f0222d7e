//! The ends of a body: who reads it, and who writes it.
//!
//! Invariant: a body that is not read to its end, or not written to it, ends the call, or stops
//! the other side's writing: nobody waits for a handle that is gone.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use crate::connection::{NotSendable, Slot};
use crate::error::{CallError, Cause};
use crate::fetch::Failure;
use crate::frame::{Code, Refusal};

/// Reads the other side's body. What is read makes room for more.
pub struct BodyReader {
    slot: Rc<Slot>,
}

/// Writes this side's body.
pub struct BodyWriter {
    slot: Rc<Slot>,
    is_finished: bool,
}

/// A piece cannot be sent, and no later one either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Its reader does not want the rest. The answer may be good all the same.
    #[error("the other side does not read the rest")]
    Stopped,
    /// The call is over.
    #[error(transparent)]
    Over(#[from] CallError),
}

/// A body does not fit into the memory that its reader wants to give it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WholeError {
    /// The call is over.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It is longer than this.
    #[error("the body is longer than {0} bytes")]
    TooLong(usize),
}

impl BodyReader {
    pub(crate) fn new(slot: Rc<Slot>) -> Self {
        Self { slot }
    }

    /// The next piece, never empty; `None` at the end.
    ///
    /// # Errors
    /// The call ended before the body did.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Self::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, CallError>> {
        self.slot.poll_piece(cx)
    }

    /// All that is left of it, if that is at most `max` bytes.
    ///
    /// # Errors
    /// It is longer, or the call ended before.
    pub async fn whole(mut self, max: usize) -> Result<Bytes, WholeError> {
        let Some(first) = self.next().await? else { return Ok(Bytes::new()) };
        let mut all = BytesMut::new();
        let mut piece = first;
        loop {
            if all.len() + piece.len() > max {
                return Err(WholeError::TooLong(max));
            }
            let Some(next) = self.next().await? else {
                // Mostly there is one piece.
                if all.is_empty() {
                    return Ok(piece);
                }
                all.extend_from_slice(&piece);
                return Ok(all.freeze());
            };
            all.extend_from_slice(&piece);
            piece = next;
        }
    }

    /// Whether all of it has come.
    pub fn has_come(&self) -> bool {
        self.slot.has_come()
    }

    /// Whether nothing is left to read.
    pub fn is_at_end(&self) -> bool {
        self.slot.has_end()
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        self.slot.wish_end(|mux, call| mux.drop_reader(call), Cause::Closed);
    }
}

impl BodyWriter {
    pub(crate) fn new(slot: Rc<Slot>) -> Self {
        Self { slot, is_finished: false }
    }

    /// Sends a piece of any length: it is cut as the windows want it. Waits until the piece before
    /// is on its way.
    ///
    /// # Errors
    /// Nobody wants it. The body is over, and [`Self::finish`] is not needed.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), WriteError> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        self.send(piece);
        Ok(())
    }

    /// Until a piece can be sent.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WriteError>> {
        self.slot.poll_sendable(cx).map_err(|error| {
            self.is_finished = true;
            match error {
                NotSendable::Stopped => WriteError::Stopped,
                NotSendable::Over(error) => WriteError::Over(error),
            }
        })
    }

    /// Sends a piece, once [`Self::poll_ready`] was ready.
    ///
    /// # Panics
    /// It was not.
    pub fn send(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.slot.send(piece);
        }
    }

    /// Waits until all that was written is on its way, or nobody wants it.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub async fn flushed(&mut self) -> Result<(), WriteError> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// The body is complete.
    pub fn finish(mut self) {
        self.is_finished = true;
        self.slot.wish(|mux, call| mux.end(call));
    }

    /// The body breaks off, and with it the call. `words`: why, for the other side's log.
    pub fn abort(mut self, words: &str) {
        self.give_up(words);
    }

    /// The body of an answer has failed where it is made: the call ends after what was sent, and its
    /// caller learns how.
    pub fn fail(mut self, how: &Failure) {
        self.is_finished = true;
        let refusal = Refusal::new(Code::Broken, how.to_words());
        self.slot.wish(|mux, call| mux.fail(call, refusal));
    }

    fn give_up(&mut self, words: &str) {
        if !std::mem::replace(&mut self.is_finished, true) {
            self.slot.wish_end(|mux, call| mux.drop_writer(call, words), Cause::Closed);
        }
    }
}

impl Drop for BodyWriter {
    fn drop(&mut self) {
        self.give_up("the body broke off");
    }
}
