//! What a Worker may count on, and what it cannot do to its neighbours.

use super::raw_http::{Dev, wait_for};
use serde_json::json;

fn cell(name: &str, path: &str) -> String {
    format!("/cell?name={name}&path={path}")
}

fn cell_error(name: &str, path: &str) -> String {
    format!("/cell-error?name={name}&path={path}")
}

/// Names of cells: one for each of two shards would do, a few more make sure that both are met.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[test]
fn an_endless_loop_ends_its_own_request_only() {
    let dev = Dev::start("http", 2);
    for name in NAMES {
        assert_eq!(dev.text(&cell(name, "/memory")), "1");
    }
    for path in ["/spin", "/spin-later"] {
        let reply = dev.get(path);
        assert_eq!(reply.status, 500);
        assert!(reply.text().contains("exceeded CPU time limit"), "{}", reply.text());
    }
    for path in ["/spin", "/spin-later", "/spin-sql", "/spin-sql-write"] {
        let error = dev.json(&cell_error("spins", path));
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains("exceeded CPU time limit"), "{error}");
    }
    // In the middle of a response: its reader must not wait for ever.
    let mut client = dev.open();
    client.send("GET /spin-in-stream HTTP/1.1\r\nhost: test\r\n\r\n");
    assert!(client.try_reply(true).is_err(), "a response that was cut is no whole one");
    // The others are as they were, in memory too: they share the isolate.
    for name in NAMES {
        assert_eq!(dev.text(&cell(name, "/memory")), "2", "{name}");
    }
    assert_eq!(dev.text(&cell("spins", "/memory")), "1", "the cell was reset and lives again");
    assert_eq!(dev.text(&cell("spins", "/add")), "1", "what the turn wrote went with it");
}

#[test]
fn what_ends_a_constructor_is_told_to_those_who_wait_for_it() {
    let dev = Dev::start("http", 1);
    for (name, words) in [
        ("section-throws", "in a section"),
        ("section-throws-later", "in a section"),
        ("starts-with-abort", "at the start"),
        ("starts-with-spin", "exceeded CPU time limit"),
    ] {
        // Again and again: each request starts a life of its own.
        for _ in 0..2 {
            let error = dev.json(&cell_error(name, "/memory"));
            let message = error["message"].as_str().unwrap_or_default();
            assert!(message.contains(words), "{name}: {error}");
        }
    }
    assert_eq!(dev.text(&cell("a", "/memory")), "1", "the others live");
}

#[test]
fn a_full_heap_costs_the_isolate_and_no_data() {
    let dev = Dev::start_project(&limitless(), 1, &[]);
    for name in NAMES {
        assert_eq!(dev.text(&cell(name, "/add")), "1");
        assert_eq!(dev.text(&cell(name, "/memory")), "1");
    }
    // Its caller is in the same isolate, and goes with it.
    let reply = dev.get(&cell("a", "/hog"));
    assert!(reply.status == 500 && reply.text().contains("exceeded memory limit"));
    for name in NAMES {
        assert_eq!(dev.text(&cell(name, "/add")), "2", "what was written is there");
        assert_eq!(dev.text(&cell(name, "/memory")), "1", "what was in memory is gone");
    }
    assert_eq!(dev.get("/hog").status, 500);
    assert_eq!(dev.text(&cell("a", "/add")), "3");
}

/// The Worker of the tests without its limit of CPU time: a heap fills slowly on a busy machine.
fn limitless() -> std::path::PathBuf {
    let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers/http");
    let to = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("limitless");
    std::fs::create_dir_all(&to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("the Worker").flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
    }
    let file = to.join("wrangler.jsonc");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    assert!(text.contains("\"cpu_ms\": 300"));
    std::fs::write(&file, text.replace("\"cpu_ms\": 300", "\"cpu_ms\": 30000")).expect("written");
    to
}

#[test]
fn modules_of_every_kind_and_vars() {
    let dev = Dev::start("http", 1);
    let expected = json!({
        "text": "a text module\n", "data": [0, 1, 254, 255], "tree": { "leaf": [true, null] },
        "late": "loaded late", "missing": "Error", "sum": 42, "isModule": true,
    });
    assert_eq!(dev.json("/modules"), expected);
    assert_eq!(dev.json("/env"), json!({ "TEXT": "a text", "TREE": { "leaf": [1, 2] } }));
}

#[test]
fn what_goes_wrong_in_the_worker_is_told() {
    let dev = Dev::start("http", 1);
    for (path, words) in [
        ("/throw", "TypeError: thrown"),
        ("/pass", "TypeError: thrown after passThroughOnException"),
        ("/no-response", "did not resolve to 'Response'"),
    ] {
        let reply = dev.get(path);
        assert!(reply.status == 500 && reply.text().contains(words), "{path}: {}", reply.text());
    }
    assert!(dev.get("/throw").text().contains("index.js:"), "the stack says where");
    assert_eq!(dev.text("/reject"), "ok");
    assert_eq!(dev.text("/timer-throws"), "ok");
    let mut client = dev.open();
    client.send("GET /half HTTP/1.1\r\nhost: test\r\n\r\n");
    assert!(client.try_reply(true).is_err(), "the body breaks off");
    for words in [
        "Uncaught Error: half-way\n    at ",
        "Uncaught TypeError: thrown\n    at ",
        "Error: nobody waits for this",
        "Error: thrown in a timer",
    ] {
        wait_for(words, || dev.log().contains(words).then_some(()));
    }
}

