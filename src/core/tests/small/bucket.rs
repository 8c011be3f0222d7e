//! The bucket of the small fleet: one ownership record, two leases, the segments of one cell, and
//! the writes that nobody waits for any more, but that may still arrive.
//!
//! Equal records have equal ETags; no two writes of a record are equal, as each has its nonce.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use celld_core::cas::{CasOutcome, Etag, Guard};
use celld_core::cell::CellId;
use celld_core::epoch::Epoch;
use celld_core::lease;
use celld_core::ownership::{Base, Record};
use celld_core::plan::{LtxFile, plan};
use celld_core::txid::Txid;

static CELL: LazyLock<CellId> =
    LazyLock::new(|| CellId::new("small.Cell", &"0".repeat(64)).expect("a good name"));

/// The commits of the cell, one after the other, by the numbers of their writes. All differ.
pub type History = Vec<u8>;

/// The name of a segment: its epoch, its first and its last commit.
pub type Segment = (Epoch, u64, u64);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    GetOwn,
    /// Without a guard only by the broken claim.
    CasOwn(Option<Guard>, Record),
    /// Of the node with this number.
    GetLease(usize),
    CasLease(usize, Guard, lease::Record),
    Put(Segment, History),
    /// List and read what this base admits, for this epoch.
    Restore(Base, Epoch),
}

#[derive(Clone, Debug, Hash)]
pub enum Answer {
    Own(Option<(Record, Etag)>),
    Lease(Option<(lease::Record, Etag)>),
    Cas(CasOutcome),
    Done,
    History(History),
    /// No answer, to anything but a conditional write.
    Failed,
}

#[derive(Clone, Hash, Default)]
pub struct Bucket {
    pub own: Option<Record>,
    pub leases: [Option<lease::Record>; 2],
    segments: BTreeMap<Segment, History>,
    /// In no order: any of them may be the next to arrive, or none.
    pub adrift: Vec<Request>,
}

impl Request {
    pub fn is_write(&self) -> bool {
        match self {
            Self::CasOwn(..) | Self::CasLease(..) | Self::Put(..) => true,
            Self::GetOwn | Self::GetLease(_) | Self::Restore(..) => false,
        }
    }
    /// What is heard of it when there is no answer.
    pub fn unknown(&self) -> Answer {
        match self {
            Self::CasOwn(..) | Self::CasLease(..) => Answer::Cas(CasOutcome::Unknown),
            Self::GetOwn | Self::GetLease(_) | Self::Put(..) | Self::Restore(..) => Answer::Failed,
        }
    }
}

impl Bucket {
    /// The request takes effect. An error is a broken invariant.
    pub fn apply(&mut self, request: &Request) -> Result<Answer, String> {
        match request {
            Request::CasOwn(_, record) if self.holds(request) => {
                judge_epochs(self.own.as_ref(), record)?;
                self.own = Some(record.clone());
                Ok(Answer::Cas(CasOutcome::Applied(own_etag(record))))
            }
            Request::CasLease(node, _, record) if self.holds(request) => {
                self.leases[*node] = Some(record.clone());
                Ok(Answer::Cas(CasOutcome::Applied(lease_etag(record))))
            }
            Request::CasOwn(..) | Request::CasLease(..) => Ok(Answer::Cas(CasOutcome::Refused)),
            Request::Put(segment, commits) => {
                let before = self.segments.insert(*segment, commits.clone());
                if before.is_some_and(|before| before != *commits) {
                    return Err(format!("segment {segment:?} was written twice"));
                }
                Ok(Answer::Done)
            }
            Request::GetOwn | Request::GetLease(_) | Request::Restore(..) => self.read(request),
        }
    }
    /// The same, of a request that changes nothing.
    pub fn read(&self, request: &Request) -> Result<Answer, String> {
        let own = || self.own.clone().map(|own| (own.clone(), own_etag(&own)));
        match request {
            Request::GetOwn => Ok(Answer::Own(own())),
            Request::GetLease(node) => Ok(Answer::Lease(self.lease(*node))),
            Request::Restore(base, epoch) => Ok(Answer::History(self.restore(*base, *epoch)?)),
            Request::CasOwn(..) | Request::CasLease(..) | Request::Put(..) => {
                unreachable!("{request:?} is no read")
            }
        }
    }
    pub fn lease(&self, node: usize) -> Option<(lease::Record, Etag)> {
        self.leases[node].clone().map(|record| (record.clone(), lease_etag(&record)))
    }
    /// Nobody waits for this write any more.
    pub fn lets_drift(&mut self, request: Request) {
        if !self.adrift.contains(&request) {
            self.adrift.push(request);
        }
    }
    /// Forgets what has no effect any more, so that equal futures are equal states: a version that
    /// was written over never stands again, and a segment that is there stays as it is. Leases of
    /// sessions that have ended only make others wait, unless their nodes start again.
    pub fn settle(&mut self, has_starts: bool, order: impl Fn(&Request) -> u64) {
        let mut adrift = std::mem::take(&mut self.adrift);
        adrift.retain(|request| match request {
            Request::Put(segment, commits) => self.segments.get(segment) != Some(commits),
            Request::CasLease(..) => has_starts && self.holds(request),
            _ => self.holds(request),
        });
        adrift.sort_by_key(order);
        self.adrift = adrift;
    }
    fn holds(&self, write: &Request) -> bool {
        let (guard, is) = match write {
            Request::CasOwn(None, _) => return true,
            Request::CasOwn(Some(guard), _) => (guard, self.own.as_ref().map(own_etag)),
            Request::CasLease(node, guard, _) => {
                (guard, self.leases[*node].as_ref().map(lease_etag))
            }
            Request::GetOwn | Request::GetLease(_) | Request::Put(..) | Request::Restore(..) => {
                return false;
            }
        };
        match guard {
            Guard::Absent => is.is_none(),
            Guard::Match(etag) => is.as_ref() == Some(etag),
        }
    }
    /// What the real plan makes of the listing.
    fn restore(&self, base: Base, epoch: Epoch) -> Result<History, String> {
        let key =
            |(epoch, min, max): &Segment| CELL.ltx_key(*epoch, 0, Txid::new(*min), Txid::new(*max));
        let keys: Vec<_> = self.segments.keys().map(key).collect();
        let plan = plan(&CELL, keys.iter().map(|key| (key.as_str(), 1)), base, epoch);
        let plan = plan.map_err(|error| error.to_string())?;
        let commits =
            |file: &LtxFile| &self.segments[&(file.epoch, file.min.get(), file.max.get())];
        Ok(plan.files.iter().flat_map(commits).copied().collect())
    }
}

fn judge_epochs(before: Option<&Record>, after: &Record) -> Result<(), String> {
    let last = before.map_or(0, |record| record.epoch.get());
    let kept = before.filter(|before| before.epoch == after.epoch);
    if kept.is_none() && after.epoch.get() != last + 1 {
        return Err(format!("epoch {} after epoch {last}", after.epoch.get()));
    }
    if kept.is_some_and(|kept| after.owner.is_some() && kept.owner != after.owner) {
        return Err(format!("epoch {} has two owners", after.epoch.get()));
    }
    Ok(())
}

fn own_etag(record: &Record) -> Etag {
    Etag::new(record.nonce.as_str())
}

fn lease_etag(record: &lease::Record) -> Etag {
    Etag::new(format!("{}.{}", record.session, record.write))
}
