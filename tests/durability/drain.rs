//! Nodes that stop while they are asked: what runs finishes or is cut off in time, the cells are
//! served elsewhere at once, and nothing that was acknowledged is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fleet::{cells, meet, plan, write};
use super::load::{Cell, Load, NEXT};
use super::support::http::{Client, Response};
use super::support::node::{Node, Site};
use super::support::rng::Rng;
use super::support::wait_for;

/// What a busy machine may add to any time here.
const SLACK: Duration = Duration::from_secs(10);
/// A request for one row that takes so long never ends.
const NEVER: Duration = Duration::from_secs(3_600);

/// Sends a request for a row that comes after `wait`, and returns when the cell has it.
pub(super) fn begin_slow(at: &Node, cell: &Arc<Cell>, wait: Duration) -> Slow {
    let row = (98, NEXT.fetch_add(1, Ordering::Relaxed));
    cell.ledger().sends(row);
    let ms = wait.as_millis();
    let name = cell.name.clone();
    let path = format!("/{name}/slow?writer={}&seq={}&ms={ms}", row.0, row.1);
    let mut client = at.client();
    client.send("POST", &path).expect("a connection");
    let cell = cell.clone();
    let answer = std::thread::spawn(move || {
        let answer = client.receive().map_err(|error| error.to_string())?;
        if answer.status == 200 {
            let number = answer.text().parse().expect("the number of a row");
            cell.ledger().acknowledges(number, row);
        }
        Ok(answer)
    });
    let question = format!("/{name}/slow");
    wait_for("a request that runs", SLACK, || {
        let running = at.ask("GET", &question).good();
        (running != b"0").then_some(())
    });
    Slow(answer)
}

/// A request that runs.
pub(super) struct Slow(JoinHandle<Result<Response, String>>);

impl Slow {
    /// Waits for its answer.
    pub(super) fn end(self) -> Response {
        self.0.join().expect("no panic").expect("an answer")
    }
}

/// Two nodes that know each other, and cells that the first one owns.
fn pair(site: &Site, flags: &[(&str, &str)]) -> (Node, Node, Vec<Arc<Cell>>) {
    let first =
        flags.iter().fold(plan(site, "first"), |plan, (name, value)| plan.flag(name, value));
    let (first, second) = ({ first }.start(), plan(site, "second").start());
    let cells = cells("d", 8);
    for cell in &cells {
        write(&mut first.client(), cell);
        meet(&second, cell);
    }
    (first, second, cells)
}

fn terminate(node: &mut Node, limit: Duration) -> Duration {
    node.terminate();
    let begun = Instant::now();
    let status = node.wait_for_end(limit + SLACK);
    assert_eq!(status.code(), Some(0), "{}", node.log());
    begun.elapsed()
}

/// Nobody waits for the lease of the node that has left: it was given up.
fn assert_served_at_once(node: &Node, cells: &[Arc<Cell>]) {
    let left = Instant::now();
    for cell in cells {
        write(&mut node.client(), cell);
        cell.verify(&mut node.client());
    }
    assert!(left.elapsed() < Duration::from_secs(4) + SLACK, "{:?}", left.elapsed());
}

#[test]
fn requests_that_run_finish_while_their_node_stops() {
    let _machine = super::shared();
    let rng = Rng::from_environment("the stopping node");
    let site = Site::new();
    let (mut first, second, cells) = pair(&site, &[]);
    let load = Load::start(second.door(), &cells[2..], 4, 2, &rng);
    let here = begin_slow(&first, &cells[0], Duration::from_secs(4));
    let forwarded = begin_slow(&second, &cells[1], Duration::from_secs(4));
    let took = terminate(&mut first, Duration::from_secs(25));
    assert!(took > Duration::from_secs(2), "it has left them alone: {took:?}");
    assert!(took < Duration::from_secs(15), "it waits for what nobody runs: {took:?}");
    assert_eq!(here.end().status, 200);
    assert_eq!(forwarded.end().status, 200);
    let refusals = load.end();
    assert!(refusals.is_empty(), "{refusals:#?}");
    for cell in &cells {
        write(&mut second.client(), cell);
        cell.verify(&mut second.client());
    }
}

