//! The arguments that all benches have.

use std::path::PathBuf;
use std::time::Duration;

use argh::FromArgs;

/// Measures one thing; prints a table and then one JSON line.
#[derive(FromArgs, Clone, Debug)]
pub struct Args {
    /// measure the server that runs at this address, as 127.0.0.1:8787, and start none
    #[argh(option)]
    pub target: Option<String>,
    /// the celld program to start (default: target/release/celld)
    #[argh(option, default = "PathBuf::from(\"target/release/celld\")")]
    pub celld: PathBuf,
    /// a workerd program to measure too, alternating with celld
    #[argh(option)]
    pub workerd: Option<PathBuf>,
    /// measure workerd only
    #[argh(switch)]
    pub only_workerd: bool,
    /// a few seconds in all, to see that the program works; its numbers mean nothing
    #[argh(switch)]
    pub small: bool,
    /// how often each thing is measured (default: 5; small: 1)
    #[argh(option)]
    pub runs: Option<usize>,
    /// seconds of one measurement (default: 3; small: 0.3)
    #[argh(option)]
    pub seconds: Option<f64>,
    /// directory for files that are written (default: target/bench); it decides which disk
    #[argh(option, default = "PathBuf::from(\"target/bench\")")]
    pub dir: PathBuf,
}

impl Args {
    /// From the command line. Ends the process after `--help` and on a fault.
    pub fn read() -> Self {
        argh::from_env()
    }
    /// How often each thing is measured.
    pub fn runs(&self) -> usize {
        self.runs.unwrap_or(if self.small { 1 } else { 5 }).max(1)
    }
    /// Time of one measurement.
    pub fn time(&self) -> Duration {
        let seconds = self.seconds.unwrap_or(if self.small { 0.3 } else { 3.0 });
        Duration::from_secs_f64(seconds.clamp(0.05, 3_600.0))
    }
    /// `full`, or `small` for `--small`.
    pub fn size<T>(&self, full: T, small: T) -> T {
        if self.small { small } else { full }
    }
}
