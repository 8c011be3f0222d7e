//! How long the store and the disk take, one request at a time, and what that makes of an
//! acknowledgement.
//!
//! An acknowledgement in bucket mode is the upload of a segment and then a read of `own.json`, so
//! the two are measured back to back and their sum is a series of its own. In fleet mode it is a
//! write to this node's disk and, at the same time, the way to a follower and a write to its disk.
//!
//! Units: microseconds. Bounds: [`ROUNDS_MAX`] rounds of four requests, [`TIME_MAX`].

use std::borrow::Cow;
use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_core::time::Micros;
use celld_s3::{Bucket, CasOutcome, Etag, Guard, StoreError};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::disk;
use super::report::{Finding, micros};
use crate::cli::fleet::limited;

/// Rounds on the store. Enough for a p99; the p99.9 is then nearly the longest.
pub(super) const ROUNDS_MAX: u64 = 250;
/// Writes to the disk.
pub(super) const DISK_MAX: u64 = 1_000;
/// For the store, and again for the disk: a slow one gives fewer samples.
const TIME_MAX: Duration = Duration::from_secs(20);
/// A store that fails this often is not worth more rounds.
const FAILURES_MAX: u64 = 20;
/// What one small commit of a cell is: a segment with a page.
pub(super) const SEGMENT_BYTES: usize = 1_024;
/// Segments, and so what a listing shows.
const SEGMENTS: u64 = 32;
/// The longest latency that a histogram tells from a longer one.
const LATENCY_MAX_US: u64 = 60_000_000;
/// From here on a lease is renewed late.
const CAS_P99_MAX: Duration = Duration::from_secs(1);
/// From here on a spool on this disk is slower than many buckets.
const FLUSH_P99_MAX: Duration = Duration::from_millis(100);

/// Latencies of one kind of request.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) key: Cow<'static, str>,
    pub(super) name: Cow<'static, str>,
    pub(super) latency: Histogram<u64>,
    /// Requests that did not do what they should; they are not in the histogram.
    pub(super) failed: u64,
    /// Of the last of them.
    error: Option<String>,
}

/// All that was measured.
#[derive(Debug)]
pub(super) struct Latency {
    pub(super) series: Vec<Series>,
}

/// What an acknowledgement of this node takes that another one's disk proves.
pub(super) struct FleetAck<'a> {
    pub(super) p50: Micros,
    pub(super) p99: Micros,
    /// The one that answers first.
    pub(super) follower: &'a str,
}

/// The key of the series of this node's disk.
pub(super) const DISK: &str = "disk.write";
/// What the keys of other nodes' flushes begin with; their names follow.
pub(super) const FLUSH_PREFIX: &str = "flush.";
/// The key of the series of acknowledgements.
pub(super) const ACK_BUCKET: &str = "ack.bucket";

impl Series {
    /// # Panics
    /// Never: the bounds are good.
    pub(super) fn new(
        key: impl Into<Cow<'static, str>>,
        name: impl Into<Cow<'static, str>>,
    ) -> Self {
        let latency =
            Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("the bounds are good");
        Self { key: key.into(), name: name.into(), latency, failed: 0, error: None }
    }

    pub(super) fn record(&mut self, took: Duration) {
        self.latency.saturating_record(micros(took).max(1));
    }

    pub(super) fn count(&self) -> u64 {
        self.latency.len()
    }

    pub(super) fn quantile(&self, quantile: f64) -> Micros {
        // A value stands for its bucket, whose end may lie past the longest one seen.
        let us = self.latency.value_at_quantile(quantile).min(self.latency.max());
        Micros::from_micros(us)
    }

    pub(super) fn fail(&mut self, error: String) {
        self.failed += 1;
        self.error = Some(error);
    }

