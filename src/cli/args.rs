//! The command line: what a person types becomes one [`Command`].

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use self::words::{explain, in_order};

/// The arguments of a command that has a bucket: those that say which, and its own.
macro_rules! on_a_bucket {
    ($(#[$($meta:tt)*])* $name:ident { $($field:tt)* }) => {
        #[derive(FromArgs, ArgsInfo, Debug, Default, PartialEq)]
        $(#[$($meta)*])*
        pub(crate) struct $name {
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
            pub(crate) ca_file: Option<std::path::PathBuf>,

            $($field)*
        }

        impl $name {
            /// Which bucket, as typed.
            pub(crate) fn bucket_args(&self) -> $crate::cli::settings::BucketArgs {
                let Self { bucket, endpoint, region, ca_file, .. } = self;
                $crate::cli::settings::BucketArgs {
                    bucket: bucket.clone(),
                    endpoint: endpoint.clone(),
                    region: region.clone(),
                    ca_file: ca_file.clone(),
                }
            }
        }
    };
}

mod operator;
mod words;

pub(crate) use self::operator::{
    Cell, CellCommand, CellEvict, CellList, CellMove, CellPurge, CellShow, Drain, Status,
};

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
    Node(Box<Node>),
}

/// Why there is nothing to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Stop {
    /// Asked for: goes to stdout, exit code 0.
    Answer(String),
    /// Not understood: goes to stderr, exit code 2.
    Usage(String),
}

on_a_bucket! {
    /// Runs Durable Objects on your own machines: each object is a SQLite database, a bucket is the
    /// only coordinator. Without a command it runs a node that serves the current deployment of a
    /// bucket.
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
    Node {
        /// send a second read or write to the store beside one that takes longer than nearly all
        /// before it: for stores that are late by chance (`celld diagnose --probe` tells)
        #[argh(switch)]
        pub(crate) hedge: bool,

        /// address for clients (default 127.0.0.1:8787)
        #[argh(option, arg_name = "address")]
        pub(crate) listen: Option<String>,

        /// address for other nodes (default: none, and requests for cells of this node that enter
        /// at others fail)
        #[argh(option, arg_name = "address")]
        pub(crate) internal_listen: Option<String>,

        /// host and port under which other nodes reach this one (default: as --internal-listen)
        #[argh(option, arg_name = "address")]
        pub(crate) advertise: Option<String>,

        /// let other nodes reach this one at a public address
        #[argh(switch)]
        pub(crate) unsafe_public_advertise: bool,

        /// name of this node, unique in the bucket (default: the machine's name)
        #[argh(option, arg_name = "id")]
        pub(crate) node: Option<String>,

        /// directory for what may be lost: caches of databases, this node's identity (default
        /// .celld/state)
        #[argh(option, arg_name = "dir")]
        pub(crate) state: Option<PathBuf>,

        /// cores to use (default: all that this process may use)
        #[argh(option, arg_name = "n")]
        pub(crate) shards: Option<String>,

        /// what proves a write: bucket; fleet is refused, as this version keeps no copies of the
        /// log on other nodes
        #[argh(option, arg_name = "proof")]
        pub(crate) durability: Option<String>,

        /// milliseconds of rest after which a cell leaves memory (default 70000)
        #[argh(option, arg_name = "ms")]
        pub(crate) idle_evict_ms: Option<String>,

        /// cells in memory at most, at least one for each core (default: as many as fit)
        #[argh(option, arg_name = "n")]
        pub(crate) max_resident_cells: Option<String>,

        /// memory that this process may use, as 512MiB or 4GiB (default: that of its control group,
        /// or of the machine); idle cells leave before it is full
        #[argh(option, arg_name = "size")]
        pub(crate) memory_limit: Option<String>,

        /// what a stop may take, as 25s or 1500ms: what still runs shortly before is cut off
        /// (default 25s)
        #[argh(option, arg_name = "time")]
        pub(crate) drain_timeout: Option<String>,

        /// print the version and stop
        #[argh(switch, short = 'V')]
        pub(super) version: bool,

        #[argh(subcommand)]
        pub(super) command: Option<Sub>,
    }
}

