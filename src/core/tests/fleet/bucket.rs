//! The bucket of the simulation: it keeps objects, and lists them as they are or as they were.
//!
//! Equal bytes have equal ETags, as on S3. The listing of a cell's files is always as it is: a
//! store that lists late what was put before cannot be restored from, and is refused at start.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use celld_core::cas::{CasOutcome, Etag, Guard};
use celld_core::cell::CellId;
use celld_core::epoch::Epoch;
use celld_core::lease;
use celld_core::node::{NodeId, SessionId};
use celld_core::ownership::{Base, Record};
use celld_core::plan::{LtxFile, PlanError, plan};
use celld_core::txid::Txid;
use celld_core::wake::Entry;
use celld_core::wake::scan::Page;

use super::border::Commit;
use super::checker::Checker;

/// Keys of one page: few, so that there are many pages.
const PAGE: usize = 7;

/// An object: its bytes and its version.
type Object = (Body, Etag);

/// The bytes of a record; a trace shows them as text.
#[derive(Clone, PartialEq, Eq)]
pub struct Body(pub Vec<u8>);

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// The name of a segment: its epoch, its first and its last commit.
pub type Segment = (Epoch, u64, u64);

#[derive(Debug)]
pub enum Request {
    GetOwn {
        cell: usize,
    },
    CasOwn {
        cell: usize,
        guard: Option<Guard>,
        body: Body,
        is_purge: bool,
    },
    GetLease {
        node: NodeId,
    },
    /// `sent_at` in true time, for the checker.
    CasLease {
        node: NodeId,
        guard: Guard,
        body: Body,
        session: SessionId,
        sent_at: u64,
    },
    DeleteLease {
        node: NodeId,
    },
    ListLeases,
    PutSegment {
        cell: usize,
        session: SessionId,
        segment: Segment,
        commits: Vec<Commit>,
    },
    /// List and read, filtered by the record's base unless it is to be ignored.
    Restore {
        cell: usize,
        record: Record,
        ignores_base: bool,
    },
    /// Those of epochs up to this one.
    DeleteFiles {
        cell: usize,
        upto: Epoch,
    },
    PutEntry {
        entry: Entry,
    },
    DeleteEntries {
        entries: Vec<Entry>,
    },
    ListEntries {
        after: Option<String>,
    },
}

#[derive(Debug)]
pub enum Answer {
    Object(Option<Object>),
    Cas(CasOutcome),
    Done,
    History(Vec<Commit>),
    Nodes(Vec<NodeId>),
    Entries(Page),
    /// No answer, to anything but a conditional write.
    Failed,
}

impl Request {
    pub fn is_conditional(&self) -> bool {
        matches!(self, Self::CasOwn { .. } | Self::CasLease { .. })
    }
}

/// What can be listed late.
#[derive(Clone, Default)]
struct Listing {
    leases: BTreeSet<NodeId>,
    entries: BTreeMap<String, Entry>,
}

pub struct Bucket {
    ids: Rc<[CellId]>,
    own: BTreeMap<usize, Object>,
    leases: BTreeMap<NodeId, Object>,
    segments: BTreeMap<(usize, Segment), Vec<Commit>>,
    now: Listing,
    before: Listing,
}

