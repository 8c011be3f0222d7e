//! For how long the machine kept programs waiting, so that a promise in seconds can be asked of
//! celld and not of the machine.
//!
//! The kernel counts the time in which at least one program that could run had no core (PSI, "some"),
//! the same for disks, and what the host of a virtual machine took away.

use std::fs;
use std::time::Duration;

/// The kernel's `USER_HZ`.
const TICKS_PER_S: u64 = 100;

/// A span of time.
pub struct Stall(Option<Duration>);

impl Stall {
    /// From now on.
    pub fn begin() -> Self {
        Self(waited())
    }

    /// How long programs have waited since then: for a core, for a disk and for the host in sum.
    /// `None`: this kernel does not say.
    pub fn end(self) -> Option<Duration> {
        Some(waited()?.saturating_sub(self.0?))
    }
}

/// Since the machine started.
fn waited() -> Option<Duration> {
    let stolen = stolen(&fs::read_to_string("/proc/stat").ok()?)?;
    ["cpu", "io"].into_iter().try_fold(stolen, |sum, of| {
        Some(sum + some(&fs::read_to_string(format!("/proc/pressure/{of}")).ok()?)?)
    })
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=N`, in µs.
fn some(pressure: &str) -> Option<Duration> {
    let line = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = line.split(' ').find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

/// The eighth number of all cores, in ticks.
fn stolen(stat: &str) -> Option<Duration> {
    let cores = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: u64 = cores.split_whitespace().nth(7)?.parse().ok()?;
    Some(Duration::from_millis(ticks * 1_000 / TICKS_PER_S))
}

#[test]
fn what_the_kernel_counts_is_read() {
    let pressure =
        "some avg10=0.00 avg60=1.25 avg300=0.00 total=1500000\nfull avg10=0.00 total=7\n";
    assert_eq!(some(pressure), Some(Duration::from_millis(1_500)));
    assert_eq!(some("full avg10=0.00 total=7\n"), None);
    let stat = "cpu  1 2 3 4 5 6 7 250 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
    assert_eq!(stolen(stat), Some(Duration::from_millis(2_500)));
    assert_eq!(stolen("cpu  1 2 3\n"), None);
}
