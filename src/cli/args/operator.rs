//! Commands that look at a fleet and change what its nodes do.

use std::path::PathBuf;

use argh::FromArgs;

use crate::cli::settings::BucketArgs;

/// The arguments of a command that finds its fleet by the bucket.
macro_rules! on_a_bucket {
    ($(#[$($meta:tt)*])* $name:ident { $($field:tt)* }) => {
        #[derive(FromArgs, Debug, PartialEq)]
        $(#[$($meta)*])*
        pub(crate) struct $name {
            $($field)*

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
        }

        impl $name {
            /// Where its fleet is.
            pub(crate) fn place(&self) -> BucketArgs {
                let Self { bucket, endpoint, region, ca_file, .. } = self;
                BucketArgs {
                    bucket: bucket.clone(),
                    endpoint: endpoint.clone(),
                    region: region.clone(),
                    ca_file: ca_file.clone(),
                }
            }
        }
    };
}

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
#[derive(FromArgs, Debug, PartialEq)]
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
#[derive(FromArgs, Debug, PartialEq)]
#[argh(subcommand)]
pub(crate) enum CellCommand {
    List(CellList),
    Show(CellShow),
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
