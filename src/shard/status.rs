//! What a node says of itself: the health document and the lines of its log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use celld_core::lease::Load;
use celld_core::ownership::Owner;
use celld_peer::probe::ProbeReply;
use celld_rt as rt;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;

use crate::body::{Flow, HttpBody};
use crate::busy::SILENCE_US;

/// Shared by the threads of a node; read only when somebody asks for it.
pub(crate) struct Status {
    health: Mutex<Health>,
    /// What each shard has in memory.
    shards: Vec<Held>,
    capacity: Capacity,
    restoring: AtomicU64,
}

/// Counts a cell that is being restored, also if that is given up.
pub(crate) struct Restoring<'a>(&'a AtomicU64);

impl Drop for Restoring<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What one shard has in memory, and how busy it is.
#[derive(Default)]
struct Held {
    cells: AtomicU64,
    heap_bytes: AtomicU64,
    database_bytes: AtomicU64,
    busy_permille: AtomicU64,
    /// Connections of clients that it takes from other shards until the next sample.
    welcome: AtomicU64,
    /// When that was measured; zero: not yet.
    measured_us: AtomicU64,
}

impl Held {
    fn busy_permille(&self, now_us: u64) -> u64 {
        let measured = self.measured_us.load(Ordering::Relaxed);
        if measured > 0 && now_us.saturating_sub(measured) > SILENCE_US {
            return 1_000;
        }
        self.busy_permille.load(Ordering::Relaxed)
    }
}

/// What a node may have in memory; zero: as much as fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Cells.
    pub cells: u64,
    /// Bytes of its cells.
    pub memory_bytes: u64,
}

/// The document at `/.well-known/celld/health`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Health {
    status: Phase,
    node: String,
    session: String,
    celld: &'static str,
    shards: usize,
    /// The version that serves.
    version: Option<String>,
    /// A newer version that cannot serve, and why.
    rejected: Option<Rejected>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    Starting,
    Serving,
    Draining,
}

#[derive(Clone, Debug, Serialize)]
struct Rejected {
    /// `None`: the record that would name it cannot be read.
    version: Option<String>,
    error: String,
}

impl Status {
    pub fn new(node: String, session: String, shards: usize, capacity: Capacity) -> Self {
        let health = Mutex::new(Health {
            status: Phase::Starting,
            node,
            session,
            celld: env!("CARGO_PKG_VERSION"),
            shards,
            version: None,
            rejected: None,
        });
        let shards = (0..shards).map(|_| Held::default()).collect();
        Self { health, shards, capacity, restoring: AtomicU64::new(0) }
    }

    /// A version serves on every shard.
    pub fn serves(&self, version: &str) {
        self.change(|health| {
            if health.status == Phase::Starting {
                health.status = Phase::Serving;
            }
            health.version = Some(version.to_owned());
            health.rejected = None;
        });
    }

