//! The rules of keys, the same on every store.
//!
//! Invariant: a checked key is 1 to 1,024 bytes of UTF-8 whose segments between slashes are
//! neither empty nor `.` nor `..`, and it has no NUL. All else is allowed.

use crate::error::StoreError;

/// The limit of S3.
pub const KEY_BYTES_MAX: usize = 1_024;

/// Checks a whole key.
pub(crate) fn check(key: &str) -> Result<(), StoreError> {
    let what = if key.is_empty() {
        "is empty"
    } else {
        match fault(key, key.split('/')) {
            Some(what) => what,
            None => return Ok(()),
        }
    };
    Err(bad(key, what))
}

/// Checks a prefix: a key, or the beginning of one.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), StoreError> {
    // The last segment may go on, so it may be anything.
    let whole = prefix.rsplit_once('/').map(|(whole, _)| whole.split('/'));
    match fault(prefix, whole.into_iter().flatten()) {
        Some(what) => Err(bad(prefix, what)),
        None => Ok(()),
    }
}

fn fault<'a>(text: &str, mut segments: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    if text.len() > KEY_BYTES_MAX {
        Some("is longer than 1,024 bytes")
    } else if text.contains('\0') {
        Some("has a NUL")
    } else if segments.any(|segment| matches!(segment, "" | "." | "..")) {
        Some("has an empty segment, `.` or `..`")
    } else {
        None
    }
}

fn bad(key: &str, what: &'static str) -> StoreError {
    // Enough to find it by; a key of a megabyte does not belong into a log.
    StoreError::BadKey { key: key.chars().take(100).collect(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_a_store_could_read_otherwise_are_refused() {
        let long = "k".repeat(1_025);
        for key in ["", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "../a", "a/..", "a\0", &long] {
            assert!(check(key).is_err(), "{key:?}");
        }
        for key in ["a", "a/b", "...", ".a", "a b", "%2F", "+", "é/ü", &long[1..]] {
            assert!(check(key).is_ok(), "{key:?}");
        }
    }

    #[test]
    fn a_prefix_may_end_anywhere_in_a_key() {
        for prefix in ["", "a", "a/", "a/.", "a/..", "."] {
            assert!(check_prefix(prefix).is_ok(), "{prefix:?}");
        }
        for prefix in ["/", "a//", "../a", "a/../", "a\0"] {
            assert!(check_prefix(prefix).is_err(), "{prefix:?}");
        }
    }
}
