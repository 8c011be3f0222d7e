//! Cells that come back from the bucket alone, exactly as their clients left them.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ledger::rows;
use super::load::{Cell, NEXT};
use super::support::bucket::CellFiles;
use super::support::hold::Hold;
use super::support::http::Client;
use super::support::node::Site;

/// Writes `count` rows, one after the other.
fn write(client: &mut Client, cell: &Cell, count: u64) {
    for _ in 0..count {
        let row = (0, NEXT.fetch_add(1, Ordering::Relaxed));
        cell.ledger().sends(row);
        let number = super::ledger::append(client, &cell.name, row).expect("an acknowledgement");
        cell.ledger().acknowledges(number, row);
    }
}

/// What `noise` of the Worker computes.
pub(super) fn noise(seed: u32, bytes: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2_654_435_761).max(1);
    let mut made = Vec::with_capacity(bytes + 4);
    while made.len() < bytes {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        made.extend_from_slice(&x.to_le_bytes());
    }
    made.truncate(bytes);
    made
}

#[test]
fn evict_wake_write_less_evict_wipe_restore_is_exact() {
    let _machine = super::shared();
    let site = Site::new();
    let mut plan = site.node("n").flag("--idle-evict-ms", "100");
    let node = plan.start();
    let mut client = node.client();
    let cell = Cell::new("c".into());
    write(&mut client, &cell, 40);
    let files = CellFiles::of(site.bucket(), &mut client, &cell.name);
    files.wait_until_released();
    write(&mut client, &cell, 3);
    assert_eq!(cell.verify(&mut client), 43);
    files.wait_until_released();
    let base = files.read_record()["base"].clone();
    node.kill();
    fs::remove_dir_all(plan.state()).expect("it was there");
    let node = plan.start();
    let mut client = node.client();
    assert_eq!(cell.verify(&mut client), 43);
    assert!(base["epoch"].as_u64() >= Some(3), "the cell was not evicted twice: {base}");
    // Nothing was written in this life: the next one begins at the same commit.
    files.wait_until_released();
    assert_eq!(files.read_record()["base"]["txid"], base["txid"]);
    write(&mut client, &cell, 1);
    assert_eq!(cell.verify(&mut client), 44);
}

#[test]
fn an_unfinished_cursor_blocks_no_writer() {
    let _machine = super::shared();
    let site = Site::new();
    let mut plan = site.node("n");
    let node = plan.start();
    let mut client = node.client();
    let cell: Arc<Cell> = Cell::new("c".into());
    write(&mut client, &cell, 10);
    let first = rows(&mut client, "c", 0).expect("rows")[0];
    let line = |(n, (writer, seq)): (u64, (u64, u64))| format!("{n} {writer} {seq}");
    assert_eq!(client.ask("POST", "/c/cursor").expect("an answer").text(), line(first));
    // Acknowledged while it is open, by this client and by others.
    write(&mut client, &cell, 5);
    write(&mut node.client(), &cell, 5);
    let second = rows(&mut client, "c", 0).expect("rows")[1];
    assert_eq!(client.ask("POST", "/c/cursor/next").expect("an answer").text(), line(second));
    node.kill();
    let node = plan.start();
    assert_eq!(cell.verify(&mut node.client()), 20);
}

/// What the tests of SIGKILL would say of a product, or a disk, that breaks its promise.
#[test]
fn acknowledged_writes_that_no_disk_has_are_noticed() {
    let _machine = super::shared();
    let site = Site::new();
    let hold = Hold::build(site.path());
    let mut plan = hold.load_into(site.node("n"), "/ltx@/");
    let node = plan.start();
    let mut client = node.client();
    let cell = Cell::new("c".into());
    write(&mut client, &cell, 5);
    hold.lose();
    write(&mut client, &cell, 3);
    assert_eq!(cell.verify(&mut client), 8, "in memory they are there");
    node.kill();
    let node = plan.start();
    let shown = rows(&mut node.client(), "c", 0).expect("what is left has no gap");
    let wrong = cell.ledger().check(&shown);
    let lost: Vec<_> = wrong.iter().filter(|line| line.ends_with("is lost")).collect();
    assert_eq!((shown.len(), lost.len()), (5, 3), "{wrong:?}");
}

#[test]
fn a_file_that_vanished_is_noticed() {
    let _machine = super::shared();
    let site = Site::new();
    let mut plan = site.node("n").flag("--idle-evict-ms", "100");
    let node = plan.start();
    let mut client = node.client();
    let last = |files: &CellFiles| files.ltx().pop().expect("files");
    let make = |name: &str, client: &mut Client| {
        let cell = Cell::new(name.into());
        write(client, &cell, 12);
        let files = CellFiles::of(site.bucket(), client, name);
        (cell, files)
    };
    let (_middle, middle_files) = make("middle", &mut client);
    let (_end, end_files) = make("end", &mut client);
    middle_files.wait_until_released();
    end_files.wait_until_released();
    let (crashed, crashed_files) = make("crashed", &mut client);
    node.kill();
    let from_middle = middle_files.ltx();
    fs::remove_file(&from_middle[from_middle.len() / 2]).expect("a file");
    fs::remove_file(last(&end_files)).expect("a file");
    fs::remove_file(last(&crashed_files)).expect("a file");
    let node = plan.start();
    let mut client = node.client();
    // What the node can know, it says.
    for cell in ["middle", "end"] {
        let error = rows(&mut client, cell, 0).expect_err("a file is missing");
        assert!(error.starts_with("50"), "{error}");
        assert!(node.log().contains("cannot be"), "{}", node.log());
    }
    // The last file of a crash no store may lose; this one did, and the clients' ledger notices.
    match rows(&mut client, "crashed", 0) {
        Ok(shown) => {
            let wrong = crashed.ledger().check(&shown);
            assert!(wrong.iter().any(|line| line.ends_with("is lost")), "{wrong:?}");
        }
        Err(error) => assert!(error.starts_with("50"), "{error}"),
    }
}
