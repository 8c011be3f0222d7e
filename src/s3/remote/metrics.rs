//! What was asked of a bucket, in numbers. Shared by all shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use celld_rt::http_client::Counts;

/// What is asked of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A whole object.
    Get,
    /// A part of an object.
    GetRange,
    /// A plain write, or a part of a large one.
    Put,
    /// A conditional write.
    PutIf,
    /// A page of a listing.
    List,
    /// One or many deletions.
    Delete,
}

/// Of each verb.
pub const VERBS: [Verb; 6] =
    [Verb::Get, Verb::GetRange, Verb::Put, Verb::PutIf, Verb::List, Verb::Delete];

/// A snapshot of [`Bucket::metrics`](crate::Bucket::metrics). All are counts since the bucket was
/// opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreMetrics {
    /// Requests sent, in the order of [`VERBS`]; repetitions and hedges count.
    pub requests: [u64; VERBS.len()],
    /// Requests that were sent again.
    pub retries: u64,
    /// Requests sent beside one that took long.
    pub hedges: u64,
    /// Answers that asked for less.
    pub throttles: u64,
    /// Requests without an answer, or with a fault of the store.
    pub failures: u64,
    /// Requests that were not sent, as the store was down.
    pub withheld: u64,
    /// Conditional writes whose end is not known.
    pub unknown: u64,
    /// How often the store was taken for down.
    pub outages: u64,
    /// Connections opened.
    pub connects: u64,
    /// Connections that could not be opened.
    pub connect_failures: u64,
    /// Idle connections that the store closed before we did.
    pub closed_idle: u64,
}

#[derive(Default)]
pub(crate) struct Metrics {
    requests: [AtomicU64; VERBS.len()],
    pub retries: Counter,
    pub hedges: Counter,
    pub throttles: Counter,
    pub failures: Counter,
    pub withheld: Counter,
    pub unknown: Counter,
    pub outages: Counter,
    pub connections: Arc<Counts>,
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Metrics {
    pub fn requested(&self, verb: Verb) {
        self.requests[verb as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn snapshot(&self) -> StoreMetrics {
        StoreMetrics {
            requests: std::array::from_fn(|n| self.requests[n].load(Ordering::Relaxed)),
            retries: self.retries.get(),
            hedges: self.hedges.get(),
            throttles: self.throttles.get(),
            failures: self.failures.get(),
            withheld: self.withheld.get(),
            unknown: self.unknown.get(),
            outages: self.outages.get(),
            connects: self.connections.connects.load(Ordering::Relaxed),
            connect_failures: self.connections.connect_failures.load(Ordering::Relaxed),
            closed_idle: self.connections.closed_idle.load(Ordering::Relaxed),
        }
    }
}
