//! `celld drain`: a node gives its cells away and ends, as at SIGTERM.

use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use celld_core::lease::{OwnerLease, Read, Record, Watch};
use celld_core::ownership::Owner;
use celld_core::time::{Micros, Mono};
use celld_peer::Link;
use celld_peer::operator::OperatorRequest;
use celld_s3::Bucket;

use super::{OperatorError, PROBE_LIMIT, on_fleet};
use crate::cli::fleet::limited;
use crate::cli::progress::Progress;
use crate::cli::settings::{self, Environment};
use crate::cli::{CommandError, args};

/// For the node to say that it begins.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A drain ends within its own limit, 25 s, and then writes its lease once more.
const GONE_LIMIT: Duration = Duration::from_secs(60);
/// A node that has left says so in its lease within a write to the bucket.
const SILENCE_LIMIT: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);

/// Drains a node.
///
/// # Errors
/// It did not begin, or did not end.
pub(crate) fn run(
    typed: &args::Drain,
    environment: Environment<'_>,
) -> Result<ExitCode, CommandError> {
    let node = settings::node_named(&typed.node)?;
    on_fleet(typed.bucket_args(), environment, async |fleet| {
        let session = fleet.node(&node)?.1.session.clone();
        let link = fleet.link(&node).await?;
        let before = link.probe(PROBE_LIMIT).await;
        let before = before.map_err(|error| OperatorError::Call(node.clone(), error))?;
        fleet.ask(&node, &OperatorRequest::Drain, ANSWER_LIMIT).await?;
        celld_rt::log!("celld: node {node} drains, with {} cells in memory", before.resident_cells);
        if !typed.no_wait {
            let owner = Owner { node: node.clone(), session };
            let left = follow(&fleet.bucket, &owner, &link, before.resident_cells).await?;
            celld_rt::log!("celld: node {node} has left{left}");
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// How a node has left.
enum Left {
    /// It has given up its lease, or another session has it.
    WithNothing,
    /// Its lease is over: its time was, or it was ended. It had so many cells when it last said so.
    Behind(u64),
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WithNothing => Ok(()),
            Self::Behind(cells) => write!(
                f,
                ", and has not given up its lease: that is over now, and the {cells} cells that it \
                 last had in memory are served by others. Its log says why"
            ),
        }
    }
}

/// Shows how far the node is, until its lease is given up or over.
async fn follow(
    bucket: &Bucket,
    owner: &Owner,
    link: &Link,
    before: u64,
) -> Result<Left, OperatorError> {
    let progress = Progress::new();
    let bar = progress.bar(before, "cells given away");
    let begun = Instant::now();
    let mut watch = Watch::new(Micros::ZERO);
    let (mut shown, mut is_told) = (before, false);
    // Since when it does not answer, and until when its lease was good then.
    let mut silent: Option<(Instant, Mono)> = None;
    loop {
        let until = match look(bucket, owner, &mut watch).await? {
            None | Some(OwnerLease::Retired | OwnerLease::Replaced) => {
                bar.finish_and_clear();
                return Ok(Left::WithNothing);
            }
            Some(OwnerLease::Dead) => {
                bar.finish_and_clear();
                return Ok(Left::Behind(shown));
            }
            Some(OwnerLease::Live(until)) => until,
        };
        // Nobody is there, and nobody renews it: what is left of its lease passes.
        let is_gone =
            silent.is_some_and(|(since, then)| since.elapsed() > SILENCE_LIMIT && until <= then);
        if begun.elapsed() > GONE_LIMIT && !is_gone {
            bar.finish_and_clear();
            return Err(OperatorError::Stays(owner.node.clone(), GONE_LIMIT));
        }
        if is_gone && !is_told {
            is_told = true;
            let left = Duration::from_micros(until.since(now()).as_micros()).as_secs() + 1;
            progress.line(&format!("it has not given up its lease, which is over in {left} s"));
        }
        // The last thing that it does is to close this connection.
        match link.probe(PROBE_LIMIT).await {
            Ok(reply) => {
                silent = None;
                if reply.resident_cells != shown {
                    shown = reply.resident_cells;
                    bar.set_position(before.saturating_sub(shown));
                    progress.line(&format!("{shown} cells are still in its memory"));
                }
            }
            Err(_) if silent.is_none() => {
                silent = Some((Instant::now(), until));
                progress.line("it takes no calls any more");
            }
            Err(_) => {}
        }
        celld_rt::sleep(PAUSE).await;
    }
}

fn now() -> Mono {
    Mono::from_micros(celld_rt::mono_us())
}

/// What that session may still do; `None`: its node has no lease.
async fn look(
    bucket: &Bucket,
    owner: &Owner,
    watch: &mut Watch,
) -> Result<Option<OwnerLease>, OperatorError> {
    let key = owner.node.lease_key();
    let begun = now();
    let Some(object) = limited(&key, bucket.get(&key)).await? else { return Ok(None) };
    let record = Record::parse(&object.body);
    let record =
        record.map_err(|error| OperatorError::BadLease(owner.node.clone(), error.to_string()))?;
    let record = Some((record, object.etag));
    watch.saw(&owner.node, Read { begun, ended: now(), record, age_min: Micros::ZERO });
    Ok(watch.judge(owner))
}
