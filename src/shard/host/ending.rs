//! The end of a realm that cannot go on: its cells are reset, its events fail, and another realm
//! takes over.

use std::rc::Rc;

use celld_rt as rt;
use celld_v8host::{CellSlot, EventId, Failure, Termination};

use super::Host;
use crate::body::{failure, internal_error};
use crate::shard::Shard;

impl Host {
    /// V8 has ended a turn.
    pub(super) fn terminated(
        self: &Rc<Self>,
        shard: &Rc<Shard>,
        termination: Termination,
        culprit: Option<(EventId, Option<CellSlot>)>,
    ) {
        let why = match termination {
            Termination::CpuTimeExceeded => failure("Error", "Worker exceeded CPU time limit."),
            Termination::OutOfMemory => failure("Error", "Worker exceeded memory limit."),
        };
        rt::log!("celld: {} (script {})", why.message, self.script.name);
        let all = match termination {
            Termination::OutOfMemory => true,
            // Without a culprit, whoever it was has lost a turn: all start anew.
            Termination::CpuTimeExceeded => culprit.is_none(),
        };
        if all {
            self.retire_broken(shard, &why);
            return;
        }
        let Some((event, slot)) = culprit else { return };
        let cell = {
            let table = self.table.borrow();
            let of_event = || table.events.get(&event).and_then(|event| event.cell.clone());
            slot.and_then(|slot| table.cells.get(&slot).cloned()).or_else(of_event)
        };
        match cell {
            Some(cell) => cell.fail_life(&why),
            None => self.fail_event(event, &why),
        }
    }

    /// The realm cannot go on: its cells are reset, its events fail, another realm takes over.
    fn retire_broken(self: &Rc<Self>, shard: &Rc<Shard>, why: &Failure) {
        self.retired.set(true);
        self.broken.set(true);
        shard.replace_host(self);
        let cells: Vec<_> = self.table.borrow().cells.values().cloned().collect();
        // One that panics, perhaps once more, must not keep the others.
        for cell in cells {
            rt::guard(|| cell.fail_life(why));
        }
        let events: Vec<_> = self.table.borrow().events.keys().copied().collect();
        for event in events {
            rt::guard(|| self.fail_event(event, why));
        }
    }

    /// A panic has ended a turn, or what its calls wanted. It is a bug of ours, and what it has left
    /// undone is not known: whatever is in the realm would wait for ever.
    pub(super) fn break_down(self: &Rc<Self>) {
        self.retired.set(true);
        self.broken.set(true);
        let host = self.clone();
        rt::spawn(async move {
            // Who has put something into the inbox may be in the middle of things.
            rt::yield_now().await;
            if let Some(shard) = host.shard.upgrade() {
                host.retire_broken(&shard, &internal_error());
            }
            // What is left in the inbox is for nobody.
            host.driving.set(false);
            host.drive();
        });
    }
}
