//! The internal listener: takes connections of nodes and operators of the fleet, and hands their
//! calls to whoever answers them.
//!
//! Every shard listens on the same address and takes the connections that the kernel gives it. One
//! whose caller wants to speak to another shard goes there as soon as it is known who the caller is
//! ([`Server::place`]). A call to a cell of another shard hops there once, over the mesh.
//!
//! Invariant: what strangers send costs no more than [`HANDSHAKES_MAX`] handshakes at once, and
//! does not keep the fleet out: the one that lasts longest makes room.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use celld_core::time::Wall;
use celld_rt as rt;
use celld_rt::net::{TcpListener, TcpStream};
use celld_rt::tls::{Detached, TlsStream};
use event_listener::Event;
use futures_lite::FutureExt as _;
use futures_lite::io::AsyncReadExt as _;

use crate::FrameError;
use crate::body::{BodyReader, BodyWriter};
use crate::connection::{Opened, Shared, Slot, drive};
use crate::error::{CallError, Cause};
use crate::frame::{CallKind, Code, More, Refusal};
use crate::hello::{SHARD_LEN, check_hello, hello};
use crate::identity::{Identity, Principal};
use crate::link::{DEAD_HOST, greet};
use crate::mux::{Patience, Side};

/// Connections that are not known yet. Each may cost a signature, about half a millisecond of a core:
/// together an eighth of a second. When a node starts, those of all others come at once: 64 for each of
/// its shards in a fleet whose shards have links to each other, spread by chance, and one from each
/// shard of each node in a larger one. Whoever is dropped comes again within a second.
const HANDSHAKES_MAX: usize = 256;
/// For a stranger to show who it is.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Calls that handlers work on, also those that were given up: a caller that gives up and calls
/// again must not pile up work.
const RUNNING_MAX: usize = 32_768;

/// A call to answer.
pub struct Call {
    /// How the head is to be read.
    pub kind: CallKind,
    /// Of this kind.
    pub head: Bytes,
    /// Who calls.
    pub peer: Rc<Principal>,
    /// For how long the caller waits for the answer, counted from its call.
    pub wait: Option<Duration>,
    /// What follows the head.
    pub body: BodyReader,
    /// Answers.
    pub reply: Reply,
}

/// Answers a call, once. Dropping it tells the caller that the call failed.
pub struct Reply {
    slot: Rc<Slot>,
    is_sent: bool,
}

/// The internal listener of one shard. Clones are the same one.
#[derive(Clone)]
pub struct Server(Rc<Inner>);

struct Inner {
    identity: Rc<Identity>,
    patience: Patience,
    place: OnceCell<Place>,
    connections: RefCell<Vec<Weak<Shared>>>,
    /// The oldest first. Who is dropped here is dropped.
    handshakes: RefCell<VecDeque<Rc<Handshake>>>,
    running: Cell<usize>,
    is_stopping: Cell<bool>,
    /// Something of the above has changed.
    changed: Event,
    refused: RefCell<Refused>,
}

/// Which shard a server is of, and the way to the others.
struct Place {
    shard: u16,
    pass: Box<dyn Fn(u16, Passed) -> Option<Passed>>,
}

/// A connection on its way to the shard that its caller wants to speak to.
pub struct Passed {
    peer: Principal,
    stream: Detached,
}

/// A connection whose other side is known.
struct Met {
    peer: Principal,
    stream: TlsStream,
    wanted: Option<u16>,
}

/// Connections that were not let in.
#[derive(Clone, Debug, Default)]
pub struct Refused {
    /// How many.
    pub count: u64,
    /// Why the last one was not.
    pub last: Option<Cause>,
}

impl Server {
    /// Listens to nobody yet.
    pub fn new(identity: Rc<Identity>) -> Self {
        Self::with_patience(identity, Patience::NORMAL)
    }

    /// With another patience than [`Patience::NORMAL`].
    pub fn with_patience(identity: Rc<Identity>, patience: Patience) -> Self {
        Self(Rc::new(Inner {
            identity,
            patience,
            place: OnceCell::new(),
            connections: RefCell::default(),
            handshakes: RefCell::default(),
            running: Cell::new(0),
            is_stopping: Cell::new(false),
            changed: Event::new(),
            refused: RefCell::default(),
        }))
    }

