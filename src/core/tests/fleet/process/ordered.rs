//! What operators want of cells: that another node has them, or that their data is deleted.

use std::collections::VecDeque;
use std::mem;

use celld_core::cas::CasOutcome;
use celld_core::claim::Purpose;
use celld_core::epoch::Epoch;
use celld_core::node::NodeId;
use celld_core::route::Refusal;
use celld_core::wake::sleepers;

use super::super::border::{Kind, Op, Outcome, Source, Tag, Wish};
use super::super::broken::Broken;
use super::super::bucket::{Answer, Request};
use super::{Phase, Process};

impl Process {
    /// Gives the cell to another node, if it is settled and there is one.
    pub(super) fn give(&mut self, cell: usize, number: u64) {
        let to = {
            let me = self.node();
            let members = self.members();
            let others: Vec<_> = members.iter().filter(|member| member.node != me).collect();
            let chosen = usize::try_from(number).expect("small") % others.len().max(1);
            others.get(chosen).map(|member| member.node.clone())
        };
        let (Some(to), true, true) = (to, self.is_settled(cell), self.drain.is_serving()) else {
            return;
        };
        let Some(request) = self.giving_back(cell) else { return };
        let entry = self.cells.get_mut(&cell).expect("it is settled");
        let tag = Tag::Moved(cell, entry.activation, to);
        if self.birth.broken != Broken::MovedServed {
            let phase = mem::replace(&mut entry.phase, Phase::Moving);
            let Phase::Serving(serving) = phase else { unreachable!("it is settled") };
            self.delete_entries(*serving);
        }
        self.request(tag, request);
    }
    /// The release has ended so.
    pub(super) fn moves(&mut self, cell: usize, to: NodeId, answer: &Answer) {
        let (id, since, kind) = (self.number(), self.now, Kind::Take(to.clone()));
        let op = Op { id, cell, kind, source: Source::Mover, since, failures: 0, route: None };
        match answer {
            Answer::Cas(CasOutcome::Applied(_)) => self.call(op, to, None),
            // Whether it stands or not: the next activation claims the cell.
            _ => self.given(op, Outcome::Failed),
        }
    }
    /// The other node has the cell, or not.
    pub(super) fn given(&mut self, op: Op, outcome: Outcome) {
        let Kind::Take(to) = op.kind else { unreachable!("{op:?}") };
        let is_there = outcome == Outcome::Done;
        if is_there {
            self.wishes.push(Wish::Moved);
        }
        match self.cells.get(&op.cell).map(|cell| &cell.phase) {
            Some(Phase::Moving) => {}
            Some(Phase::Serving(_)) if is_there && self.is(Broken::MovedServed) => {
                return self.leave(op.cell);
            }
            // It was reset meanwhile.
            Some(Phase::Serving(_) | Phase::Claiming(_)) | None => return,
        }
        let moved = self.cells.remove(&op.cell).expect("it was looked at");
        for op in moved.waiting {
            match op.source {
                Source::Call(_) => self.finish(op, Outcome::Refused(Refusal::NotOwner)),
                _ if is_there => self.call(op, to.clone(), None),
                _ => self.enter(op),
            }
        }
    }
    /// Deletes all data of the cell, in memory or not.
    pub(super) fn purge(&mut self, cell: usize) {
        let is_busy = self
            .cells
            .get(&cell)
            .is_some_and(|cell| matches!(cell.phase, Phase::Claiming(_) | Phase::Moving));
        if is_busy || !self.drain.is_serving() {
            return;
        }
        if self.is_settled(cell) {
            self.leave(cell);
        } else {
            self.reset(cell);
        }
        self.left.remove(&cell);
        self.tell_sleepers(sleepers::Event::Woke(cell));
        self.claim(cell, Purpose::Purge, VecDeque::new());
    }
    /// The record says so. What waited begins the next history.
    pub(super) fn purged(&mut self, cell: usize, epoch: Epoch) {
        let is_all = self.is(Broken::PurgedLater);
        let upto =
            if is_all { Epoch::from_record(u64::MAX >> 1).expect("an epoch") } else { epoch };
        self.request(Tag::Nobody, Request::DeleteFiles { cell, upto });
        for op in self.cells.remove(&cell).expect("it is there").waiting {
            self.enter(op);
        }
    }
}