    /// Records how long `request` takes, if it ends well.
    async fn time<T>(
        &mut self,
        key: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Option<(T, Duration)> {
        let begin = Instant::now();
        match limited(key, request).await {
            Ok(answer) => {
                let took = begin.elapsed();
                self.record(took);
                Some((answer, took))
            }
            Err(error) => {
                self.fail(error.to_string());
                None
            }
        }
    }

    fn json(&self) -> Value {
        let quantile = |quantile| self.quantile(quantile).as_micros();
        json!({
            "name": self.key,
            "unit": "us",
            "count": self.count(),
            "failed": self.failed,
            "p50": quantile(0.5),
            "p90": quantile(0.9),
            "p99": quantile(0.99),
            "p99_9": quantile(0.999),
            "max": self.quantile(1.0).as_micros(),
            "histogram": encoded(&self.latency),
        })
    }
}

impl Latency {
    /// The series with this key, if anything was recorded in it.
    pub(super) fn of(&self, key: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.key == key && series.count() > 0)
    }

    /// The owner's disk and the follower's are written at the same time, and both are waited for.
    pub(super) fn fleet_ack(&self) -> Option<FleetAck<'_>> {
        let disk = self.of(DISK)?;
        let flushes = self.series.iter().filter(|series| series.count() > 0).filter_map(|series| {
            let follower = series.key.strip_prefix(FLUSH_PREFIX)?;
            let both = |quantile| series.quantile(quantile).max(disk.quantile(quantile));
            Some(FleetAck { p50: both(0.5), p99: both(0.99), follower })
        });
        flushes.min_by_key(|ack| ack.p50)
    }

    pub(super) fn json(&self) -> Value {
        let expected = self.of(ACK_BUCKET).map(|ack| {
            let quantile = |quantile| ack.quantile(quantile).as_micros();
            json!({ "p50_us": quantile(0.5), "p99_us": quantile(0.99) })
        });
        let fleet = self.fleet_ack().map(|FleetAck { p50, p99, follower }| {
            json!({
                "p50_us": p50.as_micros(),
                "p99_us": p99.as_micros(),
                "follower": follower,
            })
        });
        json!({
            "series": self.series.iter().map(Series::json).collect::<Vec<_>>(),
            "expected_acknowledgement": { "bucket": expected, "fleet": fleet },
        })
    }
}

/// In the form that all HdrHistogram tools read: V2, compressed, base64.
fn encoded(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    let written = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
    written.expect("memory takes all of a histogram");
    base64_simd::STANDARD.encode_to_string(bytes)
}

/// Measures the store, on objects below a prefix of its own, named by `nonce`. `looked_at`: measure
/// reads only, of this object.
pub(super) async fn store(
    bucket: &Bucket,
    nonce: u64,
    looked_at: Option<&str>,
    bar: &ProgressBar,
    findings: &mut Vec<Finding>,
) -> Latency {
    let mut rounds = Rounds::new(bucket, nonce);
    let end = Instant::now() + TIME_MAX;
    if looked_at.is_none() {
        rounds.warm_up().await;
    }
    for round in 0..ROUNDS_MAX {
        match looked_at {
            Some(key) => rounds.look(key).await,
            None => rounds.round(round).await,
        }
        bar.set_position(round + 1);
        if Instant::now() > end || rounds.failures() >= FAILURES_MAX {
            break;
        }
    }
    bar.finish_and_clear();
    if looked_at.is_none() {
        let _litter = limited("probe/", bucket.delete(&rounds.keys())).await;
    }
    let Rounds { cas, put, get, list, ack, .. } = rounds;
    let mut series = vec![cas, put, get, list, ack];
    series.retain(|series| series.count() + series.failed > 0);
    let latency = Latency { series };
    judge_store(&latency, findings);
    latency
}