    /// Takes connections until [`Self::drain`]. `handler` gets each call and begins to answer it;
    /// what it returns runs as a task of its own.
    pub async fn serve<F: Future<Output = ()> + 'static>(
        &self,
        listener: TcpListener,
        handler: impl Fn(Call) -> F + 'static,
    ) {
        let handler = Rc::new(handler);
        let inner = &self.0;
        loop {
            let stopping = async {
                inner.until(|inner| inner.is_stopping.get()).await;
                None
            };
            let accepted = async { Some(rt::net::accept(&listener).await) };
            let Some(socket) = stopping.or(accepted).await else { return };
            let handshake = inner.begin_handshake();
            rt::spawn(inner.clone().meet(socket, handshake, handler.clone()));
        }
    }

    /// This is the server of shard `shard`; `pass` gives a connection to the server of another one,
    /// for [`Self::adopt`], or gives it back.
    ///
    /// # Panics
    /// It has a place already.
    pub fn place(&self, shard: u16, pass: impl Fn(u16, Passed) -> Option<Passed> + 'static) {
        let place = Place { shard, pass: Box::new(pass) };
        assert!(self.0.place.set(place).is_ok(), "a server has one place");
    }

    /// Takes a connection that another shard has met.
    pub fn adopt<F: Future<Output = ()> + 'static>(
        &self,
        passed: Passed,
        handler: impl Fn(Call) -> F + 'static,
    ) {
        let Passed { peer, stream } = passed;
        let stream = TlsStream::attach(stream);
        rt::spawn(self.0.clone().carry(peer, stream, Rc::new(handler)));
    }

    /// Takes no more connections and no more calls, and waits for those that are here.
    pub async fn drain(&self) {
        for connection in self.0.stop() {
            connection.go_away();
        }
        let is_done = |inner: &Inner| {
            inner.handshakes.borrow().is_empty() && inner.connections.borrow().is_empty()
        };
        self.0.until(is_done).await;
    }

    /// Ends all connections at once.
    pub fn cut(&self) {
        for connection in self.0.stop() {
            connection.close();
        }
    }

    /// Connections that were not let in so far.
    pub fn refused(&self) -> Refused {
        self.0.refused.borrow().clone()
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.0.connections.borrow().len()
    }
}

impl Inner {
    /// Lets nobody in any more, and returns who is.
    fn stop(&self) -> Vec<Rc<Shared>> {
        self.is_stopping.set(true);
        self.changed.notify(usize::MAX);
        self.handshakes.borrow().iter().for_each(|handshake| handshake.give_up());
        self.connections.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.listen();
            if is_so(self) {
                return;
            }
            changed.await;
        }
    }

    fn begin_handshake(&self) -> Rc<Handshake> {
        let handshake = Rc::<Handshake>::default();
        let mut handshakes = self.handshakes.borrow_mut();
        handshakes.push_back(handshake.clone());
        if handshakes.len() > HANDSHAKES_MAX {
            let oldest = handshakes.pop_front();
            oldest.inspect(|oldest| oldest.give_up());
        }
        handshake
    }

    /// One connection, from its first byte to its last.
    async fn meet<H, F>(self: Rc<Self>, socket: TcpStream, handshake: Rc<Handshake>, handler: Rc<H>)
    where
        H: Fn(Call) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let shaking = async {
            let late = |_| Err(Cause::Unreachable("it did not say who it is in time".into()));
            rt::timeout(HANDSHAKE_LIMIT, self.shake_hands(socket)).await.unwrap_or_else(late)
        };
        let met = handshake.given_up().or(shaking).await;
        self.handshakes.borrow_mut().retain(|other| !Rc::ptr_eq(other, &handshake));
        self.changed.notify(usize::MAX);
        match met.and_then(|met| self.keep(met)) {
            Ok(Some((peer, stream))) => self.carry(peer, stream, handler).await,
            Ok(None) => {}
            Err(cause) => {
                let mut refused = self.refused.borrow_mut();
                refused.count += 1;
                refused.last = Some(cause);
            }
        }
    }

    /// The connection, unless another shard gets it.
    fn keep(&self, met: Met) -> Result<Option<(Principal, TlsStream)>, Cause> {
        let Met { peer, stream, wanted } = met;
        let elsewhere = wanted.zip(self.place.get()).filter(|(wanted, at)| *wanted != at.shard);
        let Some((wanted, place)) = elsewhere else { return Ok(Some((peer, stream))) };
        let stream = stream.detach().map_err(|error| Cause::of_use(&error))?;
        let kept = (place.pass)(wanted, Passed { peer, stream });
        Ok(kept.map(|Passed { peer, stream }| (peer, TlsStream::attach(stream))))
    }

    /// A connection that has been let in, to its last byte.
    async fn carry<H, F>(self: Rc<Self>, peer: Principal, stream: TlsStream, handler: Rc<H>)
    where
        H: Fn(Call) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let shared = Shared::new(Side::Answerer, self.patience, peer);
        self.connections.borrow_mut().push(Rc::downgrade(&shared));
        if self.is_stopping.get() {
            shared.go_away();
        }
        let take = |opened: Opened| self.take(opened, &handler);
        drive(shared.clone(), stream, Side::Answerer, take).await;
        let me = Rc::downgrade(&shared);
        self.connections.borrow_mut().retain(|other| !other.ptr_eq(&me));
        self.changed.notify(usize::MAX);
    }

    async fn shake_hands(&self, socket: TcpStream) -> Result<Met, Cause> {
        let opening = |error: io::Error| Cause::of_opening(&error);
        rt::net::notice_dead_host(&socket, DEAD_HOST).map_err(opening)?;
        let config = self.identity.server(Wall::from_millis(rt::wall_ms()))?;
        let mut stream = TlsStream::accept(socket, config).await.map_err(opening)?;
        let peer = self.identity.peer(stream.peer_certificates())?;
        // The greeting goes out also to a side that cannot be understood: it can then say so.
        let theirs = greet(&mut stream, &hello()).await.map_err(opening)?;
        let mut wanted = None;
        if check_hello(&theirs).map_err(Cause::Protocol)? {
            let mut shard = [0; SHARD_LEN];
            stream.read_exact(&mut shard).await.map_err(opening)?;
            wanted = Some(u16::from_be_bytes(shard));
        }
        Ok(Met { peer, stream, wanted })
    }

    fn take<H, F>(self: &Rc<Self>, opened: Opened, handler: &Rc<H>)
    where
        H: Fn(Call) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let Opened { slot, kind, head, wait_ms } = opened;
        let call = Call {
            kind,
            head,
            peer: slot.shared.peer().clone(),
            wait: (wait_ms > 0).then(|| Duration::from_millis(wait_ms.into())),
            body: BodyReader::new(slot.clone()),
            reply: Reply { slot, is_sent: false },
        };
        if self.running.get() >= RUNNING_MAX {
            return call.reply.refuse(Refusal::new(Code::Busy, "too many calls are under way"));
        }
        self.running.set(self.running.get() + 1);
        let running = Running(self.clone());
        let answering = handler(call);
        rt::spawn(async move {
            let _running = running;
            answering.await;
        });
    }
}

