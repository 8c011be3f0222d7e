//! `celld drain`: a node gives its cells away and ends, as at SIGTERM.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use celld_core::lease::Record;
use celld_core::node::{NodeId, SessionId};
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
    on_fleet(typed.place(), environment, async |fleet| {
        let session = fleet.node(&node)?.1.session.clone();
        let link = fleet.link(&node).await?;
        let before = link.probe(PROBE_LIMIT).await;
        let before = before.map_err(|error| OperatorError::Call(node.clone(), error))?;
        fleet.ask(&node, &OperatorRequest::Drain, ANSWER_LIMIT).await?;
        eprintln!("celld: node {node} drains, with {} cells in memory", before.resident_cells);
        if !typed.no_wait {
            follow(&fleet.bucket, &node, &session, &link, before.resident_cells).await?;
            eprintln!("celld: node {node} has left");
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Shows how far the node is, until its lease is gone.
async fn follow(
    bucket: &Bucket,
    node: &NodeId,
    session: &SessionId,
    link: &Link,
    before: u64,
) -> Result<(), OperatorError> {
    let progress = Progress::new();
    let bar = progress.bar(before, "cells given away");
    let begun = Instant::now();
    let (mut shown, mut is_leaving) = (before, false);
    while !is_gone(bucket, node, session).await? {
        if begun.elapsed() > GONE_LIMIT {
            bar.finish_and_clear();
            return Err(OperatorError::Stays(node.clone(), GONE_LIMIT));
        }
        // The last thing that it does is to close this connection.
        match link.probe(PROBE_LIMIT).await {
            Ok(reply) if reply.resident_cells != shown => {
                shown = reply.resident_cells;
                bar.set_position(before.saturating_sub(shown));
                progress.line(&format!("{shown} cells are still in its memory"));
            }
            Ok(_) => {}
            Err(_) if !is_leaving => {
                is_leaving = true;
                progress.line("it takes no calls any more");
            }
            Err(_) => {}
        }
        celld_rt::sleep(PAUSE).await;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Whether that session has no right to act any more: it has said so, or another one has come.
async fn is_gone(
    bucket: &Bucket,
    node: &NodeId,
    session: &SessionId,
) -> Result<bool, OperatorError> {
    let key = format!("nodes/{node}.json");
    let Some(object) = limited(&key, bucket.get(&key)).await? else { return Ok(true) };
    let record = Record::parse(&object.body);
    let record =
        record.map_err(|error| OperatorError::BadLease(node.clone(), error.to_string()))?;
    Ok(record.session != *session || record.is_retired())
}
