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
const TOLD: Duration = Duration::from_secs(30);

/// The record in which a node tells of its load with each renewal of its lease.
fn record(bucket: &Path, node: &str) -> Option<Value> {
    let text = fs::read(bucket.join(format!("nodes@/{node}.json"))).ok()?;
    serde_json::from_slice(&text).ok()
}

fn load(bucket: &Path, node: &str) -> Option<Value> {
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

#[test]
fn cells_leave_before_memory_is_full() {
    /// Bytes of a value, below the largest that a cell keeps.
    const VALUE: usize = 1_500_000;
    let _machine = super::alone();
    let site = Site::new();
    let node =
        site.node("n").flag("--memory-limit", "256MiB").flag("--idle-evict-ms", "600000").start();
    let cells = cells("w", 60);
    // 270 MB in all.
    let path = |cell: &Cell, n: usize| format!("/{}/blob?n={n}", cell.name);
    let mut client = node.client();
    for cell in &cells {
        write(&mut client, cell);
        for n in 0..3 {
            let path = format!("{}&bytes={VALUE}", path(cell, n));
            assert_eq!(client.ask("POST", &path).expect("an answer").good(), b"stored\n");
        }
    }
    // What it told before it was full says nothing: the next renewal but one began after this.
    let write = || record(site.bucket(), "n").and_then(|record| record["write"].as_u64());
    let full = wait_for("the record of a full node", TOLD, write);
    let told = wait_for("a node with room", TOLD, || {
        let load = (write()? >= full + 2).then(|| load(site.bucket(), "n"))??;
        let (bytes, max) = (load["memory_bytes"].as_u64()?, load["memory_max_bytes"].as_u64()?);
        (bytes <= max / 10 * 9 && load["cells"].as_u64()? < 60).then_some(load)
    });
    println!("{told}, at most {} MB of the process", node.peak_bytes() >> 20);
    // Some stay: it is not all that an allocator keeps that makes them leave.
    assert!(told["cells"].as_u64().expect("a number") >= 10, "{told}");
    for cell in &cells {
        cell.verify(&mut client);
        for n in 0..3 {
            let blob = client.ask("GET", &path(cell, n)).expect("an answer").good();
            assert_eq!(blob.len(), VALUE, "cell {}", cell.name);
        }
    }
    println!("at most {} MB of the process", node.peak_bytes() >> 20);
}
