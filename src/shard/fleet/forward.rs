//! Requests for cells of other nodes: sent there, and brought to an end whatever happens there.
//!
//! Invariant: a request that may have run is never sent again (`core::route`).

use std::cell::{Cell as StdCell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use celld_core::cell::CellId;
use celld_core::node::NodeId;
use celld_core::ownership::Route;
use celld_core::route::{self, CallError, GaveUp, Next, after_failure};
use celld_core::time::Micros;
use celld_peer::fetch::{Content, FetchParts, FetchReply};
use celld_peer::mux::Fate;
use celld_peer::{Ask, BodyReader, BodyWriter, CallKind, Cause, Code, Link};
use celld_rt as rt;
use celld_v8host::{Encoding, Failure, Target};
use futures_util::StreamExt as _;
use futures_util::stream::{self, LocalBoxStream};
use rustc_hash::FxHashMap;

use crate::body::{Answered, Flow, Outcome, failure};
use crate::cell::Wanted;
use crate::coding;
use crate::fleet::Fleet;
use crate::fleet::direct::Way;
use crate::host::{Host, Reply, while_wanted};
use crate::router;
use crate::shard::{Shard, now};
use crate::websocket::{self, handshake};

/// The body of an answer that is this short is waited for, so that it goes on in one piece.
const WHOLE_BODY_MAX: u64 = 16 << 10;

/// Where a request is to go.
#[derive(Clone, Debug)]
pub(crate) enum Destination {
    /// Another session owns the cell.
    Owner(Route),
    /// Nobody does, and this node is to take it.
    Placed(NodeId),
}

impl Destination {
    fn node(&self) -> &NodeId {
        match self {
            Self::Owner(route) => &route.owner.node,
            Self::Placed(node) => node,
        }
    }
}

/// Requests that are with other nodes, by a number, and who gets their answers.
#[derive(Default)]
pub(crate) struct Sent {
    /// Dropping the sender ends the task that waits for the answer.
    requests: RefCell<FxHashMap<u64, (Reply, rt::oneshot::Sender<()>)>>,
    next: StdCell<u64>,
}

impl Sent {
    /// The other end is dropped when nobody waits for the answer any more.
    fn keep(&self, reply: Reply) -> (u64, rt::oneshot::Receiver<()>) {
        let number = self.next.get();
        self.next.set(number + 1);
        let (cancel, cancelled) = rt::oneshot::channel();
        self.requests.borrow_mut().insert(number, (reply, cancel));
        (number, cancelled)
    }

    fn take(&self, number: u64) -> Option<Reply> {
        self.requests.borrow_mut().remove(&number).map(|(reply, _)| reply)
    }

    /// Ends the request whose answer is for who `is_asker` knows. Returns whether there is one.
    pub fn give_up(&self, is_asker: impl Fn(&Reply) -> bool) -> bool {
        let mut requests = self.requests.borrow_mut();
        let found = requests.iter().find(|(_, (reply, _))| is_asker(reply)).map(|(n, _)| *n);
        // Dropped after the borrow: the task runs when its time has come.
        let gone = found.and_then(|number| requests.remove(&number));
        drop(requests);
        gone.is_some()
    }
}

/// Sends a request to another node, and its answer to who asked. What has not run there starts
/// again here.
pub(crate) fn send(shard: Rc<Shard>, target: Target, to: Destination, wanted: Box<Wanted>) {
    start(shard, target, to, None, wanted);
}

/// The same, from the shard at which it has entered. What has not run there starts again by the longer
/// way.
pub(crate) fn send_directly(shard: Rc<Shard>, target: Target, way: Way, wanted: Box<Wanted>) {
    let realm = wanted.reply.realm();
    let to = Destination::Owner(way.route.clone());
    start(shard, target, to, Some(Directly { way, realm }), wanted);
}

/// A request that goes directly, and the realm that knows the way.
struct Directly {
    way: Way,
    realm: Weak<Host>,
}

impl Directly {
    /// The way is not good any more. If the request starts again, it is by the longer one.
    fn leave(&self, cell: &CellId) {
        if let Some(host) = self.realm.upgrade() {
            host.direct.forget(cell);
            host.direct.goes_around(cell, self.way.stub);
        }
    }
}

fn start(
    shard: Rc<Shard>,
    target: Target,
    to: Destination,
    directly: Option<Directly>,
    mut wanted: Box<Wanted>,
) {
    rt::spawn(async move {
        let Some(fleet) = shard.fleet.get() else { return wanted.reply.send(Err(nobody())) };
        let reply = std::mem::replace(&mut wanted.reply, Reply::Nobody);
        let (number, given_up) = fleet.sent.keep(reply);
        let trying = attempt(&shard, fleet, &target, &to, directly.as_ref(), &mut wanted);
        let ended = while_wanted(given_up, trying).await;
        // Who has given up took the reply away.
        let Some(reply) = fleet.sent.take(number) else { return };
        match ended {
            Some(Some(outcome)) => {
                if outcome.is_ok() {
                    tell_route(&shard, fleet, &target, &to, &reply);
                }
                reply.send(outcome);
            }
            Some(None) => {
                wanted.reply = reply;
                shard.enter_again(target, *wanted);
            }
            None => {}
        }
    });
}

/// Who has asked from another shard may ask the owner by itself, if it has a link there.
fn tell_route(shard: &Shard, fleet: &Fleet, target: &Target, to: &Destination, reply: &Reply) {
    if let (Destination::Owner(route), Reply::Shard(..)) = (to, reply)
        && fleet.is_direct(&route.owner.node)
        && let Some(cell) = CellId::new(&target.namespace, &target.id)
    {
        router::tell_route(shard, reply, cell, route.clone());
    }
}

/// `None`: the request has not run, and its time to start again has come.
async fn attempt(
    shard: &Shard,
    fleet: &Fleet,
    target: &Target,
    to: &Destination,
    directly: Option<&Directly>,
    wanted: &mut Wanted,
) -> Option<Outcome> {
    let Some(cell) = CellId::new(&target.namespace, &target.id) else {
        unreachable!("who has sent it here has checked its name")
    };
    let lane = directly.map(|directly| &directly.way.lane);
    let error = match call(fleet, &cell, target, to, lane, wanted).await {
        Ok(outcome) => return Some(outcome),
        Err(error) => error,
    };
    wanted.attempt.failures += 1;
    if let Some(directly) = directly {
        directly.leave(&cell);
    }
    match to {
        Destination::Owner(route) => fleet.forget(&cell, route),
        // Better here than nowhere.
        Destination::Placed(_) => wanted.is_taken_here = true,
    }
    match after_failure(error, wanted.attempt, search_limit(shard), now()) {
        Next::Retry(at) => {
            let wait = at.since(now());
            if wait > Micros::ZERO {
                rt::sleep(Duration::from_micros(wait.as_micros())).await;
            }
            None
        }
        Next::GiveUp(why) => {
            rt::log!("celld: cell {cell}: node {}: {why}", to.node());
            Some(Err(gave_up(why)))
        }
    }
}

/// For how long a request looks for an owner: a takeover, and a little more.
fn search_limit(shard: &Shard) -> Micros {
    let ttl = shard.facts.ttl;
    ttl + ttl + Micros::from_secs(5)
}

fn nobody() -> Failure {
    Failure { retryable: true, ..failure("Error", "this node reaches no other") }
}

fn gave_up(why: GaveUp) -> Failure {
    let text = format!("{why} ({})", why.code());
    let overloaded = why == GaveUp::Overloaded;
    Failure { retryable: why.is_retryable(), overloaded, ..failure("Error", text) }
}

/// How far a body is that goes in one piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    OnItsWay,
    /// With its end.
    Sent,
    /// Its end is not sent any more.
    GivenUp,
}

