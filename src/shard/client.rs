//! The client of one event of the Worker, as the Worker hears of it: `request.signal` fires when
//! the client goes away before it has the whole response.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use celld_v8host::{EventId, Failure};
use futures_util::stream::{LocalBoxStream, Stream};

use crate::body::{Flow, Outcome};
use crate::host::Host;

/// Held for as long as the client waits. Dropping it before its time tells the Worker.
pub(crate) struct Client {
    host: Rc<Host>,
    event: EventId,
    is_served: bool,
}

impl Client {
    pub fn new(host: Rc<Host>, event: EventId) -> Self {
        Self { host, event, is_served: false }
    }

    /// The response is there: the client waits on for as long as its body flows.
    pub fn watch(mut self, outcome: Outcome) -> Outcome {
        let Ok(mut answered) = outcome else {
            self.is_served = true;
            return outcome;
        };
        answered.body = match answered.body {
            Flow::Stream(stream, length) => {
                Flow::Stream(Box::pin(Watched { client: self, stream }), length)
            }
            Flow::Coded(coding, stream, length) => {
                Flow::Coded(coding, Box::pin(Watched { client: self, stream }), length)
            }
            whole => {
                self.is_served = true;
                whole
            }
        };
        Ok(answered)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.is_served {
            self.host.disconnected(self.event);
        }
    }
}

/// The body of a response on its way to the client. `client` comes first, so that the signal fires
/// before the stream is cancelled.
struct Watched {
    client: Client,
    stream: LocalBoxStream<'static, Result<Bytes, Failure>>,
}

impl Stream for Watched {
    type Item = Result<Bytes, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.stream.as_mut().poll_next(cx);
        if matches!(next, Poll::Ready(None | Some(Err(_)))) {
            self.client.is_served = true;
        }
        next
    }
}
