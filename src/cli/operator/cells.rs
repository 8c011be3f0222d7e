//! `celld cell list` and `celld cell show`.
//!
//! Bounds: a list is printed page by page, and no more than one page is in memory.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use celld_core::cell::CellId;
use celld_core::node::NodeId;
use celld_core::ownership::Record;
use celld_core::plan::LtxFile;
use celld_peer::operator::OperatorRequest;
use celld_shard::operator::CELLS_MAX;
use celld_shard::operator::resident::{self, ResidentCell};
use serde_json::{Value, json};

use super::table::{NONE, table};
use super::{Fleet, OperatorError, cell_id, on_fleet, plain, print, read_owner};
use crate::cli::args;
use crate::cli::diagnose::leases::State;
use crate::cli::fleet::{each_of, limited};
use crate::cli::settings::{self, Environment};
use crate::cli::{CommandError, clock};

/// A node may be busy with JavaScript for a while.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Ownership records that are read at the same time.
const READS: usize = 32;
/// How many cells are listed when nobody says.
const LIMIT: usize = 1_000;

/// Which cells a person wants, and how many.
struct Wanted<'a> {
    class: Option<&'a str>,
    after: Option<CellId>,
    left: usize,
    is_json: bool,
    has_head: bool,
}

/// Lists cells.
///
/// # Errors
/// The bucket or a node failed.
pub(super) fn list(
    typed: &args::CellList,
    environment: Environment<'_>,
) -> Result<ExitCode, CommandError> {
    let node = settings::named_node(typed.node.as_deref())?;
    let after = typed.after.as_deref().map(|cell| cell_id(cell, None)).transpose()?;
    let mut wanted = Wanted {
        class: typed.class.as_deref(),
        after,
        left: settings::list_limit(typed.limit.as_deref(), LIMIT)?,
        is_json: typed.json,
        has_head: false,
    };
    on_fleet(typed.bucket_args(), environment, async |fleet| {
        let more = match node {
            Some(node) => {
                celld_rt::log!("celld: cells in the memory of node {node}");
                list_node(fleet, &node, &mut wanted).await?
            }
            None if typed.resident => list_nodes(fleet, &mut wanted).await?,
            None => {
                celld_rt::log!("celld: cells in the bucket {}", fleet.bucket);
                list_bucket(fleet, &mut wanted).await?
            }
        };
        if let Some(last) = more {
            celld_rt::log!("celld: there are more: go on with --after {last}");
        }
        Ok(ExitCode::SUCCESS)
    })
}

impl Wanted<'_> {
    fn is_of_class(&self, cell: &CellId) -> bool {
        let namespace = cell.namespace();
        self.class.is_none_or(|class| {
            namespace == class || namespace.rsplit('.').next().is_some_and(|last| last == class)
        })
    }

    /// Prints one page.
    fn print(&mut self, head: &[&str], rows: Vec<(Value, Vec<String>)>) {
        if self.is_json {
            print(&rows.iter().map(|(json, _)| format!("{json}\n")).collect::<String>());
            return;
        }
        let rows: Vec<_> = rows.into_iter().map(|(_, words)| words).collect();
        let text = table(head, &rows);
        let has_head = std::mem::replace(&mut self.has_head, true);
        let text =
            if has_head { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
        print(text);
    }
}

