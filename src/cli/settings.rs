//! Flags and environment variables, merged and checked.
//!
//! A flag beats its variable. A bad value stops the start, and the message says where the value
//! came from, what it is, and what is allowed. An empty variable counts as not set.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use celld_core::node::NodeId;
use celld_shard::node::{Capacity, FleetOptions};

pub(crate) use self::bucket::{Access, BucketArgs, BucketSettings, bucket};
use super::args;

mod bucket;

/// Answers what the environment says: the process's own, or a test's.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where a node listens when nobody says: reachable from this machine only.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8787);
/// The shortest life of a lease: below, one slow write to the bucket ends the node.
const TTL_MS_MIN: u64 = 1_000;
/// The longest: a dead node's cells wait for it.
const TTL_MS_MAX: u64 = 600_000;
/// The longest rest of a cell in memory: a day is forever.
const IDLE_MS_MAX: u64 = 86_400_000;
/// More cells than any machine holds.
const RESIDENT_CELLS_MAX: u64 = 1_000_000_000;
/// The program itself takes half of it.
const MEMORY_MIN: u64 = 128 << 20;
/// More than machines have.
const MEMORY_MAX: u64 = 64 << 40;
/// Cells may take so much of the memory; the rest is for the program, sockets, requests that run,
/// and what allocators keep.
const MEMORY_TENTHS: u64 = 7;
/// The shortest drain: a few writes to the bucket.
const DRAIN_MS_MIN: u64 = 500;
/// The longest.
const DRAIN_MS_MAX: u64 = 3_600_000;
/// More shards than any machine has cores is a slip of the finger.
const SHARDS_MAX: usize = 1_024;

/// How a node runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeSettings {
    pub(crate) bucket: BucketSettings,
    pub(crate) listen: SocketAddr,
    /// Its links to other nodes.
    pub(crate) fleet: FleetOptions,
    pub(crate) node: NodeId,
    pub(crate) state: PathBuf,
    pub(crate) shards: usize,
    /// Life of the lease, if not the default.
    pub(crate) lease_ttl: Option<Duration>,
    /// How long a cell may rest in memory, if not the default.
    pub(crate) idle_evict: Option<Duration>,
    /// What a drain may take, if not the default.
    pub(crate) drain_timeout: Option<Duration>,
    /// What it may have in memory.
    pub(crate) capacity: Capacity,
    /// What the person should know, one line each.
    pub(crate) notes: Vec<String>,
}

/// How `celld dev` runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DevSettings {
    pub(crate) listen: SocketAddr,
    pub(crate) shards: usize,
    pub(crate) lease_ttl: Option<Duration>,
    pub(crate) idle_evict: Option<Duration>,
}

/// What `celld diagnose` looks at, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DiagnoseSettings {
    pub(crate) bucket: BucketSettings,
    pub(crate) state: PathBuf,
    /// Measure latencies, too.
    pub(crate) is_probe: bool,
    pub(crate) peers: Vec<NodeId>,
    /// Write nothing.
    pub(crate) is_read_only: bool,
    pub(crate) is_json: bool,
}

/// A value that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingError {
    #[error("{source_name}={value:?} cannot be used: it must be {allowed}")]
    Value { source_name: &'static str, value: String, allowed: String },
    #[error("there is no bucket: give --bucket URL or set CELLD_BUCKET (see `celld --help`)")]
    NoBucket,
    #[error("{source_name}={value:?}: {why}")]
    NotServed { source_name: &'static str, value: String, why: &'static str },
}

/// A value and where it came from.
struct Given {
    source_name: &'static str,
    value: String,
}

impl Given {
    fn bad(&self, allowed: impl Into<String>) -> SettingError {
        SettingError::Value {
            source_name: self.source_name,
            value: self.value.clone(),
            allowed: allowed.into(),
        }
    }

    fn not_served(&self, why: &'static str) -> SettingError {
        SettingError::NotServed { source_name: self.source_name, value: self.value.clone(), why }
    }
}

/// The flag's value, or else the variable's.
fn given(
    flag: &'static str,
    typed: Option<String>,
    variable: &'static str,
    environment: Environment<'_>,
) -> Option<Given> {
    let from_flag = typed.map(|value| Given { source_name: flag, value });
    from_flag.or_else(|| from_environment(variable, environment))
}

