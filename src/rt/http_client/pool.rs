//! The connections of one executor to one origin.
//!
//! Invariant: a connection carries one request at a time, and at most [`Limits::in_flight_max`]
//! requests are under way; more of them wait, in their order.
//!
//! An idle connection that a server, a proxy or a firewall has given up is the worst moment to
//! find out about it: the request on it may have been seen or not. So idle connections are
//! replaced before the server's limit, which is learnt from the ones that it closes, and as many
//! as [`Limits::warm`] are there before a request wants them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_channel::oneshot;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};

use super::connecting::{Opened, open};
use super::{Origin, SendError, TlsConfig};
use crate::hyper_io::HyperIo;
use crate::{sleep, spawn};

/// Between two looks at idle connections.
const LOOK: Duration = Duration::from_secs(1);
/// What is learnt from a server that closes connections never goes below it: one that closes them
/// all is restarting.
const IDLE_LEAST: Duration = Duration::from_secs(2);
/// The learnt limit grows by so much with each look, so that a restart is forgotten in minutes.
const FORGET: f64 = 1.01;

/// Bounds of one [`Pool`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests under way at once; more wait.
    pub in_flight_max: usize,
    /// Idle connections kept.
    pub idle_max: usize,
    /// An idle connection is replaced after it.
    pub idle: Duration,
    /// For the first words of TCP, and those of TLS.
    pub connect: Duration,
    /// A host that answers nothing for so long, not even that it is there, is gone: its connections
    /// end, also those that wait for a request.
    pub silence: Duration,
    /// Connections kept open for requests to come.
    pub warm: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight_max: 1_024,
            idle_max: 32,
            // Servers close idle connections after 60 s or more; most proxies after 30 s.
            idle: Duration::from_secs(25),
            // A server that has not answered a SYN, or the first words of TLS, by then will not.
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(30),
            warm: 0,
        }
    }
}

/// What pools have done; those of many threads may share it.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections opened.
    pub connects: AtomicU64,
    /// Connections that could not be opened.
    pub connect_failures: AtomicU64,
    /// Idle connections that the server closed.
    pub closed_idle: AtomicU64,
}

/// Clones share the connections.
pub struct Pool<B>(Rc<Inner<B>>);

struct Inner<B> {
    origin: Origin,
    tls: TlsConfig,
    limits: Limits,
    state: RefCell<State<B>>,
    counts: Arc<Counts>,
}

struct State<B> {
    idle: Vec<Idle<B>>,
    /// Requests that may still start.
    free: usize,
    waiting: VecDeque<oneshot::Sender<Permit<B>>>,
    /// [`Limits::idle`], or less when the server closes earlier.
    idle_limit: Duration,
    /// Somebody looks after the idle ones. Gone with the executor that it runs on.
    watcher: Weak<()>,
}

struct Idle<B> {
    since: Instant,
    sender: SendRequest<B>,
    link: Rc<Link>,
}

/// What a connection's task and its place in the pool know of each other.
#[derive(Default)]
struct Link {
    /// It waits for a request since then.
    idle_since: Cell<Option<Instant>>,
}

/// The right to have one request under way. Empty once it is handed on.
struct Permit<B>(Option<Weak<Inner<B>>>);

impl<B> Drop for Permit<B> {
    fn drop(&mut self) {
        let Some(pool) = self.0.take().and_then(|pool| pool.upgrade()) else { return };
        loop {
            let next = {
                let mut state = pool.state.borrow_mut();
                match state.waiting.pop_front() {
                    Some(next) => next,
                    None => {
                        state.free += 1;
                        return;
                    }
                }
            };
            // Whoever has gone away gives it back at once.
            match next.send(Permit(Some(Rc::downgrade(&pool)))) {
                Ok(()) => return,
                Err(mut back) => back.0 = None,
            }
        }
    }
}

/// A connection that carries a response. Dropping it closes the connection.
pub struct Used<B> {
    sender: SendRequest<B>,
    link: Rc<Link>,
    permit: Permit<B>,
}

impl<B: 'static> Used<B> {
    /// The connection is free again once the response's body has been read, as it mostly is now.
    pub fn give_back(self) {
        let Self { mut sender, link, permit } = self;
        if sender.is_ready() {
            return permit.give_back(sender, link);
        }
        spawn(async move {
            if sender.ready().await.is_ok() {
                permit.give_back(sender, link);
            }
        });
    }
}

