//! `sql.exec`: one or more statements, bindings for the last, a cursor over its rows.
//!
//! Invariant: when `exec` returns, all that it writes has been written. Units: rows, bytes.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::rc::Rc;

use rusqlite::ffi;

use super::cursor::{Counts, Cursor, CursorId, Row, State, copy_row, row_bytes};
use super::guard::Trust;
use super::statement::{Bind, Statement};
use super::{Database, DbError, SavepointKind};

/// What `exec` answers beside the first row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The rows after the first; `None` when there are none.
    pub cursor: Option<CursorId>,
    /// Names of the columns, in order; names may repeat.
    pub columns: Vec<String>,
    /// So far; best effort: see `Counts::read`.
    pub rows_read: u64,
    /// Rows inserted, updated or deleted, also by triggers; entries of indexes do not count.
    pub rows_written: u64,
}

impl Database {
    /// Runs all statements of `sql`; the bindings belong to the last one, whose first row (if any)
    /// is handed to `first`.
    ///
    /// # Errors
    /// SQLite's and those of the rules above; statements before the failing one have run.
    pub fn exec(
        &self,
        sql: &str,
        bindings: &[Bind],
        first: impl FnOnce(&Row<'_>),
    ) -> Result<Executed, DbError> {
        self.sweep();
        self.check_broken()?;
        let (text, mut statement, before) = self.prepare_last(sql)?;
        if statement.parameters() != bindings.len() {
            self.cache.borrow_mut().put(text, statement);
            return Err(DbError::sql("Wrong number of parameter bindings for SQL query."));
        }
        for (index, value) in bindings.iter().enumerate() {
            self.check(statement.bind(index, value.as_value()))?;
        }
        let mut columns = Vec::new();
        let (counts, cursor) = if statement.is_readonly() {
            self.query(text, statement, &mut columns, first)?
        } else {
            self.write(text, statement, &mut columns, first)?
        };
        let counts = Counts { written: counts.written + before.written, ..counts };
        Ok(Executed {
            cursor,
            columns,
            rows_read: counts.read() + before.read(),
            rows_written: counts.written,
        })
    }

    /// The last statement of `sql`; those before it are run to their ends.
    fn prepare_last(&self, sql: &str) -> Result<(Rc<str>, Statement, Counts), DbError> {
        let mut counts = Counts::default();
        if let Some((text, statement)) = self.cache.borrow_mut().take(sql) {
            return Ok((text, statement, counts));
        }
        let mut rest = sql;
        loop {
            let (statement, used) = self.prepare(rest, Trust::User)?;
            let Some(mut statement) = statement else {
                return Err(DbError::sql("SQL code did not contain a statement."));
            };
            let Some(tail) =
                rest.get(used..).map(str::trim_ascii_start).filter(|tail| !tail.is_empty())
            else {
                return Ok((Self::text(rest), statement, counts));
            };
            if statement.parameters() != 0 {
                return Err(DbError::sql(
                    "When executing multiple SQL statements in a single call, only the last statement can have \
                     parameters.",
                ));
            }
            self.run_to_end(&mut statement, &mut counts)?;
            rest = tail;
        }
    }

    fn run_to_end(&self, statement: &mut Statement, counts: &mut Counts) -> Result<(), DbError> {
        let changes = self.total_changes();
        let mut code = self.first_step(statement)?;
        while code == ffi::SQLITE_ROW {
            counts.produced += 1;
            code = self.step_user(statement);
        }
        if code != ffi::SQLITE_DONE {
            return Err(self.fail(statement, code));
        }
        counts.scanned += statement.take_scan_steps();
        counts.written += self.total_changes() - changes;
        Ok(())
    }

    /// Starts a statement. Open readers that stand in its way are held.
    fn first_step(&self, statement: &mut Statement) -> Result<c_int, DbError> {
        if !statement.is_readonly() {
            self.begin_write()?;
        }
        let code = self.step_user(statement);
        if code & 0xff != ffi::SQLITE_LOCKED {
            return Ok(code);
        }
        statement.reset();
        self.hold_all();
        Ok(self.step_user(statement))
    }

    /// Starts the last statement, and tells the names of its columns. Not before: the first step
    /// compiles a statement of the cache anew when the schema has changed, and `*` is other columns
    /// then.
    fn first_step_of_last(
        &self,
        statement: &mut Statement,
        columns: &mut Vec<String>,
    ) -> Result<c_int, DbError> {
        let code = self.first_step(statement)?;
        columns.extend((0..statement.columns()).map(|index| statement.column_name(index)));
        Ok(code)
    }

    /// The error of a step. The statement is reset first, so that what it did half is undone.
    fn fail(&self, statement: &mut Statement, code: c_int) -> DbError {
        let error = DbError::of(self.db, code);
        statement.reset();
        self.note_failure(error)
    }

    fn query(
        &self,
        sql: Rc<str>,
        mut statement: Statement,
        columns: &mut Vec<String>,
        first: impl FnOnce(&Row<'_>),
    ) -> Result<(Counts, Option<CursorId>), DbError> {
        let mut counts = Counts::default();
        let mut code = self.first_step_of_last(&mut statement, columns)?;
        if code == ffi::SQLITE_ROW {
            counts.produced = 1;
            first(&Row::live(&statement));
            code = self.step_user(&mut statement);
        }
        counts.scanned = statement.take_scan_steps();
        match code {
            ffi::SQLITE_DONE => {
                self.cache.borrow_mut().put(sql, statement);
                Ok((counts, None))
            }
            ffi::SQLITE_ROW => {
                counts.produced += 1;
                self.limit_open();
                let cursor = Cursor { sql, counts, state: State::Live(statement) };
                Ok((counts, Some(self.cursors.borrow_mut().insert(cursor))))
            }
            code => Err(self.fail(&mut statement, code)),
        }
    }

    fn write(
        &self,
        sql: Rc<str>,
        mut statement: Statement,
        columns: &mut Vec<String>,
        first: impl FnOnce(&Row<'_>),
    ) -> Result<(Counts, Option<CursorId>), DbError> {
        let changes = self.total_changes();
        // A statement without result has done all in one step.
        let savepoint =
            if statement.columns() == 0 { None } else { Some(self.begin(SavepointKind::Sync)?) };
        let outcome = self.write_all(&mut statement, columns, first);
        let rows = match outcome {
            Ok(rows) => rows,
            Err(error) => {
                drop(statement);
                if let Some(savepoint) = savepoint {
                    // After a broken transaction there is nothing to roll back.
                    self.roll_back(savepoint).or_else(|_| self.check_broken())?;
                }
                return Err(error);
            }
        };
        let scanned = statement.take_scan_steps();
        self.cache.borrow_mut().put(Rc::clone(&sql), statement);
        if let Some(savepoint) = savepoint {
            self.release(savepoint)?;
        }
        let written = self.total_changes() - changes;
        let counts = Counts { produced: rows.1, scanned, written };
        if rows.0.is_empty() {
            return Ok((counts, None));
        }
        let cursor = Cursor { sql, counts, state: State::Held(rows.0) };
        Ok((counts, Some(self.cursors.borrow_mut().insert(cursor))))
    }

    /// Runs a writing statement to its end: the rows after the first, and how many came in all.
    fn write_all(
        &self,
        statement: &mut Statement,
        columns: &mut Vec<String>,
        first: impl FnOnce(&Row<'_>),
    ) -> Result<(VecDeque<Vec<Bind>>, u64), DbError> {
        let mut rows = VecDeque::new();
        let mut produced = 0;
        let mut first = Some(first);
        let mut code = self.first_step_of_last(statement, columns)?;
        let mut bytes = 0;
        while code == ffi::SQLITE_ROW {
            produced += 1;
            if let Some(first) = first.take() {
                first(&Row::live(statement));
            } else {
                let row = copy_row(statement);
                bytes += row_bytes(&row);
                if !self.cursors.borrow_mut().take_memory(row_bytes(&row)) {
                    self.cursors.borrow_mut().give_memory(bytes - row_bytes(&row));
                    return Err(DbError::sql(
                        "The rows of RETURNING exceed 16 MiB. Return fewer columns, or write in several statements.",
                    ));
                }
                rows.push_back(row);
            }
            code = self.step_user(statement);
        }
        if code == ffi::SQLITE_DONE {
            return Ok((rows, produced));
        }
        self.cursors.borrow_mut().give_memory(bytes);
        Err(self.fail(statement, code))
    }
}