fn from_environment(variable: &'static str, environment: Environment<'_>) -> Option<Given> {
    environment(variable)
        .filter(|value| !value.is_empty())
        .map(|value| Given { source_name: variable, value })
}

/// Checks all that a node needs.
///
/// # Errors
/// The first value that cannot be used.
pub(crate) fn node(
    typed: args::Node,
    environment: Environment<'_>,
) -> Result<NodeSettings, SettingError> {
    let bucket = BucketSettings { hedge: typed.hedge, ..bucket(typed.bucket_args(), environment)? };
    let mut notes = bucket.notes.clone();
    if bucket.hedge && !bucket.is_shared() {
        notes.push("--hedge has no effect on a bucket in a directory".to_owned());
    }
    let listen = match given("--listen", typed.listen, "CELLD_ADDR", environment) {
        Some(given) => address(&given)?,
        None => LISTEN,
    };
    let fleet = FleetOptions {
        allows_public: typed.unsafe_public_advertise,
        ..fleet(typed.internal_listen, typed.advertise, environment, &mut notes)?
    };
    if let Some(given) = given("--durability", typed.durability, "CELLD_DURABILITY", environment) {
        match given.value.as_str() {
            "bucket" => {}
            "fleet" => {
                return Err(given.not_served("this version keeps no copies of the log on other nodes, so a write is proven by the bucket alone: use bucket"));
            }
            _ => return Err(given.bad("bucket")),
        }
    }
    let node = match given("--node", typed.node, "CELLD_NODE", environment) {
        Some(given) => node_id(&given)?,
        None => own_name(),
    };
    Ok(NodeSettings {
        bucket,
        listen,
        fleet,
        node,
        state: state(typed.state, environment),
        shards: shards(typed.shards)?,
        lease_ttl: lease_ttl(environment)?,
        idle_evict: idle_evict(typed.idle_evict_ms)?,
        drain_timeout: drain_timeout(typed.drain_timeout, environment)?,
        capacity: Capacity {
            cells: resident_cells(typed.max_resident_cells, environment)?,
            memory_bytes: memory(typed.memory_limit, environment)?,
        },
        notes,
    })
}

/// How other nodes reach this one.
fn fleet(
    listen: Option<String>,
    advertise: Option<String>,
    environment: Environment<'_>,
    notes: &mut Vec<String>,
) -> Result<FleetOptions, SettingError> {
    let listen = given("--internal-listen", listen, "CELLD_INTERNAL_ADDR", environment);
    let listen = listen.map(|given| address(&given)).transpose()?;
    let advertise = given("--advertise", advertise, "CELLD_ADVERTISE", environment);
    if let Some(given) = &advertise {
        // Names are fine here: other nodes resolve them.
        host_and_port(given)?;
        if listen.is_none() {
            notes.push(format!(
                "{}={} has no effect without --internal-listen",
                given.source_name, given.value
            ));
        }
    }
    let bare = |given: Given| given.value.trim_start_matches("https://").to_owned();
    Ok(FleetOptions { listen, advertise: advertise.map(bare), allows_public: false })
}

/// Checks all that `celld diagnose` needs.
///
/// # Errors
/// The first value that cannot be used.
pub(crate) fn diagnose(
    typed: args::Diagnose,
    environment: Environment<'_>,
) -> Result<DiagnoseSettings, SettingError> {
    let bucket = bucket(typed.bucket_args(), environment)?;
    let args::Diagnose { state: typed_state, probe, peer, read_only, json, .. } = typed;
    let peers = peer.into_iter().map(|value| node_id(&Given { source_name: "--peer", value }));
    Ok(DiagnoseSettings {
        bucket,
        state: state(typed_state, environment),
        is_probe: probe,
        peers: peers.collect::<Result<_, _>>()?,
        is_read_only: read_only,
        is_json: json,
    })
}

/// A node that a person names with `--node`.
///
/// # Errors
/// It is no name of a node.
pub(crate) fn named_node(typed: Option<&str>) -> Result<Option<NodeId>, SettingError> {
    let given = typed.map(|value| Given { source_name: "--node", value: value.to_owned() });
    given.map(|given| node_id(&given)).transpose()
}

