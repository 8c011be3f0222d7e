//! `celld cell evict`, `move` and `purge`: also while requests arrive, and with a ledger of what was
//! acknowledged.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::ledger::{append, rows};
use super::load::{Cell, Load, NEXT};
use super::support::bucket::CellFiles;
use super::support::http::Client;
use super::support::node::{Node, Site};
use super::support::rng::Rng;
use super::{MEETING, operate, plan, shown, wait_for};

fn write(at: &Node, cell: &Cell) -> u64 {
    let row = (99, NEXT.fetch_add(1, Ordering::Relaxed));
    cell.ledger().sends(row);
    let number = append(&mut at.client(), &cell.name, row).expect("acknowledged");
    cell.ledger().acknowledges(number, row);
    number
}

/// Waits until a node reaches the owner of a cell.
fn meet(node: &Node, cell: &str) {
    let mut client = node.client();
    wait_for("a node that knows the others", MEETING, || rows(&mut client, cell, 0).ok());
}

/// Two nodes that know each other, and cells of the first.
fn pair(site: &Site, count: usize) -> (Node, Node, Vec<Arc<Cell>>) {
    let (first, second) = (plan(site, "first").start(), plan(site, "second").start());
    let cells: Vec<_> = (0..count).map(|n| Cell::new(format!("o{n}"))).collect();
    for cell in &cells {
        write(&first, cell);
        meet(&second, &cell.name);
    }
    // The second one is known to the first, too.
    let known = Cell::new("known".to_owned());
    write(&second, &known);
    meet(&first, &known.name);
    (first, second, cells)
}

fn owner(site: &Site, cell: &Cell) -> serde_json::Value {
    shown(site, &format!("ledger.Cell --name {}", cell.name))["node"].clone()
}

#[test]
fn an_evicted_cell_is_nobodys_and_the_next_request_brings_it_back() {
    let site = Site::new();
    let node = plan(&site, "first").flag("--idle-evict-ms", "86400000").start();
    let cell = Cell::new("rest".to_owned());
    write(&node, &cell);
    let evict = "cell evict ledger.Cell --name rest";
    assert!(operate(&site, evict).err.contains("node first has given the cell"));
    let record = shown(&site, "ledger.Cell --name rest");
    assert_eq!((&record["node"], &record["memory"]), (&().into(), &().into()), "{record}");
    assert!(operate(&site, evict).err.contains("rests already"));
    write(&node, &cell);
    let again = shown(&site, "ledger.Cell --name rest");
    assert!(again["epoch"].as_u64() > record["epoch"].as_u64(), "{again}");
    cell.verify(&mut node.client());
    operate(&site, "cell evict ledger.Cell --name nobody").failed(1, &["there is no cell"]);
}

#[test]
fn a_busy_cell_is_not_evicted_and_goes_on() {
    let site = Site::of("operated");
    let node = plan(&site, "first").start();
    node.ask("POST", "/busy/add").good();
    let mut slow = node.client();
    slow.send("POST", "/busy/slow?ms=30000").expect("sent");
    wait_for("a request that runs", MEETING, || {
        let cell = shown(&site, "operated.Cell --name busy");
        (cell["memory"]["events"] == 1).then_some(())
    });
    let began = Instant::now();
    let refused = operate(&site, "cell evict operated.Cell --name busy");
    refused.failed(1, &["node first refused", "busy", "goes on as before", "(cell_busy)"]);
    assert!(began.elapsed() > Duration::from_secs(9), "it had its time");
    // It has lost nothing, and takes requests again.
    let added = node.ask("POST", "/busy/add").text();
    let mut counts = [added, slow.receive().expect("an answer").text()];
    counts.sort();
    assert_eq!(counts, ["2", "3"]);
    operate(&site, "cell evict operated.Cell --name busy").good();
    assert_eq!(node.ask("GET", "/busy/count").text(), "3");
}

#[test]
fn cells_move_to_and_fro_under_load_and_lose_nothing() {
    let rng = Rng::from_environment("the moved cells");
    let site = Site::new();
    let (first, second, cells) = pair(&site, 3);
    let at_first = Load::start(first.door(), &cells, 4, 1, &rng.fork(1));
    let at_second = Load::start(second.door(), &cells, 4, 1, &rng.fork(2));
    for round in 0..4 {
        let to = if round % 2 == 0 { "second" } else { "first" };
        for cell in &cells {
            let name = &cell.name;
            let moved = operate(&site, &format!("cell move ledger.Cell {to} --name {name}"));
            assert!(moved.err.contains(&format!("node {to} has the cell")), "{}", moved.err);
            moved.good();
            assert_eq!(owner(&site, cell), to, "{name}");
        }
        let evicted = operate(&site, &format!("cell evict ledger.Cell --name {}", cells[0].name));
        evicted.good();
    }
    let refused = [at_first.end(), at_second.end()].concat();
    assert!(refused.is_empty(), "{refused:#?}");
    for cell in &cells {
        assert!(cell.verify(&mut first.client()) > 20, "the load was too small");
        cell.verify(&mut second.client());
    }
}

