//! The alarm of a cell: one row of the table `_cf_ALARM`, written in the same transactions as
//! everything else of the cell.
//!
//! Invariant: the row of an alarm stays while its `alarm()` runs, so that a crash runs it again.
//! `getAlarm` shows nothing meanwhile, until the cell sets another one: each `setAlarm` has a
//! version of its own, and a rollback brings the version back with the row.
//! Units: milliseconds since 1970.

use std::cell::Cell;

use rusqlite::ffi;

use super::{Database, DbError, Table, Value};

/// An alarm as the row has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAlarm {
    /// What `setAlarm` was given.
    pub scheduled_ms: u64,
    /// When it is due: then, or later after a failure.
    pub due_ms: u64,
    /// Failures that count, so far.
    pub retries: u32,
}

/// What is known of the alarm without asking SQLite.
#[derive(Debug, Default)]
pub(super) struct AlarmState {
    /// The version whose `alarm()` runs.
    running: Cell<Option<i64>>,
    /// The greatest version seen; the next one is greater.
    version: Cell<i64>,
    /// JavaScript changed the row since the last commit.
    pub(super) is_touched: Cell<bool>,
    /// What a commit has left, until the shard takes it.
    pub(super) committed: Cell<Option<Option<StoredAlarm>>>,
}

/// The whole row.
pub(super) struct AlarmRow {
    alarm: StoredAlarm,
    version: i64,
    name: Option<String>,
}

const CREATE: &str = "CREATE TABLE _cf_ALARM (id INTEGER PRIMARY KEY CHECK (id = 0), \
    scheduled INTEGER NOT NULL, due INTEGER NOT NULL, retries INTEGER NOT NULL, version INTEGER NOT NULL, name TEXT)";

impl Database {
    /// The alarm that is stored, whether it runs or not.
    ///
    /// # Errors
    /// SQLite's.
    pub fn alarm(&self) -> Result<Option<StoredAlarm>, DbError> {
        Ok(self.alarm_row()?.map(|row| row.alarm))
    }

    /// The name of the cell when the alarm was set: who wakes it for its alarm knows it by its id
    /// only.
    ///
    /// # Errors
    /// SQLite's.
    pub fn alarm_name(&self) -> Result<Option<String>, DbError> {
        Ok(self.alarm_row()?.and_then(|row| row.name))
    }

    /// What `getAlarm` shows: nothing of the alarm that runs.
    ///
    /// # Errors
    /// SQLite's.
    pub fn visible_alarm(&self) -> Result<Option<u64>, DbError> {
        let row = self.alarm_row()?;
        let shown = row.filter(|row| self.alarm.running.get() != Some(row.version));
        Ok(shown.map(|row| row.alarm.scheduled_ms))
    }

    /// `setAlarm`. `name` is the cell's, if it is known.
    ///
    /// # Errors
    /// SQLite's.
    pub fn set_alarm(&self, scheduled_ms: u64, name: Option<&str>) -> Result<(), DbError> {
        // Looks the version up that is there, if nobody has so far.
        self.alarm_row()?;
        let alarm = StoredAlarm { scheduled_ms, due_ms: scheduled_ms, retries: 0 };
        let version = self.alarm.version.get() + 1;
        self.write_alarm(&AlarmRow { alarm, version, name: name.map(str::to_owned) })?;
        self.alarm.is_touched.set(true);
        Ok(())
    }

    /// `deleteAlarm`.
    ///
    /// # Errors
    /// SQLite's.
    pub fn delete_alarm(&self) -> Result<(), DbError> {
        if self.alarm_row()?.is_none() {
            return Ok(());
        }
        self.begin_write()?;
        self.execute_own("DELETE FROM _cf_ALARM").map_err(|error| self.note_failure(error))?;
        self.alarm.is_touched.set(true);
        Ok(())
    }

    /// `alarm()` begins: from here on `getAlarm` does not show the alarm that is stored.
    ///
    /// # Errors
    /// SQLite's.
    pub fn begin_alarm_run(&self) -> Result<(), DbError> {
        let row = self.alarm_row()?;
        self.alarm.running.set(row.map(|row| row.version));
        Ok(())
    }

