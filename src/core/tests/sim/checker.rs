//! What must hold after each step of a simulation. It knows the truth that no process knows: what
//! took effect in the bucket, and what was seen outside.

use std::collections::{BTreeMap, BTreeSet};

use celld_core::claim::Failure;
use celld_core::epoch::Epoch;
use celld_core::lease::Loss;
use celld_core::node::SessionId;
use celld_core::ownership::Record;
use celld_core::txid::Txid;

use super::TTL;
use super::bucket::Segment;

#[derive(Default)]
pub struct Checker {
    /// The first thing that went wrong.
    pub violation: Option<String>,
    /// Until when a session has its right: from the send of its last write that took effect.
    authority: BTreeMap<SessionId, u64>,
    /// Who wrote at an epoch.
    writers: BTreeMap<(usize, Epoch), SessionId>,
    /// Segments that came after their epoch was over.
    late: BTreeSet<(usize, Segment)>,
    /// From what the last claim of an epoch restored.
    restored: BTreeMap<(usize, Epoch), Vec<Segment>>,
    cells: BTreeMap<usize, Truth>,
    /// How often something was released: a run in which nothing is has checked nothing.
    pub released: u64,
    /// How the rights of sessions ended.
    pub losses: Vec<Loss>,
}

#[derive(Default)]
struct Truth {
    /// The longest history that anybody outside has seen.
    observed: Vec<u64>,
    /// Where each epoch began, by what its owner restored.
    begins: BTreeMap<Epoch, Vec<u64>>,
    /// The last op released by an activation.
    last_op: BTreeMap<Epoch, u64>,
}

impl Checker {
    pub fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }
    pub fn own_applied(&mut self, cell: usize, before: Option<&Record>, after: &Record) {
        let last = before.map_or(0, |record| record.epoch.get());
        let (next, kept) = (last + 1, before.is_some_and(|b| b.epoch == after.epoch));
        if after.epoch.get() != next && !kept {
            self.violated(format!("cell {cell}: epoch {} after epoch {last}", after.epoch));
        }
        let before_owner = before.and_then(|b| b.owner.as_ref());
        if kept && after.owner.is_some() && before_owner != after.owner.as_ref() {
            self.violated(format!("cell {cell}: epoch {} has two owners", after.epoch));
        }
    }
    pub fn lease_applied(&mut self, session: &SessionId, sent_at: u64) {
        let until = self.authority.entry(session.clone()).or_default();
        *until = (*until).max(sent_at + TTL.as_micros());
    }
    pub fn segment_applied(
        &mut self,
        cell: usize,
        session: &SessionId,
        segment: Segment,
        own: Option<&Record>,
        is_changed: bool,
    ) {
        let (epoch, _, max) = segment;
        self.writes(cell, epoch, session);
        if is_changed {
            self.violated(format!("cell {cell}: segment {segment:?} was written twice"));
        }
        let begins = &self.cells.entry(cell).or_default().begins;
        let after = |(of, history): (&Epoch, &Vec<u64>)| *of > epoch && max > history.len() as u64;
        let is_out = own.is_some_and(|own| !own.base.admits(epoch, Txid::new(max)));
        if is_out || begins.iter().any(after) {
            self.late.insert((cell, segment));
        }
    }
    /// A claim of `epoch` restored from these. A claim that has lost its epoch meanwhile may see
    /// anything; it counts if it comes to serve.
    pub fn restored(&mut self, cell: usize, epoch: Epoch, segments: Vec<Segment>) {
        self.restored.insert((cell, epoch), segments);
    }
    /// An activation begins.
    pub fn served(&mut self, cell: usize, session: &SessionId, record: &Record, history: &[u64]) {
        self.writes(cell, record.epoch, session);
        let used = self.restored.remove(&(cell, record.epoch)).unwrap_or_default();
        if let Some(late) = used.iter().find(|segment| self.late.contains(&(cell, **segment))) {
            self.violated(format!("cell {cell}: the late segment {late:?} was read"));
        }
        let truth = self.cells.entry(cell).or_default();
        let again = truth.begins.insert(record.epoch, history.to_vec()).is_some();
        let seen = truth.observed.clone();
        if again {
            self.violated(format!("cell {cell}: two activations at epoch {}", record.epoch));
        }
        if record.base.txid != Txid::new(history.len() as u64) && record.is_based() {
            self.violated(format!("cell {cell}: base {} is not the history", record.base.txid));
        }
        // An owner that is late itself may lack what its successors showed; it can release nothing.
        let is_last = self.cells[&cell].begins.keys().next_back() == Some(&record.epoch);
        if is_last && !history.starts_with(&seen) {
            self.violated(format!(
                "cell {cell}: epoch {} begins at {}, but {} was seen",
                record.epoch,
                history.len(),
                seen.len()
            ));
        }
    }
    /// Somebody outside sees this history.
    pub fn released(
        &mut self,
        now: u64,
        cell: usize,
        session: &SessionId,
        epoch: Epoch,
        op: u64,
        history: &[u64],
    ) {
        self.released += 1;
        // The promise of the lease, measured from what took effect in the bucket.
        let until = self.authority.get(session).copied().unwrap_or_default();
        if now >= until {
            self.violated(format!("cell {cell}: ack at {now} after the right ended at {until}"));
        }
        let truth = self.cells.entry(cell).or_default();
        let lost = truth.begins.range(epoch.next()..).any(|(_, begin)| !begin.starts_with(history));
        let seen = truth.observed.len().min(history.len());
        let differs = truth.observed[..seen] != history[..seen];
        if history.len() > seen {
            truth.observed = history.to_vec();
        }
        let before = truth.last_op.insert(epoch, op);
        if lost {
            self.violated(format!("cell {cell}: epoch {epoch} shows what its successor lacks"));
        }
        if differs {
            self.violated(format!("cell {cell}: what was seen at epoch {epoch} rolled back"));
        }
        if before.is_some_and(|before| before >= op) {
            self.violated(format!("cell {cell}: ack {op} left after {before:?}"));
        }
    }
    /// How many segments came too late.
    pub fn late(&self) -> usize {
        self.late.len()
    }
    /// An activation failed. Slowness is no reason to lose files.
    pub fn failed(&mut self, cell: usize, failure: &Failure) {
        match failure {
            Failure::Exhausted(_) | Failure::Restore | Failure::Absent => {}
            Failure::Record(_) | Failure::Broken(_) | Failure::History { .. } => {
                self.violated(format!("cell {cell}: {failure}"));
            }
        }
    }
    fn writes(&mut self, cell: usize, epoch: Epoch, session: &SessionId) {
        let writer = self.writers.entry((cell, epoch)).or_insert_with(|| session.clone());
        if writer != session {
            self.violated(format!("cell {cell}: epoch {epoch} has two writers"));
        }
    }
}
