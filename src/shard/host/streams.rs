//! Bodies on their way into JavaScript and out of it.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use celld_rt as rt;
use celld_v8host::{Body, EventId, Failure, Input, Origin, Request, Response, StreamId};
use futures_util::StreamExt as _;

use super::{Host, Source};
use crate::body::{Answered, Asked, Flow, failure};
use crate::coding;
use crate::pulled::{Pulled, Sink, Source as PullSource};

impl Host {
    pub(super) fn pull(self: &Rc<Self>, stream: StreamId, origin: Origin) {
        let flow = {
            let mut table = self.table.borrow_mut();
            match table.sources.insert(stream, Source::Pulled) {
                Some(Source::Waiting(flow)) => flow,
                // One question at a time: the answer to the first is on its way.
                Some(Source::Pulled) => return,
                None => {
                    table.sources.remove(&stream);
                    drop(table);
                    return self.admit(origin, Input::Chunk { stream, chunk: Ok(None) });
                }
            }
        };
        let host = self.clone();
        rt::spawn(async move {
            let (flow, piece) = next_piece(flow).await;
            let still_wanted = {
                let mut table = host.table.borrow_mut();
                match (table.sources.contains_key(&stream), &piece) {
                    (true, Ok(Some(_))) => {
                        table.sources.insert(stream, Source::Waiting(flow));
                        true
                    }
                    (true, _) => table.sources.remove(&stream).is_some(),
                    (false, _) => false,
                }
            };
            if still_wanted {
                host.admit(origin, Input::Chunk { stream, chunk: piece });
            }
        });
    }

    pub(super) fn sink_push(
        self: &Rc<Self>,
        stream: StreamId,
        chunk: Result<Option<Bytes>, Failure>,
    ) {
        let last = !matches!(chunk, Ok(Some(_)));
        let sink = self.table.borrow().sinks.get(&stream).map(|(sink, _)| sink.clone());
        if let Some(sink) = sink {
            sink.borrow_mut().push(chunk);
        }
        if last {
            self.sink_closed(stream);
        }
    }

    /// The reader of a stream of ours has gone away.
    pub fn sink_cancelled(self: &Rc<Self>, stream: StreamId) {
        let known = self.table.borrow().sinks.contains_key(&stream);
        if known {
            self.sink_closed(stream);
            let reason = "the reader has gone away".to_owned();
            self.deliver(Input::Cancel { stream, reason });
        }
    }

    fn sink_closed(self: &Rc<Self>, stream: StreamId) {
        let event = {
            let mut table = self.table.borrow_mut();
            let Some((_, id)) = table.sinks.remove(&stream) else { return };
            if let Some(event) = table.events.get_mut(&id) {
                event.sinks -= 1;
            }
            id
        };
        self.finish_if_idle(event);
    }

    /// A body on its way into JavaScript.
    pub(super) fn body_in(&self, flow: Flow, event: EventId) -> Body {
        match flow {
            Flow::Empty => Body::Empty,
            Flow::Bytes(bytes) => Body::Bytes(bytes),
            flow @ (Flow::Stream(..) | Flow::Coded(..)) => {
                let length = flow.length();
                let id = StreamId(self.next_stream.get());
                self.next_stream.set(id.0 + 2);
                let mut table = self.table.borrow_mut();
                table.sources.insert(id, Source::Waiting(flow));
                if let Some(event) = table.events.get_mut(&event) {
                    event.sources.push(id);
                }
                Body::Stream { id, length }
            }
        }
    }

    /// A body on its way out. An even stream is one that came in and was never read here: it is
    /// handed on as it is.
    fn body_out(self: &Rc<Self>, body: Body, event: EventId) -> Flow {
        match body {
            Body::Empty => Flow::Empty,
            Body::Bytes(bytes) => Flow::Bytes(bytes),
            Body::Stream { id, length } if id.0 % 2 == 0 => {
                match self.table.borrow_mut().sources.remove(&id) {
                    Some(Source::Waiting(flow)) => flow,
                    Some(Source::Pulled) | None => {
                        let why = failure("TypeError", "the body has already been read");
                        let broken = futures_util::stream::iter([Err(why)]);
                        Flow::Stream(Box::pin(broken), length)
                    }
                }
            }
            Body::Stream { id, length } => {
                let sink = Rc::new(RefCell::new(Sink::default()));
                let mut table = self.table.borrow_mut();
                table.sinks.insert(id, (sink.clone(), event));
                if let Some(event) = table.events.get_mut(&event) {
                    event.sinks += 1;
                }
                drop(table);
                let stream = JsStream { host: Rc::downgrade(self), id };
                Flow::Stream(Box::pin(Pulled::new(stream, sink)), length)
            }
        }
    }

    pub(super) fn asked(self: &Rc<Self>, request: Request, event: EventId) -> Asked {
        Asked {
            is_rpc: request.is_rpc,
            method: request.method,
            url: request.url,
            headers: request.headers,
            body: self.body_out(request.body, event),
            redirect: request.redirect,
        }
    }

    pub(super) fn answered(self: &Rc<Self>, response: Response, event: EventId) -> Answered {
        Answered {
            status: response.status,
            status_text: response.status_text,
            headers: response.headers,
            body: self.body_out(response.body, event),
            encoding: response.encoding,
            url: response.url,
            redirected: response.redirected,
            web_socket: response.web_socket.and_then(|socket| self.socket_out(socket)),
        }
    }
}

/// A stream that JavaScript makes.
struct JsStream {
    host: Weak<Host>,
    id: StreamId,
}

impl PullSource for JsStream {
    fn pull(&self) {
        if let Some(host) = self.host.upgrade() {
            host.deliver(Input::Pull { stream: self.id });
        }
    }

    fn cancel(&self) {
        if let Some(host) = self.host.upgrade() {
            host.sink_cancelled(self.id);
        }
    }
}

async fn next_piece(flow: Flow) -> (Flow, Result<Option<Bytes>, Failure>) {
    match coding::plain(flow) {
        Flow::Empty => (Flow::Empty, Ok(None)),
        Flow::Bytes(bytes) => (Flow::Empty, Ok(Some(bytes))),
        Flow::Stream(mut stream, length) => match stream.next().await {
            Some(piece) => (Flow::Stream(stream, length), piece.map(Some)),
            None => (Flow::Empty, Ok(None)),
        },
        Flow::Coded(..) => unreachable!("it was unpacked"),
    }
}