/// One attempt.
async fn call(
    fleet: &Fleet,
    cell: &CellId,
    target: &Target,
    to: &Destination,
    lane: Option<&Link>,
    wanted: &mut Wanted,
) -> Result<Outcome, CallError> {
    let session = match to {
        Destination::Owner(route) => Some(&route.owner.session),
        Destination::Placed(_) => None,
    };
    let link = lane.cloned().or_else(|| fleet.link(to.node(), session, cell));
    let Some(link) = link else { return Err(CallError::NotSent) };
    let Ok(head) = head(cell, target, to, wanted).encode() else {
        let text = "the request has too long a head to be sent to another node";
        return Ok(Err(failure("TypeError", text)));
    };
    let kind = if wanted.asked.is_rpc { CallKind::RPC } else { CallKind::FETCH };
    let ask = Ask { kind, head, wait: None };
    if asks_for_socket(wanted) {
        return open_socket(&link, ask).await;
    }
    let message = Rc::new(StdCell::new(Message::OnItsWay));
    let asked = match &wanted.asked.body {
        Flow::Empty => link.ask(ask).await.map_err(what_is_known)?,
        Flow::Bytes(bytes) => {
            let (asked, mut writer) = link.ask_with_body(ask).await.map_err(what_is_known)?;
            let (bytes, message) = (bytes.clone(), message.clone());
            rt::spawn(async move {
                // Who does not want it says so in the answer.
                if writer.write(bytes).await.is_ok()
                    && message.replace(Message::Sent) == Message::OnItsWay
                {
                    writer.finish();
                }
            });
            asked
        }
        Flow::Stream(..) | Flow::Coded(..) => {
            let (sent, writer) = link.ask_with_body(ask).await.map_err(what_is_known)?;
            wanted.attempt.is_body_begun = true;
            let body = std::mem::take(&mut wanted.asked.body);
            rt::spawn(pump(body, writer, |writer, why| writer.abort(&why.message)));
            sent
        }
    };
    let answer = match asked.answer().await {
        Ok(answer) => answer,
        Err(error) => {
            let error = what_is_known(error);
            let may_have_run = matches!(error, CallError::Lost | CallError::TimedOut);
            // Its cell hears of a call of a method when all of the message is there.
            let is_unheard =
                wanted.asked.is_rpc && message.replace(Message::GivenUp) == Message::OnItsWay;
            return Err(if may_have_run && is_unheard { CallError::NotSent } else { error });
        }
    };
    match FetchReply::decode(&answer.head) {
        Ok(FetchReply::Response(response)) => Ok(Ok(Answered {
            status: response.status,
            status_text: response.status_text,
            headers: response.headers,
            body: match response.content {
                Content::Nothing | Content::Messages => Flow::Empty,
                Content::Body(len) => read(answer.body, len).await.map_err(what_is_known)?,
            },
            url: String::new(),
            // As on any other wire.
            encoding: Encoding::Manual,
            redirected: false,
            web_socket: None,
        })),
        Ok(FetchReply::Failure(failure)) => Ok(Err(local(failure))),
        Err(_) => Err(CallError::Lost),
    }
}