impl<B> Permit<B> {
    fn give_back(self, sender: SendRequest<B>, link: Rc<Link>) {
        if let Some(pool) = self.0.as_ref().and_then(Weak::upgrade) {
            pool.put(sender, link);
        }
    }
}

impl<B> Clone for Pool<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B> Pool<B>
where
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// A pool with no connections yet.
    pub fn new(origin: Origin, tls: TlsConfig, limits: Limits, counts: Arc<Counts>) -> Self {
        let state = State {
            idle: Vec::new(),
            free: limits.in_flight_max,
            waiting: VecDeque::new(),
            idle_limit: limits.idle,
            watcher: Weak::new(),
        };
        let state = RefCell::new(state);
        Self(Rc::new(Inner { origin, tls, limits, state, counts }))
    }

    /// Sends a request in origin form, with its `Host`, and waits for the response's head. Dropping
    /// the future closes the connection; the request may be done all the same.
    ///
    /// # Errors
    /// The name, the connection, TLS or the exchange failed; the text says which.
    pub async fn send(&self, request: Request<B>) -> Result<Response<Incoming>, SendError> {
        let (response, used) = self.exchange(request).await?;
        used.give_back();
        Ok(response)
    }

    /// The same for who gives the connection back after the response's body, which costs less.
    ///
    /// # Errors
    /// As [`Pool::send`].
    pub async fn exchange(
        &self,
        mut request: Request<B>,
    ) -> Result<(Response<Incoming>, Used<B>), SendError> {
        let permit = self.permit().await;
        loop {
            let (mut sender, link, reused) = match self.take() {
                Some(idle) => (idle.sender, idle.link, true),
                None => {
                    // In a box: large, and rare.
                    let connected = Box::pin(self.connect()).await;
                    let (sender, link) = connected.map_err(SendError::NotSent)?;
                    (sender, link, false)
                }
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.watch();
                    return Ok((response, Used { sender, link, permit }));
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if reused => request = unsent,
                    Some(_) => return Err(SendError::NotSent(to_io(error.into_error()))),
                    None => {
                        let source = to_io(error.into_error());
                        return Err(SendError::NoAnswer { reused, source });
                    }
                },
            }
        }
    }

    /// Opens connections until `count` are idle. Returns how many are.
    ///
    /// # Errors
    /// One could not be opened.
    pub async fn warm(&self, count: usize) -> io::Result<usize> {
        self.watch();
        loop {
            let idle = self.sweep();
            if idle >= count.min(self.0.limits.idle_max) {
                return Ok(idle);
            }
            let (mut sender, link) = self.connect().await?;
            sender.ready().await.map_err(to_io)?;
            self.0.put(sender, link);
        }
    }

    /// Closes the connections that wait for a request: something speaks against all of them.
    pub fn forget_idle(&self) {
        let idle = std::mem::take(&mut self.0.state.borrow_mut().idle);
        idle.into_iter().for_each(Idle::retire);
    }

    /// No connections are kept and none are in use.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.0.state.borrow();
        state.idle.is_empty() && state.free == self.0.limits.in_flight_max
    }

    #[cfg(test)]
    pub(super) fn idle_limit(&self) -> Duration {
        self.0.state.borrow().idle_limit
    }

    #[cfg(test)]
    pub(super) fn idle_count(&self) -> usize {
        self.0.state.borrow().idle.len()
    }

    async fn permit(&self) -> Permit<B> {
        let wait = {
            let mut state = self.0.state.borrow_mut();
            if state.free > 0 {
                state.free -= 1;
                return Permit(Some(Rc::downgrade(&self.0)));
            }
            let (sender, receiver) = oneshot::channel();
            state.waiting.push_back(sender);
            receiver
        };
        wait.await.expect("the pool lives while it is borrowed")
    }

    fn take(&self) -> Option<Idle<B>> {
        let mut state = self.0.state.borrow_mut();
        let limit = state.idle_limit;
        while let Some(idle) = state.idle.pop() {
            let late = idle.since.elapsed() >= limit;
            if !late && !idle.sender.is_closed() && idle.sender.is_ready() {
                idle.link.idle_since.set(None);
                return Some(idle);
            }
            idle.retire();
        }
        None
    }

    /// Drops what is closed or too old. Returns how many are left.
    fn sweep(&self) -> usize {
        let mut state = self.0.state.borrow_mut();
        let limit = state.idle_limit;
        state.idle.retain(|idle| {
            let stays = idle.since.elapsed() < limit && !idle.sender.is_closed();
            if !stays {
                idle.link.idle_since.set(None);
            }
            stays
        });
        state.idle_limit = limit.mul_f64(FORGET).min(self.0.limits.idle);
        state.idle.len()
    }

    /// Starts the task that looks after idle connections. It ends when there is nothing to do.
    fn watch(&self) {
        if self.0.state.borrow().watcher.strong_count() > 0 {
            return;
        }
        let alive = Rc::new(());
        self.0.state.borrow_mut().watcher = Rc::downgrade(&alive);
        let (pool, warm) = (Rc::downgrade(&self.0), self.0.limits.warm);
        spawn(async move {
            let _alive = alive;
            loop {
                sleep(LOOK).await;
                let Some(pool) = pool.upgrade().map(Pool) else { return };
                let idle = pool.sweep();
                let busy = pool.0.limits.in_flight_max - pool.0.state.borrow().free;
                if idle + busy < warm {
                    // What is wrong, the next request will say.
                    let _down = pool.warm(warm - busy).await;
                } else if idle + busy == 0 {
                    return;
                }
            }
        });
    }

    async fn connect(&self) -> io::Result<(SendRequest<B>, Rc<Link>)> {
        let result = self.open().await;
        let counts = &self.0.counts;
        let count = if result.is_ok() { &counts.connects } else { &counts.connect_failures };
        count.fetch_add(1, Ordering::Relaxed);
        result
    }

    async fn open(&self) -> io::Result<(SendRequest<B>, Rc<Link>)> {
        let limit = self.0.limits.connect;
        match open(&self.0.origin, &self.0.tls, limit, self.0.limits.silence).await? {
            Opened::Plain(socket) => self.handshake(HyperIo::new(socket)).await,
            Opened::Tls(socket) => self.handshake(HyperIo::new(*socket)).await,
        }
    }

    async fn handshake<S>(&self, io: S) -> io::Result<(SendRequest<B>, Rc<Link>)>
    where
        S: hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
    {
        let (sender, connection) = Builder::new().handshake(io).await.map_err(to_io)?;
        let link = Rc::new(Link::default());
        let (pool, known) = (Rc::downgrade(&self.0), link.clone());
        spawn(async move {
            // Its error is also the error of the request that was under way.
            let _closed = connection.await;
            if let (Some(since), Some(pool)) = (known.idle_since.get(), pool.upgrade()) {
                pool.learn(since.elapsed());
            }
        });
        Ok((sender, link))
    }
}