/// Measures the disk below the state directory.
pub(super) fn disk(
    directory: &std::path::Path,
    bar: &ProgressBar,
    findings: &mut Vec<Finding>,
) -> Series {
    let mut series = Series::new(DISK, "disk write + flush");
    let end = Instant::now() + TIME_MAX;
    let measured = disk::measure(directory, &mut series, |series| {
        bar.set_position(series.count());
        series.count() == DISK_MAX || Instant::now() > end
    });
    bar.finish_and_clear();
    if let Err(error) = measured {
        // The look at the directory has told more about it.
        series.fail(error.to_string());
    } else if series.quantile(0.99) > of(FLUSH_P99_MAX) {
        findings.push(Finding::warning(
            "state.slow",
            format!("a write and flush takes {} at the p99", series.quantile(0.99)),
            "put --state on a faster disk, or one that others do not keep busy",
        ));
    }
    series
}

struct Rounds<'a> {
    bucket: &'a Bucket,
    prefix: String,
    own: String,
    etag: Option<Etag>,
    cas: Series,
    put: Series,
    get: Series,
    list: Series,
    ack: Series,
}

impl<'a> Rounds<'a> {
    fn new(bucket: &'a Bucket, nonce: u64) -> Self {
        let prefix = format!("probe/{nonce:016x}/");
        Self {
            bucket,
            own: format!("{prefix}own.json"),
            prefix,
            etag: None,
            cas: Series::new("store.cas", "store: swap"),
            put: Series::new("store.put", "store: put of 1 KiB"),
            get: Series::new("store.get", "store: get"),
            list: Series::new("store.list", "store: list"),
            ack: Series::new(ACK_BUCKET, "put, then get"),
        }
    }

    fn failures(&self) -> u64 {
        self.cas.failed + self.put.failed + self.get.failed + self.list.failed
    }

    fn segment(&self, round: u64) -> String {
        format!("{}segment-{:02}", self.prefix, round % SEGMENTS)
    }

    fn keys(&self) -> Vec<String> {
        let segments = (0..SEGMENTS).map(|n| self.segment(n));
        std::iter::once(self.own.clone()).chain(segments).collect()
    }

    /// The first request of each kind pays for connections, which nodes open at their start.
    async fn warm_up(&mut self) {
        let body = Bytes::from(vec![0; SEGMENT_BYTES]);
        let _cold = limited(&self.prefix, self.bucket.put(&self.segment(0), body)).await;
        let put = limited(&self.own, self.bucket.put(&self.own, record(u64::MAX))).await;
        self.etag = put.ok();
    }

    /// Reads only.
    async fn look(&mut self, key: &str) {
        self.get.time(key, self.bucket.get(key)).await;
        self.list.time("nodes/", self.bucket.list("nodes/", None)).await;
    }

    async fn round(&mut self, round: u64) {
        if let Some(etag) = self.etag.take() {
            let written = self.bucket.put_if(&self.own, Guard::Match(etag), record(round));
            let begin = Instant::now();
            match limited(&self.own, written).await {
                Ok(CasOutcome::Applied(etag)) => {
                    self.cas.record(begin.elapsed());
                    self.etag = Some(etag);
                }
                Ok(CasOutcome::Refused) => self.cas.fail("it was refused".to_owned()),
                Ok(CasOutcome::Unknown) => self.cas.fail("it stayed without answer".to_owned()),
                Err(error) => self.cas.fail(error.to_string()),
            }
        }
        let segment = self.segment(round);
        let body = Bytes::from(vec![round.to_le_bytes()[0]; SEGMENT_BYTES]);
        let put = self.put.time(&segment, self.bucket.put(&segment, body)).await;
        let get = self.get.time(&self.own, self.bucket.get(&self.own)).await;
        if let (Some((_, put)), Some((seen, get))) = (put, get) {
            self.ack.record(put + get);
            // After a swap without answer, the read tells which version stands.
            self.etag = seen.map(|object| object.etag);
        }
        self.list.time(&self.prefix, self.bucket.list(&self.prefix, None)).await;
    }
}

/// Of the size of an ownership record. No two of a run are equal.
fn record(round: u64) -> Bytes {
    Bytes::from(format!("{:<200}", json!({ "diagnose": round }).to_string()))
}

