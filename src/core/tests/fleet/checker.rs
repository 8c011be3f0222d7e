//! What must hold after each step of the simulation. It knows the truth that no process knows: what
//! took effect in the bucket, and what was seen outside.

use std::collections::{BTreeMap, BTreeSet};

use celld_core::claim::Failure;
use celld_core::epoch::Epoch;
use celld_core::lease;
use celld_core::node::SessionId;
use celld_core::ownership::Record;
use celld_core::time::Wall;
use celld_core::txid::Txid;

use super::border::{Commit, Op, alarm_of};
use super::bucket::Segment;

#[derive(Default)]
pub struct Checker {
    /// The first thing that went wrong.
    pub violation: Option<String>,
    /// Rights may overlap: clocks stand still, or state directories were copied.
    is_lenient: bool,
    /// Until when a session has its right: from the send of its last write that took effect.
    authority: BTreeMap<SessionId, u64>,
    /// Who wrote at an epoch.
    writers: BTreeMap<(usize, Epoch), SessionId>,
    /// Segments that came after their epoch was over.
    late: BTreeSet<(usize, Segment)>,
    /// From what the last claim of an epoch restored.
    restored: BTreeMap<(usize, Epoch), Vec<Segment>>,
    cells: BTreeMap<usize, Truth>,
    /// How much had been seen of the cell when the op began, and after how many purges.
    begun: BTreeMap<u64, (usize, u64)>,
    /// Purges that took effect.
    pub purges: u64,
    /// How often something was released: a run in which nothing is has checked nothing.
    pub released: u64,
    /// Alarms that ran.
    pub runs: u64,
}

#[derive(Default)]
struct Truth {
    /// The longest history that anybody outside has seen.
    observed: Vec<Commit>,
    /// The epoch of the last purge, and how many there were.
    purged: Option<Epoch>,
    purges: u64,
    /// What had been seen before it.
    gone: BTreeSet<u64>,
    /// Where each epoch began, by what its owner restored.
    begins: BTreeMap<Epoch, Vec<Commit>>,
    /// The last op released by an activation.
    last_op: BTreeMap<Epoch, u64>,
    /// Alarms that ran or were given up, by what they were set to.
    ran: BTreeSet<Wall>,
}

