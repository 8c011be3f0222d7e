//! The calls of Linux that the standard library does not have.
//!
//! Invariant: each wrapper passes only pointers and descriptors that live through the call.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A read that would have to wait for the disk is left to another thread.
pub(crate) enum Cached<T> {
    Known(T),
    MustWait,
}

/// Takes the lock `number` of the file `path`, waiting for it. It is released when the returned
/// file is closed, so also when the process is killed.
///
/// A lock is one byte of the file, far behind its end, and belongs to one open file description:
/// so it holds against threads and processes alike, and different numbers never meet.
pub(crate) fn lock(path: &Path, number: u64) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // SAFETY: `flock` is plain bits.
    let mut region: libc::flock = unsafe { std::mem::zeroed() };
    region.l_type = libc::F_WRLCK as libc::c_short;
    region.l_whence = libc::SEEK_SET as libc::c_short;
    // Half of the numbers that an offset can be, so that the byte itself fits too.
    region.l_start = (number >> 2) as libc::off_t;
    region.l_len = 1;
    loop {
        // SAFETY: `file` is open and `region` lives; the call writes nothing.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw const region) };
        if done == 0 {
            return Ok(file);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Opens a file for reading if that needs no waiting for the disk.
pub(crate) fn open_cached(path: &Path) -> io::Result<Cached<File>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `open_how` is plain bits, zero where it is not said otherwise.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    how.resolve = libc::RESOLVE_CACHED;
    // SAFETY: path and `how` live through the call, and the size is that of `how`.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    if fd >= 0 {
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the call gave this descriptor to us and to nobody else.
        return Ok(Cached::Known(unsafe { File::from_raw_fd(fd) }));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Not cached; a kernel or a sandbox that does not know the call.
        Some(libc::EAGAIN | libc::ENOSYS | libc::EINVAL | libc::EPERM) => Ok(Cached::MustWait),
        _ => Err(error),
    }
}

/// Reads `size` bytes from the start if the system has them all in memory.
pub(crate) fn read_cached(file: &File, size: usize) -> Cached<Vec<u8>> {
    let mut body = Vec::<u8>::with_capacity(size);
    let io = libc::iovec { iov_base: body.as_mut_ptr().cast(), iov_len: size };
    // SAFETY: the buffer has room for `size` bytes and lives through the call.
    let got = unsafe { libc::preadv2(file.as_raw_fd(), &raw const io, 1, 0, libc::RWF_NOWAIT) };
    if usize::try_from(got) != Ok(size) {
        return Cached::MustWait;
    }
    // SAFETY: the call has written exactly `size` bytes.
    unsafe { body.set_len(size) };
    Cached::Known(body)
}

/// Writes the file's pages to the disk and waits for it. Its metadata and the disk's own cache
/// are left to the flush that must follow (see [`Journal`]).
pub(crate) fn write_out(file: &File) -> io::Result<()> {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: `file` is open; the call takes no pointers.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, how) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// What tells an inode from all others that ever had its number: the handle that the file system
/// gives for it, which has a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    kind: i32,
    handle: Box<[u8]>,
}

/// The identity of an open file; `None` where the file system has none.
pub(crate) fn identity(file: &File) -> Option<Identity> {
    const BYTES: usize = libc::MAX_HANDLE_SZ as usize;
    /// `struct file_handle` of Linux with the largest handle.
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        handle: [u8; BYTES],
    }
    let mut answer = Handle { bytes: BYTES as u32, kind: 0, handle: [0; BYTES] };
    let mut mount: libc::c_int = 0;
    // SAFETY: the pointers live through the call, which writes at most `bytes` of the handle.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            c"".as_ptr(),
            &raw mut answer,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    let handle = answer.handle.get(..answer.bytes as usize).filter(|_| done == 0)?;
    Some(Identity { kind: answer.kind, handle: handle.into() })
}

/// What one flush of a directory carries with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journal {
    /// All changes of metadata on this file system go through one ordered journal (ext4 with its
    /// journal, XFS): flushing the last change flushes all that came before it, other files'
    /// sizes and block lists and other directories' entries too. Data that was written out
    /// before is below the same flush of the disk.
    Ordered,
    /// Nothing is known: each file and each directory is flushed by itself.
    None,
}

impl Journal {
    /// Of the file system that `directory` lies on. Only positive evidence counts.
    pub(crate) fn of(directory: &File) -> io::Result<Self> {
        // SAFETY: `statfs` is plain bits, and the call fills it.
        let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open and `fs` lives through the call.
        if unsafe { libc::fstatfs(directory.as_raw_fd(), &raw mut fs) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let ordered = match fs.f_type {
            libc::XFS_SUPER_MAGIC => true,
            // ext2 and ext4 without a journal have the same number.
            libc::EXT4_SUPER_MAGIC => ext4_has_journal(directory.metadata()?.dev()),
            _ => false,
        };
        Ok(if ordered { Self::Ordered } else { Self::None })
    }
}

/// The kernel names the journal's thread, or says `<none>`.
fn ext4_has_journal(device: u64) -> bool {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let Ok(device) = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")) else {
        return false;
    };
    let Some(name) = device.file_name() else { return false };
    let task = Path::new("/sys/fs/ext4").join(name).join("journal_task");
    std::fs::read_to_string(task).is_ok_and(|task| task.trim().parse::<u32>().is_ok())
}
