//! The way of an op: into a cell that is here, to another process, or into an activation.

use celld_core::node::NodeId;
use celld_core::ownership::Route;
use celld_core::route::{Attempt, CallError, Next, Refusal, after_failure};
use celld_core::wake::{Verdict, scan};

use super::super::border::{Kind, Op, Outcome, Source, Who, Wish};
use super::super::broken::Broken;
use super::{Phase, Process, SEARCH};

impl Process {
    /// An op has come, from a client, from another process or from ourselves.
    pub(super) fn enter(&mut self, op: Op) {
        let is_sent_here = matches!(op.source, Source::Call(_));
        if !self.is_held() {
            let outcome =
                if is_sent_here { Outcome::Refused(Refusal::Fenced) } else { Outcome::Failed };
            return self.finish(op, outcome);
        }
        let is_here = self.serving(op.cell).is_some();
        if is_sent_here && self.drain.turns_away(self.now, is_here) {
            return self.finish(op, Outcome::Refused(Refusal::Draining));
        }
        if matches!(op.kind, Kind::Take(_)) && !self.drain.is_serving() {
            return self.finish(op, Outcome::Refused(Refusal::Draining));
        }
        if let Some(cell) = self.cells.get_mut(&op.cell) {
            return match &mut cell.phase {
                Phase::Claiming(_) | Phase::Moving => cell.waiting.push_back(op),
                Phase::Serving(_) => self.serve(op),
            };
        }
        let now = match self.birth.broken {
            Broken::RouteWithoutDeadline => celld_core::time::Mono::default(),
            _ => self.now,
        };
        let route = self.routes.get(&op.cell, now).filter(|_| !is_sent_here).cloned();
        match route {
            Some(route) => self.call(op, route.owner.node.clone(), Some(&route)),
            None => self.activate(op),
        }
    }
    /// Asks another process. Without a route, the node is to take the cell.
    pub(super) fn call(&mut self, op: Op, to: NodeId, route: Option<&Route>) {
        let call = self.number();
        let session = route.map(|route| route.owner.session.clone());
        let sent = Op { source: Source::Call(call), failures: 0, route: None, ..op.clone() };
        self.wishes.push(Wish::Call { call, to, session, op: sent });
        self.calls.insert(call, Op { route: route.cloned(), ..op });
    }
    pub(super) fn call_ended(&mut self, call: u64, result: Result<Outcome, CallError>) {
        let Some(op) = self.calls.remove(&call) else { return };
        if op.source == Source::Mover {
            return self.finish(op, result.unwrap_or(Outcome::Failed));
        }
        match result {
            Ok(Outcome::Refused(refusal)) => self.call_failed(op, CallError::Refused(refusal)),
            Ok(outcome @ (Outcome::Done | Outcome::Verdict(_) | Outcome::Failed)) => {
                self.finish(op, outcome);
            }
            Err(CallError::Lost | CallError::TimedOut) if self.is(Broken::Replayed) => {
                self.call_failed(op, CallError::NotSent);
            }
            Err(error) => self.call_failed(op, error),
        }
    }
    fn call_failed(&mut self, mut op: Op, error: CallError) {
        let is_kept = self.is(Broken::RouteWithoutDeadline) && error == CallError::TimedOut;
        if let Some(route) = op.route.take().filter(|_| !is_kept) {
            self.routes.forget(&op.cell, &route);
        }
        op.failures += 1;
        // Some bodies are large.
        let is_body_begun = matches!(error, CallError::Refused(_)) && op.id.is_multiple_of(7);
        let attempt = Attempt { since: op.since, failures: op.failures, is_body_begun };
        match after_failure(error, attempt, SEARCH, self.now) {
            Next::Retry(at) => {
                self.set_timer(Who::Op(op.id), at);
                self.retries.insert(op.id, op);
            }
            Next::GiveUp(_) => self.finish(op, Outcome::Failed),
        }
    }
    /// Whoever waits for the op is told.
    pub(super) fn finish(&mut self, op: Op, outcome: Outcome) {
        match op.source {
            Source::Client => {
                self.entered.remove(&op.id);
                self.wishes.push(Wish::Ended(outcome));
            }
            Source::Call(call) => self.wishes.push(Wish::Answer { call, outcome }),
            Source::Sleepers => {}
            Source::Mover => self.given(op, outcome),
            Source::Scan => {
                let Kind::Visit(Some(entry)) = op.kind else { unreachable!("{op:?}") };
                let verdict = match outcome {
                    Outcome::Verdict(verdict) => verdict,
                    Outcome::Done | Outcome::Refused(_) | Outcome::Failed => Verdict::Failed,
                };
                self.tell_scan(scan::Event::Visited(entry, verdict));
            }
        }
    }
}
