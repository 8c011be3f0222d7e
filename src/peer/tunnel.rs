//! A WebSocket that goes through a call: the messages of [`crate::socket`] in both directions.
//!
//! Invariant: each direction ends with one close, which the types of this file give once: a
//! [`SocketReader`] that broke off gives code 1006, and a [`SocketWriter`] is used up by its close.

use bytes::Bytes;

use crate::FrameError;
use crate::body::{BodyReader, BodyWriter, WriteError};
use crate::error::{CallError, Cause};
use crate::mux::Fate;
use crate::socket::{Close, Message, Messages};

/// Reads the other side's messages.
pub struct SocketReader {
    body: BodyReader,
    messages: Messages,
    is_over: bool,
}

/// Writes this side's messages.
pub struct SocketWriter {
    body: BodyWriter,
}

/// What a reader gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Text or bytes.
    Message(Message),
    /// The last: the other side has closed.
    Closed(Close),
    /// The last: the connection broke off, for this reason. Clients see code 1006.
    Broken(CallError),
}

/// A message cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// It is too long; others may follow.
    #[error(transparent)]
    Message(#[from] FrameError),
    /// Nobody reads it.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl SocketReader {
    /// On the body of an answer or a request whose content is messages.
    pub fn new(body: BodyReader) -> Self {
        Self { body, messages: Messages::default(), is_over: false }
    }

    /// The next message. `None` after the last one.
    pub async fn next(&mut self) -> Option<Received> {
        if self.is_over {
            return None;
        }
        let received = match self.read().await {
            Ok(Message::Close(close)) => Received::Closed(close),
            Ok(message) => return Some(Received::Message(message)),
            Err(error) => Received::Broken(error),
        };
        self.is_over = true;
        Some(received)
    }

    async fn read(&mut self) -> Result<Message, CallError> {
        let fault = |error| CallError { fate: Fate::MayHaveRun, cause: Cause::Protocol(error) };
        loop {
            if let Some(message) = self.messages.take().map_err(fault)? {
                return Ok(message);
            }
            match self.body.next().await? {
                Some(piece) => self.messages.push(&piece),
                None => return Err(fault(FrameError::Order("a WebSocket ends without a close"))),
            }
        }
    }
}

impl SocketWriter {
    /// On the body of an answer or a request whose content is messages.
    pub fn new(body: BodyWriter) -> Self {
        Self { body }
    }

    /// Sends text, which is UTF-8, or bytes. Waits while the other side does not read.
    ///
    /// # Errors
    /// It is not sent.
    ///
    /// # Panics
    /// It is a close: [`Self::close`] sends that.
    pub async fn send(&mut self, message: &Message) -> Result<(), SendError> {
        assert!(!matches!(message, Message::Close(_)), "the last message uses the writer up");
        Ok(self.body.write(message.encode()?).await?)
    }

    /// Sends the last message.
    ///
    /// # Errors
    /// It is not sent.
    pub async fn close(mut self, close: Close) -> Result<(), SendError> {
        let bytes: Bytes = Message::Close(close).encode()?;
        self.body.write(bytes).await?;
        self.body.finish();
        Ok(())
    }

    /// The connection of this side broke off, and so does the other side's.
    pub fn break_off(self, words: &str) {
        self.body.abort(words);
    }
}
