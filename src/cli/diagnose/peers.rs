//! The nodes with a live lease, each asked directly, over the link that nodes use among themselves.
//!
//! Bounds: one call to each node, [`ANSWER_LIMIT`]; with `--probe` the round trips of
//! [`MEASURED_MAX`] nodes, and as many writes of 4 KiB to the disk of each.

use std::rc::Rc;
use std::time::{Duration, Instant};

use celld_core::fleet::FLEET_KEY;
use celld_core::node::NodeId;
use celld_core::time::Micros;
use celld_peer::identity::Identity;
use celld_peer::operator::{OperatorReply, OperatorRequest};
use celld_peer::probe::ProbeReply;
use celld_peer::{Address, Link};
use celld_s3::Bucket;
use serde_json::{Value, json};

use super::latency::{FLUSH_PREFIX, Series};
use super::leases::{Leases, Seen, State};
use super::report::{Finding, micros};
use super::store::unusable;
use crate::cli::fleet::NoIdentity;

/// Connection, certificates and answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Nodes that are asked at the same time.
const ASKED: usize = 16;
/// Nodes that are measured.
const MEASURED_MAX: usize = 8;
/// Round trips to one of them, and how long they may take together.
const ROUNDS_MAX: u64 = 200;
const ROUNDS_TIME: Duration = Duration::from_secs(3);

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Peers {
    pub(super) seen: Vec<Peer>,
}

/// A node with a live lease.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) node: NodeId,
    pub(super) state: PeerState,
}

/// What it said.
#[derive(Debug)]
pub(super) enum PeerState {
    /// Its lease names no address.
    TakesNone,
    /// It was not asked, and why.
    NotAsked(String),
    /// It answers.
    Well { reply: ProbeReply, took: Duration },
    /// It does not, or not as it should.
    Ill(String),
}

/// The links to those who answer.
pub(super) struct Links(Vec<(NodeId, Link)>);

/// Asks all who have a live lease. `required`: nodes that must be there and answer.
pub(super) async fn ask(
    bucket: &Bucket,
    leases: &Leases,
    required: &[NodeId],
    nonce: u64,
    findings: &mut Vec<Finding>,
) -> (Peers, Links) {
    let live: Vec<_> = leases
        .seen
        .iter()
        .filter(|seen| matches!(seen.state, State::Live { .. }))
        .filter_map(|seen| Some((seen, reached_at(seen)?)))
        .collect();
    let identity = match live.iter().any(|(_, address)| address.is_ok()) {
        true => identity(bucket, nonce, findings).await,
        false => None,
    };
    let mut peers = Peers::default();
    let mut links = Links(Vec::new());
    for some in live.chunks(ASKED) {
        let calls: Vec<_> = some
            .iter()
            .map(|(seen, address)| {
                let link = match (address, &identity) {
                    (Ok(address), Some(identity)) => {
                        Ok(Link::new(identity.clone(), address.clone()))
                    }
                    (Ok(_), None) => {
                        Err(PeerState::NotAsked("there is no fleet record to prove it by".into()))
                    }
                    (Err(NotReached::Nowhere), _) => Err(PeerState::TakesNone),
                    (Err(NotReached::Unsafe(why)), _) => {
                        Err(PeerState::NotAsked(format!("its address is unsafe: {why}")))
                    }
                };
                celld_rt::spawn_joined(call(node_of(seen), link))
            })
            .collect();
        for call in calls {
            let Some((node, state, link)) = call.join().await else { continue };
            links.0.extend(link.map(|link| (node.clone(), link)));
            peers.seen.push(Peer { node, state });
        }
    }
    findings.extend(peers.seen.iter().filter_map(judge));
    findings.extend(required.iter().filter_map(|node| missing(node, leases, &peers)));
    (peers, links)
}