/// What to do besides running a node.
#[derive(FromArgs, ArgsInfo, Debug, PartialEq)]
#[argh(subcommand)]
pub(super) enum Sub {
    Dev(Dev),
    Deploy(Deploy),
    Diagnose(Diagnose),
    Status(Status),
    Cell(Cell),
    Drain(Drain),
}

/// Serves a project on an embedded bucket below its .celld directory, and again after each change.
#[derive(FromArgs, ArgsInfo, Debug, PartialEq)]
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

on_a_bucket! {
    /// Bundles a project and makes it the current deployment of a bucket. Running nodes adopt it.
    #[argh(
        subcommand,
        name = "deploy",
        note = "The variables of `celld --help` stand for their options.",
        example = "{command_name} examples/counter --bucket file:///srv/celld",
        example = "{command_name} --dry-run --json",
        error_code(0, "deployed, or with --dry-run: could be deployed"),
        error_code(1, "the build or the bucket failed: the message says what and where"),
        error_code(2, "refused: an argument, a variable or the project's configuration")
    )]
    Deploy {
        /// directory of the wrangler file (default: the current one)
        #[argh(positional, arg_name = "dir")]
        pub(crate) dir: Option<PathBuf>,

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
}

on_a_bucket! {
    /// Tells whether a fleet may run on this machine and a bucket: the system, the state directory, the
    /// rules that the store must keep, and every lease in it. Writes below probe/ only, and removes it.
    #[argh(
        subcommand,
        name = "diagnose",
        note = "Each finding has a stable code and a line of advice. It ends within three minutes, after
some sixty requests and one for each lease, and two thousand more with --probe.
The variables of `celld --help` stand for their options.",
        example = "{command_name} --bucket s3://cells/prod --region eu-west-1",
        example = "{command_name} --bucket s3://cells --endpoint http://10.0.0.1:8333 --probe",
        example = "{command_name} --bucket file:///srv/celld --read-only",
        error_code(0, "a fleet may run: there are warnings and notes at most"),
        error_code(1, "a fleet must not run: there is at least one fault"),
        error_code(2, "refused: an argument or a variable")
    )]
    Diagnose {
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
}

/// Reads the arguments after the program's name.
///
/// # Errors
/// [`Stop`] when they ask for help or the version, or make no sense.
pub(crate) fn parse(args: Vec<String>) -> Result<Command, Stop> {
    let program = Node::get_args_info();
    let (command, words) = in_order(&program, args);
    let answer = || Stop::Answer(format!("celld {}\n", env!("CARGO_PKG_VERSION")));
    // The commands have no such switch of their own.
    if !command.is_empty() && words.iter().any(|w| w == "--version" || w == "-V") {
        return Err(answer());
    }
    let all: Vec<&str> = command.iter().chain(&words).map(String::as_str).collect();
    let mut node = Node::from_args(&["celld"], &all).map_err(|exit| match exit.status {
        Ok(()) => Stop::Answer(exit.output),
        Err(()) => Stop::Usage(explain(&program, &exit.output, &command, &words)),
    })?;
    if node.version {
        return Err(answer());
    }
    Ok(match node.command.take() {
        Some(Sub::Dev(dev)) => Command::Dev(dev),
        Some(Sub::Deploy(deploy)) => Command::Deploy(deploy),
        Some(Sub::Diagnose(diagnose)) => Command::Diagnose(diagnose),
        Some(Sub::Status(status)) => Command::Status(status),
        Some(Sub::Cell(cell)) => Command::Cell(cell),
        Some(Sub::Drain(drain)) => Command::Drain(drain),
        None => Command::Node(Box::new(node)),
    })
}

#[cfg(test)]
mod tests;
