//! `celld status`: the nodes of a fleet.
//!
//! Bounds: one call to each node, [`PROBE_LIMIT`], [`ASKED`] at the same time.

use std::process::ExitCode;
use std::time::Duration;

use celld_core::lease::Record;
use celld_core::time::Micros;
use celld_peer::probe::ProbeReply;
use celld_peer::{Address, Link};
use serde_json::{Value, json};

use super::table::{NONE, table};
use super::{Fleet, OperatorError, PROBE_LIMIT, millis, on_fleet, plain, print};
use crate::cli::args;
use crate::cli::diagnose::leases::{Seen, State};
use crate::cli::fleet::each_of;
use crate::cli::settings::Environment;
use crate::cli::{CommandError, FAILED};

/// Nodes that are asked at the same time.
const ASKED: usize = 64;
/// A node whose lease ended within this time is asked and shown all the same: its clock may be
/// behind, or it has died a moment ago.
const LATELY: Duration = Duration::from_secs(600);

/// One line of the table.
struct Row<'a> {
    seen: &'a Seen,
    answer: Answer,
}

/// What came of asking a node.
enum Answer {
    Said(Box<ProbeReply>),
    /// It was asked, and this is why it has not answered.
    Failed(String),
    /// It takes no calls, or there is no reason to ask.
    NotAsked,
}

/// Runs the command.
///
/// # Errors
/// The bucket cannot be used.
pub(crate) fn run(
    typed: &args::Status,
    environment: Environment<'_>,
) -> Result<ExitCode, CommandError> {
    on_fleet(typed.bucket_args(), environment, async |fleet| {
        let links = links(fleet).await?;
        let answers = each_of(links, ASKED, async |link| match link {
            None => Answer::NotAsked,
            Some(Err(why)) => Answer::Failed(why),
            Some(Ok(link)) => match link.probe(PROBE_LIMIT).await {
                Ok(reply) => Answer::Said(Box::new(reply)),
                Err(error) => Answer::Failed(error.to_string()),
            },
        })
        .await;
        let rows = fleet.leases.seen.iter().zip(answers);
        let (shown, hidden): (Vec<_>, Vec<_>) = rows
            .map(|(seen, answer)| Row { seen, answer })
            .partition(|row| typed.all || !row.is_old());
        if typed.json {
            let nodes: Value = shown.iter().map(Row::json).collect();
            let bucket = fleet.bucket.to_string();
            print(&format!("{:#}\n", json!({ "bucket": bucket, "nodes": nodes })));
        } else {
            let head = [
                "NODE",
                "STATE",
                "VERSION",
                "SHARDS",
                "CELLS",
                "LOAD",
                "RESTORING",
                "LEASE",
                "ADDRESS",
            ];
            let lines: Vec<_> = shown.iter().map(Row::words).collect();
            print(&table(&head, &lines));
        }
        for row in &shown {
            if let Some(why) = row.why() {
                celld_rt::log!("celld: node {}: {why}", row.name());
            }
        }
        if !hidden.is_empty() {
            let count = hidden.len();
            celld_rt::log!("celld: {count} more that have left or are long dead: --all shows them");
        }
        let is_good = shown.iter().all(|row| !matches!(row.state(), "unreachable" | "unknown"));
        Ok(if is_good { ExitCode::SUCCESS } else { FAILED.into() })
    })
}

/// How each of the nodes is asked, if it is.
async fn links(fleet: &mut Fleet) -> Result<Vec<Option<Result<Link, String>>>, OperatorError> {
    let is_asked: Vec<bool> = fleet.leases.seen.iter().map(is_asked).collect();
    let identity = match is_asked.contains(&true) {
        true => Some(fleet.identity().await?),
        false => None,
    };
    let link = |(seen, is_asked): (&Seen, bool)| {
        let (true, Some(record), Some(identity)) = (is_asked, &seen.record, &identity) else {
            return None;
        };
        Some(match (seen.unsafe_address, Address::of_lease(record)) {
            (None, Some(address)) => Ok(Link::new(identity.clone(), address)),
            (Some(why), _) => Err(format!("its address is unsafe: {why}")),
            (None, None) => Err("its address cannot be understood".to_owned()),
        })
    };
    Ok(fleet.leases.seen.iter().zip(is_asked).map(link).collect())
}

