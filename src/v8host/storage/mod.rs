//! A cell's database as JavaScript sees it: key-value calls, SQL, and the transaction of a turn.
//!
//! Invariant: every change happens inside an explicit transaction that `end_turn` commits, so all
//! changes of a turn reach the file together or not at all; user SQL never sees or touches what
//! is ours (`guard.rs`). An open cursor never stands in the way of a write or a commit.
//! Units: bytes. Source: behaviour of workerd's `storage` (WORKERS_API 1.3, 2.2, 3.3).

mod alarm;
mod cursor;
mod delete_all;
mod error;
mod guard;
mod kv;
mod sql;
mod statement;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell, RefMut};
use std::ffi::{c_char, c_int};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use rusqlite::{Connection, ffi};

use alarm::AlarmState;
pub use alarm::StoredAlarm;
use cursor::Cursors;
pub use cursor::{CursorId, Fetched, Row};
pub use delete_all::AlarmFate;
pub use error::DbError;
use guard::{Guard, Trust};
pub use kv::{KEY_BYTES_MAX, KEYS_MAX, List, VALUE_BYTES_MAX};
pub use sql::Executed;
pub use statement::{Bind, Value};
use statement::{Statement, StatementCache};

/// The database of one cell. Lives as long as the cell's instance; whoever holds a cursor holds a
/// number only, so that closing the cell closes the file.
#[derive(Debug)]
pub struct Database {
    // The order matters: statements are finalised, then the connection closes, then the guard of
    // its authorizer goes.
    cursors: RefCell<Cursors>,
    /// Statements of users; ours are apart, because a text that is found is not authorised again.
    cache: RefCell<StatementCache>,
    own_cache: RefCell<StatementCache>,
    own: Own,
    turn: TurnState,
    dropped: DroppedCursors,
    alarm: AlarmState,
    /// Which tables of ours exist; `None` when it must be looked up.
    tables: Cell<Option<Tables>>,
    db: *mut ffi::sqlite3,
    #[expect(dead_code, reason = "owns what `db` points to")]
    conn: Connection,
    guard: Box<Guard>,
}

/// A table of ours, made by the first write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Kv,
    Alarm,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tables {
    kv: bool,
    alarm: bool,
}

impl Tables {
    fn of(&mut self, table: Table) -> &mut bool {
        match table {
            Table::Kv => &mut self.kv,
            Table::Alarm => &mut self.alarm,
        }
    }
}

/// After so many instructions of SQLite's machine, some 0.1 ms, a statement asks whether its turn
/// still has time.
const LOOK_EVERY: c_int = 10_000;

/// Cursors that JavaScript has let go. Its finalisers run in the middle of anything, so they only
/// note the number; the next call ends the cursor.
pub type DroppedCursors = Rc<RefCell<Vec<CursorId>>>;

/// Prepared statements of ours, each made at its first use.
#[derive(Debug, Default)]
struct Own {
    begin: RefCell<Option<Statement>>,
    commit: RefCell<Option<Statement>>,
    rollback: RefCell<Option<Statement>>,
    savepoint: RefCell<Option<Statement>>,
    release: RefCell<Option<Statement>>,
    rollback_to: RefCell<Option<Statement>>,
    get: RefCell<Option<Statement>>,
    put: RefCell<Option<Statement>>,
    delete: RefCell<Option<Statement>>,
    size: RefCell<Option<Statement>>,
}

impl Own {
    fn clear(&self) {
        let Self {
            begin,
            commit,
            rollback,
            savepoint,
            release,
            rollback_to,
            get,
            put,
            delete,
            size,
        } = self;
        for place in
            [begin, commit, rollback, savepoint, release, rollback_to, get, put, delete, size]
        {
            *place.borrow_mut() = None;
        }
    }
}

/// Where the transaction of the turn stands.
#[derive(Debug, Default)]
struct TurnState {
    /// Our BEGIN is open.
    open: Cell<bool>,
    /// A writing statement ran since the last commit.
    wrote: Cell<bool>,
    /// Something was committed since the last `end_turn`.
    committed: Cell<bool>,
    /// Savepoints under way, the innermost last.
    savepoints: RefCell<Vec<Savepoint>>,
    next_savepoint: Cell<u64>,
    /// SQLite gave up our transaction by itself; the reason.
    broken: RefCell<Option<String>>,
}

#[derive(Clone, Copy, Debug)]
struct Savepoint {
    id: SavepointId,
    /// `TurnState::wrote` when it began, which a rollback brings back.
    wrote: bool,
}

/// A savepoint of one database. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavepointId(pub u64);

