//! Calls of cells: how many there may be, what an error tells, and what a cell hears of a caller who
//! has gone. The marks of errors are those that workerd sets.

use super::raw_http::{Dev, wait_for};
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

#[test]
fn own_properties_of_an_error_reach_the_caller() {
    // Of several cells some are on another shard than the Worker.
    let dev = Dev::start("calls", 2);
    for cell in ["a", "b", "c", "d", "e", "f"] {
        let own = json!({ "code": "E_OWN", "of": { "this": [1] }, "remote": true });
        assert_eq!(dev.json(&format!("/own?cell={cell}")), json!(["RangeError: own", own]));
    }
}

#[test]
fn a_cell_is_told_the_length_of_what_it_is_sent() {
    let dev = Dev::start("calls", 1);
    let plain = "text/plain;charset=UTF-8";
    for (query, headers, body) in [
        ("", json!({}), ""),
        ("body=", json!({ "content-length": "0", "content-type": plain }), ""),
        ("body=hello", json!({ "content-length": "5", "content-type": plain }), "hello"),
        ("body=hello&stream&length=5", json!({ "content-length": "5" }), "hello"),
        ("body=hello&stream", json!({ "transfer-encoding": "chunked" }), "hello"),
    ] {
        let method = if query.is_empty() { "GET" } else { "POST" };
        let heard = json!([method, "http://cell/request", headers, body]);
        assert_eq!(dev.json(&format!("/request?{query}")), heard, "{query}");
    }
    let moved = dev.json("/request?body=hello&path=/moved");
    assert_eq!(moved[3], "hello", "a redirect is followed with the body: {moved}");
    assert_eq!(moved[2]["content-length"], "5");
}

#[test]
fn what_an_aborted_turn_wrote_is_gone() {
    let dev = Dev::start("calls", 1);
    for (cell, path, left) in
        [("a", "/put-and-abort", "undefined"), ("b", "/put-and-abort?sync", "1")]
    {
        let error = dev.json(&format!("/error?cell={cell}&path={path}"));
        assert_eq!(error, json!(["Error: after the writes", true, null, null, true]));
        assert_eq!(dev.text(&format!("/through?cell={cell}&path=/value")), left);
    }
}

#[test]
fn what_the_network_did_may_be_tried_again() {
    let dev = Dev::start("calls", 1);
    assert_eq!(dev.json("/refused"), json!(["Error", true, true]));
}

#[test]
fn a_request_that_hangs_fails_and_one_that_waits_for_another_does_not() {
    let dev = Dev::start("calls", 1);
    for path in ["/hang", "/hang-later", "/hang-with-stream"] {
        let reply = dev.get(path);
        let text = reply.text();
        assert!(reply.status == 500 && text.contains("your Worker's code had hung"), "{text}");
    }
    // Longer than two looks for requests that hang.
    std::thread::scope(|scope| {
        let older = scope.spawn(|| dev.text("/share?keep=2500"));
        let younger = scope.spawn(|| dev.text("/share"));
        assert_eq!(older.join().expect("an answer"), "settled");
        assert_eq!(younger.join().expect("an answer"), "settled");
    });
    let aborted = dev.get("/abort");
    assert!(aborted.status == 500 && aborted.text().contains("RangeError: aborted"));
}

#[test]
fn a_cell_that_waits_is_left_alone() {
    let dev = Dev::start("calls", 1);
    let mut client = dev.open();
    client.send("GET /through?cell=a&path=/never HTTP/1.1\r\nhost: test\r\n\r\n");
    // Longer than two looks for requests that hang.
    let patience = Some(std::time::Duration::from_millis(2500));
    client.stream.set_read_timeout(patience).expect("an option");
    let early = client.try_reply(true).expect_err("nothing fails it");
    assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(dev.text("/through?cell=a&path=/"), "here");
}
