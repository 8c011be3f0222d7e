//! The machine: kernel, io_uring, limits.

use celld_rt::{Limit, System};
use serde_json::{Value, json};

use super::report::{Fact, Finding};

/// A node holds a socket for each client and a few dozen for itself.
const OPEN_FILES_MIN: u64 = 4_096;

/// What the machine offers, and what it lacks.
pub(super) fn inspect(findings: &mut Vec<Finding>) -> Vec<Fact> {
    // Raises the limits as a node does, so that what is shown is what a node has.
    if let Err(error) = celld_rt::preflight() {
        findings.push(Finding::fault(
            "system.refused",
            error.to_string(),
            "change the machine as the message says: no node starts here",
        ));
    }
    facts(&celld_rt::inspect(), findings)
}

fn facts(system: &System, findings: &mut Vec<Finding>) -> Vec<Fact> {
    let (ring, shown) = match &system.ring {
        Ok(ring) => (
            json!({
                "submissions": ring.submissions,
                "completions": ring.completions,
                "features": ring.features,
                "missing": ring.missing,
            }),
            format!(
                "{} submissions, {} completions; {}",
                ring.submissions,
                ring.completions,
                ring.features.join(", ")
            ),
        ),
        Err(why) => (Value::Null, format!("none: {why}")),
    };
    if let Ok(ring) = &system.ring
        && !ring.missing.is_empty()
    {
        findings.push(Finding::fault(
            "system.uring.missing",
            format!("this kernel's io_uring lacks {}", ring.missing.join(", ")),
            "run Linux 5.8 or newer, and a container profile that hides none of it",
        ));
    }
    if let Some(files) = system.open_files.soft.filter(|&files| files < OPEN_FILES_MIN) {
        findings.push(Finding::warning(
            "system.open-files.low",
            format!("{files} files and sockets may be open at once, and each client needs one"),
            "raise it with `ulimit -n 65536`, or LimitNOFILE=65536 in a systemd unit",
        ));
    }
    vec![
        Fact::new("kernel", "kernel", system.kernel.as_str(), system.kernel.as_str()),
        Fact::new("io_uring", "io_uring", ring, shown),
        limit("locked_memory_bytes", "locked memory", system.locked_memory, |n| {
            format!("{} KiB", n >> 10)
        }),
        limit("open_files", "open files", system.open_files, |n| n.to_string()),
    ]
}

fn limit(
    key: &'static str,
    name: &'static str,
    limit: Limit,
    shown: impl Fn(u64) -> String,
) -> Fact {
    let text = limit.soft.map_or_else(|| "no limit".to_owned(), shown);
    Fact::new(key, name, json!({ "soft": limit.soft, "hard": limit.hard }), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system() -> System {
        let limit = Limit { soft: Some(65_536), hard: None };
        let ring = celld_rt::Ring {
            submissions: 512,
            completions: 1_024,
            features: vec!["nodrop"],
            missing: vec![],
        };
        System { kernel: "6.1.0".into(), locked_memory: limit, open_files: limit, ring: Ok(ring) }
    }

    #[test]
    fn a_good_machine_has_facts_and_no_findings() {
        let mut findings = Vec::new();
        let facts = facts(&system(), &mut findings);
        assert_eq!(findings, []);
        let shown: Vec<_> = facts.iter().map(|fact| fact.shown.as_str()).collect();
        assert_eq!(
            shown,
            ["6.1.0", "512 submissions, 1024 completions; nodrop", "64 KiB", "65536"]
        );
    }

    #[test]
    fn what_a_machine_lacks_has_a_code() {
        let mut poor = system();
        poor.open_files.soft = Some(1_024);
        poor.ring.as_mut().expect("a ring").missing = vec!["accept", "send"];
        let mut findings = Vec::new();
        facts(&poor, &mut findings);
        let codes: Vec<_> = findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, ["system.uring.missing", "system.open-files.low"]);
        assert!(findings[0].what.contains("accept, send"));
    }
}
