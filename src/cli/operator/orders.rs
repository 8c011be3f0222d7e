//! `celld cell evict`, `move` and `purge`: the node that owns the cell does it.
//!
//! Ownership is read, and whoever has the cell by then is asked. A node that is not the owner any
//! more refuses, and the record is read again, [`ATTEMPTS_MAX`] times in all.

use std::process::ExitCode;
use std::time::Duration;

use celld_core::cell::CellId;
use celld_core::node::NodeId;
use celld_core::ownership::Owner;
use celld_peer::operator::OperatorRequest;
use serde_json::Value;

use super::{Fleet, OperatorError, cell_id, on_fleet, print};
use crate::cli::diagnose::leases::State;
use crate::cli::settings::{self, Environment};
use crate::cli::{CommandError, args};

/// What runs in a cell gets ten seconds to end, and another node thirty to restore it.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// How often an owner is looked for: about a quarter of a minute, longer than a takeover.
const ATTEMPTS_MAX: u32 = 8;
/// Before the second attempt; doubled each time, up to the other.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// Evicts a cell.
///
/// # Errors
/// It was not done.
pub(super) fn evict(
    typed: &args::CellEvict,
    environment: Environment<'_>,
) -> Result<ExitCode, CommandError> {
    let cell = cell_id(&typed.cell, typed.name.as_deref())?;
    on_fleet(typed.bucket_args(), environment, async |fleet| {
        let request = OperatorRequest::EvictCell(cell.clone());
        let done =
            at_owner(fleet, &cell, |owner| owner.map(|node| (node, request.clone()))).await?;
        match done {
            Some((node, _)) => celld_rt::log!("celld: node {node} has given the cell {cell} back"),
            None => celld_rt::log!("celld: the cell {cell} rests already: no node owns it"),
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Moves a cell.
///
/// # Errors
/// It was not done.
pub(super) fn move_to(
    typed: &args::CellMove,
    environment: Environment<'_>,
) -> Result<ExitCode, CommandError> {
    let cell = cell_id(&typed.cell, typed.name.as_deref())?;
    let to = settings::node_named(&typed.node)?;
    on_fleet(typed.bucket_args(), environment, async |fleet| {
        // A slip of the finger is noticed before anything moves.
        fleet
            .link(&to)
            .await?
            .probe(super::PROBE_LIMIT)
            .await
            .map_err(|error| OperatorError::Call(to.clone(), error))?;
        let request = OperatorRequest::MoveCell { cell: cell.clone(), to: to.clone() };
        // Whoever has it gives it away; what nobody has, the other takes.
        let who =
            |owner: Option<NodeId>| Some((owner.unwrap_or_else(|| to.clone()), request.clone()));
        let done = at_owner(fleet, &cell, who).await?;
        let epoch = done.map(|(_, done)| done["epoch"].to_string()).unwrap_or_default();
        celld_rt::log!("celld: node {to} has the cell {cell}, at epoch {epoch}");
        Ok(ExitCode::SUCCESS)
    })
}

/// Purges a cell.
///
/// # Errors
/// It was not done, or not wholly.
pub(super) fn purge(
    typed: &args::CellPurge,
    environment: Environment<'_>,
) -> Result<ExitCode, CommandError> {
    let cell = cell_id(&typed.cell, typed.name.as_deref())?;
    if !typed.yes {
        return Err(OperatorError::NotConfirmed(cell).into());
    }
    on_fleet(typed.bucket_args(), environment, async |fleet| {
        let request = OperatorRequest::PurgeCell(cell.clone());
        let anybody = anybody(fleet);
        let who =
            |owner: Option<NodeId>| Some((owner.or_else(|| anybody.clone())?, request.clone()));
        let done = at_owner(fleet, &cell, who).await?;
        let Some((node, done)) = done else { return Err(OperatorError::Nobody.into()) };
        celld_rt::log!("celld: node {node} has purged the cell {cell}");
        print(&format!("{done}\n"));
        Ok(ExitCode::SUCCESS)
    })
}

/// A node that may act for a cell of nobody.
fn anybody(fleet: &Fleet) -> Option<NodeId> {
    let is_good = |seen: &&crate::cli::diagnose::leases::Seen| {
        matches!(seen.state, State::Live { .. }) && seen.unsafe_address.is_none()
    };
    let records = fleet.leases.seen.iter().filter(is_good).filter_map(|seen| seen.record.as_ref());
    let mut able = records.filter(|r| r.address.is_some() && !r.load.is_draining);
    able.next().map(|record| record.node.clone())
}

/// Asks whoever `ask` names, given who owns the cell. Returns the node that did it, and what it
/// says; `None`: nobody was to be asked.
async fn at_owner(
    fleet: &mut Fleet,
    cell: &CellId,
    ask: impl Fn(Option<NodeId>) -> Option<(NodeId, OperatorRequest)>,
) -> Result<Option<(NodeId, Value)>, OperatorError> {
    let mut pause = PAUSE;
    for attempt in 1.. {
        let record = fleet.owner(cell).await?;
        let record = record.ok_or_else(|| OperatorError::NoCell(cell.clone()))?;
        let owner = record.owner.filter(|owner| may_act(fleet, owner));
        let Some((node, request)) = ask(owner.map(|owner| owner.node)) else { return Ok(None) };
        match fleet.ask(&node, &request, ANSWER_LIMIT).await {
            Ok(body) => {
                let done = serde_json::from_slice(&body);
                let done = done.map_err(|error| OperatorError::Answer(node.clone(), error))?;
                return Ok(Some((node, done)));
            }
            Err(OperatorError::Refused { code, .. })
                if code == "not_owner" && attempt < ATTEMPTS_MAX =>
            {
                celld_rt::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("the last attempt returns")
}

/// Whether this session may still act, as far as its lease tells.
fn may_act(fleet: &Fleet, owner: &Owner) -> bool {
    fleet.node(&owner.node).is_ok_and(|(seen, lease)| {
        lease.session == owner.session && matches!(seen.state, State::Live { .. })
    })
}
