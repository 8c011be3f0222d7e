//! `deleteAll`: the database becomes as if it were new, in one step.
//!
//! Source: WORKERS_API 3.3; whether the alarm goes too is a matter of the compatibility date.

use std::ffi::c_int;
use std::ptr;

use rusqlite::ffi;

use super::{Database, DbError, SavepointKind};

/// What `deleteAll` does to the alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmFate {
    /// It stays.
    Kept,
    /// It goes like everything else.
    Deleted,
}

impl Database {
    /// Drops every table, view, index and trigger, also `_cf_KV`, as part of the turn. Open
    /// cursors end. The alarm stays if it is to be kept.
    ///
    /// # Errors
    /// Inside a transaction; SQLite's otherwise, and then nothing is dropped.
    pub fn delete_all(&self, alarm: AlarmFate) -> Result<(), DbError> {
        if self.in_savepoint() {
            return Err(DbError::sql("Cannot call deleteAll() within a transaction"));
        }
        self.cursors
            .borrow_mut()
            .close_all("SQL cursor was closed because deleteAll() was called.");
        if self.names("SELECT name FROM sqlite_master LIMIT 1")?.is_empty() {
            return Ok(());
        }
        let alarm = match alarm {
            AlarmFate::Kept => self.alarm_row()?,
            AlarmFate::Deleted => None,
        };
        let savepoint = self.begin(SavepointKind::Sync)?;
        self.turn.wrote.set(true);
        let dropped = self.drop_everything().and_then(|()| {
            self.tables.set(None);
            self.alarm.is_touched.set(true);
            alarm.map_or(Ok(()), |row| self.write_alarm(&row))
        });
        match dropped {
            Ok(()) => self.release(savepoint)?,
            Err(_) => self.roll_back(savepoint)?,
        }
        self.tables.set(None);
        self.cache.borrow_mut().clear();
        dropped
    }

    fn drop_everything(&self) -> Result<(), DbError> {
        // Rows that refer to each other over tables must not stop the drop. Unlike the pragma,
        // this switch works inside a transaction.
        self.foreign_keys(false)?;
        let dropped = (|| {
            for (kind, query) in [
                ("VIEW", "SELECT name FROM sqlite_master WHERE type = 'view'"),
                // Takes its shadow tables along.
                (
                    "TABLE",
                    "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL%'",
                ),
                (
                    "TABLE",
                    "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'sqlite_sequence'",
                ),
            ] {
                for name in self.names(query)? {
                    self.execute_own(&format!(
                        "DROP {kind} IF EXISTS \"{}\"",
                        name.replace('"', "\"\"")
                    ))?;
                }
            }
            // SQLite keeps this one; its rows are user data.
            if !self
                .names("SELECT name FROM sqlite_master WHERE name = 'sqlite_sequence'")?
                .is_empty()
            {
                self.execute_own("DELETE FROM sqlite_sequence")?;
            }
            Ok(())
        })();
        self.foreign_keys(true)?;
        dropped
    }

    fn foreign_keys(&self, on: bool) -> Result<(), DbError> {
        // SAFETY: `db` is open; the switch takes an int and an optional out pointer.
        let code = unsafe {
            ffi::sqlite3_db_config(
                self.db,
                ffi::SQLITE_DBCONFIG_ENABLE_FKEY,
                c_int::from(on),
                ptr::null_mut::<c_int>(),
            )
        };
        self.check(code)
    }
}
