//! Large cells that come back from the bucket alone: complete, soon, and in little memory.

use std::fs;
use std::time::{Duration, Instant};

use crate::load::Cell;
use crate::restore::noise;
use crate::support::bucket::CellFiles;
use crate::support::node::{Node, Site};

#[test]
fn five_hundred_large_commits_eight_at_a_time_restore_complete() {
    const BLOBS: u32 = 500;
    const BYTES: usize = 250_000;
    let _machine = crate::alone();
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
    let _machine = crate::alone();
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
