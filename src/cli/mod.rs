//! The command line: from arguments to an exit code.
//!
//! Data goes to stdout, messages go to stderr, and a failure ends in one of four exit codes, which
//! `celld --help` lists.

mod args;
mod bundle;
mod clock;
mod config;
mod deploy;
mod dev;
mod diagnose;
mod fleet;
mod operator;
mod progress;
mod publish;
mod serve;
mod settings;
mod spelling;
mod watch;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use celld_s3::OpenError;

use self::args::{Command, Stop};

/// Exit code of what was asked for correctly and did not work.
const FAILED: u8 = 1;
/// Exit code of arguments, variables and configurations that cannot be used.
const REFUSED: u8 = 2;
/// Exit code of a node that lost its lease.
const FENCED: u8 = 3;

/// Why a command ended without its work done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    #[error(transparent)]
    Setting(#[from] settings::SettingError),
    #[error(transparent)]
    Bundle(#[from] bundle::BundleError),
    #[error(transparent)]
    Deploy(#[from] celld_shard::deployment::DeployError),
    #[error("nothing is deployed, as no node would serve this: {0}")]
    Load(celld_v8host::LoadError),
    #[error(transparent)]
    Bucket(#[from] OpenError),
    #[error(transparent)]
    Preflight(#[from] celld_rt::PreflightError),
    #[error(transparent)]
    Node(#[from] celld_shard::node::NodeError),
    #[error(transparent)]
    Operator(#[from] operator::OperatorError),
    #[error("the system gives no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    #[error("{}: {_1}", _0.display())]
    File(PathBuf, std::io::Error),
}

impl CommandError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Setting(_) => REFUSED,
            Self::Operator(error) if error.is_typed() => REFUSED,
            Self::Bucket(OpenError::Url { .. } | OpenError::Option { .. }) => REFUSED,
            Self::Bundle(_)
            | Self::Deploy(_)
            | Self::Load(_)
            | Self::Bucket(_)
            | Self::Preflight(_)
            | Self::Node(_)
            | Self::Operator(_)
            | Self::Random(_)
            | Self::File(..) => FAILED,
        }
    }
}

/// Runs the program with the arguments after its name.
pub(crate) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    std::panic::set_hook(Box::new(tell_panic));
    let mut words = Vec::new();
    for arg in args {
        match arg.into_string() {
            Ok(word) => words.push(word),
            Err(word) => {
                celld_rt::log!("celld: the argument {word:?} is not UTF-8");
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
            celld_rt::log!("celld: {text}");
            return REFUSED.into();
        }
    };
    match run(command) {
        Ok(code) => code,
        Err(error) => {
            celld_rt::log!("celld: {error}");
            error.exit_code().into()
        }
    }
}

/// As a line of the log: Rust's own hook may wait for ever for who reads stderr. Where the calls came
/// from is told only if `RUST_BACKTRACE` asks for it.
fn tell_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
    let text = panic.payload_as_str().unwrap_or("no message");
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    celld_rt::log!("celld: internal error in thread {name}{place}: {text}");
    let calls = Backtrace::capture();
    if calls.status() == BacktraceStatus::Captured {
        celld_rt::log!("{calls}");
    }
}

fn run(command: Command) -> Result<ExitCode, CommandError> {
    let environment = |name: &str| std::env::var(name).ok();
    match command {
        Command::Dev(typed) => dev::run(typed, &environment),
        Command::Deploy(typed) => deploy::run(typed, &environment),
        Command::Diagnose(typed) => diagnose::run(typed, &environment),
        Command::Status(typed) => operator::status::run(&typed, &environment),
        Command::Cell(typed) => operator::cell(&typed.command, &environment),
        Command::Drain(typed) => operator::drain::run(&typed, &environment),
        Command::Node(typed) => serve::node(settings::node(*typed, &environment)?),
    }
}

/// Tells a person what is worth knowing and stops nothing.
fn notes(notes: &[String]) {
    for note in notes {
        celld_rt::log!("celld: note: {note}");
    }
}
