//! Whole nodes on a store that misbehaves. No acknowledged and no seen write is lost, no conditional
//! write is misread, and the node goes on by itself when the fault is over. That the store sees no
//! storm of requests is measured by `alone::storm`.
//!
//! Faults that no node can live with (ignored conditions, listings of yesterday) are the probe's:
//! a node does not start there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use celld_stores::{Faulty, Kind, Outage, Request, Store};
use serde_json::json;

use super::ledger::append;
use super::load::{Cell, Load, NEXT};
use super::nodes::assert_fenced;
use super::support::node::{Node, Plan, Remote, Site};
use super::support::rng::Rng;
use super::support::wait_for;

/// How long each fault lasts.
pub const FAULT: Duration = Duration::from_secs(2);
/// An outage that a lease outlives on a busy machine.
const OUTAGE: Duration = Duration::from_secs(3);
/// After the end of a fault, all cells acknowledge writes again. One to two seconds go by until the
/// store is asked again; the rest is for a busy machine.
const RECOVERY_LIMIT: Duration = Duration::from_secs(10);
/// A node that has lost its state waits for the lease of its earlier life, whose time this is; and
/// a lease that is renewed through a store that refuses most of it must not be much shorter.
pub const TTL: Duration = Duration::from_secs(6);
/// A first acknowledgement, and one that waits for a lease to end.
const START_LIMIT: Duration = Duration::from_secs(60);
const WRITERS: u64 = 6;
const READERS: u64 = 2;

/// A deployment on a store behind a proxy.
pub struct Stand {
    pub proxy: Faulty,
    site: Site,
    rng: Rng,
}

impl Stand {
    /// `None`: there is no store, and the user was told.
    pub fn new(test: &str) -> Option<Self> {
        static NEXT_PREFIX: AtomicU64 = AtomicU64::new(0);
        let proxy = Faulty::before(Store::shared(Kind::Ministack)?)?;
        let url = proxy.url(&format!("node{}", NEXT_PREFIX.fetch_add(1, Ordering::Relaxed)));
        let site = Site::in_store(Remote::new(url, proxy.endpoint()));
        Some(Self { proxy, site, rng: Rng::from_environment(test) })
    }

    pub fn plan(&self, name: &str, ttl: Duration) -> Plan {
        self.site.node(name).variable("CELLD_TTL_MS", ttl.as_millis().to_string())
    }

    pub fn load(&self, node: &Node, cells: &[Arc<Cell>]) -> Load {
        Load::start(node.door(), cells, WRITERS, READERS, &self.rng)
    }

    /// On a busy machine it takes longer until a fault is met.
    pub fn wait_until_met(&self, fault: &str, before: usize) {
        wait_for(fault, START_LIMIT, || {
            let seen = self.proxy.requests().split_off(before);
            (met(&seen, fault) > 0).then_some(())
        });
    }

    /// What the store is asked while `work` is done, as the proxy saw it.
    pub fn watch<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<Request>) {
        let before = self.proxy.requests().len();
        let done = work();
        (done, self.proxy.requests().split_off(before))
    }
}

/// Fresh cells that have acknowledged a write each.
pub fn cells(node: &Node, names: &str, count: usize) -> Vec<Arc<Cell>> {
    let cells: Vec<_> = (0..count).map(|n| Cell::new(format!("{names}{n}"))).collect();
    cells.iter().for_each(|cell| acknowledges(node, cell, START_LIMIT));
    cells
}

/// Waits until the cell acknowledges a write.
fn acknowledges(node: &Node, cell: &Cell, limit: Duration) {
    let mut client = node.client();
    wait_for("an acknowledgement", limit, || {
        let row = (99, NEXT.fetch_add(1, Ordering::Relaxed));
        cell.ledger().sends(row);
        match append(&mut client, &cell.name, row) {
            Ok(number) => {
                cell.ledger().acknowledges(number, row);
                Some(())
            }
            Err((Some(500 | 503), _)) => {
                std::thread::sleep(Duration::from_millis(50));
                None
            }
            Err(other) => panic!("neither acknowledged nor refused: {other:?}"),
        }
    });
}

