//! One prepared statement, and the cache of those that are idle.
//!
//! Invariant: a statement in the cache is reset and holds no bindings.
//! Units: bytes of SQL text. Source: sqlite.org/c3ref/stmt.html.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_int};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use rusqlite::ffi;

/// A value on its way into SQLite.
#[derive(Clone, Debug, PartialEq)]
pub enum Bind {
    /// SQL NULL.
    Null,
    /// INTEGER.
    Integer(i64),
    /// REAL.
    Real(f64),
    /// TEXT, UTF-8.
    Text(String),
    /// BLOB.
    Blob(Vec<u8>),
}

/// A value of a result row, borrowed from SQLite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// SQL NULL.
    Null,
    /// INTEGER.
    Integer(i64),
    /// REAL.
    Real(f64),
    /// TEXT; SQLite does not promise that it is well-formed UTF-8.
    Text(&'a [u8]),
    /// BLOB.
    Blob(&'a [u8]),
}

impl Value<'_> {
    /// An owned copy. Ill-formed text is repaired with U+FFFD.
    #[must_use]
    pub fn to_bind(self) -> Bind {
        match self {
            Self::Null => Bind::Null,
            Self::Integer(value) => Bind::Integer(value),
            Self::Real(value) => Bind::Real(value),
            Self::Text(bytes) => Bind::Text(String::from_utf8_lossy(bytes).into_owned()),
            Self::Blob(bytes) => Bind::Blob(bytes.to_vec()),
        }
    }
}

impl Bind {
    /// The same value, borrowed.
    #[must_use]
    pub fn as_value(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Integer(value) => Value::Integer(*value),
            Self::Real(value) => Value::Real(*value),
            Self::Text(text) => Value::Text(text.as_bytes()),
            Self::Blob(bytes) => Value::Blob(bytes),
        }
    }
}

/// Owns a `sqlite3_stmt`. Must be dropped before its connection is closed: `Database` keeps all of
/// them and its connection, in this order.
#[derive(Debug)]
pub(super) struct Statement {
    raw: NonNull<ffi::sqlite3_stmt>,
}

impl Statement {
    /// Takes over what `sqlite3_prepare_v3` made.
    pub(super) fn new(raw: NonNull<ffi::sqlite3_stmt>) -> Self {
        Self { raw }
    }

    pub(super) fn step(&mut self) -> c_int {
        // SAFETY: `raw` is live until drop; `&mut` proves that no column of this row is borrowed.
        unsafe { ffi::sqlite3_step(self.raw.as_ptr()) }
    }

    pub(super) fn reset(&mut self) {
        // SAFETY: as in `step`. The code is that of the last step, which was reported then.
        unsafe {
            ffi::sqlite3_reset(self.raw.as_ptr());
        }
    }

    pub(super) fn clear_bindings(&mut self) {
        // SAFETY: as in `step`.
        unsafe {
            ffi::sqlite3_clear_bindings(self.raw.as_ptr());
        }
    }

    pub(super) fn is_readonly(&self) -> bool {
        // SAFETY: `raw` is live until drop.
        unsafe { ffi::sqlite3_stmt_readonly(self.raw.as_ptr()) != 0 }
    }

    pub(super) fn parameters(&self) -> usize {
        // SAFETY: `raw` is live until drop.
        usize::try_from(unsafe { ffi::sqlite3_bind_parameter_count(self.raw.as_ptr()) })
            .unwrap_or(0)
    }

    pub(super) fn columns(&self) -> usize {
        // SAFETY: `raw` is live until drop.
        usize::try_from(unsafe { ffi::sqlite3_column_count(self.raw.as_ptr()) }).unwrap_or(0)
    }

    pub(super) fn column_name(&self, index: usize) -> String {
        let Ok(index) = c_int::try_from(index) else { return String::new() };
        // SAFETY: SQLite answers NULL for a wrong index or when memory is short; the text lives
        // until the next call on this statement and is copied here.
        unsafe {
            let name = ffi::sqlite3_column_name(self.raw.as_ptr(), index);
            if name.is_null() {
                String::new()
            } else {
                CStr::from_ptr(name).to_string_lossy().into_owned()
            }
        }
    }

    /// Steps that went forward in full scans, since the last call.
    pub(super) fn take_scan_steps(&mut self) -> u64 {
        // SAFETY: `raw` is live until drop.
        let steps = unsafe {
            ffi::sqlite3_stmt_status(self.raw.as_ptr(), ffi::SQLITE_STMTSTATUS_FULLSCAN_STEP, 1)
        };
        u64::try_from(steps).unwrap_or(0)
    }

