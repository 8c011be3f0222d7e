//! Lets hyper run on this runtime: sockets, timers, spawned tasks.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_io::{AsyncRead, AsyncWrite};
use send_wrapper::SendWrapper;

use crate::limit::Limit;

/// What a read is offered first: most requests and answers are smaller.
const WINDOW_MIN: usize = 2 << 10;
/// What a read is offered at most, when the ones before filled what they were offered.
const WINDOW_MAX: usize = 256 << 10;

thread_local! {
    /// What is offered must be initialised: reads of [`WINDOW_MIN`] pass through this, and only
    /// what came is copied. Most of hyper's reads find nothing.
    static SCRATCH: RefCell<[u8; WINDOW_MIN]> = const { RefCell::new([0; WINDOW_MIN]) };
}

/// A socket as hyper wants it.
pub struct HyperIo<S> {
    socket: S,
    window: usize,
}

impl<S> HyperIo<S> {
    /// Wraps a socket.
    pub fn new(socket: S) -> Self {
        Self { socket, window: WINDOW_MIN }
    }

    fn adapt(&mut self, offered: usize, read: usize) {
        self.window = if read == offered {
            (self.window * 2).min(WINDOW_MAX)
        } else {
            read.next_power_of_two().clamp(WINDOW_MIN, WINDOW_MAX)
        };
    }

    /// The socket, when hyper is through with it.
    pub fn into_inner(self) -> S {
        self.socket
    }
}

impl<S: AsyncRead + Unpin> hyper::rt::Read for HyperIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.window == WINDOW_MIN {
            return SCRATCH.with_borrow_mut(|scratch| {
                let room = &mut scratch[..cursor.remaining().min(WINDOW_MIN)];
                let offered = room.len();
                let read = ready!(Pin::new(&mut self.socket).poll_read(cx, room))?;
                cursor.put_slice(&room[..read]);
                self.adapt(offered, read);
                Poll::Ready(Ok(()))
            });
        }
        // SAFETY: the tail is zeroed before it is shown as initialised bytes, so the slice is
        // valid for any reader, also for one that looks at it.
        let room = unsafe {
            let tail = cursor.as_mut();
            let len = tail.len().min(self.window);
            std::ptr::write_bytes(tail.as_mut_ptr(), 0, len);
            std::slice::from_raw_parts_mut(tail.as_mut_ptr().cast::<u8>(), len)
        };
        let offered = room.len();
        let read = ready!(Pin::new(&mut self.socket).poll_read(cx, room))?;
        self.adapt(offered, read);
        // SAFETY: `read` bytes of the tail were written by the reader just now.
        unsafe { cursor.advance(read) };
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> hyper::rt::Write for HyperIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx)
    }
}

/// Timers for hyper. Without them its time limits on slow clients do not exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct HyperTimer;

/// Hyper asks for `Send`; the wrapper panics if another thread ever touches it, and none does.
struct Sleep(SendWrapper<Limit>);

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx)
    }
}

impl hyper::rt::Sleep for Sleep {}

impl hyper::rt::Timer for HyperTimer {
    fn sleep(&self, span: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep_until(Instant::now() + span)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleep(SendWrapper::new(Limit::at(deadline))))
    }
}
