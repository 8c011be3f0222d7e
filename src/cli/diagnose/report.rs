//! What a diagnosis found, for a person and for a program.
//!
//! Invariant: a report with a fault says that a fleet must not run. The codes of findings are
//! stable: scripts compare them.

use std::path::PathBuf;
use std::time::Duration;

use celld_s3::Check;
use serde_json::{Map, Value, json};

use super::latency::Latency;
use super::leases::{Leases, State};
use super::peers::Peers;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// A fleet must not run.
    Fault,
    /// It may run, and not well.
    Warning,
    /// Worth knowing.
    Note,
}

/// One thing that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// Its stable name.
    pub(super) code: &'static str,
    pub(super) what: String,
    /// What to do, in one line.
    pub(super) advice: &'static str,
}

/// One line of a section.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fact {
    /// Its name in JSON.
    pub(super) key: &'static str,
    /// Its name for a person.
    pub(super) name: &'static str,
    pub(super) value: Value,
    pub(super) shown: String,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Report {
    /// URL of the bucket.
    pub(super) bucket: String,
    /// The state directory.
    pub(super) directory: PathBuf,
    pub(super) is_read_only: bool,
    pub(super) system: Vec<Fact>,
    pub(super) state: Vec<Fact>,
    pub(super) store: Vec<Fact>,
    /// The probe's, if it ran.
    pub(super) rules: Option<Vec<Check>>,
    /// If they could be listed.
    pub(super) leases: Option<Leases>,
    /// If the leases were read.
    pub(super) peers: Option<Peers>,
    /// If it was measured.
    pub(super) latency: Option<Latency>,
    pub(super) findings: Vec<Finding>,
}

impl Finding {
    pub(super) fn fault(code: &'static str, what: impl Into<String>, advice: &'static str) -> Self {
        Self { severity: Severity::Fault, code, what: what.into(), advice }
    }

    pub(super) fn warning(
        code: &'static str,
        what: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        Self { severity: Severity::Warning, code, what: what.into(), advice }
    }

    pub(super) fn note(code: &'static str, what: impl Into<String>, advice: &'static str) -> Self {
        Self { severity: Severity::Note, code, what: what.into(), advice }
    }
}

impl Fact {
    pub(super) fn new(
        key: &'static str,
        name: &'static str,
        value: impl Into<Value>,
        shown: impl Into<String>,
    ) -> Self {
        Self { key, name, value: value.into(), shown: shown.into() }
    }
}

impl Severity {
    pub(super) fn word(self) -> &'static str {
        match self {
            Severity::Fault => "fault",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

impl Report {
    /// Whether a fleet may run here.
    pub(super) fn is_good(&self) -> bool {
        self.count(Severity::Fault) == 0
    }

    pub(super) fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// The worst first; of equals, what was found first.
    pub(super) fn sort(&mut self) {
        self.findings.sort_by_key(|finding| finding.severity);
    }

    /// One document.
    pub(super) fn json(&self) -> Value {
        let findings = self.findings.iter().map(|finding| {
            json!({
                "severity": finding.severity.word(),
                "code": finding.code,
                "what": finding.what,
                "advice": finding.advice,
            })
        });
        json!({
            "ok": self.is_good(),
            "version": env!("CARGO_PKG_VERSION"),
            "bucket": self.bucket,
            "state_directory": self.directory.display().to_string(),
            "read_only": self.is_read_only,
            "findings": findings.collect::<Vec<_>>(),
            "system": object(&self.system),
            "state": object(&self.state),
            "store": object(&self.store),
            "rules": self.rules.as_ref().map(|rules| rules.iter().map(rule).collect::<Vec<_>>()),
            "leases": self.leases.as_ref().map(leases),
            "peers": self.peers.as_ref().map(Peers::json),
            "latency": self.latency.as_ref().map(Latency::json),
        })
    }
}

fn object(facts: &[Fact]) -> Value {
    Value::Object(facts.iter().map(|fact| (fact.key.to_owned(), fact.value.clone())).collect())
}

fn rule(check: &Check) -> Value {
    json!({
        "code": check.rule.code(),
        "rule": check.rule.to_string(),
        "kept": check.fault.is_none(),
        "attempts": check.attempts,
        "took_us": micros(check.took),
        "fault": check.fault.as_ref().map(ToString::to_string),
    })
}

fn leases(leases: &Leases) -> Value {
    let all = leases.seen.iter().map(|lease| {
        let mut fields = Map::new();
        fields.insert("key".to_owned(), json!(lease.key));
        fields.insert("state".to_owned(), json!(lease.state.word()));
        match &lease.state {
            State::Live { left } => {
                fields.insert("left_ms".to_owned(), json!(left.as_millis()));
            }
            State::Expired { since } => {
                fields.insert("since_ms".to_owned(), json!(since.as_millis()));
            }
            State::Malformed(why) | State::Unread(why) => {
                fields.insert("why".to_owned(), json!(why));
            }
        }
        if let Some(record) = &lease.record {
            fields.insert("node".to_owned(), json!(record.node.as_str()));
            fields.insert("session".to_owned(), json!(record.session.as_str()));
            fields.insert("protocol".to_owned(), json!(record.protocol));
            fields.insert("address".to_owned(), json!(record.address));
        }
        fields.insert("unsafe_address".to_owned(), json!(lease.unsafe_address));
        Value::Object(fields)
    });
    json!({ "complete": leases.is_complete, "all": all.collect::<Vec<_>>() })
}

/// In whole microseconds.
pub(super) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
