//! Cells that wake for their alarm: those of this shard that rest, and those that the scan of the
//! wake index has found.

use std::rc::Rc;
use std::time::Duration;

use celld_core::cell::CellId;
use celld_core::time::{Mono, Wall};
use celld_core::wake::sleepers::{Effect, Event};
use celld_core::wake::{Entry, Verdict};
use celld_rt as rt;

use crate::cell::alarm::Owed;
use crate::shard::{Shard, now, wall};

/// What is owed to more cells is forgotten: their alarms run all the same, and count anew.
const OWED_MAX: usize = 10_000;

impl Shard {
    /// A cell has left memory: when its alarm is due, and what is to be written down then.
    pub fn owes_alarm(self: &Rc<Self>, id: &CellId, due: Option<Wall>, owed: Option<Owed>) {
        if let Some(owed) = owed {
            let mut all = self.owed.borrow_mut();
            if all.len() < OWED_MAX {
                all.insert(id.clone(), owed);
            }
        }
        if let Some(due) = due {
            self.sleepers_event(Event::Slept(id.clone(), due));
        }
    }

    /// What an earlier life of the cell owed. Told once.
    pub fn alarm_owed(&self, id: &CellId) -> Option<Owed> {
        self.owed.borrow_mut().remove(id)
    }

    /// Tells the sleepers something, and wakes whom they name.
    pub fn sleepers_event(self: &Rc<Self>, event: Event<CellId>) {
        let mut effects = Vec::new();
        self.sleepers.borrow_mut().on_event(now(), wall(), event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Wake(id) => self.wake_cell(&id),
                Effect::SetTimer(at) => self.set_sleepers_timer(at),
            }
        }
    }

    fn wake_cell(self: &Rc<Self>, id: &CellId) {
        if self.draining.is_raised() {
            // Whoever has the cell next fires it.
            return;
        }
        if let Some(cell) = self.uncalled_cell(id) {
            cell.wake();
        }
    }

    fn set_sleepers_timer(self: &Rc<Self>, at: Mono) {
        let shard = Rc::downgrade(self);
        rt::spawn(async move {
            rt::sleep(Duration::from_micros(at.since(now()).as_micros())).await;
            if let Some(shard) = shard.upgrade() {
                shard.sleepers_event(Event::TimerFired);
            }
        });
    }

    /// The scan has found this entry due: is it needed? The cell wakes for the answer, but one that
    /// does not exist is not made.
    pub async fn visit(self: &Rc<Self>, entry: Entry) -> Verdict {
        if self.draining.is_raised() {
            return Verdict::Failed;
        }
        let cell = match self.known_cell(&entry.cell) {
            Some(cell) => cell,
            None => {
                match self.bucket.get(&entry.cell.own_key()).await {
                    Ok(None) => return Verdict::Done,
                    Ok(Some(_)) => {}
                    Err(_) => return Verdict::Failed,
                }
                let Some(cell) = self.uncalled_cell(&entry.cell) else {
                    return Verdict::Failed;
                };
                cell
            }
        };
        let (answer, answered) = rt::oneshot::channel();
        cell.visit((entry, answer));
        answered.await.unwrap_or(Verdict::Failed)
    }
}