#[test]
fn a_cell_goes_only_where_somebody_takes_it() {
    let site = Site::new();
    let (first, mut second, cells) = pair(&site, 1);
    let name = &cells[0].name;
    let line = |to: &str| format!("cell move ledger.Cell {to} --name {name}");
    operate(&site, &line("nobody")).failed(1, &["there is no lease of a node nobody"]);
    operate(&site, &line("No-Name")).failed(2, &["No-Name"]);
    // Where it is already, it stays.
    let epoch = shown(&site, &format!("ledger.Cell --name {name}"))["epoch"].clone();
    operate(&site, &line("first")).good();
    assert_eq!(shown(&site, &format!("ledger.Cell --name {name}"))["epoch"], epoch);
    // What nobody owns is taken, too.
    operate(&site, &format!("cell evict ledger.Cell --name {name}")).good();
    operate(&site, &line("second")).good();
    assert_eq!(owner(&site, &cells[0]), "second");
    operate(&site, &line("first")).good();
    second.end();
    operate(&site, &line("second")).failed(1, &["node second"]);
    assert_eq!(owner(&site, &cells[0]), "first");
    write(&first, &cells[0]);
    cells[0].verify(&mut first.client());
}

/// The files of a cell whose epoch is this one or an earlier one.
fn old_files(files: &CellFiles, epoch: u64) -> Vec<PathBuf> {
    let is_old = |path: &PathBuf| {
        let text = path.to_string_lossy();
        let (_, rest) = text.split_once("/ltx@/e").expect("a file of the cell");
        u64::from_str_radix(&rest[..16], 16).expect("an epoch") <= epoch
    };
    files.ltx().into_iter().filter(is_old).collect()
}

#[test]
fn what_was_purged_is_gone_and_does_not_come_back() {
    let site = Site::new();
    let (first, second, cells) = pair(&site, 2);
    let files: Vec<_> = cells
        .iter()
        .map(|cell| CellFiles::of(site.bucket(), &mut first.client(), &cell.name))
        .collect();
    for cell in &cells {
        for _ in 0..20 {
            write(&first, cell);
        }
    }
    let line = |cell: &Cell| format!("cell purge ledger.Cell --name {}", cell.name);
    operate(&site, &line(&cells[0])).failed(2, &["for good", "--yes"]);
    assert_eq!(cells[0].verify(&mut first.client()), 21);
    // One that its owner has in memory, and one that nobody owns.
    operate(&site, &format!("cell evict ledger.Cell --name {}", cells[1].name)).good();
    for (cell, files) in cells.iter().zip(&files) {
        let before = files.read_record();
        let done = operate(&site, &format!("{} --yes", line(cell))).json();
        assert!(done["files"].as_u64() > Some(0) && done["bytes"].as_u64() > Some(1_000), "{done}");
        let epoch = done["epoch"].as_u64().expect("an epoch");
        assert!(epoch >= before["epoch"].as_u64().expect("an epoch"), "{done} after {before}");
        assert!(files.ltx().is_empty(), "{:?}", files.ltx());
        let record = files.read_record();
        assert_eq!((&record["node"], &record["epoch"]), (&"".into(), &epoch.into()));
    }
    for (cell, files) in cells.iter().zip(&files) {
        let purged = files.read_record()["epoch"].as_u64().expect("an epoch");
        // What a stale owner uploads late counts for nobody.
        let late = files.record().with_file_name("ltx@").join(format!("e{purged:016x}@/0@"));
        fs::create_dir_all(&late).expect("a directory");
        fs::write(late.join("0000000000000001-0000000000000005.ltx"), b"rubbish").expect("written");
        assert_eq!(rows(&mut second.client(), &cell.name, 0), Ok(vec![]), "{}", cell.name);
        assert!(files.read_record()["epoch"].as_u64() > Some(purged));
        let row = (7, NEXT.fetch_add(1, Ordering::Relaxed));
        assert_eq!(append(&mut first.client(), &cell.name, row), Ok(1), "it begins anew");
        // Another purge finds what was late.
        let again = operate(&site, &format!("{} --yes", line(cell))).json();
        assert!(again["files"].as_u64() >= Some(2), "{again}");
        assert_eq!(rows(&mut second.client(), &cell.name, 0), Ok(vec![]));
    }
    operate(&site, "cell purge ledger.Cell --name nobody --yes").failed(1, &["there is no cell"]);
}

