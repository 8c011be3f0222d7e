//! The command line: what a person types becomes one [`Command`].
//!
//! argh 0.1 refuses `--port=99`, wants options of the program before its subcommand, and offers no
//! spelling help. [`parse`] makes up for it before and after argh runs, so that
//! `celld --bucket=URL deploy` and `celld deploy --bucket URL` are the same.

mod operator;

use std::path::PathBuf;

use argh::FromArgs;

pub(crate) use self::operator::{
    Cell, CellCommand, CellEvict, CellList, CellMove, CellPurge, CellShow, Drain, Status,
};

use super::settings::BucketArgs;
use super::spelling::nearest;

/// What to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    /// Serve a project from its own directory.
    Dev(Dev),
    /// Put a project into a bucket.
    Deploy(Deploy),
    /// Tell whether a fleet may run on a machine and a bucket.
    Diagnose(Diagnose),
    /// Show the nodes of a fleet.
    Status(Status),
    /// Look at cells, or tell nodes what to do with them.
    Cell(Cell),
    /// Stop a node.
    Drain(Drain),
    /// Run a node on a bucket.
    Node(Node),
}

/// Why there is nothing to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Stop {
    /// Asked for: goes to stdout, exit code 0.
    Answer(String),
    /// Not understood: goes to stderr, exit code 2.
    Usage(String),
}

/// Runs Durable Objects on your own machines: each object is a SQLite database, a bucket is the
/// only coordinator. Without a command it runs a node that serves the current deployment of a
/// bucket.
#[derive(FromArgs)]
#[argh(
    name = "celld",
    note = "Environment (a flag beats its variable):
  CELLD_BUCKET         --bucket
  CELLD_ADDR           --listen
  CELLD_INTERNAL_ADDR  --internal-listen
  CELLD_ADVERTISE      --advertise
  CELLD_NODE           --node
  CELLD_WATCH          --state
  CELLD_DURABILITY     --durability
  CELLD_MAX_RESIDENT_CELLS  --max-resident-cells
  CELLD_MEMORY_LIMIT   --memory-limit
  CELLD_DRAIN_TIMEOUT  --drain-timeout
  CELLD_TTL_MS         life of this node's lease, 1000 to 600000 ms (default 10000)
  S3_ENDPOINT          --endpoint; AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL go before it
  AWS_REGION           --region; or AWS_DEFAULT_REGION
  AWS_CA_BUNDLE        --ca-file
  AWS_*                the credentials of s3:// buckets, as other programs read them
  GOOGLE_*, GS_*       those of gs:// buckets (docs/credentials.md)
  AZURE_*              those of az:// buckets, and their account",
    note = "Output: data on stdout, messages on stderr.",
    example = "{command_name} dev examples/counter",
    example = "{command_name} deploy examples/counter --bucket file:///srv/celld",
    example = "{command_name} --bucket file:///srv/celld --listen 0.0.0.0:8787",
    example = "{command_name} --bucket s3://cells/prod --region eu-west-1",
    error_code(
        0,
        "done, or stopped by SIGINT or SIGTERM: after a drain, or when its time is over"
    ),
    error_code(1, "failed: the message says what and where; or a second SIGINT or SIGTERM"),
    error_code(2, "refused to start: an argument, a variable or the project's configuration"),
    error_code(3, "the node lost its lease and fenced itself: start it again")
)]
struct Top {
    /// print the version and stop
    #[argh(switch, short = 'V')]
    version: bool,

    /// the bucket: s3://NAME[/PREFIX], gs://NAME[/PREFIX], az://NAME[/PREFIX] or
    /// file:///absolute/path
    #[argh(option, arg_name = "url")]
    bucket: Option<String>,

    /// URL of another store than the provider's, as http://10.0.0.1:8333
    #[argh(option, arg_name = "url")]
    endpoint: Option<String>,

    /// region of the bucket
    #[argh(option, arg_name = "name")]
    region: Option<String>,

    /// authorities in PEM that are trusted beside the system's
    #[argh(option, arg_name = "file")]
    ca_file: Option<PathBuf>,

    /// address for clients (default 127.0.0.1:8787)
    #[argh(option, arg_name = "address")]
    listen: Option<String>,

    /// address for other nodes (default: none, and requests for cells of this node that enter at others
    /// fail)
    #[argh(option, arg_name = "address")]
    internal_listen: Option<String>,

