//! The alarm of a cell: `core::alarm` is told what the database and the clocks say, and what it
//! wants is done.

use std::rc::Rc;
use std::time::Duration;

use celld_core::alarm::{Effect, End, Event, Stored};
use celld_core::cell::CellId;
use celld_core::proof;
use celld_core::time::{Mono, Wall};
use celld_core::wake::cover;
use celld_rt as rt;
use celld_v8host::{Failure, StoredAlarm};

use super::{Arrival, Cell, Live, Phase};
use crate::body::failure;
use crate::deadline::Deadline;
use crate::shard::{now, random, wall};

/// As on Cloudflare.
const RUN_LIMIT: Duration = Duration::from_secs(15 * 60);

/// What a cell leaves undone of its alarm when it is reset while that runs: the row still is one of
/// `before`, and is to become `after`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owed {
    /// Two, as what was settled in a short life may be durable or not.
    before: [Option<Stored>; 2],
    after: Option<Stored>,
}

impl Owed {
    /// What is to be written into a database that has `stored`, if anything.
    pub fn settle(self, stored: Option<Stored>) -> Option<Option<Stored>> {
        (stored.is_some() && self.before.contains(&stored)).then_some(self.after)
    }
}

pub(crate) fn stored_of(row: StoredAlarm) -> Stored {
    let StoredAlarm { scheduled_ms, due_ms, retries } = row;
    let (scheduled, due) = (Wall::from_millis(scheduled_ms), Wall::from_millis(due_ms));
    Stored { scheduled, due, retries }
}

pub(crate) fn row_of(stored: Stored) -> StoredAlarm {
    let Stored { scheduled, due, retries } = stored;
    StoredAlarm { scheduled_ms: scheduled.as_millis(), due_ms: due.as_millis(), retries }
}

impl Cell {
    /// The constructor has run: the alarm of the database may run now. Does so once in a life.
    pub(super) fn begin_alarm(self: &Rc<Self>) {
        let (life, restored) = {
            let mut state = self.state.borrow_mut();
            let life = state.life;
            let Phase::Live(live) = &mut state.phase else { return };
            (
                life,
                live.restored.take().map(|restored| live.set_at_start.take().unwrap_or(restored)),
            )
        };
        if let Some(restored) = restored {
            self.alarm_event(life, Event::Restored(restored));
        }
    }

    /// Writes what an earlier life owed, before the constructor runs.
    pub(super) fn settle_alarm(self: &Rc<Self>, after: Option<Stored>) {
        if let Phase::Live(live) = &mut self.state.borrow_mut().phase {
            live.restored = Some(after);
        }
        self.store_alarm(after);
    }

    /// A commit of JavaScript has set or deleted the alarm.
    pub(super) fn alarm_changed(self: &Rc<Self>, row: Option<StoredAlarm>) {
        let life = {
            let mut state = self.state.borrow_mut();
            let life = state.life;
            if let Phase::Live(live) = &mut state.phase
                && live.restored.is_some()
            {
                // By the constructor, at whose end the machine is told what there is.
                live.set_at_start = Some(row.map(stored_of));
                return;
            }
            life
        };
        self.alarm_event(life, Event::Changed(row.map(|row| Wall::from_millis(row.scheduled_ms))));
    }

    /// `alarm()` has ended.
    pub fn alarm_ended(self: &Rc<Self>, result: Result<(), Failure>) {
        let (life, is_running) = {
            let mut state = self.state.borrow_mut();
            let life = state.life;
            let Phase::Live(live) = &mut state.phase else { return };
            live.alarm_deadline = None;
            (life, live.alarm.is_running())
        };
        if !is_running {
            return;
        }
        let end = match result {
            Ok(()) => End::Done,
            Err(why) => {
                rt::log!("Uncaught {why} (in alarm)");
                End::Threw { draw: draw() }
            }
        };
        self.alarm_event(life, Event::Ended(end));
    }

    fn alarm_event(self: &Rc<Self>, life: u64, event: Event) {
        let mut effects = Vec::new();
        {
            let mut state = self.state.borrow_mut();
            if state.life != life {
                return;
            }
            let Phase::Live(live) = &mut state.phase else { return };
            live.alarm.on_event(now(), wall(), event, &mut effects);
        }
        for effect in effects {
            match effect {
                Effect::Run { scheduled, retries } => self.run_alarm(scheduled, retries),
                Effect::Store(stored) => self.store_alarm(stored),
                Effect::GaveUp(alarm) => gave_up(&self.id, alarm),
                Effect::SetTimer(at) => self.set_alarm_timer(life, at),
            }
        }
    }

