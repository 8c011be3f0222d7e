//! What a storage call may fail with, worded as workerd words it.

use std::ffi::{CStr, c_int};

use rusqlite::ffi;

/// Why a storage call failed. The variant decides the class of the JavaScript error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DbError {
    /// SQLite or a rule of ours refused the statement: throw an `Error`; the turn goes on.
    #[error("{0}")]
    Sql(String),
    /// A size is beyond its limit: throw a `RangeError`; the turn goes on.
    #[error("{0}")]
    Range(String),
    /// An argument makes no sense: throw a `TypeError`; the turn goes on.
    #[error("{0}")]
    Type(String),
    /// Writes that were reported as done are gone: the cell must be reset, nothing that this
    /// turn made may leave.
    #[error("{0}")]
    Broken(String),
}

impl DbError {
    /// The error that `db` holds after a call that answered `code`.
    pub(super) fn of(db: *mut ffi::sqlite3, code: c_int) -> Self {
        // SAFETY: `db` is an open handle; the message lives until the next call on it and is
        // copied at once.
        let (text, extended, offset) = unsafe {
            let text = ffi::sqlite3_errmsg(db);
            let text = if text.is_null() {
                "unknown error".into()
            } else {
                CStr::from_ptr(text).to_string_lossy()
            };
            (text.into_owned(), ffi::sqlite3_extended_errcode(db), ffi::sqlite3_error_offset(db))
        };
        Self::Sql(describe(&text, code, extended, offset))
    }

    pub(super) fn sql(text: impl Into<String>) -> Self {
        Self::Sql(text.into())
    }
}

/// `text[ at offset N]: SQLITE_NAME[ (extended: SQLITE_NAME_MORE)]`.
fn describe(text: &str, code: c_int, extended: c_int, offset: c_int) -> String {
    let primary = code & 0xff;
    let mut message = text.to_owned();
    if offset >= 0 {
        message.push_str(&format!(" at offset {offset}"));
    }
    message.push_str(": ");
    message.push_str(&primary_name(primary));
    if extended & 0xff == primary && extended != primary {
        message.push_str(&format!(" (extended: {})", extended_name(extended)));
    }
    message
}

fn primary_name(code: c_int) -> String {
    const NAMES: [&str; 29] = [
        "OK",
        "ERROR",
        "INTERNAL",
        "PERM",
        "ABORT",
        "BUSY",
        "LOCKED",
        "NOMEM",
        "READONLY",
        "INTERRUPT",
        "IOERR",
        "CORRUPT",
        "NOTFOUND",
        "FULL",
        "CANTOPEN",
        "PROTOCOL",
        "EMPTY",
        "SCHEMA",
        "TOOBIG",
        "CONSTRAINT",
        "MISMATCH",
        "MISUSE",
        "NOLFS",
        "AUTH",
        "FORMAT",
        "RANGE",
        "NOTADB",
        "NOTICE",
        "WARNING",
    ];
    match usize::try_from(code).ok().and_then(|index| NAMES.get(index)) {
        Some(name) => format!("SQLITE_{name}"),
        None => format!("SQLITE_{code}"),
    }
}

fn extended_name(code: c_int) -> String {
    let name = match code {
        ffi::SQLITE_ABORT_ROLLBACK => "SQLITE_ABORT_ROLLBACK",
        ffi::SQLITE_CONSTRAINT_CHECK => "SQLITE_CONSTRAINT_CHECK",
        ffi::SQLITE_CONSTRAINT_COMMITHOOK => "SQLITE_CONSTRAINT_COMMITHOOK",
        ffi::SQLITE_CONSTRAINT_DATATYPE => "SQLITE_CONSTRAINT_DATATYPE",
        ffi::SQLITE_CONSTRAINT_FOREIGNKEY => "SQLITE_CONSTRAINT_FOREIGNKEY",
        ffi::SQLITE_CONSTRAINT_FUNCTION => "SQLITE_CONSTRAINT_FUNCTION",
        ffi::SQLITE_CONSTRAINT_NOTNULL => "SQLITE_CONSTRAINT_NOTNULL",
        ffi::SQLITE_CONSTRAINT_PINNED => "SQLITE_CONSTRAINT_PINNED",
        ffi::SQLITE_CONSTRAINT_PRIMARYKEY => "SQLITE_CONSTRAINT_PRIMARYKEY",
        ffi::SQLITE_CONSTRAINT_ROWID => "SQLITE_CONSTRAINT_ROWID",
        ffi::SQLITE_CONSTRAINT_TRIGGER => "SQLITE_CONSTRAINT_TRIGGER",
        ffi::SQLITE_CONSTRAINT_UNIQUE => "SQLITE_CONSTRAINT_UNIQUE",
        ffi::SQLITE_CONSTRAINT_VTAB => "SQLITE_CONSTRAINT_VTAB",
        ffi::SQLITE_CORRUPT_INDEX => "SQLITE_CORRUPT_INDEX",
        ffi::SQLITE_CORRUPT_SEQUENCE => "SQLITE_CORRUPT_SEQUENCE",
        ffi::SQLITE_CORRUPT_VTAB => "SQLITE_CORRUPT_VTAB",
        ffi::SQLITE_ERROR_MISSING_COLLSEQ => "SQLITE_ERROR_MISSING_COLLSEQ",
        ffi::SQLITE_IOERR_NOMEM => "SQLITE_IOERR_NOMEM",
        ffi::SQLITE_IOERR_READ => "SQLITE_IOERR_READ",
        ffi::SQLITE_IOERR_SHORT_READ => "SQLITE_IOERR_SHORT_READ",
        ffi::SQLITE_IOERR_WRITE => "SQLITE_IOERR_WRITE",
        ffi::SQLITE_IOERR_FSYNC => "SQLITE_IOERR_FSYNC",
        ffi::SQLITE_IOERR_TRUNCATE => "SQLITE_IOERR_TRUNCATE",
        ffi::SQLITE_LOCKED_SHAREDCACHE => "SQLITE_LOCKED_SHAREDCACHE",
        ffi::SQLITE_LOCKED_VTAB => "SQLITE_LOCKED_VTAB",
        _ => return code.to_string(),
    };
    name.to_owned()
}