    /// host and port under which other nodes reach this one (default: as --internal-listen)
    #[argh(option, arg_name = "address")]
    advertise: Option<String>,

    /// let other nodes reach this one at a public address
    #[argh(switch)]
    unsafe_public_advertise: bool,

    /// name of this node, unique in the bucket (default: the machine's name)
    #[argh(option, arg_name = "id")]
    node: Option<String>,

    /// directory for what may be lost: caches of databases, this node's identity (default .celld/state)
    #[argh(option, arg_name = "dir")]
    state: Option<PathBuf>,

    /// cores to use (default: all that this process may use)
    #[argh(option, arg_name = "n")]
    shards: Option<String>,

    /// what proves a write: bucket; fleet is refused, as this version keeps no copies of the log on other
    /// nodes
    #[argh(option, arg_name = "proof")]
    durability: Option<String>,

    /// milliseconds of rest after which a cell leaves memory (default 70000)
    #[argh(option, arg_name = "ms")]
    idle_evict_ms: Option<String>,

    /// cells in memory at most, at least one for each core (default: as many as fit)
    #[argh(option, arg_name = "n")]
    max_resident_cells: Option<String>,

    /// memory that this process may use, as 512MiB or 4GiB (default: that of its control group, or of
    /// the machine); idle cells leave before it is full
    #[argh(option, arg_name = "size")]
    memory_limit: Option<String>,

    /// what a stop may take, as 25s or 1500ms: what still runs shortly before is cut off (default 25s)
    #[argh(option, arg_name = "time")]
    drain_timeout: Option<String>,

    #[argh(subcommand)]
    command: Option<Sub>,
}

#[derive(FromArgs)]
#[argh(subcommand)]
enum Sub {
    Dev(Dev),
    Deploy(Deploy),
    Diagnose(Diagnose),
    Status(Status),
    Cell(Cell),
    Drain(Drain),
}

/// Serves a project on an embedded bucket below its .celld directory, and again after each change.
#[derive(FromArgs, Debug, PartialEq)]
#[argh(
    subcommand,
    name = "dev",
    note = "Secrets for development come from .dev.vars, or from .env where there is no .dev.vars.",
    note = "GET /cdn-cgi/handler/scheduled?cron=EXPRESSION runs the scheduled handler.",
    example = "{command_name} examples/counter",
    example = "{command_name} . --port 9000 --clean",
    error_code(0, "stopped by SIGINT or SIGTERM"),
    error_code(1, "failed: the message says what and where"),
    error_code(2, "refused to start: an argument, a variable or the project's configuration")
)]
pub(crate) struct Dev {
    /// directory of the wrangler file (default: the current one)
    #[argh(positional, arg_name = "dir")]
    pub(crate) dir: Option<PathBuf>,

    /// port (default 8787)
    #[argh(option, arg_name = "n")]
    pub(crate) port: Option<String>,

    /// address to listen on (default 127.0.0.1)
    #[argh(option, arg_name = "address")]
    pub(crate) host: Option<String>,

    /// directory for bucket and caches (default DIR/.celld)
    #[argh(option, arg_name = "dir")]
    pub(crate) state: Option<PathBuf>,

    /// cores to use (default: all that this process may use)
    #[argh(option, arg_name = "n")]
    pub(crate) shards: Option<String>,

    /// milliseconds of rest after which a cell leaves memory (default 70000)
    #[argh(option, arg_name = "ms")]
    pub(crate) idle_evict_ms: Option<String>,

    /// named environment of the wrangler file
    #[argh(option, short = 'e', arg_name = "name")]
    pub(crate) env: Option<String>,

    /// forget all data of earlier runs first
    #[argh(switch)]
    pub(crate) clean: bool,

    /// do not rebuild when a file changes
    #[argh(switch)]
    pub(crate) no_watch: bool,
}

/// Bundles a project and makes it the current deployment of a bucket. Running nodes adopt it.
#[derive(FromArgs, Debug, PartialEq)]
#[argh(
    subcommand,
    name = "deploy",
    note = "CELLD_BUCKET stands for --bucket.",
    example = "{command_name} examples/counter --bucket file:///srv/celld",
    example = "{command_name} --dry-run --json",
    error_code(0, "deployed, or with --dry-run: could be deployed"),
    error_code(1, "the build or the bucket failed: the message says what and where"),
    error_code(2, "refused: an argument, a variable or the project's configuration")
)]
pub(crate) struct Deploy {
    /// directory of the wrangler file (default: the current one)
    #[argh(positional, arg_name = "dir")]
    pub(crate) dir: Option<PathBuf>,

