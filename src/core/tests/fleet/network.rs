//! What is between processes, and between them and the bucket: requests and calls under way, and
//! who does not reach whom.

use std::collections::BTreeMap;

use celld_core::cas::CasOutcome;
use celld_core::node::{NodeId, SessionId};
use celld_core::route::{CallError, Refusal};

use super::border::{Input, Op, Outcome, Tag};
use super::bucket::{Answer, Request};
use super::faults::{Fate, Faults, Hears};
use super::{Happening, SECOND, World};

/// A call that has no answer by then is given up.
const CALL_LIMIT: u64 = 3 * SECOND;

/// A connection that is not there by then is given up.
const CONNECT_LIMIT: u64 = SECOND / 2;

/// Stands for the bucket among the slots.
pub const BUCKET: usize = usize::MAX;

/// Pairs that do not reach each other, and until when.
#[derive(Default)]
pub struct Cuts(BTreeMap<(usize, usize), u64>);

impl Cuts {
    pub fn cut(&mut self, a: usize, b: usize, until: u64) {
        self.0.insert((a.min(b), a.max(b)), until);
    }
    pub fn is_cut(&self, a: usize, b: usize, now: u64) -> bool {
        self.0.get(&(a.min(b), a.max(b))).is_some_and(|until| now < *until)
    }
    pub fn heal(&mut self) {
        self.0.clear();
    }
}

/// A request under way.
pub struct Flight {
    process: usize,
    tag: Tag,
    request: Request,
    hears: Hears,
    is_stale: bool,
    answer: Option<Answer>,
}

/// A call under way.
pub struct Call {
    pub from: usize,
    pub to: usize,
    op: Option<Op>,
    is_answer_lost: bool,
}

impl World {
    pub fn send(&mut self, process: usize, tag: Tag, request: Request) {
        let is_cut = self.cuts.is_cut(self.slots_of[process], BUCKET, self.now);
        let mut fate = self.faults.fate(&mut self.draws);
        let is_hint = matches!(request, Request::PutEntry { .. });
        if is_hint && self.draws.chance(self.faults.throttled_index) {
            fate = Fate { apply_after: None, hears: Hears::Nothing, ..fate };
        }
        if is_cut {
            // Some arrive all the same, at the moment of the cut; nobody hears of them.
            let apply_after = fate.apply_after.filter(|_| self.draws.chance(500));
            fate = Faults::unreachable();
            fate.apply_after = apply_after;
        }
        let number = self.count;
        let (hears, is_stale) = (fate.hears, fate.is_stale);
        let flight = Flight { process, tag, request, hears, is_stale, answer: None };
        self.flights.insert(number, flight);
        if let Some(after) = fate.apply_after {
            self.at(self.now + after, Happening::Apply(number));
        }
        self.at(self.now + fate.answer_after, Happening::Answer(number));
        self.count += 1;
    }
    /// The request takes effect; its sender hears of it later, or has given up.
    pub fn apply(&mut self, number: u64) {
        let Some(flight) = self.flights.get_mut(&number) else { return };
        let answer = self.bucket.apply(&flight.request, flight.is_stale, &mut self.checker);
        if let Some(trace) = &mut self.trace {
            trace.line(self.now, format_args!("bucket {:?} {answer:?}", flight.request));
        }
        flight.answer = Some(answer);
    }
    /// The sender hears of its request; it may take effect later.
    pub fn answer(&mut self, number: u64) {
        let flight = self.flights.get_mut(&number).expect("a flight is answered once");
        let is_cas = flight.request.is_conditional();
        let answer = match (&flight.hears, is_cas) {
            (Hears::Truth, _) => flight.answer.take().expect("it took effect before"),
            (Hears::Refusal, true) => Answer::Cas(CasOutcome::Refused),
            (Hears::Nothing, true) => Answer::Cas(CasOutcome::Unknown),
            (Hears::Nothing | Hears::Refusal, false) => Answer::Failed,
        };
        let (process, tag) = (flight.process, flight.tag.clone());
        self.input(process, Input::Answer(tag, answer));
    }
    pub fn call(
        &mut self,
        from: usize,
        number: u64,
        to: &NodeId,
        session: Option<&SessionId>,
        op: Op,
    ) {
        let find = |p: &super::process::Process| p.is_alive && p.node() == to;
        let Some(target) = self.processes.iter().position(find) else {
            return self.end_call_of(from, number, SECOND / 1_000, Err(CallError::NotSent));
        };
        if self.cuts.is_cut(self.slots_of[from], self.slots_of[target], self.now) {
            // On a connection that was open, nobody knows.
            return if self.draws.chance(5_000) {
                self.end_call_of(from, number, CONNECT_LIMIT, Err(CallError::NotSent));
            } else {
                self.end_call_of(from, number, CALL_LIMIT, Err(CallError::TimedOut));
            };
        }
        if session.is_some_and(|session| self.processes[target].session() != session) {
            let refused = Ok(Outcome::Refused(Refusal::NotOwner));
            return self.end_call_of(from, number, SECOND / 1_000, refused);
        }
        let is_answer_lost = self.draws.chance(self.faults.cut);
        let is_lost = self.draws.chance(self.faults.cut);
        let call = Call { from, to: target, op: Some(op), is_answer_lost };
        self.calls.insert(number, call);
        if !is_lost {
            let arrives = self.now + self.schedule.range(100, 2_000);
            self.at(arrives, Happening::Deliver(number));
        }
        self.at(self.now + CALL_LIMIT, Happening::CallEnds(number, Err(CallError::TimedOut)));
    }
    /// A call that never got as far as to be one.
    fn end_call_of(
        &mut self,
        from: usize,
        number: u64,
        after: u64,
        result: Result<Outcome, CallError>,
    ) {
        self.at(self.now + after, Happening::Input(from, Input::CallEnded(number, result)));
    }
    pub fn deliver(&mut self, number: u64) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let (to, op) = (call.to, call.op.take().expect("a call is delivered once"));
        if self.processes[to].is_alive {
            self.input(to, Input::Called(op));
        }
    }
    /// The other process has answered.
    pub fn reply(&mut self, number: u64, outcome: Outcome) {
        let Some(call) = self.calls.get(&number) else { return };
        let is_cut = self.cuts.is_cut(self.slots_of[call.from], self.slots_of[call.to], self.now);
        if !is_cut && !call.is_answer_lost {
            let arrives = self.now + self.schedule.range(100, 2_000);
            self.at(arrives, Happening::CallEnds(number, Ok(outcome)));
        }
    }
    pub fn end_call(&mut self, number: u64, result: Result<Outcome, CallError>) {
        if let Some(call) = self.calls.remove(&number) {
            self.met.count("forwarded", u64::from(result == Ok(Outcome::Done)));
            self.input(call.from, Input::CallEnded(number, result));
        }
    }
    /// A process is gone, and its connections with it.
    pub fn hang_up(&mut self, process: usize) {
        self.calls.retain(|_, call| call.from != process);
        let lost: Vec<_> =
            self.calls.iter().filter(|(_, call)| call.to == process).map(|(n, _)| *n).collect();
        for number in lost {
            let soon = self.now + self.schedule.range(100, 2_000);
            self.at(soon, Happening::CallEnds(number, Err(CallError::Lost)));
        }
    }
}
