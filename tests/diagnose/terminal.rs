//! What `celld diagnose --probe` draws on a terminal, and that it draws nothing elsewhere.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::process::Stdio;

use serde_json::Value;

use super::directories::command;

/// Which of its outputs is a terminal; the other one is a pipe.
#[derive(Clone, Copy, Debug)]
enum Terminal {
    Stdout,
    Stderr,
}

/// What came out of a run.
struct Seen {
    stdout: String,
    stderr: String,
}

/// A terminal of 80 columns: our side, and the program's.
fn open_terminal() -> (File, OwnedFd) {
    let (mut ours, mut its) = (-1, -1);
    let mut size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let (name, modes) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the call writes two numbers and reads the size; it is told to use neither name nor modes.
    let done = unsafe { libc::openpty(&raw mut ours, &raw mut its, name, modes, &raw mut size) };
    assert_eq!(done, 0, "no terminal: {}", std::io::Error::last_os_error());
    // SAFETY: both were just opened and belong to nobody else.
    unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(its)) }
}

/// All that appears on a terminal until the last program has closed it.
fn read_terminal(mut ours: File) -> String {
    let (mut all, mut piece) = (Vec::new(), [0; 4_096]);
    // Its end is an error (EIO).
    while let Ok(got @ 1..) = ours.read(&mut piece) {
        all.extend_from_slice(&piece[..got]);
    }
    String::from_utf8(all).expect("UTF-8")
}

fn run(terminal: Terminal, args: &[&str]) -> Seen {
    let place = tempfile::tempdir().expect("a directory");
    let mut command = command(&place.path().join("bucket"), &place.path().join("state"), args);
    command.arg("--probe").env("TERM", "xterm").stdout(Stdio::piped()).stderr(Stdio::piped());
    let (ours, its) = open_terminal();
    match terminal {
        Terminal::Stdout => command.stdout(its),
        Terminal::Stderr => command.stderr(its),
    };
    let child = command.spawn().expect("the program starts");
    // Its side is the child's alone, so that it ends with it.
    drop(command);
    let reader = std::thread::spawn(|| read_terminal(ours));
    let output = child.wait_with_output().expect("it is our child");
    let shown = reader.join().expect("no panic");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
    assert!(output.status.success(), "{terminal:?}: {stdout}{stderr}{shown}");
    match terminal {
        Terminal::Stdout => Seen { stdout: shown, stderr },
        Terminal::Stderr => Seen { stdout, stderr: shown },
    }
}

/// The steps at which a bar was drawn, in their order.
fn steps(shown: &str, of: &str) -> Vec<u64> {
    let drawn = shown.split(of).map(|before| before.rsplit([' ', ']']).next().unwrap_or_default());
    drawn.filter_map(|step| step.parse().ok()).collect()
}

fn is_plain(text: &str) -> bool {
    !text.contains(['\u{1b}', '\r', '█', '#'])
}

#[test]
fn a_terminal_shows_how_far_it_is_and_the_document_stays_clean() {
    let seen = run(Terminal::Stderr, &["--json"]);
    for of in ["/250 rounds on the store", "/1000 writes to the disk"] {
        let steps = steps(&seen.stderr, of);
        assert!(steps.is_sorted() && steps.first() < steps.last(), "{of}: {steps:?}");
    }
    assert!(seen.stderr.contains("[#") && seen.stderr.contains("\u{1b}["), "{:?}", seen.stderr);
    let document: Value = serde_json::from_str(&seen.stdout).expect("one JSON document");
    assert_eq!(document["ok"], true);
    assert!(is_plain(&seen.stdout), "{:?}", seen.stdout);

    let report = run(Terminal::Stderr, &[]).stdout;
    assert!(report.contains("a fleet may run here") && is_plain(&report), "{report:?}");
}

#[test]
fn elsewhere_there_are_plain_lines_and_the_terminal_has_the_bars_of_the_report() {
    let seen = run(Terminal::Stdout, &[]);
    assert!(is_plain(&seen.stderr), "{:?}", seen.stderr);
    let mut lines = seen.stderr.lines();
    assert!(lines.all(|line| line.starts_with("celld: ")), "{}", seen.stderr);
    assert!(seen.stderr.contains("celld: trying the rules of the store\n"), "{}", seen.stderr);
    assert!(seen.stdout.contains('█') && !seen.stdout.contains("rounds on"), "{}", seen.stdout);

    let seen = run(Terminal::Stdout, &["--json"]);
    let document: Value = serde_json::from_str(&seen.stdout).expect("one JSON document");
    assert_eq!(document["ok"], true);
    assert!(is_plain(&seen.stderr) && !seen.stdout.contains('█'), "{:?}", seen.stderr);
}
