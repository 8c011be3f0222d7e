//! What an operator does with a fleet: looks at nodes and cells, and tells nodes what to do.
//!
//! The bucket says which nodes there are and who owns a cell; the nodes are asked over the links
//! that they use among themselves, with a certificate made from the fleet's record in the bucket.
//! Nothing is written into the bucket here: what is to change, a node changes.

mod cells;
pub(crate) mod drain;
mod orders;
pub(crate) mod status;
mod table;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use celld_core::cell::CellId;
use celld_core::lease;
use celld_core::node::NodeId;
use celld_core::ownership;
use celld_core::record::RecordError;
use celld_peer::identity::Identity;
use celld_peer::operator::{OperatorReply, OperatorRequest};
use celld_peer::{Address, CallError, Link};
use celld_s3::{Bucket, StoreError};
use celld_v8host::api::ids::IdFactory;

use super::args::CellCommand;
use super::diagnose::leases::{self, Leases, Seen};
use super::fleet::{NoIdentity, identity, limited};
use super::settings::{Access, BucketArgs, Environment};
use super::{CommandError, settings};

/// The body of an answer: a thousand cells have a quarter of it.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// For a node to say that it is there: connection, certificates and answer.
pub(super) const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperatorError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    NoIdentity(#[from] NoIdentity),
    #[error("the cell {0}: {1}")]
    Record(CellId, RecordError),
    #[error("there is no cell {0} in the bucket; `celld cell list` shows those that there are")]
    NoCell(CellId),
    #[error(
        "{0:?} is no cell: it must be NAMESPACE/ID, with an id of 64 hexadecimal digits, or NAMESPACE and --name NAME"
    )]
    BadCell(String),
    #[error("there is no lease of a node {0} in the bucket; there are: {1}")]
    NoNode(NodeId, String),
    #[error("the lease of node {0} cannot be read: {1}")]
    BadLease(NodeId, String),
    #[error("node {0} takes no calls: it has no --internal-listen")]
    Mute(NodeId),
    #[error("node {0} is not asked, as its address is unsafe: {1}")]
    Unsafe(NodeId, &'static str),
    #[error("node {0}: {1}")]
    Call(NodeId, CallError),
    #[error("node {node} refused: {words} ({code})")]
    Refused { node: NodeId, words: String, code: String },
    #[error("no node is there that could do it: `celld status` shows those that there are")]
    Nobody,
    #[error("all data of the cell {0} would be deleted for good: say --yes if you mean it")]
    NotConfirmed(CellId),
    #[error(
        "node {0} has begun to drain, and has not left within {1:?}: it still renews its lease; its log says why"
    )]
    Stays(NodeId, Duration),
    #[error("node {0}: its answer makes no sense: {1}")]
    Answer(NodeId, serde_json::Error),
}

impl OperatorError {
    /// Whether what was typed is at fault, and nothing was asked of anybody.
    pub(super) fn is_typed(&self) -> bool {
        matches!(self, Self::BadCell(_) | Self::NotConfirmed(_))
    }
}

/// A fleet, as a command meets it.
pub(super) struct Fleet {
    pub(super) bucket: Bucket,
    /// As they were when the command began.
    pub(super) leases: Leases,
    nonce: u64,
    identity: Option<Rc<Identity>>,
    links: BTreeMap<NodeId, Link>,
}

/// Finds the fleet of a bucket, and runs `act` on it.
///
/// # Errors
/// Its own, or the bucket cannot be used.
pub(super) fn on_fleet(
    bucket: BucketArgs,
    environment: Environment<'_>,
    act: impl AsyncFnOnce(&mut Fleet) -> Result<ExitCode, CommandError>,
) -> Result<ExitCode, CommandError> {
    let place = settings::bucket(bucket, environment)?;
    super::notes(&place.notes);
    celld_rt::preflight()?;
    let nonce = getrandom::u64()?;
    let bucket = place.open(Access::Read)?;
    celld_rt::block_on(async {
        let read = leases::read(&bucket, place.is_shared()).await;
        let leases = read.map_err(OperatorError::from)?;
        if !leases.is_complete {
            let count = leases.seen.len();
            celld_rt::log!(
                "celld: note: the bucket has more leases than the {count} that were read"
            );
        }
        let mut fleet = Fleet { bucket, leases, nonce, identity: None, links: BTreeMap::new() };
        act(&mut fleet).await
    })
}

/// Runs a command that concerns cells.
///
/// # Errors
/// It was not done; the message says why.
pub(crate) fn cell(
    command: &CellCommand,
    environment: Environment<'_>,
) -> Result<ExitCode, CommandError> {
    match command {
        CellCommand::List(typed) => cells::list(typed, environment),
        CellCommand::Show(typed) => cells::show(typed, environment),
        CellCommand::Evict(typed) => orders::evict(typed, environment),
        CellCommand::Move(typed) => orders::move_to(typed, environment),
        CellCommand::Purge(typed) => orders::purge(typed, environment),
    }
}

