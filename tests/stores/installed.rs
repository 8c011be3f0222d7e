//! Where the programs are.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// What `scripts/stores` installs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// SeaweedFS, one program.
    Weed,
    /// A module of Python.
    Ministack,
    /// Azurite's blob service, a script of Node.
    Azurite,
    /// `gcsxml.py` beside this file.
    Gcsxml,
    /// `badstore.py` beside this file.
    Badstore,
}

/// Whether a store that is not installed fails the tests that need it.
pub fn is_required() -> bool {
    std::env::var_os("CELLD_STORES_REQUIRED").is_some_and(|value| !value.is_empty())
}

/// A test does nothing because a program is not installed.
pub(crate) fn skip(program: Program, why: &anyhow::Error) {
    assert!(!is_required(), "{why:#}");
    tell_of_skipping(&format!("no {program:?}: {why:#}"));
}

/// Says so past the test harness, which shows nothing of tests that pass.
pub(crate) fn tell_of_skipping(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("this test");
    // Nothing can be done about a closed standard error.
    let _written = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

impl Program {
    /// How to start it.
    ///
    /// # Errors
    /// It is not installed.
    pub fn command(self) -> Result<Command> {
        let dir = directory();
        let python = dir.join("python/bin/python3");
        let beside = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (needs, mut command) = match self {
            Self::Weed => {
                let weed = dir.join("python/bin/weed");
                (weed.clone(), Command::new(weed))
            }
            Self::Ministack => {
                let mut command = Command::new(&python);
                command.args(["-m", "ministack"]);
                (dir.join("python/bin/ministack"), command)
            }
            Self::Azurite => {
                let script = dir.join("node/node_modules/azurite/dist/src/blob/main.js");
                let mut command = Command::new(node(&dir));
                command.arg(&script);
                (script, command)
            }
            Self::Gcsxml | Self::Badstore => {
                let script = match self {
                    Self::Gcsxml => "gcsxml.py",
                    _ => "badstore.py",
                };
                let mut command = Command::new(&python);
                command.arg(beside.join(script));
                (python, command)
            }
        };
        if !needs.exists() || !dir.join("installed").exists() {
            bail!("{} is not there; run scripts/stores", needs.display());
        }
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUNBUFFERED", "1");
        Ok(command)
    }
}

/// As in `scripts/stores`.
fn directory() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    if let Some(dir) = set("CELLD_STORES") {
        return dir.into();
    }
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")));
    cache.unwrap_or_default().join("celld/stores")
}

/// The system's, or the private one where the system has none.
fn node(dir: &Path) -> PathBuf {
    let private = dir.join("python/bin/node");
    if private.exists() { private } else { "node".into() }
}
