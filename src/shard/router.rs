//! Calls between the shards of a node: one bounded, lock-free hop.
//!
//! Requests and responses cross as owned buffers; a body that flows is pulled piece by piece. When
//! the way to a shard is full, a new request is refused as overloaded; answers and pieces, whose
//! number is bounded by the requests under way, wait.

use std::cell::{Cell as StdCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use celld_core::cell::CellId;
use celld_core::ownership::Route;
use celld_core::route::{Attempt, Refusal};
use celld_peer::Passed;
use celld_rt as rt;
use celld_v8host::{Encoding, Failure, Redirect, Target};
use futures_util::StreamExt as _;
use futures_util::stream::LocalBoxStream;
use http::{HeaderMap, Method};
use rustc_hash::FxHashMap;

use crate::body::{Answered, Asked, Flow, Outcome, internal_error};
use crate::cell::{Via, Wanted, overloaded};
use crate::coding::Coding;
use crate::fleet::answer;
use crate::follow::Moving;
use crate::host::Reply;
use crate::ingress;
use crate::operator::{ShardAsk, Tell};
use crate::pulled::{Pulled, Sink, Source};
use crate::shard::{Shard, now};
use crate::websocket::tunnel::{self, Tunnels};

/// Messages that wait for another shard, beyond the queue itself, before requests are refused: a few
/// times what one cell takes.
const WAITING_MAX: usize = 32_768;

/// What shards tell each other. Boxed on the way, so that the queues stay small.
pub(crate) enum Message {
    Fetch {
        call: u64,
        target: Target,
        request: WireRequest,
        via: Via,
        attempt: Attempt,
    },
    /// Nobody waits for the answer any more.
    Abandon {
        call: u64,
    },
    Answer {
        call: u64,
        outcome: Result<WireResponse, Failure>,
    },
    Refuse {
        call: u64,
        why: Refusal,
    },
    /// A stub's next calls to the cell of this call need not come this way.
    Shorter {
        call: u64,
        cell: CellId,
        route: Route,
    },
    /// A connection of a client, which asks for cells of this shard.
    Client(Box<Moving>),
    /// A connection of another node, which wants to speak to this shard.
    Peer(Box<Passed>),
    /// What an operator wants.
    Operate(ShardAsk, Tell),
    Pull {
        stream: u64,
    },
    Cancel {
        stream: u64,
    },
    Chunk {
        stream: u64,
        chunk: Result<Option<Bytes>, Failure>,
    },
    /// Something for a WebSocket whose ends are on the two shards.
    Socket {
        number: u64,
        from: tunnel::Side,
        cargo: tunnel::Cargo,
    },
}

pub(crate) struct WireRequest {
    is_rpc: bool,
    method: Method,
    url: String,
    headers: HeaderMap,
    body: WireBody,
    redirect: Redirect,
}

pub(crate) struct WireResponse {
    status: u16,
    status_text: String,
    headers: HeaderMap,
    body: WireBody,
    encoding: Encoding,
    /// The number of the tunnel to the other end.
    web_socket: Option<u64>,
}

enum WireBody {
    Empty,
    Bytes(Bytes),
    /// The sender keeps the stream under this number.
    Stream(u64, Option<u64>),
    Coded(Coding, u64, Option<u64>),
}

type Pieces = LocalBoxStream<'static, Result<Bytes, Failure>>;
type SharedSink = Rc<RefCell<Sink>>;

/// The ways to the other shards, and what is under way on them.
#[derive(Default)]
pub(crate) struct Router {
    ways: Vec<Option<Rc<Way>>>,
    /// By number: which shard was asked, and who gets the answer.
    calls: RefCell<FxHashMap<u64, (usize, Reply)>>,
    next_call: StdCell<u64>,
    exports: RefCell<FxHashMap<u64, Option<Pieces>>>,
    next_export: StdCell<u64>,
    imports: RefCell<FxHashMap<(usize, u64), SharedSink>>,
    pub tunnels: Tunnels,
}

/// The way to one shard.
struct Way {
    sender: rt::MeshSender<Box<Message>>,
    waiting: RefCell<VecDeque<Box<Message>>>,
    is_sending: StdCell<bool>,
}

impl Router {
    pub fn new(senders: Vec<Option<rt::MeshSender<Box<Message>>>>) -> Self {
        let way = |sender| {
            Rc::new(Way { sender, waiting: RefCell::default(), is_sending: StdCell::new(false) })
        };
        let ways = senders.into_iter().map(|sender| sender.map(way)).collect();
        Self { ways, ..Self::default() }
    }

    pub fn send(&self, other: usize, message: Message) {
        if let Some(Some(way)) = self.ways.get(other) {
            way.send(Box::new(message));
        }
    }

    fn is_full(&self, other: usize) -> bool {
        match self.ways.get(other) {
            Some(Some(way)) => way.waiting.borrow().len() >= WAITING_MAX,
            Some(None) | None => true,
        }
    }
}

impl Way {
    fn send(self: &Rc<Self>, message: Box<Message>) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() && !self.is_sending.get() {
            match self.sender.try_send(message) {
                Ok(()) => return,
                Err(message) => waiting.push_back(message),
            }
        } else {
            waiting.push_back(message);
        }
        // The task begins at once, and takes the first message.
        drop(waiting);
        if self.is_sending.replace(true) {
            return;
        }
        let way = self.clone();
        rt::spawn(async move {
            loop {
                let Some(message) = way.waiting.borrow_mut().pop_front() else { break };
                if way.sender.send(message).await.is_err() {
                    // The shard is gone: so is this process, within moments.
                    way.waiting.borrow_mut().clear();
                    break;
                }
            }
            way.is_sending.set(false);
        });
    }
}