fn of(span: Duration) -> Micros {
    Micros::from_micros(micros(span))
}

fn judge_store(latency: &Latency, findings: &mut Vec<Finding>) {
    for series in &latency.series {
        if let Some(error) = &series.error {
            let all = series.failed + series.count();
            findings.push(Finding::warning(
                "store.errors",
                format!("{}: {} of {all} requests failed: {error}", series.name, series.failed),
                "look at the store's own log; its clients repeat what may be repeated",
            ));
        }
    }
    let Some(cas) = latency.of("store.cas") else { return };
    let limit = crate::cli::serve::LEASE_TTL / 3;
    if cas.quantile(0.5) > of(limit) {
        findings.push(Finding::fault(
            "store.too-slow",
            format!(
                "a swap takes {} at the median, and a lease waits {limit:?}",
                cas.quantile(0.5)
            ),
            "use a store that is nearer, or a longer CELLD_TTL_MS on all nodes",
        ));
    } else if cas.quantile(0.99) > of(CAS_P99_MAX) {
        findings.push(Finding::warning(
            "store.slow",
            format!("a swap takes {} at the p99", cas.quantile(0.99)),
            "use a store that is nearer: leases are renewed late, and acknowledgements wait",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples from 1 to `n` milliseconds.
    fn series(key: &'static str, n: u64) -> Series {
        let mut series = Series::new(key, key);
        (1..=n).for_each(|ms| series.record(Duration::from_millis(ms)));
        series
    }

    #[test]
    fn a_histogram_survives_its_encoding() {
        use hdrhistogram::serialization::Deserializer;
        let series = series("store.put", 250);
        let json = series.json();
        let text = json["histogram"].as_str().expect("text");
        let bytes = base64_simd::STANDARD.decode_to_vec(text).expect("base64");
        let back: Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes.as_slice()).expect("a histogram");
        assert_eq!(back, series.latency);
        assert!(text.starts_with("HISTFA"), "{text}");
    }

    #[test]
    fn quantiles_are_what_was_recorded() {
        let json = series("store.put", 1_000).json();
        let near = |key: &str, us: u64| {
            let seen = json[key].as_u64().expect("a number");
            assert!(seen.abs_diff(us) <= us / 500, "{key}: {seen}");
        };
        near("p50", 500_000);
        near("p90", 900_000);
        near("p99", 990_000);
        near("p99_9", 999_000);
        near("max", 1_000_000);
        assert_eq!(json["count"], 1_000);
    }

    #[test]
    fn a_bucket_is_measured_and_left_as_it_was() {
        let directory = tempfile::tempdir().expect("a directory");
        let bucket = Bucket::open_dir(directory.path()).expect("a bucket");
        let mut findings = Vec::new();
        let latency = celld_rt::block_on(async {
            let measured = store(&bucket, 7, None, &ProgressBar::hidden(), &mut findings).await;
            assert!(bucket.list("", None).await.expect("a page").entries.is_empty());
            measured
        });
        let counts: Vec<_> = latency.series.iter().map(|s| (&*s.key, s.failed)).collect();
        let keys = ["store.cas", "store.put", "store.get", "store.list", ACK_BUCKET];
        assert_eq!(counts, keys.map(|key| (key, 0)));
        let ack = latency.of(ACK_BUCKET).expect("acknowledgements");
        assert!(ack.count() > 0 && ack.quantile(0.5) >= latency.series[1].quantile(0.01));
    }

    #[test]
    fn a_slow_store_is_judged_by_what_a_lease_can_wait() {
        for (ms, code) in
            [(500, None), (1_500, Some("store.slow")), (9_000, Some("store.too-slow"))]
        {
            let latency = Latency { series: vec![series("store.cas", ms)] };
            let mut findings = Vec::new();
            judge_store(&latency, &mut findings);
            assert_eq!(findings.first().map(|finding| finding.code), code, "{ms}");
        }
    }
}
