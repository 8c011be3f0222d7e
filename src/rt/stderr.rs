//! Lines for whoever runs the node, on stderr.
//!
//! Nothing that is written here fails or stops its writer for long, as `eprintln!` does: it panics
//! when the reader of a pipe is gone, and waits for ever for one that has stopped. A line waits for
//! room for [`PATIENCE`] at most, and after that no other does for [`HURRY`]: lines are dropped then,
//! and counted. A short line is one write, so that lines of several processes do not mix.

use std::fmt;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a reader may take to go on: its disk may be busy. Far less than a lease.
const PATIENCE: Duration = Duration::from_secs(1);
/// A reader that has taken longer than that is not waited for any more for so long.
const HURRY: Duration = Duration::from_secs(60);
/// A pipe that has room has room for so much (`PIPE_BUF` of Linux).
const WRITE_MAX: usize = 4 << 10;

/// One for the process: lines of its threads come one after the other.
static WRITER: Mutex<Writer> = Mutex::new(Writer { lost: 0, hurries_since: None });

struct Writer {
    /// Lines that found no room since the last that did.
    lost: u64,
    hurries_since: Option<Instant>,
}

/// Writes a line to stderr, as `eprintln!` does, but never panics and never blocks for long.
#[macro_export]
macro_rules! log {
    ($($line:tt)*) => { $crate::write_line(format_args!($($line)*)) };
}

/// What [`log!`](crate::log!) does. Blocks for at most a second, and that once in a minute.
pub fn write_line(line: fmt::Arguments<'_>) {
    // Before the lock: what is formatted may want to write a line, too.
    let line = format!("{line}\n");
    WRITER.lock().unwrap_or_else(PoisonError::into_inner).write(line);
}

impl Writer {
    fn write(&mut self, mut line: String) {
        let is_patient = self.hurries_since.is_none_or(|since| since.elapsed() > HURRY);
        let mut patience = if is_patient { PATIENCE } else { Duration::ZERO };
        if !has_room(patience) {
            self.lose(is_patient);
            return;
        }
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            line.insert_str(0, &format!("celld: {lost} lines are lost: nobody read them\n"));
        }
        for part in line.as_bytes().chunks(WRITE_MAX) {
            if !has_room(patience) {
                self.lose(is_patient);
                return;
            }
            // The next parts share what is left of it.
            patience /= 2;
            // The reader may be gone, and there is nobody else to tell.
            let _gone = std::io::stderr().write_all(part);
        }
    }

    fn lose(&mut self, was_patient: bool) {
        self.lost += 1;
        if was_patient {
            self.hurries_since = Some(Instant::now());
        }
    }
}

/// Whether a write returns at once, also with an error, after `patience` at the latest.
fn has_room(patience: Duration) -> bool {
    let mut stderr =
        libc::pollfd { fd: std::io::stderr().as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    let millis = libc::c_int::try_from(patience.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: one valid entry, as the call is told.
    let ready = unsafe { libc::poll(&raw mut stderr, 1, millis) };
    // A signal ends the wait early: then the line has had its time.
    ready > 0
}
