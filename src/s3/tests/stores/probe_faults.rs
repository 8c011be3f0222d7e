//! The probe before stores that break one rule each: all are refused, by the name of that rule.

use std::time::{Duration, Instant};

use celld_s3::{ProbeFault, ProbeReport, probe};
use celld_stores::{Faulty, Kind, Outage, Store};
use serde_json::{Value, json};

use crate::open_through;

/// A probe of a store with these faults; `None`: it is not installed.
fn report(kind: Kind, faults: &Value) -> Option<ProbeReport> {
    let proxy = Faulty::before(Store::shared(kind)?)?;
    proxy.set(faults.clone());
    Some(celld_rt::block_on(async { probe(&open_through(&proxy)).await }))
}

/// The codes of all rules that it found broken.
fn broken(report: &ProbeReport) -> Vec<&'static str> {
    let faults = report.checks.iter().filter_map(|check| check.fault.as_ref());
    faults.filter(|f| matches!(f, ProbeFault::Broken { .. })).map(ProbeFault::code).collect()
}

/// Asserts that exactly these rules are found broken.
fn breaks(kind: Kind, faults: &Value, codes: &[&str]) {
    let Some(report) = report(kind, faults) else { return };
    assert_eq!(broken(&report), codes, "{faults}: {report:#?}");
    report.verdict().expect_err("a store that breaks a rule");
}

#[test]
fn a_store_that_ignores_conditions_is_refused() {
    // Each kind of condition by itself; signatures are kept by signing anew.
    for kind in [Kind::Seaweed, Kind::Ministack] {
        breaks(
            kind,
            &json!({"ignore_conditions": "create"}),
            &["store.create.twice-accepted", "store.create.race-lost"],
        );
    }
    let cas = ["store.cas.stale-accepted", "store.cas.absent-accepted", "store.cas.race-lost"];
    breaks(Kind::Ministack, &json!({"ignore_conditions": "cas"}), &cas);
}

#[test]
fn a_store_that_checks_and_then_writes_is_refused_by_the_races_alone() {
    let races = ["store.create.race-lost", "store.cas.race-lost"];
    breaks(Kind::Ministack, &json!({"racy_conditions": 300}), &races);
}

#[test]
fn a_store_that_answers_404_to_a_create_is_refused_with_that_defect() {
    let faults = json!({"wrong_error": "minio"});
    breaks(Kind::Ministack, &faults, &["store.create.not-found", "store.create.race-lost"]);
}

#[test]
fn a_store_that_knows_no_conditions_on_versions_is_refused_and_its_rights_are_not_blamed() {
    let Some(report) = report(Kind::Ministack, &json!({"wrong_error": "swift"})) else { return };
    let codes = broken(&report);
    assert!(!codes.is_empty(), "{report:#?}");
    assert!(codes.iter().all(|code| *code == "store.cas.current-refused"), "{codes:?}");
    let fault = report.verdict().expect_err("no cell could move there").to_string();
    assert!(
        fault.contains("501 NotImplemented") && fault.contains("a plain one was not"),
        "{fault}"
    );
}

#[test]
fn a_store_that_reads_other_ranges_is_refused() {
    for mode in ["whole", "whole206", "shift", "short", "long"] {
        breaks(Kind::Ministack, &json!({"bad_range": mode}), &["store.range.wrong"]);
    }
}

#[test]
fn a_store_that_answers_from_an_old_copy_is_refused() {
    let Some(report) = report(Kind::Ministack, &json!({"stale_read": 1.0})) else { return };
    assert!(broken(&report).contains(&"store.read.stale"), "{report:#?}");
    breaks(Kind::Ministack, &json!({"stale_list": 1.0}), &["store.list.wrong"]);
}

#[test]
fn a_store_that_does_not_say_that_a_condition_failed_is_refused() {
    for status in ["200", "304", "500:UnknownError"] {
        let Some(report) = report(Kind::Ministack, &json!({"wrong_error": status})) else { return };
        let fault = report.verdict().expect_err("no node can lose a race there");
        assert!(!fault.to_string().is_empty());
    }
}

#[test]
fn a_store_that_is_slow_or_loses_some_answers_passes() {
    // So few that four attempts of the probe practically never all meet one that they cannot see through.
    for faults in [
        json!({"latency_ms": "150,100"}),
        json!({"lose_response": 0.04}),
        json!({"error": "0.03"}),
        json!({"cut": 0.03}),
    ] {
        let Some(report) = report(Kind::Ministack, &faults) else { return };
        report.verdict().unwrap_or_else(|fault| panic!("{faults}: {fault}"));
    }
}

#[test]
fn a_store_that_is_away_is_refused_in_bounded_time_without_blaming_its_rules() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    // Most of it is waiting, so all of them at once.
    let modes = [Outage::Cut, Outage::Refuse, Outage::Hang, Outage::Unavailable];
    let probes = modes.map(|mode| std::thread::spawn(move || is_refused_while_away(store, mode)));
    for probe in probes {
        probe.join().expect("no panic");
    }
}

fn is_refused_while_away(store: &Store, mode: Outage) {
    let Some(proxy) = Faulty::before(store) else { return };
    proxy.outage(Duration::from_secs(600), mode);
    let begin = Instant::now();
    let report = celld_rt::block_on(async { probe(&open_through(&proxy)).await });
    let took = begin.elapsed();
    let fault = report.verdict().expect_err("it cannot be probed");
    assert_eq!(fault.code(), "store.unanswered", "{mode:?}: {fault}");
    assert!(fault.to_string().contains("nothing is known about its rules"), "{fault}");
    assert!(took < Duration::from_secs(120), "{mode:?}: {took:?}");
    let asked = proxy.requests().len();
    assert!(asked < 60, "{mode:?}: {asked} requests of a store that is away");
    println!("{mode:?}: refused after {took:?} and {asked} requests");
}
