//! What user SQL may do: the authorizer, the limits, the switches of a cell's connection.
//!
//! Invariant: a statement that came from JavaScript never reads or writes a `_cf_*` object, never
//! controls a transaction and never changes how the file is kept. Own statements may do all of it.
//! Units: bytes, counts. Source: sqlite.org/security.html, sqlite.org/c3ref/set_authorizer.html;
//! values and lists are those of workerd (`WORKERS_API 2.2`, observed on workerd 1.20261117).

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

use rusqlite::ffi;

use super::DbError;

/// Who wrote the statement that is being prepared or stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    Own,
    User,
}

/// State of the authorizer of one connection. Boxed: SQLite keeps its address.
#[derive(Debug)]
pub(super) struct Guard {
    trust: Cell<Trust>,
    /// The last denial was for BEGIN, COMMIT, ROLLBACK, SAVEPOINT or RELEASE, which deserves a
    /// better message than "not authorized".
    transaction_denied: Cell<bool>,
}

/// `(limit, value)`; those of workerd.
const LIMITS: &[(c_int, c_int)] = &[
    // Twice the 2 MB of a documented value, so that a row with a key and a large value fits.
    (ffi::SQLITE_LIMIT_LENGTH, 4 << 20),
    (ffi::SQLITE_LIMIT_SQL_LENGTH, 100_000),
    (ffi::SQLITE_LIMIT_COLUMN, 100),
    (ffi::SQLITE_LIMIT_EXPR_DEPTH, 100),
    (ffi::SQLITE_LIMIT_COMPOUND_SELECT, 5),
    (ffi::SQLITE_LIMIT_VDBE_OP, 25_000),
    (ffi::SQLITE_LIMIT_FUNCTION_ARG, 127),
    (ffi::SQLITE_LIMIT_ATTACHED, 0),
    (ffi::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 50),
    (ffi::SQLITE_LIMIT_VARIABLE_NUMBER, 100),
    (ffi::SQLITE_LIMIT_TRIGGER_DEPTH, 10),
    (ffi::SQLITE_LIMIT_WORKER_THREADS, 0),
];

/// Functions that tell nothing of the build and reach nothing outside the database. Sorted.
const FUNCTIONS: &[&str] = &[
    "->",
    "->>",
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "avg",
    "bm25",
    "ceil",
    "ceiling",
    "changes",
    "char",
    "coalesce",
    "concat",
    "concat_ws",
    "cos",
    "cosh",
    "count",
    "cume_dist",
    "current_date",
    "current_time",
    "current_timestamp",
    "date",
    "datetime",
    "degrees",
    "dense_rank",
    "exp",
    "first_value",
    "floor",
    "format",
    "fts5_get_locale",
    "fts5_insttoken",
    "glob",
    "group_concat",
    "hex",
    "highlight",
    "if",
    "ifnull",
    "iif",
    "instr",
    "json",
    "json_array",
    "json_array_insert",
    "json_array_length",
    "json_each",
    "json_error_position",
    "json_extract",
    "json_group_array",
    "json_group_object",
    "json_insert",
    "json_object",
    "json_patch",
    "json_pretty",
    "json_quote",
    "json_remove",
    "json_replace",
    "json_set",
    "json_tree",
    "json_type",
    "json_valid",
    "jsonb",
    "jsonb_array",
    "jsonb_array_insert",
    "jsonb_extract",
    "jsonb_group_array",
    "jsonb_group_object",
    "jsonb_insert",
    "jsonb_object",
    "jsonb_patch",
    "jsonb_remove",
    "jsonb_replace",
    "jsonb_set",
    "julianday",
    "lag",
    "last_insert_rowid",
    "last_value",
    "lead",
    "length",
    "like",
    "likelihood",
    "likely",
    "ln",
    "load_extension",
    "log",
    "log10",
    "log2",
    "lower",
    "ltrim",
    "match",
    "max",
    "min",
    "mod",
    "nth_value",
    "ntile",
    "nullif",
    "octet_length",
    "percent_rank",
    "pi",
    "pow",
    "power",
    "printf",
    "quote",
    "radians",
    "random",
    "randomblob",
    "rank",
    "replace",
    "round",
    "row_number",
    "rtreecheck",
    "rtreedepth",
    "rtreenode",
    "rtrim",
    "sign",
    "sin",
    "sinh",
    "snippet",
    "soundex",
    "sqlite_drop_column",
    "sqlite_rename_column",
    "sqlite_rename_quotefix",
    "sqlite_rename_table",
    "sqlite_rename_test",
    "sqrt",
    "strftime",
    "string_agg",
    "substr",
    "substring",
    "subtype",
    "sum",
    "tan",
    "tanh",
    "time",
    "timediff",
    "total",
    "total_changes",
    "trim",
    "trunc",
    "typeof",
    "unhex",
    "unicode",
    "unistr",
    "unistr_quote",
    "unixepoch",
    "unlikely",
    "upper",
    "zeroblob",
];

