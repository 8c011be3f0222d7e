//! What an operator does with a fleet from the command line, on real nodes: and who may not.

#[path = "../durability/ledger.rs"]
mod ledger;
#[path = "../durability/load.rs"]
mod load;
#[expect(dead_code, reason = "each program of tests uses its part of it")]
#[path = "../support/mod.rs"]
mod support;

mod cells;
mod drain;
mod orders;
mod roles;
mod status;

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use self::support::node::{Node, Plan, Site};
use self::support::wait_for;

/// Longer than any of these tests: no node dies of a machine that is busy.
const TTL_MS: &str = "30000";
/// Until nodes know each other, on a busy machine.
const MEETING: Duration = Duration::from_secs(40);

/// A node that takes calls.
fn plan(site: &Site, name: &str) -> Plan {
    site.node(name).variable("CELLD_TTL_MS", TTL_MS).flag("--internal-listen", "127.0.0.1:0")
}

/// What a command has said.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

fn said(output: Output) -> Said {
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A command on the site's bucket, not started.
fn command(site: &Site, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_celld"));
    command.args(line.split_whitespace());
    command.arg("--bucket").arg(format!("file://{}", site.bucket().display()));
    command
}

/// Runs a command on the site's bucket.
fn operate(site: &Site, line: &str) -> Said {
    said(command(site, line).output().expect("the program starts"))
}

impl Said {
    /// The standard output of a command that must have done its work.
    fn good(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self.out
    }

    fn json(self) -> Value {
        serde_json::from_str(&self.good()).expect("one JSON document")
    }

    /// The documents of its lines.
    fn lines(self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).expect("a JSON document");
        self.good().lines().map(parse).collect()
    }

    /// It must have failed with this code and these words on standard error.
    fn failed(&self, code: i32, words: &[&str]) {
        let Self { out, err, .. } = self;
        assert_eq!(self.code, Some(code), "{out}{err}");
        assert!(words.iter().all(|word| err.contains(word)), "{words:?} in {err}");
        assert!(!err.contains("panicked"), "{err}");
    }
}

/// The nodes that a status shows, each with its state.
fn states(status: &Value) -> Vec<(String, String)> {
    let nodes = status["nodes"].as_array().expect("nodes");
    let text = |node: &Value, key: &str| node[key].as_str().expect("text").to_owned();
    nodes.iter().map(|node| (text(node, "node"), text(node, "state"))).collect()
}

/// Where a node serves its peers.
fn internal(node: &Node) -> String {
    let log = node.log();
    let (_, rest) = log.split_once("peers are served on ").expect("it says so");
    rest.split(',').next().expect("an address").to_owned()
}

/// The record of a cell in the bucket, by `cell show`.
fn shown(site: &Site, cell: &str) -> Value {
    operate(site, &format!("cell show {cell} --json")).json()
}
