//! The dialect `file://`: a bucket in a directory, shared by the processes of one machine.
//!
//! A write goes into a draft, the draft's bytes go to the disk, a rename makes it the object, and
//! a flush of the directory makes that last. What each step is for:
//!
//! 1. `open`, `write`, `close`: the draft, in a directory of our own on the same file system.
//! 2. `sync_file_range`, or `fdatasync` without an ordered journal: the bytes must be on the disk
//!    before a name leads to them, else a crash of the machine could show an empty object.
//! 3. `open`, `fcntl(F_OFD_SETLKW)`, `rename`, `close`: the rename replaces the object in one
//!    step. The lock of the key is held by everything that changes it, plain writes too: a write
//!    between the check and the rename of a conditional one would be lost unseen.
//! 4. `open`, `fsync`, `close`: the directory. With an ordered journal this is the only flush of
//!    the disk in the whole write, and it carries new directories above it too. Without one, each
//!    directory above is flushed too until one is known to last (another process may have made it
//!    and died): in the long run one flush for the bytes and one for the name.
//!
//! Invariants: objects are never changed in place, so who has one open reads all of it. An object
//! may be seen in the instant between its rename and the flush; with an ordered journal, what is
//! written after having seen it cannot outlive it.
//!
//! After a flush has failed, the disk and the system's memory may differ for good, and a read
//! would show what a restart loses: every verb fails from then on.

mod path;
mod scratch;
mod stream;
mod sys;
mod walk;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use celld_core::cas::{CasOutcome, Etag, Guard};
use crc_fast::CrcAlgorithm;

use crate::error::{OpenError, StoreError};
use crate::{GET_BYTES_MAX, Object, Page};
use scratch::{Draft, Scratch};
pub(crate) use stream::{FileReader, FileWriter};
use sys::{Cached, Identity, Journal};

/// Read without leaving the thread up to this size: copying it costs 10 µs, as much as the way to
/// another thread and back.
const CACHED_BYTES_MAX: u64 = 64 << 10;
/// First line of the layout file. Another layout gets another number.
const LAYOUT: &str = "celld file bucket 1\n";
/// A deleter may remove an empty directory just before something is renamed into it. It must win
/// this often in a row to stop a write.
const RENAME_TRIES: usize = 100;
/// Remembered directories: some 150 bytes each. Past it all are forgotten, which costs flushes.
const LASTING_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(crate) struct FileBucket {
    root: PathBuf,
    locks: PathBuf,
    /// `None`: it was opened to be read only.
    scratch: Option<Scratch>,
    journal: Journal,
    /// Directories that are known to last, with all above them. Only without an ordered journal.
    lasting: Mutex<HashMap<PathBuf, Identity>>,
    /// A flush has failed.
    failed: AtomicBool,
}

impl FileBucket {
    pub(crate) fn open(root: &Path) -> Result<Self, OpenError> {
        let fault = |doing| move |error| OpenError::directory(root, doing, error);
        make_directories(root).map_err(fault("make it"))?;
        let root = root.canonicalize().map_err(fault("resolve it"))?;
        let control = root.join(path::CONTROL);
        let drafts = control.join("drafts");
        make_directories(&drafts).map_err(fault("write into it"))?;
        let locks = control.join("locks");
        let made = OpenOptions::new().append(true).create(true).open(&locks);
        made.map_err(fault("make its lock file"))?;
        let scratch = Scratch::new(&drafts).map_err(fault("prepare unfinished writes"))?;
        if !has_layout(&root, &control)? {
            write_layout(&control, &scratch).map_err(fault("write its layout file"))?;
        }
        Self::with(root, locks, Some(scratch))
    }

    /// Opens what is there already, and makes and changes nothing, now and later.
    pub(crate) fn open_read_only(root: &Path) -> Result<Self, OpenError> {
        let fault = |doing| move |error| OpenError::directory(root, doing, error);
        let root = root.canonicalize().map_err(fault("find it"))?;
        let control = root.join(path::CONTROL);
        if !has_layout(&root, &control)? {
            let missing = io::Error::new(io::ErrorKind::NotFound, "it has no layout file");
            return Err(OpenError::directory(&root, "find a bucket in it", missing));
        }
        Self::with(root, control.join("locks"), None)
    }

