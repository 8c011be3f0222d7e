//! Open cursors: queries whose rows JavaScript has not read to the end.
//!
//! Invariant: only reading statements stay open between calls, so that a COMMIT always passes; the
//! rows of a writing statement (RETURNING) are held in memory before the call returns. A statement
//! that SQLite refuses because of open readers (DROP TABLE) makes their remaining rows held too.
//! Units: bytes, rows.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rusqlite::ffi;

use super::statement::{Bind, Statement, Value};
use super::{Database, DbError};

/// Memory for held rows of one database: a fraction of an isolate's 128 MB.
pub(super) const HELD_BYTES_MAX: usize = 16 << 20;
/// Open statements of one database; past it the oldest is held. Each costs some kilobytes.
const OPEN_MAX: usize = 512;

const TOO_LARGE: &str = "SQL cursor was closed because the schema was changed or too many cursors were open \
    while it had more than 16 MiB of rows left. Read a cursor to its end before you change the schema.";

/// Names a cursor in its database. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CursorId(pub u64);

/// One row of a result.
#[derive(Debug)]
pub struct Row<'a>(Source<'a>);

#[derive(Debug)]
enum Source<'a> {
    Live(&'a Statement),
    Held(&'a [Bind]),
}

impl<'a> Row<'a> {
    pub(super) fn live(statement: &'a Statement) -> Self {
        Self(Source::Live(statement))
    }

    /// How many columns it has.
    #[must_use]
    pub fn columns(&self) -> usize {
        match &self.0 {
            Source::Live(statement) => statement.columns(),
            Source::Held(values) => values.len(),
        }
    }

    /// The value of a column, counted from 0; NULL when there is no such column.
    #[must_use]
    pub fn get(&self, index: usize) -> Value<'_> {
        match &self.0 {
            Source::Live(statement) => statement.column(index),
            Source::Held(values) => values.get(index).map_or(Value::Null, Bind::as_value),
        }
    }
}

/// How far a query is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Rows that the query has produced.
    pub(super) produced: u64,
    /// Steps of full scans.
    pub(super) scanned: u64,
    /// Rows inserted, updated or deleted.
    pub(super) written: u64,
}

impl Counts {
    /// The best that plain SQLite tells: it counts forward steps of full scans, and the first row
    /// of a scan needs none. Rows found through an index count once they are produced.
    pub(super) fn read(self) -> u64 {
        let scanned = if self.scanned == 0 { 0 } else { self.scanned + 1 };
        scanned.max(self.produced).max(self.written)
    }
}

#[derive(Debug)]
pub(super) struct Cursor {
    pub(super) sql: Rc<str>,
    pub(super) counts: Counts,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    /// The statement stands on a row that nobody has read yet.
    Live(Statement),
    Held(VecDeque<Vec<Bind>>),
    /// The reason why its rows are gone.
    Closed(String),
}

#[derive(Debug, Default)]
pub(super) struct Cursors {
    open: BTreeMap<CursorId, Cursor>,
    next: u64,
    held_bytes: usize,
}

impl Cursors {
    pub(super) fn insert(&mut self, cursor: Cursor) -> CursorId {
        let id = CursorId(self.next);
        self.next += 1;
        self.open.insert(id, cursor);
        id
    }

    pub(super) fn remove(&mut self, id: CursorId) -> Option<Cursor> {
        self.open.remove(&id)
    }

    pub(super) fn put_back(&mut self, id: CursorId, cursor: Cursor) {
        self.open.insert(id, cursor);
    }

    pub(super) fn close_all(&mut self, reason: &str) {
        for cursor in self.open.values_mut() {
            cursor.state = State::Closed(reason.to_owned());
        }
        self.held_bytes = 0;
    }

    pub(super) fn oldest_live(&self) -> Option<CursorId> {
        let mut live =
            self.open.iter().filter(|(_, cursor)| matches!(cursor.state, State::Live(_)));
        live.next().map(|(id, _)| *id)
    }

    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= OPEN_MAX
            && self.open.values().filter(|cursor| matches!(cursor.state, State::Live(_))).count()
                >= OPEN_MAX
    }

    /// Takes memory for a row; `false` when the bound is reached.
    pub(super) fn take_memory(&mut self, bytes: usize) -> bool {
        if self.held_bytes + bytes > HELD_BYTES_MAX {
            return false;
        }
        self.held_bytes += bytes;
        true
    }

    pub(super) fn give_memory(&mut self, bytes: usize) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
    }
}

/// What a held row costs, about.
pub(super) fn row_bytes(row: &[Bind]) -> usize {
    row.iter()
        .map(|value| {
            size_of::<Bind>()
                + match value {
                    Bind::Null | Bind::Integer(_) | Bind::Real(_) => 0,
                    Bind::Text(text) => text.len(),
                    Bind::Blob(bytes) => bytes.len(),
                }
        })
        .sum()
}