/// What a permitted PRAGMA may be given.
#[derive(Clone, Copy)]
enum Argument {
    None,
    /// A boolean in any spelling of SQLite, or nothing (which reads it).
    Boolean,
    /// The name of a table or an index, which must not be ours.
    Name,
    /// A name or nothing.
    OptionalName,
    /// A number or nothing.
    OptionalNumber,
}

const PRAGMAS: &[(&str, Argument)] = &[
    ("data_version", Argument::None),
    ("page_size", Argument::None),
    ("table_list", Argument::None),
    ("case_sensitive_like", Argument::Boolean),
    ("foreign_keys", Argument::Boolean),
    ("defer_foreign_keys", Argument::Boolean),
    ("ignore_check_constraints", Argument::Boolean),
    ("legacy_alter_table", Argument::Boolean),
    ("recursive_triggers", Argument::Boolean),
    ("reverse_unordered_selects", Argument::Boolean),
    ("foreign_key_check", Argument::OptionalName),
    ("foreign_key_list", Argument::Name),
    ("index_info", Argument::Name),
    ("index_list", Argument::Name),
    ("index_xinfo", Argument::Name),
    ("table_info", Argument::Name),
    ("table_xinfo", Argument::Name),
    ("quick_check", Argument::OptionalName),
    ("optimize", Argument::OptionalNumber),
];

/// Virtual tables that keep their content in the database itself.
const MODULES: &[&str] = &["fts5", "fts5vocab", "rtree", "rtree_i32"];

impl Guard {
    /// Sets limits, defensive mode and the authorizer of `db`.
    pub(super) fn install(db: *mut ffi::sqlite3) -> Result<Box<Self>, DbError> {
        let guard =
            Box::new(Self { trust: Cell::new(Trust::Own), transaction_denied: Cell::new(false) });
        // SAFETY: `db` is the open handle of the caller's connection. The authorizer's user data
        // is the boxed guard, whose address is stable; `Database` removes the authorizer before
        // it drops the guard. The two db_config calls take an int and an optional out pointer.
        unsafe {
            for (limit, value) in LIMITS {
                ffi::sqlite3_limit(db, *limit, *value);
            }
            for (switch, on) in
                [(ffi::SQLITE_DBCONFIG_DEFENSIVE, 1), (ffi::SQLITE_DBCONFIG_ENABLE_FKEY, 1)]
            {
                let code =
                    ffi::sqlite3_db_config(db, switch, on as c_int, std::ptr::null_mut::<c_int>());
                if code != ffi::SQLITE_OK {
                    return Err(DbError::of(db, code));
                }
            }
            let user_data = std::ptr::from_ref::<Guard>(&guard).cast_mut().cast::<c_void>();
            let code = ffi::sqlite3_set_authorizer(db, Some(authorize), user_data);
            if code != ffi::SQLITE_OK {
                return Err(DbError::of(db, code));
            }
        }
        Ok(guard)
    }

    /// Runs `work` as `trust`. SQLite asks the authorizer while it prepares, and again when it
    /// prepares anew inside a step because the schema has changed.
    pub(super) fn as_trust<R>(&self, trust: Trust, work: impl FnOnce() -> R) -> R {
        let before = self.trust.replace(trust);
        let result = work();
        self.trust.set(before);
        result
    }

    pub(super) fn take_transaction_denied(&self) -> bool {
        self.transaction_denied.take()
    }

