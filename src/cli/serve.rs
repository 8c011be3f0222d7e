//! Runs a node: the one place where the command line meets the run time.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use celld_core::eviction;
use celld_core::lease::Loss;
use celld_core::node::NodeId;
use celld_core::time::Micros;
use celld_s3::Bucket;
use celld_shard::node::{self, Capacity, Exit, FleetOptions, NodeOptions, Ready};

use super::CommandError;
use super::settings::{Access, NodeSettings};

/// Life of a lease: a dead node's cells wait for this long, a slow bucket may take a third of it.
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(10);
/// What a drain may take: less than Kubernetes and systemd wait.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);
/// How often a node asks for a new deployment: one small read, and a deployment is live in seconds.
const WATCH: Duration = Duration::from_secs(2);
/// The same for a person who has just saved a file.
const WATCH_DEV: Duration = Duration::from_millis(200);
/// Cells of one isolate: at 50 KB each, they fill half its heap.
const CELLS_PER_ISOLATE: usize = 1_000;

/// What a node needs to know.
pub(crate) struct Serving {
    pub(crate) bucket: Bucket,
    pub(crate) listen: SocketAddr,
    pub(crate) fleet: Option<FleetOptions>,
    pub(crate) node: NodeId,
    pub(crate) state: PathBuf,
    pub(crate) shards: usize,
    pub(crate) lease_ttl: Option<Duration>,
    pub(crate) idle_evict: Option<Duration>,
    pub(crate) drain_timeout: Option<Duration>,
    pub(crate) capacity: Capacity,
    pub(crate) is_dev: bool,
    pub(crate) must_serve: bool,
    pub(crate) ready: Ready,
}

/// Runs a node as its settings say.
///
/// # Errors
/// It could not start.
pub(crate) fn node(settings: NodeSettings) -> Result<ExitCode, CommandError> {
    let NodeSettings {
        bucket,
        listen,
        fleet,
        node,
        state,
        shards,
        lease_ttl,
        idle_evict,
        drain_timeout,
        capacity,
        notes,
    } = settings;
    super::notes(&notes);
    let bucket = bucket.open(Access::Write)?;
    let place = bucket.to_string();
    let name = node.clone();
    let mut is_told = false;
    let ready = move |address: SocketAddr, serves: Result<&str, &str>| {
        // What comes to be served later has a line of its own.
        if !std::mem::replace(&mut is_told, true) {
            let serves = match serves {
                Ok(version) => format!("version {version}"),
                Err(why) => format!("serves nothing: {}", why.lines().next().unwrap_or_default()),
            };
            celld_rt::log!(
                "celld: node {name} listens on http://{address}, bucket {place}, {serves}"
            );
        }
    };
    run(Serving {
        bucket,
        listen,
        fleet: Some(fleet),
        node,
        state,
        shards,
        lease_ttl,
        idle_evict,
        drain_timeout,
        capacity,
        is_dev: false,
        must_serve: false,
        ready: Box::new(ready),
    })
}

/// Of one shard: its part of what the node may have, and one time for every kind of rest, if a
/// person has set one.
fn eviction_limits(idle: Option<Duration>, cells: u64, shards: usize) -> eviction::Limits {
    let mut limits = eviction::Limits::default();
    if cells > 0 {
        limits.resident_max = usize::try_from(cells).unwrap_or(usize::MAX).div_ceil(shards);
    }
    let Some(idle) = idle else { return limits };
    let idle = Micros::from_millis(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX));
    eviction::Limits { hibernatable_after: idle, idle_after: idle, ..limits }
}

/// Runs a node until it is told to stop.
///
/// # Errors
/// It could not start.
pub(crate) fn run(serving: Serving) -> Result<ExitCode, CommandError> {
    let Serving { is_dev, must_serve, ready, bucket, listen, fleet, node, state, shards, .. } =
        serving;
    let ttl = serving.lease_ttl.unwrap_or(LEASE_TTL);
    let exit = node::run(NodeOptions {
        bucket,
        listen,
        fleet,
        node,
        state,
        shards,
        ttl: Micros::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        drain_limit: serving.drain_timeout.unwrap_or(DRAIN_TIMEOUT),
        watch: if is_dev { WATCH_DEV } else { WATCH },
        log_requests: is_dev,
        is_dev,
        cells_per_isolate: CELLS_PER_ISOLATE,
        eviction: eviction_limits(serving.idle_evict, serving.capacity.cells, shards),
        capacity: serving.capacity,
        limits: celld_v8host::Limits::default(),
        must_serve,
        ready,
    })?;
    match exit {
        Exit::Drained => Ok(ExitCode::SUCCESS),
        // At once: what is left may wait for ever.
        Exit::OutOfTime => std::process::exit(0),
        Exit::Hurried => {
            celld_rt::log!("celld: stopped before everything was handed over");
            std::process::exit(i32::from(super::FAILED));
        }
        Exit::Fenced(Loss::Occupied) => {
            celld_rt::log!("celld: {}", Loss::Occupied);
            std::process::exit(i32::from(super::FAILED));
        }
        Exit::Fenced(loss) => {
            let word = loss.word();
            celld_rt::log!(
                "SELF-FENCE: {word}: {loss}; it may not own cells any more, start it again"
            );
            // At once: shards may be in the middle of turns, and nothing may be written any more.
            std::process::exit(i32::from(super::FENCED));
        }
    }
}
