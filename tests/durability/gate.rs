//! The output gate, from outside: no answer that depends on a commit leaves before its proof.

use std::time::Duration;

use super::support::hold::Hold;
use super::support::http::Client;
use super::support::node::{Node, Site};

/// Long enough for an answer that is not held, even beside other tests.
const SILENCE: Duration = Duration::from_millis(700);

/// A site whose uploads of LTX files can be held.
fn site() -> (Site, Hold) {
    let site = Site::new();
    let hold = Hold::build(site.path());
    (site, hold)
}

fn value(client: &mut Client, cell: &str) -> String {
    let answer = client.ask("GET", &format!("/{cell}/value")).expect("an answer");
    String::from_utf8(answer.good()).expect("text")
}

/// A writer whose upload is held, and a reader that came behind it.
fn held_pair(node: &Node, hold: &Hold) -> (Client, Client) {
    let mut writer = node.client();
    let mut reader = node.client();
    hold.begin();
    writer.send("POST", "/a/value?is=new").expect("a request");
    hold.wait_until_one_is_held();
    reader.send("GET", "/a/value").expect("a request");
    (writer, reader)
}

#[test]
fn a_read_that_saw_an_unproven_commit_waits_for_its_proof() {
    let _machine = super::shared();
    let (site, hold) = site();
    let mut plan = hold.load_into(site.node("n"), "/ltx@/");
    let node = plan.start();
    for cell in ["a", "b"] {
        node.ask("POST", &format!("/{cell}/value?is=old")).good();
    }
    let (mut writer, mut reader) = held_pair(&node, &hold);
    // Neither a cell without unproven commits nor the Worker waits for that.
    assert_eq!(value(&mut node.client(), "b"), "old");
    assert_eq!(node.ask("GET", "/").text(), "no cell");
    assert!(!reader.hears_within(SILENCE).expect("an open connection"), "the read was not held");
    assert!(!writer.hears_within(SILENCE).expect("an open connection"), "the write was not held");
    assert_eq!(value(&mut node.client(), "b"), "old");
    hold.end();
    assert_eq!(reader.receive().expect("an answer").text(), "new");
    assert_eq!(writer.receive().expect("an answer").text(), "new");
}

#[test]
fn what_was_held_when_the_node_died_was_told_to_nobody() {
    let _machine = super::shared();
    let (site, hold) = site();
    let mut plan = hold.load_into(site.node("n"), "/ltx@/");
    let node = plan.start();
    node.ask("POST", "/a/value?is=old").good();
    let (mut writer, mut reader) = held_pair(&node, &hold);
    assert!(!reader.hears_within(SILENCE).expect("an open connection"), "the read was not held");
    node.kill();
    for client in [&mut writer, &mut reader] {
        let answer = client.receive();
        assert!(answer.is_err(), "told {answer:?}");
    }
    hold.end();
    // The upload never became an object: the value is the old one, in this life and the next.
    for _ in 0..2 {
        let node = plan.start();
        assert_eq!(value(&mut node.client(), "a"), "old");
        node.kill();
    }
    let node = plan.start();
    node.ask("POST", "/a/value?is=newer").good();
    assert_eq!(value(&mut node.client(), "a"), "newer");
}
