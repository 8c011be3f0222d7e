//! Where the object of a key lies below the bucket's directory.
//!
//! The last byte of a name tells what it is, so that the object `a` lies beside the directory of
//! `a/b`, and no other byte needs an escape:
//!
//! | name | is |
//! | --- | --- |
//! | `own.json` | the object with this last segment |
//! | `cells@` | the directory of a segment that goes on with a slash |
//! | `aaa…aaa^` | the directory of a segment's first 250 bytes, when it has that many |
//! | `a@=`, `a^=`, `a==`, `=` | an object whose (rest of a) segment ends in such a sign, or is empty |
//!
//! Invariant: key and path determine each other, and no path leaves the directory (keys have no
//! `.` and `..`). Of two neighbours in a directory neither begins the other, but for an object and
//! the directory of the same segment: so a walk in the order of [`Name::bytes`] is a walk in the
//! byte order of the keys.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// File systems take 255 bytes for a name; a piece needs one for its sign.
pub(crate) const PIECE_BYTES: usize = 250;
/// Our own directory: `=` behind a letter is not the end of any name above.
pub(crate) const CONTROL: &str = ".celld=";

const DIRECTORY: u8 = b'@';
const PIECE: u8 = b'^';
const OBJECT: u8 = b'=';

/// What a name in a directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Object,
    Directory,
}

/// A name, and the bytes that it adds to the key of its directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// With the slash when the segment ends here and the key goes on.
    pub(crate) bytes: Vec<u8>,
    pub(crate) kind: Kind,
}

/// The path of a checked key, relative to the bucket.
pub(crate) fn object(key: &str) -> PathBuf {
    let mut path = Vec::with_capacity(key.len() + 16);
    let (directories, last) = match key.rsplit_once('/') {
        Some((directories, last)) => (Some(directories), last),
        None => (None, key),
    };
    if let Some(directories) = directories {
        push_directories(&mut path, directories);
    }
    let rest = push_pieces(&mut path, last.as_bytes());
    path.extend_from_slice(rest);
    if matches!(rest.last(), None | Some(&(DIRECTORY | PIECE | OBJECT))) {
        path.push(OBJECT);
    }
    PathBuf::from(OsString::from_vec(path))
}

/// The deepest directory that holds all keys with `prefix`, and how many bytes of the prefix it
/// stands for.
pub(crate) fn of_prefix(prefix: &str) -> (PathBuf, usize) {
    let mut path = Vec::with_capacity(prefix.len() + 16);
    let last = match prefix.rsplit_once('/') {
        Some((directories, last)) => {
            push_directories(&mut path, directories);
            last
        }
        None => prefix,
    };
    let rest = push_pieces(&mut path, last.as_bytes());
    (PathBuf::from(OsString::from_vec(path)), prefix.len() - rest.len())
}

/// Reads a name back; `None` for one that we never give.
pub(crate) fn read(name: &[u8]) -> Option<Name> {
    let (&sign, rest) = name.split_last()?;
    let (bytes, kind) = match sign {
        DIRECTORY if rest.len() < PIECE_BYTES => ([rest, b"/"].concat(), Kind::Directory),
        PIECE if rest.len() == PIECE_BYTES => (rest.to_vec(), Kind::Directory),
        OBJECT if matches!(rest.last(), None | Some(&(DIRECTORY | PIECE | OBJECT))) => {
            (rest.to_vec(), Kind::Object)
        }
        DIRECTORY | PIECE | OBJECT => return None,
        _ if name.len() < PIECE_BYTES => (name.to_vec(), Kind::Object),
        _ => return None,
    };
    Some(Name { bytes, kind })
}

fn push_directories(path: &mut Vec<u8>, key: &str) {
    for segment in key.split('/') {
        let rest = push_pieces(path, segment.as_bytes());
        path.extend_from_slice(rest);
        path.extend_from_slice(&[DIRECTORY, b'/']);
    }
}

/// Splits by a fixed number of bytes, and at exactly that number too: this is what keeps the order
/// of the walk. What is left is shorter than a piece.
fn push_pieces<'a>(path: &mut Vec<u8>, mut segment: &'a [u8]) -> &'a [u8] {
    while let Some((piece, rest)) = segment.split_at_checked(PIECE_BYTES) {
        path.extend_from_slice(piece);
        path.extend_from_slice(&[PIECE, b'/']);
        segment = rest;
    }
    segment
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::{Component, Path};

    use super::*;

    fn keys() -> Vec<String> {
        let piece = "p".repeat(PIECE_BYTES);
        let mut keys: Vec<String> = [
            "a",
            "a/b",
            "a@",
            "a@/b",
            "a=",
            "a==",
            "a@=",
            "a^",
            "=",
            "@",
            "^",
            "@/@",
            "^/a",
            ".a",
            "...",
            "é",
            "a b",
            "%2F",
            "+",
            ".celld=",
            ".celld=/tmp",
            "\u{1}",
            "\\",
            "a\n",
        ]
        .map(String::from)
        .into();
        for tail in ["", "/x", "!", "a", "@", "=", "^", "é/x"] {
            keys.push(format!("{piece}{tail}"));
            keys.push(format!("{piece}{piece}{tail}"));
            keys.push(format!("{}{tail}", &piece[1..]));
        }
        keys
    }

    #[test]
    fn key_and_path_determine_each_other() {
        let keys = keys();
        let mut paths = std::collections::BTreeSet::new();
        for key in &keys {
            let path = object(key);
            assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{key:?}");
            assert!(!path.starts_with(CONTROL), "{key:?}");
            let mut back = Vec::new();
            for part in &path {
                assert!(part.len() <= 255);
                back.extend(read(part.as_bytes()).expect("our own name").bytes);
            }
            assert_eq!(String::from_utf8(back).as_ref(), Ok(key));
            assert!(paths.insert(path), "{key:?} has the path of another key");
        }
        for key in &keys {
            // No object is a directory of another one.
            assert!(
                paths.iter().all(|path| path == &object(key) || !path.starts_with(object(key)))
            );
        }
    }

    #[test]
    fn names_that_we_never_give_are_not_read() {
        for name in ["", CONTROL, "a=", "p^", &"p".repeat(PIECE_BYTES)] {
            assert_eq!(read(name.as_bytes()), None, "{name:?}");
        }
    }

    #[test]
    fn a_prefix_leads_to_the_directory_that_holds_all_of_its_keys() {
        assert_eq!(of_prefix(""), (PathBuf::new(), 0));
        assert_eq!(of_prefix("a"), (PathBuf::new(), 0));
        assert_eq!(of_prefix("a/b/c"), (PathBuf::from("a@/b@/"), 4));
        for key in keys() {
            for (at, _) in key.char_indices() {
                let (path, _) = of_prefix(&key[..at]);
                let path = path.as_os_str().as_bytes().strip_suffix(b"/").unwrap_or_default();
                let path = Path::new(std::ffi::OsStr::from_bytes(path));
                assert!(object(&key).starts_with(path), "{key:?} {at}");
            }
        }
    }
}
