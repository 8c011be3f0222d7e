//! Processes whose clocks are wrong: a library that is loaded before their own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that puts a process's wall clock wrong, by the seconds in `SKEW_S`. `None`: there is
/// no compiler here.
pub fn library(dir: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/skew.c");
    let built = dir.join("skew.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&built).arg(source);
    match compiler.status() {
        Ok(status) => {
            assert!(status.success(), "the library is not built: {status}");
            Some(built)
        }
        Err(error) => {
            eprintln!("skipped: `cc` does not start: {error}");
            None
        }
    }
}
