//! SIGKILL at any instant, again and again, and what the clients know must still be true.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::load::{Cell, Load};
use crate::support::node::Site;
use crate::support::rng::Rng;

const WRITERS: u64 = 16;
const READERS: u64 = 4;
/// Cells that are written to at a time.
const CELLS: usize = 4;
/// Rounds before fresh cells take over: so they stay small enough to be read whole each time.
const ROUNDS_OF_A_CELL: u64 = 8;
/// Rounds, unless `CELLD_TEST_KILL_ROUNDS` says another number.
const ROUNDS: u64 = 200;
/// A node that has lost its state directory waits for the lease of its earlier life.
const TTL_MS: &str = "4000";
/// The longest that a node lives before it is killed.
const LIFE_US_MAX: u64 = 400_000;

fn rounds() -> u64 {
    let given = std::env::var("CELLD_TEST_KILL_ROUNDS").ok();
    given.map_or(ROUNDS, |given| given.parse().expect("CELLD_TEST_KILL_ROUNDS is a number"))
}

/// Nodes that live and die side by side, as most of a round is the wait for a lease: two for each test
/// that would run at a time.
fn lanes() -> u64 {
    let given = std::env::var("RUST_TEST_THREADS").ok().and_then(|given| given.parse().ok());
    (2 * given.unwrap_or(2)).clamp(4, 10)
}

/// What a crash leaves of the state directory.
fn damage_state(state: &Path, round: u64, rng: &mut Rng) {
    match round % 3 {
        0 => {}
        1 => fs::remove_dir_all(state).expect("it was there"),
        _ => {
            for entry in fs::read_dir(state).expect("it was there").flatten() {
                if rng.below(2) == 0 && entry.path().is_file() {
                    fs::remove_file(entry.path()).expect("it was there");
                }
            }
        }
    }
}

#[test]
fn no_acknowledged_and_no_seen_write_is_lost_by_sigkill() {
    let _machine = crate::alone();
    let rng = Rng::from_environment("the rounds of SIGKILL");
    let lanes = lanes();
    let rounds = rounds().div_ceil(lanes);
    std::thread::scope(|scope| {
        for lane in 0..lanes {
            let rng = rng.fork(lane);
            scope.spawn(move || live_and_die(rounds, rng));
        }
    });
}

fn live_and_die(rounds: u64, mut rng: Rng) {
    let site = Site::new();
    let mut plan = site.node("n").variable("CELLD_TTL_MS", TTL_MS);
    let mut cells: Vec<Arc<Cell>> = Vec::new();
    let mut node = plan.start();
    for round in 0..rounds {
        if round % ROUNDS_OF_A_CELL == 0 {
            for index in 0..CELLS {
                cells.push(Cell::new(format!("r{round}c{index}")));
            }
        }
        let current = &cells[cells.len() - CELLS..];
        let load = Load::start(node.door(), current, WRITERS, READERS, &rng.fork(round));
        std::thread::sleep(Duration::from_micros(10_000 + rng.below(LIFE_US_MAX)));
        node.end();
        let refusals = load.end();
        let log = node.log();
        assert!(refusals.is_empty() && !log.contains("panicked"), "round {round}: {refusals:#?}");
        damage_state(plan.state(), round, &mut rng);
        if round % 5 == 4 {
            // Killed while it starts.
            let starting = plan.spawn();
            std::thread::sleep(Duration::from_micros(rng.below(60_000)));
            drop(starting);
        }
        node = plan.start();
        let mut client = node.client();
        for cell in current {
            cell.verify(&mut client);
        }
    }
    drop(node);
    let (mut acknowledged, mut seen, mut shown) = (0, 0, 0);
    fs::remove_dir_all(plan.state()).expect("it was there");
    let node = plan.start();
    let mut client = node.client();
    for cell in &cells {
        shown += cell.verify(&mut client);
        acknowledged += cell.ledger().acknowledged;
        seen += cell.ledger().seen;
    }
    println!("{rounds} rounds, {acknowledged} acknowledged, {seen} seen, {shown} rows");
    assert!(acknowledged > rounds * 10 && seen > rounds * 10, "the load was too small");
}
