//! Objects piece by piece, in both directions: for what is larger than memory should hold.
//!
//! Invariants: a [`Reader`] gives the bytes of one version, in their order and all of them, or ends
//! with an error. What a [`Writer`] was given is an object once [`Writer::finish`] has returned; of
//! one that failed or was dropped nothing is seen, and nothing stays but by the end of the process.
//! Memory: a reader holds three pieces at most, a writer six.
//! Units: bytes.

use bytes::Bytes;
use celld_core::cas::Etag;

use crate::error::StoreError;
use crate::file::{FileReader, FileWriter};
use crate::remote::{RemoteReader, RemoteWriter};
use crate::{Bucket, Dialect, key};

/// The bytes of an object, one piece after the other. They are read ahead of whoever takes them.
pub struct Reader(Source);

enum Source {
    File(FileReader),
    Remote(RemoteReader),
}

/// An object that is being written.
pub struct Writer(Sink);

enum Sink {
    // Large, for the state of a checksum.
    File(Box<FileWriter>),
    Remote(RemoteWriter),
}

impl Bucket {
    /// Reads an object piece by piece; `None`: there is none. It is the version of this moment: if
    /// another takes its place before the end, the reader may fail, and never mixes them.
    ///
    /// # Errors
    /// It is not known what the object is; reads may be repeated.
    pub async fn reader(&self, key: &str) -> Result<Option<Reader>, StoreError> {
        key::check(key)?;
        match &self.dialect {
            Dialect::File(bucket) => {
                let (bucket, key) = (bucket.clone(), key.to_owned());
                let reader = celld_rt::blocking(move || bucket.reader(&key)).await?;
                Ok(reader.map(|reader| Reader(Source::File(reader))))
            }
            Dialect::Remote(remote) => {
                let reader = self.call(remote, key).reader().await?;
                Ok(reader.map(|reader| Reader(Source::Remote(reader))))
            }
        }
    }

    /// Begins an object that arrives piece by piece, and replaces whatever is there when it is
    /// finished. Nothing is asked of a store yet.
    ///
    /// # Errors
    /// The key breaks the rules of keys, or the bucket is open for reading only.
    pub async fn writer(&self, key: &str) -> Result<Writer, StoreError> {
        key::check(key)?;
        match &self.dialect {
            Dialect::File(bucket) => {
                let (bucket, key) = (bucket.clone(), key.to_owned());
                let writer = celld_rt::blocking(move || FileWriter::begin(bucket, key)).await?;
                Ok(Writer(Sink::File(Box::new(writer))))
            }
            Dialect::Remote(remote) => {
                Ok(Writer(Sink::Remote(RemoteWriter::begin(&self.call(remote, key))?)))
            }
        }
    }
}

impl Reader {
    /// How many bytes there are in all.
    pub fn size(&self) -> u64 {
        match &self.0 {
            Source::File(file) => file.size(),
            Source::Remote(remote) => remote.size(),
        }
    }

    /// The version that is read.
    pub fn etag(&self) -> &Etag {
        match &self.0 {
            Source::File(file) => file.etag(),
            Source::Remote(remote) => remote.etag(),
        }
    }

    /// The next bytes, at least one; `None`: those were all. May be dropped while it waits, and
    /// asked again.
    ///
    /// # Errors
    /// The rest of this version cannot be had: read the object anew, from its start.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        match &mut self.0 {
            Source::File(file) => file.next().await,
            Source::Remote(remote) => remote.next().await,
        }
    }
}

impl Writer {
    /// Takes more bytes of the object. Waits while too many are on their way. One that was dropped
    /// while it waited spoils the object: it cannot be finished any more.
    ///
    /// # Errors
    /// The object cannot be written; begin it anew.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        match &mut self.0 {
            Sink::File(file) => file.write(bytes).await,
            Sink::Remote(remote) => remote.write(bytes).await,
        }
    }

    /// The object has all of its bytes. Durable when it returns.
    ///
    /// # Errors
    /// The object may have been written or not. The same bytes may be written again.
    pub async fn finish(self) -> Result<Etag, StoreError> {
        match self.0 {
            Sink::File(file) => file.finish().await,
            Sink::Remote(remote) => remote.finish().await,
        }
    }
}

/// What is said of a writer one of whose writes was given up half-way.
pub(crate) fn spoilt(key: &str) -> StoreError {
    let source = std::io::Error::other("a part of it was lost on our side, begin it anew");
    StoreError::Unreachable { key: key.to_owned(), source }
}
