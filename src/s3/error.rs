//! How the bucket fails. A variant exists where the caller acts differently; its text names the
//! key, what happened, and what to do.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Why a bucket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not one that we read.
    #[error(
        "the bucket's URL {url:?} {what}; write s3://NAME[/PREFIX], gs://NAME[/PREFIX], \
         az://CONTAINER[/PREFIX] or file:///absolute/path"
    )]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The URL is sound, and what stands beside it is not: endpoint, region, files, environment.
    #[error("the bucket {url}: {what}")]
    Option {
        /// The bucket.
        url: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The directory cannot be made, read or written.
    #[error("the bucket's directory {path}: cannot {doing}: {source}; check its owner and space")]
    Directory {
        /// The directory.
        path: String,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The directory was written by a version with another layout.
    #[error(
        "the bucket's directory {path} has the layout {found:?} and this version knows {known:?}; \
         use the version that wrote it"
    )]
    Layout {
        /// The directory.
        path: String,
        /// What it says.
        found: String,
        /// What we write.
        known: &'static str,
    },
}

/// Why a verb did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The key breaks the rules of keys. The caller has a fault; repeating changes nothing.
    #[error("the key {key:?} {what}; choose another key")]
    BadKey {
        /// As it was given, shortened.
        key: String,
        /// The rule that it breaks.
        what: &'static str,
    },
    /// Only of `get_range`: there is no such object.
    #[error("{key}: there is no such object; list again, it may have been compacted away")]
    Missing {
        /// The object.
        key: String,
    },
    /// Only of `get_range`: the object does not have all of these bytes. What said that it has is
    /// wrong.
    #[error(
        "{key}: the bytes {}..{} were wanted and the object has {size}; it is truncated or its \
         index is wrong",
        wanted.start, wanted.end
    )]
    Range {
        /// The object.
        key: String,
        /// The bytes that were wanted.
        wanted: Range<u64>,
        /// The length of the object.
        size: u64,
    },
    /// Of a read: too large for memory; read it in ranges. Of a writer: more than stores take in
    /// parts.
    #[error("{key}: the object has {size} bytes or more, too many at once; read it in ranges")]
    TooLarge {
        /// The object.
        key: String,
        /// Its length.
        size: u64,
    },
    /// Wait (as long as the store said, if it did) and repeat.
    #[error("{key}: the bucket cannot take more now: {source}; wait and repeat")]
    Throttled {
        /// The object.
        key: String,
        /// What the store asked for.
        after: Option<Duration>,
        /// What was said.
        source: io::Error,
    },
    /// No answer, or a fault on the way. Reads may be repeated; a plain write too, with the same
    /// bytes.
    #[error("{key}: the bucket does not answer: {source}; repeat, and check the disk or network")]
    Unreachable {
        /// The object.
        key: String,
        /// What was said.
        source: io::Error,
    },
    /// No space. Nothing was written; an operator must make room.
    #[error("{key}: the bucket is full: {source}; free space or raise its quota")]
    Full {
        /// The object.
        key: String,
        /// What was said.
        source: io::Error,
    },
    /// Not allowed. An operator must act.
    #[error("{key}: the bucket denies access: {source}; give this process read and write rights")]
    Denied {
        /// The object.
        key: String,
        /// What was said.
        source: io::Error,
    },
    /// The bucket broke its contract: nothing that it says can be trusted. Stop the node.
    #[error("{key}: the bucket broke its contract: {what}; stop this node and check the store")]
    Broken {
        /// The object.
        key: String,
        /// What it did.
        what: String,
    },
}

impl StoreError {
    /// What an error of the file system means to the caller.
    pub(crate) fn of(key: &str, source: io::Error) -> Self {
        let key = key.to_owned();
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Self::Full { key, source },
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => Self::Denied { key, source },
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::ENOLCK) => {
                Self::Throttled { key, after: None, source }
            }
            Some(libc::EISDIR | libc::ENOTDIR | libc::ELOOP | libc::ENOENT) => {
                Self::Broken { key, what: format!("its directory was changed by others: {source}") }
            }
            _ => Self::Unreachable { key, source },
        }
    }
}

impl OpenError {
    pub(crate) fn directory(path: &Path, doing: &'static str, source: io::Error) -> Self {
        Self::Directory { path: path.display().to_string(), doing, source }
    }
}
