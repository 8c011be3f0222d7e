//! The store: whether it answers, whose clock is right, and whether it keeps the rules.

use std::time::Duration;

use celld_s3::{Bucket, Check, ProbeFault, ProbeReport, StoreError};
use serde_json::Value;

use super::report::{Fact, Finding, micros};
use crate::cli::fleet::limited;

/// A store states its time in whole seconds.
const CLOCK_OFFSET_MS_MAX: u64 = 2_000;

/// Whether it answers at all; everything else needs that.
pub(super) async fn reach(bucket: &Bucket, findings: &mut Vec<Finding>) -> Option<Fact> {
    let begin = celld_rt::mono_us();
    match limited("nodes/", bucket.list("nodes/", None)).await {
        Ok(_) => {
            let took = celld_rt::mono_us() - begin;
            let shown = format!("in {}", celld_core::time::Micros::from_micros(took));
            Some(Fact::new("reached_us", "answers", took, shown))
        }
        Err(error) => {
            findings.push(unusable(&error));
            None
        }
    }
}

/// What an error of the store says to an operator.
pub(super) fn unusable(error: &StoreError) -> Finding {
    let (code, advice) = match error {
        StoreError::Denied { .. } => {
            ("store.denied", "give this machine's credentials get, put, list and delete rights")
        }
        StoreError::Full { .. } => ("store.full", "free space or raise the quota"),
        StoreError::Throttled { .. } => {
            ("store.throttled", "raise the store's limits, or wait and run this again")
        }
        StoreError::Broken { .. } => ("store.broken", "use another store"),
        StoreError::Unreachable { .. } => {
            ("store.unreachable", "check the URL, the endpoint, the network and the store")
        }
        StoreError::BadKey { .. }
        | StoreError::Missing { .. }
        | StoreError::Range { .. }
        | StoreError::TooLarge { .. } => ("store.failed", "check the bucket and its prefix"),
    };
    Finding::fault(code, error.to_string(), advice)
}

/// What the store's clock says of ours; `offset_ms` is how far it is ahead.
pub(super) fn clock(offset_ms: Option<i64>, findings: &mut Vec<Finding>) -> Fact {
    let Some(offset) = offset_ms else {
        return Fact::new("clock_offset_ms", "clock", Value::Null, "it has none of its own");
    };
    let is_near = offset.unsigned_abs() <= CLOCK_OFFSET_MS_MAX;
    let seconds = offset.unsigned_abs() as f64 / 1_000.0;
    let shown = if is_near {
        "as this machine's, to the second".to_owned()
    } else {
        let which = if offset > 0 { "ahead of" } else { "behind" };
        format!("{seconds:.1} s {which} this machine's")
    };
    if !is_near {
        // Nothing that a node owns hangs on a wall clock, and signatures follow the store's.
        findings.push(Finding::warning(
            "clock.offset",
            format!("the store's clock is {shown}"),
            "set this machine's clock by NTP: alarms fire by it, and Azure refuses signatures \
             that are 15 minutes off",
        ));
    }
    Fact::new("clock_offset_ms", "clock", offset, shown)
}

/// Tries the store's rules.
pub(super) async fn probe(
    bucket: &Bucket,
    findings: &mut Vec<Finding>,
) -> (Fact, Option<Vec<Check>>) {
    let begin = celld_rt::mono_us();
    let ProbeReport { checks, needs_bare_etags } = celld_s3::probe(bucket).await;
    let took = Duration::from_micros(celld_rt::mono_us() - begin);
    findings.extend(checks.iter().filter_map(|check| check.fault.as_ref()).map(broken));
    if needs_bare_etags {
        findings.push(Finding::note(
            "store.bare-etags",
            "the store finds a version only when it is named without quotes",
            "nothing: each node finds that out when it starts",
        ));
    }
    (rules(&checks, took), Some(checks))
}

/// Who only looks cannot try them.
pub(super) fn not_probed(findings: &mut Vec<Finding>) -> (Fact, Option<Vec<Check>>) {
    findings.push(Finding::note(
        "store.not-probed",
        "the store's rules were not tried, as that writes",
        "run this without --read-only before data depends on the store",
    ));
    (Fact::new("rules_kept", "rules", Value::Null, "not tried: --read-only"), None)
}

fn rules(checks: &[Check], took: Duration) -> Fact {
    let kept = checks.iter().filter(|check| check.fault.is_none()).count();
    let all = celld_s3::Rule::ALL.len();
    let time = celld_core::time::Micros::from_micros(micros(took));
    Fact::new("rules_kept", "rules", kept, format!("{kept} of {all} kept, tried in {time}"))
}

fn broken(fault: &ProbeFault) -> Finding {
    Finding::fault(fault.code(), fault.to_string(), fault.advice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_off_is_told_past_what_a_store_can_tell() {
        for (offset, shown, told) in [
            (None, "it has none of its own", 0),
            (Some(0), "as this machine's, to the second", 0),
            (Some(-2_000), "as this machine's, to the second", 0),
            (Some(2_001), "2.0 s ahead of this machine's", 1),
            (Some(-3_600_000), "3600.0 s behind this machine's", 1),
        ] {
            let mut findings = Vec::new();
            assert_eq!(clock(offset, &mut findings).shown, shown);
            assert_eq!(findings.len(), told, "{offset:?}");
        }
    }
}