    /// `alarm()` has ended.
    pub fn end_alarm_run(&self) {
        self.alarm.running.set(None);
    }

    /// Writes what follows from the end of a run: nothing is left, or a retry is due.
    ///
    /// # Errors
    /// SQLite's.
    pub fn store_alarm(&self, alarm: Option<StoredAlarm>) -> Result<(), DbError> {
        let touched = self.alarm.is_touched.get();
        let stored = match (alarm, self.alarm_row()?) {
            (Some(alarm), Some(row)) => self.write_alarm(&AlarmRow { alarm, ..row }),
            (None, Some(_)) => self.delete_alarm(),
            (_, None) => Ok(()),
        };
        // This is not the cell's own doing.
        self.alarm.is_touched.set(touched);
        stored
    }

    /// What the last commits have left of the alarm, if they changed it. Told once.
    pub fn take_alarm_change(&self) -> Option<Option<StoredAlarm>> {
        self.alarm.committed.take()
    }

    /// A commit is about to take in what the turn did to the alarm.
    pub(super) fn note_alarm_commit(&self) -> Result<(), DbError> {
        if self.alarm.is_touched.take() {
            self.alarm.committed.set(Some(self.alarm()?));
        }
        Ok(())
    }

    pub(super) fn alarm_row(&self) -> Result<Option<AlarmRow>, DbError> {
        if !self.has_table(Table::Alarm)? {
            return Ok(None);
        }
        let sql = "SELECT scheduled, due, retries, version, name FROM _cf_ALARM";
        let mut statement = self.prepare_own(sql)?;
        match statement.step() {
            ffi::SQLITE_DONE => return Ok(None),
            ffi::SQLITE_ROW => {}
            code => return Err(DbError::of(self.db, code)),
        }
        let number = |index| match statement.column(index) {
            Value::Integer(number) => number,
            Value::Null | Value::Real(_) | Value::Text(_) | Value::Blob(_) => 0,
        };
        let time = |index| u64::try_from(number(index)).unwrap_or(0);
        let alarm = StoredAlarm {
            scheduled_ms: time(0),
            due_ms: time(1),
            retries: u32::try_from(number(2)).unwrap_or(u32::MAX),
        };
        let version = number(3);
        let name = match statement.column(4) {
            Value::Text(name) => Some(String::from_utf8_lossy(name).into_owned()),
            Value::Null | Value::Integer(_) | Value::Real(_) | Value::Blob(_) => None,
        };
        self.alarm.version.set(self.alarm.version.get().max(version));
        Ok(Some(AlarmRow { alarm, version, name }))
    }

    pub(super) fn write_alarm(&self, row: &AlarmRow) -> Result<(), DbError> {
        self.begin_write()?;
        if !self.has_table(Table::Alarm)? {
            self.execute_own(CREATE).map_err(|error| self.note_failure(error))?;
            self.set_has_table(Table::Alarm);
        }
        let integer = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        let values = [
            integer(row.alarm.scheduled_ms),
            integer(row.alarm.due_ms),
            integer(row.alarm.retries.into()),
            Value::Integer(row.version),
            row.name.as_deref().map_or(Value::Null, |name| Value::Text(name.as_bytes())),
        ];
        let sql = "INSERT OR REPLACE INTO _cf_ALARM VALUES (0, ?, ?, ?, ?, ?)";
        let mut statement = self.prepare_own(sql)?;
        for (index, value) in values.into_iter().enumerate() {
            self.check(statement.bind(index, value))?;
        }
        let code = statement.step();
        let result =
            if code == ffi::SQLITE_DONE { Ok(()) } else { Err(DbError::of(self.db, code)) };
        drop(statement);
        result.map_err(|error| self.note_failure(error))?;
        self.alarm.version.set(self.alarm.version.get().max(row.version));
        Ok(())
    }
}