impl Bucket {
    pub fn new(ids: Rc<[CellId]>) -> Self {
        Self {
            ids,
            own: BTreeMap::new(),
            leases: BTreeMap::new(),
            segments: BTreeMap::new(),
            now: Listing::default(),
            before: Listing::default(),
        }
    }
    /// From here on late listings show this moment.
    pub fn remember(&mut self) {
        self.before = self.now.clone();
    }
    /// The request takes effect.
    pub fn apply(&mut self, request: &Request, is_stale: bool, checker: &mut Checker) -> Answer {
        match request {
            Request::GetOwn { cell } => Answer::Object(self.own.get(cell).cloned()),
            Request::GetLease { node } => Answer::Object(self.leases.get(node).cloned()),
            Request::CasOwn { cell, guard, body, is_purge } => {
                let answer = self.cas_own(*cell, guard.as_ref(), body, checker);
                if *is_purge && matches!(answer, Answer::Cas(CasOutcome::Applied(_))) {
                    checker.purged(*cell, self.parse(*cell, body).epoch);
                }
                answer
            }
            Request::DeleteFiles { cell, upto } => {
                self.segments.retain(|(of, (epoch, ..)), _| of != cell || epoch > upto);
                Answer::Done
            }
            Request::Restore { cell, record, .. } if checker.is_purged(*cell, record.epoch) => {
                // Whoever asks has lost the cell, and may see anything.
                Answer::Failed
            }
            Request::CasLease { node, guard, body, session, sent_at } => {
                if !holds(guard, self.leases.get(node)) {
                    return Answer::Cas(CasOutcome::Refused);
                }
                let record = lease::Record::parse(&body.0).expect("only whole records");
                checker.lease_applied(session, *sent_at, &record);
                self.leases.insert(node.clone(), (body.clone(), etag(body)));
                self.now.leases.insert(node.clone());
                Answer::Cas(CasOutcome::Applied(etag(body)))
            }
            Request::DeleteLease { node } => {
                self.delete_lease(node);
                Answer::Done
            }
            Request::ListLeases => {
                Answer::Nodes(self.listing(is_stale).leases.iter().cloned().collect())
            }
            Request::PutSegment { cell, session, segment, commits } => {
                let own = self.own.get(cell).map(|(body, _)| self.parse(*cell, body));
                let before = self.segments.insert((*cell, *segment), commits.clone());
                let is_changed = before.is_some_and(|before| before != *commits);
                checker.segment_applied(*cell, session, *segment, own.as_ref(), is_changed);
                Answer::Done
            }
            Request::Restore { cell, record, ignores_base } => {
                Answer::History(self.restore(*cell, record, *ignores_base, checker))
            }
            Request::PutEntry { entry } => {
                self.now.entries.insert(entry.key(), entry.clone());
                Answer::Done
            }
            Request::DeleteEntries { entries } => {
                for entry in entries {
                    self.now.entries.remove(&entry.key());
                }
                Answer::Done
            }
            Request::ListEntries { after } => Answer::Entries(self.page(is_stale, after.as_ref())),
        }
    }
    fn cas_own(
        &mut self,
        cell: usize,
        guard: Option<&Guard>,
        body: &Body,
        checker: &mut Checker,
    ) -> Answer {
        let before = self.own.get(&cell);
        if !guard.is_none_or(|guard| holds(guard, before)) {
            return Answer::Cas(CasOutcome::Refused);
        }
        let before = before.map(|(body, _)| self.parse(cell, body));
        checker.own_applied(cell, before.as_ref(), &self.parse(cell, body));
        self.own.insert(cell, (body.clone(), etag(body)));
        Answer::Cas(CasOutcome::Applied(etag(body)))
    }
    fn delete_lease(&mut self, node: &NodeId) {
        self.leases.remove(node);
        self.now.leases.remove(node);
    }
    /// Somebody who should not deletes the `n`th lease.
    pub fn sweep(&mut self, n: u64) {
        let index = usize::try_from(n).expect("small") % self.leases.len().max(1);
        if let Some(node) = self.leases.keys().nth(index).cloned() {
            self.delete_lease(&node);
        }
    }
    pub fn leases(&self) -> impl Iterator<Item = lease::Record> {
        let parse = |body: &Body| lease::Record::parse(&body.0).expect("only whole records");
        self.leases.values().map(move |(body, _)| parse(body))
    }
    /// How many hints the index has.
    pub fn entries(&self) -> usize {
        self.now.entries.len()
    }
    fn listing(&self, is_stale: bool) -> &Listing {
        if is_stale { &self.before } else { &self.now }
    }
    fn page(&self, is_stale: bool, after: Option<&String>) -> Page {
        let all = &self.listing(is_stale).entries;
        let is_after = |(key, _): &(&String, &Entry)| after.is_none_or(|after| *key > after);
        let mut rest = all.iter().filter(is_after);
        let page: Vec<_> = rest.by_ref().take(PAGE).collect();
        let more = rest.next().and(page.last()).map(|(key, _)| (*key).clone());
        Page { entries: page.into_iter().map(|(_, entry)| entry.clone()).collect(), more }
    }
    /// What the next owner of the cell would find.
    pub fn durable(&self, cell: usize) -> Vec<Commit> {
        let Some((body, _)) = self.own.get(&cell) else { return vec![] };
        let record = self.parse(cell, body);
        let names = self.plan(cell, record.base, record.epoch).unwrap_or_default();
        self.read(cell, &names)
    }
    fn restore(
        &self,
        cell: usize,
        record: &Record,
        ignores_base: bool,
        checker: &mut Checker,
    ) -> Vec<Commit> {
        let base = if ignores_base { Base::ORIGIN } else { record.base };
        match self.plan(cell, base, record.epoch) {
            Ok(names) => {
                let commits = self.read(cell, &names);
                checker.restored(cell, record.epoch, names);
                commits
            }
            Err(e) => {
                checker.violated(format!("cell {cell}: {e}"));
                vec![]
            }
        }
    }
    /// What the real plan makes of the listing.
    fn plan(&self, number: usize, base: Base, limit: Epoch) -> Result<Vec<Segment>, PlanError> {
        let cell = &self.ids[number];
        let least = (number, (Epoch::FIRST, 0, 0));
        let mine = self.segments.range(least..).take_while(|((of, _), _)| *of == number);
        let key =
            |(epoch, min, max): Segment| cell.ltx_key(epoch, 0, Txid::new(min), Txid::new(max));
        let keys: Vec<_> = mine.map(|((_, segment), _)| key(*segment)).collect();
        let plan = plan(cell, keys.iter().map(|key| (key.as_str(), 1)), base, limit)?;
        let name = |file: &LtxFile| (file.epoch, file.min.get(), file.max.get());
        Ok(plan.files.iter().map(name).collect())
    }
    fn read(&self, cell: usize, names: &[Segment]) -> Vec<Commit> {
        names.iter().flat_map(|name| &self.segments[&(cell, *name)]).copied().collect()
    }
    fn parse(&self, cell: usize, body: &Body) -> Record {
        Record::parse(&body.0, &self.ids[cell]).expect("only whole records are written")
    }
}

fn holds(guard: &Guard, object: Option<&Object>) -> bool {
    match (guard, object) {
        (Guard::Absent, None) => true,
        (Guard::Match(etag), Some((_, is))) => etag == is,
        (Guard::Absent, Some(_)) | (Guard::Match(_), None) => false,
    }
}

/// The version of an object with this content.
pub fn etag(body: &Body) -> Etag {
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    Etag::new(format!("{:016x}", body.0.iter().fold(0xcbf2_9ce4_8422_2325, hash)))
}