/// One attempt to get a WebSocket: the call stays open for its messages.
async fn open_socket(link: &Link, ask: Ask) -> Result<Outcome, CallError> {
    let (asked, writer) = link.ask_with_body(ask).await.map_err(what_is_known)?;
    let answer = asked.answer().await.map_err(what_is_known)?;
    let response = match FetchReply::decode(&answer.head) {
        Ok(FetchReply::Response(response)) => response,
        Ok(FetchReply::Failure(failure)) => return Ok(Err(local(failure))),
        Err(_) => return Err(CallError::Lost),
    };
    let (body, web_socket) = match response.content {
        Content::Messages => {
            let (near, far) = websocket::connect();
            rt::spawn(websocket::node::pump(near, answer.body, writer));
            (Flow::Empty, Some(far))
        }
        Content::Nothing => {
            writer.finish();
            (Flow::Empty, None)
        }
        Content::Body(len) => {
            writer.finish();
            (read(answer.body, len).await.map_err(what_is_known)?, None)
        }
    };
    Ok(Ok(Answered {
        status: response.status,
        status_text: response.status_text,
        headers: response.headers,
        body,
        url: String::new(),
        encoding: Encoding::Manual,
        redirected: false,
        web_socket,
    }))
}

fn head<'a>(
    cell: &'a CellId,
    target: &'a Target,
    to: &'a Destination,
    wanted: &'a Wanted,
) -> FetchParts<'a> {
    let asked = &wanted.asked;
    // A body that flows can be sent once.
    let is_first = wanted.attempt.failures == 0 && !matches!(asked.body, Flow::Stream(..));
    let token = match to {
        // An owner that has put the cell to rest refuses the first time. If the record names it all
        // the same, it is to take the cell back.
        Destination::Owner(route) if is_first => Some((route.epoch, &route.owner.session)),
        Destination::Owner(_) | Destination::Placed(_) => None,
    };
    FetchParts {
        cell,
        class: &target.class,
        name: target.name.as_deref(),
        token,
        method: &asked.method,
        url: &asked.url,
        headers: &asked.headers,
        content: if asks_for_socket(wanted) { Content::Messages } else { content(&asked.body) },
    }
}

fn asks_for_socket(wanted: &Wanted) -> bool {
    handshake::asks(&wanted.asked.headers) && matches!(wanted.asked.body, Flow::Empty)
}

