//! Cells in memory: commits, proofs, entries of the wake index, alarms, and what leaves the gate.

use celld_core::alarm::{self, Alarm, End, Stored};
use celld_core::cas::{Etag, Guard, Nonce};
use celld_core::epoch::FencingToken;
use celld_core::gate::{self, Gate};
use celld_core::ownership::Record;
use celld_core::proof::{self, Proof};
use celld_core::route::Refusal;
use celld_core::time::Wall;
use celld_core::txid::Txid;
use celld_core::wake::cover::{self, Cover};
use celld_core::wake::{Entry, Verdict, sleepers};

use super::super::border::{Commit, Kind, Op, Outcome, Source, Tag, When, Who, Wish, alarm_of};
use super::super::broken::Broken;
use super::super::bucket::{Answer, Body, Request};
use super::{Ack, PATIENCE, Phase, Process, Serving};

impl Process {
    pub(super) fn serving(&mut self, cell: usize) -> Option<&mut Serving> {
        match &mut self.cells.get_mut(&cell)?.phase {
            Phase::Serving(serving) => Some(serving),
            Phase::Claiming(_) | Phase::Moving => None,
        }
    }
    /// The cell is ours: it begins, and what waited is done.
    pub(super) fn open(&mut self, cell: usize, record: Record, etag: Etag) {
        let entry = self.cells.get_mut(&cell).expect("it is there");
        let Phase::Claiming(claiming) = &mut entry.phase else { return };
        let history = core::mem::take(&mut claiming.history);
        let waiting = core::mem::take(&mut entry.waiting);
        let begin = Txid::new(history.len() as u64);
        let stored = alarm_of(&history);
        let due = stored.map(|stored| stored.due);
        let is_covered = due.is_none() || self.birth.broken == Broken::EntryInherited;
        let id = self.birth.ids[cell].clone();
        self.wishes.push(Wish::Served { cell, record: record.clone(), history: history.clone() });
        self.left.insert(cell, (record.clone(), etag.clone()));
        let covered = due.filter(|_| !is_covered);
        entry.phase = Phase::Serving(Box::new(Serving {
            cover: Cover::new(id, record.epoch, begin, covered, PATIENCE),
            record,
            etag,
            history,
            proof: Proof::new(begin, PATIENCE),
            alarm: Alarm::default(),
            gate: if is_covered { Gate::new(begin) } else { Gate::closed(begin) },
            holds: 0,
            early: None,
        }));
        self.tell_sleepers(sleepers::Event::Woke(cell));
        self.tell_cover(cell, cover::Event::Started);
        self.tell_alarm(cell, alarm::Event::Restored(stored));
        for op in waiting {
            self.enter(op);
        }
    }
    /// A cell that is served does `op`.
    pub(super) fn serve(&mut self, op: Op) {
        let cell = op.cell;
        match &op.kind {
            Kind::Read => {}
            Kind::Write => self.commit(cell, Commit::Write(op.id)),
            Kind::SetAlarm(when) => {
                let at = self.at(*when);
                self.commit(cell, Commit::Alarm(op.id, Some(Stored::new(at))));
                self.tell_alarm(cell, alarm::Event::Changed(Some(at)));
            }
            Kind::DeleteAlarm => {
                self.commit(cell, Commit::Alarm(op.id, None));
                self.tell_alarm(cell, alarm::Event::Changed(None));
            }
            Kind::Visit(entry) => {
                let entry = entry.clone();
                return self.visit(op, entry);
            }
            Kind::Take(_) => return self.finish(op, Outcome::Done),
        }
        let Some(serving) = self.serving(cell) else {
            return self.finish(op, Outcome::Failed);
        };
        let effects = serving.hold(op);
        self.perform_gate(cell, effects);
    }
    fn visit(&mut self, op: Op, entry: Option<Entry>) {
        self.tell_alarm(op.cell, alarm::Event::TimerFired);
        let verdict = match entry {
            None => Verdict::Later,
            Some(entry) => {
                let is_armed = self.serving(op.cell).is_some_and(|s| s.alarm.stored().is_some());
                let event = cover::Event::Visited(entry, self.wall);
                let verdict = self.tell_cover(op.cell, event).unwrap_or(Verdict::Failed);
                if self.is(Broken::EntryGivenAway) && !is_armed { Verdict::Done } else { verdict }
            }
        };
        self.finish(op, Outcome::Verdict(verdict));
    }
    /// One turn has committed.
    fn commit(&mut self, cell: usize, commit: Commit) {
        let is_open = self.is(Broken::GateAtCommit);
        let Some(serving) = self.serving(cell) else { return };
        serving.history.push(commit);
        let txid = Txid::new(serving.history.len() as u64);
        if let Commit::Alarm(_, stored) | Commit::Left(_, stored) = commit {
            self.tell_cover(cell, cover::Event::Changed(txid, stored.map(|stored| stored.due)));
        }
        self.tell_proof(cell, proof::Event::Committed(txid));
        if is_open {
            self.let_go(cell, txid);
        }
    }
    fn let_go(&mut self, cell: usize, upto: Txid) {
        let Some(serving) = self.serving(cell) else { return };
        let mut effects = vec![];
        serving.gate.durable(upto, &mut effects);
        self.perform_gate(cell, effects);
    }
    fn perform_gate(&mut self, cell: usize, effects: Vec<gate::Effect<Ack>>) {
        for effect in effects {
            match effect {
                gate::Effect::Release(Ack { order, op, seen }) => {
                    let Some(serving) = self.serving(cell) else { return };
                    let history = serving.history[..seen].to_vec();
                    let record = serving.record.clone();
                    let shown = op.clone();
                    self.wishes.push(Wish::Released { cell, record, order, op: shown, history });
                    self.finish(op, Outcome::Done);
                }
                gate::Effect::Drop(Ack { op, .. }) => self.finish(op, Outcome::Failed),
            }
        }
    }
    pub(super) fn tell_alarm(&mut self, cell: usize, event: alarm::Event) {
        let (now, wall) = (self.now, self.wall);
        let Some(activation) = self.cells.get(&cell).map(|cell| cell.activation) else { return };
        let Some(serving) = self.serving(cell) else { return };
        let mut effects = vec![];
        serving.alarm.on_event(now, wall, event, &mut effects);
        for effect in effects {
            match effect {
                alarm::Effect::Run { scheduled, .. } => {
                    self.wishes.push(Wish::Runs { cell, activation, scheduled });
                    if self.is(Broken::AlarmForgottenAtRun) {
                        let number = self.number();
                        self.commit(cell, Commit::Left(number, None));
                    }
                }
                alarm::Effect::Store(stored) => {
                    let number = self.number();
                    self.commit(cell, Commit::Left(number, stored));
                }
                alarm::Effect::GaveUp(stored) => {
                    let scheduled = stored.scheduled;
                    self.wishes.push(Wish::GaveUp { cell, scheduled });
                }
                alarm::Effect::SetTimer(at) => self.set_timer(Who::Alarm(cell, activation), at),
            }
        }
    }
    /// `alarm()` sets an alarm, or not, and ends.
    pub(super) fn handler(&mut self, cell: usize, scheduled: Wall, sets: Option<When>, end: End) {
        if end == End::Done {
            self.wishes.push(Wish::Ran { cell, scheduled });
        }
        if let Some(when) = sets {
            let (at, number) = (self.at(when), self.number());
            self.commit(cell, Commit::Alarm(number, Some(Stored::new(at))));
            self.tell_alarm(cell, alarm::Event::Changed(Some(at)));
        }
        self.tell_alarm(cell, alarm::Event::Ended(end));
    }
    /// The verdict, if the event was a visit.
    pub(super) fn tell_cover(&mut self, cell: usize, event: cover::Event) -> Option<Verdict> {
        let now = self.now;
        let of = self.cells.get(&cell).map(|cell| cell.activation)?;
        let serving = self.serving(cell)?;
        let (mut effects, mut said) = (vec![], None);
        serving.cover.on_event(now, event, &mut effects);
        for effect in effects {
            match effect {
                cover::Effect::Put(entry) => {
                    let number = entry.number;
                    let entry = self.name(entry);
                    self.request(Tag::Entry(cell, of, number), Request::PutEntry { entry });
                }
                cover::Effect::Delete(entry) => {
                    let entries = vec![self.name(entry)];
                    self.request(Tag::Nobody, Request::DeleteEntries { entries });
                }
                cover::Effect::Durable(upto) => self.let_go(cell, upto),
                cover::Effect::Answer(_, verdict) => said = Some(verdict),
                cover::Effect::SetTimer(at) => self.set_timer(Who::Cover(cell, of), at),
                cover::Effect::Lost => self.reset(cell),
            }
        }
        said
    }
    /// As the entry is named in the bucket.
    fn name(&self, entry: Entry) -> Entry {
        if self.is(Broken::EntryNameReused) {
            let due_s = entry.due_s / 60 * 60;
            return Entry { due_s, epoch: celld_core::epoch::Epoch::FIRST, number: 0, ..entry };
        }
        entry
    }
    pub(super) fn tell_proof(&mut self, cell: usize, event: proof::Event) {
        let now = self.now;
        let Some(of) = self.cells.get(&cell).map(|cell| cell.activation) else { return };
        let Some(serving) = self.serving(cell) else { return };
        let mut effects = vec![];
        serving.proof.on_event(now, event, &mut effects);
        for effect in effects {
            match effect {
                proof::Effect::Upload { after } => self.upload(cell, of, after),
                proof::Effect::ReadOwner { number } => self.read_owner(cell, of, number),
                proof::Effect::Proven(upto) => {
                    if self.is(Broken::EntryUnawaited) {
                        self.let_go(cell, upto);
                    }
                    self.tell_cover(cell, cover::Event::Proven(upto));
                }
                proof::Effect::SetTimer(at) => self.set_timer(Who::Proof(cell, of), at),
                proof::Effect::Lost(_) => self.reset(cell),
            }
        }
    }
    fn upload(&mut self, cell: usize, of: u64, after: Txid) {
        let session = self.session().clone();
        let is_early = self.is(Broken::ReadTooEarly);
        let Some(serving) = self.serving(cell) else { return };
        let (min, max) = (after.get() + 1, serving.history.len() as u64);
        let start = usize::try_from(after.get()).expect("small");
        let commits = serving.history[start..].to_vec();
        let segment = (serving.record.epoch, min, max);
        serving.early = None;
        let request = Request::PutSegment { cell, session, segment, commits };
        self.request(Tag::Upload(cell, of, max), request);
        if is_early {
            self.request(Tag::Early(cell, of), Request::GetOwn { cell });
        }
    }
    fn read_owner(&mut self, cell: usize, of: u64, asked: u64) {
        let known = match self.birth.broken {
            Broken::ReadTooEarly => self.serving(cell).and_then(|serving| serving.early),
            Broken::ReadSkipped => Some(true),
            _ => None,
        };
        match known {
            Some(still_ours) => {
                self.tell_proof(cell, proof::Event::OwnerRead { asked, still_ours });
            }
            None => self.request(Tag::Proof(cell, of, asked), Request::GetOwn { cell }),
        }
    }
    pub(super) fn uploaded(&mut self, cell: usize, max: u64, answer: &Answer) {
        let event = match answer {
            Answer::Done => proof::Event::Uploaded { max: Txid::new(max) },
            _ => proof::Event::UploadFailed,
        };
        self.tell_proof(cell, event);
    }
    pub(super) fn owner_read(&mut self, cell: usize, asked: u64, answer: Answer) {
        let event = match self.still_ours(cell, answer) {
            Some(still_ours) => proof::Event::OwnerRead { asked, still_ours },
            None => proof::Event::ReadFailed { asked },
        };
        self.tell_proof(cell, event);
    }
    pub(super) fn read_early(&mut self, cell: usize, answer: Answer) {
        let is_ours = self.still_ours(cell, answer);
        if let Some(serving) = self.serving(cell) {
            serving.early = is_ours;
        }
    }
    /// `None`: the record could not be read.
    fn still_ours(&mut self, cell: usize, answer: Answer) -> Option<bool> {
        let (session, id) = (self.session().clone(), self.birth.ids[cell].clone());
        let epoch = self.serving(cell)?.record.epoch;
        let token = FencingToken { epoch, session };
        match answer {
            Answer::Object(object) => Some(object.is_some_and(|(body, _)| {
                Record::parse(&body.0, &id).is_ok_and(|record| record.is_of(&token))
            })),
            _ => None,
        }
    }
    /// Whether nothing runs in the cell and nothing waits.
    pub(super) fn is_settled(&mut self, cell: usize) -> bool {
        self.serving(cell).is_some_and(|serving| {
            serving.proof.is_settled() && serving.cover.is_settled() && !serving.alarm.is_running()
        })
    }
    /// Gives the cell back, if it is settled.
    pub(super) fn release(&mut self, cell: usize) -> bool {
        let is_hasty = self.is(Broken::ReleaseUnproven)
            && self.serving(cell).is_some_and(|serving| serving.cover.is_settled());
        if !self.is_settled(cell) && !is_hasty {
            return false;
        }
        let Some(request) = self.giving_back(cell) else { return false };
        self.request(Tag::Nobody, request);
        if !self.is(Broken::ReleasedServed) {
            self.leave(cell);
        }
        true
    }
    /// The write that releases the cell.
    pub(super) fn giving_back(&mut self, cell: usize) -> Option<Request> {
        let nonce = Nonce::numbered(self.seed(), 1);
        let id = self.birth.ids[cell].clone();
        let serving = self.serving(cell)?;
        let committed = Txid::new(serving.history.len() as u64);
        let record = serving.record.release(committed, nonce);
        let guard = Some(Guard::Match(serving.etag.clone()));
        let body = Body(record.encode(&id));
        self.left.remove(&cell);
        Some(Request::CasOwn { cell, guard, body, is_purge: false })
    }
    /// Puts the cell to rest, if it is settled.
    pub(super) fn evict(&mut self, cell: usize) {
        if !self.is_settled(cell) {
            return;
        }
        let alarm = self.serving(cell).and_then(|serving| serving.alarm.stored());
        self.leave(cell);
        if let Some(alarm) = alarm {
            self.tell_sleepers(sleepers::Event::Slept(cell, alarm.due));
        }
    }
    pub(super) fn leave(&mut self, cell: usize) {
        let Some(gone) = self.cells.remove(&cell) else { return };
        let Phase::Serving(serving) = gone.phase else { return };
        self.delete_entries(*serving);
    }
    pub(super) fn delete_entries(&mut self, serving: Serving) {
        let entries: Vec<_> = serving.cover.leave().into_iter().map(|e| self.name(e)).collect();
        if !entries.is_empty() {
            self.request(Tag::Nobody, Request::DeleteEntries { entries });
        }
    }
    /// Drops what is in memory, whatever is under way.
    pub(super) fn reset(&mut self, cell: usize) {
        let Some(gone) = self.cells.remove(&cell) else { return };
        for op in gone.waiting {
            let outcome = match op.source {
                Source::Call(_) => Outcome::Refused(Refusal::Unavailable),
                Source::Client | Source::Scan | Source::Sleepers | Source::Mover => Outcome::Failed,
            };
            self.finish(op, outcome);
        }
        if let Phase::Serving(mut serving) = gone.phase {
            let mut effects = vec![];
            serving.gate.break_now(&mut effects);
            self.perform_gate(cell, effects);
        }
    }
}

impl Serving {
    /// The answer to `op` saw everything up to now.
    fn hold(&mut self, op: Op) -> Vec<gate::Effect<Ack>> {
        self.holds += 1;
        let seen = self.history.len();
        let mut effects = vec![];
        let ack = Ack { order: self.holds, op, seen };
        self.gate.hold(Txid::new(seen as u64), ack, &mut effects);
        effects
    }
}