/// Sends a request to the shard that owns its cell.
pub(crate) fn send_fetch(shard: &Rc<Shard>, other: usize, target: Target, wanted: Wanted) {
    let Wanted { asked, reply, via, attempt, .. } = wanted;
    let router = &shard.router;
    if router.is_full(other) {
        return reply.send(Err(overloaded()));
    }
    let call = router.next_call.get();
    router.next_call.set(call + 1);
    router.calls.borrow_mut().insert(call, (other, reply));
    let request = WireRequest {
        is_rpc: asked.is_rpc,
        method: asked.method,
        url: asked.url,
        headers: asked.headers,
        body: export(router, asked.body),
        redirect: asked.redirect,
    };
    router.send(other, Message::Fetch { call, target, request, via, attempt });
}

/// Gives a connection to the shard that its caller wants to speak to; it comes back if there is
/// none, or the way there is full.
pub(crate) fn pass_peer(shard: &Shard, to: u16, passed: Passed) -> Option<Passed> {
    let (router, to) = (&shard.router, usize::from(to));
    if router.is_full(to) {
        return Some(passed);
    }
    router.send(to, Message::Peer(Box::new(passed)));
    None
}

/// The same for a connection of a client.
pub(crate) fn pass_client(shard: &Shard, to: usize, moving: Moving) -> Option<Moving> {
    if shard.router.is_full(to) {
        return Some(moving);
    }
    shard.router.send(to, Message::Client(Box::new(moving)));
    None
}

/// Tells the shard that asked where its request has been, if it can go there by itself.
pub(crate) fn tell_route(shard: &Shard, reply: &Reply, cell: CellId, route: Route) {
    if let Reply::Shard(_, other, call) = reply
        && !shard.router.is_full(*other)
    {
        shard.router.send(*other, Message::Shorter { call: *call, cell, route });
    }
}

/// Asks another shard for an operator; not if the way there is full.
pub(crate) fn send_operator(shard: &Shard, other: usize, asked: ShardAsk, tell: Tell) -> bool {
    let router = &shard.router;
    let has_room = !router.is_full(other);
    if has_room {
        router.send(other, Message::Operate(asked, tell));
    }
    has_room
}

/// Who asked another shard has given up. The answer comes all the same, and is dropped then.
pub(crate) fn abandon(shard: &Rc<Shard>, is_asker: impl Fn(&Reply) -> bool) {
    let router = &shard.router;
    let calls = router.calls.borrow();
    let found = calls.iter().find(|(_, (_, reply))| is_asker(reply));
    if let Some((&call, &(other, _))) = found {
        router.send(other, Message::Abandon { call });
    }
}