    /// The version that serves.
    pub fn version(&self) -> Option<String> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).version.clone()
    }

    /// A version does not load, or cannot be told; what served before goes on.
    pub fn rejects(&self, version: Option<&str>, error: &str) {
        self.change(|health| {
            let (version, error) = (version.map(str::to_owned), error.to_owned());
            health.rejected = Some(Rejected { version, error });
        });
    }

    /// The record that names the version can be read.
    pub fn reads_current(&self) {
        self.change(|health| {
            health.rejected = health.rejected.take().filter(|it| it.version.is_some());
        });
    }

    /// The node is stopping: load balancers should go elsewhere.
    pub fn drains(&self) {
        self.change(|health| health.status = Phase::Draining);
    }

    /// A shard tells how many cells it has in memory.
    pub fn has_cells(&self, shard: usize, cells: usize) {
        self.shards[shard].cells.store(cells as u64, Ordering::Relaxed);
    }

    /// A shard tells what its cells hold: heaps of JavaScript, databases.
    pub fn has_memory(&self, shard: usize, heap_bytes: u64, database_bytes: u64) {
        self.shards[shard].heap_bytes.store(heap_bytes, Ordering::Relaxed);
        self.shards[shard].database_bytes.store(database_bytes, Ordering::Relaxed);
    }

    /// A shard tells which part of the last seconds it had something to do.
    pub fn is_busy(&self, shard: usize, permille: u64, at_us: u64) {
        self.shards[shard].busy_permille.store(permille, Ordering::Relaxed);
        self.shards[shard].measured_us.store(at_us, Ordering::Relaxed);
    }

    /// A shard tells how many connections of clients it takes from other shards.
    pub fn has_welcome(&self, shard: usize, connections: u64) {
        self.shards[shard].welcome.store(connections, Ordering::Relaxed);
    }

    /// Whether the shard takes one more connection. It is counted.
    pub fn welcomes(&self, shard: usize) -> bool {
        let Some(held) = self.shards.get(shard) else { return false };
        let one_less = |welcome: u64| welcome.checked_sub(1);
        held.welcome.try_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// Heaps of all shards.
    pub fn heap_bytes(&self) -> u64 {
        self.sum(|held| &held.heap_bytes)
    }

    fn sum(&self, part: impl Fn(&Held) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|held| part(held).load(Ordering::Relaxed)).sum()
    }

    /// A cell is read from the bucket, for as long as this lives.
    pub fn restores(&self) -> Restoring<'_> {
        self.restoring.fetch_add(1, Ordering::Relaxed);
        Restoring(&self.restoring)
    }

    /// How busy the node is.
    pub fn load(&self) -> Load {
        let now_us = rt::mono_us();
        let busy: u64 = self.shards.iter().map(|held| held.busy_permille(now_us)).sum();
        Load {
            busy_permille: busy / self.shards.len().max(1) as u64,
            shards: self.shards.len() as u64,
            cells: self.sum(|held| &held.cells),
            cells_max: self.capacity.cells,
            memory_bytes: self.heap_bytes() + self.sum(|held| &held.database_bytes),
            memory_max_bytes: self.capacity.memory_bytes,
            restoring: self.restoring.load(Ordering::Relaxed),
            is_draining: self.is_draining(),
        }
    }

    fn is_draining(&self) -> bool {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        health.status == Phase::Draining
    }

    /// What the node says of itself to another one.
    pub fn probe_reply(&self, me: &Owner) -> ProbeReply {
        let load = self.load();
        ProbeReply {
            protocol: celld_peer::PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            node: me.node.clone(),
            session: me.session.clone(),
            shards: u16::try_from(load.shards).unwrap_or(u16::MAX),
            resident_cells: load.cells,
            load_permille: u16::try_from(load.busy_permille).unwrap_or(1_000),
            restoring: u32::try_from(load.restoring).unwrap_or(u32::MAX),
            is_draining: load.is_draining,
        }
    }

    fn change(&self, act: impl FnOnce(&mut Health)) {
        act(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// 200 while it serves, 503 otherwise.
    pub fn health_response(&self) -> Response<HttpBody> {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = serde_json::to_vec_pretty(&health).expect("plain fields become JSON");
        text.push(b'\n');
        let mut response = Response::new(HttpBody::new(Flow::Bytes(Bytes::from(text))));
        if health.status != Phase::Serving {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_as_busy_as_its_shards_and_one_that_says_nothing_is_busy() {
        let status = Status::new("n".into(), "s".into(), 4, Capacity::default());
        assert_eq!(status.load().busy_permille, 0);
        // Long after the test.
        let now = rt::mono_us() + 3_600_000_000;
        for (shard, permille) in [100, 300, 500, 700].into_iter().enumerate() {
            status.is_busy(shard, permille, now);
        }
        let held = |shard: usize, after| status.shards[shard].busy_permille(now + after);
        assert_eq!([held(0, 0), held(3, SILENCE_US)], [100, 700]);
        assert_eq!(held(0, SILENCE_US + 1), 1_000);
        assert_eq!(status.load().busy_permille, 400);
    }
}