/// A node that a person names as such.
///
/// # Errors
/// It is no name of a node.
pub(crate) fn node_named(typed: &str) -> Result<NodeId, SettingError> {
    node_id(&Given { source_name: "node", value: typed.to_owned() })
}

/// How many lines of a list a person wants.
///
/// # Errors
/// It is no such number.
pub(crate) fn list_limit(typed: Option<&str>, usual: usize) -> Result<usize, SettingError> {
    let Some(value) = typed else { return Ok(usual) };
    let given = Given { source_name: "--limit", value: value.to_owned() };
    let parsed = given.value.parse().ok().filter(|n| *n > 0);
    parsed.ok_or_else(|| given.bad("a number from 1 on"))
}

fn node_id(given: &Given) -> Result<NodeId, SettingError> {
    NodeId::parse(&given.value)
        .ok_or_else(|| given.bad("1 to 63 of a-z, 0-9 and -, not starting with -"))
}

fn state(typed: Option<PathBuf>, environment: Environment<'_>) -> PathBuf {
    let typed = typed.map(|path| path.to_string_lossy().into_owned());
    given("--state", typed, "CELLD_WATCH", environment)
        .map_or_else(|| PathBuf::from(".celld/state"), |given| given.value.into())
}

/// Checks all that `celld dev` needs.
///
/// # Errors
/// The first value that cannot be used.
pub(crate) fn dev(
    typed: &args::Dev,
    environment: Environment<'_>,
) -> Result<DevSettings, SettingError> {
    let mut listen = LISTEN;
    if let Some(value) = typed.host.clone() {
        let given = Given { source_name: "--host", value };
        let host =
            if given.value == "localhost" { Some(LISTEN.ip()) } else { given.value.parse().ok() };
        listen
            .set_ip(host.ok_or_else(|| given.bad("an IP address, as 127.0.0.1, ::1 or 0.0.0.0"))?);
    }
    if let Some(value) = typed.port.clone() {
        let given = Given { source_name: "--port", value };
        listen.set_port(
            given
                .value
                .parse()
                .map_err(|_| given.bad("a number from 0 (any free port) to 65535"))?,
        );
    }
    Ok(DevSettings {
        listen,
        shards: shards(typed.shards.clone())?,
        lease_ttl: lease_ttl(environment)?,
        idle_evict: idle_evict(typed.idle_evict_ms.clone())?,
    })
}

fn shards(typed: Option<String>) -> Result<usize, SettingError> {
    let Some(value) = typed else {
        return Ok(std::thread::available_parallelism().map_or(1, usize::from));
    };
    let given = Given { source_name: "--shards", value };
    let parsed = given.value.parse().ok().filter(|n| (1..=SHARDS_MAX).contains(n));
    parsed.ok_or_else(|| given.bad(format!("a number from 1 to {SHARDS_MAX}")))
}

fn lease_ttl(environment: Environment<'_>) -> Result<Option<Duration>, SettingError> {
    let Some(given) = from_environment("CELLD_TTL_MS", environment) else { return Ok(None) };
    let parsed = given.value.parse().ok().filter(|ms| (TTL_MS_MIN..=TTL_MS_MAX).contains(ms));
    let ms = parsed
        .ok_or_else(|| given.bad(format!("milliseconds from {TTL_MS_MIN} to {TTL_MS_MAX}")))?;
    Ok(Some(Duration::from_millis(ms)))
}

fn idle_evict(typed: Option<String>) -> Result<Option<Duration>, SettingError> {
    let Some(value) = typed else { return Ok(None) };
    let given = Given { source_name: "--idle-evict-ms", value };
    let parsed = given.value.parse().ok().filter(|ms| (1..=IDLE_MS_MAX).contains(ms));
    let ms = parsed.ok_or_else(|| given.bad(format!("milliseconds from 1 to {IDLE_MS_MAX}")))?;
    Ok(Some(Duration::from_millis(ms)))
}

/// Zero: as many as fit.
fn resident_cells(
    typed: Option<String>,
    environment: Environment<'_>,
) -> Result<u64, SettingError> {
    let given = given("--max-resident-cells", typed, "CELLD_MAX_RESIDENT_CELLS", environment);
    let Some(given) = given else { return Ok(0) };
    let parsed = given.value.parse().ok().filter(|n| (1..=RESIDENT_CELLS_MAX).contains(n));
    parsed.ok_or_else(|| given.bad(format!("a number from 1 to {RESIDENT_CELLS_MAX}")))
}