impl Shard {
    /// Sends an answer back to the shard that asked.
    pub fn answer_shard(self: &Rc<Self>, other: usize, call: u64, outcome: Outcome) {
        let mut end = None;
        let outcome = outcome.map(|answered| WireResponse {
            status: answered.status,
            status_text: answered.status_text,
            headers: answered.headers,
            body: export(&self.router, answered.body),
            encoding: answered.encoding,
            web_socket: answered.web_socket.map(|socket| {
                let number = self.router.tunnels.number();
                end = Some((number, socket));
                number
            }),
        });
        self.router.send(other, Message::Answer { call, outcome });
        // Not before: what comes over the tunnel must find it.
        if let Some((number, socket)) = end {
            tunnel::export(self, other, number, socket);
        }
    }

    /// Tells the shard that asked that its request has not run.
    pub fn refuse_shard(&self, other: usize, call: u64, why: Refusal) {
        self.router.send(other, Message::Refuse { call, why });
    }
}

/// Takes messages from one other shard, for as long as it lives.
pub(crate) async fn receive(
    shard: Rc<Shard>,
    other: usize,
    receiver: rt::MeshReceiver<Box<Message>>,
) {
    while let Some(message) = receiver.recv().await {
        let waits = Waits::of(&message);
        if rt::guard(|| take(&shard, other, *message)).is_none() {
            waits.fail(&shard, other);
        }
    }
}

/// What the other shard waits for.
enum Waits {
    Answer(u64),
    Chunk(u64),
    Nothing,
}

impl Waits {
    fn of(message: &Message) -> Self {
        match message {
            Message::Fetch { call, .. } => Self::Answer(*call),
            Message::Pull { stream } => Self::Chunk(*stream),
            Message::Abandon { .. }
            | Message::Answer { .. }
            | Message::Refuse { .. }
            | Message::Shorter { .. }
            | Message::Client(_)
            | Message::Peer(_)
            | Message::Operate(..)
            | Message::Cancel { .. }
            | Message::Chunk { .. }
            | Message::Socket { .. } => Self::Nothing,
        }
    }

    /// Says that it will not come: a panic has ended what was to send it.
    fn fail(self, shard: &Shard, other: usize) {
        match self {
            Self::Answer(call) => {
                shard.router.send(other, Message::Answer { call, outcome: Err(internal_error()) });
            }
            Self::Chunk(stream) => {
                shard.router.send(other, Message::Chunk { stream, chunk: Err(internal_error()) });
            }
            Self::Nothing => {}
        }
    }
}

fn take(shard: &Rc<Shard>, other: usize, message: Message) {
    let router = &shard.router;
    match message {
        Message::Fetch { call, target, request, via, attempt } => {
            let asked = Asked {
                is_rpc: request.is_rpc,
                method: request.method,
                url: request.url,
                headers: request.headers,
                body: import(shard, other, request.body),
                redirect: request.redirect,
            };
            let reply = Reply::Shard(Rc::downgrade(shard), other, call);
            if attempt.failures > 0 {
                let wanted = Wanted { asked, reply, via, attempt, is_taken_here: false };
                return shard.enter_again(target, wanted);
            }
            shard.fetch_cell(target, asked, reply, via);
        }
        Message::Answer { call, outcome } => {
            let reply = router.calls.borrow_mut().remove(&call);
            let outcome = outcome.map(|response| Answered {
                status: response.status,
                status_text: response.status_text,
                headers: response.headers,
                body: import(shard, other, response.body),
                encoding: response.encoding,
                url: String::new(),
                redirected: false,
                web_socket: response.web_socket.map(|number| tunnel::import(shard, other, number)),
            });
            // What nobody wants ends where it comes from.
            if let Some((_, reply)) = reply {
                reply.send(outcome);
            }
        }
        Message::Socket { number, from, cargo } => {
            tunnel::arrive(shard, other, from, number, cargo);
        }
        Message::Refuse { call, why } => {
            let Some((_, reply)) = router.calls.borrow_mut().remove(&call) else { return };
            reply.refuse(why);
        }
        Message::Abandon { call } => {
            let is_asker = |reply: &Reply| matches!(reply, Reply::Shard(_, from, number) if (*from, *number) == (other, call));
            shard.abandon(is_asker);
        }
        Message::Shorter { call, cell, route } => {
            let realm = router.calls.borrow().get(&call).map(|(_, reply)| reply.realm());
            if let Some(host) = realm.and_then(|realm| realm.upgrade()) {
                // So that it is up when it is needed.
                let _yet = shard.fleet.get().and_then(|fleet| fleet.lane(&route.owner, &cell));
                host.direct.learn(cell, route, now());
            }
        }
        Message::Client(moving) => ingress::take_over(shard, *moving),
        Message::Peer(passed) => {
            // Nobody knows of a node before all its shards have joined.
            let Some(fleet) = shard.fleet.get() else { return };
            let shard = shard.clone();
            fleet.server.adopt(*passed, move |call| answer::answer(shard.clone(), call));
        }
        Message::Operate(asked, tell) => shard.operate(asked, tell),
        Message::Pull { stream } => pull(shard, other, stream),
        Message::Cancel { stream } => {
            // Its drop cancels it where it comes from.
            let gone = router.exports.borrow_mut().remove(&stream);
            drop(gone);
        }
        Message::Chunk { stream, chunk } => {
            let over = !matches!(chunk, Ok(Some(_)));
            let sink = router.imports.borrow().get(&(other, stream)).cloned();
            if over {
                router.imports.borrow_mut().remove(&(other, stream));
            }
            if let Some(sink) = sink {
                sink.borrow_mut().push(chunk);
            }
        }
    }
}

