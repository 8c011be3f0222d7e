//! The socket of a client.
//!
//! A socket that is closed while bytes of the client are still on their way answers them with a
//! reset, and a reset can overtake and destroy what was sent before: the 4xx that says why. So the
//! way out is closed first, and what comes meanwhile is read and thrown away for a moment.
//! Source: RFC 9112, section 9.6.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use celld_rt as rt;
use futures_lite::io::{AsyncRead, AsyncWrite};
use futures_util::future::LocalBoxFuture;

use crate::follow::Course;

/// For how long a client may go on sending after the last answer.
const LINGER: Duration = Duration::from_millis(500);
/// And how much.
const LINGER_BYTES_MAX: usize = 1 << 20;

/// A connection's socket, closed gently.
pub(crate) struct ClientSocket {
    stream: rt::net::TcpStream,
    /// What was read before it came here.
    unread: Bytes,
    course: Rc<Course>,
    leaving: Option<Leaving>,
}

struct Leaving {
    over: LocalBoxFuture<'static, ()>,
    bytes: usize,
}

impl ClientSocket {
    /// Bytes that have come already, and where the connection may go.
    pub fn new(stream: rt::net::TcpStream, unread: Bytes, course: Rc<Course>) -> Self {
        Self { stream, unread, course, leaving: None }
    }

    /// The stream, and what was read of it and kept.
    pub fn into_parts(self) -> (rt::net::TcpStream, Bytes) {
        (self.stream, self.unread)
    }

    /// The socket itself.
    pub fn stream(&self) -> &rt::net::TcpStream {
        &self.stream
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.course.leaves().is_some() {
            return Poll::Pending;
        }
        if !self.unread.is_empty() {
            let length = room.len().min(self.unread.len());
            let part = self.unread.split_to(length);
            room[..part.len()].copy_from_slice(&part);
            return Poll::Ready(Ok(part.len()));
        }
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, room))?;
        if read > 0 && self.course.read() {
            // Whoever polls sees that it leaves.
            self.unread = Bytes::copy_from_slice(&room[..read]);
            return Poll::Pending;
        }
        Poll::Ready(Ok(read))
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.course.written();
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, leaving, .. } = &mut *self;
        let leaving = match leaving {
            Some(leaving) => leaving,
            None => {
                ready!(Pin::new(&mut *stream).poll_close(cx))?;
                leaving.insert(Leaving { over: Box::pin(rt::sleep(LINGER)), bytes: 0 })
            }
        };
        let mut thrown_away = [0; 4 << 10];
        while leaving.bytes < LINGER_BYTES_MAX {
            match Pin::new(&mut *stream).poll_read(cx, &mut thrown_away) {
                Poll::Ready(Ok(0) | Err(_)) => break,
                Poll::Ready(Ok(read)) => leaving.bytes += read,
                Poll::Pending => {
                    ready!(leaving.over.as_mut().poll(cx));
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
