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
    /// The last write found no room.
    is_blocked: bool,
}

impl<S> HyperIo<S> {
    /// Wraps a socket.
    pub fn new(socket: S) -> Self {
        Self { socket, window: WINDOW_MIN, is_blocked: false }
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
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        match &written {
            Poll::Pending => self.is_blocked = true,
            // Hyper 1.12 flushes once more after a write that found no room. When the peer has made
            // some meanwhile, that flush succeeds, nothing waits for the socket any more, and hyper
            // returns as if something did: a response would stop for ever. So it is polled again.
            Poll::Ready(_) if std::mem::take(&mut self.is_blocked) => cx.waker().wake_by_ref(),
            Poll::Ready(_) => {}
        }
        written
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Wake, Waker};

    use bytes::Bytes;
    use hyper::body::{Body, Frame, Incoming};
    use hyper::service::service_fn;
    use hyper::{Request, Response};

    use super::*;

    const PIECE: usize = 64 << 10;
    const PIECES: usize = 20;
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

    /// A peer that makes room for one write between every two.
    #[derive(Default)]
    struct Peer {
        unread: &'static [u8],
        has_room: bool,
        received: usize,
        /// Who waits for room.
        waiting: Option<Waker>,
    }

    struct Socket(Rc<RefCell<Peer>>);

    impl AsyncRead for Socket {
        fn poll_read(
            self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            room: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let mut peer = self.0.borrow_mut();
            let len = peer.unread.len().min(room.len());
            let (now, later) = peer.unread.split_at(len);
            room[..len].copy_from_slice(now);
            peer.unread = later;
            if len == 0 { Poll::Pending } else { Poll::Ready(Ok(len)) }
        }
    }

    impl AsyncWrite for Socket {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let mut peer = self.0.borrow_mut();
            let has_room = peer.has_room;
            peer.has_room = !has_room;
            peer.waiting = (!has_room).then(|| cx.waker().clone());
            if !has_room {
                return Poll::Pending;
            }
            peer.received += bytes.len();
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// So many pieces, each there at once.
    struct Pieces(usize);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let left = self.0.checked_sub(1);
            self.0 = left.unwrap_or_default();
            Poll::Ready(left.map(|_| Ok(Frame::data(Bytes::from_static(&[7; PIECE])))))
        }
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_response_goes_on_when_room_is_made_between_two_writes() {
        let peer = Rc::new(RefCell::new(Peer { unread: REQUEST, ..Peer::default() }));
        let answer =
            |_: Request<Incoming>| async { Ok::<_, Infallible>(Response::new(Pieces(PIECES))) };
        let served = hyper::server::conn::http1::Builder::new()
            .max_buf_size(8 << 10)
            .serve_connection(HyperIo::new(Socket(peer.clone())), service_fn(answer));
        let mut served = std::pin::pin!(served);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        while served.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            let is_woken = woken.0.swap(false, Ordering::Relaxed);
            let waits = peer.borrow_mut().waiting.take().is_some();
            let received = peer.borrow().received;
            assert!(is_woken || waits, "after {received} bytes nothing would poll it again");
        }
        assert!(peer.borrow().received > PIECES * PIECE, "head and body");
    }
}
