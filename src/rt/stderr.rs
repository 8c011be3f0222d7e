//! Lines for whoever runs the node, on stderr.
//!
//! Nothing that is written here fails or stops its writers, as `eprintln!` does: it panics when the
//! reader of a pipe is gone, and waits for ever for one that has stopped. Waiting for room has a budget
//! of [`PATIENCE`], of which a sixtieth of the time that goes by comes back. Lines that find neither
//! room nor budget are dropped, and counted. A short line is one write, so that lines of several
//! processes do not mix.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a reader may take to go on: its disk may be busy. Far less than a lease.
const PATIENCE: Duration = Duration::from_secs(1);
/// Of the time that goes by, one part of so many is added to the budget.
const REFILL: u32 = 60;
/// So much is written to a pipe whole or not at all (`PIPE_BUF` of Linux).
const WRITE_MAX: usize = 4 << 10;

/// One for the process: lines of its threads come one after the other.
static WRITER: Mutex<Option<Writer>> = Mutex::new(None);

/// Writes a line to stderr, as `eprintln!` does, but never panics and hardly ever blocks.
#[macro_export]
macro_rules! log {
    ($($line:tt)*) => { $crate::write_line(format_args!($($line)*)) };
}

/// What [`log!`](crate::log!) does. All calls together block for a second at most, and for one more in
/// each minute.
pub fn write_line(line: fmt::Arguments<'_>) {
    // Before the lock: what is formatted may want to write a line, too.
    let line = format!("{line}\n");
    let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    writer.get_or_insert_with(Writer::new).write(&line);
}

struct Writer {
    way: Way,
    /// For how long lines may still wait, as of `counted`.
    budget: Duration,
    counted: Instant,
    /// Lines that were dropped since the last that was not.
    lost: u64,
    /// What was written last is a line without its end.
    is_torn: bool,
}

/// How stderr is written to without waiting for it.
enum Way {
    /// A pipe or a terminal: opened once more, as others share what stderr is.
    Own(File),
    Socket,
    /// A file, which takes everything; or what cannot be opened once more.
    Shared,
}

impl Way {
    fn to_stderr() -> Self {
        const STDERR: &str = "/proc/self/fd/2";
        let Ok(kind) = std::fs::metadata(STDERR).map(|data| data.file_type()) else {
            return Self::Shared;
        };
        if kind.is_socket() {
            return Self::Socket;
        }
        if !kind.is_fifo() && !kind.is_char_device() {
            return Self::Shared;
        }
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        options.open(STDERR).map_or(Self::Shared, Self::Own)
    }

    fn fd(&self) -> RawFd {
        match self {
            Self::Own(file) => file.as_raw_fd(),
            Self::Socket | Self::Shared => libc::STDERR_FILENO,
        }
    }

    /// Writes what there is room for now.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Own(file) => file.write(bytes),
            Self::Socket => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                // SAFETY: the bytes are borrowed through the call.
                let sent = unsafe {
                    libc::send(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len(), flags)
                };
                usize::try_from(sent).map_err(|_| io::Error::last_os_error())
            }
            Self::Shared if is_ready(self.fd(), Duration::ZERO) => io::stderr().write(bytes),
            Self::Shared => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Writer {
    fn new() -> Self {
        let (way, counted) = (Way::to_stderr(), Instant::now());
        Self { way, budget: PATIENCE, counted, lost: 0, is_torn: false }
    }

    fn write(&mut self, line: &str) {
        let torn = if self.is_torn { "\n" } else { "" };
        let note = match self.lost {
            0 => String::new(),
            lost => format!("celld: {lost} lines are lost: nobody read them\n"),
        };
        let before = torn.len() + note.len();
        let text = [torn, &note, line].concat();
        let written = self.write_bytes(text.as_bytes());
        if written == text.len() {
            (self.lost, self.is_torn) = (0, false);
            return;
        }
        self.lost = if written < before { self.lost + 1 } else { 1 };
        if let Some(last) = text.as_bytes()[..written].last() {
            self.is_torn = *last != b'\n';
        }
    }

    /// How many of them were written, or are for nobody as the reader is gone.
    fn write_bytes(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match self.way.write(&rest[..rest.len().min(WRITE_MAX)]) {
                Ok(more) if more > 0 => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait() {
                        return written;
                    }
                }
                Ok(_) | Err(_) => return bytes.len(),
            }
        }
        written
    }

    /// Waits for room, at most until the budget is used up.
    fn wait(&mut self) -> bool {
        let begun = Instant::now();
        let earned = begun.saturating_duration_since(self.counted) / REFILL;
        let budget = PATIENCE.min(self.budget + earned);
        let is_ready = budget >= Duration::from_millis(1) && is_ready(self.way.fd(), budget);
        self.counted = Instant::now();
        self.budget = budget.saturating_sub(self.counted - begun);
        is_ready
    }
}

/// Whether a write would do something, after `limit` at the latest. A signal may end the wait early.
fn is_ready(fd: RawFd, limit: Duration) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let millis = libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: one valid entry, as the call is told.
    unsafe { libc::poll(&raw mut entry, 1, millis) > 0 }
}