/// A connection of which nobody knows yet who it is.
#[derive(Default)]
struct Handshake {
    is_given_up: Cell<bool>,
    told: Event,
}

impl Handshake {
    fn give_up(&self) {
        self.is_given_up.set(true);
        self.told.notify(usize::MAX);
    }

    async fn given_up<T>(&self) -> Result<T, Cause> {
        while !self.is_given_up.get() {
            self.told.listen().await;
        }
        Err(Cause::Busy("the node stops, or too many strangers want to be let in"))
    }
}

/// Counts a handler that runs, also one that panics.
struct Running(Rc<Inner>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

impl Reply {
    /// The head, and no body.
    ///
    /// # Errors
    /// It is too long. The caller is told that the call failed.
    pub fn send(mut self, head: Bytes) -> Result<(), FrameError> {
        self.slot.wish(|mux, call| mux.reply(call, head, More::End))?;
        self.is_sent = true;
        Ok(())
    }

    /// The head, and a body that is written piece by piece.
    ///
    /// # Errors
    /// As for [`Self::send`].
    pub fn send_with_body(mut self, head: Bytes) -> Result<BodyWriter, FrameError> {
        self.slot.wish(|mux, call| mux.reply(call, head, More::Follows))?;
        self.is_sent = true;
        Ok(BodyWriter::new(self.slot.clone()))
    }

    /// The head, and all of the body.
    ///
    /// # Errors
    /// As for [`Self::send`].
    pub fn send_whole(self, head: Bytes, body: Bytes) -> Result<(), FrameError> {
        let mut writer = self.send_with_body(head)?;
        writer.send(body);
        writer.finish();
        Ok(())
    }

    /// There is no answer, and the caller is told why.
    pub fn refuse(mut self, refusal: Refusal) {
        self.is_sent = true;
        self.slot.give_up(refusal, Cause::Closed);
    }

    /// Waits until the caller has given the call up, or its connection has ended.
    pub async fn gone(&self) -> CallError {
        poll_fn(|cx| self.slot.poll_over(cx)).await
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_sent {
            let refusal = Refusal::new(Code::Failed, "the call ended without an answer");
            self.slot.give_up(refusal, Cause::Closed);
        }
    }
}
