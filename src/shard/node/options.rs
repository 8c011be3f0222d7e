//! How a node is to run, and how its life may end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use celld_core::eviction;
use celld_core::lease::Loss;
use celld_core::node::NodeId;
use celld_core::time::Micros;
use celld_s3::Bucket;

use crate::status::Capacity;

/// How a node is to run.
pub struct NodeOptions {
    /// Where everything durable is.
    pub bucket: Bucket,
    /// Address of the public listener.
    pub listen: SocketAddr,
    /// How it belongs to the other nodes of its bucket; `None`: it is alone.
    pub fleet: Option<FleetOptions>,
    /// Name of the node: of its lease in the bucket.
    pub node: NodeId,
    /// Directory for what may be lost: the lock, images of large databases.
    pub state: PathBuf,
    /// Shards: one pinned thread each.
    pub shards: usize,
    /// What a write of the lease grants.
    pub ttl: Micros,
    /// What a drain may take before the process ends all the same.
    pub drain_limit: Duration,
    /// How often the bucket is asked for a new deployment.
    pub watch: Duration,
    /// One line on stderr for each request.
    pub log_requests: bool,
    /// For a developer: clients see the errors of the application, and may run `scheduled`.
    pub is_dev: bool,
    /// Cells in one isolate before another one opens.
    pub cells_per_isolate: usize,
    /// When idle cells of a shard leave memory.
    pub eviction: eviction::Limits,
    /// What all shards together may have in memory.
    pub capacity: Capacity,
    /// What a realm may use.
    pub limits: celld_v8host::Limits,
    /// Whether a node on which nothing serves is of no use.
    pub must_serve: bool,
    /// Told when the listener is open, and once more when something serves if nothing did: the
    /// address, and the version that serves or why there is none.
    pub ready: Ready,
}

/// How a node belongs to its fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetOptions {
    /// Address of the internal listener; `None`: it sends requests to others and takes none.
    pub listen: Option<SocketAddr>,
    /// `host:port` under which the others reach it; `None`: as `listen`.
    pub advertise: Option<String>,
    /// That may be a public address.
    pub allows_public: bool,
}

/// See [`NodeOptions::ready`].
pub type Ready = Box<dyn FnMut(SocketAddr, Result<&str, &str>) + Send>;

/// How a node's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was asked to stop, and everything was handed back; what ran for too long was cut off.
    Drained,
    /// It was asked to stop, and its time or its lease ended before everything was handed back, as
    /// when the bucket does not answer. Others take the rest when the lease is over. The process must
    /// end at once.
    OutOfTime,
    /// It was asked twice to stop. Otherwise the same.
    Hurried,
    /// Its right to own cells ended. The process must end at once and write nothing.
    Fenced(Loss),
}
