//! A node: its shards, its io executor, its beginning and its end.
//!
//! The io executor never runs JavaScript: it keeps the lease, looks for new deployments, and tells
//! the shards. A cell that burns its core does not stop it.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use celld_core::lease::{Loss, Record};
use celld_core::node::{DiskId, SessionId};
use celld_core::ownership::Owner;
use celld_core::time::{Micros, Mono};
use celld_core::wake::Verdict;
use celld_rt as rt;
use celld_rt::{Placement, Signals, Stop};
use celld_s3::{Bucket, Lane};
use futures_util::SinkExt as _;

use crate::drain::{Board, end_long_turns};
use crate::fleet;
use crate::fleet::members::Members;
use crate::identity::Identity;
use crate::lease;
use crate::reach::{self, check_address, internal_address};
use crate::scratch;
use crate::shard::{Authority, NodeFacts, now, random};
use crate::status::Status;

mod adopting;
mod error;
mod options;
mod shards;

pub use crate::status::Capacity;
pub use error::NodeError;
pub use options::{Exit, FleetOptions, NodeOptions, Ready};
pub use shards::online_cores;

use adopting::Seen;
use shards::{Order, Orders, start_shards, vital};

/// Between two looks at a lease that may be over.
const COMPANY_PAUSE: Duration = Duration::from_millis(200);
/// For the last write of the lease; without it the others wait for the lease to end.
const RETIRE_LIMIT: Duration = Duration::from_secs(2);

/// Runs a node until it is told to stop or must fence itself.
///
/// # Errors
/// It could not start: an address, the state directory, the bucket, the fleet or the deployment
/// cannot be used.
pub fn run(options: NodeOptions) -> Result<Exit, NodeError> {
    rt::preflight()?;
    let _lock = lock_state(&options.state)?;
    let listen = check_address(options.listen)?;
    let internal = internal_address(options.fleet.as_ref())?;
    let signals = Signals::install().map_err(NodeError::Signals)?;
    celld_v8host::startup();
    let session = format!("{:032x}", random());
    let session = SessionId::parse(&session).expect("32 hexadecimal digits");
    let fresh = DiskId::parse(&format!("{:032x}", random())).expect("32 hexadecimal digits");
    let identity = Identity::load(&options.state, &session, &fresh)
        .map_err(|error| NodeError::State(options.state.clone(), error))?;
    let me = Owner { node: options.node.clone(), session: session.clone() };
    let facts = Arc::new(NodeFacts {
        me,
        shards: options.shards,
        state: options.state.clone(),
        patience: celld_core::proof::PATIENCE_DEFAULT,
        drain_limit: options.drain_limit,
        identity,
        ttl: options.ttl,
        cells_per_isolate: options.cells_per_isolate,
        eviction: options.eviction,
        limits: options.limits,
        log_requests: options.log_requests,
        is_dev: options.is_dev,
        signals: signals.clone(),
        scratch: scratch::Kept::default(),
    });
    let authority = Arc::new(Authority::default());
    let status = Arc::new(Status::new(
        options.node.to_string(),
        session.to_string(),
        options.shards,
        options.capacity,
    ));
    let members = Arc::new(Members::new(options.ttl));
    let common = Common { facts, authority, status, members, bucket: options.bucket.clone() };
    let (orders, threads) = start_shards(&common)?;
    let node = Node { common, orders, listen, internal, signals, options, stopped_at: None };
    let io = rt::spawn_thread("io", Placement::Floating, move || node.run())?;
    let exit = io.join().ok().flatten();
    match exit {
        Some(Ok(Exit::Drained)) => {
            for thread in threads {
                // A shard that panicked has said so.
                let _ended = thread.join();
            }
            Ok(Exit::Drained)
        }
        Some(result) => result,
        None => Err(NodeError::Start(rt::StartError("the io executor ended".into()))),
    }
}

#[derive(Clone)]
struct Common {
    facts: Arc<NodeFacts>,
    authority: Arc<Authority>,
    status: Arc<Status>,
    members: Arc<Members>,
    bucket: Bucket,
}

/// What the io executor runs.
struct Node {
    common: Common,
    orders: Orders,
    listen: SocketAddr,
    /// Of the internal listener, and what the others are told of it.
    internal: Option<(SocketAddr, String)>,
    signals: Signals,
    options: NodeOptions,
    /// When the drain has begun.
    stopped_at: Option<Mono>,
}