    /// Binds parameter `index` (from 0). SQLite copies text and blobs.
    pub(super) fn bind(&mut self, index: usize, value: Value<'_>) -> c_int {
        let Ok(index) = c_int::try_from(index + 1) else { return ffi::SQLITE_RANGE };
        let raw = self.raw.as_ptr();
        // An empty slice may have any address, but NULL would bind NULL; Rust's is never NULL.
        // SAFETY: `raw` is live; pointer and length are those of a slice that lives during the
        // call, and SQLITE_TRANSIENT has SQLite copy it.
        unsafe {
            match value {
                Value::Null => ffi::sqlite3_bind_null(raw, index),
                Value::Integer(value) => ffi::sqlite3_bind_int64(raw, index, value),
                Value::Real(value) => ffi::sqlite3_bind_double(raw, index, value),
                Value::Text(text) => ffi::sqlite3_bind_text64(
                    raw,
                    index,
                    text.as_ptr().cast(),
                    text.len() as u64,
                    ffi::SQLITE_TRANSIENT(),
                    ffi::SQLITE_UTF8 as u8,
                ),
                Value::Blob(bytes) => ffi::sqlite3_bind_blob64(
                    raw,
                    index,
                    bytes.as_ptr().cast(),
                    bytes.len() as u64,
                    ffi::SQLITE_TRANSIENT(),
                ),
            }
        }
    }

    /// A column of the current row; NULL when there is none.
    pub(super) fn column(&self, index: usize) -> Value<'_> {
        let Ok(index) = c_int::try_from(index) else { return Value::Null };
        let raw = self.raw.as_ptr();
        // SAFETY: `raw` is live. The pointers that SQLite hands out are valid until the next step,
        // reset or type conversion of the column: the first two need `&mut self`, and the type is
        // asked first, so that no conversion takes place.
        unsafe {
            match ffi::sqlite3_column_type(raw, index) {
                ffi::SQLITE_INTEGER => Value::Integer(ffi::sqlite3_column_int64(raw, index)),
                ffi::SQLITE_FLOAT => Value::Real(ffi::sqlite3_column_double(raw, index)),
                ffi::SQLITE_TEXT => {
                    let start = ffi::sqlite3_column_text(raw, index);
                    Value::Text(slice(start, ffi::sqlite3_column_bytes(raw, index)))
                }
                ffi::SQLITE_BLOB => {
                    let start = ffi::sqlite3_column_blob(raw, index);
                    Value::Blob(slice(start.cast(), ffi::sqlite3_column_bytes(raw, index)))
                }
                _ => Value::Null,
            }
        }
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: owned, finalised once.
        unsafe {
            ffi::sqlite3_finalize(self.raw.as_ptr());
        }
    }
}

/// # Safety
/// `start` is NULL or points to `len` bytes that live as long as `'a`.
unsafe fn slice<'a>(start: *const u8, len: c_int) -> &'a [u8] {
    match usize::try_from(len) {
        // SAFETY: by the contract of this function.
        Ok(len) if !ptr::addr_eq(start, ptr::null::<u8>()) => unsafe {
            std::slice::from_raw_parts(start, len)
        },
        _ => &[],
    }
}

/// Idle statements by their text, the least recently used one leaves first.
#[derive(Debug, Default)]
pub(super) struct StatementCache {
    idle: HashMap<Rc<str>, (u64, Statement)>,
    order: BTreeMap<u64, Rc<str>>,
    clock: u64,
    bytes: usize,
}

impl StatementCache {
    /// workerd's bound on the text of cached statements.
    const BYTES_MAX: usize = 1 << 20;

    pub(super) fn take(&mut self, sql: &str) -> Option<(Rc<str>, Statement)> {
        let (text, (used, statement)) = self.idle.remove_entry(sql)?;
        self.order.remove(&used);
        self.bytes -= text.len();
        Some((text, statement))
    }

    /// Takes a statement back. A second copy of the same text is finalised.
    pub(super) fn put(&mut self, sql: Rc<str>, mut statement: Statement) {
        statement.reset();
        statement.clear_bindings();
        if sql.len() > Self::BYTES_MAX || self.idle.contains_key(&sql) {
            return;
        }
        self.clock += 1;
        self.bytes += sql.len();
        self.order.insert(self.clock, Rc::clone(&sql));
        self.idle.insert(sql, (self.clock, statement));
        while self.bytes > Self::BYTES_MAX {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.idle.remove(&oldest);
            self.bytes -= oldest.len();
        }
    }

    pub(super) fn clear(&mut self) {
        self.idle.clear();
        self.order.clear();
        self.bytes = 0;
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        (self.idle.len(), self.bytes)
    }
}
