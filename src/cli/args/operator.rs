//! Commands that look at a fleet and change what its nodes do.

use argh::{ArgsInfo, FromArgs};

on_a_bucket! {
    /// Shows the nodes of a fleet: their leases in the bucket, and what each says when it is asked.
    /// A node that does not answer is shown as such.
    #[argh(
        subcommand,
        name = "status",
        note = "STATE: serving, draining (it stops), unreachable (its lease is in force and it does not
answer), unasked (it has no --internal-listen), dead (its lease is over and it does not answer),
left (it has given its lease up), unknown (its lease cannot be read).
The variables of `celld --help` stand for their options.",
        example = "{command_name} --bucket s3://cells/prod --region eu-west-1",
        example = "{command_name} --json",
        error_code(0, "every node whose lease is in force answers, or takes no calls"),
        error_code(1, "a node does not answer, a lease cannot be read, or the bucket failed"),
        error_code(2, "refused: an argument or a variable")
    )]
    Status {
        /// show also nodes that have left, or are dead for more than ten minutes
        #[argh(switch)]
        pub(crate) all: bool,

        /// print one JSON document on stdout
        #[argh(switch)]
        pub(crate) json: bool,
    }
}

/// Looks at cells, and tells their nodes what to do with them. A cell is NAMESPACE/ID, or NAMESPACE
/// with --name NAME.
#[derive(FromArgs, ArgsInfo, Debug, PartialEq)]
#[argh(
    subcommand,
    name = "cell",
    example = "{command_name} list --limit 20",
    example = "{command_name} show app.Room --name lobby"
)]
pub(crate) struct Cell {
    #[argh(subcommand)]
    pub(crate) command: CellCommand,
}

/// What to do with cells.
#[derive(FromArgs, ArgsInfo, Debug, PartialEq)]
#[argh(subcommand)]
pub(crate) enum CellCommand {
    List(CellList),
    Show(CellShow),
    Evict(CellEvict),
    Move(CellMove),
    Purge(CellPurge),
}

on_a_bucket! {
    /// Lists cells: all in the bucket, with the node that owns each; or those in the memory of nodes.
    #[argh(
        subcommand,
        name = "list",
        note = "The variables of `celld --help` stand for their options.",
        example = "{command_name} --limit 20",
        example = "{command_name} --node node-1 --json",
        error_code(0, "listed"),
        error_code(1, "the bucket or a node failed: the message says which"),
        error_code(2, "refused: an argument or a variable")
    )]
    CellList {
        /// list what is in the memory of this node
        #[argh(option, arg_name = "id")]
        pub(crate) node: Option<String>,

        /// list what is in the memory of any node
        #[argh(switch)]
        pub(crate) resident: bool,

        /// only cells of this class, or of this namespace
        #[argh(option, arg_name = "name")]
        pub(crate) class: Option<String>,

        /// at most so many (default 1000)
        #[argh(option, arg_name = "n")]
        pub(crate) limit: Option<String>,

        /// begin behind this cell: NAMESPACE/ID
        #[argh(option, arg_name = "cell")]
        pub(crate) after: Option<String>,

        /// print one JSON document a line on stdout
        #[argh(switch)]
        pub(crate) json: bool,
    }
}

on_a_bucket! {
    /// Shows one cell: who owns it, its files in the bucket, and what its node has in memory.
    #[argh(
        subcommand,
        name = "show",
        note = "The variables of `celld --help` stand for their options.",
        example = "{command_name} app.Room --name lobby",
        example = "{command_name} app.Room/0f0e…0102 --json",
        error_code(0, "shown"),
        error_code(1, "there is no such cell, or the bucket failed"),
        error_code(2, "refused: an argument or a variable")
    )]
    CellShow {
        /// NAMESPACE/ID, or NAMESPACE with --name
        #[argh(positional)]
        pub(crate) cell: String,

        /// the name that its id was made of
        #[argh(option, arg_name = "name")]
        pub(crate) name: Option<String>,

        /// print one JSON document on stdout
        #[argh(switch)]
        pub(crate) json: bool,
    }
}

