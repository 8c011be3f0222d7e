//! A link: the calls of one shard to one other node, on one connection that is opened when the
//! first call needs it and opened again when it has ended.
//!
//! Invariant: a call is sent at most once. Only what surely was not sent waits for a connection.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_core::lease::Record;
use celld_core::node::{NodeId, SessionId};
use celld_core::time::Wall;
use celld_rt as rt;
use celld_rt::oneshot;
use celld_rt::tls::TlsStream;
use futures_lite::FutureExt as _;
use futures_lite::io::{AsyncReadExt as _, AsyncWriteExt as _};
use rustls::pki_types::ServerName;

use crate::FrameError;
use crate::body::{BodyReader, BodyWriter, WholeError};
use crate::connection::{Shared, Slot, drive};
use crate::error::{CallError, Cause};
use crate::frame::{CallKind, Code, More, Refusal};
use crate::hello::{HELLO_LEN, check_hello, hello, hello_to};
use crate::identity::{Identity, Role};
use crate::mux::{CALLS_MAX, Fate, HEADS_MAX, Patience, Side};
use crate::operator::{OperatorReply, OperatorRequest};
use crate::probe::ProbeReply;

/// For one address to answer. A live host does so within a round trip.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// For TLS and the greetings: a node that is there may be busy with JavaScript.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// The kernel ends a connection to a host that has not answered for so long.
pub(crate) const DEAD_HOST: Duration = Duration::from_secs(8);
/// After a failure the next attempt waits: first this long, then twice as long each time.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// At most.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Calls that wait for the connection; one more is refused as busy.
const WAITING_MAX: usize = CALLS_MAX;

/// Where a node is, and which life of it is meant: what its lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its name.
    pub node: NodeId,
    /// Its session: another one is not meant.
    pub session: SessionId,
    /// A name or an IP.
    pub host: String,
    /// Its internal port.
    pub port: u16,
}

impl Address {
    /// Where a lease says that its node is reached. `None`: it takes no peers, or does not say it
    /// as it should.
    pub fn of_lease(lease: &Record) -> Option<Self> {
        let (host, port) = lease.address.as_deref()?.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host).to_owned();
        let (node, session) = (lease.node.clone(), lease.session.clone());
        Some(Self { node, session, host, port: port.parse().ok()? })
    }
}

/// The calls of this shard to one node. Clones are the same link. When the last is dropped, calls
/// that are under way go on; the connection ends after them.
#[derive(Clone)]
pub struct Link(Rc<Inner>);

struct Inner {
    identity: Rc<Identity>,
    address: Address,
    /// The shard that is to serve the connection; `None`: any.
    shard: Option<u16>,
    patience: Patience,
    state: RefCell<State>,
    waiting: RefCell<Vec<oneshot::Sender<Connected>>>,
    /// Calls that wait, or were told and have not gone on yet: later ones wait behind them.
    queued: Cell<usize>,
    /// Of those calls.
    waiting_heads: Cell<usize>,
    pause: Cell<Duration>,
}

type Connected = Result<Rc<Shared>, CallError>;

enum State {
    /// No connection.
    Down,
    /// A task opens it, until it is told to stop.
    Opening(oneshot::Sender<()>),
    Up(Rc<Shared>),
    /// It could not be opened: not again before then.
    Pausing(Instant, Cause),
}

/// What a call is.
#[derive(Clone, Debug)]
pub struct Ask {
    /// How the head is to be read.
    pub kind: CallKind,
    /// Of this kind.
    pub head: Bytes,
    /// For how long the head of the answer is waited for, counted from the call. `None`: for ever.
    pub wait: Option<Duration>,
}

/// A call under way. Dropping it ends the call.
pub struct Asked {
    slot: Rc<Slot>,
    until: Option<Instant>,
    is_answered: bool,
}

/// The answer to a call.
pub struct Answer {
    /// Of the call's kind.
    pub head: Bytes,
    /// What follows the head.
    pub body: BodyReader,
}

impl Link {
    /// To the node at `address`. Nothing is opened yet.
    pub fn new(identity: Rc<Identity>, address: Address) -> Self {
        Self::with_patience(identity, address, Patience::NORMAL)
    }