/// All cells acknowledge again, and show what they must. Returns how long that took.
pub fn recovers(node: &Node, cells: &[Arc<Cell>]) -> Duration {
    let begin = Instant::now();
    for cell in cells {
        acknowledges(node, cell, RECOVERY_LIMIT);
    }
    let took = begin.elapsed();
    assert!(took < RECOVERY_LIMIT, "it went on only {took:?} after the end of the fault");
    verify(node, cells);
    took
}

fn verify(node: &Node, cells: &[Arc<Cell>]) {
    for cell in cells {
        cell.verify(&mut node.client());
    }
}

/// The same cells in another life that knows nothing but what is in the store.
pub fn survive_death(plan: &mut Plan, node: Node, cells: &[Arc<Cell>]) {
    let log = node.kill();
    assert!(!log.contains("panicked") && !log.contains("SELF-FENCE"), "{log}");
    std::fs::remove_dir_all(plan.state()).expect("it was there");
    let node = plan.start();
    for cell in cells {
        acknowledges(&node, cell, START_LIMIT);
    }
    verify(&node, cells);
}

pub fn acknowledged(cells: &[Arc<Cell>]) -> u64 {
    cells.iter().map(|cell| cell.ledger().acknowledged).sum()
}

/// A refusal says that the request has not run, or that it may be sent again.
pub fn assert_retryable(refusals: &[String]) {
    let fatal = refusals.iter().find(|refusal| !refusal.contains("\"retryable\":true"));
    assert!(fatal.is_none(), "{fatal:?} of {} refusals", refusals.len());
}

/// How many met a fault whose name begins so.
pub fn met(requests: &[Request], fault: &str) -> usize {
    requests
        .iter()
        .filter(|request| request.faults.iter().any(|met| met.starts_with(fault)))
        .count()
}

#[test]
fn restarts_live_with_wrong_ranges_and_with_failed_conditions_in_other_words() {
    let _machine = super::shared();
    let Some(stand) = Stand::new("the restarts") else { return };
    let mut plan = stand.plan("n", TTL);
    let mut node = plan.start();
    let all = cells(&node, "c", 4);
    for (faults, fault) in [
        (json!({"bad_range": "whole206", "count": 6}), "bad-range"),
        (json!({"bad_range": "shift", "count": 6}), "bad-range"),
        (json!({"wrong_error": "409:OperationAborted"}), "wrong-error"),
        (json!({"wrong_error": "500:UnknownError"}), "wrong-error"),
        (json!({"wrong_error": "404:NoSuchKey"}), "wrong-error"),
        (json!({"wrong_error": "304"}), "wrong-error"),
    ] {
        node.end();
        assert!(!node.log().contains("panicked"), "{}", node.log());
        let before = stand.proxy.requests().len();
        let ((next, refusals), seen) = stand.watch(|| {
            let mut faults = faults.clone();
            // Not what the node tries before it serves.
            faults["match"] = "/(nodes|cells)/".into();
            stand.proxy.set(faults);
            let node = plan.start();
            let load = stand.load(&node, &all);
            std::thread::sleep(Duration::from_millis(500));
            stand.wait_until_met(fault, before);
            stand.proxy.heal();
            (node, load.end())
        });
        node = next;
        let met = met(&seen, fault);
        let took = recovers(&node, &all);
        println!("{faults}: met {met} times, {} refused, {took:?} to go on", refusals.len());
        assert_retryable(&refusals);
    }
}

/// Most of it is waiting, so all at once; and little load, so that leases are renewed in time.
#[test]
fn outages_of_each_kind_are_waited_for_and_one_longer_than_a_lease_ends_the_node() {
    let _machine = super::shared();
    let modes = [Outage::Cut, Outage::Refuse, Outage::Hang, Outage::Unavailable];
    let mut outages: Vec<_> =
        modes.into_iter().map(|mode| std::thread::spawn(move || waits_out(mode))).collect();
    outages.push(std::thread::spawn(ends_with_its_lease));
    for outage in outages {
        outage.join().expect("no panic");
    }
}

