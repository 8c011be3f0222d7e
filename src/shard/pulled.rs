//! The reader's end of a stream whose writer is elsewhere: in JavaScript, or on another shard.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use celld_v8host::Failure;
use futures_util::stream::Stream;

/// Where the pieces wait. At most one: the next is asked for when it has been taken.
#[derive(Default)]
pub(crate) struct Sink {
    ready: VecDeque<Result<Option<Bytes>, Failure>>,
    waker: Option<Waker>,
}

impl Sink {
    /// A piece, the end, or why there is none.
    pub fn push(&mut self, chunk: Result<Option<Bytes>, Failure>) {
        self.ready.push_back(chunk);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The writer, as the reader reaches it.
pub(crate) trait Source {
    /// Asks for the next piece; it comes into the sink.
    fn pull(&self);
    /// Nobody reads any more.
    fn cancel(&self);
}

/// The reader's end. Dropping it before the end cancels the stream.
pub(crate) struct Pulled<S: Source> {
    source: S,
    sink: Rc<RefCell<Sink>>,
    is_asked: bool,
    is_over: bool,
}

impl<S: Source> Pulled<S> {
    pub fn new(source: S, sink: Rc<RefCell<Sink>>) -> Self {
        Self { source, sink, is_asked: false, is_over: false }
    }
}

impl<S: Source + Unpin> Stream for Pulled<S> {
    type Item = Result<Bytes, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if !self.is_asked && self.sink.borrow().ready.is_empty() {
            self.is_asked = true;
            self.source.pull();
        }
        let next = {
            let mut sink = self.sink.borrow_mut();
            let next = sink.ready.pop_front();
            if next.is_none() {
                sink.waker = Some(cx.waker().clone());
            }
            next
        };
        match next {
            None => Poll::Pending,
            Some(Ok(Some(piece))) => {
                self.is_asked = false;
                Poll::Ready(Some(Ok(piece)))
            }
            Some(Ok(None)) => {
                self.is_over = true;
                Poll::Ready(None)
            }
            Some(Err(failure)) => {
                self.is_over = true;
                Poll::Ready(Some(Err(failure)))
            }
        }
    }
}

impl<S: Source> Drop for Pulled<S> {
    fn drop(&mut self) {
        if !self.is_over {
            self.source.cancel();
        }
    }
}
