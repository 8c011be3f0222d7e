//! Nodes that may have few cells in memory, or little memory: who rests makes room, who finds none
//! is told so, and nothing is lost.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::drain::begin_slow;
use super::fleet::{cells, meet, plan, write};
use super::load::{Cell, NEXT};
use super::support::node::{Node, Site};
use super::support::wait_for;

/// What the node says of its load within a third of the life of its lease.
pub const TOLD: Duration = Duration::from_secs(30);

/// The record in which a node tells of its load with each renewal of its lease.
pub fn record(bucket: &Path, node: &str) -> Option<Value> {
    let text = fs::read(bucket.join(format!("nodes@/{node}.json"))).ok()?;
    serde_json::from_slice(&text).ok()
}

pub fn load(bucket: &Path, node: &str) -> Option<Value> {
    Some(record(bucket, node)?["load"].clone())
}

/// A write that finds no room.
fn assert_refused(node: &Node, cell: &Cell) {
    let row = (96, NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    cell.ledger().sends(row);
    let path = format!("/{}/append?writer={}&seq={}", cell.name, row.0, row.1);
    let answer = node.ask("POST", &path);
    let text = answer.text();
    assert_eq!(answer.status, 503, "{text}");
    assert!(
        text.contains(r#""overloaded":true"#) && text.contains(r#""retryable":true"#),
        "{text}"
    );
}

#[test]
fn cells_that_rest_make_room_and_who_finds_none_is_told_so() {
    let _machine = super::shared();
    let site = Site::new();
    let node = site.node("n").flag("--shards", "1").flag("--max-resident-cells", "4").start();
    let cells = cells("m", 24);
    for _ in 0..2 {
        for cell in &cells {
            write(&mut node.client(), cell);
        }
    }
    wait_for("few cells", TOLD, || {
        let load = load(site.bucket(), "n")?;
        assert_eq!(load["cells_max"], 4);
        (load["cells"].as_u64()? <= 4).then_some(())
    });
    let working: Vec<_> =
        cells[..4].iter().map(|cell| begin_slow(&node, cell, Duration::from_secs(6))).collect();
    assert_refused(&node, &cells[4]);
    write(&mut node.client(), &cells[0]);
    for slow in working {
        assert_eq!(slow.end().status, 200);
    }
    for cell in &cells {
        write(&mut node.client(), cell);
        cell.verify(&mut node.client());
    }
}

#[test]
fn cells_that_find_no_room_are_placed_on_another_node() {
    let _machine = super::shared();
    let site = Site::new();
    let full = plan(&site, "full").flag("--shards", "1").flag("--max-resident-cells", "2").start();
    let other = plan(&site, "other").flag("--shards", "1").start();
    let cells = cells("p", 6);
    write(&mut other.client(), &cells[5]);
    meet(&full, &cells[5]);
    for cell in &cells[..2] {
        write(&mut full.client(), cell);
    }
    let working: Vec<_> =
        cells[..2].iter().map(|cell| begin_slow(&full, cell, Duration::from_secs(4))).collect();
    for cell in &cells[2..5] {
        write(&mut full.client(), cell);
        cell.verify(&mut other.client());
    }
    for slow in working {
        assert_eq!(slow.end().status, 200);
    }
}
