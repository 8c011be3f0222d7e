//! Cells on their way into memory.

use std::collections::VecDeque;

use celld_core::cas::{CasOutcome, Etag};
use celld_core::claim::{self, Claim, Effect, Event, Failure, Purpose};
use celld_core::lease::OwnerLease;
use celld_core::ownership::{Me, Owner, Record, Route};
use celld_core::placement;
use celld_core::route::Refusal;
use celld_core::time::{Micros, Mono};
use celld_core::txid::Txid;
use celld_core::wake::Verdict;

use super::super::TTL;
use super::super::border::{Kind, Op, Outcome, Source, Tag, Who, Wish};
use super::super::broken::Broken;
use super::super::bucket::{Answer, Body, Request, etag};
use super::{Cell, Claiming, Phase, Process};

impl Process {
    /// Nobody here has the cell in memory.
    pub(super) fn activate(&mut self, op: Op) {
        // A node that drains takes nothing more, but what its records name it still serves.
        let is_sent_here = matches!(op.source, Source::Call(_)) && self.drain.is_serving();
        let purpose = match (&op.kind, is_sent_here) {
            (Kind::Visit(_), false) => Purpose::Woken,
            (Kind::Visit(_), true) | (Kind::Take(_), _) => Purpose::WokenPlaced,
            (_, false) => Purpose::Entered,
            (_, true) => Purpose::Placed,
        };
        let cell = op.cell;
        self.claim(cell, purpose, VecDeque::from([op]));
    }
    pub(super) fn claim(&mut self, cell: usize, purpose: Purpose, waiting: VecDeque<Op>) {
        let activation = self.number();
        let is_purge = purpose == Purpose::Purge;
        let me = Me { owner: self.birth.owner.clone(), serving: None };
        let claim = Claim::new(me, purpose, self.seed());
        let claiming = Claiming { claim, is_purge, history: vec![], read: None, wrote: None };
        let phase = Phase::Claiming(Box::new(claiming));
        self.cells.insert(cell, Cell { activation, waiting, phase });
        self.tell_claim(cell, Event::Started);
    }
    fn claiming(&mut self, cell: usize) -> Option<&mut Claiming> {
        match &mut self.cells.get_mut(&cell)?.phase {
            Phase::Claiming(claiming) => Some(claiming),
            Phase::Serving(_) | Phase::Moving => None,
        }
    }
    pub(super) fn tell_claim(&mut self, cell: usize, event: Event) {
        let Some(of) = self.cells.get(&cell).map(|cell| cell.activation) else { return };
        let now = self.now;
        let Some(claiming) = self.claiming(cell) else { return };
        let is_purge = claiming.is_purge;
        let mut effects = vec![];
        claiming.claim.on_event(now, event, &mut effects);
        for effect in effects {
            match effect {
                Effect::ReadOwner => self.request(Tag::Owner(cell, of), Request::GetOwn { cell }),
                Effect::ReadLease(owner) => self.read_owner_lease(cell, of, owner),
                Effect::Place => self.place(cell),
                Effect::Cas { guard, record } => {
                    if self.writes_otherwise(cell, of, &record) {
                        return;
                    }
                    let guard = Some(guard).filter(|_| !self.is(Broken::GuardForgotten));
                    let body = Body(record.encode(&self.birth.ids[cell]));
                    let request = Request::CasOwn { cell, guard, body, is_purge };
                    self.request(Tag::Claim(cell, of), request);
                }
                Effect::Restore(record) => self.restore(cell, of, record),
                Effect::SetTimer(at) => self.set_timer(Who::Claim(cell, of), at),
                Effect::Serve { record, etag } => return self.open(cell, record, etag),
                Effect::Forward(route) => return self.forward(cell, &route),
                Effect::Send(node) => return self.send(cell, &node),
                Effect::Purged(record) => return self.purged(cell, record.epoch),
                Effect::Fail(failure) => return self.fail(cell, failure),
            }
        }
    }
    /// What the broken claims do instead of writing `record`.
    fn writes_otherwise(&mut self, cell: usize, of: u64, record: &Record) -> bool {
        let broken = self.birth.broken;
        let body = Body(record.encode(&self.birth.ids[cell]));
        let left = self.left.get(&cell).cloned();
        let Some(claiming) = self.claiming(cell) else { return true };
        claiming.wrote = Some(record.clone());
        if claiming.is_purge {
            return false;
        }
        let is_rebase = record.is_based() && !claiming.history.is_empty();
        let is_left = left.is_some_and(|(left, _)| {
            claiming.read.as_ref().is_some_and(|(record, _)| *record == left)
        });
        if is_rebase && broken == Broken::RebaseSkipped {
            self.tell_claim(cell, Event::Written(CasOutcome::Applied(etag(&body))));
            return true;
        }
        if broken == Broken::EpochReused && is_left {
            // Serves the epoch it had before, after a restore as for any other.
            let record = claiming.read.clone().expect("it was compared").0;
            self.restore(cell, of, record);
            return true;
        }
        false
    }
    fn read_owner_lease(&mut self, cell: usize, of: u64, owner: Owner) {
        let known = self.watch.judge(&owner);
        if let Some(OwnerLease::Live(until)) = known {
            if self.now < until && !self.is(Broken::JudgedByWall) {
                return self.tell_claim(cell, Event::Lease(Ok(OwnerLease::Live(until))));
            }
            if self.is(Broken::JudgedUnread) {
                return self.tell_claim(cell, Event::Lease(Ok(OwnerLease::Dead)));
            }
        }
        let request = Request::GetLease { node: owner.node.clone() };
        self.request(Tag::OwnerLease(cell, of, owner, self.now), request);
    }
    pub(super) fn owner_lease_read(
        &mut self,
        cell: usize,
        owner: &Owner,
        begun: Mono,
        answer: Answer,
    ) {
        if !self.saw(&owner.node, begun, answer) {
            return self.tell_claim(cell, Event::ReadFailed);
        }
        let mut lease = self.watch.judge(owner).expect("it was read");
        if self.is(Broken::JudgedByWall)
            && let (Some(record), OwnerLease::Live(_) | OwnerLease::Dead) =
                (self.watch.record(&owner.node), lease)
        {
            let expires = record.written + TTL + Micros::from_millis(500);
            let left = expires.as_millis().saturating_sub(self.wall.as_millis());
            let until = self.now + Micros::from_millis(left);
            lease = if left > 0 { OwnerLease::Live(until) } else { OwnerLease::Dead };
        }
        self.tell_claim(cell, Event::Lease(Ok(lease)));
    }
    /// Where does the cell belong?
    fn place(&mut self, cell: usize) {
        let me = self.node().clone();
        let chosen = {
            let members = self.members();
            placement::choose(&self.birth.ids[cell], &me, &members).cloned()
        };
        match chosen {
            None => self.fail(cell, Failure::Restore),
            Some(node) => {
                let place = Some(node).filter(|node| *node != me);
                self.tell_claim(cell, Event::Placed(place));
            }
        }
    }
    fn restore(&mut self, cell: usize, of: u64, record: Record) {
        let ignores_base = self.is(Broken::BaseIgnored);
        self.request(Tag::Restore(cell, of), Request::Restore { cell, record, ignores_base });
    }
    pub(super) fn claim_answered(&mut self, cell: usize, answer: Answer) {
        let broken = self.birth.broken;
        let id = self.birth.ids[cell].clone();
        let Some(claiming) = self.claiming(cell) else { unreachable!("it was looked at") };
        let event = match answer {
            Answer::Object(object) => {
                let parse = |(body, etag): (Body, Etag)| (Record::parse(&body.0, &id), etag);
                let whole = |(record, etag): (Result<Record, _>, Etag)| {
                    (record.expect("only whole records are written"), etag)
                };
                let mut read = object.map(parse).map(whole);
                if let (Some((record, _)), Some(wrote)) = (&mut read, &claiming.wrote)
                    && broken == Broken::NonceIgnored
                    && wrote.epoch == record.epoch
                {
                    *record = wrote.clone();
                }
                claiming.read.clone_from(&read);
                Event::Owner(Ok(read))
            }
            Answer::Cas(CasOutcome::Unknown) if broken == Broken::ClaimUnknownApplied => {
                let body = Body(claiming.wrote.as_ref().expect("a write").encode(&id));
                Event::Written(CasOutcome::Applied(etag(&body)))
            }
            Answer::Cas(outcome) => Event::Written(outcome),
            _ => Event::ReadFailed,
        };
        self.tell_claim(cell, event);
    }
    pub(super) fn restored(&mut self, cell: usize, answer: Answer) {
        let is_reusing = self.is(Broken::EpochReused);
        let left = self.left.get(&cell).cloned();
        let Answer::History(commits) = answer else {
            if is_reusing {
                // The machine waits for a write that this variant never made.
                return self.reset(cell);
            }
            return self.tell_claim(cell, Event::RestoreFailed);
        };
        let found = Txid::new(commits.len() as u64);
        let Some(claiming) = self.claiming(cell) else { return };
        claiming.history = commits;
        if is_reusing
            && let Some((record, etag)) = claiming.read.clone()
            && left.is_some_and(|(left, _)| left == record)
        {
            return self.open(cell, record, etag);
        }
        self.tell_claim(cell, Event::Restored(found));
    }
    /// Another session serves the cell.
    fn forward(&mut self, cell: usize, route: &Route) {
        self.routes.learn(cell, route.clone(), self.now);
        for op in self.cells.remove(&cell).expect("it is there").waiting {
            match op.source {
                Source::Call(_) => self.finish(op, Outcome::Refused(Refusal::NotOwner)),
                Source::Client | Source::Scan | Source::Sleepers | Source::Mover => {
                    self.call(op, route.owner.node.clone(), Some(route));
                }
            }
        }
    }
    /// Another node is to take the cell.
    fn send(&mut self, cell: usize, node: &celld_core::node::NodeId) {
        for op in self.cells.remove(&cell).expect("it is there").waiting {
            match op.source {
                Source::Call(_) => self.finish(op, Outcome::Refused(Refusal::NotOwner)),
                Source::Client | Source::Scan | Source::Sleepers | Source::Mover => {
                    self.call(op, node.clone(), None);
                }
            }
        }
    }
    fn fail(&mut self, cell: usize, failure: claim::Failure) {
        let is_absent = failure == Failure::Absent;
        for op in self.cells.remove(&cell).expect("it is there").waiting {
            match (&op.kind, op.source) {
                (Kind::Visit(_), _) if is_absent => {
                    self.finish(op, Outcome::Verdict(Verdict::Done));
                }
                // It came while a visit looked for the cell, and may create it.
                _ if is_absent => self.enter(op),
                (_, Source::Call(_)) => self.finish(op, Outcome::Refused(Refusal::Unavailable)),
                (_, Source::Client | Source::Scan | Source::Sleepers | Source::Mover) => {
                    self.finish(op, Outcome::Failed);
                }
            }
        }
        self.wishes.push(Wish::Failed { cell, failure });
    }
}
