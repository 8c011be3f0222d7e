//! A whole report with fixed numbers, as text and as JSON.

use std::path::PathBuf;
use std::time::Duration;

use celld_core::lease::{Load, Record};
use celld_core::node::{DiskId, NodeId, SessionId};
use celld_core::time::{Micros, Wall};
use celld_peer::probe::ProbeReply;
use celld_s3::{Check, ProbeFault, Rule};

use super::latency::{ACK_BUCKET, Latency, Series};
use super::leases::{Leases, Seen, State};
use super::peers::{Peer, PeerState, Peers};
use super::render::{self, Look};
use super::report::{Fact, Finding, Report};

fn series(key: &'static str, name: &'static str, us: u64) -> Series {
    let mut series = Series::new(key, name);
    (1..=100).for_each(|n| series.record(Duration::from_micros(us + n * us / 100)));
    series
}

/// Once in a hundred times it takes 5 ms.
fn slow_at_times(mut series: Series) -> Series {
    (0..2).for_each(|_| series.record(Duration::from_millis(5)));
    series
}

fn lease(node: &str, state: State, address: Option<&str>) -> Seen {
    let record = Record {
        node: NodeId::parse(node).expect("a name"),
        session: SessionId::parse(&"5".repeat(32)).expect("a session"),
        write: 3,
        ttl: Micros::from_secs(10),
        written: Wall::from_millis(1),
        disk: DiskId::parse(&"d".repeat(32)).expect("a disk"),
        protocol: 0,
        address: address.map(str::to_owned),
        version: "0.1.0".into(),
        load: Load::default(),
    };
    let key = format!("nodes/{node}.json");
    Seen { key, state, record: Some(record), unsafe_address: None }
}

fn malformed(key: &str) -> Seen {
    let state = State::Malformed("node lease: field `node` is missing".into());
    Seen { key: key.into(), state, record: None, unsafe_address: None }
}

fn peers() -> Vec<Peer> {
    let reply = ProbeReply {
        protocol: 1,
        version: "0.1.0".into(),
        node: NodeId::parse("node-3").expect("a name"),
        session: SessionId::parse(&"5".repeat(32)).expect("a session"),
        shards: 4,
        resident_cells: 1_200,
        load_permille: 345,
        restoring: 2,
        is_draining: true,
    };
    let well = PeerState::Well { reply, took: Duration::from_micros(640) };
    let peer = |node, state| Peer { node: NodeId::parse(node).expect("a name"), state };
    vec![
        peer("node-1", PeerState::TakesNone),
        peer("node-2", PeerState::NotAsked("its address is unsafe".into())),
        peer("node-3", well),
        peer("node-4", PeerState::Ill("nobody is there".into())),
    ]
}

fn report() -> Report {
    let live = State::Live { left: Duration::from_millis(7_250) };
    let expired = State::Expired { since: Duration::from_secs(10_000) };
    let mut bad = lease("node-2", live.clone(), Some("0.0.0.0:1"));
    bad.unsafe_address = Some("it is the address of no machine");
    let seen = vec![
        lease("node-1", live, None),
        bad,
        lease("old", expired, Some("10.0.0.7:8788")),
        malformed("nodes/\u{1b}[2J.json"),
    ];
    let rule = Rule::StaleUpdate;
    let fault = || ProbeFault::Broken {
        rule,
        code: rule.code(),
        sent: "a conditional write".into(),
        came: "it was applied".into(),
    };
    let check =
        Check { rule, attempts: 1, took: Duration::from_micros(1_500), fault: Some(fault()) };
    Report {
        bucket: "file:///srv/celld".into(),
        directory: PathBuf::from(".celld/state"),
        is_read_only: false,
        system: vec![Fact::new("kernel", "kernel", "6.1.0", "6.1.0")],
        state: vec![Fact::new("flush_us", "write + flush", 1_210, "1.21 ms")],
        store: vec![Fact::new("rules_kept", "rules", 10, "10 of 11 kept, tried in 98.00 ms")],
        rules: Some(vec![check]),
        leases: Some(Leases { seen, is_complete: true }),
        peers: Some(Peers { seen: peers() }),
        latency: Some(Latency {
            series: vec![
                series("store.put", "store: put of 1 KiB", 1_000),
                series(ACK_BUCKET, "put, then get", 1_200),
                series("flush.node-2", "flush at node-2", 400),
                series("flush.node-3", "flush at node-3", 300),
                Series::new("flush.node-4", "flush at node-4"),
                slow_at_times(series("disk.write", "disk write + flush", 200)),
            ],
        }),
        findings: vec![
            Finding::note("lease.many", "many", "delete some"),
            Finding::warning("state.slow", "slow", "buy another"),
            Finding::fault(rule.code(), fault().to_string(), fault().advice()),
            Finding::fault("lease.malformed", "nodes/\u{1b}[2J.json: bad", "find out who"),
        ],
    }
}

