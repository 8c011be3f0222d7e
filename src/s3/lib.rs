//! The bucket: the only thing that nodes share. Six verbs, typed ends, nothing retried in secret.
//!
//! Invariant: a write that has returned is durable; a conditional write has exactly one winner; a
//! read sees one whole object, the newest that was written. [`probe()`] proves it of a store before
//! a node serves on it.
//! Units: sizes, offsets and ranges are bytes.
//!
//! A store has a dialect, and each dialect is one module: `file` is a directory of this machine,
//! `remote` are stores that speak HTTP. Deadlines and attempts belong to the caller.
#![deny(missing_docs)]
// It panics when stderr is gone: `log!` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod error;
mod file;
mod key;
mod location;
mod options;
mod probe;
mod remote;
mod stream;

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

pub use celld_core::cas::{CasOutcome, Etag, Guard};
pub use error::{OpenError, StoreError};
pub use key::KEY_BYTES_MAX;
pub use options::{Lane, Limits, OpenOptions, StaticKeys};
pub use probe::{Check, ProbeFault, ProbeReport, Rule, probe};
pub use remote::{StoreMetrics, VERBS, Verb};
pub use stream::{Reader, Writer};

use file::FileBucket;
use location::Location;
use remote::{Call, Remote};

/// Entries of one [`Page`], as on S3.
pub const PAGE_ENTRIES_MAX: usize = 1_000;
/// The largest object that [`Bucket::get`] takes into memory; larger ones are read in ranges, or by
/// [`Bucket::reader`].
pub const GET_BYTES_MAX: u64 = 1 << 30;

/// A bucket. Clones share all that is known about it; each executor has connections of its own.
#[derive(Clone)]
pub struct Bucket {
    dialect: Dialect,
    lane: Lane,
    limits: Limits,
}

#[derive(Clone)]
enum Dialect {
    File(Arc<FileBucket>),
    Remote(Arc<Remote>),
}

/// A whole object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its bytes.
    pub body: Bytes,
    /// Its version: what [`Guard::Match`] takes.
    pub etag: Etag,
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its whole key.
    pub key: String,
    /// Its length.
    pub size: u64,
}

/// A part of a listing, in byte order of the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// [`PAGE_ENTRIES_MAX`] at most.
    pub entries: Vec<Entry>,
    /// There are more keys behind the last entry: list again after it.
    pub more: bool,
}

impl Bucket {
    /// Opens the bucket at `url`, with what the environment says about stores.
    ///
    /// # Errors
    /// As [`Bucket::open_with`].
    pub fn open(url: &str) -> Result<Self, OpenError> {
        Self::open_with(url, &OpenOptions::from_environment())
    }

    /// Opens the bucket at `url`: `s3://NAME[/PREFIX]`, `gs://…`, `az://…`, or
    /// `file:///absolute/path`, percent-encoded. A directory is made if it is missing; a store is
    /// not asked for anything yet. Blocks for some milliseconds: call it before serving.
    ///
    /// # Errors
    /// The URL is not one of a known dialect, the options make no sense, or the place cannot be
    /// used.
    pub fn open_with(url: &str, options: &OpenOptions) -> Result<Self, OpenError> {
        match location::parse(url)? {
            Location::Directory(path) => Self::open_dir(&path),
            Location::Remote(location) => Ok(Self::remote(Remote::open(&location, options)?)),
        }
    }

    /// Opens the bucket at `url` to look at it: nothing is made, and whatever writes is denied.
    ///
    /// # Errors
    /// As [`Bucket::open_with`], and when the directory of `file:` is no bucket yet.
    pub fn open_read_only(url: &str, options: &OpenOptions) -> Result<Self, OpenError> {
        match location::parse(url)? {
            Location::Directory(path) => {
                Ok(Self::new(Dialect::File(Arc::new(FileBucket::open_read_only(&path)?))))
            }
            Location::Remote(location) => {
                Ok(Self::remote(Remote::open(&location, options)?.read_only()))
            }
        }
    }

    /// Opens the bucket in the directory `path`, as `file://` does.
    ///
    /// # Errors
    /// The directory cannot be made or used.
    pub fn open_dir(path: &Path) -> Result<Self, OpenError> {
        Ok(Self::new(Dialect::File(Arc::new(FileBucket::open(path)?))))
    }

    fn remote(remote: Remote) -> Self {
        Self::new(Dialect::Remote(Arc::new(remote)))
    }

    fn new(dialect: Dialect) -> Self {
        Self { dialect, lane: Lane::default(), limits: Limits::default() }
    }

    /// The same bucket over the connections of `lane`.
    #[must_use]
    pub fn lane(&self, lane: Lane) -> Self {
        Self { lane, ..self.clone() }
    }

    /// The same bucket, each verb of which ends within `limits`. A directory knows no limits.
    #[must_use]
    pub fn with_limits(&self, limits: Limits) -> Self {
        Self { limits, ..self.clone() }
    }

    /// Opens this executor's connections of this lane ahead of the requests that will want them;
    /// from then on they are kept open. Returns how many there are.
    ///
    /// # Errors
    /// The store cannot be reached.
    pub async fn warm(&self) -> io::Result<usize> {
        match &self.dialect {
            Dialect::File(_) => Ok(0),
            Dialect::Remote(remote) => remote.warm(self.lane).await,
        }
    }

    /// The store's clock less ours, in milliseconds, as its answers tell. `None`: nothing is known
    /// yet, or it is a directory.
    pub fn clock_offset_ms(&self) -> Option<i64> {
        match &self.dialect {
            Dialect::File(_) => None,
            Dialect::Remote(remote) => remote.clock_offset_ms(),
        }
    }

