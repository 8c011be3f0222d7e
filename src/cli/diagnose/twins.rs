//! Whether a second request beside a slow one would help on this store (`--hedge`): requests are sent
//! in twos, and it counts whether one that is late is late alone.
//!
//! Bounds: [`ROUNDS_MAX`] rounds of four requests, [`TIME_MAX`].

use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_core::time::Micros;
use celld_core::twins::{Counts, Lateness, lateness};
use celld_s3::Bucket;
use indicatif::ProgressBar;

use super::latency::SEGMENT_BYTES;
use super::report::{Fact, Finding, micros};
use crate::cli::fleet::limited;

/// Rounds of a pair of writes and a pair of reads: five hundred of each tell what happens once in a
/// hundred times.
pub(super) const ROUNDS_MAX: u64 = 250;
/// A slow store gives fewer.
const TIME_MAX: Duration = Duration::from_secs(20);

/// One of a pair.
#[derive(Clone, Copy)]
enum Request {
    Write,
    Read,
}

/// Sends pairs of writes, on objects below a prefix of its own, and pairs of reads. `looked_at`:
/// reads only, of this object.
pub(super) async fn measure(
    bucket: &Bucket,
    nonce: u64,
    looked_at: Option<&str>,
    bar: &ProgressBar,
    findings: &mut Vec<Finding>,
) -> Fact {
    let own = [0, 1].map(|n| format!("probe/{nonce:016x}/twin-{n}"));
    let read = looked_at.map_or_else(|| own.clone(), |key| [key.to_owned(), key.to_owned()]);
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    let end = Instant::now() + TIME_MAX;
    for round in 0..ROUNDS_MAX {
        if looked_at.is_none() {
            writes.extend(pair(bucket, Request::Write, &own).await);
        }
        reads.extend(pair(bucket, Request::Read, &read).await);
        bar.set_position(round + 1);
        if Instant::now() > end {
            break;
        }
    }
    bar.finish_and_clear();
    let mut kinds = vec![("reads", lateness(&reads))];
    if looked_at.is_none() {
        let _litter = limited("probe/", bucket.delete(&own)).await;
        kinds.insert(0, ("writes", lateness(&writes)));
    }
    judge(&kinds, findings)
}

/// What both took, if both ended well.
async fn pair(bucket: &Bucket, request: Request, keys: &[String; 2]) -> Option<[Micros; 2]> {
    let [one, other] = keys.clone().map(|key| timed(bucket.clone(), request, key));
    // It runs at once, until it waits.
    let other = celld_rt::spawn_joined(other);
    let one = one.await;
    let other = other.join().await.flatten();
    Some([one?, other?])
}

async fn timed(bucket: Bucket, request: Request, key: String) -> Option<Micros> {
    let begin = Instant::now();
    let ended = match request {
        Request::Write => {
            let body = Bytes::from(vec![0; SEGMENT_BYTES]);
            limited(&key, bucket.put(&key, body)).await.map(drop)
        }
        Request::Read => limited(&key, bucket.get(&key)).await.map(drop),
    };
    ended.ok().map(|()| Micros::from_micros(micros(begin.elapsed())))
}

/// What an operator is told. Late together is worse than late alone is good.
fn judge(kinds: &[(&str, Lateness)], findings: &mut Vec<Finding>) -> Fact {
    let mut is_unknown = false;
    let (mut alone, mut together) = (None, None);
    for (name, lateness) in kinds {
        match lateness {
            Lateness::Unknown => is_unknown = true,
            Lateness::Rare => {}
            Lateness::ByChance(counts) => alone = Some(told(name, counts)),
            Lateness::Together(counts) => together = Some(told(name, counts)),
        }
    }
    let (value, shown) = match (together, alone) {
        (Some(together), _) => ("late-together", format!("would not help: {together}")),
        (None, Some(alone)) => {
            findings.push(Finding::note(
                "store.late-by-chance",
                format!("some answers are late by chance: {alone}"),
                "start nodes with --hedge: they send a second request beside one that is late",
            ));
            ("late-by-chance", format!("would help: {alone}"))
        }
        (None, None) if is_unknown => ("unknown", "not known: too few requests".to_owned()),
        (None, None) => ("hardly-late", "not needed: hardly any answer is late".to_owned()),
    };
    Fact::new("second_requests", "second requests", value, shown)
}

fn told(name: &str, counts: &Counts) -> String {
    let Counts { requests, late, alone, wait } = counts;
    format!(
        "of {requests} {name} in twos, {late} took more than three times the p95 of {wait}, {alone} \
         of them beside one that did not"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_request_is_advised_where_late_answers_are_late_alone() {
        let counts = |alone| Counts { requests: 500, late: 9, alone, wait: Micros::from_millis(8) };
        let (rare, chance) = (Lateness::Rare, Lateness::ByChance(counts(8)));
        let (together, unknown) = (Lateness::Together(counts(2)), Lateness::Unknown);
        for (writes, reads, value, advised) in [
            (rare, rare, "hardly-late", 0),
            (chance, rare, "late-by-chance", 1),
            (unknown, chance, "late-by-chance", 1),
            (chance, together, "late-together", 0),
            (together, rare, "late-together", 0),
            (rare, unknown, "unknown", 0),
        ] {
            let mut findings = Vec::new();
            let fact = judge(&[("writes", writes), ("reads", reads)], &mut findings);
            assert_eq!((&fact.value, findings.len()), (&value.into(), advised), "{fact:?}");
        }
        let mut findings = Vec::new();
        judge(&[("reads", chance)], &mut findings);
        assert!(findings[0].what.contains("of 500 reads in twos, 9 took"), "{findings:?}");
    }
}
