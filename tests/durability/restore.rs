//! Cells that come back from the bucket alone, exactly as their clients left them.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ledger::rows;
use super::load::{Cell, NEXT};
use super::support::bucket::CellFiles;
use super::support::hold::Hold;
use super::support::http::Client;
use super::support::node::{Node, Site};

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
fn five_hundred_large_commits_eight_at_a_time_restore_complete() {
    const BLOBS: u32 = 500;
    const BYTES: usize = 250_000;
    let _machine = super::alone();
    let site = Site::new();
    let mut plan = site.node("n");
    let node = plan.start();
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let mut client = node.client();
            std::thread::spawn(move || {
                for n in (writer..BLOBS).step_by(8) {
                    let path = format!("/big/blob?n={n}&bytes={BYTES}");
                    client.ask("POST", &path).expect("an answer").good();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().expect("every blob is acknowledged");
    }
    node.kill();
    fs::remove_dir_all(plan.state()).expect("it was there");
    let node = plan.start();
    let mut client = node.client();
    for n in 0..BLOBS {
        let blob = client.ask("GET", &format!("/big/blob?n={n}")).expect("an answer").good();
        assert!(blob == noise(n, BYTES), "blob {n} came back changed, {} bytes", blob.len());
    }
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

/// How long the cell took to come back, and what the process used for it.
fn wake(node: &Node, cell: &Cell) -> (Duration, u64) {
    let mut client = node.client();
    let started = Instant::now();
    client.ask("GET", &format!("/{}/id", cell.name)).expect("an answer").good();
    (started.elapsed(), node.peak_bytes())
}

#[test]
fn forty_thousand_small_commits_restore_soon_and_in_little_memory() {
    const COMMITS: u64 = 40_000;
    const WRITERS: u64 = 16;
    /// Commits of one request.
    const BATCH: u64 = 50;
    let _machine = super::alone();
    let site = Site::new();
    let mut plan = site.node("n");
    let node = plan.start();
    let idle_bytes = node.peak_bytes();
    let cell = Cell::new("c".into());
    let started = Instant::now();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (mut client, cell) = (node.client(), cell.clone());
            std::thread::spawn(move || {
                for from in (0..COMMITS / WRITERS).step_by(BATCH as usize) {
                    let rows = (from..from + BATCH).map(|seq| (writer, seq));
                    rows.clone().for_each(|row| cell.ledger().sends(row));
                    let path =
                        format!("/{}/many?writer={writer}&from={from}&count={BATCH}", cell.name);
                    let answer = client.ask("POST", &path).expect("an answer").good();
                    let text = String::from_utf8(answer).expect("numbers");
                    let numbers: Vec<_> =
                        text.lines().map(|n| n.parse().expect("a number")).collect();
                    assert_eq!(numbers.len(), BATCH as usize);
                    numbers
                        .into_iter()
                        .zip(rows)
                        .for_each(|(n, row)| cell.ledger().acknowledges(n, row));
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().expect("every row is acknowledged");
    }
    let wrote = started.elapsed();
    let files = CellFiles::of(site.bucket(), &mut node.client(), &cell.name).ltx().len();
    node.kill();
    fs::remove_dir_all(plan.state()).expect("it was there");
    let node = plan.start();
    let (took, peak) = wake(&node, &cell);
    println!(
        "{COMMITS} commits in {wrote:?}, {files} files; restored in {took:?}, \
         {} MiB more than an idle node",
        peak.saturating_sub(idle_bytes) >> 20
    );
    assert!(took < Duration::from_secs(10), "the restore took {took:?}");
    assert!(peak < idle_bytes + (64 << 20), "{peak} bytes, an idle node has {idle_bytes}");
    assert_eq!(cell.verify(&mut node.client()), COMMITS as usize);
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
