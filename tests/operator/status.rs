//! `celld status`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::support::node::{Plan, Site};
use super::support::wait_for;
use super::{MEETING, internal, operate, plan, states};

#[test]
fn each_node_is_shown_with_what_it_says_of_itself() {
    let site = Site::of("operated");
    operate(&site, "status").failed(0, &[]);
    let first = plan(&site, "first").flag("--shards", "1").start();
    let _second = plan(&site, "second").flag("--shards", "2").start();
    let _alone = site.node("alone").variable("CELLD_TTL_MS", super::TTL_MS).start();
    for cell in ["a", "b", "c"] {
        first.ask("POST", &format!("/{cell}/add")).good();
    }
    let status = operate(&site, "status --json").json();
    let state = |node: &str, state: &str| (node.to_owned(), state.to_owned());
    assert_eq!(
        states(&status),
        [state("alone", "unasked"), state("first", "serving"), state("second", "serving")]
    );
    let row = &status["nodes"][1];
    assert_eq!(
        (&row["shards"], &row["cells"], &row["restoring"]),
        (&1.into(), &3.into(), &0.into())
    );
    assert_eq!(row["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(row["address"], internal(&first));
    assert!(row["lease"]["age_ms"].as_u64().expect("an age") < 30_000, "{row}");
    assert_eq!(status["nodes"][2]["shards"], 2);
    let text = operate(&site, "status").good();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = text.lines().map(words).collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[0][..5], ["NODE", "STATE", "VERSION", "SHARDS", "CELLS"]);
    assert_eq!(lines[2][..2], ["first", "serving"]);
    assert_eq!(lines[2][3..5], ["1", "3"]);
}

#[test]
fn the_flush_of_a_follower_is_measured_and_nothing_is_written_for_who_only_reads() {
    let site = Site::of("operated");
    let mut plans = ["first", "second"].map(|name| plan(&site, name));
    let _nodes = plans.each_mut().map(Plan::start);
    let files = || {
        let list = |plan: &Plan| std::fs::read_dir(plan.state()).expect("a listing").count();
        plans.each_ref().map(list)
    };
    let before = files();
    let state = format!("--state {}", site.path().join("here").display());
    let diagnosed = operate(&site, &format!("diagnose --probe --json {state}")).json();
    let latency = &diagnosed["latency"];
    let all = latency["series"].as_array().expect("series");
    let p50 = |name: &str| {
        let series = all.iter().find(|series| series["name"] == name).expect(name);
        assert_eq!(series["failed"], 0, "{series}");
        assert!(series["count"].as_u64() > Some(0), "{series}");
        series["p50"].as_u64().expect("microseconds")
    };
    let fleet = &latency["expected_acknowledgement"]["fleet"];
    let nearest = p50("flush.first").min(p50("flush.second"));
    assert_eq!(fleet["p50_us"], nearest.max(p50("disk.write")), "{latency}");
    let read = operate(&site, &format!("diagnose --probe --read-only --json {state}")).json();
    assert!(read["latency"]["expected_acknowledgement"]["fleet"].is_null(), "{read}");
    // What was written for it has no name.
    assert_eq!(files(), before);
}

#[test]
fn a_node_that_does_not_answer_is_shown_and_makes_the_command_fail() {
    let site = Site::of("operated");
    let _good = plan(&site, "good").start();
    let still = plan(&site, "still").start();
    let mut killed = plan(&site, "killed").start();
    let mut stopped = plan(&site, "stopped").start();
    stopped.terminate();
    assert_eq!(stopped.wait_for_end(Duration::from_secs(40)).code(), Some(0), "{}", stopped.log());
    still.freeze();
    killed.end();
    let status = operate(&site, "status --json");
    status.failed(1, &["node still:", "node killed:", "1 more that have left"]);
    let status = serde_json::from_str(&status.out).expect("a document all the same");
    let state = |node: &str, state: &str| (node.to_owned(), state.to_owned());
    let shown =
        [state("good", "serving"), state("killed", "unreachable"), state("still", "unreachable")];
    assert_eq!(states(&status), shown);
    let all = operate(&site, "status --all");
    assert_eq!(all.code, Some(1));
    assert!(all.out.contains("stopped  left"), "{}", all.out);
    still.thaw();
}

#[test]
fn a_bucket_that_is_none_is_said_so() {
    let site = Site::of("operated");
    std::fs::remove_dir_all(site.bucket()).expect("it was there");
    let gone = operate(&site, "status");
    assert_eq!(gone.code, Some(1), "{}", gone.err);
    assert!(gone.out.is_empty() && gone.err.contains("bucket"), "{}", gone.err);
}

#[test]
fn the_load_is_the_part_of_the_time_in_which_a_node_works() {
    let site = Site::of("operated");
    let node = plan(&site, "n").variable("CELLD_TTL_MS", "12000").flag("--shards", "1").start();
    let shown = || {
        let status = operate(&site, "status --json").json();
        status["nodes"][0]["load_permille"].as_u64().expect("a load")
    };
    let told = || {
        let record = std::fs::read(site.bucket().join("nodes@/n.json")).expect("a lease");
        let record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
        record["load"]["busy_permille"].as_u64().expect("a load")
    };
    let (is_over, begun) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut client = node.client();
            while !is_over.load(Ordering::Relaxed) && begun.elapsed() < 2 * MEETING {
                client.ask("POST", "/a/compute").expect("an answer").good();
            }
        });
        let is_busy = || (shown() > 600 && told() > 600).then_some(());
        wait_for("a node that works", MEETING, is_busy);
        is_over.store(true, Ordering::Relaxed);
        busy.join().expect("no panic");
    });
    wait_for("a node that rests", MEETING, || (shown() < 300 && told() < 300).then_some(()));
}
