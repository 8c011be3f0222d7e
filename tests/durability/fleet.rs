//! Several nodes that reach each other: any request may enter at any of them, whoever owns the
//! cell, and whoever dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ledger::{append, rows};
use super::load::{Cell, Load, NEXT};
use super::support::bucket::CellFiles;
use super::support::http::Client;
use super::support::node::{Node, Plan, Site, start_all};
use super::support::rng::Rng;
use super::support::wait_for;

/// Life of the leases: short enough to wait for, long enough for a busy machine to renew in time.
pub(super) const TTL: Duration = Duration::from_secs(6);
/// What a takeover may take beyond the TTL on a machine that is busy with other tests; on a calm
/// one it is below 2 s (`bench takeover` measures it).
const SLACK: Duration = Duration::from_secs(20);
/// Leases of all nodes have been seen by then.
const MEETING: Duration = Duration::from_secs(15);

pub(super) fn plan(site: &Site, name: &str) -> Plan {
    site.node(name)
        .variable("CELLD_TTL_MS", TTL.as_millis().to_string())
        .flag("--internal-listen", "127.0.0.1:0")
}

pub(super) fn cells(names: &str, count: usize) -> Vec<Arc<Cell>> {
    (0..count).map(|n| Cell::new(format!("{names}{n}"))).collect()
}

/// One row, if it is acknowledged.
pub(super) fn try_write(client: &mut Client, cell: &Cell) -> Result<(), String> {
    let row = (99, NEXT.fetch_add(1, Ordering::Relaxed));
    cell.ledger().sends(row);
    let number = append(client, &cell.name, row).map_err(|(status, text)| {
        let status = status.map_or("the connection broke".to_owned(), |status| status.to_string());
        format!("{status}: {text}")
    })?;
    cell.ledger().acknowledges(number, row);
    Ok(())
}

/// One row, which must be acknowledged.
pub(super) fn write(client: &mut Client, cell: &Cell) {
    try_write(client, cell)
        .unwrap_or_else(|why| panic!("cell {}: not acknowledged: {why}", cell.name));
}

/// Waits until a node reaches the owner of a cell: it learns of the others within a moment.
pub(super) fn meet(node: &Node, cell: &Cell) {
    let mut client = node.client();
    wait_for("a node that knows the others", MEETING, || rows(&mut client, &cell.name, 0).ok());
}

#[test]
fn a_request_may_enter_at_any_node() {
    let _machine = super::shared();
    let site = Site::new();
    let first = plan(&site, "first").start();
    let second = plan(&site, "second").start();
    let (mut at_first, mut at_second) = (first.client(), second.client());
    let cells = cells("c", 4);
    for cell in &cells[..2] {
        write(&mut at_first, cell);
    }
    for cell in &cells[2..] {
        write(&mut at_second, cell);
    }
    for cell in &cells {
        meet(&first, cell);
        meet(&second, cell);
        for _ in 0..20 {
            write(&mut at_first, cell);
            write(&mut at_second, cell);
        }
        cell.verify(&mut at_first);
        cell.verify(&mut at_second);
    }
    // What is long arrives whole, in both directions.
    let name = &cells[0].name;
    let noise = "/blob?n=7&bytes=1500000";
    let stored = at_second.ask("POST", &format!("/{name}{noise}")).expect("an answer").good();
    assert_eq!(stored, b"stored\n");
    let from_first = at_first.ask("GET", &format!("/{name}/blob?n=7")).expect("an answer").good();
    let from_second = at_second.ask("GET", &format!("/{name}/blob?n=7")).expect("an answer").good();
    assert!(from_first.len() == 1_500_000 && from_first == from_second);
    let missing = at_second.ask("GET", &format!("/{name}/blob?n=8")).expect("an answer");
    assert_eq!((missing.status, missing.text().as_str()), (404, "no such blob"));
}

#[test]
fn an_owner_that_is_killed_is_replaced_and_its_clients_wait_at_another_node() {
    let _machine = super::shared();
    let rng = Rng::from_environment("the killed owner");
    let site = Site::new();
    let mut owner = plan(&site, "owner").start();
    let other = plan(&site, "other").start();
    let cells = cells("k", 6);
    for cell in &cells {
        write(&mut owner.client(), cell);
        meet(&other, cell);
    }
    // All load enters at the node that lives, and is forwarded.
    let load = Load::start(other.door(), &cells, 8, 2, &rng);
    std::thread::sleep(Duration::from_millis(700));
    owner.end();
    let killed = Instant::now();
    let mut client = other.client();
    for cell in &cells {
        // One that has run nowhere waits at the node for the takeover.
        while let Err(why) = try_write(&mut client, cell) {
            assert!(why.contains("owner_lost") && killed.elapsed() < TTL, "{}: {why}", cell.name);
        }
        assert!(killed.elapsed() < TTL + SLACK, "{:?}", killed.elapsed());
    }
    let refusals = load.end();
    // Those that were with the owner when it died, and no others: few for each client.
    assert!(refusals.len() <= 30, "{refusals:#?}");
    assert!(refusals.iter().all(|text| text.contains("owner_lost")), "{refusals:#?}");
    for cell in &cells {
        cell.verify(&mut client);
    }
}