/// All in the bucket. Returns the last one that was listed, if there are more.
async fn list_bucket(
    fleet: &Fleet,
    wanted: &mut Wanted<'_>,
) -> Result<Option<CellId>, OperatorError> {
    // The whole namespace is one prefix; a class may be in several.
    let namespace = wanted.class.filter(|class| class.contains('.'));
    let prefix = match namespace {
        Some(namespace) => format!("cells/{namespace}/"),
        None => "cells/".to_owned(),
    };
    let mut after = wanted.after.as_ref().map(CellId::own_key);
    loop {
        let page = limited(&prefix, fleet.bucket.list(&prefix, after.as_deref())).await?;
        let owned = page.entries.iter().filter_map(|entry| owned_cell(&entry.key));
        let mut found: Vec<_> = owned.filter(|cell| wanted.is_of_class(cell)).collect();
        let is_cut = found.len() > wanted.left;
        found.truncate(wanted.left);
        wanted.left -= found.len();
        let last = found.last().cloned();
        let bucket = fleet.bucket.clone();
        let rows = each_of(found, READS, move |cell| {
            let bucket = bucket.clone();
            async move {
                let read = read_owner(&bucket, &cell).await;
                read.map(|record| record.map(|record| row_of_record(&cell, &record)))
            }
        });
        // One that was purged meanwhile has no record.
        let rows: Result<Vec<_>, _> =
            rows.await.into_iter().filter_map(Result::transpose).collect();
        wanted.print(&["CELL", "NODE", "EPOCH", "BASE TXID"], rows?);
        if is_cut || (wanted.left == 0 && page.more) {
            return Ok(last.or_else(|| wanted.after.clone()));
        }
        let Some(entry) = page.entries.last().filter(|_| page.more) else { return Ok(None) };
        after = Some(behind(&entry.key));
    }
}

/// The cell of which this is the ownership record.
fn owned_cell(key: &str) -> Option<CellId> {
    let (namespace, rest) = key.strip_prefix("cells/")?.split_once('/')?;
    CellId::new(namespace, rest.strip_suffix("/own.json")?)
}

/// Where to go on behind `key`: what is left of a cell's files need not be listed.
fn behind(key: &str) -> String {
    match key.split_once("/ltx/") {
        // The first character behind `/`.
        Some((cell, _)) => format!("{cell}/ltx0"),
        None => key.to_owned(),
    }
}

fn row_of_record(cell: &CellId, record: &Record) -> (Value, Vec<String>) {
    let node = record.owner.as_ref().map(|owner| owner.node.as_str());
    let json = json!({
        "cell": cell.to_string(),
        "node": node,
        "epoch": record.epoch.get(),
        "base_txid": record.base.txid.get(),
    });
    let node = node.unwrap_or(NONE).to_owned();
    let (epoch, txid) = (record.epoch.get().to_string(), record.base.txid.get().to_string());
    (json, vec![cell.to_string(), node, epoch, txid])
}

/// What is in the memory of every node with a lease in force.
async fn list_nodes(
    fleet: &mut Fleet,
    wanted: &mut Wanted<'_>,
) -> Result<Option<CellId>, OperatorError> {
    let is_live = |state: &State| matches!(state, State::Live { .. });
    let live = fleet.leases.seen.iter().filter(|seen| is_live(&seen.state));
    let nodes: Vec<_> = live.filter_map(|seen| Some(seen.record.as_ref()?.node.clone())).collect();
    let names: Vec<_> = nodes.iter().map(NodeId::as_str).collect();
    celld_rt::log!("celld: cells in the memory of the nodes {}", names.join(", "));
    let begin = wanted.after.clone();
    for node in nodes {
        wanted.after.clone_from(&begin);
        if wanted.left == 0 {
            celld_rt::log!("celld: the limit is reached: node {node} is not listed");
            continue;
        }
        if let Some(last) = list_node(fleet, &node, wanted).await? {
            celld_rt::log!("celld: node {node} has more: go on with --node {node} --after {last}");
        }
    }
    Ok(None)
}

