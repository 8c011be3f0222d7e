//! Fleets on hosts of their own under load: many claimants, a restart of all nodes in turn, and many
//! cells of which two of five nodes are killed.
//!
//! `CELLD_TEST_CELLS=10000` runs the last one at the size that the project promises; without it, it
//! is small enough for every run of the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::fleet::{meet, roll, rush, try_write};
use super::load::Cell;
use super::network::{Network, SLACK};
use super::support::node::{Node, start_all};
use super::support::{tell, wait_for};

/// Unless `CELLD_TEST_CELLS` says another number.
const CELLS: usize = 300;
/// Life of the leases: five nodes on a small machine must not miss a renewal in a rush.
const TTL: Duration = Duration::from_secs(15);
/// Requests under way at a time.
const CLIENTS: usize = 48;
/// All cells are written to within this time for each thousand, or the machine is too slow.
const PER_THOUSAND: Duration = Duration::from_secs(60);

fn number_of_cells() -> usize {
    let given = std::env::var("CELLD_TEST_CELLS").ok();
    given.map_or(CELLS, |given| given.parse().expect("CELLD_TEST_CELLS is a number"))
}

/// One row for each cell, through all nodes in turn, repeated until it is acknowledged. Returns how
/// long after `since` each was.
fn write_all(
    nodes: &[Node],
    cells: &[Arc<Cell>],
    since: Instant,
    limit: Duration,
) -> Vec<Duration> {
    let doors: Vec<_> = nodes.iter().map(Node::door).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (door, next) = (&doors[client % doors.len()], &next);
                scope.spawn(move || {
                    let mut client = door.connect().expect("a connection");
                    let mut took = Vec::new();
                    while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                        while let Err(why) = try_write(&mut client, cell) {
                            // Those that were with a node that died.
                            let is_clear = why.contains("owner_lost") || why.starts_with("503");
                            assert!(is_clear && since.elapsed() < limit, "{}: {why}", cell.name);
                        }
                        took.push(since.elapsed());
                    }
                    took
                })
            })
            .collect();
        let mut took: Vec<_> =
            clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect();
        took.sort();
        took
    })
}

#[test]
fn five_hundred_claimants_at_three_hosts_find_one_owner_for_each_cell() {
    let _machine = super::shared();
    let Some(network) = Network::new() else { return };
    rush(&start_all(["a", "b", "c"].map(|name| network.plan(name)).each_mut()));
}

#[test]
fn a_rolling_restart_of_three_hosts_fails_no_request_that_may_be_repeated() {
    let _machine = super::shared();
    let Some(network) = Network::new() else { return };
    roll(["a", "b", "c"].map(|name| network.plan(name)));
}

#[test]
fn all_cells_serve_again_after_two_of_five_nodes_are_killed() {
    let _machine = super::shared();
    let Some(network) = Network::new() else { return };
    let count = number_of_cells();
    let limit = TTL + SLACK + PER_THOUSAND * u32::try_from(count / 1_000 + 1).expect("not so many");
    // All cells stay in memory, so that all of the killed nodes' have to be taken over.
    let mut plans = ["a", "b", "c", "d", "e"].map(|name| {
        network
            .plan(name)
            .variable("CELLD_TTL_MS", TTL.as_millis().to_string())
            .flag("--shards", "1")
            .flag("--idle-evict-ms", "3600000")
    });
    let mut nodes = Vec::from(start_all(plans.each_mut()));
    let known = Cell::new("known".into());
    wait_for("a first cell", SLACK, || try_write(&mut nodes[0].client(), &known).ok());
    nodes.iter().for_each(|node| meet(node, &known));
    let cells: Vec<_> = (0..count).map(|n| Cell::new(format!("m{n}"))).collect();
    let made = write_all(&nodes, &cells, Instant::now(), limit);
    let resident = |nodes: &[Node]| nodes.iter().map(|node| node.peak_bytes() >> 20).max();

    nodes.drain(..2).for_each(|node| drop(node.kill()));
    let killed = Instant::now();
    let took = write_all(&nodes, &cells, killed, limit);
    let at = |permille: usize| took[(count * permille / 1_000).min(count - 1)].as_secs_f64();
    tell(&format!(
        "{count} cells, made in {:.1} s; 2 of 5 nodes killed; served again: 50 % after {:.1} s, 99 % \
         after {:.1} s, all after {:.1} s; a lease is {TTL:?}; at most {:?} MiB in a node",
        made[count - 1].as_secs_f64(),
        at(500),
        at(990),
        at(1_000),
        resident(&nodes).expect("three nodes"),
    ));
    let mut client = nodes[0].client();
    for cell in cells.iter().chain([&known]) {
        assert!(cell.verify(&mut client) >= 1, "cell {} lost its rows", cell.name);
    }
}
