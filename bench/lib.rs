//! What the benches share: load, servers, processes, tables.
//!
//! One program answers one question: it prints a table and then one JSON line. Units: latencies
//! are microseconds, memory is bytes.
#![deny(missing_docs)]

pub mod args;
pub mod http;
pub mod load;
pub mod report;
pub mod server;

/// A histogram of latencies in µs: 1 µs to a minute, three digits, so that it never grows.
pub fn histogram() -> hdrhistogram::Histogram<u64> {
    hdrhistogram::Histogram::new_with_bounds(1, 60_000_000, 3).expect("the bounds are sound")
}

/// One latency in µs. What is longer than a minute counts as a minute.
pub fn record(histogram: &mut hdrhistogram::Histogram<u64>, latency: std::time::Duration) {
    histogram.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1));
}