/// Keeps a stream here, for another shard to pull.
fn export(router: &Router, flow: Flow) -> WireBody {
    match flow {
        Flow::Empty => WireBody::Empty,
        Flow::Bytes(bytes) => WireBody::Bytes(bytes),
        Flow::Stream(stream, length) => WireBody::Stream(keep(router, stream), length),
        Flow::Coded(coding, stream, length) => {
            WireBody::Coded(coding, keep(router, stream), length)
        }
    }
}

fn keep(router: &Router, stream: Pieces) -> u64 {
    let number = router.next_export.get();
    router.next_export.set(number + 1);
    router.exports.borrow_mut().insert(number, Some(stream));
    number
}

/// Makes the reader's end of a stream that another shard keeps.
fn import(shard: &Rc<Shard>, other: usize, body: WireBody) -> Flow {
    match body {
        WireBody::Empty => Flow::Empty,
        WireBody::Bytes(bytes) => Flow::Bytes(bytes),
        WireBody::Stream(number, length) => Flow::Stream(reach(shard, other, number), length),
        WireBody::Coded(coding, number, length) => {
            Flow::Coded(coding, reach(shard, other, number), length)
        }
    }
}

fn reach(shard: &Rc<Shard>, other: usize, number: u64) -> Pieces {
    let sink = Rc::new(RefCell::new(Sink::default()));
    shard.router.imports.borrow_mut().insert((other, number), sink.clone());
    let source = ShardStream { shard: Rc::downgrade(shard), other, number };
    Box::pin(Pulled::new(source, sink))
}

/// A stream that another shard keeps.
struct ShardStream {
    shard: Weak<Shard>,
    other: usize,
    number: u64,
}

impl Source for ShardStream {
    fn pull(&self) {
        if let Some(shard) = self.shard.upgrade() {
            shard.router.send(self.other, Message::Pull { stream: self.number });
        }
    }

    fn cancel(&self) {
        if let Some(shard) = self.shard.upgrade() {
            shard.router.imports.borrow_mut().remove(&(self.other, self.number));
            shard.router.send(self.other, Message::Cancel { stream: self.number });
        }
    }
}

fn pull(shard: &Rc<Shard>, other: usize, number: u64) {
    // While a piece is fetched the place stays, empty: a cancellation then finds and removes it.
    let stream = match shard.router.exports.borrow_mut().get_mut(&number) {
        Some(place) => place.take(),
        None => None,
    };
    let Some(mut stream) = stream else { return };
    let shard = shard.clone();
    rt::spawn(async move {
        let chunk = match stream.next().await {
            Some(Ok(piece)) => {
                if let Some(place) = shard.router.exports.borrow_mut().get_mut(&number) {
                    *place = Some(stream);
                }
                Ok(Some(piece))
            }
            Some(Err(why)) => Err(why),
            None => Ok(None),
        };
        if !matches!(chunk, Ok(Some(_))) {
            shard.router.exports.borrow_mut().remove(&number);
        }
        shard.router.send(other, Message::Chunk { stream: number, chunk });
    });
}