#[test]
fn a_purge_among_requests_leaves_none_of_what_was_there_before() {
    let site = Site::new();
    let (first, second, cells) = pair(&site, 1);
    let cell = &cells[0];
    let files = CellFiles::of(site.bucket(), &mut first.client(), &cell.name);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..6_u64)
        .map(|writer| {
            let address = if writer % 2 == 0 { first.address() } else { second.address() };
            let (stop, name) = (stop.clone(), cell.name.clone());
            std::thread::spawn(move || {
                let mut client = Client::connect(address).expect("a connection");
                // Sent before a purge began and after: each writer's numbers grow.
                let mut acknowledged = Vec::new();
                for seq in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let begun = Instant::now();
                    match append(&mut client, &name, (writer, seq)) {
                        Ok(_) => acknowledged.push((seq, begun, Instant::now())),
                        Err((status, text)) => panic!("{status:?}: {text}"),
                    }
                }
                acknowledged
            })
        })
        .collect();
    let mut purges = Vec::new();
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        let line = format!("cell purge ledger.Cell --name {} --yes", cell.name);
        let done = operate(&site, &line).json();
        purges.push((begun, Instant::now()));
        let old = old_files(&files, done["epoch"].as_u64().expect("an epoch"));
        assert!(old.is_empty(), "{old:?}");
    }
    std::thread::sleep(Duration::from_millis(300));
    stop.store(true, Ordering::Relaxed);
    let sent: Vec<_> = writers.into_iter().map(|writer| writer.join().expect("no error")).collect();
    let shown = rows(&mut second.client(), &cell.name, 0).expect("rows");
    let (begun, ended) = *purges.last().expect("some");
    for (at, (number, (writer, seq))) in (1..).zip(&shown) {
        assert_eq!(*number, at, "numbers of the new life, without a gap");
        let (_, _, acknowledged) = sent[*writer as usize][*seq as usize];
        assert!(acknowledged > begun, "row {number} was there before the last purge");
    }
    // And what was sent after it is there.
    for (writer, rows) in sent.iter().enumerate() {
        for (seq, sent_at, _) in rows.iter().filter(|(_, sent_at, _)| *sent_at > ended) {
            let row = (writer as u64, *seq);
            assert!(
                shown.iter().any(|(_, shown)| *shown == row),
                "{row:?}, {:?} after it",
                *sent_at - ended
            );
        }
    }
    assert!(shown.len() > 10, "the load was too small");
}

#[test]
fn a_cell_that_cannot_come_into_memory_is_purged_all_the_same() {
    let site = Site::of("operated");
    let node = plan(&site, "first").start();
    node.ask("GET", "/unborn").good();
    operate(&site, "cell evict operated.Unborn --name unborn").good();
    // Its constructor throws.
    assert_eq!(node.ask("GET", "/unborn").status, 500);
    operate(&site, "cell purge operated.Unborn --name unborn --yes").good();
    node.ask("GET", "/unborn").good();
    // Its file is damaged.
    node.ask("POST", "/torn/add").good();
    operate(&site, "cell evict operated.Cell --name torn").good();
    let cell = shown(&site, "operated.Cell --name torn");
    let (namespace, id) =
        cell["cell"].as_str().and_then(|cell| cell.split_once('/')).expect("an id");
    let dir = site.bucket().join(format!("cells@/{namespace}@/{id}@/ltx@"));
    damage(&dir);
    assert_eq!(node.ask("GET", "/torn/count").status, 500);
    operate(&site, "cell purge operated.Cell --name torn --yes").good();
    assert_eq!(node.ask("POST", "/torn/add").text(), "1");
}

/// Cuts every file below a directory.
fn damage(dir: &std::path::Path) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        if entry.path().is_dir() {
            damage(&entry.path());
        } else {
            fs::write(entry.path(), b"LTX1").expect("written");
        }
    }
}

#[test]
fn a_purge_cuts_off_what_does_not_end() {
    let site = Site::of("operated");
    let node = plan(&site, "first").start();
    node.ask("POST", "/endless/add").good();
    let mut slow = node.client();
    slow.send("POST", "/endless/slow?ms=3600000").expect("sent");
    wait_for("a request that runs", MEETING, || {
        let cell = shown(&site, "operated.Cell --name endless");
        (cell["memory"]["events"] == 1).then_some(())
    });
    operate(&site, "cell purge operated.Cell --name endless --yes").good();
    let cut = slow.receive().expect("an answer");
    assert!(cut.status == 500 && cut.text().contains("purged"), "{}: {}", cut.status, cut.text());
    assert_eq!(node.ask("GET", "/endless/count").text(), "0");
}