/// How long a savepoint may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavepointKind {
    /// `transactionSync`: within one turn.
    Sync,
    /// `transaction`: over turns; `end_turn` does not commit while one is open.
    Async,
}

impl Database {
    /// Takes over an open connection: sets limits, defensive mode and authorizer. A statement ends
    /// with the turn that has started it.
    ///
    /// # Errors
    /// SQLite refused one of them; the connection is closed.
    pub fn new(mut conn: Connection) -> Result<Self, DbError> {
        conn.progress_handler(LOOK_EVERY, Some(crate::watchdog::is_ended))
            .map_err(|error| DbError::sql(error.to_string()))?;
        // SAFETY: the handle is used only while `conn` lives, which the struct owns.
        let db = unsafe { conn.handle() };
        let guard = Guard::install(db)?;
        Ok(Self {
            cursors: RefCell::default(),
            cache: RefCell::default(),
            own_cache: RefCell::default(),
            dropped: Rc::default(),
            own: Own::default(),
            turn: TurnState::default(),
            alarm: AlarmState::default(),
            tables: Cell::new(None),
            db,
            conn,
            guard,
        })
    }

    /// Where to note cursors that nobody can read any more.
    #[must_use]
    pub fn dropped_cursors(&self) -> DroppedCursors {
        Rc::clone(&self.dropped)
    }

    fn sweep(&self) {
        // Each `close` may not find it: it was read to its end.
        for id in self.dropped.take() {
            self.close(id);
        }
    }

    /// Whether the shard must call `end_turn`: a transaction is open, or one has ended meanwhile.
    #[must_use]
    pub fn needs_end_turn(&self) -> bool {
        self.turn.open.get() || self.turn.committed.get() || self.turn.broken.borrow().is_some()
    }

    /// Ends the turn: commits its transaction, unless an asynchronous one is open.
    ///
    /// `true` when something was committed since the last call (a commit of a statement that
    /// changed no row counts, although it changes no page). Cursors stay open.
    ///
    /// # Errors
    /// The writes of this turn are gone: the cell must be reset.
    pub fn end_turn(&self) -> Result<bool, DbError> {
        self.sweep();
        if let Some(reason) = self.turn.broken.borrow().clone() {
            return Err(DbError::Broken(reason));
        }
        if self.turn.open.get() && self.turn.savepoints.borrow().is_empty() {
            self.commit()?;
        }
        Ok(self.turn.committed.take())
    }

    /// Opens a savepoint. An asynchronous one first commits what the turn wrote before it, so that
    /// a response of this turn need not wait for the end of the transaction.
    ///
    /// # Errors
    /// SQLite's.
    pub fn begin(&self, kind: SavepointKind) -> Result<SavepointId, DbError> {
        if kind == SavepointKind::Async
            && self.turn.savepoints.borrow().is_empty()
            && self.turn.wrote.get()
        {
            self.commit()?;
        }
        self.open_transaction()?;
        self.run(&self.own.savepoint, "SAVEPOINT _cf_savepoint")?;
        let id = SavepointId(self.turn.next_savepoint.get());
        self.turn.next_savepoint.set(id.0 + 1);
        self.turn.savepoints.borrow_mut().push(Savepoint { id, wrote: self.turn.wrote.get() });
        Ok(id)
    }

    /// Keeps what was written since `begin`; savepoints inside it end too. The writes become
    /// durable with the turn in which the outermost savepoint ends.
    ///
    /// # Errors
    /// SQLite's; also when the savepoint is not open any more.
    pub fn release(&self, id: SavepointId) -> Result<(), DbError> {
        self.end_inner(id)?;
        self.run(&self.own.release, "RELEASE _cf_savepoint")
    }

    /// Takes back what was written since `begin`, and ends the savepoint and those inside it.
    ///
    /// # Errors
    /// SQLite's; also when the savepoint is not open any more.
    pub fn roll_back(&self, id: SavepointId) -> Result<(), DbError> {
        let savepoint = self.end_inner(id)?;
        self.turn.wrote.set(savepoint.wrote);
        // The table may have been made inside.
        self.tables.set(None);
        self.run(&self.own.rollback_to, "ROLLBACK TO _cf_savepoint")?;
        self.run(&self.own.release, "RELEASE _cf_savepoint")
    }

    /// Whether any savepoint is open.
    #[must_use]
    pub fn in_savepoint(&self) -> bool {
        !self.turn.savepoints.borrow().is_empty()
    }