#[test]
fn a_request_that_never_ends_is_cut_off_in_time() {
    let _machine = super::shared();
    let site = Site::new();
    let (mut first, second, cells) = pair(&site, &[("--drain-timeout", "6s")]);
    let here = begin_slow(&first, &cells[0], NEVER);
    let forwarded = begin_slow(&second, &cells[1], NEVER);
    let took = terminate(&mut first, Duration::from_secs(6));
    assert!(took > Duration::from_secs(3), "it was cut off at once: {took:?}");
    let (here, forwarded) = (here.end(), forwarded.end());
    assert_eq!(here.status, 503, "{}", here.text());
    assert_eq!(forwarded.status, 503, "{}", forwarded.text());
    assert!(forwarded.text().contains("shutting down"), "{}", forwarded.text());
    assert!(first.log().contains("cut off"), "{}", first.log());
    assert_served_at_once(&second, &cells);
}

#[test]
fn javascript_that_computes_for_ever_is_ended_in_time() {
    let _machine = super::shared();
    let site = Site::new();
    let (mut first, second, cells) = pair(&site, &[("--shards", "1"), ("--drain-timeout", "6s")]);
    let mut client = first.client();
    client.send("POST", &format!("/{}/compute", cells[0].name)).expect("a connection");
    // Nothing else is answered by the only shard from then on.
    wait_for("a shard that computes", SLACK, || {
        let mut other = first.client();
        other.send("GET", "/").expect("a connection");
        let heard = other.hears_within(Duration::from_millis(500)).expect("a connection");
        (!heard).then_some(())
    });
    terminate(&mut first, Duration::from_secs(6));
    assert_ne!(client.receive().map(|answer| answer.status).unwrap_or(503), 200);
    assert_served_at_once(&second, &cells);
}

#[test]
fn a_cell_that_is_asked_all_the_time_leaves_all_the_same() {
    let _machine = super::shared();
    let site = Site::new();
    let (mut first, second, cells) = pair(&site, &[]);
    let (stop, cell) = (Arc::new(AtomicBool::new(false)), cells[0].clone());
    // Each request takes 30 ms, and eight are always with the owner.
    let askers: Vec<_> = (0..8)
        .map(|_| {
            let (stop, cell, address) = (stop.clone(), cell.clone(), second.address());
            std::thread::spawn(move || {
                let mut client = Client::connect(address).expect("a connection");
                while !stop.load(Ordering::Relaxed) {
                    let row = (97, NEXT.fetch_add(1, Ordering::Relaxed));
                    cell.ledger().sends(row);
                    let (writer, seq) = row;
                    let path = format!("/{}/slow?writer={writer}&seq={seq}&ms=30", cell.name);
                    let answer = client.ask("POST", &path).expect("an answer");
                    let text = answer.text();
                    assert_eq!(answer.status, 200, "{text}");
                    let number = text.parse().expect("the number of a row");
                    cell.ledger().acknowledges(number, row);
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    let took = terminate(&mut first, Duration::from_secs(25));
    // Without waiting until it is cut off.
    assert!(took < Duration::from_secs(15), "{took:?}");
    std::thread::sleep(Duration::from_millis(500));
    stop.store(true, Ordering::Relaxed);
    for asker in askers {
        asker.join().expect("no request failed");
    }
    cell.verify(&mut second.client());
}

#[test]
fn a_cell_that_a_stopping_node_owns_and_has_dropped_is_served_before_it_is_gone() {
    let _machine = super::shared();
    let site = Site::new();
    let (mut first, second, cells) = pair(&site, &[]);
    let slow = begin_slow(&first, &cells[0], Duration::from_secs(6));
    // The record still names the first node, and nobody else may take the cell.
    let aborted = first.ask("POST", &format!("/{}/abort", cells[1].name));
    assert_ne!(aborted.status, 200);
    first.terminate();
    let mut client = second.client();
    write(&mut client, &cells[1]);
    assert_eq!(first.try_end(), None, "it was to be busy still");
    assert_eq!(slow.end().status, 200);
    assert_eq!(first.wait_for_end(SLACK).code(), Some(0), "{}", first.log());
    cells[1].verify(&mut client);
}
