//! Lines on a terminal that is not read. In a process of its own, whose stderr is replaced.

use celld_rt::log;

/// More than any terminal holds.
const LINES: u64 = 100_000;

#[test]
fn a_terminal_that_stands_still_stops_nobody() {
    let (mut ours, mut theirs) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: room for two descriptors; no name, no settings, no size.
    let opened =
        unsafe { libc::openpty(&raw mut ours, &raw mut theirs, none, none.cast(), none.cast()) };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both descriptors are open.
    assert_eq!(unsafe { libc::dup2(theirs, libc::STDERR_FILENO) }, libc::STDERR_FILENO);
    for number in 0..LINES {
        log!("line {number}");
    }
}
