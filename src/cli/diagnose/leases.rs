//! Every lease in the bucket: whose it is, whether it is in force, and whether peers could reach
//! its node.
//!
//! Bounds: the first thousand leases; an object that is too long for a lease is not read.

use std::net::IpAddr;
use std::time::Duration;

use celld_core::lease::{RECORD_BYTES_MAX, Record};
use celld_core::node::NodeId;
use celld_s3::{Bucket, Entry, StoreError};

use super::report::Finding;
use crate::cli::fleet::limited;

/// Leases that are read at the same time.
const READS: usize = 16;
/// A lease that lasts longer was written by a clock that is ahead: none is granted for longer.
const LEFT_MAX: Duration = Duration::from_secs(601);

/// What is below `nodes/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Leases {
    pub(in crate::cli) seen: Vec<Seen>,
    /// There are no more than these.
    pub(in crate::cli) is_complete: bool,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Seen {
    pub(in crate::cli) key: String,
    pub(in crate::cli) state: State,
    /// What it says, if it can be read.
    pub(in crate::cli) record: Option<Record>,
    /// Why nobody should connect to its address.
    pub(in crate::cli) unsafe_address: Option<&'static str>,
}

/// What it is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum State {
    Live {
        left: Duration,
    },
    Expired {
        since: Duration,
    },
    Malformed(String),
    /// The store did not give it.
    Unread(String),
}

impl State {
    pub(in crate::cli) fn word(&self) -> &'static str {
        match self {
            State::Live { .. } => "live",
            State::Expired { .. } => "expired",
            State::Malformed(_) => "malformed",
            State::Unread(_) => "unread",
        }
    }
}

impl State {
    /// Why it cannot be read; nothing if it can.
    pub(in crate::cli) fn why(&self) -> &str {
        match self {
            State::Malformed(why) | State::Unread(why) => why,
            State::Live { .. } | State::Expired { .. } => "",
        }
    }
}

impl Leases {
    /// The lease of a node that may act.
    pub(in crate::cli) fn of(&self, node: &NodeId) -> Option<&Seen> {
        let is_its = |seen: &&Seen| seen.record.as_ref().is_some_and(|r| r.node == *node);
        self.seen.iter().find(is_its)
    }

    /// How many are in a state, by its word.
    pub(in crate::cli) fn count(&self, word: &str) -> usize {
        self.seen.iter().filter(|seen| seen.state.word() == word).count()
    }
}

/// Reads them. `is_shared`: nodes on several machines share the bucket, so that an address of one
/// machine only leads nowhere.
///
/// # Errors
/// They cannot be listed.
pub(in crate::cli) async fn read(bucket: &Bucket, is_shared: bool) -> Result<Leases, StoreError> {
    let page = limited("nodes/", bucket.list("nodes/", None)).await?;
    let mut leases = Leases { seen: Vec::new(), is_complete: !page.more };
    for some in page.entries.chunks(READS) {
        let reads: Vec<_> = some
            .iter()
            .map(|entry| celld_rt::spawn_joined(read_one(bucket.clone(), entry.clone(), is_shared)))
            .collect();
        for read in reads {
            leases.seen.extend(read.join().await);
        }
    }
    Ok(leases)
}

/// What is wrong with them.
pub(super) fn findings(leases: &Leases) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !leases.is_complete {
        findings.push(Finding::note(
            "lease.many",
            format!("there are more leases than the {} that were read", leases.seen.len()),
            "delete the expired ones below nodes/ that no node will use again",
        ));
    }
    findings.extend(leases.seen.iter().flat_map(judge));
    findings
}

