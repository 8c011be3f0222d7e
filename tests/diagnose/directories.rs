//! `celld diagnose` as an operator meets it: the real program, on buckets that are directories.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output};

use celld_core::lease::{Load, Record};
use celld_core::node::{DiskId, NodeId, SessionId};
use celld_core::time::{Micros, Wall};
use serde_json::Value;
use tempfile::TempDir;

use super::support::node::Site;

/// A directory with room for a bucket and a state directory.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn bucket(&self) -> std::path::PathBuf {
        self.0.path().join("bucket")
    }

    /// A bucket with these objects.
    fn with(objects: &[(&str, &[u8])]) -> Self {
        let place = Self::new();
        let bucket = celld_s3::Bucket::open_dir(&place.bucket()).expect("a bucket");
        celld_rt::block_on(async {
            for (key, body) in objects {
                let body = bytes::Bytes::copy_from_slice(body);
                bucket.put(key, body).await.expect("a write");
            }
        });
        place
    }

    fn diagnose(&self, args: &[&str]) -> Output {
        diagnose(&self.bucket(), &self.0.path().join("state"), args)
    }
}

fn diagnose(bucket: &Path, state: &Path, args: &[&str]) -> Output {
    command(bucket, state, args).output().expect("the program starts")
}

/// The program, not started.
pub(super) fn command(bucket: &Path, state: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_celld"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CELLD_") || text.starts_with("AWS_") || text == "S3_ENDPOINT" {
            command.env_remove(&name);
        }
    }
    command
        .arg("diagnose")
        .arg(format!("--bucket=file://{}", bucket.display()))
        .arg("--state")
        .arg(state)
        .args(args);
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// The document on stdout, and that its verdict is the exit code's.
fn document(output: &Output) -> Value {
    let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let said = String::from_utf8_lossy(&output.stderr);
    let code = if document["ok"] == true { 0 } else { 1 };
    assert_eq!(output.status.code(), Some(code), "{document:#}\n{said}");
    document
}

/// The codes of all findings that are faults.
fn faults(document: &Value) -> Vec<&str> {
    let findings = document["findings"].as_array().expect("findings");
    let faults = findings.iter().filter(|finding| finding["severity"] == "fault");
    faults.map(|finding| finding["code"].as_str().expect("a code")).collect()
}

/// Of a node that wrote it at `written_ms` for a minute.
fn lease(node: &str, written_ms: u64, address: Option<&str>) -> Vec<u8> {
    let record = Record {
        node: NodeId::parse(node).expect("a name"),
        session: SessionId::parse(&"5".repeat(32)).expect("a session"),
        write: 1,
        ttl: Micros::from_secs(60),
        written: Wall::from_millis(written_ms),
        disk: DiskId::parse(&"d".repeat(32)).expect("a disk"),
        protocol: 0,
        address: address.map(str::to_owned),
        version: "0.1.0".into(),
        load: Load::default(),
    };
    record.encode()
}

/// Every file and directory below `root`, with what it holds and when it was changed.
fn tree(root: &Path) -> BTreeMap<String, (Vec<u8>, i64, i64)> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let metadata = fs::metadata(&path).expect("metadata");
        let body = if metadata.is_dir() {
            open.extend(fs::read_dir(&path).expect("a listing").map(|e| e.expect("entry").path()));
            Vec::new()
        } else {
            fs::read(&path).expect("a file")
        };
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        found.insert(path.display().to_string(), (body, changed.0, changed.1));
    }
    found
}