impl<B> Inner<B> {
    fn put(&self, sender: SendRequest<B>, link: Rc<Link>) {
        let mut state = self.state.borrow_mut();
        if state.idle.len() < self.limits.idle_max {
            let since = Instant::now();
            link.idle_since.set(Some(since));
            state.idle.push(Idle { since, sender, link });
        }
    }

    /// The server has closed a connection that was idle for `age`.
    fn learn(&self, age: Duration) {
        self.counts.closed_idle.fetch_add(1, Ordering::Relaxed);
        let limit = (age * 3 / 4).max(IDLE_LEAST);
        let mut state = self.state.borrow_mut();
        state.idle_limit = state.idle_limit.min(limit);
    }
}

impl<B> Idle<B> {
    /// Closes it; that is not the server's doing.
    fn retire(self) {
        self.link.idle_since.set(None);
    }
}

/// With what lies below: "connection error" alone tells nobody anything.
pub(super) fn to_io(error: hyper::Error) -> io::Error {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(&error);
    let mut kind = io::ErrorKind::Other;
    if error.is_incomplete_message() {
        kind = io::ErrorKind::UnexpectedEof;
    }
    while let Some(error) = below {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            kind = io.kind();
        }
        text = format!("{text}: {error}");
        below = error.source();
    }
    io::Error::new(kind, text)
}