/// What is in the memory of a node. Returns the last one that was listed, if there may be more.
async fn list_node(
    fleet: &mut Fleet,
    node: &NodeId,
    wanted: &mut Wanted<'_>,
) -> Result<Option<CellId>, OperatorError> {
    loop {
        let limit = u32::try_from(CELLS_MAX).expect("a thousand");
        let request = OperatorRequest::ListCells { after: wanted.after.clone(), limit };
        let body = fleet.ask(node, &request, ANSWER_LIMIT).await?;
        let page = residents(node, &body)?;
        let is_last = page.len() < CELLS_MAX;
        let mut rows = Vec::new();
        for (cell, resident) in page {
            if wanted.left == 0 {
                break;
            }
            if wanted.is_of_class(&cell) {
                rows.push(row_of_resident(node, &resident));
                wanted.left -= 1;
            }
            wanted.after = Some(cell);
        }
        let is_full = wanted.left == 0;
        wanted
            .print(&["CELL", "NODE", "STATE", "EPOCH", "TXID", "BYTES", "EVENTS", "WAITING"], rows);
        if is_full || is_last {
            return Ok(wanted.after.clone().filter(|_| is_full));
        }
    }
}

fn residents(node: &NodeId, body: &[u8]) -> Result<Vec<(CellId, ResidentCell)>, OperatorError> {
    let bad = |error| OperatorError::Answer(node.clone(), error);
    let lines = resident::parse(body).map_err(bad)?;
    let named = lines.into_iter().map(|line| match cell_id(&line.cell, None) {
        Ok(cell) => Ok((cell, line)),
        Err(error) => Err(bad(serde::de::Error::custom(error))),
    });
    named.collect()
}

fn row_of_resident(node: &NodeId, cell: &ResidentCell) -> (Value, Vec<String>) {
    let mut json = serde_json::to_value(cell).expect("plain fields become JSON");
    json["node"] = node.as_str().into();
    let number = |n: Option<u64>| n.map_or_else(|| NONE.to_owned(), |n| n.to_string());
    let words = vec![
        cell.cell.clone(),
        node.to_string(),
        cell.state.word().to_owned(),
        number(cell.epoch),
        number(cell.txid),
        number(cell.database_bytes),
        cell.events.to_string(),
        cell.waiting.to_string(),
    ];
    (json, words)
}