/// What the cells may take of the memory of the process. Zero: the system does not say how much it
/// may have, and nobody else does.
fn memory(typed: Option<String>, environment: Environment<'_>) -> Result<u64, SettingError> {
    let given = given("--memory-limit", typed, "CELLD_MEMORY_LIMIT", environment);
    let limit = match given {
        Some(given) => bytes(&given.value)
            .filter(|bytes| (MEMORY_MIN..=MEMORY_MAX).contains(bytes))
            .ok_or_else(|| given.bad("a size from 128MiB to 64TiB, as 512MiB or 4GiB"))?,
        None => celld_rt::memory_limit().unwrap_or(0),
    };
    Ok(limit / 10 * MEMORY_TENTHS)
}

/// A number, and perhaps a unit: powers of 1,024, whatever it is called.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = ["", "k", "m", "g", "t"].iter().position(|name| *name == unit)? * 10;
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn drain_timeout(
    typed: Option<String>,
    environment: Environment<'_>,
) -> Result<Option<Duration>, SettingError> {
    let given = given("--drain-timeout", typed, "CELLD_DRAIN_TIMEOUT", environment);
    let Some(given) = given else { return Ok(None) };
    let (number, unit) = match given.value.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (given.value.strip_suffix('s').unwrap_or(&given.value), 1_000),
    };
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let ms = ms.filter(|ms| (DRAIN_MS_MIN..=DRAIN_MS_MAX).contains(ms));
    let ms = ms.ok_or_else(|| given.bad("a time from 500ms to 3600s, as 25s"))?;
    Ok(Some(Duration::from_millis(ms)))
}

fn address(given: &Given) -> Result<SocketAddr, SettingError> {
    let local = given.value.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    let any = given.value.strip_prefix(':').map(|port| format!("0.0.0.0:{port}"));
    let text = local.or(any).unwrap_or_else(|| given.value.clone());
    text.parse().map_err(|_| given.bad("an address and a port, as 0.0.0.0:8787 or [::1]:8787"))
}