    /// the bucket: s3://NAME[/PREFIX], gs://NAME[/PREFIX], az://NAME[/PREFIX] or
    /// file:///absolute/path
    #[argh(option, arg_name = "url")]
    pub(crate) bucket: Option<String>,

    /// URL of another store than the provider's, as http://10.0.0.1:8333
    #[argh(option, arg_name = "url")]
    pub(crate) endpoint: Option<String>,

    /// region of the bucket
    #[argh(option, arg_name = "name")]
    pub(crate) region: Option<String>,

    /// authorities in PEM that are trusted beside the system's
    #[argh(option, arg_name = "file")]
    pub(crate) ca_file: Option<PathBuf>,

    /// named environment of the wrangler file
    #[argh(option, short = 'e', arg_name = "name")]
    pub(crate) env: Option<String>,

    /// build and check, write nothing
    #[argh(switch)]
    pub(crate) dry_run: bool,

    /// print one JSON document on stdout
    #[argh(switch)]
    pub(crate) json: bool,
}

/// Tells whether a fleet may run on this machine and a bucket: the system, the state directory, the
/// rules that the store must keep, and every lease in it. Writes below probe/ only, and removes it.
#[derive(FromArgs, Debug, PartialEq)]
#[argh(
    subcommand,
    name = "diagnose",
    note = "Each finding has a stable code and a line of advice. It ends within three minutes, after
some sixty requests and one for each lease, and a thousand more with --probe.
The variables of `celld --help` stand for their options.",
    example = "{command_name} --bucket s3://cells/prod --region eu-west-1",
    example = "{command_name} --bucket s3://cells --endpoint http://10.0.0.1:8333 --probe",
    example = "{command_name} --bucket file:///srv/celld --read-only",
    error_code(0, "a fleet may run: there are warnings and notes at most"),
    error_code(1, "a fleet must not run: there is at least one fault"),
    error_code(2, "refused: an argument or a variable")
)]
pub(crate) struct Diagnose {
    /// the bucket: s3://NAME[/PREFIX], gs://NAME[/PREFIX], az://NAME[/PREFIX] or
    /// file:///absolute/path
    #[argh(option, arg_name = "url")]
    pub(crate) bucket: Option<String>,

    /// URL of another store than the provider's, as http://10.0.0.1:8333
    #[argh(option, arg_name = "url")]
    pub(crate) endpoint: Option<String>,

    /// region of the bucket
    #[argh(option, arg_name = "name")]
    pub(crate) region: Option<String>,

    /// authorities in PEM that are trusted beside the system's
    #[argh(option, arg_name = "file")]
    pub(crate) ca_file: Option<PathBuf>,

    /// the state directory of the node to be (default .celld/state); nothing stays in it
    #[argh(option, arg_name = "dir")]
    pub(crate) state: Option<PathBuf>,

    /// measure latencies as well: of the store, of the disk, and of an acknowledgement
    #[argh(switch)]
    pub(crate) probe: bool,

    /// node that must have a live lease and answer; may be given again
    #[argh(option, arg_name = "id")]
    pub(crate) peer: Vec<String>,

    /// write nothing anywhere: the rules of the store and the disk are not tried
    #[argh(switch)]
    pub(crate) read_only: bool,

    /// print one JSON document on stdout
    #[argh(switch)]
    pub(crate) json: bool,
}

/// The options of a node, as typed: `settings` merges them with the environment and checks them.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Node {
    /// Those of its bucket.
    pub(crate) bucket: BucketArgs,
    /// `--listen`
    pub(crate) listen: Option<String>,
    /// `--internal-listen`
    pub(crate) internal_listen: Option<String>,
    /// `--advertise`
    pub(crate) advertise: Option<String>,
    /// `--unsafe-public-advertise`
    pub(crate) unsafe_public_advertise: bool,
    /// `--node`
    pub(crate) node: Option<String>,
    /// `--state`
    pub(crate) state: Option<PathBuf>,
    /// `--shards`
    pub(crate) shards: Option<String>,
    /// `--durability`
    pub(crate) durability: Option<String>,
    /// `--idle-evict-ms`
    pub(crate) idle_evict_ms: Option<String>,
    /// `--max-resident-cells`
    pub(crate) max_resident_cells: Option<String>,
    /// `--memory-limit`
    pub(crate) memory_limit: Option<String>,
    /// `--drain-timeout`
    pub(crate) drain_timeout: Option<String>,
}

