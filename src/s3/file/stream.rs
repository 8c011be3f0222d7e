//! Objects of a directory, piece by piece.
//!
//! A reader keeps the object's file open: objects are never changed in place, so all of its pieces
//! are of one version, whatever takes its place meanwhile. A writer fills a draft, as all writes do.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use celld_core::cas::Etag;
use crc_fast::{CrcAlgorithm, Digest};

use super::scratch::Draft;
use super::{FileBucket, StoreError, etag_of};
use crate::stream::spoilt;

/// Of one read. Large enough that the way to another thread is small beside it.
const PIECE_BYTES: u64 = 1 << 20;

/// See the module.
pub(crate) struct FileReader {
    key: String,
    file: Arc<File>,
    size: u64,
    etag: Etag,
    at: u64,
}

impl FileBucket {
    pub(crate) fn reader(&self, key: &str) -> Result<Option<FileReader>, StoreError> {
        self.check_failed(key)?;
        let Some((file, size)) = self.open_object(key)? else { return Ok(None) };
        // The version is a sum of all bytes, so they are read twice.
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        let mut at = 0;
        while at < size {
            let piece = piece(&file, at, size).map_err(|error| StoreError::of(key, error))?;
            digest.update(&piece);
            at += piece.len() as u64;
        }
        let etag = etag_of(digest.finalize(), size);
        Ok(Some(FileReader { key: key.to_owned(), file: Arc::new(file), size, etag, at: 0 }))
    }
}

impl FileReader {
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn etag(&self) -> &Etag {
        &self.etag
    }

    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.at == self.size {
            return Ok(None);
        }
        let (file, at, size) = (self.file.clone(), self.at, self.size);
        let read = celld_rt::blocking(move || piece(&file, at, size)).await;
        let read = read.map_err(|error| StoreError::of(&self.key, error))?;
        self.at += read.len() as u64;
        Ok(Some(read.into()))
    }
}

/// The bytes from `at` on, up to a piece.
fn piece(file: &File, at: u64, size: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; PIECE_BYTES.min(size - at) as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// See the module.
pub(crate) struct FileWriter {
    bucket: Arc<FileBucket>,
    key: String,
    /// Away while it is written to.
    filling: Option<Filling>,
}

struct Filling {
    file: File,
    draft: Draft,
    digest: Digest,
    size: u64,
}

impl FileWriter {
    pub fn begin(bucket: Arc<FileBucket>, key: String) -> Result<Self, StoreError> {
        bucket.check_failed(&key)?;
        let draft = bucket.scratch(&key)?.draft();
        let (file, draft) = draft.map_err(|error| StoreError::of(&key, error))?;
        let digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        Ok(Self { bucket, key, filling: Some(Filling { file, draft, digest, size: 0 }) })
    }

    pub async fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        let mut filling = self.filling.take().ok_or_else(|| spoilt(&self.key))?;
        let written = celld_rt::blocking(move || {
            filling.file.write_all(&bytes)?;
            filling.digest.update(&bytes);
            filling.size += bytes.len() as u64;
            Ok(filling)
        });
        let written: std::io::Result<Filling> = written.await;
        self.filling = Some(written.map_err(|error| StoreError::of(&self.key, error))?);
        Ok(())
    }

    pub async fn finish(self) -> Result<Etag, StoreError> {
        let Self { bucket, key, filling } = self;
        let Some(filling) = filling else { return Err(spoilt(&key)) };
        celld_rt::blocking(move || {
            let Filling { file, mut draft, digest, size } = filling;
            bucket.write_out(&file).map_err(|error| StoreError::of(&key, error))?;
            bucket.replace(&key, &mut draft)?;
            Ok(etag_of(digest.finalize(), size))
        })
        .await
    }
}