    fn allows(
        &self,
        action: c_int,
        first: Option<&str>,
        second: Option<&str>,
        database: Option<&str>,
    ) -> bool {
        if self.trust.get() == Trust::Own {
            return true;
        }
        if action == ffi::SQLITE_ALTER_TABLE {
            // Its database comes first, and DROP COLUMN passes the column as third.
            return first == Some("main") && free(second);
        }
        match database {
            // Temporary objects would live in a file that is not captured.
            Some("temp") => {
                return matches!(action, ffi::SQLITE_READ | ffi::SQLITE_UPDATE) && free(first);
            }
            Some("main") | None => {}
            Some(_) => return false,
        }
        match action {
            ffi::SQLITE_SELECT | ffi::SQLITE_RECURSIVE => true,
            ffi::SQLITE_CREATE_TABLE
            | ffi::SQLITE_DELETE
            | ffi::SQLITE_DROP_TABLE
            | ffi::SQLITE_INSERT
            | ffi::SQLITE_ANALYZE
            | ffi::SQLITE_CREATE_VIEW
            | ffi::SQLITE_DROP_VIEW
            | ffi::SQLITE_REINDEX
            | ffi::SQLITE_READ
            | ffi::SQLITE_UPDATE => free(first),
            ffi::SQLITE_CREATE_INDEX
            | ffi::SQLITE_DROP_INDEX
            | ffi::SQLITE_CREATE_TRIGGER
            | ffi::SQLITE_DROP_TRIGGER => free(first) && free(second),
            ffi::SQLITE_CREATE_VTABLE | ffi::SQLITE_DROP_VTABLE => {
                free(first)
                    && second.is_some_and(|module| {
                        MODULES.iter().any(|m| m.eq_ignore_ascii_case(module))
                    })
            }
            ffi::SQLITE_TRANSACTION | ffi::SQLITE_SAVEPOINT => {
                self.transaction_denied.set(true);
                false
            }
            ffi::SQLITE_PRAGMA => first.is_some_and(|name| allows_pragma(name, second)),
            ffi::SQLITE_FUNCTION => {
                second.is_some_and(|name| FUNCTIONS.binary_search(&name).is_ok())
            }
            // ATTACH, DETACH, temporary objects, and whatever a later SQLite adds.
            _ => false,
        }
    }
}

/// Whether a user may name this object.
fn free(name: Option<&str>) -> bool {
    name.is_some_and(|name| !is_reserved(name))
}

/// `_cf_*`, in any case, is ours.
pub(super) fn is_reserved(name: &str) -> bool {
    name.as_bytes().get(..4).is_some_and(|head| head.eq_ignore_ascii_case(b"_cf_"))
}

fn allows_pragma(name: &str, argument: Option<&str>) -> bool {
    let Some((_, takes)) = PRAGMAS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))
    else {
        return false;
    };
    match takes {
        Argument::None => argument.is_none(),
        Argument::Boolean => argument.is_none_or(|value| {
            let value = value.trim_matches(['\'', '"']);
            ["true", "false", "yes", "no", "on", "off", "1", "0"]
                .iter()
                .any(|known| known.eq_ignore_ascii_case(value))
        }),
        Argument::Name => free(argument),
        Argument::OptionalName => argument.is_none() || free(argument),
        Argument::OptionalNumber => argument.is_none_or(|value| {
            let digits = value.strip_prefix("0x").unwrap_or(value).trim_start_matches('-');
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        }),
    }
}

unsafe extern "C" fn authorize(
    user_data: *mut c_void,
    action: c_int,
    first: *const c_char,
    second: *const c_char,
    database: *const c_char,
    _trigger: *const c_char,
) -> c_int {
    // SAFETY: `user_data` is the guard that `install` registered; it outlives the authorizer.
    let guard = unsafe { &*user_data.cast::<Guard>() };
    // SAFETY: SQLite passes NULL or a NUL-terminated string that lives during the call.
    let text = |pointer: *const c_char| unsafe {
        if pointer.is_null() { Some(None) } else { CStr::from_ptr(pointer).to_str().ok().map(Some) }
    };
    // A name that is no UTF-8 cannot be checked, so it is refused.
    let (Some(first), Some(second), Some(database)) = (text(first), text(second), text(database))
    else {
        return ffi::SQLITE_DENY;
    };
    if guard.allows(action, first, second, database) {
        ffi::SQLITE_OK
    } else if action == ffi::SQLITE_ANALYZE {
        // ANALYZE of the whole database asks for each table: ours are left out.
        ffi::SQLITE_IGNORE
    } else {
        ffi::SQLITE_DENY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_list_is_sorted_for_the_binary_search() {
        assert!(FUNCTIONS.is_sorted());
    }

    #[test]
    fn reserved_names_are_known_in_any_case() {
        assert!(is_reserved("_cf_KV") && is_reserved("_CF_x") && is_reserved("_Cf_"));
        assert!(!is_reserved("_c") && !is_reserved("cf_KV") && !is_reserved("x_cf_"));
    }
}
