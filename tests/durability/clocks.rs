//! Nodes whose wall clocks are an hour off: they agree about who owns what all the same, as nothing
//! is decided by the clock of another node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::fleet::{TTL, cells, meet, plan, write};
use super::support::node::{Plan, Site};
use super::support::wait_for;

/// What a takeover may take beyond the TTL on a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(20);

/// The library that puts a process's wall clock wrong. `None`: there is no compiler here.
pub(super) fn library(dir: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/skew.c");
    let built = dir.join("skew.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&built).arg(source);
    match compiler.status() {
        Ok(status) => {
            assert!(status.success(), "the library is not built: {status}");
            Some(built)
        }
        Err(error) => {
            eprintln!("skipped: `cc` does not start: {error}");
            None
        }
    }
}

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