#[test]
fn a_fleet_may_run_on_a_good_directory() {
    let place = Place::new();
    let output = place.diagnose(&[]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("11 of 11 kept") && text.contains("leases: none"), "{text}");
    assert!(text.contains("peers: none") && text.contains("a fleet may run here"), "{text}");
    assert!(!text.contains('█') && !text.contains('\u{1b}'), "not a terminal:\n{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("celld: trying the rules"));
    // Nothing stays of the probe, and no state directory was made.
    let bucket = celld_s3::Bucket::open_dir(&place.bucket()).expect("the bucket");
    let page = celld_rt::block_on(bucket.list("", None)).expect("a page");
    assert!(page.entries.is_empty(), "{page:?}");
    assert!(!place.0.path().join("state").exists());
}

#[test]
fn latencies_are_measured_when_asked_for() {
    let place = Place::new();
    let document = document(&place.diagnose(&["--probe", "--json"]));
    let series = document["latency"]["series"].as_array().expect("series");
    let names: Vec<_> =
        series.iter().map(|series| series["name"].as_str().expect("name")).collect();
    let wanted = ["store.cas", "store.put", "store.get", "store.list", "ack.bucket", "disk.write"];
    assert_eq!(names, wanted);
    for series in series {
        let number = |key: &str| series[key].as_u64().expect("a number");
        assert!(number("count") > 0 && number("failed") == 0, "{series}");
        let order = ["p50", "p90", "p99", "p99_9", "max"].map(number);
        assert!(order.is_sorted() && order[0] > 0, "{series}");
        assert!(series["histogram"].as_str().expect("text").starts_with("HISTFA"), "{series}");
    }
    let expected = &document["latency"]["expected_acknowledgement"];
    assert!(expected["bucket"]["p50_us"].as_u64() > Some(0), "{expected}");
    assert_eq!(expected["fleet"], Value::Null);
    assert_eq!(fs::read_dir(place.0.path()).expect("a listing").count(), 1, "only the bucket");
}

#[test]
fn who_only_reads_leaves_every_byte_and_time() {
    let objects: [(&str, &[u8]); 3] = [
        ("nodes/node-1.json", &lease("node-1", 1, None)),
        ("cells/a/own.json", b"{}"),
        ("probe/0000000000000007/object", b"of another"),
    ];
    let place = Place::with(&objects);
    let before = tree(place.0.path());
    for args in [&["--read-only", "--json"][..], &["--read-only", "--probe", "--json"]] {
        let document = document(&place.diagnose(args));
        assert_eq!(faults(&document), [""; 0]);
        assert_eq!(document["rules"], Value::Null);
        assert_eq!(document["findings"][0]["code"], "store.not-probed");
        assert_eq!(document["state"]["direct_writes"], Value::Null);
        assert!(tree(place.0.path()) == before, "{args:?}");
    }
    let empty = Place::new();
    let document = document(&empty.diagnose(&["--read-only", "--json"]));
    assert_eq!(faults(&document), ["bucket.refused"]);
    assert!(fs::read_dir(empty.0.path()).expect("a listing").next().is_none());
}

#[test]
fn each_lease_is_told_with_its_worth() {
    let far = 4_000_000_000_000;
    let huge = vec![b' '; 5_000];
    let objects: [(&str, &[u8]); 7] = [
        ("nodes/live.json", &lease("live", celld_rt::wall_ms(), Some("10.0.0.7:8788"))),
        ("nodes/dead.json", &lease("dead", 1_000, None)),
        ("nodes/ahead.json", &lease("ahead", far, None)),
        ("nodes/unsafe.json", &lease("unsafe", celld_rt::wall_ms(), Some("0.0.0.0:1"))),
        ("nodes/other.json", &lease("else", 1_000, None)),
        ("nodes/\u{1b}[2J", b"{}"),
        ("nodes/huge.json", &huge),
    ];
    let place = Place::with(&objects);
    let document = document(&place.diagnose(&["--json"]));
    let states: BTreeMap<_, _> = document["leases"]["all"]
        .as_array()
        .expect("leases")
        .iter()
        .map(|lease| (lease["key"].as_str().expect("a key"), lease["state"].as_str()))
        .collect();
    let wanted = [
        ("nodes/\u{1b}[2J", "malformed"),
        ("nodes/ahead.json", "live"),
        ("nodes/dead.json", "expired"),
        ("nodes/huge.json", "malformed"),
        ("nodes/live.json", "live"),
        ("nodes/other.json", "malformed"),
        ("nodes/unsafe.json", "live"),
    ];
    assert_eq!(states, wanted.map(|(key, state)| (key, Some(state))).into());
    let mut found = faults(&document);
    found.sort_unstable();
    let malformed = "lease.malformed";
    // Nodes say that they take peers, and nothing is there to prove anything to them with.
    let wanted = ["fleet.missing", malformed, malformed, malformed, "lease.unsafe-address"];
    assert_eq!(found, wanted);
    let text = document.to_string();
    assert!(text.contains("lease.clock-ahead"), "{text}");
    // A terminal must not obey what somebody wrote into the bucket.
    let shown = stdout(&place.diagnose(&[]));
    assert!(!shown.contains('\u{1b}') && shown.contains("\\u{1b}[2J"), "{shown}");
}

#[test]
fn an_expired_lease_keeps_nobody_from_running() {
    let place = Place::with(&[("nodes/dead.json", &lease("dead", 1_000, None))]);
    let output = place.diagnose(&[]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("leases: 1 expired") && text.contains("days ago"), "{text}");
}

#[test]
fn nodes_that_run_are_asked_and_not_disturbed() {
    let site = Site::new();
    let linked = site.node("node-1").flag("--internal-listen", "127.0.0.1:0").start();
    let alone = site.node("node-2").start();
    linked.ask("POST", "/a/append?writer=1&seq=1").good();
    let rows = linked.ask("GET", "/a/rows").text();
    let state = site.path().join("state");
    let seen =
        document(&diagnose(site.bucket(), &state, &["--json", "--probe", "--peer", "node-1"]));
    assert_eq!(faults(&seen), [""; 0], "{seen:#}");
    assert_eq!(seen["leases"]["all"][0]["state"], "live");
    let peers = &seen["peers"];
    assert_eq!((&peers[0]["node"], &peers[0]["state"]), (&"node-1".into(), &"answers".into()));
    assert_eq!((&peers[0]["resident_cells"], &peers[0]["draining"]), (&1.into(), &false.into()));
    assert_eq!((&peers[1]["node"], &peers[1]["state"]), (&"node-2".into(), &"takes-none".into()));
    let series = seen["latency"]["series"].as_array().expect("series");
    assert!(series.iter().any(|s| s["name"] == "peer.node-1" && s["count"].as_u64() > Some(10)));
    assert_eq!(linked.ask("GET", "/a/rows").text(), rows);
    drop(alone);
    // Who names a peer wants an answer of it.
    let args = ["--json", "--peer", "node-2", "--peer=node-9"];
    let seen = document(&diagnose(site.bucket(), &state, &args));
    assert_eq!(faults(&seen), ["peer.no-address", "peer.unknown"]);
}

#[test]
fn a_directory_that_cannot_be_written_is_refused() {
    let place = Place::with(&[]);
    let output = diagnose(Path::new("/proc/self/none"), &place.0.path().join("s"), &["--json"]);
    assert_eq!(faults(&document(&output)), ["bucket.refused"]);
    let output = diagnose(&place.bucket(), Path::new("/proc/self"), &["--json"]);
    let document = document(&output);
    assert!(faults(&document).contains(&"state.unusable"), "{document:#}");
    // The superuser may write wherever the permissions forbid it.
    let is_superuser = fs::metadata("/proc/self").expect("proc").uid() == 0;
    if !is_superuser {
        fs::set_permissions(place.bucket(), fs::Permissions::from_mode(0o500)).expect("rights");
        let document = self::document(&place.diagnose(&["--json"]));
        assert_eq!(faults(&document), ["store.denied"]);
        fs::set_permissions(place.bucket(), fs::Permissions::from_mode(0o700)).expect("rights");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_done() {
    let place = Place::new();
    for (args, word) in [
        (&["--prob"][..], "\"--probe\""),
        (&["--peer", "Node_1"], "--peer=\"Node_1\""),
        (&["--endpoint", "minio:9000"], "--endpoint=\"minio:9000\""),
    ] {
        let output = place.diagnose(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(word) && output.stdout.is_empty(), "{said}");
    }
    assert!(!place.bucket().exists());
    let output = place.diagnose(&["--region", "here"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--region=here has no effect"), "{said}");
}
