//! Calls of cells on another node: what the cell hears of its caller, and the caller of its errors.

use std::time::Duration;

use serde_json::{Value, json};

use super::fleet::plan;
use super::support::node::{Node, Site};
use super::support::wait_for;

/// What a busy machine may take.
const LIMIT: Duration = Duration::from_secs(30);

fn text(node: &Node, path: &str) -> Option<String> {
    let answer = node.client().ask("GET", path).ok()?;
    (answer.status == 200).then(|| answer.text())
}

#[test]
fn a_cell_hears_that_its_caller_on_another_node_has_given_up() {
    let _machine = super::shared();
    let site = Site::of("calls");
    let owner = plan(&site, "owner").flag("--shards", "2").start();
    let other = plan(&site, "other").flag("--shards", "2").start();
    // On each shard of both nodes.
    for cell in ["a", "b", "c", "d", "e", "f"] {
        let heard = format!("/heard?cell={cell}");
        assert_eq!(text(&owner, &heard).as_deref(), Some("nothing"));
        wait_for("a node that knows the other", LIMIT, || text(&other, &heard));
        let given_up = text(&other, &format!("/give-up?cell={cell}"));
        assert_eq!(given_up.as_deref(), Some("Error: no longer wanted"));
        // The cell is not on the node that asks: the one that has it is asked.
        wait_for("the cell's signal", LIMIT, || {
            let heard = text(&owner, &heard)?;
            (heard == "AbortError: The client has disconnected.").then_some(())
        });
    }
}

/// The node that has the cell `a`, and another one that knows it.
fn owner_and_other(site: &Site) -> [Node; 2] {
    let owner = plan(site, "owner").start();
    assert_eq!(text(&owner, "/heard?cell=a").as_deref(), Some("nothing"));
    let other = plan(site, "other").start();
    wait_for("a node that knows the other", LIMIT, || text(&other, "/heard?cell=a"));
    [owner, other]
}

#[test]
fn what_a_cell_throws_is_seen_at_another_node_as_at_its_own() {
    let _machine = super::shared();
    let site = Site::of("calls");
    let [owner, other] = owner_and_other(&site);
    for (what, seen) in [
        (
            "own",
            json!(["TypeError", "TypeError: own", {
                "cause": "RangeError RangeError: inner", "code": "number 42",
                "extra": {"a": ["number 1", "Date 0"]}, "remote": "boolean true",
            }]),
        ),
        (
            "named",
            json!(["Error", "Named: named", {
                "code": "number 7", "name": "Named", "remote": "boolean true",
            }]),
        ),
        (
            "marks",
            json!(["Error", "Error: marks", {
                "durableObjectReset": "boolean true", "overloaded": "boolean true",
                "remote": "boolean true", "retryable": "boolean true",
            }]),
        ),
        (
            "hidden",
            json!(["SyntaxError", "SyntaxError: hidden", {
                "hid": "number 1", "remote": "boolean true",
            }]),
        ),
        (
            "many",
            json!(["AggregateError", "AggregateError: many", {
                "errors": ["EvalError EvalError: one"], "remote": "boolean true",
            }]),
        ),
        (
            "bytes",
            json!(["Error", "Error: bytes", {
                "bytes": "20000 bytes, 1 different", "remote": "boolean true",
            }]),
        ),
        ("large", json!(["Error", "Error: large", {"remote": "boolean true"}])),
        ("function", json!(["Error", "Error: function", {"remote": "boolean true"}])),
        ("string", json!(["Error", "Error: a string", {"remote": "boolean true"}])),
    ] {
        let path = format!("/thrown?cell=a&what={what}");
        let [mut here, there] = [&owner, &other].map(|node| -> Value {
            serde_json::from_str(&text(node, &path).expect("an answer")).expect("JSON")
        });
        // With the frames of the cell's stack.
        assert_eq!(there, here, "{what}");
        here.as_array_mut().expect("a list").remove(2);
        assert_eq!(here, seen, "{what}");
    }
}

#[test]
fn a_body_that_a_cell_breaks_off_is_seen_at_another_node_as_at_its_own() {
    let _machine = super::shared();
    let site = Site::of("calls");
    let [owner, other] = owner_and_other(&site);
    // Of no length, of one that is sent as a whole, and of one that is sent in pieces.
    for length in ["", "&length=100", "&length=100000"] {
        let path = format!("/broken?cell=a{length}");
        let seen = |node: &Node| -> Value {
            serde_json::from_str(&text(node, &path).expect("an answer")).expect("JSON")
        };
        let here = seen(&owner);
        assert_eq!(seen(&other), here, "{path}");
        let words = "RangeError: the disk is on fire ";
        assert_eq!(here, json!([200, "RangeError", words, true, true, null]), "{path}");
    }
    // Of a long message there is the first part.
    let long = text(&other, "/broken?cell=a&more=9000").expect("an answer");
    assert!((900..1_200).contains(&long.len()) && long.contains("on fire !!!"), "{long}");
}

