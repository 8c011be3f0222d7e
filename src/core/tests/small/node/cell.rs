//! The cell: on its way into memory, and there.

use std::collections::BTreeMap;
use std::mem;

use celld_core::cas::{CasOutcome, Etag, Guard, Nonce};
use celld_core::claim::{self, Claim, Purpose};
use celld_core::epoch::{Epoch, FencingToken};
use celld_core::gate::{self, Gate};
use celld_core::lease::OwnerLease;
use celld_core::ownership::{Base, Me, Owner, Record};
use celld_core::proof::{self, Proof};
use celld_core::txid::Txid;

use super::super::PATIENCE;
use super::super::broken::Broken;
use super::super::bucket::{Answer, History, Request};
use super::{Cell, Deed, Flight, Node, Phase, Tag, Turn, number_of, owner};

impl Turn<'_> {
    /// Unlike other numbers, one of the random seed of an activation is never used again.
    fn seed(&self) -> u128 {
        let Node { number, lives, activations, .. } = *self.node;
        (number as u128) << 16 | u128::from(lives) << 8 | u128::from(activations)
    }
    pub(super) fn activate(&mut self) {
        self.node.activations += 1;
        let me = Me { owner: self.node.owner(), serving: None };
        let claim = Claim::new(me, Purpose::Placed, self.seed());
        let phase = Phase::Claiming { claim, read: None, wrote: None };
        self.node.cell = Some(Cell { timer: None, history: vec![], phase });
        self.tell_claim(claim::Event::Started);
    }
    pub(super) fn phase(&mut self) -> Option<&mut Phase> {
        self.node.cell.as_mut().map(|cell| &mut cell.phase)
    }
    pub(super) fn tell_claim(&mut self, event: claim::Event) {
        let now = self.now;
        let Some(Phase::Claiming { claim, .. }) = self.phase() else { return };
        let mut effects = vec![];
        claim.on_event(now, event, &mut effects);
        for effect in effects {
            match effect {
                claim::Effect::ReadOwner => self.send(Tag::Claim, Request::GetOwn),
                claim::Effect::ReadLease(owner) => self.read_owner_lease(&owner),
                claim::Effect::Cas { guard, record } => self.write_own(guard, record),
                claim::Effect::Restore(record) => self.restore(&record),
                claim::Effect::SetTimer(at) => {
                    self.node.cell.as_mut().expect("it claims").timer = Some(at);
                }
                claim::Effect::Serve { record, etag } => self.open(record, etag),
                claim::Effect::Forward(_) => {
                    self.leave();
                    self.deeds.push(Deed::Forwards);
                }
                claim::Effect::Fail(failure) => {
                    self.leave();
                    self.deeds.push(Deed::Fails(failure));
                }
                claim::Effect::Place | claim::Effect::Send(_) | claim::Effect::Purged(_) => {
                    unreachable!("not asked for")
                }
            }
        }
    }
    /// That the owner lives may be known from before; that it does not takes a new read.
    fn read_owner_lease(&mut self, owner: &Owner) {
        if let Some(OwnerLease::Live(until)) = self.node.watch.judge(owner) {
            if self.now < until || self.is(Broken::RouteWithoutDeadline) {
                return self.tell_claim(claim::Event::Lease(Ok(OwnerLease::Live(until))));
            }
            if self.is(Broken::JudgedUnread) {
                return self.tell_claim(claim::Event::Lease(Ok(OwnerLease::Dead)));
            }
        }
        self.send(Tag::Claim, Request::GetLease(number_of(&owner.node)));
    }
    fn write_own(&mut self, guard: Guard, record: Record) {
        let (broken, left) = (self.broken, self.node.left.clone());
        let Some(Phase::Claiming { read, wrote, .. }) = self.phase() else { return };
        *wrote = Some(record.clone());
        let is_rebase = read.is_none() && record.epoch > Epoch::FIRST;
        let was_left = read.clone().filter(|read| left.as_ref() == Some(read));
        if broken == Broken::RebaseSkipped && is_rebase {
            let etag = Etag::new(record.nonce.as_str());
            return self.tell_claim(claim::Event::Written(CasOutcome::Applied(etag)));
        }
        if broken == Broken::EpochReused
            && let Some((record, _)) = was_left
        {
            return self.restore(&record);
        }
        let guard = Some(guard).filter(|_| broken != Broken::GuardForgotten);
        self.send(Tag::Claim, Request::CasOwn(guard, record));
    }
    fn restore(&mut self, record: &Record) {
        let base = if self.is(Broken::BaseIgnored) { Base::ORIGIN } else { record.base };
        self.send(Tag::Claim, Request::Restore(base, record.epoch));
    }
    pub(super) fn claim_answered(&mut self, flight: &Flight, answer: Answer) {
        let broken = self.broken;
        let event = match answer {
            Answer::Own(mut own) => {
                let Some(Phase::Claiming { read, wrote, .. }) = self.phase() else { return };
                if let (Some((record, _)), Some(wrote)) = (&mut own, wrote)
                    && broken == Broken::NonceIgnored
                    && wrote.epoch == record.epoch
                {
                    *record = wrote.clone();
                }
                read.clone_from(&own);
                claim::Event::Owner(Ok(own))
            }
            Answer::Lease(record) => {
                let Request::GetLease(node) = flight.request else { unreachable!() };
                let seen = owner(node, 0).node;
                self.saw(&seen, flight.begun, record);
                let Some(Phase::Claiming { read: Some((read, _)), .. }) = self.phase() else {
                    unreachable!("the owner was read")
                };
                let owner = read.owner.clone().expect("an owner was asked for");
                let lease = self.node.watch.judge(&owner).expect("it was read");
                claim::Event::Lease(Ok(lease))
            }
            Answer::Cas(CasOutcome::Unknown) if broken == Broken::ClaimUnknownApplied => {
                let Request::CasOwn(_, record) = &flight.request else { unreachable!() };
                let etag = Etag::new(record.nonce.as_str());
                claim::Event::Written(CasOutcome::Applied(etag))
            }
            Answer::Cas(outcome) => claim::Event::Written(outcome),
            Answer::History(history) => return self.restored(history),
            Answer::Done | Answer::Failed => match flight.request {
                Request::Restore(..) => claim::Event::RestoreFailed,
                _ => claim::Event::ReadFailed,
            },
        };
        self.tell_claim(event);
    }
    fn restored(&mut self, history: History) {
        let (broken, left) = (self.broken, self.node.left.clone());
        let Some(cell) = &mut self.node.cell else { return };
        let found = Txid::new(history.len() as u64);
        cell.history = history;
        let Phase::Claiming { read, .. } = &mut cell.phase else { return };
        match read.take() {
            Some((record, etag))
                if broken == Broken::EpochReused
                    && left.as_ref() == Some(&(record.clone(), etag.clone())) =>
            {
                self.open(record, etag);
            }
            _ => self.tell_claim(claim::Event::Restored(found)),
        }
    }

    // The cell in memory.

    fn open(&mut self, record: Record, etag: Etag) {
        let Some(cell) = &mut self.node.cell else { return };
        let begin = Txid::new(cell.history.len() as u64);
        self.deeds.push(Deed::Serves(record.clone(), cell.history.clone()));
        if self.broken == Broken::EpochReused {
            self.node.left = Some((record.clone(), etag.clone()));
        }
        let (proof, gate) = (Proof::new(begin, PATIENCE), Gate::new(begin));
        cell.timer = None;
        cell.phase = Phase::Serving { record, etag, proof, gate, early: None };
    }
    pub(super) fn write(&mut self, number: u8) {
        let is_open = self.is(Broken::GateAtCommit);
        let Some(cell) = &mut self.node.cell else { return };
        cell.history.push(number);
        let seen = cell.history.len();
        let txid = Txid::new(seen as u64);
        self.tell_proof(proof::Event::Committed(txid));
        let Some(Phase::Serving { gate, .. }) = self.phase() else { return };
        let mut effects = vec![];
        gate.hold(txid, seen, &mut effects);
        if is_open {
            gate.durable(txid, &mut effects);
        }
        self.perform_gate(effects);
    }
    pub(super) fn tell_proof(&mut self, event: proof::Event) {
        let now = self.now;
        let Some(Phase::Serving { proof, .. }) = self.phase() else { return };
        let mut effects = vec![];
        proof.on_event(now, event, &mut effects);
        for effect in effects {
            match effect {
                proof::Effect::Upload { after } => self.upload(after),
                proof::Effect::ReadOwner { number } => self.read_owner(number),
                proof::Effect::Proven(upto) => {
                    let Some(Phase::Serving { gate, .. }) = self.phase() else { return };
                    let mut effects = vec![];
                    gate.durable(upto, &mut effects);
                    self.perform_gate(effects);
                }
                proof::Effect::SetTimer(at) => {
                    self.node.cell.as_mut().expect("it serves").timer = Some(at);
                }
                proof::Effect::Lost(_) => return self.leave(),
            }
        }
    }
    fn upload(&mut self, after: Txid) {
        let Some(cell) = &mut self.node.cell else { return };
        let Phase::Serving { record, early, .. } = &mut cell.phase else { return };
        *early = None;
        let segment = (record.epoch, after.get() + 1, cell.history.len() as u64);
        let start = usize::try_from(after.get()).expect("small");
        let commits = cell.history[start..].to_vec();
        self.send(Tag::Upload, Request::Put(segment, commits));
        if self.is(Broken::ReadTooEarly) {
            self.node.flights.remove(&Tag::Early);
            self.send(Tag::Early, Request::GetOwn);
        }
    }
    fn read_owner(&mut self, asked: u64) {
        let broken = self.broken;
        let Some(Phase::Serving { early, .. }) = self.phase() else { return };
        let known = match broken {
            Broken::ReadTooEarly => *early,
            Broken::ReadSkipped => Some(true),
            _ => None,
        };
        match known {
            Some(still_ours) => self.tell_proof(proof::Event::OwnerRead { asked, still_ours }),
            None => self.send(Tag::Proof(asked), Request::GetOwn),
        }
    }
    pub(super) fn still_ours(&mut self, own: Option<&Record>) -> bool {
        let session = self.node.owner().session;
        let Some(Phase::Serving { record, .. }) = self.phase() else { return false };
        let token = FencingToken { epoch: record.epoch, session };
        own.is_some_and(|own| own.is_of(&token))
    }
    fn perform_gate(&mut self, effects: Vec<gate::Effect<usize>>) {
        for effect in effects {
            let (Some(cell), gate::Effect::Release(seen)) = (&self.node.cell, effect) else {
                continue;
            };
            let Phase::Serving { record, .. } = &cell.phase else { continue };
            self.deeds.push(Deed::Acks(record.epoch, cell.history[..seen].to_vec()));
        }
    }
    /// Gives the cell back. Nobody waits for the end of that write.
    pub(super) fn release(&mut self) {
        let nonce = Nonce::numbered(self.seed(), 0);
        let Some(cell) = &self.node.cell else { return };
        let Phase::Serving { record, etag, .. } = &cell.phase else { return };
        let released = record.release(Txid::new(cell.history.len() as u64), nonce);
        let guard = Some(Guard::Match(etag.clone()));
        self.deeds.push(Deed::Abandons(Request::CasOwn(guard, released)));
        self.node.left = None;
        if !self.is(Broken::ReleasedServed) {
            self.leave();
        }
    }
    /// Drops the cell, whatever is under way.
    pub(super) fn leave(&mut self) {
        self.node.cell = None;
        let is_of_lease = |tag: &Tag| matches!(tag, Tag::LeaseWrite | Tag::LeaseRead);
        let flights = mem::take(&mut self.node.flights);
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            flights.into_iter().partition(|(tag, _)| is_of_lease(tag));
        self.node.flights = kept;
        let requests = gone.into_values().filter(|flight| flight.answer.is_none());
        let writes = requests.map(|flight| flight.request).filter(Request::is_write);
        self.deeds.extend(writes.map(Deed::Abandons));
    }
}
