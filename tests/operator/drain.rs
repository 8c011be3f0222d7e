//! `celld drain`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ledger::{append, rows};
use super::load::{Cell, Load, NEXT};
use super::support::node::Site;
use super::support::rng::Rng;
use super::{MEETING, command, operate, plan, states, wait_for};

#[test]
fn a_drained_node_gives_its_cells_away_under_load_and_ends_well() {
    let rng = Rng::from_environment("the drained node");
    let site = Site::new();
    let (mut first, second) = (plan(&site, "first").start(), plan(&site, "second").start());
    let cells: Vec<_> = (0..12).map(|n| Cell::new(format!("d{n}"))).collect();
    for cell in &cells {
        let row = (99, NEXT.fetch_add(1, Ordering::Relaxed));
        cell.ledger().sends(row);
        let number = append(&mut first.client(), &cell.name, row).expect("acknowledged");
        cell.ledger().acknowledges(number, row);
        let mut client = second.client();
        wait_for("a node that knows the others", MEETING, || rows(&mut client, &cell.name, 0).ok());
    }
    operate(&site, "drain nobody").failed(1, &["there is no lease of a node nobody"]);
    let load = Load::start(second.door(), &cells, 6, 2, &rng);
    std::thread::sleep(Duration::from_millis(500));
    let drained = operate(&site, "drain first");
    assert!(drained.err.contains("node first drains, with 12 cells"), "{}", drained.err);
    assert!(drained.err.contains("node first has left"), "{}", drained.err);
    assert_eq!(drained.good(), "");
    let status = first.wait_for_end(Duration::from_secs(20));
    assert_eq!(status.code(), Some(0), "{}", first.log());
    std::thread::sleep(Duration::from_millis(500));
    let refused = load.end();
    assert!(refused.is_empty(), "{refused:#?}");
    for cell in &cells {
        cell.verify(&mut second.client());
    }
    let status = operate(&site, "status --json").json();
    assert_eq!(states(&status), [("second".to_owned(), "serving".to_owned())]);
    operate(&site, "drain first").failed(1, &["first"]);
}

#[test]
fn who_does_not_want_to_wait_does_not() {
    let site = Site::of("operated");
    let mut node = plan(&site, "first").start();
    node.ask("POST", "/a/add").good();
    let mut slow = node.client();
    slow.send("POST", "/a/slow?ms=10000").expect("sent");
    wait_for("a request that runs", MEETING, || {
        let cell = super::shown(&site, "operated.Cell --name a");
        (cell["memory"]["events"] == 1).then_some(())
    });
    let begun = operate(&site, "drain first --no-wait");
    assert!(!begun.err.contains("has left"), "{}", begun.err);
    begun.good();
    // Asked twice, it does not become impatient.
    operate(&site, "drain first --no-wait").good();
    assert_eq!(slow.receive().expect("an answer").text(), "2");
    assert_eq!(node.wait_for_end(Duration::from_secs(40)).code(), Some(0), "{}", node.log());
}

#[test]
fn a_node_that_ends_before_its_drain_does_is_waited_for_until_its_lease_is_over() {
    let site = Site::of("operated");
    let mut node = plan(&site, "first").variable("CELLD_TTL_MS", "6000").start();
    node.ask("POST", "/a/add").good();
    let mut slow = node.client();
    slow.send("POST", "/a/slow?ms=60000").expect("sent");
    wait_for("a request that runs", MEETING, || {
        let cell = super::shown(&site, "operated.Cell --name a");
        (cell["memory"]["events"] == 1).then_some(())
    });
    let begun = Instant::now();
    let mut command = command(&site, "drain first");
    let mut draining = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut said = BufReader::new(draining.stderr.take().expect("piped"));
    let mut first = String::new();
    said.read_line(&mut first).expect("text");
    assert!(first.contains("node first drains, with 1 cells"), "{first}");
    node.end();
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    assert_eq!(draining.wait().expect("it ends").code(), Some(0), "{rest}");
    for words in [
        "it takes no calls any more",
        "has not given up its lease, which is over in",
        "node first has left, and has not given up its lease",
        "the 1 cells",
    ] {
        assert!(rest.contains(words), "{words:?} in {rest}");
    }
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
}
