//! Lines on stderr when nobody reads them. In a process of its own, whose stderr is replaced.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use celld_rt::log;

/// More than any pipe holds.
const LINES: u64 = 100_000;

/// Puts the end of a new pipe in the place of stderr; its other end.
fn replace_stderr() -> File {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which nobody else has.
    let (reader, writer) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    // SAFETY: both descriptors are open.
    let replaced = unsafe { libc::dup2(writer.as_raw_fd(), libc::STDERR_FILENO) };
    assert_eq!(replaced, libc::STDERR_FILENO);
    File::from(reader)
}

fn read_what_is_there(reader: &mut File) -> String {
    // SAFETY: the descriptor is open.
    unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    let mut bytes = Vec::new();
    let _would_block = reader.read_to_end(&mut bytes);
    String::from_utf8(bytes).expect("text")
}

#[test]
fn a_reader_that_stops_or_goes_away_costs_lines_and_nothing_else() {
    let mut reader = replace_stderr();
    for number in 0..LINES {
        log!("line {number}");
    }
    let text = read_what_is_there(&mut reader);
    let read: Vec<_> = text.lines().collect();
    assert!(read.iter().enumerate().all(|(at, line)| *line == format!("line {at}")), "whole lines");

    log!("{}", "x".repeat(10_000));
    let lost = LINES - read.len() as u64;
    let told = format!("celld: {lost} lines are lost: nobody read them");
    let text = read_what_is_there(&mut reader);
    assert_eq!(text.lines().next(), Some(&*told));
    assert_eq!(text.lines().nth(1).map(str::len), Some(10_000));

    drop(reader);
    for number in 0..LINES {
        log!("line {number}");
    }
}