    /// To one shard of the node. If the node has none of this number, to any.
    pub fn to_shard(identity: Rc<Identity>, address: Address, shard: u16) -> Self {
        Self::make(identity, address, Some(shard), Patience::NORMAL)
    }

    /// With another patience than [`Patience::NORMAL`].
    pub fn with_patience(identity: Rc<Identity>, address: Address, patience: Patience) -> Self {
        Self::make(identity, address, None, patience)
    }

    fn make(
        identity: Rc<Identity>,
        address: Address,
        shard: Option<u16>,
        patience: Patience,
    ) -> Self {
        Self(Rc::new(Inner {
            identity,
            address,
            shard,
            patience,
            state: RefCell::new(State::Down),
            waiting: RefCell::default(),
            queued: Cell::new(0),
            waiting_heads: Cell::new(0),
            pause: Cell::new(PAUSE_FIRST),
        }))
    }

    /// The node that is meant.
    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// A call without a body.
    ///
    /// # Errors
    /// It cannot be sent.
    pub async fn ask(&self, ask: Ask) -> Result<Asked, CallError> {
        self.open(ask, More::End).await
    }

    /// A call with a body. A body that is dropped before its end ends the call.
    ///
    /// # Errors
    /// It cannot be sent.
    pub async fn ask_with_body(&self, ask: Ask) -> Result<(Asked, BodyWriter), CallError> {
        let asked = self.open(ask, More::Follows).await?;
        let body = BodyWriter::new(asked.slot.clone());
        Ok((asked, body))
    }

    /// Asks the node how it is.
    ///
    /// # Errors
    /// It does not answer in time, or not as it should.
    pub async fn probe(&self, wait: Duration) -> Result<ProbeReply, CallError> {
        let ask = Ask { kind: CallKind::PROBE, head: Bytes::new(), wait: Some(wait) };
        let answer = self.ask(ask).await?.answer().await?;
        ProbeReply::decode(&answer.head)
            .map_err(|error| CallError { fate: Fate::MayHaveRun, cause: Cause::Protocol(error) })
    }

    /// Asks the node something as an operator. Returns its answer, with a body of at most `max`
    /// bytes.
    ///
    /// # Errors
    /// It does not answer in time, or not as it should.
    pub async fn operate(
        &self,
        request: &OperatorRequest,
        wait: Duration,
        max: usize,
    ) -> Result<(OperatorReply, Bytes), CallError> {
        let protocol = |fate, error| CallError { fate, cause: Cause::Protocol(error) };
        let head = request.encode().map_err(|error| protocol(Fate::NotSent, error))?;
        let ask = Ask { kind: CallKind::OPERATOR, head, wait: Some(wait) };
        let answer = self.ask(ask).await?.answer().await?;
        let (head, body) = answer.whole(max).await.map_err(|error| match error {
            WholeError::Call(error) => error,
            WholeError::TooLong(_) => {
                protocol(Fate::MayHaveRun, FrameError::Order("its answer is too long"))
            }
        })?;
        let reply = OperatorReply::decode(&head);
        Ok((reply.map_err(|error| protocol(Fate::MayHaveRun, error))?, body))
    }

    /// Ends the connection and all calls on it, also if it is still being opened: the node is known
    /// to be gone. Calls that wait learn at once that they were not sent; the next one opens it again.
    pub fn cut(&self) {
        if let Some(shared) = self.up() {
            shared.close();
        }
        self.0.stop_opening();
        drop(self.0.waiting.take());
    }

    /// Whether a connection is open.
    pub fn is_up(&self) -> bool {
        self.up().is_some()
    }

    /// Whether a connection is open, or is being opened.
    pub fn is_in_use(&self) -> bool {
        self.is_up() || matches!(&*self.0.state.borrow(), State::Opening(_))
    }

    /// Opens the connection before a call needs it, if it can be opened now.
    pub fn open_ahead(&self) {
        let is_wanted = match &*self.0.state.borrow() {
            State::Down => true,
            State::Up(shared) => !shared.is_open(),
            State::Pausing(until, _) => Instant::now() >= *until,
            State::Opening(_) => false,
        };
        if is_wanted {
            self.begin();
        }
    }