    fn with(root: PathBuf, locks: PathBuf, scratch: Option<Scratch>) -> Result<Self, OpenError> {
        let journal = File::open(&root)
            .and_then(|root| Journal::of(&root))
            .map_err(|error| OpenError::directory(&root, "ask for its file system", error))?;
        let (lasting, failed) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { root, locks, scratch, journal, lasting, failed })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The object if that is known without waiting for the disk.
    pub(crate) fn get_cached(&self, key: &str) -> Option<Result<Option<Object>, StoreError>> {
        if let Err(error) = self.check_failed(key) {
            return Some(Err(error));
        }
        let file = match sys::open_cached(&self.root.join(path::object(key))) {
            Ok(Cached::Known(file)) => file,
            Ok(Cached::MustWait) => return None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(Ok(None)),
            Err(error) => return Some(Err(StoreError::of(key, error))),
        };
        let size = match file.metadata() {
            Ok(metadata) if metadata.len() > CACHED_BYTES_MAX || !metadata.is_file() => {
                return None;
            }
            Ok(metadata) => metadata.len(),
            Err(error) => return Some(Err(StoreError::of(key, error))),
        };
        match sys::read_cached(&file, size as usize) {
            Cached::Known(body) => Some(Ok(Some(object(body)))),
            Cached::MustWait => None,
        }
    }

    pub(crate) fn get(&self, key: &str) -> Result<Option<Object>, StoreError> {
        self.check_failed(key)?;
        self.read(key)
    }

    pub(crate) fn get_range(&self, key: &str, wanted: Range<u64>) -> Result<Bytes, StoreError> {
        self.check_failed(key)?;
        let fault = |error| StoreError::of(key, error);
        let missing = || StoreError::Missing { key: key.to_owned() };
        let (file, size) = self.open_object(key)?.ok_or_else(missing)?;
        let length = wanted.end.checked_sub(wanted.start).filter(|_| wanted.end <= size);
        let Some(length) = length else {
            return Err(StoreError::Range { key: key.to_owned(), wanted, size });
        };
        if length > GET_BYTES_MAX {
            return Err(StoreError::TooLarge { key: key.to_owned(), size: length });
        }
        let mut body = vec![0; length as usize];
        file.read_exact_at(&mut body, wanted.start).map_err(fault)?;
        Ok(body.into())
    }

    pub(crate) fn put(&self, key: &str, body: &[u8]) -> Result<Etag, StoreError> {
        self.check_failed(key)?;
        let mut draft = self.draft(key, body)?;
        self.replace(key, &mut draft)?;
        Ok(etag(body))
    }

    /// Makes the draft, whose bytes are written out, the object.
    fn replace(&self, key: &str, draft: &mut Draft) -> Result<(), StoreError> {
        let path = self.root.join(path::object(key));
        {
            let _lock = self.lock(key)?;
            self.place(draft, &path).map_err(|error| StoreError::of(key, error))?;
        }
        self.flush(&path)
            .map_err(|error| StoreError::Unreachable { key: key.to_owned(), source: error })
    }

