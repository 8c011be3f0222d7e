//! `celld diagnose` on stores that speak S3: real ones, and one that breaks a rule at a time.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use celld_s3::{Bucket, OpenOptions, StaticKeys};
use celld_stores::{ACCESS_KEY, BUCKET, Faulty, Kind, Outage, SECRET_KEY, Store};
use serde_json::{Value, json};

use super::support::skew;

/// The program, with these keys and nothing else of the environment.
fn celld(secret: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_celld"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CELLD_") || text.starts_with("AWS_") || text == "S3_ENDPOINT" {
            command.env_remove(&name);
        }
    }
    command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", secret);
    command
}

fn diagnose(url: &str, endpoint: &str, secret: &str, args: &[&str]) -> Output {
    let state = tempfile::tempdir().expect("a directory");
    celld(secret)
        .args(["diagnose", "--json", "--bucket", url, "--endpoint", endpoint, "--state"])
        .arg(state.path())
        .args(args)
        .output()
        .expect("the program starts")
}

/// The document, which says what the exit code says.
pub(super) fn document(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    let document: Value = serde_json::from_slice(&output.stdout).expect(&said);
    let code = if document["ok"] == true { 0 } else { 1 };
    assert_eq!(output.status.code(), Some(code), "{document:#}\n{said}");
    document
}

/// The codes of all faults.
pub(super) fn faults(document: &Value) -> BTreeSet<String> {
    let findings = document["findings"].as_array().expect("findings");
    let faults = findings.iter().filter(|finding| finding["severity"] == "fault");
    faults.map(|finding| finding["code"].as_str().expect("a code").to_owned()).collect()
}

fn through(proxy: &Faulty, args: &[&str]) -> Value {
    document(&diagnose(&proxy.url("diagnose"), &proxy.endpoint(), SECRET_KEY, args))
}

fn keys_below(store: &Store, prefix: &str) -> Vec<String> {
    let options = OpenOptions {
        endpoint: Some(store.endpoint()),
        keys: Some(StaticKeys {
            id: ACCESS_KEY.to_owned(),
            secret: SECRET_KEY.to_owned(),
            token: None,
        }),
        ..OpenOptions::default()
    };
    let bucket = Bucket::open_with(&store.url(prefix), &options).expect("a bucket");
    let page = celld_rt::block_on(bucket.list("", None)).expect("a page");
    page.entries.into_iter().map(|entry| entry.key).collect()
}

#[test]
fn a_fleet_may_run_on_a_store_that_keeps_the_rules() {
    for kind in [Kind::Ministack, Kind::Seaweed] {
        let Some(store) = Store::shared(kind) else { continue };
        let url = store.url("diagnose-good");
        let seen = document(&diagnose(&url, &store.endpoint(), SECRET_KEY, &["--probe"]));
        assert_eq!(faults(&seen), BTreeSet::new());
        assert_eq!(seen["bucket"], url);
        assert_eq!(seen["store"]["rules_kept"], 11);
        let offset = seen["store"]["clock_offset_ms"].as_i64().expect("a clock");
        assert!(offset.abs() <= 1_000, "it runs on this machine: {offset}");
        let put = &seen["latency"]["series"][1];
        assert!(put["name"] == "store.put" && put["count"].as_u64() > Some(10), "{put}");
        assert_eq!(keys_below(store, "diagnose-good"), [""; 0]);
    }
}

#[test]
fn a_broken_rule_is_told_by_its_name() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    let cases: [(Value, &[&str]); 6] = [
        (
            json!({"ignore_conditions": "create"}),
            &["store.create.twice-accepted", "store.create.race-lost"],
        ),
        (
            json!({"ignore_conditions": "cas"}),
            &["store.cas.stale-accepted", "store.cas.absent-accepted", "store.cas.race-lost"],
        ),
        (json!({"racy_conditions": 300}), &["store.create.race-lost", "store.cas.race-lost"]),
        (json!({"wrong_error": "minio"}), &["store.create.not-found", "store.create.race-lost"]),
        (json!({"bad_range": "shift"}), &["store.range.wrong"]),
        (json!({"stale_list": 1.0}), &["store.list.wrong"]),
    ];
    for (settings, codes) in cases {
        let Some(proxy) = Faulty::before(store) else { return };
        proxy.set(settings.clone());
        let seen = through(&proxy, &[]);
        let wanted: BTreeSet<_> = codes.iter().map(|code| (*code).to_owned()).collect();
        assert_eq!(faults(&seen), wanted, "{settings}: {seen:#}");
        assert_eq!(seen["store"]["rules_kept"], 11 - codes.len(), "{settings}");
    }
}

#[test]
fn a_node_does_not_serve_on_a_store_that_breaks_a_rule() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    let Some(proxy) = Faulty::before(store) else { return };
    proxy.set(json!({"ignore_conditions": "cas"}));
    let state = tempfile::tempdir().expect("a directory");
    let output = celld(SECRET_KEY)
        .args(["--bucket", &proxy.url("no-node"), "--endpoint", &proxy.endpoint()])
        .args(["--listen", "127.0.0.1:0", "--shards", "1", "--state"])
        .arg(state.path())
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in ["breaks a rule", "names an old version", "it was applied", "would be lost"] {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
    assert_eq!(keys_below(store, "no-node"), [""; 0]);
}

