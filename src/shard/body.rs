//! Bodies between a socket, a realm and another shard.
//!
//! A body is pulled: who reads asks for a piece, who writes answers with one, so a slow reader
//! slows the writer down and at most one piece waits.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use celld_v8host::{Encoding, Failure};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{LocalBoxStream, Stream};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};

use crate::coding::{self, Coding};
use crate::follow::Course;
use crate::websocket::Duplex;

/// A body on its way; not `Send`.
#[derive(Default)]
pub(crate) enum Flow {
    /// No body at all.
    #[default]
    Empty,
    /// All of it.
    Bytes(Bytes),
    /// Pieces on demand, with the length when it is known before.
    Stream(LocalBoxStream<'static, Result<Bytes, Failure>>, Option<u64>),
    /// What these pieces hold once they are unpacked; the length is that of the pieces.
    Coded(Coding, LocalBoxStream<'static, Result<Bytes, Failure>>, Option<u64>),
}

impl Flow {
    /// The length, when it is known before the body is read.
    pub fn length(&self) -> Option<u64> {
        match self {
            Flow::Empty => Some(0),
            Flow::Bytes(bytes) => Some(bytes.len() as u64),
            Flow::Stream(_, length) => *length,
            Flow::Coded(..) => None,
        }
    }
}

impl std::fmt::Debug for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Flow::Empty => f.write_str("Empty"),
            Flow::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Flow::Stream(_, length) => write!(f, "Stream({length:?})"),
            Flow::Coded(coding, _, length) => write!(f, "Coded({coding:?}, {length:?})"),
        }
    }
}

/// A response on its way to who asked for it.
#[derive(Debug)]
pub(crate) struct Answered {
    pub status: u16,
    pub status_text: String,
    pub headers: HeaderMap,
    pub body: Flow,
    /// Whether the body is yet to be packed as its headers say.
    pub encoding: Encoding,
    /// After redirects; empty when it is the URL that was asked for.
    pub url: String,
    pub redirected: bool,
    /// With status 101: the end for whoever asked.
    pub web_socket: Option<Duplex>,
}

/// A request on its way to a realm or to a server.
#[derive(Debug)]
pub(crate) struct Asked {
    /// As in [`celld_v8host::Request`].
    pub is_rpc: bool,
    pub method: http::Method,
    pub url: String,
    pub headers: HeaderMap,
    pub body: Flow,
    pub redirect: celld_v8host::Redirect,
}

impl Asked {
    /// Says in the headers how long the body is, as a connection would, unless the script has.
    pub fn tell_length(&mut self) {
        let (name, value) = match (&self.body, self.body.length()) {
            (Flow::Empty, _) => return,
            (Flow::Bytes(_) | Flow::Stream(..) | Flow::Coded(..), Some(length)) => {
                (CONTENT_LENGTH, HeaderValue::from(length))
            }
            (Flow::Bytes(_) | Flow::Stream(..) | Flow::Coded(..), None) => {
                (TRANSFER_ENCODING, HeaderValue::from_static("chunked"))
            }
        };
        if !self.headers.contains_key(CONTENT_LENGTH) {
            self.headers.entry(name).or_insert(value);
        }
    }
}

/// How a request ends for who sent it.
pub(crate) type Outcome = Result<Answered, Failure>;

/// A body as hyper wants it: what is packed is sent unpacked.
pub(crate) struct HttpBody {
    flow: Flow,
    /// Told when hyper has all of it.
    taken: Option<Rc<Course>>,
}

impl HttpBody {
    pub fn new(flow: Flow) -> Self {
        Self { flow: coding::plain(flow), taken: None }
    }

    /// The last body that this connection sends here.
    pub fn is_last_of(&mut self, course: Rc<Course>) {
        self.taken = Some(course);
    }
}

impl Drop for HttpBody {
    fn drop(&mut self) {
        if let Some(course) = &self.taken {
            course.body_taken();
        }
    }
}

impl Body for HttpBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.flow {
            Flow::Empty => Poll::Ready(None),
            Flow::Bytes(bytes) => {
                let bytes = std::mem::take(bytes);
                self.flow = Flow::Empty;
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Flow::Stream(stream, _) | Flow::Coded(_, stream, _) => stream
                .as_mut()
                .poll_next(cx)
                .map(|piece| piece.map(|piece| piece.map(Frame::data).map_err(BodyError))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.flow {
            Flow::Empty => true,
            Flow::Bytes(bytes) => bytes.is_empty(),
            Flow::Stream(..) | Flow::Coded(..) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.flow.length().map(SizeHint::with_exact).unwrap_or_default()
    }
}

/// The writer of a body failed half-way: the connection is cut, so that the reader sees it.
#[derive(Debug)]
pub(crate) struct BodyError(pub Failure);

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for BodyError {}

/// The body that hyper reads from a socket, as a flow.
pub(crate) struct SocketBody {
    body: hyper::body::Incoming,
    left: u64,
    limit: u64,
    patience: Option<Duration>,
    /// Runs while a piece is awaited.
    stall: Option<LocalBoxFuture<'static, ()>>,
}

impl SocketBody {
    /// The body of a server's answer.
    pub fn of_server(body: hyper::body::Incoming) -> Self {
        Self { body, left: u64::MAX, limit: u64::MAX, patience: None, stall: None }
    }

    /// The body of a client's request. Fails once more than `limit` bytes came, or when the next
    /// piece is awaited for longer than `patience`.
    pub fn of_client(body: hyper::body::Incoming, limit: u64, patience: Duration) -> Self {
        Self { body, left: limit, limit, patience: Some(patience), stall: None }
    }

    /// Nothing has come: ready once that lasts for too long.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(patience) = self.patience else { return Poll::Pending };
        let stall = self.stall.get_or_insert_with(|| Box::pin(celld_rt::sleep(patience)));
        stall.as_mut().poll(cx)
    }
}

impl Stream for SocketBody {
    type Item = Result<Bytes, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => {
                    return self.poll_stall(cx).map(|()| {
                        let text = "Network connection lost: the body came too slowly";
                        Some(Err(failure("Error", text)))
                    });
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => {
                    let text = format!("Network connection lost while reading the body: {error}");
                    return Poll::Ready(Some(Err(failure("Error", text))));
                }
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            self.stall = None;
            // Trailers are not visible to Workers.
            let Ok(data) = frame.into_data() else { continue };
            if data.is_empty() {
                continue;
            }
            let limit = self.limit;
            let Some(left) = self.left.checked_sub(data.len() as u64) else {
                let text = format!("the body is larger than the limit of {limit} bytes");
                return Poll::Ready(Some(Err(failure("Error", text))));
            };
            self.left = left;
            return Poll::Ready(Some(Ok(data)));
        }
    }
}

/// What is told of a panic, which is a bug of ours. Where it was stands in the log.
pub(crate) fn internal_error() -> Failure {
    failure("Error", "internal error")
}

/// A failure of ours, as JavaScript will see it.
pub(crate) fn failure(name: &str, message: impl Into<String>) -> Failure {
    Failure::new(name, message)
}
