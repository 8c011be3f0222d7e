//! Calls of cells: how many there may be, what an error tells, and what a cell hears of a caller who
//! has gone. The marks of errors are those that workerd sets.

#[expect(dead_code, reason = "each file of tests uses its part of it")]
#[path = "support/raw_http.rs"]
mod raw_http;

use raw_http::{Dev, wait_for};
use serde_json::json;

#[test]
fn an_event_sends_as_many_requests_as_the_configuration_lets_it() {
    let dev = Dev::start("calls", 2);
    for who in ["", "&cell=c"] {
        let many = |n: u32| dev.text(&format!("/many?n={n}{who}"));
        assert_eq!(many(20), "20 sent");
        assert_eq!(many(21), "20 Error: Too many subrequests.", "each event has its own count");
        assert_eq!(many(20), "20 sent");
    }
}

#[test]
fn errors_of_a_cells_code_are_marked_as_remote() {
    let dev = Dev::start("calls", 2);
    for (name, cell, path, error) in [
        ("thrown", "a", "/throw", json!(["RangeError: thrown", true, null, null, null])),
        (
            "later",
            "a",
            "/throw-later",
            json!(["SyntaxError: thrown later", true, null, null, null]),
        ),
        ("aborted", "b", "/abort", json!(["Error: told to", true, null, null, true])),
        (
            "unborn",
            "unborn",
            "/",
            json!(["RangeError: in the constructor", true, null, null, true]),
        ),
    ] {
        assert_eq!(dev.json(&format!("/error?cell={cell}&path={path}")), error, "{name}");
    }
    assert_eq!(dev.text("/error?cell=a&path=/"), "here");
}

#[test]
fn a_cell_hears_that_its_caller_has_given_up() {
    for shards in [1, 2] {
        let dev = Dev::start("calls", shards);
        // Of several cells some are on another shard than the Worker.
        for cell in ["a", "b", "c", "d", "e", "f"] {
            let given_up = dev.text(&format!("/give-up?cell={cell}"));
            assert_eq!(given_up, "Error: no longer wanted");
            wait_for("the cell's signal", || {
                let heard = dev.text(&format!("/heard?cell={cell}"));
                (heard == "AbortError: The client has disconnected.").then_some(())
            });
        }
    }
}