    /// What was asked of the store since the bucket was opened. All zero for a directory.
    pub fn metrics(&self) -> StoreMetrics {
        match &self.dialect {
            Dialect::File(_) => StoreMetrics::default(),
            Dialect::Remote(remote) => remote.metrics(),
        }
    }

    /// From now on, versions are sent without their quotes: some stores find no version otherwise.
    /// For who has tried it.
    pub fn set_bare_etags(&self) {
        match &self.dialect {
            Dialect::File(_) => {}
            Dialect::Remote(remote) => remote.set_bare_etags(),
        }
    }

    /// From now on, the store is taken to list in byte order, over pages too: long listings cost
    /// fewer requests. For who has tried it.
    pub fn trust_list_order(&self) {
        match &self.dialect {
            Dialect::File(_) => {}
            Dialect::Remote(remote) => remote.trust_list_order(),
        }
    }

    /// Finds out whether the store lists in byte order, by keys below `prefix` of which a tree of
    /// directories would list another first.
    pub(crate) async fn learn_list_order(&self, prefix: &str) -> Result<(), StoreError> {
        match &self.dialect {
            Dialect::File(_) => Ok(()),
            Dialect::Remote(remote) => self.call(remote, prefix).learn_order().await,
        }
    }

    fn call<'a>(&self, remote: &'a Arc<Remote>, key: &'a str) -> Call<'a> {
        Call { remote, lane: self.lane, limits: self.limits, key }
    }

    /// The whole object, or `None` when there is none. Small objects that the system has in
    /// memory are read without leaving the thread.
    ///
    /// # Errors
    /// It is not known what the object is; reads may be repeated.
    pub async fn get(&self, key: &str) -> Result<Option<Object>, StoreError> {
        key::check(key)?;
        let bucket = match &self.dialect {
            Dialect::File(bucket) => bucket,
            Dialect::Remote(remote) => return self.call(remote, key).get().await,
        };
        if let Some(known) = bucket.get_cached(key) {
            return known;
        }
        let (bucket, key) = (bucket.clone(), key.to_owned());
        celld_rt::blocking(move || bucket.get(&key)).await
    }

    /// Exactly the bytes `range` of an object.
    ///
    /// # Errors
    /// [`StoreError::Missing`] without an object, [`StoreError::Range`] when it has not all of
    /// these bytes; otherwise as [`Bucket::get`].
    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        key::check(key)?;
        let bucket = match &self.dialect {
            Dialect::File(bucket) => bucket,
            Dialect::Remote(remote) => return self.call(remote, key).get_range(range).await,
        };
        let (bucket, key) = (bucket.clone(), key.to_owned());
        celld_rt::blocking(move || bucket.get_range(&key, range)).await
    }

    /// Writes an object, whatever was there. Durable when it returns.
    ///
    /// # Errors
    /// The write may have applied or not. The same bytes may be written again.
    pub async fn put(&self, key: &str, body: Bytes) -> Result<Etag, StoreError> {
        key::check(key)?;
        let bucket = match &self.dialect {
            Dialect::File(bucket) => bucket,
            Dialect::Remote(remote) => return self.call(remote, key).put(body).await,
        };
        let (bucket, key) = (bucket.clone(), key.to_owned());
        celld_rt::blocking(move || bucket.put(&key, &body)).await
    }

    /// Writes `body` if the object still is what `guard` says. Durable when it has applied.
    ///
    /// # Errors
    /// The write did not apply. No answer is `Ok(CasOutcome::Unknown)`, not an error.
    pub async fn put_if(
        &self,
        key: &str,
        guard: Guard,
        body: Bytes,
    ) -> Result<CasOutcome, StoreError> {
        key::check(key)?;
        let bucket = match &self.dialect {
            Dialect::File(bucket) => bucket,
            Dialect::Remote(remote) => return self.call(remote, key).put_if(&guard, body).await,
        };
        let (bucket, key) = (bucket.clone(), key.to_owned());
        celld_rt::blocking(move || bucket.put_if(&key, &guard, &body)).await
    }

    /// The objects whose keys start with `prefix` and come behind `after`, in byte order.
    ///
    /// # Errors
    /// The listing is not known; reads may be repeated.
    pub async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Page, StoreError> {
        key::check_prefix(prefix)?;
        let bucket = match &self.dialect {
            Dialect::File(bucket) => bucket,
            Dialect::Remote(remote) => return self.call(remote, prefix).list(after).await,
        };
        let (bucket, prefix, after) =
            (bucket.clone(), prefix.to_owned(), after.map(ToOwned::to_owned));
        celld_rt::blocking(move || bucket.list(&prefix, after.as_deref())).await
    }

    /// Deletes objects; those that are not there count as deleted. Durable when it returns.
    ///
    /// # Errors
    /// Some of them may be deleted and others not; deleting may be repeated.
    pub async fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        keys.iter().try_for_each(|key| key::check(key))?;
        let bucket = match &self.dialect {
            Dialect::File(bucket) => bucket,
            Dialect::Remote(remote) => {
                return self
                    .call(remote, keys.first().map_or("", String::as_str))
                    .delete(keys)
                    .await;
            }
        };
        let (bucket, keys) = (bucket.clone(), keys.to_vec());
        celld_rt::blocking(move || bucket.delete(&keys)).await
    }
}

/// Its URL.
impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.dialect {
            Dialect::File(bucket) => f.write_str(&location::url_of(bucket.root())),
            Dialect::Remote(remote) => f.write_str(remote.url()),
        }
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({self})")
    }
}