    /// Takes `id` off the list, and first ends the savepoints inside it.
    fn end_inner(&self, id: SavepointId) -> Result<Savepoint, DbError> {
        self.check_broken()?;
        let mut savepoints = self.turn.savepoints.borrow_mut();
        if !savepoints.iter().any(|savepoint| savepoint.id == id) {
            return Err(DbError::sql("The transaction has ended already."));
        }
        while let Some(savepoint) = savepoints.pop() {
            if savepoint.id == id {
                return Ok(savepoint);
            }
            self.run(&self.own.release, "RELEASE _cf_savepoint")?;
        }
        unreachable!("the list was seen to contain {id:?}")
    }

    /// Gives back what is kept for speed: idle statements (2 to 3 KiB each) and SQLite's cache of
    /// pages. For a cell that rests, between turns.
    pub fn release_memory(&self) {
        self.cache.borrow_mut().clear();
        self.own_cache.borrow_mut().clear();
        self.own.clear();
        // SAFETY: `db` is open for as long as `self`, and no statement runs between turns.
        unsafe { ffi::sqlite3_db_release_memory(self.db) };
    }

    /// Bytes of the pages in use.
    ///
    /// # Errors
    /// SQLite's.
    pub fn size(&self) -> Result<u64, DbError> {
        const SQL: &str = "SELECT (SELECT page_count FROM pragma_page_count) * page_size \
            - (SELECT freelist_count FROM pragma_freelist_count) * page_size FROM pragma_page_size";
        let mut statement = self.own(&self.own.size, SQL)?;
        let result = match statement.step() {
            ffi::SQLITE_ROW => match statement.column(0) {
                Value::Integer(bytes) => Ok(u64::try_from(bytes).unwrap_or(0)),
                _ => Ok(0),
            },
            code => Err(DbError::of(self.db, code)),
        };
        statement.reset();
        result
    }

    /// Whether a table of ours exists. Looked up once; a rollback makes it unknown again.
    fn has_table(&self, table: Table) -> Result<bool, DbError> {
        self.check_broken()?;
        let mut tables = match self.tables.get() {
            Some(tables) => tables,
            None => {
                const SQL: &str = "SELECT name FROM sqlite_master \
                    WHERE type = 'table' AND name IN ('_cf_KV', '_cf_ALARM')";
                let names = self.names(SQL)?;
                let has = |wanted: &str| names.iter().any(|name| name == wanted);
                Tables { kv: has("_cf_KV"), alarm: has("_cf_ALARM") }
            }
        };
        self.tables.set(Some(tables));
        Ok(*tables.of(table))
    }

    fn set_has_table(&self, table: Table) {
        if let Some(mut tables) = self.tables.get() {
            *tables.of(table) = true;
            self.tables.set(Some(tables));
        }
    }

    fn names(&self, query: &str) -> Result<Vec<String>, DbError> {
        let mut statement = self.prepare_own(query)?;
        let mut names = Vec::new();
        loop {
            match statement.step() {
                ffi::SQLITE_ROW => {
                    if let Value::Text(name) = statement.column(0) {
                        names.push(String::from_utf8_lossy(name).into_owned());
                    }
                }
                ffi::SQLITE_DONE => return Ok(names),
                code => return Err(DbError::of(self.db, code)),
            }
        }
    }

    /// Opens the transaction of the turn and notes that the next statement writes.
    fn begin_write(&self) -> Result<(), DbError> {
        self.open_transaction()?;
        self.turn.wrote.set(true);
        Ok(())
    }

    fn open_transaction(&self) -> Result<(), DbError> {
        self.check_broken()?;
        if !self.turn.open.get() {
            self.run(&self.own.begin, "BEGIN")?;
            self.turn.open.set(true);
        }
        Ok(())
    }

    fn commit(&self) -> Result<(), DbError> {
        self.note_alarm_commit()?;
        if let Err(error) = self.run(&self.own.commit, "COMMIT") {
            let reason = format!("The writes of this turn could not be committed: {error}");
            // Fails when SQLite has rolled back already, which is what it is for.
            let _ = self.run(&self.own.rollback, "ROLLBACK");
            self.turn.open.set(false);
            self.tables.set(None);
            *self.turn.broken.borrow_mut() = Some(reason.clone());
            return Err(DbError::Broken(reason));
        }
        self.turn.open.set(false);
        let wrote = self.turn.wrote.take();
        self.turn.committed.set(self.turn.committed.get() || wrote);
        Ok(())
    }

    fn check_broken(&self) -> Result<(), DbError> {
        match &*self.turn.broken.borrow() {
            None => Ok(()),
            Some(reason) => Err(DbError::Broken(reason.clone())),
        }
    }