fn waits_out(mode: Outage) {
    let Some(stand) = Stand::new("an outage") else { return };
    // Of ten seconds, at least six are left when the outage begins.
    let mut plan = stand.plan("n", Duration::from_secs(10));
    let mut node = plan.start();
    let all = cells(&node, "c", 3);
    let load = Load::start(node.door(), &all, WRITERS, READERS, &stand.rng);
    stand.proxy.outage(OUTAGE, mode);
    std::thread::sleep(OUTAGE);
    let took = recovers(&node, &all);
    let refusals = load.end();
    let asked = met(&stand.proxy.requests(), "outage");
    println!(
        "{mode:?}: {asked} requests while it was away, {} refused, {took:?} to go on",
        refusals.len()
    );
    assert_retryable(&refusals);
    assert!(node.is_running(), "{}", node.log());
    // Eight clients whose requests are under way, and then who looks whether it is back.
    let few = 60 + 20 * OUTAGE.as_secs() as usize;
    assert!(asked <= few, "{mode:?}: {asked} requests of a store that is away");
    survive_death(&mut plan, node, &all);
}

fn ends_with_its_lease() {
    let Some(stand) = Stand::new("a long outage") else { return };
    let mut plan = stand.plan("n", TTL);
    let mut node = plan.start();
    let all = cells(&node, "c", 3);
    let load = stand.load(&node, &all);
    let (began, away) = (Instant::now(), TTL + OUTAGE);
    stand.proxy.outage(away, Outage::Cut);
    let status = node.wait_for_end(START_LIMIT);
    assert_fenced(status, &node.log(), "expired");
    load.end();
    // As a supervisor would, on another machine.
    std::thread::sleep(away.saturating_sub(began.elapsed()));
    std::fs::remove_dir_all(plan.state()).expect("it was there");
    let node = plan.start();
    for cell in &all {
        acknowledges(&node, cell, START_LIMIT);
    }
    verify(&node, &all);
}

/// Whoever stops a node wants it to end well, and its cells wait for nothing but its lease.
#[test]
fn a_node_that_is_stopped_while_its_store_is_away_ends_in_time_and_loses_nothing() {
    const LONG: Duration = Duration::from_secs(120);
    let _machine = super::shared();
    // With cells or without, at the end of its time or of its lease.
    let stops = [(LONG, 3), (LONG, 0), (TTL, 3)].map(|(ttl, count)| {
        std::thread::spawn(move || ends_although_its_store_is_away(ttl, count))
    });
    for stop in stops {
        stop.join().expect("no panic");
    }
}

fn ends_although_its_store_is_away(ttl: Duration, count: usize) {
    const LIMIT: Duration = Duration::from_secs(9);
    let has_lease = ttl > LIMIT;
    let Some(stand) = Stand::new("a stop") else { return };
    let limit = format!("{}s", LIMIT.as_secs());
    let mut plan = stand.plan("n", ttl).flag("--drain-timeout", &limit);
    let mut node = plan.start();
    let all = cells(&node, "c", count);
    stand.proxy.outage(LIMIT * 60, Outage::Hang);
    if has_lease {
        // By then the node waits for an answer about the deployment.
        std::thread::sleep(Duration::from_secs(3));
    }
    node.terminate();
    let began = Instant::now();
    let status = node.wait_for_end(LIMIT + START_LIMIT);
    let (took, log) = (began.elapsed(), node.log());
    println!("{ttl:?}: ended after {took:?}");
    assert_eq!(status.code(), Some(0), "{log}");
    // The rest is for a busy machine; an answer of the store takes longer.
    assert!(took < LIMIT + Duration::from_secs(15), "{took:?}");
    assert_eq!(log.contains("the lease has ended"), !has_lease, "{log}");
    assert!(!log.contains("SELF-FENCE"), "{log}");
    assert_eq!(log.contains(&format!("{count} cells are left")), count > 0, "{log}");
    // The store itself is well.
    let store = Store::shared(Kind::Ministack).expect("it was there");
    let node = plan.variable("S3_ENDPOINT", store.endpoint()).start();
    for cell in &all {
        acknowledges(&node, cell, START_LIMIT);
    }
    verify(&node, &all);
}

