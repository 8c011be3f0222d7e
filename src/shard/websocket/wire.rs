//! A connection that speaks WebSocket, pumped into an end and out of it by one task.
//!
//! Invariant: one Close goes out at most; nothing is read while what was read has no room, and
//! nothing is taken from the end while what was taken is not sent. So a slow side slows the other
//! down, and a socket that rests costs no buffer.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use celld_rt as rt;
use celld_v8host::{MESSAGE_BYTES_MAX, SocketEvent, SocketMessage};
use futures_lite::io::{AsyncRead, AsyncWrite};
use futures_util::future::LocalBoxFuture;

use super::codec::{Decoder, Incoming, Role, Violation, encode, encode_pong};
use super::{Duplex, RESTART};
use crate::body::failure;

/// What one read may bring.
const READ_BYTES: usize = 64 << 10;
/// No more is taken from the end, or answered, while this much is not sent.
const UNSENT_MAX: usize = 64 << 10;
/// A larger buffer is not kept for the next message.
const KEPT_MAX: usize = 4 << 10;
/// Who does not answer a Close by then will not.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// The end is gone without a Close.
const INTERNAL: u16 = 1011;

thread_local! {
    /// Between a read and the decoder, which nothing comes between.
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// A connection, for as long as it lives.
pub(crate) struct Wire<S> {
    stream: S,
    role: Role,
    end: Duplex,
    decoder: Decoder,
    unsent: Vec<u8>,
    /// How many of `unsent` are sent.
    sent: usize,
    needs_flush: bool,
    has_closed: bool,
    /// The other side will send nothing more, or nobody can understand it.
    is_deaf: bool,
    /// Begins when our Close is out.
    patience: Option<LocalBoxFuture<'static, ()>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// `read`: what has come already, behind the handshake.
    pub fn new(stream: S, role: Role, read: &[u8], end: Duplex) -> Self {
        let mut decoder = Decoder::new(role, MESSAGE_BYTES_MAX);
        decoder.feed(read);
        Self {
            stream,
            role,
            end,
            decoder,
            unsent: Vec::new(),
            sent: 0,
            needs_flush: false,
            has_closed: false,
            is_deaf: false,
            patience: None,
        }
    }

    /// Pumps until both sides have closed, or the connection is lost. `leaving`: the node stops,
    /// and closes what is still open.
    pub async fn run(mut self, leaving: impl Future<Output = ()>) {
        let mut leaving = std::pin::pin!(leaving);
        let mut stays = true;
        std::future::poll_fn(|cx| {
            if stays && leaving.as_mut().poll(cx).is_ready() {
                stays = false;
                self.close(RESTART, "the node is stopping");
            }
            self.poll(cx)
        })
        .await;
        // The other side has been told what there was to tell: an error changes nothing.
        let _closed = std::future::poll_fn(|cx| Pin::new(&mut self.stream).poll_close(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut moved = false;
            match self.poll_write(cx) {
                Ok(wrote) => moved |= wrote,
                Err(_) => return self.lose(),
            }
            moved |= self.poll_end(cx);
            match self.poll_read(cx) {
                Ok(read) => moved |= read,
                Err(_) => return self.lose(),
            }
            if self.has_closed && self.unsent.is_empty() && !self.needs_flush {
                if self.is_deaf {
                    return Poll::Ready(());
                }
                let patience =
                    self.patience.get_or_insert_with(|| Box::pin(rt::sleep(CLOSE_LIMIT)));
                if patience.as_mut().poll(cx).is_ready() {
                    return self.lose();
                }
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    /// The connection is gone; so is what was on its way.
    fn lose(&mut self) -> Poll<()> {
        self.end.sender.push(SocketEvent::Lost);
        Poll::Ready(())
    }

    /// Sends what there is. Whether anything was sent.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        while self.sent < self.unsent.len() {
            let rest = &self.unsent[self.sent..];
            match Pin::new(&mut self.stream).poll_write(cx, rest)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => {
                    self.sent += written;
                    self.needs_flush = true;
                    moved = true;
                }
                Poll::Pending => return Ok(moved),
            }
        }
        if self.sent > 0 {
            self.sent = 0;
            self.unsent.clear();
            self.unsent.shrink_to(KEPT_MAX);
        }
        if self.needs_flush && Pin::new(&mut self.stream).poll_flush(cx)?.is_ready() {
            self.needs_flush = false;
        }
        Ok(moved)
    }

    /// Takes what the end says. Whether there was anything.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        while !self.has_closed && self.unsent.len() < UNSENT_MAX {
            match self.end.receiver.poll_next(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(SocketEvent::Message(message))) => {
                    self.has_closed = matches!(message, SocketMessage::Close { .. });
                    encode(self.role, &message, &mut self.unsent);
                }
                // Who has heard our Close and does not answer it: there is nothing to say.
                Poll::Ready(_) if self.is_deaf => self.has_closed = true,
                Poll::Ready(Some(SocketEvent::Lost | SocketEvent::Failed(_)) | None) => {
                    self.close(INTERNAL, "");
                }
            }
            moved = true;
        }
        moved
    }

    fn close(&mut self, code: u16, reason: &str) {
        if !self.has_closed {
            self.has_closed = true;
            let message = SocketMessage::Close { code, reason: reason.to_owned() };
            encode(self.role, &message, &mut self.unsent);
        }
    }

    /// Hands on what comes, or reads more. Whether there was anything.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        while !self.is_deaf && self.unsent.len() < UNSENT_MAX {
            // Who has gone is not waited for: the other side's Close is still to come.
            if self.end.sender.poll_ready(cx).is_pending() {
                break;
            }
            match self.decoder.next() {
                Ok(Some(incoming)) => self.take(incoming),
                Ok(None) => match self.poll_bytes(cx)? {
                    Poll::Ready(()) => {}
                    Poll::Pending => break,
                },
                Err(violation) => self.refuse(violation),
            }
            moved = true;
        }
        Ok(moved)
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        let Self { stream, decoder, .. } = self;
        READ.with_borrow_mut(|room| match Pin::new(stream).poll_read(cx, room)? {
            Poll::Ready(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(read) => {
                decoder.feed(&room[..read]);
                Ok(Poll::Ready(()))
            }
            Poll::Pending => Ok(Poll::Pending),
        })
    }

    fn take(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Message(message) => {
                self.is_deaf = matches!(message, SocketMessage::Close { .. });
                self.end.sender.push(SocketEvent::Message(message));
            }
            Incoming::Ping(bytes) if !self.has_closed => {
                encode_pong(self.role, &bytes, &mut self.unsent);
            }
            Incoming::Ping(_) | Incoming::Pong => {}
        }
    }

    fn refuse(&mut self, Violation { code, text }: Violation) {
        let words = format!(
            "WebSocket protocol error; protocolError.statusCode = {code}; protocolError.description = {text}"
        );
        self.is_deaf = true;
        self.end.sender.push(SocketEvent::Failed(failure("Error", words)));
        self.close(code, &text);
    }
}