/// Options of each command that take a value, and those that do not: the pre-pass must know which
/// word is a value, and the spelling help wants all of them.
const VALUED: &[&str] = &[
    "--bucket",
    "--endpoint",
    "--region",
    "--ca-file",
    "--peer",
    "--listen",
    "--internal-listen",
    "--advertise",
    "--node",
    "--state",
    "--shards",
    "--durability",
    "--idle-evict-ms",
    "--max-resident-cells",
    "--memory-limit",
    "--drain-timeout",
    "--port",
    "--host",
    "--env",
    "-e",
    "--class",
    "--limit",
    "--after",
    "--name",
];
const TOP: &[&str] = &[
    "--bucket",
    "--endpoint",
    "--region",
    "--ca-file",
    "--listen",
    "--internal-listen",
    "--advertise",
    "--unsafe-public-advertise",
    "--node",
    "--state",
    "--shards",
    "--durability",
    "--idle-evict-ms",
    "--max-resident-cells",
    "--memory-limit",
    "--drain-timeout",
    "--version",
    "--help",
];
const DEV: &[&str] = &[
    "--port",
    "--host",
    "--state",
    "--shards",
    "--idle-evict-ms",
    "--env",
    "--clean",
    "--no-watch",
    "--help",
];
const DEPLOY: &[&str] =
    &["--bucket", "--endpoint", "--region", "--ca-file", "--env", "--dry-run", "--json", "--help"];
const DIAGNOSE: &[&str] = &[
    "--bucket",
    "--endpoint",
    "--region",
    "--ca-file",
    "--state",
    "--probe",
    "--peer",
    "--read-only",
    "--json",
    "--help",
];
const STATUS: &[&str] =
    &["--bucket", "--endpoint", "--region", "--ca-file", "--all", "--json", "--help"];
const CELL_LIST: &[&str] = &[
    "--bucket",
    "--endpoint",
    "--region",
    "--ca-file",
    "--node",
    "--resident",
    "--class",
    "--limit",
    "--after",
    "--json",
    "--help",
];
const CELL_SHOW: &[&str] =
    &["--bucket", "--endpoint", "--region", "--ca-file", "--name", "--json", "--help"];
const CELL_PURGE: &[&str] =
    &["--bucket", "--endpoint", "--region", "--ca-file", "--name", "--yes", "--help"];
/// Of `cell evict` and `cell move`.
const CELL_ORDER: &[&str] =
    &["--bucket", "--endpoint", "--region", "--ca-file", "--name", "--help"];
const DRAIN: &[&str] = &["--bucket", "--endpoint", "--region", "--ca-file", "--no-wait", "--help"];
const COMMANDS: &[&str] = &["dev", "deploy", "diagnose", "status", "cell", "drain"];
/// What may follow `cell`.
const CELL_COMMANDS: &[&str] = &["list", "show", "evict", "move", "purge"];

/// Reads the arguments after the program's name.
///
/// # Errors
/// [`Stop`] when they ask for help or the version, or make no sense.
pub(crate) fn parse(args: Vec<String>) -> Result<Command, Stop> {
    let (command, words) = normalise(args);
    let answer = || Stop::Answer(format!("celld {}\n", env!("CARGO_PKG_VERSION")));
    // The commands have no such switch of their own.
    if !command.is_empty() && words.iter().any(|w| w == "--version" || w == "-V") {
        return Err(answer());
    }
    let words: Vec<&str> =
        command.iter().map(String::as_str).chain(words.iter().map(String::as_str)).collect();
    let command = (!command.is_empty()).then(|| command.join(" "));
    let top = Top::from_args(&["celld"], &words).map_err(|exit| match exit.status {
        Ok(()) => Stop::Answer(exit.output),
        Err(()) => Stop::Usage(explain(&exit.output, command.as_deref(), &words)),
    })?;
    let Top {
        version,
        bucket,
        endpoint,
        region,
        ca_file,
        listen,
        internal_listen,
        advertise,
        unsafe_public_advertise,
        node,
        state,
        shards,
        durability,
        idle_evict_ms,
        max_resident_cells,
        memory_limit,
        drain_timeout,
        command,
    } = top;
    if version {
        return Err(answer());
    }
    Ok(match command {
        Some(Sub::Dev(dev)) => Command::Dev(dev),
        Some(Sub::Deploy(deploy)) => Command::Deploy(deploy),
        Some(Sub::Diagnose(diagnose)) => Command::Diagnose(diagnose),
        Some(Sub::Status(status)) => Command::Status(status),
        Some(Sub::Cell(cell)) => Command::Cell(cell),
        Some(Sub::Drain(drain)) => Command::Drain(drain),
        None => Command::Node(Node {
            bucket: BucketArgs { bucket, endpoint, region, ca_file },
            listen,
            internal_listen,
            advertise,
            unsafe_public_advertise,
            node,
            state,
            shards,
            durability,
            idle_evict_ms,
            max_resident_cells,
            memory_limit,
            drain_timeout,
        }),
    })
}