impl Checker {
    pub fn new(is_lenient: bool) -> Self {
        Self { is_lenient, ..Self::default() }
    }
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
    /// All data of the cell is deleted: it begins anew, and nothing of before is ever seen again.
    pub fn purged(&mut self, cell: usize, epoch: Epoch) {
        self.purges += 1;
        let truth = self.cells.entry(cell).or_default();
        truth.gone.extend(truth.observed.drain(..).map(|commit| number(&commit)));
        truth.purged = Some(epoch);
        truth.purges += 1;
    }
    /// Whether nothing of this epoch counts any more.
    pub fn is_purged(&self, cell: usize, epoch: Epoch) -> bool {
        let purged = self.cells.get(&cell).and_then(|truth| truth.purged);
        purged.is_some_and(|purged| epoch <= purged)
    }
    /// A clock that is slow by a hundredth lets its right last that much longer.
    pub fn lease_applied(&mut self, session: &SessionId, sent_at: u64, record: &lease::Record) {
        let ttl = record.ttl.as_micros();
        let until = self.authority.entry(session.clone()).or_default();
        *until = if record.is_retired() { 0 } else { (*until).max(sent_at + ttl + ttl / 100) };
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
        let after =
            |(of, history): (&Epoch, &Vec<Commit>)| *of > epoch && max > history.len() as u64;
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
    pub fn served(
        &mut self,
        cell: usize,
        session: &SessionId,
        record: &Record,
        history: &[Commit],
    ) {
        self.writes(cell, record.epoch, session);
        let used = self.restored.remove(&(cell, record.epoch)).unwrap_or_default();
        if let Some(late) = used.iter().find(|segment| self.late.contains(&(cell, **segment))) {
            self.violated(format!("cell {cell}: the late segment {late:?} was read"));
        }
        let truth = self.cells.entry(cell).or_default();
        let again = truth.begins.insert(record.epoch, history.to_vec()).is_some();
        let is_last = truth.begins.keys().next_back() == Some(&record.epoch);
        // An owner that is late itself may lack what its successors showed; it can release nothing.
        let lacks = is_last && !history.starts_with(&truth.observed);
        let seen = truth.observed.len();
        if again {
            self.violated(format!("cell {cell}: two activations at epoch {}", record.epoch));
        }
        if record.base.txid != Txid::new(history.len() as u64) && record.is_based() {
            self.violated(format!("cell {cell}: base {} is not the history", record.base.txid));
        }
        if lacks {
            let (epoch, begin) = (record.epoch, history.len());
            self.violated(format!(
                "cell {cell}: epoch {epoch} begins at {begin}, but {seen} was seen"
            ));
        }
    }
    /// Somebody asks something of a cell.
    pub fn asked(&mut self, op: &Op) {
        let of = |truth: &Truth| (truth.observed.len(), truth.purges);
        let seen = self.cells.get(&op.cell).map_or((0, 0), of);
        self.begun.insert(op.id, seen);
    }
    /// Somebody outside sees this history.
    pub fn released(
        &mut self,
        now: u64,
        session: &SessionId,
        epoch: Epoch,
        order: u64,
        op: &Op,
        history: &[Commit],
    ) {
        self.released += 1;
        let cell = op.cell;
        // The promise of the lease, measured from what took effect in the bucket.
        let until = self.authority.get(session).copied().unwrap_or_default();
        if now >= until && !self.is_lenient {
            self.violated(format!("cell {cell}: ack at {now} after the right ended at {until}"));
        }
        let (begun, purges) = self.begun.remove(&op.id).unwrap_or_default();
        let truth = self.cells.entry(cell).or_default();
        let begun = if purges == truth.purges { begun } else { 0 };
        let is_gone = history.iter().any(|commit| truth.gone.contains(&number(commit)));
        if self.is_purged(cell, epoch) {
            // Rights that overlap let a late owner show what it had.
            if !self.is_lenient {
                self.violated(format!("cell {cell}: epoch {epoch} shows what was purged"));
            }
            return;
        }
        if is_gone {
            self.violated(format!("cell {cell}: what was purged is back at epoch {epoch}"));
        }
        if history.len() < begun && !self.is_lenient {
            let shows = history.len();
            self.violated(format!(
                "cell {cell}: op {} shows {shows}, but {begun} was seen before it began",
                op.id
            ));
        }
        let truth = self.cells.entry(cell).or_default();
        let lost = truth.begins.range(epoch.next()..).any(|(_, begin)| !begin.starts_with(history));
        let seen = truth.observed.len().min(history.len());
        let differs = truth.observed[..seen] != history[..seen];
        let news = &history[seen..];
        let twice = news
            .iter()
            .enumerate()
            .any(|(n, commit)| history[..seen + n].iter().any(|before| is_same(before, commit)));
        if history.len() > seen {
            truth.observed = history.to_vec();
        }
        let before = truth.last_op.insert(epoch, order);
        if twice {
            self.violated(format!("cell {cell}: something was committed twice"));
        }
        if lost {
            self.violated(format!("cell {cell}: epoch {epoch} shows what its successor lacks"));
        }
        if differs {
            self.violated(format!("cell {cell}: what was seen at epoch {epoch} rolled back"));
        }
        if before.is_some_and(|before| before >= order) {
            self.violated(format!("cell {cell}: ack {order} left after {before:?}"));
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
    /// `alarm()` begins, or was tried often enough.
    pub fn ran(&mut self, cell: usize, scheduled: Wall) {
        self.runs += 1;
        self.cells.entry(cell).or_default().ran.insert(scheduled);
    }
    /// By now every alarm that was seen to be armed for before `wall` has run, unless the cell has
    /// set it otherwise since. `durable`: what the next owner of a cell would find.
    pub fn all_alarms_ran(&mut self, wall: Wall, durable: impl Fn(usize) -> Vec<Commit>) {
        let is_owed = |(cell, truth): (&usize, &Truth)| {
            let history = durable(*cell);
            let is_set = |commit: &Commit| matches!(commit, Commit::Alarm(..));
            let last = history.iter().rposition(is_set)?;
            let Commit::Alarm(_, Some(alarm)) = history[last] else { return None };
            let is_shown = last < truth.observed.len();
            let due = alarm_of(&history).map_or(alarm.due, |now| now.due);
            let is_owed = is_shown && due <= wall && !truth.ran.contains(&alarm.scheduled);
            is_owed.then(|| format!("cell {cell}: its alarm never ran: {alarm:?}"))
        };
        if let Some(owed) = self.cells.iter().find_map(is_owed) {
            self.violated(owed);
        }
    }
    fn writes(&mut self, cell: usize, epoch: Epoch, session: &SessionId) {
        let writer = self.writers.entry((cell, epoch)).or_insert_with(|| session.clone());
        if writer != session {
            self.violated(format!("cell {cell}: epoch {epoch} has two writers"));
        }
    }
}

/// Whether both come from the same op.
fn is_same(a: &Commit, b: &Commit) -> bool {
    number(a) == number(b)
}

fn number(commit: &Commit) -> u64 {
    match commit {
        Commit::Write(n) | Commit::Alarm(n, _) | Commit::Left(n, _) => *n,
    }
}