    /// After an error: some (`ON CONFLICT ROLLBACK`, a full disk) make SQLite give up the whole
    /// transaction. Earlier writes of the turn were reported as done, so the cell is lost.
    fn note_failure(&self, error: DbError) -> DbError {
        // SAFETY: `db` is open.
        let autocommit = unsafe { ffi::sqlite3_get_autocommit(self.db) } != 0;
        if !(autocommit && self.turn.open.replace(false)) {
            return error;
        }
        let reason = format!("SQLite rolled back all writes of this turn: {error}");
        self.turn.savepoints.borrow_mut().clear();
        self.tables.set(None);
        *self.turn.broken.borrow_mut() = Some(reason.clone());
        DbError::Broken(reason)
    }

    fn check(&self, code: c_int) -> Result<(), DbError> {
        if code == ffi::SQLITE_OK { Ok(()) } else { Err(DbError::of(self.db, code)) }
    }

    /// A statement of ours that has a place of its own.
    fn own<'a>(
        &self,
        place: &'a RefCell<Option<Statement>>,
        sql: &str,
    ) -> Result<RefMut<'a, Statement>, DbError> {
        let mut place = place.borrow_mut();
        if place.is_none() {
            *place = Some(self.prepare_own(sql)?);
        }
        RefMut::filter_map(place, Option::as_mut).map_err(|_| DbError::sql("statement is missing"))
    }

    /// Runs a statement of ours that has no parameters and no result.
    fn run(&self, place: &RefCell<Option<Statement>>, sql: &str) -> Result<(), DbError> {
        let mut statement = self.own(place, sql)?;
        let code = statement.step();
        let result =
            if code == ffi::SQLITE_DONE { Ok(()) } else { Err(DbError::of(self.db, code)) };
        statement.reset();
        result
    }

    fn execute_own(&self, sql: &str) -> Result<(), DbError> {
        let mut statement = self.prepare_own(sql)?;
        match statement.step() {
            ffi::SQLITE_DONE | ffi::SQLITE_ROW => Ok(()),
            code => Err(DbError::of(self.db, code)),
        }
    }

    fn prepare_own(&self, sql: &str) -> Result<Statement, DbError> {
        match self.prepare(sql, Trust::Own)? {
            (Some(statement), _) => Ok(statement),
            (None, _) => Err(DbError::sql("SQL code did not contain a statement.")),
        }
    }

    /// Prepares the first statement of `sql`: with it comes how many bytes of `sql` it took.
    fn prepare(&self, sql: &str, trust: Trust) -> Result<(Option<Statement>, usize), DbError> {
        let length = c_int::try_from(sql.len())
            .map_err(|_| DbError::sql("statement too long: SQLITE_TOOBIG"))?;
        let mut raw = ptr::null_mut();
        let mut tail: *const c_char = ptr::null();
        let start = sql.as_ptr().cast::<c_char>();
        // SAFETY: `db` is open; start and length are those of `sql`; the two out pointers live
        // during the call.
        let code = self.guard.as_trust(trust, || unsafe {
            ffi::sqlite3_prepare_v3(
                self.db,
                start,
                length,
                ffi::SQLITE_PREPARE_PERSISTENT,
                &mut raw,
                &mut tail,
            )
        });
        let transaction_denied = self.guard.take_transaction_denied();
        if code != ffi::SQLITE_OK {
            let error = if transaction_denied {
                DbError::sql(USE_TRANSACTION)
            } else {
                DbError::of(self.db, code)
            };
            return Err(error);
        }
        // An embedded NUL ends the text for SQLite.
        let used = if tail.is_null() { sql.len() } else { (tail as usize) - (start as usize) };
        Ok((NonNull::new(raw).map(Statement::new), used.min(sql.len())))
    }

    /// Steps a statement of a user.
    fn step_user(&self, statement: &mut Statement) -> c_int {
        self.guard.as_trust(Trust::User, || statement.step())
    }

    fn total_changes(&self) -> u64 {
        // SAFETY: `db` is open.
        u64::try_from(unsafe { ffi::sqlite3_total_changes64(self.db) }).unwrap_or(0)
    }

    /// Text of a statement, as the caches keep it.
    fn text(sql: &str) -> Rc<str> {
        Rc::from(sql)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: `db` is open until `conn` drops, after this. Without authorizer nothing of
        // SQLite points to the guard any more.
        unsafe {
            ffi::sqlite3_set_authorizer(self.db, None, ptr::null_mut());
        }
    }
}

/// workerd's words for BEGIN, COMMIT, SAVEPOINT and the like in user SQL.
const USE_TRANSACTION: &str = "To execute a transaction, please use the state.storage.transaction() or \
    state.storage.transactionSync() APIs instead of the SQL BEGIN TRANSACTION or SAVEPOINT statements. The \
    JavaScript API is safer because it will automatically roll back on exceptions, and because it interacts \
    correctly with Durable Objects' automatic atomic write coalescing.";
