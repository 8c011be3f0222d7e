//! What a process does for the fleet: it looks at the others, gives cells away, scans the wake
//! index, removes the records of nodes that have gone, and leaves in an orderly way.

use celld_core::drain;
use celld_core::placement::{self, Member};
use celld_core::time::Micros;
use celld_core::wake::{scan, sleepers};

use super::super::border::{Kind, Op, Outcome, Source, Tag, Who, Wish};
use super::super::broken::Broken;
use super::super::bucket::{Answer, Request};
use super::super::{SWEEP_AFTER, TTL, number_of};
use super::{Phase, Process};

impl Process {
    /// Time to look at `nodes/`.
    pub(super) fn poll(&mut self) {
        let third = Micros::from_micros(TTL.as_micros() / 3);
        self.set_timer(Who::Poll, self.now + third);
        self.request(Tag::Members, Request::ListLeases);
    }
    pub(super) fn members_listed(&mut self, answer: Answer) {
        let Answer::Nodes(nodes) = answer else { return };
        for node in nodes {
            if node != *self.node() {
                let tag = Tag::Member(node.clone(), self.now);
                self.request(tag, Request::GetLease { node });
            }
        }
        self.look_around();
    }
    /// The nodes that may act now, this one with what it knows of itself.
    pub(super) fn members(&self) -> Vec<Member<'_>> {
        let me = Member { node: self.node(), load: self.load() };
        let others = self.watch.live(self.now).filter(|record| record.node != *me.node);
        let others = others.map(|record| Member { node: &record.node, load: record.load });
        others.chain([me]).collect()
    }
    pub(super) fn look_around(&mut self) {
        if !self.is_held() {
            return;
        }
        let (rank, surplus) = {
            let members = self.members();
            let me = self.node();
            (placement::rank(me, &members), placement::surplus(me, &members))
        };
        if rank != self.rank {
            self.rank = rank;
            if !self.is(Broken::ScanForgotten) {
                self.tell_scan(scan::Event::Ranked(rank));
            }
        }
        let cells: Vec<_> = self.cells.keys().copied().collect();
        cells.into_iter().filter(|cell| self.release(*cell)).take(surplus).count();
        if rank == 0 {
            let gone: Vec<_> = self.watch.over(SWEEP_AFTER).cloned().collect();
            for node in gone {
                self.watch.forget(&node);
                self.request(Tag::Nobody, Request::DeleteLease { node });
            }
        }
    }
    pub(super) fn tell_scan(&mut self, event: scan::Event) {
        let mut effects = vec![];
        self.scan.on_event(self.now, self.wall, event, &mut effects);
        for effect in effects {
            match effect {
                scan::Effect::List(after) => {
                    self.request(Tag::Index, Request::ListEntries { after });
                }
                scan::Effect::Visit(entry) => {
                    let cell = number_of(&entry.cell);
                    self.wake(cell, Kind::Visit(Some(entry)), Source::Scan);
                }
                scan::Effect::Delete(entries) => {
                    self.request(Tag::Nobody, Request::DeleteEntries { entries });
                }
                scan::Effect::SetTimer(at) => self.set_timer(Who::Scan, at),
            }
        }
    }
    pub(super) fn tell_sleepers(&mut self, event: sleepers::Event<usize>) {
        let mut effects = vec![];
        self.sleepers.on_event(self.now, self.wall, event, &mut effects);
        for effect in effects {
            match effect {
                sleepers::Effect::Wake(cell) => {
                    self.wake(cell, Kind::Visit(None), Source::Sleepers);
                }
                sleepers::Effect::SetTimer(at) => self.set_timer(Who::Sleepers, at),
            }
        }
    }
    fn wake(&mut self, cell: usize, kind: Kind, source: Source) {
        let (id, since) = (self.number(), self.now);
        self.enter(Op { id, cell, kind, source, since, failures: 0, route: None });
    }
    pub(super) fn start_drain(&mut self) {
        if !self.is_held() || !self.drain.is_serving() {
            return;
        }
        self.tell_drain_of_cells();
        self.tell_drain(drain::Event::Started);
        if self.is(Broken::RetiredEarly) {
            self.retire();
        }
    }
    /// What has changed since the last input.
    pub(super) fn tell_drain_of_cells(&mut self) {
        self.tell_drain(drain::Event::Requests(self.entered.len()));
        let cells: Vec<_> = self.cells.keys().copied().collect();
        for cell in cells {
            let is_idle = self.is_settled(cell);
            if self.told.insert(cell, is_idle) != Some(is_idle) {
                let event = if is_idle { drain::Event::Idle } else { drain::Event::Busy };
                self.tell_drain(event(cell));
            }
        }
        let is_gone = |cell: &&usize| !self.cells.contains_key(cell);
        let gone: Vec<_> = self.told.keys().filter(is_gone).copied().collect();
        for cell in gone {
            self.told.remove(&cell);
            self.tell_drain(drain::Event::Gone(cell));
        }
    }
    pub(super) fn tell_drain(&mut self, event: drain::Event<usize>) {
        let mut effects = vec![];
        self.drain.on_event(self.now, event, &mut effects);
        for effect in effects {
            match effect {
                // Said by the next lease record, and by `is_serving`.
                drain::Effect::Unhealthy => {}
                drain::Effect::HandOver(cell) => {
                    let event = match self.release(cell) {
                        true => drain::Event::Gone(cell),
                        false => drain::Event::Busy(cell),
                    };
                    // A broken release leaves it here: it is not to be told of once more.
                    if !self.cells.contains_key(&cell) || event == drain::Event::Busy(cell) {
                        self.told.remove(&cell);
                    }
                    self.tell_drain(event);
                }
                drain::Effect::CutOff(cell) => {
                    self.wishes.push(Wish::CutOff);
                    if !self.release(cell) {
                        self.reset(cell);
                    }
                    self.told.remove(&cell);
                    self.tell_drain(drain::Event::Gone(cell));
                }
                drain::Effect::CutRequests => self.cut_requests(),
                drain::Effect::Retire => self.retire(),
                drain::Effect::Exit(exit) => self.wishes.push(Wish::Exit(exit)),
                drain::Effect::SetTimer(at) => self.set_timer(Who::Drain, at),
            }
        }
    }
    fn cut_requests(&mut self) {
        let calls = core::mem::take(&mut self.calls).into_values();
        let retries = core::mem::take(&mut self.retries).into_values();
        for op in calls.chain(retries).collect::<Vec<_>>() {
            self.finish(op, Outcome::Failed);
        }
        let is_claiming = |cell: &&usize| matches!(self.cells[*cell].phase, Phase::Claiming(_));
        let claiming: Vec<_> = self.cells.keys().filter(is_claiming).copied().collect();
        for cell in claiming {
            self.reset(cell);
        }
    }
}