/// How a body is announced.
pub(super) fn content(body: &Flow) -> Content {
    match body {
        Flow::Empty => Content::Nothing,
        Flow::Bytes(bytes) => Content::Body(Some(bytes.len() as u64)),
        Flow::Stream(_, length) => Content::Body(*length),
        // It is unpacked on its way.
        Flow::Coded(..) => Content::Body(None),
    }
}

/// Writes a body to its end, or ends the call with it, as `fail` does.
pub(super) async fn pump(
    body: Flow,
    mut writer: BodyWriter,
    fail: impl FnOnce(BodyWriter, Failure),
) {
    let mut pieces: LocalBoxStream<'static, Result<Bytes, Failure>> = match coding::plain(body) {
        Flow::Empty => return writer.finish(),
        Flow::Bytes(bytes) => stream::once(async move { Ok(bytes) }).boxed_local(),
        Flow::Stream(pieces, _) | Flow::Coded(_, pieces, _) => pieces,
    };
    loop {
        match pieces.next().await {
            Some(Ok(piece)) => {
                if writer.write(piece).await.is_err() {
                    // Dropping the stream tells its writer that nobody reads.
                    return;
                }
            }
            Some(Err(why)) => return fail(writer, why),
            None => return writer.finish(),
        }
    }
}

/// The body of an answer: whole if it is short, piece by piece otherwise.
async fn read(body: BodyReader, len: Option<u64>) -> Result<Flow, celld_peer::CallError> {
    if len.is_some_and(|len| len <= WHOLE_BODY_MAX) {
        return match body.whole(WHOLE_BODY_MAX as usize).await {
            Ok(bytes) => Ok(Flow::Bytes(bytes)),
            // It was answered all the same.
            Err(celld_peer::WholeError::Call(error)) => match broken(&error) {
                Some(why) => Ok(Flow::Stream(stream::iter([Err(why)]).boxed_local(), len)),
                None => Err(error),
            },
            // It said that it was shorter.
            Err(celld_peer::WholeError::TooLong(_)) => {
                Err(celld_peer::CallError { fate: Fate::MayHaveRun, cause: Cause::Closed })
            }
        };
    }
    Ok(pieces(body, len))
}

/// The body of a request: whole if it has come with the request, piece by piece otherwise. It is not
/// waited for, as the next request would overtake this one.
pub(super) async fn read_now(
    body: BodyReader,
    len: Option<u64>,
) -> Result<Flow, celld_peer::CallError> {
    if body.has_come() { read(body, len).await } else { Ok(pieces(body, len)) }
}

fn pieces(body: BodyReader, len: Option<u64>) -> Flow {
    let pieces = stream::unfold(Some(body), |body| async move {
        let mut body = body?;
        match body.next().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(body))),
            Ok(None) => None,
            Err(error) => {
                let why = broken(&error).unwrap_or_else(|| {
                    let text = format!("Network connection lost while reading the body: {error}");
                    failure("Error", text)
                });
                Some((Err(why), None))
            }
        }
    });
    Flow::Stream(pieces.boxed_local(), len)
}

/// How a body has failed where it is made, if it has.
fn broken(error: &celld_peer::CallError) -> Option<Failure> {
    match &error.cause {
        Cause::Refused(refusal) if refusal.code == Code::Broken => {
            celld_peer::fetch::Failure::of_words(&refusal.words).ok().map(local)
        }
        _ => None,
    }
}

/// What is known of a call that failed.
fn what_is_known(error: celld_peer::CallError) -> CallError {
    if error.fate == Fate::MayHaveRun {
        return match error.cause {
            Cause::Deadline => CallError::TimedOut,
            _ => CallError::Lost,
        };
    }
    match error.cause {
        Cause::Refused(refusal) => CallError::Refused(match refusal.code {
            Code::NotOwner => route::Refusal::NotOwner,
            Code::Busy => route::Refusal::Overloaded,
            Code::Draining => route::Refusal::Draining,
            Code::Unsupported | Code::Forbidden | Code::Gone | Code::Failed | Code::Broken => {
                route::Refusal::Unavailable
            }
        }),
        _ => CallError::NotSent,
    }
}

/// A failure of the cell, as its caller's JavaScript sees it.
fn local(failure: celld_peer::fetch::Failure) -> Failure {
    let celld_peer::fetch::Failure {
        name,
        message,
        stack,
        remote,
        retryable,
        overloaded,
        durable_object_reset,
        thrown,
    } = failure;
    Failure { name, message, stack, remote, retryable, overloaded, durable_object_reset, thrown }
}