/// Shows one cell.
///
/// # Errors
/// There is none, or the bucket failed.
pub(super) fn show(
    typed: &args::CellShow,
    environment: Environment<'_>,
) -> Result<ExitCode, CommandError> {
    let cell = cell_id(&typed.cell, typed.name.as_deref())?;
    on_fleet(typed.bucket_args(), environment, async |fleet| {
        let record =
            fleet.owner(&cell).await?.ok_or_else(|| OperatorError::NoCell(cell.clone()))?;
        let files = files(fleet, &cell).await?;
        let owner = record.owner.as_ref().map(|owner| owner.node.clone());
        let mut memory = None;
        if let Some(node) = &owner {
            match fleet.ask(node, &OperatorRequest::ShowCell(cell.clone()), ANSWER_LIMIT).await {
                Ok(body) => memory = residents(node, &body)?.pop().map(|(_, resident)| resident),
                // What the bucket says is of use without it.
                Err(error) => {
                    celld_rt::log!("celld: what its node has in memory is not known: {error}")
                }
            }
        }
        if typed.json {
            print(&format!("{:#}\n", json_of(&cell, &record, &files, memory.as_ref())));
        } else {
            print(&text_of(&cell, &record, &files, memory.as_ref()));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// What a cell has in the bucket.
#[derive(Default)]
struct Files {
    count: u64,
    bytes: u64,
    /// The last commit that a file of each epoch covers.
    last: BTreeMap<u64, u64>,
}

async fn files(fleet: &Fleet, cell: &CellId) -> Result<Files, OperatorError> {
    let prefix = cell.ltx_prefix();
    let (mut files, mut after) = (Files::default(), None::<String>);
    loop {
        let page = limited(&prefix, fleet.bucket.list(&prefix, after.as_deref())).await?;
        for entry in &page.entries {
            files.count += 1;
            files.bytes += entry.size;
            if let Some(file) = LtxFile::parse(cell, &entry.key, entry.size) {
                let last = files.last.entry(file.epoch.get()).or_default();
                *last = file.max.get().max(*last);
            }
        }
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more || after.is_none() {
            return Ok(files);
        }
    }
}

impl Files {
    /// The last commit that the bucket has of what counts for `record`.
    fn txid(&self, record: &Record) -> u64 {
        let later = self.last.range(record.base.epoch.get()..).map(|(_, txid)| *txid).max();
        later.unwrap_or(0).max(record.base.txid.get())
    }
}

fn json_of(cell: &CellId, record: &Record, files: &Files, memory: Option<&ResidentCell>) -> Value {
    let owner = record.owner.as_ref();
    json!({
        "cell": cell.to_string(),
        "node": owner.map(|owner| owner.node.as_str()),
        "session": owner.map(|owner| owner.session.as_str()),
        "epoch": record.epoch.get(),
        "base": { "epoch": record.base.epoch.get(), "txid": record.base.txid.get() },
        "files": { "count": files.count, "bytes": files.bytes, "txid": files.txid(record) },
        "memory": memory,
    })
}

fn text_of(cell: &CellId, record: &Record, files: &Files, memory: Option<&ResidentCell>) -> String {
    let mut lines = vec![("cell", cell.to_string())];
    lines.push(match &record.owner {
        Some(owner) => ("owner", format!("node {}, session {}", owner.node, owner.session)),
        None => ("owner", "nobody: the next request places it".to_owned()),
    });
    let base = record.base;
    lines.push((
        "epoch",
        format!(
            "{}, begun at TXID {} (epoch {})",
            record.epoch.get(),
            base.txid.get(),
            base.epoch.get()
        ),
    ));
    let txid = files.txid(record);
    lines.push(("bucket", format!("{} files, {} bytes, to TXID {txid}", files.count, files.bytes)));
    if let Some(memory) = memory {
        lines.push(("memory", about(memory)));
        if let Some(name) = &memory.name {
            lines.push(("name", plain(name)));
        }
        if let Some(due) = memory.alarm_ms {
            lines.push(("alarm", format!("due {}", clock::stamp(due))));
        }
    }
    lines.iter().map(|(name, value)| format!("{name:<8}{value}\n")).collect()
}

/// What a node has in memory, for a person.
fn about(memory: &ResidentCell) -> String {
    let mut text = memory.state.word().to_owned();
    if let (Some(txid), Some(proven), Some(bytes)) =
        (memory.txid, memory.proven_txid, memory.database_bytes)
    {
        text += &format!(", TXID {txid} ({proven} proven), database of {bytes} bytes");
    }
    if memory.events + memory.waiting > 0 {
        text += &format!(", {} events, {} requests wait", memory.events, memory.waiting);
    }
    if memory.sockets > 0 {
        text += &format!(", {} WebSockets", memory.sockets);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_cells_files_is_passed_over() {
        let id = "0".repeat(64);
        let file = format!("cells/a.B/{id}/ltx/e0000000000000001/0/x.ltx");
        let behind_file = behind(&file);
        assert!(file < behind_file && behind_file < format!("cells/a.B/{id}/own.json"));
        let own = format!("cells/a.B/{id}/own.json");
        assert_eq!(behind(&own), own);
        assert_eq!(owned_cell(&own).map(|cell| cell.own_key()), Some(own));
        assert_eq!(owned_cell(&file), None);
    }

    #[test]
    fn a_class_is_the_end_of_its_namespace() {
        let cell = CellId::new("app.Room", &"0".repeat(64)).expect("a good name");
        for (class, is_it) in [
            (None, true),
            (Some("Room"), true),
            (Some("app.Room"), true),
            (Some("oom"), false),
            (Some("app"), false),
        ] {
            let wanted = Wanted { class, after: None, left: 1, is_json: false, has_head: false };
            assert_eq!(wanted.is_of_class(&cell), is_it, "{class:?}");
        }
    }
}