impl Fleet {
    /// What is known of a node.
    pub(super) fn node(&self, node: &NodeId) -> Result<(&Seen, &lease::Record), OperatorError> {
        let key = node.lease_key();
        let Some(seen) = self.leases.seen.iter().find(|seen| seen.key == key) else {
            let is_there = |seen: &&Seen| seen.record.as_ref().is_some_and(|r| !r.is_retired());
            let known = self.leases.seen.iter().filter(is_there);
            let known: Vec<_> =
                known.filter_map(|seen| Some(seen.record.as_ref()?.node.as_str())).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(OperatorError::NoNode(node.clone(), known));
        };
        match &seen.record {
            Some(record) => Ok((seen, record)),
            None => Err(OperatorError::BadLease(node.clone(), seen.state.why().to_owned())),
        }
    }

    /// What proves that we may ask.
    pub(super) async fn identity(&mut self) -> Result<Rc<Identity>, OperatorError> {
        if let Some(known) = &self.identity {
            return Ok(known.clone());
        }
        let name = NodeId::parse("operator").expect("a good name");
        let made = identity(&self.bucket, name, self.nonce).await?;
        self.identity = Some(made.clone());
        Ok(made)
    }

    /// The link to a node.
    pub(super) async fn link(&mut self, node: &NodeId) -> Result<Link, OperatorError> {
        if let Some(link) = self.links.get(node) {
            return Ok(link.clone());
        }
        let (seen, record) = self.node(node)?;
        if let Some(why) = seen.unsafe_address {
            return Err(OperatorError::Unsafe(node.clone(), why));
        }
        let address = Address::of_lease(record).ok_or_else(|| OperatorError::Mute(node.clone()))?;
        let link = Link::new(self.identity().await?, address);
        self.links.insert(node.clone(), link.clone());
        Ok(link)
    }

    /// Asks a node. Returns the body of its answer.
    pub(super) async fn ask(
        &mut self,
        node: &NodeId,
        request: &OperatorRequest,
        wait: Duration,
    ) -> Result<Bytes, OperatorError> {
        let link = self.link(node).await?;
        let asked = link.operate(request, wait, ANSWER_BYTES_MAX).await;
        match asked.map_err(|error| OperatorError::Call(node.clone(), error))? {
            (OperatorReply::Done, body) => Ok(body),
            (OperatorReply::Refused { code, words, .. }, _) => {
                let (words, code) = (plain(&words), plain(&code));
                Err(OperatorError::Refused { node: node.clone(), words, code })
            }
        }
    }

    /// Who owns a cell; `None`: it does not exist.
    pub(super) async fn owner(
        &self,
        cell: &CellId,
    ) -> Result<Option<ownership::Record>, OperatorError> {
        read_owner(&self.bucket, cell).await
    }
}

/// Who owns a cell; `None`: it does not exist.
pub(super) async fn read_owner(
    bucket: &Bucket,
    cell: &CellId,
) -> Result<Option<ownership::Record>, OperatorError> {
    let key = cell.own_key();
    let Some(object) = limited(&key, bucket.get(&key)).await? else { return Ok(None) };
    let record = ownership::Record::parse(&object.body, cell);
    record.map(Some).map_err(|error| OperatorError::Record(cell.clone(), error))
}

/// The cell that a person means.
fn cell_id(cell: &str, name: Option<&str>) -> Result<CellId, OperatorError> {
    let found = match (cell.split_once('/'), name) {
        (Some((namespace, id)), None) => CellId::new(namespace, &id.to_ascii_lowercase()),
        (None, Some(name)) => CellId::new(cell, &IdFactory::new(cell).of_name(name)),
        (Some(_), Some(_)) | (None, None) => None,
    };
    found.ok_or_else(|| OperatorError::BadCell(cell.to_owned()))
}

/// A terminal would obey control characters.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Prints data.
pub(super) fn print(text: &str) {
    // Who closes the pipe early has seen enough.
    let _gone = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Milliseconds of a span, for JSON.
pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_meant_by_its_id_or_by_its_name() {
        let by_name = cell_id("app.Room", Some("lobby")).expect("a name");
        assert_eq!(cell_id(&by_name.to_string(), None).expect("an id"), by_name);
        let loud = by_name.to_string().replace("app.Room", "").to_uppercase();
        assert_eq!(cell_id(&format!("app.Room{loud}"), None).expect("an id"), by_name);
        assert_ne!(cell_id("app.Hall", Some("lobby")).expect("a name").id(), by_name.id());
        for (cell, name) in [
            ("app.Room", None),
            ("app.Room/", None),
            ("app.Room/0f", None),
            ("../x", Some("lobby")),
            ("", Some("lobby")),
            (by_name.to_string().as_str(), Some("lobby")),
        ] {
            let error = cell_id(cell, name).expect_err(cell).to_string();
            assert!(error.contains("NAMESPACE/ID"), "{error}");
        }
    }
}