/// An owned copy of the row that `statement` stands on.
pub(super) fn copy_row(statement: &Statement) -> Vec<Bind> {
    (0..statement.columns()).map(|index| statement.column(index).to_bind()).collect()
}

/// What `Database::fetch` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// No row is left, and the cursor is gone.
    pub done: bool,
    /// So far.
    pub rows_read: u64,
    /// In all.
    pub rows_written: u64,
}

impl Database {
    /// Hands up to `max` rows to `read`. A cursor that is not known has ended.
    ///
    /// # Errors
    /// SQLite's, or why the cursor was closed.
    pub fn fetch(
        &self,
        id: CursorId,
        max: usize,
        mut read: impl FnMut(&Row<'_>),
    ) -> Result<Fetched, DbError> {
        let Some(mut cursor) = self.cursors.borrow_mut().remove(id) else {
            return Ok(Fetched { done: true, rows_read: 0, rows_written: 0 });
        };
        let mut done = false;
        for _ in 0..max {
            if done {
                break;
            }
            done = match &mut cursor.state {
                State::Live(statement) => {
                    read(&Row::live(statement));
                    match self.step_user(statement) {
                        ffi::SQLITE_ROW => {
                            cursor.counts.produced += 1;
                            false
                        }
                        ffi::SQLITE_DONE => true,
                        code => return Err(self.note_failure(DbError::of(self.db, code))),
                    }
                }
                State::Held(rows) => {
                    if let Some(row) = rows.pop_front() {
                        self.cursors.borrow_mut().give_memory(row_bytes(&row));
                        read(&Row(Source::Held(&row)));
                    }
                    rows.is_empty()
                }
                State::Closed(reason) => {
                    let reason = reason.clone();
                    self.cursors.borrow_mut().put_back(id, cursor);
                    return Err(DbError::Sql(reason));
                }
            };
        }
        if let State::Live(statement) = &mut cursor.state {
            cursor.counts.scanned += statement.take_scan_steps();
        }
        let fetched =
            Fetched { done, rows_read: cursor.counts.read(), rows_written: cursor.counts.written };
        if done {
            self.retire(cursor);
        } else {
            self.cursors.borrow_mut().put_back(id, cursor);
        }
        Ok(fetched)
    }

    /// Ends a cursor whose rows nobody wants any more.
    pub fn close(&self, id: CursorId) {
        let cursor = self.cursors.borrow_mut().remove(id);
        if let Some(cursor) = cursor {
            self.retire(cursor);
        }
    }

    /// How many cursors are open.
    #[must_use]
    pub fn open_cursors(&self) -> usize {
        self.cursors.borrow().open.len()
    }

    fn retire(&self, cursor: Cursor) {
        match cursor.state {
            State::Live(statement) => self.cache.borrow_mut().put(cursor.sql, statement),
            State::Held(rows) => {
                let bytes = rows.iter().map(|row| row_bytes(row)).sum();
                self.cursors.borrow_mut().give_memory(bytes);
            }
            State::Closed(_) => {}
        }
    }

    /// Makes room for one more open statement.
    pub(super) fn limit_open(&self) {
        if self.cursors.borrow().is_full() {
            let oldest = self.cursors.borrow().oldest_live();
            if let Some(oldest) = oldest {
                self.hold(oldest);
            }
        }
    }

    /// Reads the rest of all open statements into memory: none is open afterwards.
    pub(super) fn hold_all(&self) {
        loop {
            let live = self.cursors.borrow().oldest_live();
            let Some(id) = live else { return };
            self.hold(id);
        }
    }

    fn hold(&self, id: CursorId) {
        let Some(mut cursor) = self.cursors.borrow_mut().remove(id) else { return };
        let State::Live(mut statement) = cursor.state else {
            self.cursors.borrow_mut().put_back(id, cursor);
            return;
        };
        let mut rows = VecDeque::new();
        let closed = loop {
            let row = copy_row(&statement);
            if !self.cursors.borrow_mut().take_memory(row_bytes(&row)) {
                break Some(TOO_LARGE.to_owned());
            }
            rows.push_back(row);
            match self.step_user(&mut statement) {
                ffi::SQLITE_ROW => cursor.counts.produced += 1,
                ffi::SQLITE_DONE => break None,
                code => break Some(self.note_failure(DbError::of(self.db, code)).to_string()),
            }
        };
        cursor.counts.scanned += statement.take_scan_steps();
        cursor.state = match closed {
            None => State::Held(rows),
            Some(reason) => {
                let bytes = rows.iter().map(|row| row_bytes(row)).sum();
                self.cursors.borrow_mut().give_memory(bytes);
                State::Closed(reason)
            }
        };
        self.cache.borrow_mut().put(Rc::clone(&cursor.sql), statement);
        self.cursors.borrow_mut().put_back(id, cursor);
    }
}
