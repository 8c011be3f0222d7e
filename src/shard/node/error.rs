//! Why a node does not start, as its operator reads it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use celld_core::node::NodeId;
use celld_rt as rt;

/// A node could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The system lacks something.
    #[error(transparent)]
    Preflight(#[from] rt::PreflightError),
    /// A thread or an executor could not start.
    #[error(transparent)]
    Start(#[from] rt::StartError),
    /// The state directory cannot be used.
    #[error("the state directory {0} cannot be used: {1}")]
    State(PathBuf, std::io::Error),
    /// Another process runs on it.
    #[error("another celld runs on the state directory {0}: stop it, or give each its own --state")]
    Locked(PathBuf),
    /// The listener's address is taken or not ours.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    /// The others would not know where to find it.
    #[error(
        "the internal listener is on all addresses ({0}), and one of them must be told to the other \
         nodes: say --advertise HOST:PORT"
    )]
    Advertise(SocketAddr),
    /// Everybody would reach the internal listener, and nobody has said that this is meant.
    #[error(
        "the other nodes would be told {0}, and {1} is a public address: nodes should reach each \
         other on a private network; if it is meant, say --unsafe-public-advertise"
    )]
    Public(String, IpAddr),
    /// What the others would be told is no node's address.
    #[error("the other nodes would be told {0}, and nobody reaches a node at {1}")]
    Nowhere(String, IpAddr),
    /// This node would be reached by its own machine only, but there are others elsewhere.
    #[error(
        "the other nodes would be told {told}, which only this machine reaches, but node {node} is \
         at {theirs}: in a fleet of several hosts say --advertise HOST:PORT with an address that \
         all of them reach"
    )]
    Apart {
        /// What this node would tell.
        told: String,
        /// One of the others.
        node: NodeId,
        /// What that one tells.
        theirs: String,
    },
    /// The other way round.
    #[error(
        "node {node} tells this one to reach it at {theirs}, which only its own machine does, but \
         this one is at {told}: start that one with --advertise HOST:PORT and an address that all \
         hosts of the fleet reach, or all nodes of one machine on loopback addresses"
    )]
    OtherApart {
        /// What this node would tell.
        told: String,
        /// One of the others.
        node: NodeId,
        /// What that one tells.
        theirs: String,
    },
    /// The fleet record cannot be had.
    #[error("{0}")]
    Fleet(String),
    /// The store cannot fence, or does not answer.
    #[error("{0}")]
    Store(String),
    /// [`NodeOptions::must_serve`](super::NodeOptions::must_serve), and nothing does.
    #[error("nothing can be served: {0}")]
    NothingServes(String),
    /// Signals cannot be taken over.
    #[error("signals cannot be handled: {0}")]
    Signals(std::io::Error),
}
