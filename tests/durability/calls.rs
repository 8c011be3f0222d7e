//! Calls of cells on another node: what the cell hears of its caller.

use std::time::Duration;

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
