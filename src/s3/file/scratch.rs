//! Files that are being written, before they become objects.
//!
//! Invariant: each opened bucket has a directory of its own for them and holds its lock while it
//! lives. A directory whose lock is free belongs to nobody any more, and who opens the bucket next
//! removes it: a killed process leaves nothing that stays, and nothing here is ever listed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Tries to make a directory that nobody else sweeps in the instant before it is locked.
const TRIES: usize = 100;

#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
    next: AtomicU64,
}

/// A file that vanishes unless it becomes an object.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    placed: bool,
}

impl Scratch {
    /// Sweeps what dead processes left below `parent` and makes a new directory there.
    pub(crate) fn new(parent: &Path) -> io::Result<Self> {
        sweep(parent)?;
        for _ in 0..TRIES {
            let number = getrandom::u64().map_err(io::Error::other)?;
            let path = parent.join(format!("{number:016x}"));
            fs::create_dir(&path)?;
            match lock(&path) {
                Ok(Some(lock)) => return Ok(Self { path, _lock: lock, next: AtomicU64::new(0) }),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("another process removes each new directory for unfinished writes"))
    }

    /// A new empty file.
    pub(crate) fn draft(&self) -> io::Result<(File, Draft)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("{number:x}"));
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok((file, Draft { path, placed: false }))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left, the next one who opens the bucket sweeps.
        let _left = fs::remove_dir_all(&self.path);
    }
}

impl Draft {
    /// Makes it the file at `path`, replacing what is there in one step.
    pub(crate) fn rename(&mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.placed {
            let _left = fs::remove_file(&self.path);
        }
    }
}

/// The lock of a scratch directory, if it is still there and nobody holds it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let directory = File::open(path)?;
    match directory.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // A sweeper may have removed it between the two calls; the lock of a removed one is worthless.
    Ok(path.try_exists()?.then_some(directory))
}

fn sweep(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        match lock(&path) {
            Ok(Some(_lock)) => match fs::remove_dir_all(&path) {
                // Two sweepers at once.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_of_the_dead_are_swept_and_those_of_the_living_stay() {
        let parent = tempfile::tempdir().expect("a directory");
        let dead = parent.path().join("0123456789abcdef");
        fs::create_dir(&dead).expect("a directory");
        fs::write(dead.join("0"), b"half").expect("a file");
        let living = Scratch::new(parent.path()).expect("a scratch directory");
        let (_file, draft) = living.draft().expect("a draft");
        assert!(!dead.exists());
        let other = Scratch::new(parent.path()).expect("a second one");
        assert!(draft.path.exists(), "the sweep of another one took a living draft");
        drop((living, other));
        assert_eq!(fs::read_dir(parent.path()).expect("listing").count(), 0);
    }

    #[test]
    fn a_draft_that_is_not_placed_vanishes() {
        let parent = tempfile::tempdir().expect("a directory");
        let scratch = Scratch::new(parent.path()).expect("a scratch directory");
        let (_file, mut placed) = scratch.draft().expect("a draft");
        let (_file, left) = scratch.draft().expect("a draft");
        placed.rename(&parent.path().join("object")).expect("a rename");
        let path = left.path.clone();
        drop((placed, left));
        assert!(parent.path().join("object").exists());
        assert!(!path.exists());
    }
}
