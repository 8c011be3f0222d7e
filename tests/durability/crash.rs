//! Nodes that are killed while they hand over, take over, or adopt a deployment.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::fleet::{cells, meet, try_write, write};
use super::load::{Cell, Load, NEXT};
use super::network::{Network, SLACK, TTL};
use super::partition::{check, fill, take_over};
use super::support::node::{Node, start_all, worker_dir};
use super::support::rng::Rng;
use super::support::{tell, wait_for};

/// Commits of one request, each 5 ms after the one before: more than a node makes before it is
/// killed.
const MANY: u64 = 20_000;
/// A node is killed this long after it began to drain.
const INTO_THE_DRAIN: Duration = Duration::from_secs(1);

#[test]
fn a_node_that_is_killed_while_it_drains_loses_nothing() {
    let _machine = super::shared();
    let Some(network) = Network::new() else { return };
    let mut plan = network.plan("leaving");
    let (mut one, mut two) = (network.plan("one"), network.plan("two"));
    let [mut leaving, others @ ..] = start_all([&mut plan, &mut one, &mut two]);
    let cells = cells("d", 24);
    fill(&leaving, &cells);
    others.iter().for_each(|other| cells.iter().for_each(|cell| meet(other, cell)));

    // Two cells are busy for longer than the test, so that the drain does not come to its end.
    let (busy, idle) = cells.split_at(2);
    let mut working: Vec<_> = busy
        .iter()
        .map(|cell| {
            let first = NEXT.fetch_add(MANY, Ordering::Relaxed);
            (first..first + MANY).for_each(|seq| cell.ledger().sends((98, seq)));
            let mut client = leaving.client();
            let path = format!("/{}/many?writer=98&from={first}&count={MANY}&pause=5", cell.name);
            client.send("POST", &path).expect("it is sent");
            client
        })
        .collect();
    leaving.terminate();
    wait_for("a drain", SLACK, || leaving.log().contains("stopping:").then_some(()));
    let moved = AtomicUsize::new(0);
    let killed = std::thread::scope(|scope| {
        for cell in &idle[..6] {
            scope.spawn(|| {
                // What has not run waits for the next owner, whoever that is.
                take_over(&others[0], std::slice::from_ref(cell), Instant::now(), &["owner_lost"]);
                moved.fetch_add(1, Ordering::Relaxed);
            });
        }
        std::thread::sleep(INTO_THE_DRAIN);
        leaving.end();
        tell(&format!("killed when {} of 6 cells had moved", moved.load(Ordering::Relaxed)));
        Instant::now()
    });
    take_over(&others[1], idle, killed, &["owner_lost"]);
    let took = take_over(&others[1], busy, killed, &["owner_lost"]);
    tell(&format!("{:.1} s after the kill all cells were taken over", took.as_secs_f64()));
    for client in &mut working {
        if let Ok(answer) = client.receive() {
            panic!("the drain was over: {} {:.300}", answer.status, answer.text());
        }
    }
    check(&others[0], &cells);
    // It comes back, and cells that others have stay with them.
    let back = plan.start();
    cells.iter().for_each(|cell| meet(&back, cell));
    check(&back, &cells);
}

#[test]
fn a_node_that_is_killed_while_it_takes_over_is_replaced_by_the_next_one() {
    let _machine = super::shared();
    let Some(network) = Network::new() else { return };
    let mut plans = ["owner", "second", "third"].map(|name| network.plan(name));
    let [mut owner, mut second, third] = start_all(plans.each_mut());
    let cells = cells("t", 40);
    fill(&owner, &cells);
    [&second, &third].iter().for_each(|node| cells.iter().for_each(|cell| meet(node, cell)));
    owner.end();
    // All are asked for at once, at both, and the second one dies at its first answer: of the
    // others some are claimed, some restored, some not begun.
    let doors = [second.door(), third.door()];
    let (told, first) = std::sync::mpsc::sync_channel(cells.len() * 2);
    std::thread::scope(|scope| {
        for (cell, door) in cells.iter().flat_map(|cell| doors.iter().map(move |door| (cell, door)))
        {
            let told = told.clone();
            scope.spawn(move || {
                let Ok(mut client) = door.connect() else { return };
                if try_write(&mut client, cell).is_ok() {
                    told.send(()).expect("somebody listens");
                }
            });
        }
        first.recv_timeout(TTL + SLACK).expect("a cell that is taken over");
        second.end();
    });
    let took = take_over(&third, &cells, Instant::now(), &["owner_lost"]);
    tell(&format!("{:.1} s after the second kill all cells served", took.as_secs_f64()));
    check(&third, &cells);
}

/// A copy of the ledger's project that says `version` when it is asked without a cell.
fn project(network: &Network, version: &str) -> PathBuf {
    let dir = network.site().path().join(format!("project-{version}"));
    fs::create_dir_all(&dir).expect("a directory");
    for entry in fs::read_dir(worker_dir("ledger")).expect("the project").flatten() {
        let text = fs::read_to_string(entry.path()).expect("a file");
        let text = text.replace("no cell\\n", &format!("version {version}\\n"));
        fs::write(dir.join(entry.file_name()), text).expect("a file");
    }
    dir
}

fn version(node: &Node) -> String {
    node.ask("GET", "/").text()
}

#[test]
fn a_node_and_a_deployment_that_are_killed_meanwhile_leave_a_fleet_that_deploys() {
    const KILLS: u64 = 4;
    let _machine = super::shared();
    let mut rng = Rng::from_environment("the killed deployments");
    let Some(network) = Network::new() else { return };
    let mut plan = network.plan("killed");
    let [mut killed, other] = start_all([&mut plan, &mut network.plan("other")]);
    let cells: Vec<Arc<Cell>> = cells("v", 4);
    fill(&killed, &cells);
    cells.iter().for_each(|cell| meet(&other, cell));

    // A deployment that ends anywhere: what serves goes on, or the new one does. Never nothing.
    let half = project(&network, "half");
    for _ in 0..KILLS {
        let mut deploying = network.site().deploy(&half);
        deploying.stderr(std::process::Stdio::null());
        let mut deploying = deploying.spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(rng.below(120)));
        // It may have ended.
        let _ended = deploying.kill();
        deploying.wait().expect("it is our child");
        check(&other, &cells);
    }

    // A node dies between a deployment and its adoption; the other one adopts it under load.
    let load = Load::start(other.door(), &cells, 4, 1, &rng.fork(1));
    let said = network.site().deploy(&project(&network, "2")).output().expect("it starts");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    killed.end();
    let since = Instant::now();
    wait_for("the adoption", TTL + SLACK, || (version(&other) == "version 2").then_some(()));
    take_over(&other, &cells, since, &["owner_lost"]);
    let refusals = load.end();
    assert!(refusals.iter().all(|text| text.contains("owner_lost")), "{refusals:#?}");
    check(&other, &cells);
    let back = plan.start();
    assert_eq!(version(&back), "version 2");
    cells.iter().for_each(|cell| meet(&back, cell));
    check(&back, &cells);
    write(&mut other.client(), &cells[0]);
}
