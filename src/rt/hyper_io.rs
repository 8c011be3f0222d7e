//! Lets hyper run on this runtime: sockets, timers, spawned tasks.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_io::{AsyncRead, AsyncWrite};
use send_wrapper::SendWrapper;

/// A socket as hyper wants it.
pub struct HyperIo<S>(pub S);

impl<S: AsyncRead + Unpin> hyper::rt::Read for HyperIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // SAFETY: the tail is zeroed before it is shown as initialised bytes, so the slice is
        // valid for any reader, also for one that looks at it.
        let room = unsafe {
            let tail = cursor.as_mut();
            std::ptr::write_bytes(tail.as_mut_ptr(), 0, tail.len());
            std::slice::from_raw_parts_mut(tail.as_mut_ptr().cast::<u8>(), tail.len())
        };
        let read = ready!(Pin::new(&mut self.0).poll_read(cx, room))?;
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
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_close(cx)
    }
}

/// Timers for hyper. Without them its time limits on slow clients do not exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct HyperTimer;

/// Hyper asks for `Send`; the wrapper panics if another thread ever touches it, and none does.
struct Sleep(SendWrapper<glommio::timer::Timer>);

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut *self.0).poll(cx).map(|_| ())
    }
}

impl hyper::rt::Sleep for Sleep {}

impl hyper::rt::Timer for HyperTimer {
    fn sleep(&self, span: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleep(SendWrapper::new(glommio::timer::Timer::new(span))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep(deadline.saturating_duration_since(Instant::now()))
    }
}