#[test]
fn calls_on_one_stub_arrive_in_order_while_the_way_to_their_cell_becomes_known() {
    let _machine = super::shared();
    let site = Site::of("calls");
    let owner = plan(&site, "owner").flag("--shards", "3").start();
    let other = plan(&site, "other").flag("--shards", "3").start();
    let sent: Vec<_> = (0..16).map(|n| n.to_string()).collect();
    for cell in ["a", "b", "c", "d", "e", "f"] {
        assert!(text(&owner, &format!("/heard?cell={cell}")).is_some());
        wait_for("a node that knows the other", LIMIT, || {
            text(&other, &format!("/heard?cell={cell}"))
        });
        // Each on a connection of its own, so that each shard learns the way.
        for n in 0..16 {
            let bodies = ["", "&bodies", "&rpc"][n % 3];
            let order = format!("/order?cell={cell}&n={}{bodies}", sent.len());
            assert_eq!(text(&other, &order), Some(sent.join(",")), "cell {cell}{bodies}");
        }
    }
}

#[test]
fn a_method_is_called_at_another_node_as_at_its_own() {
    let _machine = super::shared();
    let site = Site::of("calls");
    let [owner, other] = owner_and_other(&site);
    let missing = "The RPC receiver does not implement the method \"nope\".";
    let too_long = "Serialized RPC arguments or return values are limited to 32MiB, but the size \
                    of this value was: 41943047 bytes.";
    for (call, seen) in [
        ("name=large&bytes=3", json!(3)),
        ("name=large&bytes=5000000", json!(5_000_000)),
        ("name=large&bytes=33000000", json!(33_000_000)),
        ("name=large", json!(["Error", too_long, true, null, null, null])),
        ("name=nope", json!(["TypeError", missing, true, null, null, null])),
        ("name=fails", json!(["RangeError", "failed", true, null, null, 7])),
        ("name=leaves", json!(["Error", "left", true, null, true, null])),
        (
            "name=order",
            json!(["TypeError", missing.replace("nope", "order"), true, null, null, null]),
        ),
    ] {
        for node in [&owner, &other] {
            let answer = text(node, &format!("/method?cell=a&{call}")).expect("an answer");
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            assert_eq!(answer, seen, "{call}");
        }
    }
}

#[test]
fn a_call_whose_arguments_are_on_their_way_when_the_owner_dies_runs_once_or_not_at_all() {
    let _machine = super::shared();
    let site = Site::new();
    for (round, bytes) in [10, 20_000, 200_000].into_iter().enumerate() {
        let mut owner = plan(&site, &format!("owner{round}")).start();
        let cell = format!("burst{round}");
        owner.ask("POST", &format!("/{cell}/append?writer=0&seq=0")).good();
        let other = plan(&site, &format!("other{round}")).start();
        wait_for("a node that knows the other", LIMIT, || text(&other, &format!("/{cell}/rows")));
        let mut caller = other.client();
        let path = format!("/{cell}/burst?writer=1&count=300&bytes={bytes}");
        caller.send("POST", &path).expect("a request");
        // Some have been answered by then, and some have not arrived.
        wait_for("the first rows", LIMIT, || {
            let rows = owner.client().ask("GET", &format!("/{cell}/rows?after=2")).ok()?;
            (rows.text().lines().count() > 10).then_some(())
        });
        owner.end();
        let answer = caller.receive().expect("an answer").text();
        let rows = wait_for("the rows", LIMIT, || text(&other, &format!("/{cell}/rows")));
        let rows: Vec<Vec<u64>> = rows
            .lines()
            .map(|line| line.split(' ').map(|n| n.parse().expect("a number")).collect())
            .collect();
        let mut lost = 0;
        for (seq, answer) in answer.lines().enumerate() {
            let runs: Vec<u64> =
                rows.iter().filter(|row| row[1..] == [1, seq as u64]).map(|row| row[0]).collect();
            match answer.parse::<u64>() {
                Ok(number) => assert_eq!(runs, [number], "call {seq} of {bytes} bytes"),
                Err(_) => {
                    assert!(answer.contains("owner_lost"), "call {seq}: {answer}");
                    assert!(runs.len() <= 1, "call {seq} of {bytes} bytes ran twice: {runs:?}");
                    lost += 1;
                }
            }
        }
        println!("{lost} of 300 calls of {bytes} bytes may have run");
    }
}
