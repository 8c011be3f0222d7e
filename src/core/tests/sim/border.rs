//! What goes into a process of a simulation, and what comes out of it.

use celld_core::claim;
use celld_core::lease;
use celld_core::node::SessionId;
use celld_core::ownership::{Owner, Record};
use celld_core::time::Mono;

use super::bucket::{Answer, Request};

/// Something a client or the shard asks of a cell.
#[derive(Clone, Debug)]
pub struct Op {
    pub id: u64,
    pub cell: usize,
    pub kind: Kind,
    pub hops: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Commits this value.
    Write(u64),
    Read,
    /// Leaves memory if all is proven, and releases the cell.
    Release,
    /// Leaves memory if all is proven.
    Evict,
    /// Forgets everything, whatever is under way.
    Reset,
}

/// Whose timer, and whose request. A cell's number says which activation of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Lease,
    Claim(usize, u64),
    Proof(usize, u64),
}

#[derive(Clone, Debug)]
pub enum Tag {
    LeaseWrite,
    /// When it began.
    LeaseRead(u64),
    Owner(usize, u64),
    /// The last: when it began.
    OwnerLease(usize, u64, Owner, u64),
    Claim(usize, u64),
    Restore(usize, u64),
    Upload(usize, u64, u64),
    Proof(usize, u64, u64),
    /// A read begun with the upload: too early to prove it.
    Early(usize, u64),
    /// Nobody waits for its end.
    Release,
}

#[derive(Debug)]
pub enum Input {
    Started,
    Timer(Who),
    Answer(Tag, Answer),
    Op(Op),
}

/// What a process wants done, or did.
#[derive(Debug)]
pub enum Wish {
    Request(Tag, Request),
    Timer(Who, Mono),
    Fence(lease::Loss),
    Redirect(Op, SessionId),
    Served { cell: usize, record: Record, history: Vec<u64> },
    Released { cell: usize, record: Record, order: u64, op: Op, history: Vec<u64> },
    Failed { cell: usize, failure: claim::Failure },
}