async fn read_one(bucket: Bucket, entry: Entry, is_shared: bool) -> Seen {
    let Entry { key, size } = entry;
    let malformed = |why: String| Seen {
        key: key.clone(),
        state: State::Malformed(why),
        record: None,
        unsafe_address: None,
    };
    if size > RECORD_BYTES_MAX as u64 {
        return malformed(format!("it has {size} bytes, and a lease {RECORD_BYTES_MAX} at most"));
    }
    match limited(&key, bucket.get(&key)).await {
        Ok(Some(object)) => seen(&key, &object.body, celld_rt::wall_ms(), is_shared),
        // Listed and gone: its node has been removed in between.
        Ok(None) => malformed("it was listed and is gone; run this again".to_owned()),
        Err(error) => {
            let state = State::Unread(error.to_string());
            Seen { key, state, record: None, unsafe_address: None }
        }
    }
}

/// What a lease says at `now_ms` of the wall clock.
fn seen(key: &str, body: &[u8], now_ms: u64, is_shared: bool) -> Seen {
    let malformed = |why: String| Seen {
        key: key.to_owned(),
        state: State::Malformed(why),
        record: None,
        unsafe_address: None,
    };
    let record = match Record::parse(body) {
        Ok(record) => record,
        Err(error) => return malformed(error.to_string()),
    };
    if format!("nodes/{}.json", record.node) != key {
        return malformed(format!("it is of the node {}, which has another key", record.node));
    }
    let expires = (record.written + record.ttl).as_millis();
    let state = if now_ms < expires {
        State::Live { left: Duration::from_millis(expires - now_ms) }
    } else {
        State::Expired { since: Duration::from_millis(now_ms - expires) }
    };
    let address = record.address.as_deref();
    let unsafe_address = address.and_then(|address| why_unsafe(address, is_shared));
    Seen { key: key.to_owned(), state, record: Some(record), unsafe_address }
}

/// Why a node should not be told to connect to `address`, if it should not.
fn why_unsafe(address: &str, is_shared: bool) -> Option<&'static str> {
    let Some((host, port)) = address.rsplit_once(':') else { return Some("it names no port") };
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Some("its port is none");
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let Ok(ip) = bare.parse::<IpAddr>() else {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
        return if bare.is_empty() || bare.len() > 253 || !bare.bytes().all(plain) {
            Some("it is neither a name nor an address of a host")
        } else if is_shared && (bare == "localhost" || bare.ends_with(".localhost")) {
            Some("it means each machine itself")
        } else {
            None
        };
    };
    let ip = ip.to_canonical();
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if ip.is_unspecified() {
        Some("it is the address of no machine")
    } else if ip.is_multicast() || ip == IpAddr::V4(std::net::Ipv4Addr::BROADCAST) {
        Some("it is the address of many machines")
    } else if is_link_local {
        Some("it is an address of one network link, as metadata services have it")
    } else if is_shared && ip.is_loopback() {
        Some("it means each machine itself")
    } else {
        None
    }
}