on_a_bucket! {
    /// Has the node that owns a cell give it back to the bucket. What arrives meanwhile waits; the
    /// next request brings the cell into memory again, wherever it belongs then.
    #[argh(
        subcommand,
        name = "evict",
        note = "What runs in the cell has ten seconds to end. Its WebSockets are closed with 1012.
The variables of `celld --help` stand for their options.",
        example = "{command_name} app.Room --name lobby",
        error_code(0, "no node owns the cell, or none that lives"),
        error_code(1, "it was not done: the cell is busy, or its node or the bucket failed"),
        error_code(2, "refused: an argument or a variable")
    )]
    CellEvict {
        /// NAMESPACE/ID, or NAMESPACE with --name
        #[argh(positional)]
        pub(crate) cell: String,

        /// the name that its id was made of
        #[argh(option, arg_name = "name")]
        pub(crate) name: Option<String>,
    }
}

on_a_bucket! {
    /// Moves a cell to another node: its owner gives it back, that node takes it, and what arrives
    /// goes there. It stays until it rests: the request after that places it anew.
    #[argh(
        subcommand,
        name = "move",
        note = "What runs in the cell has ten seconds to end. Its WebSockets are closed with 1012.
The variables of `celld --help` stand for their options.",
        example = "{command_name} app.Room node-2 --name lobby",
        error_code(0, "the node has the cell"),
        error_code(1, "it was not done: the cell is busy, or a node or the bucket failed"),
        error_code(2, "refused: an argument or a variable")
    )]
    CellMove {
        /// NAMESPACE/ID, or NAMESPACE with --name
        #[argh(positional)]
        pub(crate) cell: String,

        /// the node that is to have it
        #[argh(positional)]
        pub(crate) node: String,

        /// the name that its id was made of
        #[argh(option, arg_name = "name")]
        pub(crate) name: Option<String>,
    }
}

on_a_bucket! {
    /// Deletes all data of a cell, for good: its database, its alarm, its files in the bucket. The
    /// next request finds an empty cell. Prints how much was deleted.
    #[argh(
        subcommand,
        name = "purge",
        note = "What runs in the cell has ten seconds to end, and is cut off then. A small record stays in the
bucket, so that nothing that is written late can bring the data back.
The variables of `celld --help` stand for their options.",
        example = "{command_name} app.Room --name lobby --yes",
        error_code(0, "purged"),
        error_code(1, "not purged, or old files are left: the message says which; do it again"),
        error_code(2, "refused: an argument or a variable, or --yes is missing")
    )]
    CellPurge {
        /// NAMESPACE/ID, or NAMESPACE with --name
        #[argh(positional)]
        pub(crate) cell: String,

        /// the name that its id was made of
        #[argh(option, arg_name = "name")]
        pub(crate) name: Option<String>,

        /// yes, delete it
        #[argh(switch)]
        pub(crate) yes: bool,
    }
}

on_a_bucket! {
    /// Stops a node as SIGTERM does: it finishes its requests, gives its cells back to the bucket,
    /// and ends with 0. Shows how far it is until its lease is given up, or over.
    #[argh(
        subcommand,
        name = "drain",
        note = "A supervisor that restarts its process always starts it again. Stop the unit instead, or
before.
The variables of `celld --help` stand for their options.",
        example = "{command_name} node-1",
        error_code(0, "the node has left; with --no-wait: it has begun to"),
        error_code(1, "it did not begin, or still answers after a minute"),
        error_code(2, "refused: an argument or a variable")
    )]
    Drain {
        /// the node
        #[argh(positional)]
        pub(crate) node: String,

        /// do not wait for its end
        #[argh(switch)]
        pub(crate) no_wait: bool,
    }
}
