//! Alarms of the cells of a test: armed by commits, tried again with growing waits.

use celld_v8host::StoredAlarm;
use celld_v8host::host::{CellSlot, EventId, Failure, Input, TimerId};

use super::Host;

/// What a point in time brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    Timer(TimerId),
    /// Of this cell: its namespace and id.
    Alarm((String, String)),
}

/// As on Cloudflare.
const RETRIES_MAX: u32 = 6;

impl Host {
    /// A commit of this cell is through: it may have set its alarm.
    pub(super) fn alarm_changed(&mut self, slot: CellSlot) {
        if let Some(alarm) = self.cell(slot).database.take_alarm_change() {
            self.arm(slot, alarm);
        }
    }

    fn arm(&mut self, slot: CellSlot, alarm: Option<StoredAlarm>) {
        let target = &self.cell(slot).target;
        let due = Due::Alarm((target.namespace.clone(), target.id.clone()));
        self.timers.retain(|_, other| *other != due);
        if let Some(alarm) = alarm {
            let number = self.number();
            self.timers.insert((alarm.due_ms, number), due);
        }
    }

    /// The alarm of this cell is due. A cell that was evicted is opened for it.
    pub(super) fn alarm_due(&mut self, key: &(String, String)) {
        let mut target = self.cells[key].target.clone();
        let database = self.cells[key].database.clone();
        let Some(alarm) = database.alarm().expect("the alarm can be read") else { return };
        target.name = database.alarm_name().expect("the alarm can be read");
        let slot = self.open(&target);
        let event = EventId(self.number());
        let cell = self.cell(slot);
        cell.alarm = Some(alarm.retries);
        cell.waiting.push_back(Input::Alarm {
            event,
            cell: slot,
            scheduled_ms: alarm.scheduled_ms,
            retries: alarm.retries,
        });
        self.let_in(slot);
    }

    pub(super) fn alarm_ended(&mut self, slot: CellSlot, result: Result<(), Failure>) {
        let now = self.now as u64;
        let cell = self.cell(slot);
        let retries = cell.alarm.take().expect("an alarm that runs");
        let stored = cell.database.alarm().expect("the alarm can be read");
        if stored.is_none_or(|stored| stored.retries != retries || stored.due_ms > now) {
            // Set or deleted meanwhile.
            return;
        }
        let next = stored.filter(|_| result.is_err() && retries < RETRIES_MAX).map(|stored| {
            StoredAlarm { due_ms: now + (2_000 << retries), retries: retries + 1, ..stored }
        });
        cell.database.store_alarm(next).expect("the alarm can be written");
        cell.database.end_turn().expect("it is committed");
        self.arm(slot, next);
    }
}
