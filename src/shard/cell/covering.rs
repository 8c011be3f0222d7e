//! The entries of a cell in the wake index: `core::wake::cover` stands between proof and gate.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use celld_core::gate;
use celld_core::time::Mono;
use celld_core::txid::Txid;
use celld_core::wake::cover::{Effect, Event};
use celld_core::wake::{Entry, Verdict};
use celld_rt as rt;

use super::{Cell, Phase, Visit, perform_gate, reset_failure};
use crate::shard::{Shard, now, wall};

impl Cell {
    /// The cell is in memory: whatever it shows is covered from here on.
    pub(super) fn start_cover(self: &Rc<Self>) {
        let (life, visits) = {
            let mut state = self.state.borrow_mut();
            (state.life, std::mem::take(&mut state.visits))
        };
        self.cover_event(life, Event::Started);
        for visit in visits {
            self.ask_cover(life, visit);
        }
    }

    /// Somebody has found an entry of this cell due. A cell that is in nobody's memory wakes for
    /// the answer.
    pub fn visit(self: &Rc<Self>, visit: Visit) {
        let mut state = self.state.borrow_mut();
        let life = state.life;
        match &state.phase {
            Phase::Live(_) => {
                drop(state);
                self.ask_cover(life, visit);
            }
            Phase::Activating | Phase::Leaving => state.visits.push(visit),
            Phase::Cold => {
                state.visits.push(visit);
                state.phase = Phase::Activating;
                drop(state);
                self.activate();
            }
        }
    }

    /// Brings the cell into memory: it runs its alarm by itself.
    pub fn wake(self: &Rc<Self>) {
        {
            let mut state = self.state.borrow_mut();
            if !matches!(state.phase, Phase::Cold) {
                return;
            }
            state.phase = Phase::Activating;
        }
        self.activate();
    }

    fn ask_cover(self: &Rc<Self>, life: u64, visit: Visit) {
        let (entry, _) = &visit;
        let event = Event::Visited(entry.clone(), wall());
        self.state.borrow_mut().visits.push(visit);
        self.cover_event(life, event);
    }

    fn answer_visit(&self, entry: &Entry, verdict: Verdict) {
        let asked: Vec<Visit> = {
            let mut state = self.state.borrow_mut();
            state.visits.extract_if(.., |(asked, _)| asked == entry).collect()
        };
        for (_, answer) in asked {
            // Whoever asked may have gone.
            let _gone = answer.send(verdict);
        }
    }

    pub(super) fn cover_event(self: &Rc<Self>, life: u64, event: Event) {
        let mut effects = Vec::new();
        {
            let mut state = self.state.borrow_mut();
            if state.life != life {
                return;
            }
            let Phase::Live(live) = &mut state.phase else { return };
            live.cover.on_event(now(), event, &mut effects);
        }
        self.perform_cover(effects);
    }

    pub(super) fn perform_cover(self: &Rc<Self>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Put(entry) => self.put_entry(entry),
                Effect::Delete(entry) => self.delete_entries(&[entry]),
                Effect::Durable(txid) => self.durable(txid),
                Effect::Answer(entry, verdict) => self.answer_visit(&entry, verdict),
                Effect::SetTimer(at) => self.set_cover_timer(at),
                Effect::Lost => {
                    rt::log!("celld: cell {}: reset, its alarm cannot be written down", self.id);
                    self.reset(&reset_failure());
                }
            }
        }
    }

    fn durable(self: &Rc<Self>, txid: Txid) {
        let mut effects: Vec<gate::Effect<_>> = Vec::new();
        let host = {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            live.gate.durable(txid, &mut effects);
            live.host.clone()
        };
        perform_gate(&host, effects);
        self.rest_if_idle();
    }

    fn put_entry(self: &Rc<Self>, entry: Entry) {
        let Some(shard) = self.shard.upgrade() else { return };
        let life = self.state.borrow().life;
        let cell = self.clone();
        self.spawn(async move {
            let event = match shard.bucket.put(&entry.key(), Bytes::new()).await {
                Ok(_) => Event::Written(entry.number),
                Err(error) => {
                    rt::log!("celld: cell {}: wake entry: {error}", cell.id);
                    Event::WriteFailed(entry.number)
                }
            };
            cell.cover_event(life, event);
            cell.rest_if_idle();
        });
    }

    /// Nobody needs them: that they are deleted is a courtesy.
    pub(super) fn delete_entries(&self, entries: &[Entry]) {
        let Some(shard) = self.shard.upgrade() else { return };
        delete_entries(&shard, entries);
    }

    fn set_cover_timer(self: &Rc<Self>, at: Mono) {
        let life = self.state.borrow().life;
        let cell = Rc::downgrade(self);
        self.spawn(async move {
            rt::sleep(Duration::from_micros(at.since(now()).as_micros())).await;
            if let Some(cell) = cell.upgrade() {
                cell.cover_event(life, Event::TimerFired);
            }
        });
    }
}

fn delete_entries(shard: &Rc<Shard>, entries: &[Entry]) {
    if entries.is_empty() {
        return;
    }
    let keys: Vec<String> = entries.iter().map(Entry::key).collect();
    let bucket = shard.bucket.clone();
    rt::spawn(async move {
        // An entry that stays costs one visit.
        let _stays = bucket.delete(&keys).await;
    });
}
