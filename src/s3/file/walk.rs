//! The listing of a directory tree in the byte order of its keys.
//!
//! Invariant: a directory is read only when a key in it may belong to the page. What vanishes
//! during the walk is left out; what stays is listed exactly once.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::path::{self, Kind, Name};
use crate::{Entry, PAGE_ENTRIES_MAX, Page};

/// A directory on the way to where the walk is.
struct Level {
    path: PathBuf,
    /// What the keys in it start with.
    key: Vec<u8>,
    /// What is still to be visited, the last one first.
    children: Vec<Child>,
}

struct Child {
    file_name: std::ffi::OsString,
    name: Name,
}

struct Wanted<'a> {
    prefix: &'a [u8],
    after: Option<&'a [u8]>,
}

/// One page of the keys below `root` that start with `prefix` and come behind `after`.
pub(super) fn page(root: &Path, prefix: &str, after: Option<&str>) -> io::Result<Page> {
    let wanted = Wanted { prefix: prefix.as_bytes(), after: after.map(str::as_bytes) };
    let (start, known) = path::of_prefix(prefix);
    let mut page = Page::default();
    let mut way = vec![open(root.join(start), wanted.prefix[..known].to_vec(), &wanted)?];
    while let Some(level) = way.last_mut() {
        let Some(child) = level.children.pop() else {
            way.pop();
            continue;
        };
        let path = level.path.join(&child.file_name);
        let key = [level.key.as_slice(), &child.name.bytes].concat();
        match child.name.kind {
            Kind::Directory => way.push(open(path, key, &wanted)?),
            Kind::Object => {
                let Some(size) = size_of(&path)? else { continue };
                let Ok(key) = String::from_utf8(key) else { continue };
                if page.entries.len() == PAGE_ENTRIES_MAX {
                    page.more = true;
                    return Ok(page);
                }
                page.entries.push(Entry { key, size });
            }
        }
    }
    Ok(page)
}

/// Reads a directory, keeping what may have keys of the page, in the reverse of their order.
fn open(path: PathBuf, key: Vec<u8>, wanted: &Wanted<'_>) -> io::Result<Level> {
    let mut children = Vec::new();
    let entries = match fs::read_dir(&path) {
        Ok(entries) => Some(entries),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    for entry in entries.into_iter().flatten() {
        let file_name = entry?.file_name();
        let Some(name) = path::read(file_name.as_bytes()) else { continue };
        if wanted.may_have(&[key.as_slice(), &name.bytes].concat(), name.kind) {
            children.push(Child { file_name, name });
        }
    }
    children
        .sort_unstable_by(|a, b| (&b.name.bytes, b.name.kind).cmp(&(&a.name.bytes, a.name.kind)));
    Ok(Level { path, key, children })
}

impl Wanted<'_> {
    /// Whether the object `key`, or a key in the directory `key`, may belong to the page.
    fn may_have(&self, key: &[u8], kind: Kind) -> bool {
        let inside = kind == Kind::Directory;
        let begins = key.starts_with(self.prefix) || inside && self.prefix.starts_with(key);
        begins && self.after.is_none_or(|after| key > after || inside && after.starts_with(key))
    }
}

/// The length of an object; `None` when it has vanished or is not a file.
fn size_of(path: &Path) -> io::Result<Option<u64>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.is_file().then_some(metadata.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