    pub(crate) fn put_if(
        &self,
        key: &str,
        guard: &Guard,
        body: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.check_failed(key)?;
        let path = self.root.join(path::object(key));
        // A loser is told before it has written anything.
        if !self.holds(key, guard)? {
            return Ok(CasOutcome::Refused);
        }
        let mut draft = self.draft(key, body)?;
        {
            let _lock = self.lock(key)?;
            if !self.holds(key, guard)? {
                return Ok(CasOutcome::Refused);
            }
            match self.place(&mut draft, &path) {
                Ok(()) => {}
                // The file system itself is not sure.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                    return Ok(CasOutcome::Unknown);
                }
                Err(error) => return Err(StoreError::of(key, error)),
            }
        }
        match self.flush(&path) {
            Ok(()) => Ok(CasOutcome::Applied(etag(body))),
            Err(_) => Ok(CasOutcome::Unknown),
        }
    }

    pub(crate) fn list(&self, prefix: &str, after: Option<&str>) -> Result<Page, StoreError> {
        self.check_failed(prefix)?;
        walk::page(&self.root, prefix, after).map_err(|error| StoreError::of(prefix, error))
    }

    pub(crate) fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        let mut touched = Vec::new();
        for key in keys {
            self.check_failed(key)?;
            self.scratch(key)?;
            let path = self.root.join(path::object(key));
            let _lock = self.lock(key)?;
            match fs::remove_file(&path) {
                Ok(()) => touched.push(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::of(key, error)),
            }
        }
        // Neighbours share a directory, and one flush of it is enough.
        touched.dedup_by(|a, b| a.parent() == b.parent());
        for path in touched {
            let left = self.remove_empty_above(path);
            let fault = |source| StoreError::Unreachable { key: keys[0].clone(), source };
            self.flush(&left).map_err(fault)?;
        }
        Ok(())
    }

    /// Whether the object is what `guard` says.
    fn holds(&self, key: &str, guard: &Guard) -> Result<bool, StoreError> {
        Ok(match guard {
            Guard::Absent => self.open_object(key)?.is_none(),
            Guard::Match(etag) => self.read(key)?.is_some_and(|now| now.etag == *etag),
        })
    }

    fn read(&self, key: &str) -> Result<Option<Object>, StoreError> {
        let Some((mut file, size)) = self.open_object(key)? else { return Ok(None) };
        if size > GET_BYTES_MAX {
            return Err(StoreError::TooLarge { key: key.to_owned(), size });
        }
        let mut body = Vec::with_capacity(size as usize);
        file.read_to_end(&mut body).map_err(|error| StoreError::of(key, error))?;
        if body.len() as u64 != size {
            let what = format!("an object of {size} bytes was changed while it was read");
            return Err(StoreError::Broken { key: key.to_owned(), what });
        }
        Ok(Some(object(body)))
    }

    /// The object's file and length.
    fn open_object(&self, key: &str) -> Result<Option<(File, u64)>, StoreError> {
        let opened = File::open(self.root.join(path::object(key)))
            .and_then(|file| file.metadata().map(|metadata| (file, metadata)));
        match opened {
            Ok((file, metadata)) if metadata.is_file() => Ok(Some((file, metadata.len()))),
            Ok(_) => {
                let what = "there is something else than a file at its place".to_owned();
                Err(StoreError::Broken { key: key.to_owned(), what })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::of(key, error)),
        }
    }

    /// A draft with `body`, written out.
    fn draft(&self, key: &str, body: &[u8]) -> Result<Draft, StoreError> {
        let scratch = self.scratch(key)?;
        let written = || {
            let (mut file, draft) = scratch.draft()?;
            file.write_all(body)?;
            self.write_out(&file)?;
            Ok(draft)
        };
        written().map_err(|error| StoreError::of(key, error))
    }

    /// Brings the bytes of a draft to the disk.
    fn write_out(&self, file: &File) -> io::Result<()> {
        match self.journal {
            Journal::Ordered => sys::write_out(file),
            Journal::None => file.sync_data(),
        }
    }

    /// Where drafts go, if anything may be written.
    fn scratch(&self, key: &str) -> Result<&Scratch, StoreError> {
        self.scratch.as_ref().ok_or_else(|| StoreError::Denied {
            key: key.to_owned(),
            source: io::Error::other("it was opened to be read only"),
        })
    }

    /// Makes the draft the object at `path`, and the directories that it needs.
    fn place(&self, draft: &mut Draft, path: &Path) -> io::Result<()> {
        let mut result = draft.rename(path);
        for _ in 0..RENAME_TRIES {
            match &result {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => break,
            }
            if let Some(parent) = path.parent() {
                match fs::create_dir_all(parent) {
                    Ok(()) => {}
                    // Removed again while it was made.
                    Err(error) if is_race(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            result = draft.rename(path);
        }
        result
    }

    /// Makes what happened in the directory of `path` last.
    fn flush(&self, path: &Path) -> io::Result<()> {
        let result = self.flush_upwards(path);
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    fn flush_upwards(&self, path: &Path) -> io::Result<()> {
        let mut new = Vec::new();
        for path in path.ancestors().skip(1).take_while(|path| path.starts_with(&self.root)) {
            let directory = match File::open(path) {
                Ok(directory) => directory,
                // One that another process has removed is an entry less in the one above.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            directory.sync_all()?;
            if self.journal == Journal::Ordered {
                break;
            }
            if let Some(identity) = sys::identity(&directory) {
                if self.lasting().get(path) == Some(&identity) {
                    break;
                }
                new.push((path.to_owned(), identity));
            }
        }
        if !new.is_empty() {
            let mut lasting = self.lasting();
            if lasting.len() + new.len() > LASTING_MAX {
                lasting.clear();
            }
            lasting.extend(new);
        }
        Ok(())
    }

    fn lasting(&self) -> MutexGuard<'_, HashMap<PathBuf, Identity>> {
        // Whoever panicked with it has left whole entries.
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the directories of `path` that are empty now. Returns what lay in the first one
    /// that stays.
    fn remove_empty_above(&self, mut path: PathBuf) -> PathBuf {
        while let Some(parent) = path.parent() {
            // Not empty, or gone already: whatever the reason, it stays and does no harm.
            if parent == self.root || fs::remove_dir(parent).is_err() {
                break;
            }
            path = parent.to_owned();
        }
        path
    }

    fn lock(&self, key: &str) -> Result<File, StoreError> {
        let number = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, key.as_bytes());
        sys::lock(&self.locks, number).map_err(|error| StoreError::of(key, error))
    }

    fn check_failed(&self, key: &str) -> Result<(), StoreError> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let what = "a flush failed, so the disk may lack what was written".to_owned();
        Err(StoreError::Broken { key: key.to_owned(), what })
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn is_race(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists)
}

/// As `mkdir -p`, and durable.
fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    // A relative path ends in the empty one, which is no directory.
    let path = std::path::absolute(path)?;
    fs::create_dir_all(&path)?;
    path.ancestors().try_for_each(|path| match sync_directory(path) {
        // Directories that are not ours to read were there before.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    })
}

/// Whether there is a layout file, which must be of the layout that we know.
fn has_layout(root: &Path, control: &Path) -> Result<bool, OpenError> {
    match fs::read_to_string(control.join("layout")) {
        Ok(found) if found == LAYOUT => Ok(true),
        Ok(found) => Err(OpenError::Layout {
            path: root.display().to_string(),
            found: found.chars().take(40).collect(),
            known: LAYOUT.trim_end(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(OpenError::directory(root, "read its layout file", error)),
    }
}

fn write_layout(control: &Path, scratch: &Scratch) -> io::Result<()> {
    let (mut file, mut draft) = scratch.draft()?;
    file.write_all(LAYOUT.as_bytes())?;
    file.sync_all()?;
    draft.rename(&control.join("layout"))?;
    sync_directory(control)
}

fn object(body: Vec<u8>) -> Object {
    Object { etag: etag(&body), body: body.into() }
}

/// Length and CRC-64 of the bytes. Records that are compared carry a nonce, so equal ETags mean
/// equal writes; nodes trust each other, so a checksum is enough.
fn etag(body: &[u8]) -> Etag {
    etag_of(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, body), body.len() as u64)
}

fn etag_of(sum: u64, size: u64) -> Etag {
    Etag::new(format!("{sum:016x}-{size:x}"))
}

#[cfg(test)]
mod tests;
