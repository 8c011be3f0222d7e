//! The bucket: the only thing that nodes share. Six verbs, typed ends, nothing retried in secret.
//!
//! Invariant: a write that has returned is durable; a conditional write has exactly one winner; a
//! read sees one whole object, the newest that was written. [`probe()`] proves it of a store before
//! a node serves on it.
//! Units: sizes, offsets and ranges are bytes.
//!
//! A store has a dialect, and each dialect is one module: `file` is a directory of this machine.
//! Deadlines and attempts belong to the caller.
#![deny(missing_docs)]

mod error;
mod file;
mod key;
mod location;
mod probe;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

pub use celld_core::cas::{CasOutcome, Etag, Guard};
pub use error::{OpenError, StoreError};
pub use key::KEY_BYTES_MAX;
pub use probe::{Check, ProbeFault, ProbeReport, Rule, probe};

use file::FileBucket;

/// Entries of one [`Page`], as on S3.
pub const PAGE_ENTRIES_MAX: usize = 1_000;
/// The largest object that [`Bucket::get`] takes into memory; larger ones are read in ranges.
pub const GET_BYTES_MAX: u64 = 1 << 30;

/// A bucket. Clones share one connection to it.
#[derive(Clone)]
pub struct Bucket(Dialect);

#[derive(Clone)]
enum Dialect {
    File(Arc<FileBucket>),
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
    /// Opens the bucket at `url`: `file:///absolute/path`, percent-encoded. The directory is made
    /// if it is missing. Blocks for some milliseconds: call it before serving.
    ///
    /// # Errors
    /// The URL is not one of a known dialect, or the place cannot be used.
    pub fn open(url: &str) -> Result<Self, OpenError> {
        Self::open_dir(&location::parse(url)?)
    }

    /// Opens the bucket at `url` to look at it: nothing is made, and whatever writes is denied.
    ///
    /// # Errors
    /// As [`Bucket::open`], and when there is no bucket yet.
    pub fn open_read_only(url: &str) -> Result<Self, OpenError> {
        let bucket = FileBucket::open_read_only(&location::parse(url)?)?;
        Ok(Self(Dialect::File(Arc::new(bucket))))
    }

    /// Opens the bucket in the directory `path`, as `file://` does.
    ///
    /// # Errors
    /// The directory cannot be made or used.
    pub fn open_dir(path: &Path) -> Result<Self, OpenError> {
        Ok(Self(Dialect::File(Arc::new(FileBucket::open(path)?))))
    }

    /// The whole object, or `None` when there is none. Small objects that the system has in
    /// memory are read without leaving the thread.
    ///
    /// # Errors
    /// It is not known what the object is; reads may be repeated.
    pub async fn get(&self, key: &str) -> Result<Option<Object>, StoreError> {
        key::check(key)?;
        let Dialect::File(bucket) = &self.0;
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
        let Dialect::File(bucket) = &self.0;
        let (bucket, key) = (bucket.clone(), key.to_owned());
        celld_rt::blocking(move || bucket.get_range(&key, range)).await
    }

    /// Writes an object, whatever was there. Durable when it returns.
    ///
    /// # Errors
    /// The write may have applied or not. The same bytes may be written again.
    pub async fn put(&self, key: &str, body: Bytes) -> Result<Etag, StoreError> {
        key::check(key)?;
        let Dialect::File(bucket) = &self.0;
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
        let Dialect::File(bucket) = &self.0;
        let (bucket, key) = (bucket.clone(), key.to_owned());
        celld_rt::blocking(move || bucket.put_if(&key, &guard, &body)).await
    }

    /// The objects whose keys start with `prefix` and come behind `after`, in byte order.
    ///
    /// # Errors
    /// The listing is not known; reads may be repeated.
    pub async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Page, StoreError> {
        key::check_prefix(prefix)?;
        let Dialect::File(bucket) = &self.0;
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
        let Dialect::File(bucket) = &self.0;
        let (bucket, keys) = (bucket.clone(), keys.to_vec());
        celld_rt::blocking(move || bucket.delete(&keys)).await
    }
}

/// Its URL.
impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Dialect::File(bucket) => f.write_str(&location::url_of(bucket.root())),
        }
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({self})")
    }
}