impl Node {
    async fn run(mut self) -> Result<Exit, NodeError> {
        // A store that does not answer is asked for a while; who stops the node does not wait for it.
        let signals = self.signals.clone();
        let stopped = async {
            signals.wait(Stop::Drain).await;
            Ok(Some(Exit::Drained))
        };
        let joined = async {
            probe(&self.common.bucket).await?;
            self.join().await.map(|()| None)
        };
        if let Some(exit) = futures_lite::future::race(joined, stopped).await? {
            return Ok(exit);
        }
        let (held, is_held) = rt::oneshot::channel();
        // Connections of its own: no crowd of segments delays a renewal.
        let bucket = self.common.bucket.lane(Lane::Lease);
        warm(&bucket).await;
        let (retire, is_retired) = rt::oneshot::channel();
        let address = self.internal.as_ref().map(|(_, told)| told.clone());
        let lease = rt::spawn_joined(crate::lease::keep(
            bucket,
            self.common.facts.clone(),
            self.common.authority.clone(),
            self.common.status.clone(),
            lease::Wiring { address, held, retire: is_retired },
        ));
        let fenced = async {
            match lease.join().await {
                Some(lease::Ended::Lost(loss)) => Ok(Exit::Fenced(loss)),
                Some(lease::Ended::Retired) => Ok(Exit::Drained),
                None => Ok(Exit::Fenced(Loss::Expired)),
            }
        };
        let serving = async {
            // A lease that is lost before it was held ends the other side of the race.
            if is_held.await.is_err() {
                std::future::pending::<()>().await;
            }
            let exit = self.serve().await;
            if let Ok(Exit::Drained) = exit {
                // Nothing is owned any more: others need not wait for the lease to end.
                let _lost = retire.send(());
                rt::sleep(RETIRE_LIMIT.min(self.time_left())).await;
            }
            exit
        };
        match futures_lite::future::race(fenced, serving).await {
            // Who is told to stop while the bucket is away cannot do better.
            Ok(Exit::Fenced(Loss::Expired)) if self.stopped_at.is_some() => {
                rt::log!("celld: the lease has ended meanwhile");
                self.tell_what_is_left();
                Ok(Exit::OutOfTime)
            }
            ended => ended,
        }
    }

    /// Finds the fleet, and makes every shard a part of it.
    async fn join(&mut self) -> Result<(), NodeError> {
        let Some(options) = &self.options.fleet else { return Ok(()) };
        let bucket = self.common.bucket.clone();
        if let Some((_, told)) = &self.internal {
            reach::check_told(told, options.allows_public).await?;
        }
        let record = fleet::join::join(&bucket).await.map_err(NodeError::Fleet)?;
        let record = Arc::new(record);
        let members = self.common.members.clone();
        members.look(&bucket).await;
        rt::spawn(vital(
            "the watch of other nodes",
            fleet::members::keep(members, bucket, self.options.ttl),
        ));
        self.check_company().await?;
        let listen = self.internal.as_ref().map(|(address, _)| *address);
        for shard in 0..self.orders.len() {
            let (done, joined) = rt::oneshot::channel();
            self.order(shard, Order::Join(record.clone(), listen, done)).await;
            let ended = || Err(NodeError::Fleet("the shard has ended".into()));
            joined.await.unwrap_or_else(|_| ended())?;
        }
        if let Some((address, told)) = &self.internal {
            rt::log!("celld: peers are served on {address}, and find it as {told}");
        }
        Ok(())
    }

    /// Whether the nodes that live can reach this one, and the other way round.
    async fn check_company(&self) -> Result<(), NodeError> {
        let Some((_, told)) = &self.internal else { return Ok(()) };
        let members = &self.common.members;
        let other =
            |live: &[Record]| reach::conflict(told, &self.common.facts.me.node, live).cloned();
        let mut known = None;
        while let Some(record) = other(&members.live()) {
            // What a node has left behind that is gone is written no more, and soon does not count.
            let is_written =
                |before: &Record| before.session == record.session && before.write != record.write;
            if known.as_ref().is_some_and(is_written) {
                return Err(reach::apart(told, &record));
            }
            if known.is_none() {
                let node = &record.node;
                rt::log!("celld: node {node} is elsewhere; waiting to see whether it lives");
            }
            known = Some(record);
            rt::sleep(COMPANY_PAUSE).await;
        }
        Ok(())
    }

