//! The lease of the process, and what it sees of others'.

use celld_core::cas::{CasOutcome, Etag};
use celld_core::drain;
use celld_core::lease::{self, Effect, Event, Load, Read, Record, Seen, Standing};
use celld_core::node::NodeId;
use celld_core::time::{Micros, Mono};

use super::super::TTL;
use super::super::border::{Tag, Who, Wish};
use super::super::broken::Broken;
use super::super::bucket::{Answer, Body, Request};
use super::Process;

impl Process {
    /// Whether it acts as an owner now.
    pub fn is_held(&self) -> bool {
        match self.birth.broken {
            Broken::LeaseFromAnswer | Broken::ExpiryForgotten => {
                self.believes.is_some_and(|until| self.now < until)
            }
            Broken::RetiredEarly if self.believes.is_some() => {
                self.believes.is_some_and(|until| self.now < until)
            }
            _ => self.lease.is_held(self.now),
        }
    }
    pub(super) fn tell_lease(&mut self, event: Event) {
        let mut effects = vec![];
        let was_lost = self.lease.loss();
        self.lease.on_event(self.now, event, &mut effects);
        if self.lease.is_held(self.now) && self.is(Broken::ExpiryForgotten) {
            self.believes = Some(Mono::from_micros(u64::MAX));
        }
        // The broken leases outlive the machine: their end is looked at each time.
        effects.extend(was_lost.map(Effect::Fence));
        for effect in effects {
            match effect {
                Effect::Write(write, guard) => self.write_lease(write, guard, TTL),
                Effect::Retire(write, guard) => self.write_lease(write, guard, Micros::ZERO),
                Effect::Read => {
                    let node = self.node().clone();
                    self.request(Tag::LeaseRead(self.now), Request::GetLease { node });
                }
                Effect::SetTimer(at) => self.set_timer(Who::Lease, at),
                Effect::Retired => self.tell_drain(drain::Event::Retired),
                Effect::Fence(_) if self.is_held() => {}
                Effect::Fence(loss) => self.wishes.push(Wish::Fence(loss)),
            }
        }
    }
    fn write_lease(&mut self, write: u64, guard: celld_core::cas::Guard, ttl: Micros) {
        let record = Record {
            node: self.node().clone(),
            session: self.session().clone(),
            write,
            ttl,
            written: self.wall,
            disk: self.birth.disk.clone(),
            protocol: 1,
            address: None,
            version: "0".into(),
            load: self.load(),
        };
        let (node, session) = (self.node().clone(), self.session().clone());
        let (body, sent_at) = (Body(record.encode()), self.true_now);
        self.request(Tag::LeaseWrite, Request::CasLease { node, guard, body, session, sent_at });
    }
    pub(super) fn load(&self) -> Load {
        let is_draining = !self.drain.is_serving();
        Load { shards: 1, cells: self.cells.len() as u64, is_draining, ..Load::default() }
    }
    pub(super) fn lease_written(&mut self, answer: Answer) {
        let Answer::Cas(outcome) = answer else { unreachable!("{answer:?}") };
        let outcome = match outcome {
            CasOutcome::Unknown if self.is(Broken::LeaseUnknownApplied) => {
                CasOutcome::Applied(Etag::new("hoped for"))
            }
            outcome => outcome,
        };
        if matches!(outcome, CasOutcome::Applied(_)) && self.is(Broken::LeaseFromAnswer) {
            self.believes = Some(self.now + TTL);
        }
        self.tell_lease(Event::Written(outcome));
    }
    pub(super) fn lease_read(&mut self, begun: Mono, answer: Answer) {
        let node = self.node().clone();
        let event = match answer {
            Answer::Object(None) => Event::Read(Seen::Nothing),
            Answer::Object(Some((body, etag))) => {
                self.saw(&node, begun, Answer::Object(Some((body, etag.clone()))));
                let standing = match self.birth.broken {
                    Broken::TwinReplaced => Some(Standing::Over),
                    _ => self.watch.standing(&node, &self.birth.ended),
                };
                let record = self.watch.record(&node).expect("it was read");
                let standing = standing.expect("it was read");
                Event::Read(record.seen_by(&self.birth.owner.session, etag, standing))
            }
            _ => Event::ReadFailed,
        };
        self.tell_lease(event);
    }
    /// A read of a lease record has ended; `false`: without an answer.
    pub(super) fn saw(&mut self, node: &NodeId, begun: Mono, answer: Answer) -> bool {
        let Answer::Object(object) = answer else { return false };
        let parse = |body: &Body| Record::parse(&body.0).expect("only whole records are written");
        let record = object.map(|(body, etag)| (parse(&body), etag));
        let read = Read { begun, ended: self.now, record, age_min: Micros::ZERO };
        self.watch.saw(node, read);
        true
    }
    /// Gives up the lease; the broken drain does it while it still serves.
    pub(super) fn retire(&mut self) {
        if self.is(Broken::RetiredEarly) && self.believes.is_none() {
            self.believes = self.lease.until();
        }
        self.tell_lease(lease::Event::Retire);
    }
}
