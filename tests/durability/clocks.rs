//! Nodes whose wall clocks are an hour off: they agree about who owns what all the same, as nothing
//! is decided by the clock of another node.

use std::path::Path;
use std::time::{Duration, Instant};

use celld_stores::{Kind, Store};

use super::fleet::{TTL, cells, meet, plan, write};
use super::support::node::{Plan, Remote, Site};
use super::support::skew::library;
use super::support::wait_for;

/// What a takeover may take beyond the TTL on a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(20);

fn skewed(plan: Plan, library: &Path, seconds: i64) -> Plan {
    plan.variable("LD_PRELOAD", library).variable("SKEW_S", seconds.to_string())
}

#[test]
fn nodes_whose_clocks_are_an_hour_off_are_of_one_fleet() {
    let _machine = super::shared();
    let site = Site::new();
    let Some(library) = library(site.path()) else { return };
    let ahead = skewed(plan(&site, "ahead"), &library, 3_600).start();
    let behind = skewed(plan(&site, "behind"), &library, -3_600).start();
    let mut right = plan(&site, "right").start();
    // The clocks are as wrong as they should be: a record says when it was written.
    let written = |node: &str| {
        let text = std::fs::read(site.bucket().join(format!("nodes@/{node}.json"))).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&text).ok()?;
        record["written_ms"].as_i64()
    };
    let (early, late) = (written("behind").expect("a time"), written("ahead").expect("a time"));
    assert!((late - early - 7_200_000).abs() < 600_000, "{early} and {late}");

    let cells = cells("t", 9);
    let nodes = [&ahead, &behind, &right];
    for (n, cell) in cells.iter().enumerate() {
        write(&mut nodes[n % 3].client(), cell);
    }
    // For more than the life of a lease, each serves what it owns and reaches what the others own.
    let begun = Instant::now();
    for cell in &cells {
        nodes.iter().for_each(|node| meet(node, cell));
    }
    while begun.elapsed() < TTL * 3 / 2 {
        for cell in &cells {
            for node in nodes {
                write(&mut node.client(), cell);
            }
        }
    }
    right.end();
    for cell in &cells {
        for node in [&ahead, &behind] {
            let mut client = node.client();
            wait_for("a takeover", TTL + SLACK, || super::fleet::try_write(&mut client, cell).ok());
            cell.verify(&mut client);
        }
    }
}

#[test]
fn a_node_whose_clock_its_store_does_not_take_says_so_and_serves() {
    let _machine = super::shared();
    // It refuses signatures that are more than fifteen minutes off.
    let Some(store) = Store::shared(Kind::Seaweed) else { return };
    let site = Site::in_store(Remote::new(store.url("clock-off"), store.endpoint()));
    let Some(library) = library(site.path()) else { return };
    let node = skewed(plan(&site, "ahead"), &library, 3_600).start();
    let cell = &cells("off", 1)[0];
    write(&mut node.client(), cell);
    cell.verify(&mut node.client());
    let log = node.log();
    let told = log.lines().find(|line| line.contains("the clock of this machine and that of"));
    let told = told.unwrap_or_else(|| panic!("nothing is said of clocks:\n{log}"));
    for words in ["clock-off differ by -3", "is used for signatures", "set this machine's clock"] {
        assert!(told.contains(words), "{words:?} is not in {told:?}");
    }
}
