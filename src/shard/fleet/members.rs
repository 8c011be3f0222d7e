//! The nodes of the fleet, as this one sees them: their leases, read again and again on the io
//! executor, for all shards to look at.
//!
//! Units: as `core::lease`: µs of this process.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use celld_core::cell::CellId;
use celld_core::lease::{Load, OwnerLease, Read, Record, Watch};
use celld_core::node::{NodeId, SessionId};
use celld_core::ownership::Owner;
use celld_core::placement::{self, Member};
use celld_core::record::RecordError;
use celld_core::time::Micros;
use celld_peer::PROTOCOL;
use celld_rt as rt;
use celld_s3::{Bucket, StoreError};

use crate::shard::now;

/// Leases are read so many times within a TTL: what a death costs its cells is a TTL, and at most
/// one such part more.
const READS_PER_TTL: u64 = 10;
/// For each node of a large fleet: a few dozen reads a second of each other are enough.
const PAUSE_PER_NODE: Duration = Duration::from_millis(20);
/// Leases that are read at once.
const READS_AT_ONCE: usize = 8;
/// Keys of leases begin so.
const PREFIX: &str = "nodes/";

/// Shared by all threads of a node. Locked for cold cells only, and never across a wait.
pub(crate) struct Members {
    watch: Mutex<Watch>,
    live: Mutex<Arc<Vec<Record>>>,
    /// Counts the looks, so that who has seen the last one need not look again.
    looks: AtomicU64,
    /// That the nodes cannot be read.
    is_told: AtomicBool,
    /// Nodes of which the log says that they speak another protocol.
    strangers: Mutex<BTreeSet<SessionId>>,
}

/// Why a node of the fleet takes no requests from this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mute {
    /// It has no internal listener.
    NoAddress,
    /// It speaks this version of the peer protocol.
    Protocol(u64),
}

impl fmt::Display for Mute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => {
                f.write_str("takes no requests from others: it has no --internal-listen")
            }
            Self::Protocol(theirs) => write!(
                f,
                "speaks version {theirs} of the peer protocol, and this node only {PROTOCOL}: bring \
                 both to one release"
            ),
        }
    }
}

/// What the lease of an owner says, or why it says nothing.
pub(crate) enum Judged {
    Lease(OwnerLease),
    Damaged(RecordError),
    Unread(StoreError),
}

impl Members {
    pub fn new(ttl: Micros) -> Self {
        Self {
            watch: Mutex::new(Watch::new(ttl)),
            live: Mutex::default(),
            looks: AtomicU64::new(1),
            is_told: AtomicBool::new(false),
            strangers: Mutex::default(),
        }
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes whose leases were live a moment ago, this one among them.
    pub fn live(&self) -> Arc<Vec<Record>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another number than before: [`Self::live`] may have changed. Never zero.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }

    /// Why `owner` takes no requests from this node, if that is known.
    pub fn why_mute(&self, owner: &Owner) -> Option<Mute> {
        let is_of = |record: &&Record| record.session == owner.session;
        self.live().iter().find(is_of).and_then(why_mute)
    }

    /// Whether `owner` may still act. That it may can be known from before; that it may not takes
    /// a read.
    pub async fn judge(&self, bucket: &Bucket, owner: &Owner) -> Judged {
        let known = self.watch().judge(owner);
        if let Some(OwnerLease::Live(until)) = known
            && now() < until
        {
            return Judged::Lease(OwnerLease::Live(until));
        }
        match self.read(bucket, &owner.node).await {
            Ok(()) => {
                let lease = self.watch().judge(owner).expect("it was read just now");
                Judged::Lease(lease)
            }
            Err(Unread::Store(error)) => Judged::Unread(error),
            Err(Unread::Record(error)) => Judged::Damaged(error),
        }
    }