fn host_and_port(given: &Given) -> Result<(), SettingError> {
    let bare = given.value.strip_prefix("https://").unwrap_or(&given.value);
    let good = bare.rsplit_once(':').is_some_and(|(host, port)| {
        let host_fits = !host.is_empty() && !host.contains(['/', ' ', '@']);
        host_fits && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if good {
        Ok(())
    } else {
        Err(given.bad("a host and a port, as 10.0.0.7:8788 or node-1.internal:8788"))
    }
}

/// The machine's name as a node's name; `node` when it has no letter that fits.
fn own_name() -> NodeId {
    let raw = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = raw.trim().chars().map(plain).collect();
    let text: String = text.trim_matches('-').chars().take(63).collect();
    NodeId::parse(&text).or_else(|| NodeId::parse("node")).expect("`node` is a good name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(
        pairs: &'static [(&'static str, &'static str)],
    ) -> impl Fn(&str) -> Option<String> {
        move |name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned())
    }

    fn with(
        typed: args::Node,
        pairs: &'static [(&'static str, &'static str)],
    ) -> Result<NodeSettings, String> {
        node(typed, &environment(pairs)).map_err(|error| error.to_string())
    }

    const BUCKET: (&str, &str) = ("CELLD_BUCKET", "file:///b");

    #[test]
    fn a_second_request_is_sent_where_a_node_is_told_to() {
        let at = |url: &str, hedge| {
            let bucket = Some(url.to_owned());
            with(args::Node { bucket, hedge, ..args::Node::default() }, &[]).expect("good")
        };
        assert!(at("s3://b", true).bucket.options().hedge);
        assert!(!at("s3://b", false).bucket.options().hedge);
        let note = "--hedge has no effect on a bucket in a directory";
        assert_eq!(at("file:///b", true).notes, [note]);
        assert_eq!(at("s3://b", true).notes, [""; 0]);
    }

    #[test]
    fn a_flag_beats_its_variable() {
        const PAIRS: &[(&str, &str)] = &[
            BUCKET,
            ("CELLD_ADDR", "127.0.0.1:1"),
            ("CELLD_NODE", "from-environment"),
            ("CELLD_WATCH", "/state"),
            ("CELLD_DURABILITY", "bucket"),
            ("CELLD_TTL_MS", "5000"),
            ("CELLD_DRAIN_TIMEOUT", "1500ms"),
            ("CELLD_MAX_RESIDENT_CELLS", "7"),
            ("CELLD_MEMORY_LIMIT", "500000k"),
        ];
        let from_environment = with(args::Node::default(), PAIRS).expect("good");
        assert_eq!(
            (from_environment.listen.port(), from_environment.node.as_str()),
            (1, "from-environment")
        );
        assert_eq!(
            (from_environment.bucket.url.as_str(), from_environment.state.to_str()),
            ("file:///b", Some("/state"))
        );
        assert_eq!(from_environment.lease_ttl, Some(Duration::from_secs(5)));
        assert_eq!(from_environment.drain_timeout, Some(Duration::from_millis(1_500)));
        let memory_bytes = 500_000 * 1_024 / 10 * 7;
        assert_eq!(from_environment.capacity, Capacity { cells: 7, memory_bytes });
        let typed = args::Node {
            bucket: Some("file:///typed".into()),
            listen: Some("[::1]:2".into()),
            node: Some("typed".into()),
            state: Some("typed".into()),
            shards: Some("3".into()),
            idle_evict_ms: Some("250".into()),
            drain_timeout: Some("7".into()),
            max_resident_cells: Some("1000".into()),
            memory_limit: Some("1GiB".into()),
            ..args::Node::default()
        };
        let typed = with(typed, PAIRS).expect("good");
        assert_eq!(
            (typed.listen.to_string().as_str(), typed.node.as_str(), typed.bucket.url.as_str()),
            ("[::1]:2", "typed", "file:///typed")
        );
        assert_eq!((typed.state.to_str(), typed.shards), (Some("typed"), 3));
        assert_eq!(typed.idle_evict, Some(Duration::from_millis(250)));
        assert_eq!(typed.drain_timeout, Some(Duration::from_secs(7)));
        assert_eq!(typed.capacity, Capacity { cells: 1_000, memory_bytes: (1 << 30) / 10 * 7 });
    }

    #[test]
    fn amazon_s_endpoint_is_none_of_other_clouds() {
        const AMAZON: (&str, &str) = ("AWS_ENDPOINT_URL", "http://a");
        for (pairs, endpoint) in [
            (&[("CELLD_BUCKET", "s3://b"), AMAZON] as &[_], Some("http://a")),
            (&[("CELLD_BUCKET", "gs://b"), AMAZON], None),
            (&[("CELLD_BUCKET", "az://b"), AMAZON], None),
        ] {
            let settings = with(args::Node::default(), pairs).expect("good");
            assert_eq!(settings.bucket.endpoint.as_deref(), endpoint, "{pairs:?}");
        }
    }

    #[test]
    fn a_bad_value_is_named_with_its_source_and_what_is_allowed() {
        for (pairs, parts) in [
            (&[BUCKET, ("CELLD_ADDR", "here")] as &[_], ["CELLD_ADDR=\"here\"", "0.0.0.0:8787"]),
            (
                &[BUCKET, ("CELLD_INTERNAL_ADDR", "8788")],
                ["CELLD_INTERNAL_ADDR=\"8788\"", "address and a port"],
            ),
            (
                &[BUCKET, ("CELLD_ADVERTISE", "host")],
                ["CELLD_ADVERTISE=\"host\"", "host and a port"],
            ),
            (&[BUCKET, ("CELLD_NODE", "Node_1")], ["CELLD_NODE=\"Node_1\"", "a-z, 0-9 and -"]),
            (&[BUCKET, ("CELLD_TTL_MS", "10s")], ["CELLD_TTL_MS=\"10s\"", "from 1000 to 600000"]),
            (
                &[BUCKET, ("CELLD_MAX_RESIDENT_CELLS", "0")],
                ["CELLD_MAX_RESIDENT_CELLS=\"0\"", "from 1"],
            ),
            (
                &[BUCKET, ("CELLD_MEMORY_LIMIT", "1GiBs")],
                ["CELLD_MEMORY_LIMIT=\"1GiBs\"", "128MiB"],
            ),
            (&[BUCKET, ("CELLD_MEMORY_LIMIT", "10m")], ["CELLD_MEMORY_LIMIT=\"10m\"", "128MiB"]),
            (
                &[BUCKET, ("CELLD_DRAIN_TIMEOUT", "1m")],
                ["CELLD_DRAIN_TIMEOUT=\"1m\"", "from 500ms to 3600s"],
            ),
            (&[BUCKET, ("CELLD_TTL_MS", "999")], ["CELLD_TTL_MS=\"999\"", "from 1000 to 600000"]),
            (
                &[BUCKET, ("CELLD_DURABILITY", "raft")],
                ["CELLD_DURABILITY=\"raft\"", "must be bucket"],
            ),
            (
                &[BUCKET, ("CELLD_DURABILITY", "fleet")],
                ["CELLD_DURABILITY=\"fleet\"", "no copies of the log"],
            ),
            (
                &[("CELLD_BUCKET", "s3://b"), ("S3_ENDPOINT", "minio:9000")],
                ["S3_ENDPOINT=\"minio:9000\"", "http://"],
            ),
            (&[("CELLD_BUCKET", "s3://")], ["CELLD_BUCKET=\"s3://\"", "s3://NAME"]),
            (&[("CELLD_BUCKET", "r2://b")], ["CELLD_BUCKET=\"r2://b\"", "s3://NAME"]),
            (&[("CELLD_BUCKET", "file://b")], ["CELLD_BUCKET=\"file://b\"", "absolute path"]),
            (&[("CELLD_BUCKET", "/b")], ["CELLD_BUCKET=\"/b\"", "a URL"]),
            (&[("CELLD_BUCKET", "")], ["no bucket", "--bucket"]),
        ] {
            let text = with(args::Node::default(), pairs).expect_err(parts[0]);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        for shards in ["0", "x", "1025"] {
            let typed = args::Node { shards: Some(shards.into()), ..args::Node::default() };
            assert!(with(typed, &[BUCKET]).expect_err(shards).contains("--shards="));
        }
        for rest in ["0", "1s", "86400001"] {
            let typed = args::Node { idle_evict_ms: Some(rest.into()), ..args::Node::default() };
            assert!(with(typed, &[BUCKET]).expect_err(rest).contains("--idle-evict-ms="));
        }
    }

    #[test]
    fn an_option_without_effect_says_so() {
        const ADVERTISE: [(&str, &str); 2] = [BUCKET, ("CELLD_ADVERTISE", "node-1.internal:8788")];
        let settings = with(args::Node::default(), &ADVERTISE).expect("good");
        let note = "CELLD_ADVERTISE=node-1.internal:8788 has no effect without --internal-listen";
        assert_eq!(settings.notes, [note]);
        let typed =
            args::Node { internal_listen: Some("10.0.0.1:8788".into()), ..args::Node::default() };
        let settings = with(typed, &ADVERTISE).expect("good");
        assert!(settings.notes.is_empty());
        assert_eq!(settings.fleet.listen, Some(([10, 0, 0, 1], 8788).into()));
        assert_eq!(settings.fleet.advertise.as_deref(), Some("node-1.internal:8788"));
    }

    #[test]
    fn development_listens_on_this_machine_only_unless_told() {
        let typed = |host: &str, port: &str| {
            let words = ["dev", "--host", host, "--port", port].map(str::to_owned).to_vec();
            let Ok(args::Command::Dev(typed)) = args::parse(words) else { panic!("{host} {port}") };
            dev(&typed, &|_| None)
                .map(|settings| settings.listen.to_string())
                .map_err(|error| error.to_string())
        };
        assert_eq!(typed("0.0.0.0", "9000").as_deref(), Ok("0.0.0.0:9000"));
        assert_eq!(typed("localhost", "0").as_deref(), Ok("127.0.0.1:0"));
        assert!(typed("here", "1").expect_err("host").contains("--host=\"here\""));
        assert!(typed("::1", "70000").expect_err("port").contains("--port=\"70000\""));
    }
}