    async fn serve(&mut self) -> Result<Exit, NodeError> {
        let mut seen = Seen::default();
        let Some(mut serves) = self.look_unless_stopped(&mut seen).await else {
            return Ok(self.drain().await);
        };
        if let (true, Err(why)) = (self.options.must_serve, &serves) {
            return Err(NodeError::NothingServes(why.clone()));
        }
        for shard in 0..self.orders.len() {
            let (done, opened) = rt::oneshot::channel();
            self.order(shard, Order::Listen(self.listen, done)).await;
            let opened = opened.await.unwrap_or_else(|_| Err(std::io::Error::other("shard ended")));
            opened.map_err(|error| NodeError::Listen(self.listen, error))?;
        }
        self.tell(&serves);
        let scan = crate::scan::run(self.common.bucket.clone(), self.visits(), self.rank());
        let scan = rt::spawn_joined(vital("the watch of alarms", scan));
        while self.signals.seen().is_none() {
            let stop = self.signals.wait(Stop::Drain);
            if rt::timeout(self.options.watch, stop).await.is_ok() {
                continue;
            }
            let Some(now) = self.look_unless_stopped(&mut seen).await else { break };
            if serves.is_err() && now.is_ok() {
                self.tell(&now);
                serves = now;
            }
        }
        drop(scan);
        Ok(self.drain().await)
    }

    /// Which node of the fleet this is; a node that knows of no other is the first.
    fn rank(&self) -> impl Fn() -> usize + use<> {
        let Common { facts, members, status, .. } = self.common.clone();
        move || members.rank(&facts.me.node, status.load())
    }

    /// How the scan of the wake index reaches the shards.
    fn visits(&self) -> crate::scan::Visit {
        let orders = self.orders.clone();
        let shards = self.common.facts.shards;
        Rc::new(move |entry| {
            let mut order = orders[entry.cell.shard(shards)].clone();
            Box::pin(async move {
                let (done, answered) = rt::oneshot::channel();
                // A shard that is gone has ended the process, or is about to.
                let _gone = order.send(Order::Visit(entry, done)).await;
                answered.await.unwrap_or(Verdict::Failed)
            })
        })
    }

    fn tell(&mut self, serves: &Result<String, String>) {
        let serves = serves.as_ref().map(String::as_str).map_err(String::as_str);
        (self.options.ready)(self.listen, serves);
    }

    async fn order(&self, shard: usize, order: Order) {
        // A shard that is gone has ended the process, or is about to.
        let _gone = self.orders[shard].clone().send(order).await;
    }

    /// Of the drain.
    fn time_left(&self) -> Duration {
        let spent = self.stopped_at.map_or(Micros::ZERO, |at| now().since(at));
        self.options.drain_limit.saturating_sub(Duration::from_micros(spent.as_micros()))
    }

    async fn drain(&mut self) -> Exit {
        self.stopped_at = Some(now());
        rt::log!("celld: stopping: requests finish, cells go back to the bucket");
        self.common.status.drains();
        let signals = self.signals.clone();
        let impatient = async {
            signals.wait(Stop::Now).await;
            Exit::Hurried
        };
        let limit = self.options.drain_limit;
        let handed_over = async {
            futures_lite::future::or(self.hand_over(), end_long_turns(limit)).await;
            Exit::Drained
        };
        let ended = rt::timeout(limit, futures_lite::future::race(handed_over, impatient)).await;
        let exit = ended.unwrap_or(Exit::OutOfTime);
        if exit != Exit::Drained {
            self.tell_what_is_left();
        }
        exit
    }

    fn tell_what_is_left(&self) {
        let cells = self.common.status.load().cells;
        rt::log!("celld: {cells} cells are left; others take them when the lease is over");
    }

    /// Until nothing is left on any shard, and nothing is open.
    async fn hand_over(&self) {
        let (board, all_quiet) = Board::new(self.orders.len());
        for shard in 0..self.orders.len() {
            self.order(shard, Order::Drain(board.clone())).await;
        }
        // Only shards that are gone say nothing any more.
        let _gone = all_quiet.await;
        let mut closed = Vec::new();
        for shard in 0..self.orders.len() {
            let (done, is_closed) = rt::oneshot::channel();
            self.order(shard, Order::Close(done)).await;
            closed.push(is_closed);
        }
        for is_closed in closed {
            let _gone = is_closed.await;
        }
    }
}

/// Opens connections before the first write waits for one. Who cannot has the probe's message.
async fn warm(bucket: &Bucket) {
    let _opened = bucket.warm().await;
}

async fn probe(bucket: &Bucket) -> Result<(), NodeError> {
    celld_s3::probe(bucket).await.verdict().map_err(|fault| {
        let advice = fault.advice();
        NodeError::Store(format!("the bucket {bucket} cannot be used: {fault}; {advice}"))
    })
}

/// Two processes on one state directory would take each other's files away.
fn lock_state(state: &Path) -> Result<File, NodeError> {
    let failed = |error| NodeError::State(state.to_owned(), error);
    std::fs::create_dir_all(state).map_err(failed)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(state.join("lock"))
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(NodeError::Locked(state.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}