    fn run_alarm(self: &Rc<Self>, scheduled: Wall, retries: u32) {
        let weak = Rc::downgrade(self);
        let deadline = Deadline::after(RUN_LIMIT, move || {
            if let Some(cell) = weak.upgrade() {
                cell.alarm_takes_too_long();
            }
        });
        {
            let mut state = self.state.borrow_mut();
            let scheduled_ms = scheduled.as_millis();
            state.arrivals.push_back(Arrival::Alarm { scheduled_ms, retries });
            let Phase::Live(live) = &mut state.phase else { return };
            live.was_used = true;
            live.alarm_deadline = Some(deadline);
        }
        self.deliver_arrivals();
    }

    fn alarm_takes_too_long(self: &Rc<Self>) {
        let still_runs = match &self.state.borrow().phase {
            Phase::Live(live) => live.alarm.is_running(),
            Phase::Cold | Phase::Activating | Phase::Leaving => false,
        };
        if still_runs {
            let text = "Alarm exceeded its allowed execution time. The Durable Object was reset.";
            self.reset(&Failure { durable_object_reset: true, ..failure("Error", text) });
        }
    }

    /// Writes what follows from the end of a run, as a commit of its own.
    fn store_alarm(self: &Rc<Self>, stored: Option<Stored>) {
        let mut effects = Vec::new();
        let mut covered = Vec::new();
        let written = {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            let written = live
                .database
                .store_alarm(stored.map(row_of))
                .and_then(|()| live.database.end_turn());
            if let Some(txid) = live.store.commit_boundary() {
                let due = stored.map(|stored| stored.due);
                live.cover.on_event(now(), cover::Event::Changed(txid, due), &mut covered);
                live.proof.on_event(now(), proof::Event::Committed(txid), &mut effects);
            }
            written
        };
        if let Err(error) = written {
            let text = format!("what follows from an alarm could not be written: {error}");
            return self.reset(&Failure { durable_object_reset: true, ..failure("Error", text) });
        }
        self.perform_cover(covered);
        self.perform_proof(effects);
    }

    fn set_alarm_timer(self: &Rc<Self>, life: u64, at: Mono) {
        let cell = Rc::downgrade(self);
        self.spawn(async move {
            let wait = at.since(now()).as_micros();
            rt::sleep(Duration::from_micros(wait)).await;
            if let Some(cell) = cell.upgrade() {
                cell.alarm_event(life, Event::TimerFired);
            }
        });
    }
}

/// The cell leaves memory in the middle of things. When its alarm is due then, and what is owed
/// should it run now.
///
/// An alarm that is due when the constructor fails has had its run: otherwise the cell would wake
/// for it again at once, without an end.
pub(super) fn cut_off(live: &mut Live, why: &Failure, id: &CellId) -> (Option<Wall>, Option<Owed>) {
    let mut effects = Vec::new();
    let mut found = None;
    if let Some(restored) = live.restored.take() {
        found = Some(live.found_alarm);
        live.alarm.on_event(now(), wall(), Event::Restored(restored), &mut effects);
    }
    let before = live.alarm.stored();
    if live.alarm.is_running() {
        let draw = draw();
        // What may be retried elsewhere was not the cell's own fault.
        let end = if why.retryable { End::Interrupted { draw } } else { End::Threw { draw } };
        live.alarm.on_event(now(), wall(), Event::Ended(end), &mut effects);
    }
    for effect in effects {
        if let Effect::GaveUp(alarm) = effect {
            gave_up(id, alarm);
        }
    }
    let after = live.alarm.stored();
    let found = found.unwrap_or(before);
    let owed = (found != after).then_some(Owed { before: [found, before], after });
    (after.map(|alarm| alarm.due), owed)
}

fn gave_up(id: &CellId, alarm: Stored) {
    let retries = alarm.retries;
    rt::log!("celld: cell {id}: its alarm is given up after {retries} retries");
}

fn draw() -> u32 {
    u32::try_from(random() & u128::from(u32::MAX)).expect("32 bits")
}