#[test]
fn a_report_reads_like_this() {
    let mut report = report();
    report.sort();
    let wanted = "\
file:///srv/celld
system
  kernel          6.1.0
state directory .celld/state
  write + flush   1.21 ms
store
  rules           10 of 11 kept, tried in 98.00 ms
leases: 2 live, 1 expired, 1 malformed
  node-1          live, 7.25 s left; protocol 0, takes no peers
  node-2          live, 7.25 s left; protocol 0, at 0.0.0.0:1 (unsafe: it is the address of no machine)
  \\u{1b}[2J       malformed
  old             expired 2 h ago; protocol 0, at 10.0.0.7:8788
peers
  node-1          takes no peers
  node-2          not asked: its address is unsafe
  node-3          answers in 640 µs; version 0.1.0, protocol 1, 4 shards, 1200 cells, 34.5 % busy, 2 restoring, stopping
  node-4          does not answer as it should
latency                      p50       p90       p99     p99.9       max  count
  store: put of 1 KiB    1.50 ms   1.90 ms   1.99 ms   2.00 ms   2.00 ms    100
  put, then get          1.80 ms   2.28 ms   2.38 ms   2.40 ms   2.40 ms    100
  flush at node-2         600 µs    760 µs    796 µs    800 µs    800 µs    100
  flush at node-3         450 µs    570 µs    597 µs    600 µs    600 µs    100
  flush at node-4           0 µs      0 µs      0 µs      0 µs      0 µs      0
  disk write + flush      302 µs    384 µs   5.00 ms   5.00 ms   5.00 ms    102
expected acknowledgement of a write by this node
  bucket mode     1.80 ms, 2.38 ms at the p99
  fleet mode      450 µs, 5.00 ms at the p99, with node-3 as follower
findings
  fault   store.cas.stale-accepted: the store breaks a rule: a conditional write that names an old version must be refused; sent: a conditional write; came back: it was applied; a node that was replaced could take a cell back, and acknowledged writes of the new owner would be lost
          use another store, or another version of this one
  fault   lease.malformed: nodes/\u{fffd}[2J.json: bad
          find out who
  warning state.slow: slow
          buy another
  note    lease.many: many
          delete some
a fleet must not run here: 2 faults, 1 warning
";
    assert_eq!(render::text(&report, Look::Plain), wanted);
    let drawn = render::text(&report, Look::Bars);
    assert!(drawn.contains("|1 ms") && drawn.contains('█'), "{drawn}");
}

#[test]
fn a_report_without_faults_says_that_a_fleet_may_run() {
    let mut report = report();
    report.findings.retain(|finding| finding.code == "state.slow");
    assert!(report.is_good());
    let text = render::text(&report, Look::Plain);
    assert!(text.ends_with("a fleet may run here: no fault, 1 warning\n"), "{text}");
}

#[test]
fn a_program_finds_all_of_it_in_one_document() {
    let json = report().json();
    assert_eq!(json["ok"], false);
    assert_eq!(json["system"]["kernel"], "6.1.0");
    assert_eq!(json["rules"][0]["kept"], false);
    assert_eq!(json["rules"][0]["code"], "store.cas.stale-accepted");
    assert_eq!(json["leases"]["all"][0]["left_ms"], 7_250);
    assert_eq!(json["leases"]["all"][2]["state"], "expired");
    assert_eq!(json["latency"]["series"][0]["count"], 100);
    let fleet = &json["latency"]["expected_acknowledgement"]["fleet"];
    assert_eq!((&fleet["p50_us"], &fleet["follower"]), (&450.into(), &"node-3".into()));
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(4));
    let states: Vec<_> =
        json["peers"].as_array().expect("peers").iter().map(|p| &p["state"]).collect();
    assert_eq!(states, ["takes-none", "not-asked", "answers", "unanswered"]);
    assert_eq!(json["peers"][2]["resident_cells"], 1_200);
}

#[test]
fn an_acknowledgement_in_fleet_mode_takes_both_disks() {
    for missing in ["flush.", "disk.write"] {
        let mut report = report();
        let latency = report.latency.as_mut().expect("it was measured");
        latency.series.retain(|series| !series.key.starts_with(missing));
        let text = render::text(&report, Look::Plain);
        assert!(text.contains("  fleet mode      not measured: "), "{text}");
        let json = report.json();
        assert!(json["latency"]["expected_acknowledgement"]["fleet"].is_null(), "{json}");
    }
}

/// The first text in quotes behind each call that makes a finding.
fn codes_of_source() -> Vec<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/cli/diagnose");
    let mut codes: Vec<_> = Rule::ALL.map(|rule| rule.code().to_owned()).into();
    for entry in std::fs::read_dir(root).expect("the source") {
        let path = entry.expect("an entry").path();
        if path.ends_with("tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(path).expect("text");
        for call in ["Finding::fault(", "Finding::warning(", "Finding::note("] {
            let named = text.split(call).skip(1).filter_map(|rest| {
                rest.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next())
            });
            codes.extend(named.map(str::to_owned));
        }
    }
    codes
}

#[test]
fn the_document_has_each_code_and_no_other() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("docs/diagnose.md")).expect("the document");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let told: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
    let codes = codes_of_source();
    assert!(codes.len() > 30, "{codes:?}");
    for code in &codes {
        assert!(told.contains(&code.as_str()), "{code} is not in docs/diagnose.md");
    }
    // Those that an error of the store has are chosen by a match.
    let matched = |code: &str| code.starts_with("store.");
    for code in told {
        assert!(matched(code) || codes.iter().any(|known| known == code), "{code} is not known");
    }
}

#[test]
fn old_leases_do_not_fill_the_screen() {
    let mut report = report();
    let seen = (0..50)
        .map(|n| {
            let since = Duration::from_secs(n * 100_000);
            lease(&format!("n{n}"), State::Expired { since }, None)
        })
        .collect();
    report.leases = Some(Leases { seen, is_complete: true });
    let text = render::text(&report, Look::Plain);
    assert!(text.contains("and 30 more that have expired") && !text.contains("n20 "), "{text}");
}
