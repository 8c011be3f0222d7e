//! What a write that survives a crash takes on a disk, for whoever measures it.
//!
//! A block is written past the system's memory and flushed, as the log of a follower is.
//!
//! Bounds: 4 MiB in a file without a name, which goes with the process however that ends.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, TryLockError};

/// Direct writes are aligned to it on every disk that we know.
const BLOCK: usize = 4_096;
/// Written around and around, as a spool is.
const FILE_BYTES: usize = 4 << 20;

#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// The file, filled beforehand.
pub struct Scratch {
    file: File,
    is_direct: bool,
    block: Box<Block>,
    next: usize,
}

impl Scratch {
    /// Makes it in a directory.
    ///
    /// # Errors
    /// The directory takes no files, or the disk fails or is full.
    pub fn new(directory: &Path) -> io::Result<Self> {
        let mut file = tempfile::tempfile_in(directory)?;
        file.write_all(&vec![0; FILE_BYTES])?;
        file.sync_all()?;
        // SAFETY: the descriptor is open, and the call takes no pointer.
        let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) };
        let is_direct = match answer {
            0 => true,
            _ => match io::Error::last_os_error() {
                // The file system has no such writes.
                error if error.raw_os_error() == Some(libc::EINVAL) => false,
                error => return Err(error),
            },
        };
        Ok(Self { file, is_direct, block: Box::new(Block([0; BLOCK])), next: 0 })
    }

    /// Whether writes go past the system's memory.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Writes one block of this byte, and returns when it is on the disk.
    ///
    /// # Errors
    /// The disk fails.
    pub fn append(&mut self, byte: u8) -> io::Result<()> {
        self.block.0.fill(byte);
        self.file.write_all_at(&self.block.0, self.next as u64)?;
        self.file.sync_data()?;
        self.next = (self.next + BLOCK) % FILE_BYTES;
        Ok(())
    }

    /// Whether the first block reads as this byte throughout.
    ///
    /// # Errors
    /// The disk fails.
    pub fn begins_with(&mut self, byte: u8) -> io::Result<bool> {
        self.block.0.fill(!byte);
        self.file.read_exact_at(&mut self.block.0, 0)?;
        Ok(self.block.0 == [byte; BLOCK])
    }
}

/// Of a node: made when it is first asked for, as most never are, and kept for the next time.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Option<Scratch>>);

impl Kept {
    /// Writes and flushes a block. Blocks.
    ///
    /// # Errors
    /// As [`Scratch`]'s; the next call begins anew. Another caller is at it: nobody waits for a disk
    /// that hangs.
    pub fn flush(&self, directory: &Path) -> io::Result<()> {
        let mut kept = match self.0.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "it is being measured now",
                ));
            }
        };
        let mut scratch = match kept.take() {
            Some(scratch) => scratch,
            None => Scratch::new(directory)?,
        };
        scratch.append(7)?;
        *kept = Some(scratch);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_around_the_end_and_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut scratch = Scratch::new(directory.path()).expect("a file");
        scratch.append(1).expect("a write");
        assert!(scratch.begins_with(1).expect("a read"));
        for _ in 1..FILE_BYTES / BLOCK {
            scratch.append(2).expect("a write");
        }
        assert!(scratch.begins_with(1).expect("a read"));
        scratch.append(3).expect("a write");
        assert!(scratch.begins_with(3).expect("a read"));
        assert!(std::fs::read_dir(directory.path()).expect("a listing").next().is_none());
    }
}