/// Splits `--key=value`, and moves the subcommand to the front, so that options before it belong
/// to it as well. `cell` has subcommands of its own. A word after `--` is left alone.
fn normalise(args: Vec<String>) -> (Vec<String>, Vec<String>) {
    let mut words = Vec::with_capacity(args.len() + 1);
    let mut command: Vec<String> = Vec::new();
    let mut plain = false;
    let mut value_follows = false;
    for arg in args {
        if plain || value_follows {
            value_follows = false;
            words.push(arg);
        } else if arg == "--" {
            plain = true;
            words.push(arg);
        } else if arg == "-h" {
            words.push("--help".to_owned());
        } else if arg.starts_with("--")
            && let Some((key, value)) = arg.split_once('=')
        {
            words.extend([key.to_owned(), value.to_owned()]);
        } else if arg.starts_with('-') {
            value_follows = VALUED.contains(&arg.as_str());
            words.push(arg);
        } else if follows(&command).contains(&arg.as_str())
            && !words.iter().any(|w| is_bare(w, &words))
        {
            command.push(arg);
        } else {
            words.push(arg);
        }
    }
    (command, words)
}

/// The words that may follow those of the command so far.
fn follows(command: &[String]) -> &'static [&'static str] {
    match command {
        [] => COMMANDS,
        [first] if first == "cell" => CELL_COMMANDS,
        _ => &[],
    }
}

/// True for a word that is neither an option nor the value of one: after the first such word
/// nothing is a subcommand any more.
fn is_bare(word: &str, words: &[String]) -> bool {
    let at = words.iter().position(|w| std::ptr::eq(w.as_str(), word));
    let after_option =
        at.and_then(|i| i.checked_sub(1)).is_some_and(|i| VALUED.contains(&words[i].as_str()));
    !word.starts_with('-') && !after_option
}

/// argh's message, with the nearest spelling where it did not know a word.
fn explain(output: &str, command: Option<&str>, words: &[&str]) -> String {
    let first = output.trim_end();
    let help = match command {
        Some(command) => format!("celld {command} --help"),
        None => "celld --help".to_owned(),
    };
    let known = match command {
        Some("dev") => DEV,
        Some("deploy") => DEPLOY,
        Some("diagnose") => DIAGNOSE,
        Some("status") => STATUS,
        Some("cell list") => CELL_LIST,
        Some("cell show") => CELL_SHOW,
        Some("cell evict" | "cell move") => CELL_ORDER,
        Some("cell purge") => CELL_PURGE,
        Some("drain") => DRAIN,
        _ => TOP,
    };
    // What a word that is no option was probably meant to be.
    let commands = match command {
        None => Some(COMMANDS),
        Some("cell") => Some(CELL_COMMANDS),
        Some(_) => None,
    };
    let guess = first.strip_prefix("Unrecognized argument: ").and_then(|rest| {
        let word = rest.lines().next().unwrap_or(rest).trim();
        let commands = commands.filter(|_| !word.starts_with('-'));
        if !words.contains(&word) {
            return None;
        }
        nearest(word, commands.unwrap_or(known))
            .map(|guess| format!("{word:?} is not known; did you mean {guess:?}?"))
    });
    let guess = guess.or_else(|| {
        let word = first.strip_prefix("Unrecognized argument: ")?.lines().next()?;
        let commands = commands.filter(|_| !word.starts_with('-'))?;
        Some(format!("{word:?} is no command; they are: {}", commands.join(", ")))
    });
    match guess {
        Some(guess) => format!("{guess}\n(run `{help}` for all options)"),
        None => format!("{first}\n(run `{help}` for all options)"),
    }
}

#[cfg(test)]
mod tests;
