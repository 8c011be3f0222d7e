//! Key-value calls on the table `_cf_KV`, which is made by the first put.
//!
//! Invariant: keys order by their UTF-8 bytes (collation BINARY). Units: bytes, keys.

use rusqlite::ffi;

use super::{Database, DbError, Table, Value};

/// Longest key.
pub const KEY_BYTES_MAX: usize = 2_048;
/// Longest value: 2 MiB, and what the serialisation adds to a plain buffer of that length.
pub const VALUE_BYTES_MAX: usize = (2 << 20) + 34;
/// Most keys in one call.
pub const KEYS_MAX: usize = 128;

/// A question for a range of keys: `start` inclusive, `end` exclusive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// The first key, included.
    pub start: Option<Vec<u8>>,
    /// The key before which the range ends.
    pub end: Option<Vec<u8>>,
    /// From the last key to the first.
    pub reverse: bool,
    /// At most that many pairs.
    pub limit: Option<u64>,
}

impl List {
    /// Keeps only keys that are greater than `key`.
    pub fn after(&mut self, key: &[u8]) {
        // No string lies between a key and the key with a NUL at its end.
        self.start_at(&[key, b"\0"].concat());
    }

    /// Keeps only keys that are not less than `key`.
    pub fn start_at(&mut self, key: &[u8]) {
        if self.start.as_deref().is_none_or(|start| start < key) {
            self.start = Some(key.to_vec());
        }
    }

    /// Keeps only keys that are less than `key`.
    pub fn end_before(&mut self, key: &[u8]) {
        if self.end.as_deref().is_none_or(|end| end > key) {
            self.end = Some(key.to_vec());
        }
    }

    /// Keeps only keys that begin with `prefix`.
    pub fn with_prefix(&mut self, prefix: &[u8]) {
        if prefix.is_empty() {
            return;
        }
        self.start_at(prefix);
        // UTF-8 has no byte 0xff, so the last byte can always be followed by one that is greater.
        let mut end = prefix.to_vec();
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        self.end_before(&end);
    }
}

impl Database {
    /// Hands the serialised value of `key` to `read`; `None` when there is none.
    ///
    /// # Errors
    /// SQLite's, or the key is too long.
    pub fn kv_get<R>(
        &self,
        key: &str,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, DbError> {
        check_key(key)?;
        if !self.has_table(Table::Kv)? {
            return Ok(None);
        }
        let mut statement = self.own(&self.own.get, "SELECT value FROM _cf_KV WHERE key = ?")?;
        self.check(statement.bind(0, Value::Text(key.as_bytes())))?;
        let result = match statement.step() {
            ffi::SQLITE_ROW => Ok(Some(read(bytes(statement.column(0))))),
            ffi::SQLITE_DONE => Ok(None),
            code => Err(DbError::of(self.db, code)),
        };
        statement.reset();
        result
    }

    /// Writes the serialised value of `key`.
    ///
    /// # Errors
    /// SQLite's, or key or value are too long.
    pub fn kv_put(&self, key: &str, value: &[u8]) -> Result<(), DbError> {
        check_key(key)?;
        check_value(value.len())?;
        self.begin_write()?;
        if !self.has_table(Table::Kv)? {
            self.execute_own(
                "CREATE TABLE _cf_KV (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID",
            )
            .map_err(|error| self.note_failure(error))?;
            self.set_has_table(Table::Kv);
        }
        const SQL: &str =
            "INSERT INTO _cf_KV VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value";
        let mut statement = self.own(&self.own.put, SQL)?;
        self.check(statement.bind(0, Value::Text(key.as_bytes())))?;
        self.check(statement.bind(1, Value::Blob(value)))?;
        let code = statement.step();
        let result =
            if code == ffi::SQLITE_DONE { Ok(()) } else { Err(DbError::of(self.db, code)) };
        statement.reset();
        statement.clear_bindings();
        drop(statement);
        result.map_err(|error| self.note_failure(error))
    }

    /// Deletes `key`: whether it was there.
    ///
    /// # Errors
    /// SQLite's, or the key is too long.
    pub fn kv_delete(&self, key: &str) -> Result<bool, DbError> {
        check_key(key)?;
        if !self.has_table(Table::Kv)? {
            return Ok(false);
        }
        self.begin_write()?;
        let before = self.total_changes();
        let mut statement = self.own(&self.own.delete, "DELETE FROM _cf_KV WHERE key = ?")?;
        self.check(statement.bind(0, Value::Text(key.as_bytes())))?;
        let code = statement.step();
        let result =
            if code == ffi::SQLITE_DONE { Ok(()) } else { Err(DbError::of(self.db, code)) };
        statement.reset();
        drop(statement);
        result.map_err(|error| self.note_failure(error))?;
        Ok(self.total_changes() != before)
    }

    /// Hands the pairs of a range to `read`, in order, until it answers `false`. Nothing stays
    /// open afterwards, so an iterator asks again after the last key that it got.
    ///
    /// # Errors
    /// SQLite's.
    pub fn kv_list(
        &self,
        list: &List,
        mut read: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), DbError> {
        if !self.has_table(Table::Kv)? || list.limit == Some(0) {
            return Ok(());
        }
        let sql = match (list.end.is_some(), list.reverse) {
            (false, false) => "SELECT key, value FROM _cf_KV WHERE key >= ?1 ORDER BY key LIMIT ?2",
            (false, true) => {
                "SELECT key, value FROM _cf_KV WHERE key >= ?1 ORDER BY key DESC LIMIT ?2"
            }
            (true, false) => {
                "SELECT key, value FROM _cf_KV WHERE key >= ?1 AND key < ?3 ORDER BY key LIMIT ?2"
            }
            (true, true) => {
                "SELECT key, value FROM _cf_KV WHERE key >= ?1 AND key < ?3 ORDER BY key DESC LIMIT ?2"
            }
        };
        let cached = self.own_cache.borrow_mut().take(sql);
        let (text, mut statement) = match cached {
            Some(cached) => cached,
            None => (Self::text(sql), self.prepare_own(sql)?),
        };
        self.check(statement.bind(0, Value::Text(list.start.as_deref().unwrap_or_default())))?;
        let limit = list.limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(-1);
        self.check(statement.bind(1, Value::Integer(limit)))?;
        if let Some(end) = &list.end {
            self.check(statement.bind(2, Value::Text(end)))?;
        }
        let result = loop {
            match statement.step() {
                ffi::SQLITE_ROW => {
                    let key = match statement.column(0) {
                        Value::Text(key) => key,
                        Value::Null | Value::Integer(_) | Value::Real(_) | Value::Blob(_) => &[],
                    };
                    if !read(key, bytes(statement.column(1))) {
                        break Ok(());
                    }
                }
                ffi::SQLITE_DONE => break Ok(()),
                code => break Err(DbError::of(self.db, code)),
            }
        };
        self.own_cache.borrow_mut().put(text, statement);
        result
    }
}

fn bytes(value: Value<'_>) -> &[u8] {
    match value {
        Value::Text(bytes) | Value::Blob(bytes) => bytes,
        Value::Null | Value::Integer(_) | Value::Real(_) => &[],
    }
}

fn check_key(key: &str) -> Result<(), DbError> {
    if key.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    Err(DbError::Range(format!(
        "Keys cannot be larger than {KEY_BYTES_MAX} bytes. A key of size {} was provided.",
        key.len()
    )))
}

fn check_value(length: usize) -> Result<(), DbError> {
    if length <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(DbError::Range(format!(
        "Values cannot be larger than {} bytes. A value of size {length} was provided.",
        2 << 20
    )))
}