    /// Reads the leases of all nodes once. Returns how many there are.
    pub async fn look(&self, bucket: &Bucket) -> usize {
        let nodes = match nodes(bucket).await {
            Ok(nodes) => {
                self.is_told.store(false, Ordering::Relaxed);
                nodes
            }
            Err(error) => {
                // Once: the store says nothing else while it is away.
                if !self.is_told.swap(true, Ordering::Relaxed) {
                    rt::log!("celld: the nodes of the fleet cannot be read: {error}");
                }
                Vec::new()
            }
        };
        for some in nodes.chunks(READS_AT_ONCE) {
            let reads = some.iter().map(|node| self.read(bucket, node));
            for (node, read) in some.iter().zip(futures_util::future::join_all(reads).await) {
                // What cannot be read now is looked at by who needs it.
                if let Err(Unread::Record(error)) = read {
                    rt::log!("celld: {}: {error}", node.lease_key());
                }
            }
        }
        let live: Vec<_> = self.watch().live(now()).cloned().collect();
        self.tell_strangers(&live);
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(live);
        self.looks.fetch_add(1, Ordering::Release);
        nodes.len()
    }

    /// Says once of each node that its protocol is another one: its cells are out of reach.
    fn tell_strangers(&self, live: &[Record]) {
        let mut told = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|session| live.iter().any(|record| record.session == *session));
        for record in live {
            if let Some(why @ Mute::Protocol(_)) = why_mute(record)
                && told.insert(record.session.clone())
            {
                rt::log!("celld: node {} {why}", record.node);
            }
        }
    }

    async fn read(&self, bucket: &Bucket, node: &NodeId) -> Result<(), Unread> {
        let begun = now();
        let object = bucket.get(&node.lease_key()).await.map_err(Unread::Store)?;
        let record = object.map(|object| Ok((Record::parse(&object.body)?, object.etag)));
        let record = record.transpose().map_err(Unread::Record)?;
        // The clock of the store is not asked: the wait is the same on every store.
        let read = Read { begun, ended: now(), record, age_min: Micros::ZERO };
        self.watch().saw(node, read);
        Ok(())
    }

    /// Where a cell that nobody owns is to live; `None`: here.
    pub fn place(&self, cell: &CellId, me: &NodeId, own: Load) -> Option<NodeId> {
        let live = self.live();
        let reached = reached(&live, me, own);
        placement::choose(cell, me, &reached).filter(|chosen| *chosen != me).cloned()
    }

    /// How many idle cells this node should give away, so that others take their share.
    pub fn surplus(&self, me: &NodeId, own: Load) -> usize {
        let live = self.live();
        placement::surplus(me, &reached(&live, me, own))
    }

    /// Which one of the nodes this is, for work that only one should do; 0 is the first.
    pub fn rank(&self, me: &NodeId, own: Load) -> usize {
        let live = self.live();
        let others = live.iter().filter(|record| record.node != *me);
        let mut members: Vec<_> = others.map(member).collect();
        members.push(Member { node: me, load: own });
        placement::rank(me, &members)
    }
}

fn member(record: &Record) -> Member<'_> {
    Member { node: &record.node, load: record.load }
}

/// Why requests cannot be sent to the node of a lease.
pub(super) fn why_mute(record: &Record) -> Option<Mute> {
    if record.protocol != u64::from(PROTOCOL) {
        return Some(Mute::Protocol(record.protocol));
    }
    record.address.is_none().then_some(Mute::NoAddress)
}

/// This node, and those that requests can be sent to.
fn reached<'a>(live: &'a [Record], me: &'a NodeId, own: Load) -> Vec<Member<'a>> {
    let is_reached = |record: &&Record| record.node != *me && why_mute(record).is_none();
    let others = live.iter().filter(is_reached);
    others.map(member).chain([Member { node: me, load: own }]).collect()
}

enum Unread {
    Store(StoreError),
    Record(RecordError),
}

/// Reads the leases of all nodes, for as long as this one lives.
pub(crate) async fn keep(members: Arc<Members>, bucket: Bucket, ttl: Micros) {
    let part = Duration::from_micros(ttl.as_micros() / READS_PER_TTL);
    loop {
        let many = u32::try_from(members.look(&bucket).await).unwrap_or(u32::MAX);
        rt::sleep(part.max(PAUSE_PER_NODE.saturating_mul(many))).await;
    }
}

/// The names of all nodes that have a lease record.
async fn nodes(bucket: &Bucket) -> Result<Vec<NodeId>, StoreError> {
    let (mut nodes, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = bucket.list(PREFIX, after.as_deref()).await?;
        let name = |key: &str| NodeId::parse(key.strip_prefix(PREFIX)?.strip_suffix(".json")?);
        nodes.extend(page.entries.iter().filter_map(|entry| name(&entry.key)));
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more || after.is_none() {
            return Ok(nodes);
        }
    }
}