    fn begin(&self) {
        let (stop, stopped) = oneshot::channel();
        *self.0.state.borrow_mut() = State::Opening(stop);
        rt::spawn(self.0.clone().bring_up(stopped));
    }

    async fn open(&self, ask: Ask, more: More) -> Result<Asked, CallError> {
        let until = ask.wait.map(|wait| Instant::now() + wait);
        let wait_ms =
            ask.wait.map_or(0, |wait| u32::try_from(wait.as_millis().max(1)).unwrap_or(0));
        let shared = match self.up() {
            Some(shared) if self.0.queued.get() == 0 => shared,
            Some(_) | None => within(until, self.connected(ask.head.len()))
                .await
                .unwrap_or_else(|| Err(CallError::not_sent(Cause::Deadline)))?,
        };
        let slot = shared.open(ask.kind, wait_ms, ask.head, more).map_err(CallError::of_open)?;
        Ok(Asked { slot, until, is_answered: false })
    }

    fn up(&self) -> Option<Rc<Shared>> {
        match &*self.0.state.borrow() {
            State::Up(shared) if shared.is_open() => Some(shared.clone()),
            State::Up(_) | State::Down | State::Opening(_) | State::Pausing(..) => None,
        }
    }

    /// Waits for the connection, and has it opened if nobody does yet. `head`: what the call that
    /// waits holds.
    async fn connected(&self, head: usize) -> Connected {
        let inner = &self.0;
        let must_open = match &*inner.state.borrow() {
            State::Pausing(until, cause) if Instant::now() < *until => {
                return Err(CallError::not_sent(cause.clone()));
            }
            State::Up(shared) if shared.is_open() && inner.queued.get() == 0 => {
                return Ok(shared.clone());
            }
            State::Up(shared) => !shared.is_open(),
            State::Down | State::Pausing(..) => true,
            State::Opening(_) => false,
        };
        let (tell, told) = oneshot::channel();
        let _waiting = inner.wait(tell, head).map_err(CallError::not_sent)?;
        if must_open {
            self.begin();
        }
        told.await.unwrap_or_else(|_| Err(CallError::not_sent(Cause::Closed)))
    }
}