#[test]
fn an_owner_that_stands_still_keeps_its_cells_from_nobody() {
    let _machine = super::shared();
    let site = Site::new();
    let mut owner = plan(&site, "still").start();
    let other = plan(&site, "moving").start();
    let cells = cells("f", 3);
    for cell in &cells {
        write(&mut owner.client(), cell);
        meet(&other, cell);
    }
    owner.freeze();
    let frozen = Instant::now();
    for cell in &cells {
        // A request that the frozen node has taken may run when it wakes: its client is told so, or
        // waits. Another one, after the lease, is served by the other node.
        let mut client = other.client();
        wait_for("a takeover", TTL + SLACK, || try_write(&mut client, cell).ok());
    }
    assert!(frozen.elapsed() > TTL / 2, "its lease was still good");
    owner.thaw();
    let status = owner.wait_for_end(TTL);
    assert_eq!(status.code(), Some(3), "{}", owner.log());
    let mut client = other.client();
    for cell in &cells {
        cell.verify(&mut client);
        write(&mut client, cell);
    }
}

#[test]
fn five_hundred_claimants_of_ten_cells_find_one_owner_each() {
    let _machine = super::shared();
    let site = Site::new();
    rush(&start_all(["n0", "n1", "n2"].map(|name| plan(&site, name)).each_mut()));
}

/// Five hundred clients ask three nodes for the same ten new cells.
pub(super) fn rush(nodes: &[Node; 3]) {
    let cells = cells("x", 10);
    let doors = nodes.each_ref().map(Node::door);
    // The nodes know each other before the rush, as in a fleet that runs.
    let known = Cell::new("known".into());
    write(&mut nodes[0].client(), &known);
    nodes.iter().for_each(|node| meet(node, &known));
    std::thread::scope(|scope| {
        for claimant in 0..500_usize {
            let (cell, door) = (&cells[claimant % 10], &doors[claimant % 3]);
            scope.spawn(move || write(&mut door.connect().expect("a connection"), cell));
        }
    });
    for cell in &cells {
        for node in nodes {
            assert_eq!(cell.verify(&mut node.client()), 50, "cell {}", cell.name);
        }
    }
}

#[test]
fn a_rolling_restart_fails_no_request_that_may_be_repeated() {
    let _machine = super::shared();
    let site = Site::new();
    roll(["r0", "r1", "r2"].map(|name| plan(&site, name)));
}

/// Restarts three nodes in turn, under load.
pub(super) fn roll(mut plans: [Plan; 3]) {
    let mut nodes = start_all(plans.each_mut());
    let cells = cells("s", 12);
    for (n, cell) in cells.iter().enumerate() {
        write(&mut nodes[n % 3].client(), cell);
    }
    for cell in &cells {
        nodes.iter().for_each(|node| meet(node, cell));
    }
    for turn in 0..3 {
        // Reads may be repeated. They enter at the nodes that stay.
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicU64::new(0));
        let readers: Vec<_> = (0..6)
            .map(|n| {
                let door = nodes[(turn + 1 + n % 2) % 3].door();
                let (stop, answered) = (stop.clone(), answered.clone());
                let cells = cells.clone();
                std::thread::spawn(move || {
                    let mut client = door.connect().expect("a connection");
                    for cell in cells.iter().cycle() {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let shown = rows(&mut client, &cell.name, 0);
                        let shown = shown.unwrap_or_else(|why| panic!("{}: {why}", cell.name));
                        cell.ledger().sees(&shown);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        nodes[turn].terminate();
        let status = nodes[turn].wait_for_end(Duration::from_secs(40));
        assert_eq!(status.code(), Some(0), "{}", nodes[turn].log());
        nodes[turn] = plans[turn].start();
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().expect("no read failed");
        }
        assert!(answered.load(Ordering::Relaxed) > 50, "the load was too small");
        for cell in &cells {
            nodes.iter().for_each(|node| meet(node, cell));
            write(&mut nodes[turn].client(), cell);
        }
    }
    for cell in &cells {
        cell.verify(&mut nodes[0].client());
    }
}

#[test]
fn a_third_node_that_joins_takes_its_share_of_the_cells() {
    let _machine = super::shared();
    let site = Site::new();
    let old = ["old", "older"].map(|name| plan(&site, name).flag("--shards", "1").start());
    // So many that a third of them is far more than what is nothing to talk about.
    let cells = cells("j", 300);
    for (node, cells) in old.iter().zip(cells.chunks(150)) {
        let mut client = node.client();
        cells.iter().for_each(|cell| write(&mut client, cell));
    }
    let new = plan(&site, "new").flag("--shards", "1").start();
    for cell in [&cells[0], &cells[299]] {
        old.iter().chain([&new]).for_each(|node| meet(node, cell));
    }
    let mut client = new.client();
    let records: Vec<_> =
        cells.iter().map(|cell| CellFiles::of(site.bucket(), &mut client, &cell.name)).collect();
    let owned = || records.iter().filter(|files| files.read_record()["node"] == "new").count();
    let taken = wait_for("cells of the new node", Duration::from_secs(100), || {
        let mut client = new.client();
        cells.iter().for_each(|cell| write(&mut client, cell));
        Some(owned()).filter(|owned| *owned >= 20)
    });
    assert!(taken < 200, "the old ones keep their share");
    for node in &old {
        let mut client = node.client();
        for cell in &cells {
            cell.verify(&mut client);
        }
    }
}