#[test]
fn a_schedule_runs_when_it_is_told_to() {
    let dev = Dev::start("http", 1);
    assert_eq!(dev.text("/cdn-cgi/handler/scheduled?cron=*/5+*+*+*+*&time=1700000000000"), "ok");
    let expected = "scheduled */5 * * * * 1700000000000";
    wait_for("the schedule", || dev.text("/events").contains(expected).then_some(()));
    let reply = dev.get("/cdn-cgi/handler/scheduled?cron=fails");
    assert!(reply.status == 500 && reply.text().contains("the schedule failed"));
    assert_eq!(dev.get("/cdn-cgi/handler/scheduled?time=soon").status, 400);
}

#[test]
fn calls_on_one_stub_arrive_in_order_and_all_of_them() {
    let dev = Dev::start("http", 2);
    for name in NAMES {
        let all = dev.json(&format!("/many?name={name}&n=2000"));
        assert_eq!(all, json!({ "failed": 0, "inOrder": true }), "{name}");
    }
    // As many as one cell may keep waiting, to cells here and on the other shard.
    for name in ["many-a", "many-b", "many-c"] {
        let all = dev.json(&format!("/many?name={name}&n=10000"));
        assert_eq!(all, json!({ "failed": 0, "inOrder": true }), "{name}");
    }
}

#[test]
fn errors_of_a_cell_reach_its_caller() {
    let dev = Dev::start("http", 2);
    for name in NAMES {
        let error = dev.json(&cell_error(name, "/throw"));
        let seen = (&error["name"], &error["message"], &error["retryable"]);
        assert_eq!(seen, (&json!("RangeError"), &json!("from the cell"), &json!(true)));
        let stack = error["stack"].as_str().unwrap_or_default();
        assert!(stack.starts_with("RangeError: from the cell\n    at "), "{stack}");
        assert_eq!(dev.text(&cell(name, "/memory")), "1");
        let error = dev.json(&cell_error(name, "/abort"));
        assert_eq!(error["message"], "told to", "{error}");
        assert_eq!(dev.text(&cell(name, "/memory")), "1", "the abort has reset the cell");
    }
    // A constructor that throws fails who waits; the next request constructs anew.
    assert_eq!(dev.json(&cell_error("fails-once", "/memory"))["message"], "not yet");
    assert_eq!(dev.text(&cell("fails-once", "/memory")), "1");
}

#[test]
fn a_section_keeps_others_out_and_its_failure_resets_the_cell() {
    let dev = Dev::start("http", 1);
    let mut first = dev.open();
    first.send(format!("GET {} HTTP/1.1\r\nhost: test\r\n\r\n", cell("s", "/block")));
    wait_for("the section", || {
        // Each of these that comes while the section runs waits for its end.
        let count = dev.text(&cell("s", "/order?i=1")).parse::<usize>().ok()?;
        (count > 2).then_some(())
    });
    assert_eq!(first.reply("the one that blocks").status, 200);
    let seen = dev.text(&cell("s", "/seen"));
    assert!(seen.contains(r#""before","inside""#), "{seen}");
    assert_eq!(dev.text(&cell("t", "/memory")), "1");
    assert_eq!(dev.json(&cell_error("t", "/block-throws"))["message"], "in the section");
    assert_eq!(dev.text(&cell("t", "/memory")), "1");
}

#[test]
fn bodies_cross_shards_exactly_and_are_cancelled() {
    let dev = Dev::start("http", 2);
    for name in NAMES {
        let both = dev.json(&format!("/cell-check?name={name}&bytes=3000000"));
        assert_eq!(both, json!(["3000000 right", "3000000 right"]), "{name}");
        assert_eq!(dev.text(&format!("/cell-cancel?name={name}")), "cancelled");
    }
    // The list of events is each shard's own: with one shard it shows the cancellation.
    let dev = Dev::start("http", 1);
    assert_eq!(dev.text("/cell-cancel?name=a"), "cancelled");
    wait_for("a cancellation", || {
        dev.text("/events").contains("cell stream cancelled").then_some(())
    });
}

#[test]
fn stacks_show_lines_of_typescript() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, text).expect("written");
    };
    write(
        "wrangler.jsonc",
        r#"{ "name": "ts", "main": "src/main.ts", "compatibility_date": "2026-08-01" }"#,
    );
    write(
        "src/main.ts",
        "import { fail } from './fail';

export default {
  async fetch(request: Request): Promise<Response> {
    if (request.url.endsWith('/later')) setTimeout(() => fail({ name: 'later' }), 1);
    else fail({ name: 'now' });
    await scheduler.wait(20);
    return new Response('ok');
  },
};
",
    );
    write(
        "src/fail.ts",
        "interface Shape { name: string }

export function fail(shape: Shape): never {
  throw new Error(`failed ${shape.name}`);
}
",
    );
    let dev = Dev::start_project(dir.path(), 1, &[]);
    let text = dev.get("/").text();
    assert!(text.starts_with("Error: failed now\n"), "{text}");
    assert!(text.contains("src/fail.ts:4:9") && text.contains("src/main.ts:6:"), "{text}");
    assert_eq!(dev.text("/later"), "ok");
    wait_for("the report", || dev.log().contains("Error: failed later").then_some(()));
    wait_for("its stack", || dev.log().contains("src/main.ts:5:").then_some(()));
}