fn judge(seen: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    let key = &seen.key;
    match &seen.state {
        State::Malformed(why) => findings.push(Finding::fault(
            "lease.malformed",
            format!("{key}: {why}"),
            "find out who wrote it; its node's cells cannot be taken over until it is deleted",
        )),
        State::Unread(why) => findings.push(Finding::fault(
            "lease.unread",
            format!("{key}: {why}"),
            "run this again when the store answers",
        )),
        State::Live { left } if *left > LEFT_MAX => findings.push(Finding::warning(
            "lease.clock-ahead",
            format!("{key} is in force for {} s more", left.as_secs()),
            "set the clock of its node, or of this machine: alarms run by it",
        )),
        State::Live { .. } | State::Expired { .. } => {}
    }
    if let (Some(why), Some(record)) = (seen.unsafe_address, &seen.record) {
        let address = record.address.as_deref().unwrap_or_default().escape_debug();
        let what = format!("{key}: no peer should connect to {address}: {why}");
        let advice = "start its node with an --advertise that other machines can reach";
        findings.push(match seen.state {
            State::Live { .. } => Finding::fault("lease.unsafe-address", what, advice),
            State::Expired { .. } | State::Malformed(_) | State::Unread(_) => {
                Finding::note("lease.unsafe-address", what, advice)
            }
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use celld_core::lease::Load;
    use celld_core::node::{DiskId, SessionId};
    use celld_core::time::{Micros, Wall};

    use super::*;

    fn record(expires_ms: u64, address: Option<&str>) -> Record {
        Record {
            node: NodeId::parse("node-1").expect("a name"),
            session: SessionId::parse(&"5".repeat(32)).expect("a session"),
            write: 3,
            ttl: Micros::from_secs(5),
            written: Wall::from_millis(expires_ms - 5_000),
            disk: DiskId::parse(&"d".repeat(32)).expect("a disk"),
            protocol: 0,
            address: address.map(str::to_owned),
            version: "0.1.0".into(),
            load: Load::default(),
        }
    }

    fn codes(seen: &Seen) -> Vec<(&'static str, super::super::report::Severity)> {
        judge(seen).iter().map(|finding| (finding.code, finding.severity)).collect()
    }

    #[test]
    fn a_lease_is_live_until_its_time_and_no_longer() {
        let body = record(10_000, Some("10.0.0.7:8788")).encode();
        let at = |now| seen("nodes/node-1.json", &body, now, true);
        assert_eq!(at(9_999).state, State::Live { left: Duration::from_millis(1) });
        assert_eq!(at(10_000).state, State::Expired { since: Duration::ZERO });
        assert_eq!(codes(&at(9_999)), []);
        assert_eq!(codes(&at(10_000)), []);
    }

    #[test]
    fn what_is_no_lease_of_its_node_is_malformed() {
        let body = record(10_000, None).encode();
        for (key, body, why) in [
            ("nodes/node-1.json", &b"{"[..], "not a JSON object"),
            ("nodes/node-1.json", b"{}", "missing"),
            ("nodes/node-2.json", &body, "node-1"),
            ("nodes/x", &body, "another key"),
        ] {
            let seen = seen(key, body, 0, true);
            let State::Malformed(said) = &seen.state else { panic!("{key}: {seen:?}") };
            assert!(said.contains(why), "{said}");
            assert_eq!(codes(&seen), [("lease.malformed", super::super::report::Severity::Fault)]);
        }
    }

    #[test]
    fn an_address_that_leads_to_no_one_machine_is_unsafe() {
        for (address, local, shared) in [
            ("10.0.0.7:8788", true, true),
            ("node-1.internal:8788", true, true),
            ("[2001:db8::7]:8788", true, true),
            ("127.0.0.1:8788", true, false),
            ("[::1]:8788", true, false),
            ("[::ffff:127.0.0.1]:8788", true, false),
            ("localhost:8788", true, false),
            ("0.0.0.0:8788", false, false),
            ("[::]:8788", false, false),
            ("169.254.169.254:80", false, false),
            ("[fe80::1]:8788", false, false),
            ("224.0.0.1:8788", false, false),
            ("255.255.255.255:8788", false, false),
            ("10.0.0.7:0", false, false),
            ("10.0.0.7", false, false),
            (":8788", false, false),
            ("user@host:8788", false, false),
            ("http://host:8788", false, false),
            ("ho st:8788", false, false),
            ("\u{1b}[2J:8788", false, false),
        ] {
            assert_eq!(why_unsafe(address, false).is_none(), local, "{address:?} on one machine");
            assert_eq!(why_unsafe(address, true).is_none(), shared, "{address:?} on several");
        }
    }

    #[test]
    fn an_unsafe_address_matters_while_its_lease_is_live() {
        use super::super::report::Severity::{Fault, Note};
        let body = record(10_000, Some("0.0.0.0:1")).encode();
        for (now, severity) in [(0, Fault), (10_000, Note)] {
            let seen = seen("nodes/node-1.json", &body, now, false);
            assert_eq!(codes(&seen), [("lease.unsafe-address", severity)]);
        }
    }

    #[test]
    fn a_lease_that_lasts_too_long_comes_from_another_clock() {
        let body = record(10_000_000, None).encode();
        let seen = seen("nodes/node-1.json", &body, 0, true);
        assert_eq!(codes(&seen)[0].0, "lease.clock-ahead");
    }
}