#[test]
fn a_node_that_waits_for_its_store_can_be_stopped() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    let Some(proxy) = Faulty::before(store) else { return };
    proxy.outage(Duration::from_secs(600), Outage::Unavailable);
    let state = tempfile::tempdir().expect("a directory");
    let mut node = celld(SECRET_KEY)
        .args(["--bucket", &proxy.url("no-node"), "--endpoint", &proxy.endpoint()])
        .args(["--listen", "127.0.0.1:0", "--shards", "1", "--state"])
        .arg(state.path())
        .spawn()
        .expect("the program starts");
    while proxy.met("outage") == 0 {
        assert!(node.try_wait().expect("it is our child").is_none(), "it ended before it asked");
    }
    let pid = libc::pid_t::try_from(node.id()).expect("a process id");
    // SAFETY: the call takes no pointers, and the process is our child and not yet reaped.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0, "the signal was not sent");
    let ended = node.wait().expect("it is our child");
    assert_eq!(ended.code(), Some(0), "a stop before anything began is no failure");
}

#[test]
fn a_store_that_is_away_is_not_blamed_for_rules_and_not_waited_for() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    for mode in [Outage::Refuse, Outage::Hang] {
        let Some(proxy) = Faulty::before(store) else { return };
        proxy.outage(Duration::from_secs(600), mode);
        let begin = Instant::now();
        let seen = through(&proxy, &["--probe"]);
        assert!(begin.elapsed() < Duration::from_secs(60), "{mode:?}: {:?}", begin.elapsed());
        assert_eq!(faults(&seen), [String::from("store.unreachable")].into(), "{mode:?}");
    }
}

#[test]
fn a_store_that_loses_some_answers_is_measured_all_the_same() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    let Some(proxy) = Faulty::before(store) else { return };
    proxy.set(json!({"lose_response": 0.05}));
    let seen = through(&proxy, &["--probe"]);
    assert_eq!(faults(&seen), BTreeSet::new());
    assert!(proxy.met("lose-response") > 0);
    // 250 rounds of four and as many of pairs, the probe, and what had to be asked again.
    let asked = proxy.requests().len();
    assert!(asked < 2_600, "{asked} requests");
    let swaps = &seen["latency"]["series"][0];
    // One swap in twenty is lost; the next one must not fail for it.
    let number = |key: &str| swaps[key].as_u64().expect("a number");
    assert!(number("count") > 10 * number("failed"), "{swaps}");
}

#[test]
fn answers_that_are_late_by_chance_are_told_with_what_helps() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    let Some(proxy) = Faulty::before(store) else { return };
    // Of the requests in twos only: the others would take their time, too.
    proxy.set(json!({"latency_ms": 500, "latency_p": 0.02, "match": "twin"}));
    let seen = through(&proxy, &["--probe"]);
    assert_eq!(faults(&seen), BTreeSet::new());
    assert_eq!(seen["store"]["second_requests"], "late-by-chance", "{:#}", seen["store"]);
    let findings = seen["findings"].as_array().expect("findings");
    let told = findings.iter().find(|finding| finding["code"] == "store.late-by-chance");
    let advice = told.expect("a finding")["advice"].as_str().expect("advice");
    assert!(advice.contains("--hedge"), "{advice}");
}

#[test]
fn who_only_reads_sends_nothing_else() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    let Some(proxy) = Faulty::before(store) else { return };
    let seen = through(&proxy, &["--read-only", "--probe"]);
    assert_eq!(faults(&seen), BTreeSet::new());
    let requests = proxy.requests();
    assert!(requests.len() > 100, "{}", requests.len());
    let others: Vec<_> = requests.iter().filter(|request| request.method != "GET").collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_clock_that_is_an_hour_off_is_told_and_corrected() {
    // It refuses signatures that are more than fifteen minutes off.
    let Some(store) = Store::shared(Kind::Seaweed) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let Some(library) = skew::library(dir.path()) else { return };
    let output = celld(SECRET_KEY)
        .args(["diagnose", "--json", "--bucket", &store.url("diagnose-clock")])
        .args(["--endpoint", &store.endpoint(), "--state"])
        .arg(dir.path().join("state"))
        .env("LD_PRELOAD", &library)
        .env("SKEW_S", "-3600")
        .output()
        .expect("the program starts");
    let seen = document(&output);
    let offset_ms = seen["store"]["clock_offset_ms"].as_i64().expect("a clock");
    assert!((offset_ms / 1_000 - 3_600).abs() <= 60, "{offset_ms}");
    let findings = seen["findings"].as_array().expect("findings");
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!(
        (&finding["code"], &finding["severity"]),
        (&"clock.offset".into(), &"warning".into())
    );
    let advice = finding["advice"].as_str().expect("advice");
    assert!(advice.contains("NTP"), "{advice}");
    // It does all that a node does, with signatures of the store's time.
    assert_eq!(seen["store"]["rules_kept"], 11, "{seen:#}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("diagnose-clock differ by 3") && said.contains("(NTP)"), "{said}");
}

#[test]
fn what_keeps_an_operator_out_is_told_by_its_cause() {
    let Some(store) = Store::shared(Kind::Seaweed) else { return };
    let endpoint = store.endpoint();
    let seen = document(&diagnose(&store.url("x"), &endpoint, "another secret", &[]));
    assert_eq!(faults(&seen), [String::from("store.denied")].into());
    let missing = format!("s3://{BUCKET}-none/x");
    let seen = document(&diagnose(&missing, &endpoint, SECRET_KEY, &[]));
    let text = seen["findings"].to_string();
    assert!(!seen["ok"].as_bool().expect("a verdict") && text.contains("NoSuchBucket"), "{text}");
}