impl Inner {
    fn wait(&self, tell: oneshot::Sender<Connected>, head: usize) -> Result<Waiting<'_>, Cause> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= WAITING_MAX {
            waiting.retain(|tell| !tell.is_canceled());
        }
        let heads = self.waiting_heads.get() + head;
        if waiting.len() >= WAITING_MAX || heads > HEADS_MAX {
            return Err(Cause::Busy("too many calls wait for a connection"));
        }
        waiting.push(tell);
        self.waiting_heads.set(heads);
        self.queued.set(self.queued.get() + 1);
        Ok(Waiting { link: self, head })
    }

    /// The task that opens the connection ends, and with it what it has opened.
    fn stop_opening(&self) {
        let mut state = self.state.borrow_mut();
        match std::mem::replace(&mut *state, State::Down) {
            State::Opening(stop) => drop(stop.send(())),
            other @ (State::Up(_) | State::Down | State::Pausing(..)) => *state = other,
        }
    }

    async fn bring_up(self: Rc<Self>, stopped: oneshot::Receiver<()>) {
        let stopped = async {
            let _told = stopped.await;
            None
        };
        let opening = async { Some(self.connect().await) };
        let Some(result) = stopped.or(opening).await else { return };
        let (state, told) = match result {
            Ok((shared, stream)) => {
                self.pause.set(PAUSE_FIRST);
                rt::spawn(drive(shared.clone(), stream, Side::Caller, |_| {
                    unreachable!("only callers open calls, and the machine refuses others")
                }));
                (State::Up(shared.clone()), Ok(shared))
            }
            Err(cause) => {
                let pause = self.pause.get();
                self.pause.set((pause * 2).min(PAUSE_MAX));
                let state = State::Pausing(Instant::now() + pause, cause.clone());
                (state, Err(CallError::not_sent(cause)))
            }
        };
        *self.state.borrow_mut() = state;
        loop {
            for tell in self.waiting.take() {
                // Who has gone away does not want to know.
                let _gone = tell.send(told.clone());
            }
            // What is called meanwhile waits, so that it does not overtake those who were told.
            rt::yield_now().await;
            let is_mine = match (&*self.state.borrow(), &told) {
                // If it has ended, they learn that they were not sent.
                (State::Up(shared), Ok(mine)) => Rc::ptr_eq(shared, mine),
                (State::Up(_) | State::Down | State::Opening(_) | State::Pausing(..), _) => false,
            };
            if self.queued.get() == 0 || !is_mine {
                return;
            }
        }
    }

    async fn connect(&self) -> Result<(Rc<Shared>, TlsStream), Cause> {
        let Address { host, port, .. } = &self.address;
        let unreachable =
            |error: io::Error| Cause::Unreachable(format!("{host}:{port}: {error}").into());
        let addresses = rt::net::resolve(host, *port).await.map_err(unreachable)?;
        let socket = rt::net::connect(&addresses, CONNECT_LIMIT).await.map_err(unreachable)?;
        rt::net::notice_dead_host(&socket, DEAD_HOST).map_err(unreachable)?;
        let config = self.identity.client(Wall::from_millis(rt::wall_ms()))?;
        let name = ServerName::try_from("celld").expect("a good name");
        let greeted = async {
            let mut stream = TlsStream::connect(socket, config, name).await?;
            let theirs = match self.shard {
                Some(shard) => greet(&mut stream, &hello_to(shard)).await?,
                None => greet(&mut stream, &hello()).await?,
            };
            io::Result::Ok((stream, theirs))
        };
        let (stream, theirs) = rt::timeout(GREETING_LIMIT, greeted)
            .await
            .map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?
            .map_err(|error| Cause::of_opening(&error))?;
        if check_hello(&theirs).map_err(Cause::Protocol)? {
            let order = FrameError::Order("who answers wants to speak to a shard");
            return Err(Cause::Protocol(order));
        }
        let peer = self.identity.peer(stream.peer_certificates())?;
        let is_meant = peer.role == Role::Node
            && peer.node == self.address.node
            && peer.session == self.address.session;
        if !is_meant {
            return Err(Cause::Replaced(Box::new(peer)));
        }
        Ok((Shared::new(Side::Caller, self.patience, peer), stream))
    }
}

/// Counts a call that waits, also one that is given up.
struct Waiting<'a> {
    link: &'a Inner,
    head: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Inner { queued, waiting_heads, .. } = self.link;
        queued.set(queued.get() - 1);
        waiting_heads.set(waiting_heads.get() - self.head);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let State::Up(shared) = &*self.state.borrow() {
            shared.retire();
        }
    }
}

/// Sends this side's greeting and reads the other's, as far as all versions have it.
pub(crate) async fn greet(stream: &mut TlsStream, ours: &[u8]) -> io::Result<[u8; HELLO_LEN]> {
    stream.write_all(ours).await?;
    stream.flush().await?;
    let mut theirs = [0; HELLO_LEN];
    stream.read_exact(&mut theirs).await?;
    Ok(theirs)
}

/// `None`: `until` came first.
async fn within<T>(until: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(future.await),
        Some(until) => {
            rt::timeout(until.saturating_duration_since(Instant::now()), future).await.ok()
        }
    }
}

impl Asked {
    /// Waits for the answer.
    ///
    /// # Errors
    /// There is none, or not in time.
    pub async fn answer(mut self) -> Result<Answer, CallError> {
        let head = poll_fn(|cx| self.slot.poll_answer(cx));
        let Some(head) = within(self.until, head).await else {
            let refusal = Refusal::new(Code::Gone, "the caller's time is over");
            return Err(self.slot.give_up(refusal, Cause::Deadline));
        };
        let head = head?;
        self.is_answered = true;
        Ok(Answer { head, body: BodyReader::new(self.slot.clone()) })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.is_answered {
            self.slot.wish_end(|mux, call| mux.drop_reader(call), Cause::Closed);
        }
    }
}

impl Answer {
    /// The head, and all of the body if that is at most `max` bytes.
    ///
    /// # Errors
    /// It is longer, or broke off.
    pub async fn whole(self, max: usize) -> Result<(Bytes, Bytes), WholeError> {
        let body = self.body.whole(max).await?;
        Ok((self.head, body))
    }
}