/// Why a node has no address to connect to.
enum NotReached {
    Nowhere,
    Unsafe(&'static str),
}

/// Where a lease says that its node is reached; `None`: it says nothing that can be read.
fn reached_at(seen: &Seen) -> Option<Result<Address, NotReached>> {
    let record = seen.record.as_ref()?;
    if record.address.is_none() {
        return Some(Err(NotReached::Nowhere));
    }
    if let Some(why) = seen.unsafe_address {
        return Some(Err(NotReached::Unsafe(why)));
    }
    Address::of_lease(record).map(Ok)
}

fn node_of(seen: &Seen) -> NodeId {
    seen.record.as_ref().expect("a live lease was read").node.clone()
}

async fn call(node: NodeId, link: Result<Link, PeerState>) -> (NodeId, PeerState, Option<Link>) {
    let link = match link {
        Ok(link) => link,
        Err(state) => return (node, state, None),
    };
    let begin = Instant::now();
    match link.probe(ANSWER_LIMIT).await {
        Ok(reply) => (node, PeerState::Well { reply, took: begin.elapsed() }, Some(link)),
        Err(error) => (node, PeerState::Ill(error.to_string()), None),
    }
}

/// What proves to nodes that we may ask.
async fn identity(
    bucket: &Bucket,
    nonce: u64,
    findings: &mut Vec<Finding>,
) -> Option<Rc<Identity>> {
    let name = NodeId::parse("diagnose").expect("a good name");
    match crate::cli::fleet::identity(bucket, name, nonce).await {
        Ok(identity) => return Some(identity),
        Err(NoIdentity::Missing) => findings.push(Finding::fault(
            "fleet.missing",
            format!("there is no {FLEET_KEY}, and nodes say that they take peers"),
            "restore it from a copy, or start all nodes again",
        )),
        Err(NoIdentity::Malformed(why)) => findings.push(Finding::fault(
            "fleet.malformed",
            format!("{FLEET_KEY}: {why}"),
            "restore it from a copy: nodes that start now cannot speak to the others",
        )),
        Err(NoIdentity::Store(error)) => findings.push(unusable(&error)),
    }
    None
}

fn judge(peer: &Peer) -> Option<Finding> {
    let Peer { node, state } = peer;
    match state {
        PeerState::Ill(why) => Some(Finding::fault(
            "peer.unanswered",
            format!("{node} has a live lease and does not answer as it should: {why}"),
            "check its --advertise, the network between, and that it runs this version",
        )),
        PeerState::Well { reply, .. } if reply.is_draining => Some(Finding::note(
            "peer.draining",
            format!("{node} is being stopped"),
            "run this again when it is gone",
        )),
        PeerState::Well { .. } | PeerState::TakesNone | PeerState::NotAsked(_) => None,
    }
}

/// What is wrong with a node that must be there, unless [`judge`] says it.
fn missing(node: &NodeId, leases: &Leases, peers: &Peers) -> Option<Finding> {
    let state = leases.of(node).map(|seen| &seen.state);
    match (state, peers.seen.iter().find(|peer| peer.node == *node).map(|peer| &peer.state)) {
        (_, Some(PeerState::Well { .. } | PeerState::Ill(_))) => None,
        (_, Some(PeerState::TakesNone)) => Some(Finding::fault(
            "peer.no-address",
            format!("{node} has a live lease, which says that it takes no peers"),
            "start it with --internal-listen and --advertise",
        )),
        (_, Some(PeerState::NotAsked(why))) => Some(Finding::fault(
            "peer.not-asked",
            format!("{node} was not asked: {why}"),
            "repair that first",
        )),
        (Some(State::Expired { since }), None) => Some(Finding::fault(
            "peer.expired",
            format!("the lease of {node} expired {} s ago", since.as_secs()),
            "start it, or look into its log for SELF-FENCE",
        )),
        (Some(State::Live { .. } | State::Malformed(_) | State::Unread(_)) | None, None) => {
            Some(Finding::fault(
                "peer.unknown",
                format!("{node} has no lease in this bucket that can be read"),
                "check the name, which is its --node, and the bucket",
            ))
        }
    }
}

/// Measures round trips to those who have answered, and unless `is_read_only` how long it takes until
/// their disks have a block.
pub(super) async fn measure(links: Links, is_read_only: bool) -> Vec<Series> {
    let mut all = Vec::new();
    for (node, link) in links.0.into_iter().take(MEASURED_MAX) {
        let mut series = Series::new(format!("peer.{node}"), format!("peer {node}"));
        rounds(&mut series, || async {
            link.probe(ANSWER_LIMIT).await.map_err(|error| error.to_string()).map(drop)
        })
        .await;
        all.push(series);
        if is_read_only {
            continue;
        }
        let mut series = Series::new(format!("{FLUSH_PREFIX}{node}"), format!("flush at {node}"));
        // The first makes the file.
        match flush(&link).await {
            Ok(()) => rounds(&mut series, || flush(&link)).await,
            Err(error) => series.fail(error),
        }
        all.push(series);
    }
    all
}

async fn rounds<F: Future<Output = Result<(), String>>>(
    series: &mut Series,
    round: impl Fn() -> F,
) {
    let end = Instant::now() + ROUNDS_TIME;
    while series.count() < ROUNDS_MAX && Instant::now() < end {
        let begin = Instant::now();
        match round().await {
            Ok(()) => series.record(begin.elapsed()),
            Err(error) => return series.fail(error),
        }
    }
}

async fn flush(link: &Link) -> Result<(), String> {
    match link.operate(&OperatorRequest::Flush, ANSWER_LIMIT, 0).await {
        Ok((OperatorReply::Done, _)) => Ok(()),
        Ok((OperatorReply::Refused { words, .. }, _)) => Err(words),
        Err(error) => Err(error.to_string()),
    }
}

impl Peers {
    pub(super) fn json(&self) -> Value {
        self.seen.iter().map(Peer::json).collect()
    }
}

impl Peer {
    fn json(&self) -> Value {
        let node = self.node.as_str();
        match &self.state {
            PeerState::TakesNone => json!({ "node": node, "state": "takes-none" }),
            PeerState::NotAsked(why) => json!({ "node": node, "state": "not-asked", "why": why }),
            PeerState::Ill(why) => json!({ "node": node, "state": "unanswered", "why": why }),
            PeerState::Well { reply, took } => json!({
                "node": node,
                "state": "answers",
                "took_us": micros(*took),
                "protocol": reply.protocol,
                "version": reply.version,
                "session": reply.session.as_str(),
                "shards": reply.shards,
                "resident_cells": reply.resident_cells,
                "load_permille": reply.load_permille,
                "restoring": reply.restoring,
                "draining": reply.is_draining,
            }),
        }
    }

    /// For a person.
    pub(super) fn about(&self) -> String {
        match &self.state {
            PeerState::TakesNone => "takes no peers".to_owned(),
            PeerState::NotAsked(why) => format!("not asked: {why}"),
            PeerState::Ill(_) => "does not answer as it should".to_owned(),
            PeerState::Well { reply, took } => format!(
                "answers in {}; version {}, protocol {}, {} shards, {} cells, {}.{} % busy, {} \
                 restoring{}",
                Micros::from_micros(micros(*took)),
                reply.version.escape_debug(),
                reply.protocol,
                reply.shards,
                reply.resident_cells,
                reply.load_permille / 10,
                reply.load_permille % 10,
                reply.restoring,
                if reply.is_draining { ", stopping" } else { "" }
            ),
        }
    }
}
