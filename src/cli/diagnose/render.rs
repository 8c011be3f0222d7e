//! A report as text, for a person.
//!
//! What comes from the bucket is shown with its control characters escaped: a terminal would obey
//! them.

use std::fmt::Write as _;
use std::time::Duration;

use celld_core::time::Micros;

use super::bars;
use super::latency::{ACK_BUCKET, FleetAck, Latency};
use super::leases::{Leases, Seen, State};
use super::peers::Peers;
use super::report::{Fact, Finding, Report, Severity, micros};

/// Expired leases that are shown one by one: a bucket may hold those of years.
const EXPIRED_MAX: usize = 20;

/// Whether lines are drawn as bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Numbers only.
    Plain,
    /// For a terminal.
    Bars,
}

/// The whole report, in lines.
pub(super) fn text(report: &Report, look: Look) -> String {
    let mut text = format!("{}\n", report.bucket.escape_debug());
    section(&mut text, "system", &report.system);
    section(&mut text, &format!("state directory {}", report.directory.display()), &report.state);
    section(&mut text, "store", &report.store);
    if let Some(leases) = &report.leases {
        show_leases(&mut text, leases);
    }
    if let Some(peers) = &report.peers {
        show_peers(&mut text, peers);
    }
    if let Some(latency) = &report.latency {
        show_latency(&mut text, latency, look);
    }
    if !report.findings.is_empty() {
        text.push_str("findings\n");
    }
    for finding in &report.findings {
        show_finding(&mut text, finding);
    }
    text.push_str(&verdict(report));
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    let _infallible = writeln!(text, "  {name:<16}{value}");
}

fn section(text: &mut String, title: &str, facts: &[Fact]) {
    if facts.is_empty() {
        return;
    }
    let _infallible = writeln!(text, "{title}");
    for fact in facts {
        line(text, fact.name, &fact.shown);
    }
}

fn show_leases(text: &mut String, leases: &Leases) {
    let words = ["live", "expired", "malformed", "unread"];
    let counts: Vec<_> = words
        .iter()
        .map(|word| (leases.count(word), word))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let counts = if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
    let _infallible = writeln!(text, "leases: {counts}");
    let is_expired = |seen: &&Seen| matches!(seen.state, State::Expired { .. });
    for seen in leases.seen.iter().filter(|seen| !is_expired(seen)) {
        line(text, &name_of(seen), &about(seen));
    }
    for seen in leases.seen.iter().filter(is_expired).take(EXPIRED_MAX) {
        line(text, &name_of(seen), &about(seen));
    }
    if let Some(more) = leases.count("expired").checked_sub(EXPIRED_MAX + 1) {
        line(text, "", &format!("and {} more that have expired", more + 1));
    }
}

/// The name of its node, with a blank behind it, however long it is.
fn name_of(seen: &Seen) -> String {
    let name = seen.key.strip_prefix("nodes/").unwrap_or(&seen.key);
    let name = name.strip_suffix(".json").unwrap_or(name);
    format!("{} ", name.escape_debug())
}

fn about(seen: &Seen) -> String {
    let state = match &seen.state {
        State::Live { left } => format!("live, {} left", coarse(*left)),
        State::Expired { since } => format!("expired {} ago", coarse(*since)),
        State::Malformed(_) => "malformed".to_owned(),
        State::Unread(_) => "not read".to_owned(),
    };
    let Some(record) = &seen.record else { return state };
    let address = match (&record.address, seen.unsafe_address) {
        (None, _) => "takes no peers".to_owned(),
        (Some(address), None) => format!("at {}", address.escape_debug()),
        (Some(address), Some(why)) => format!("at {} (unsafe: {why})", address.escape_debug()),
    };
    format!("{state}; protocol {}, {address}", record.protocol)
}

fn show_peers(text: &mut String, peers: &Peers) {
    text.push_str(if peers.seen.is_empty() { "peers: none\n" } else { "peers\n" });
    for peer in &peers.seen {
        line(text, &format!("{} ", peer.node), &peer.about());
    }
}

fn show_latency(text: &mut String, latency: &Latency, look: Look) {
    let _infallible = writeln!(
        text,
        "{:<22}{:>10}{:>10}{:>10}{:>10}{:>10}{:>7}",
        "latency", "p50", "p90", "p99", "p99.9", "max", "count"
    );
    for series in &latency.series {
        let _infallible = write!(text, "  {}", bars::label(series));
        for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
            // Padded as text: a number with its unit has no width of its own.
            let _infallible = write!(text, "{:>10}", series.quantile(quantile).to_string());
        }
        let _infallible = write!(text, "{:>7}", series.count());
        if series.failed > 0 {
            let _infallible = write!(text, "  {} failed", series.failed);
        }
        text.push('\n');
    }
    if look == Look::Bars {
        text.push_str(&bars::draw(&latency.series));
    }
    text.push_str("expected acknowledgement of a write by this node\n");
    let bucket = match latency.of(ACK_BUCKET) {
        Some(ack) => format!("{}, {} at the p99", ack.quantile(0.5), ack.quantile(0.99)),
        None => "not measured".to_owned(),
    };
    line(text, "bucket mode", &bucket);
    let fleet = match latency.fleet_ack() {
        Some(FleetAck { p50, p99, follower }) => {
            format!("{p50}, {p99} at the p99, with {follower} as follower")
        }
        None => "not measured: that takes another node, and this one's disk".to_owned(),
    };
    line(text, "fleet mode", &fleet);
}

fn show_finding(text: &mut String, finding: &Finding) {
    let Finding { severity, code, what, advice } = finding;
    // Some messages quote what the bucket holds.
    let what: String = what.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let _infallible = writeln!(text, "  {:<8}{code}: {what}", severity.word());
    let _infallible = writeln!(text, "          {advice}");
}

fn verdict(report: &Report) -> String {
    let faults = report.count(Severity::Fault);
    let many = |count: usize, word: &str| match count {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    };
    let warnings = many(report.count(Severity::Warning), "warning");
    match faults {
        0 => format!("a fleet may run here: no fault, {warnings}\n"),
        faults => format!("a fleet must not run here: {}, {warnings}\n", many(faults, "fault")),
    }
}

/// A span of time as a person thinks of it.
fn coarse(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..120 => Micros::from_micros(micros(span)).to_string(),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