fn is_asked(seen: &Seen) -> bool {
    let Some(record) = &seen.record else { return false };
    let is_late = match &seen.state {
        State::Live { .. } => false,
        State::Expired { since } => *since > LATELY,
        State::Malformed(_) | State::Unread(_) => true,
    };
    record.address.is_some() && !record.is_retired() && !is_late
}

impl Row<'_> {
    fn name(&self) -> String {
        let key = self.seen.key.strip_prefix("nodes/").unwrap_or(&self.seen.key);
        plain(key.strip_suffix(".json").unwrap_or(key))
    }

    fn record(&self) -> Option<&Record> {
        self.seen.record.as_ref()
    }

    fn state(&self) -> &'static str {
        let is_live = match &self.seen.state {
            State::Malformed(_) | State::Unread(_) => return "unknown",
            State::Live { .. } => true,
            State::Expired { .. } => false,
        };
        match &self.answer {
            Answer::Said(reply) if reply.is_draining => "draining",
            Answer::Said(_) => "serving",
            _ if self.record().is_some_and(Record::is_retired) => "left",
            Answer::Failed(_) if is_live => "unreachable",
            Answer::NotAsked if is_live => "unasked",
            Answer::Failed(_) | Answer::NotAsked => "dead",
        }
    }

    /// Worth a line only for who asks for all.
    fn is_old(&self) -> bool {
        match self.state() {
            "left" => true,
            "dead" => {
                matches!(&self.seen.state, State::Expired { since } if *since > LATELY)
            }
            _ => false,
        }
    }

    /// For a person.
    fn why(&self) -> Option<String> {
        match (&self.seen.state, &self.answer) {
            (State::Malformed(why) | State::Unread(why), _) => {
                Some(format!("its lease cannot be read: {}", plain(why)))
            }
            (State::Live { .. }, Answer::Failed(why)) => Some(plain(why)),
            (State::Live { .. } | State::Expired { .. }, _) => None,
        }
    }

    /// How long ago its lease was written, by this machine's clock.
    fn lease_age(&self) -> Option<Duration> {
        let record = self.record()?;
        let age = celld_rt::wall_ms().saturating_sub(record.written.as_millis());
        Some(Duration::from_millis(age))
    }

    fn words(&self) -> Vec<String> {
        let none = || NONE.to_owned();
        let record = self.record();
        let said = match &self.answer {
            Answer::Said(reply) => Some(reply),
            Answer::Failed(_) | Answer::NotAsked => None,
        };
        let version = said.map(|reply| reply.version.clone());
        let version = version.or_else(|| record.map(|record| record.version.clone()));
        let load = |reply: &ProbeReply| {
            format!("{}.{} %", reply.load_permille / 10, reply.load_permille % 10)
        };
        let age = |age: Duration| Micros::from_millis(millis(age)).to_string();
        let address = record.and_then(|record| record.address.as_deref());
        vec![
            self.name(),
            self.state().to_owned(),
            version.map_or_else(none, |version| plain(&version)),
            said.map_or_else(none, |reply| reply.shards.to_string()),
            said.map_or_else(none, |reply| reply.resident_cells.to_string()),
            said.map_or_else(none, |reply| load(reply)),
            said.map_or_else(none, |reply| reply.restoring.to_string()),
            self.lease_age().map_or_else(none, age),
            address.map_or_else(none, plain),
        ]
    }

    fn json(&self) -> Value {
        let mut row = json!({ "node": self.name(), "state": self.state() });
        if let Some(record) = self.record() {
            row["session"] = record.session.as_str().into();
            row["version"] = record.version.as_str().into();
            row["protocol"] = record.protocol.into();
            row["address"] = record.address.as_deref().into();
            let mut lease =
                json!({ "age_ms": self.lease_age().map(millis), "ttl_ms": record.ttl.as_millis() });
            match &self.seen.state {
                State::Live { left } => lease["left_ms"] = millis(*left).into(),
                State::Expired { since } => lease["expired_ms"] = millis(*since).into(),
                State::Malformed(_) | State::Unread(_) => {}
            }
            row["lease"] = lease;
        }
        if let Answer::Said(reply) = &self.answer {
            row["version"] = reply.version.as_str().into();
            row["shards"] = reply.shards.into();
            row["cells"] = reply.resident_cells.into();
            row["load_permille"] = reply.load_permille.into();
            row["restoring"] = reply.restoring.into();
        }
        if let Some(why) = self.why() {
            row["why"] = why.into();
        }
        row
    }
}
