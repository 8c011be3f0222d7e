//! The command line: from arguments to an exit code.
//!
//! Data goes to stdout, messages go to stderr, and a failure ends in one of four exit codes, which
//! `celld --help` lists.

mod args;
mod clock;
mod config;
mod settings;
mod spelling;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use self::args::{Command, Stop};

/// Exit code of what was asked for correctly and did not work.
const FAILED: u8 = 1;
/// Exit code of arguments, variables and configurations that cannot be used.
const REFUSED: u8 = 2;

/// Why a command ended without its work done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    #[error(transparent)]
    Setting(#[from] settings::SettingError),
}

impl CommandError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Setting(_) => REFUSED,
        }
    }
}

/// Runs the program with the arguments after its name.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut words = Vec::new();
    for arg in args {
        match arg.into_string() {
            Ok(word) => words.push(word),
            Err(word) => {
                eprintln!("celld: the argument {word:?} is not UTF-8");
                return REFUSED.into();
            }
        }
    }
    let command = match args::parse(words) {
        Ok(command) => command,
        Err(Stop::Answer(text)) => {
            // Who closes the pipe early has seen enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(Stop::Usage(text)) => {
            eprintln!("celld: {text}");
            return REFUSED.into();
        }
    };
    match run(command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("celld: {error}");
            error.exit_code().into()
        }
    }
}

fn run(command: Command) -> Result<ExitCode, CommandError> {
    let environment = |name: &str| std::env::var(name).ok();
    match command {
        Command::Dev(dev) => {
            settings::dev(&dev, &environment)?;
            check(dev.dir.as_deref(), dev.env.as_deref(), config::Purpose::Dev)
        }
        Command::Deploy(deploy) => {
            settings::bucket(deploy.bucket, &environment)?;
            check(deploy.dir.as_deref(), deploy.env.as_deref(), config::Purpose::Deploy)
        }
        Command::Node(node) => {
            notes(&settings::node(node, &environment)?.notes);
            Ok(FAILED.into())
        }
    }
}

fn check(
    dir: Option<&Path>,
    environment: Option<&str>,
    purpose: config::Purpose,
) -> Result<ExitCode, CommandError> {
    let project = config::load(dir.unwrap_or(Path::new(".")), environment, purpose)?;
    notes(&project.notes);
    Ok(FAILED.into())
}

/// Tells a person what is worth knowing and stops nothing.
fn notes(notes: &[String]) {
    for note in notes {
        eprintln!("celld: note: {note}");
    }
}