#[test]
fn a_takeover_through_a_store_that_loses_and_delays_answers_has_one_winner() {
    let _machine = super::shared();
    let Some(stand) = Stand::new("the takeover") else { return };
    let plan = |name| stand.plan(name, TTL).flag("--internal-listen", "127.0.0.1:0");
    let (mut first, mut second) = (plan("first"), plan("second"));
    let mut owner = first.start();
    let all = cells(&owner, "c", 8);
    let other = second.start();
    // It reaches the owner.
    all.iter().for_each(|cell| acknowledges(&other, cell, START_LIMIT));
    let loads = [&owner, &other].map(|node| stand.load(node, &all));
    let faults = json!({
        "lose_response": 0.1, "late_write": "0.1,0.5", "cut": 0.05, "latency_ms": "5,5",
        "match": "/(nodes|cells)/",
    });
    stand.proxy.set(faults);
    std::thread::sleep(Duration::from_millis(500));
    owner.end();
    let killed = Instant::now();
    for cell in &all {
        acknowledges(&other, cell, START_LIMIT);
    }
    let took = killed.elapsed();
    // A session that knows nothing, beside the one that has all cells by now.
    std::fs::remove_dir_all(first.state()).expect("it was there");
    let owner = first.start();
    let load = stand.load(&owner, &all);
    std::thread::sleep(FAULT);
    stand.proxy.heal();
    let refusals = [load].into_iter().chain(loads).map(Load::end).map(|refused| refused.len());
    let refusals: usize = refusals.sum();
    let again = recovers(&other, &all);
    recovers(&owner, &all);
    println!("all taken over after {took:?}, {refusals} refused, {again:?} to go on");
    for log in [owner.kill(), other.kill()] {
        assert!(!log.contains("panicked") && !log.contains("SELF-FENCE"), "{log}");
    }
}

#[test]
fn merged_files_of_a_large_cell_go_in_parts_and_come_back_whole() {
    const BLOBS: u32 = 20;
    let _machine = super::shared();
    let Some(stand) = Stand::new("the parts") else { return };
    let mut plan = stand.plan("n", TTL);
    let node = plan.start();
    stand.proxy.set(json!({"cut": 0.2, "match": "partNumber="}));
    let completes = |request: &Request| {
        request.method == "POST" && request.status == 200 && request.query.contains("uploadId=")
    };
    let mut client = node.client();
    // Segments of more than a megabyte each; sixteen of them become one.
    for n in 1..=BLOBS {
        let path = format!("/large/blob?n={n}&bytes=1300000");
        client.ask("POST", &path).expect("an answer").good();
    }
    wait_for("a file in parts", START_LIMIT, || {
        stand.proxy.requests().iter().any(completes).then_some(())
    });
    stand.proxy.heal();
    let blobs = |node: &Node| {
        let mut client = node.client();
        let ask = |n| client.ask("GET", &format!("/large/blob?n={n}"));
        (1..=BLOBS).map(ask).map(|blob| blob.expect("an answer").good()).collect::<Vec<_>>()
    };
    let before = blobs(&node);
    node.kill();
    let after = blobs(&plan.start());
    assert!(before == after && before.iter().all(|blob| blob.len() == 1_300_000));
}

#[test]
fn a_node_does_not_start_on_a_store_that_cannot_fence() {
    let _machine = super::shared();
    let Some(stand) = Stand::new("the refusals") else { return };
    for (faults, rule) in [
        (json!({"ignore_conditions": "all"}), "a second create of the same object must be refused"),
        (json!({"racy_conditions": 300}), "at once, one must win"),
        (json!({"wrong_error": "minio"}), "must create an object that is not there"),
        (json!({"bad_range": "whole"}), "exactly the wanted bytes"),
        (json!({"stale_list": 1}), "a listing after a write must have it"),
    ] {
        stand.proxy.set(faults.clone());
        let mut node = stand.plan("n", TTL).spawn();
        let status = node.wait_for_end(Duration::from_secs(100));
        stand.proxy.heal();
        let log = node.log();
        assert!(status.code() == Some(1) && log.contains(rule), "{faults}: {status}\n{log}");
    }
}
