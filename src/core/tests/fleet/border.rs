//! What goes into a process of the simulation, and what comes out of it.

use celld_core::alarm::{End, Stored};
use celld_core::claim;
use celld_core::lease;
use celld_core::node::{NodeId, SessionId};
use celld_core::ownership::{Owner, Record, Route};
use celld_core::route::{CallError, Refusal};
use celld_core::time::{Mono, Wall};
use celld_core::wake::{Entry, Verdict};

use super::bucket::{Answer, Request};

/// One commit of a cell. All differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    Write(u64),
    /// The cell has set or deleted its alarm. The number tells it from others.
    Alarm(u64, Option<Stored>),
    /// A run of the alarm has left this.
    Left(u64, Option<Stored>),
}

/// Something that somebody asks of a cell.
#[derive(Clone, Debug)]
pub struct Op {
    pub id: u64,
    pub cell: usize,
    pub kind: Kind,
    pub source: Source,
    /// When it entered the process that has it.
    pub since: Mono,
    pub failures: u32,
    /// Where it was sent last.
    pub route: Option<Route>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    Read,
    SetAlarm(When),
    DeleteAlarm,
    /// The alarm may be due: because of this entry, or of a timer.
    Visit(Option<Entry>),
    /// Its owner has given the cell up for this node, which is to have it in memory.
    Take(NodeId),
}

/// A time for an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    In(u64),
    At(Wall),
}

/// Who waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Client,
    Scan,
    Sleepers,
    /// The process itself, which moves the cell.
    Mover,
    /// Another process, with this call.
    Call(u64),
}

/// What becomes of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Verdict(Verdict),
    /// It has not run.
    Refused(Refusal),
    /// It may have run.
    Failed,
}

/// What the shard itself, or an operator, wants of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Leave memory if all is proven, and release the cell.
    Release,
    /// Leave memory if all is proven.
    Evict,
    /// Forget everything, whatever is under way.
    Reset,
    /// Leave memory if all is proven, and give the cell to another node, by this number.
    Move(u64),
    /// Delete all its data.
    Purge,
}

/// Whose timer. A cell's second number says which activation of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Lease,
    Poll,
    Scan,
    Sleepers,
    Drain,
    Op(u64),
    Claim(usize, u64),
    Proof(usize, u64),
    Cover(usize, u64),
    Alarm(usize, u64),
}

/// Whose request of the bucket.
#[derive(Clone, Debug)]
pub enum Tag {
    /// Nobody waits for its end.
    Nobody,
    LeaseWrite,
    /// When it began.
    LeaseRead(Mono),
    Members,
    Member(NodeId, Mono),
    Owner(usize, u64),
    OwnerLease(usize, u64, Owner, Mono),
    Claim(usize, u64),
    Restore(usize, u64),
    /// The release of a cell that this node is to get.
    Moved(usize, u64, NodeId),
    Upload(usize, u64, u64),
    Proof(usize, u64, u64),
    /// A read begun with the upload: too early to prove it.
    Early(usize, u64),
    Entry(usize, u64, u64),
    Index,
}

#[derive(Debug)]
pub enum Input {
    Started,
    Timer(Who),
    Answer(Tag, Answer),
    /// Enters here.
    Op(Op),
    /// Comes from another process.
    Called(Op),
    CallEnded(u64, Result<Outcome, CallError>),
    Order(usize, Order),
    /// `alarm()` does something and ends.
    Handler {
        cell: usize,
        activation: u64,
        scheduled: Wall,
        sets: Option<When>,
        end: End,
    },
    Drain,
}

/// What a process wants done, or did.
#[derive(Debug)]
pub enum Wish {
    Request(Tag, Request),
    Timer(Who, Mono),
    Fence(lease::Loss),
    /// Another node has a cell that was given to it.
    Moved,
    /// The drain has ended what ran in a cell.
    CutOff,
    /// The drain is over.
    Exit(celld_core::drain::Exit),
    Call {
        call: u64,
        to: NodeId,
        session: Option<SessionId>,
        op: Op,
    },
    Answer {
        call: u64,
        outcome: Outcome,
    },
    /// A client is told.
    Ended(Outcome),
    Served {
        cell: usize,
        record: Record,
        history: Vec<Commit>,
    },
    Released {
        cell: usize,
        record: Record,
        order: u64,
        op: Op,
        history: Vec<Commit>,
    },
    Failed {
        cell: usize,
        failure: claim::Failure,
    },
    /// `alarm()` begins.
    Runs {
        cell: usize,
        activation: u64,
        scheduled: Wall,
    },
    /// It has ended well.
    Ran {
        cell: usize,
        scheduled: Wall,
    },
    /// It has failed too often.
    GaveUp {
        cell: usize,
        scheduled: Wall,
    },
}

/// The alarm after these commits.
pub fn alarm_of(history: &[Commit]) -> Option<Stored> {
    history.iter().rev().find_map(|commit| match commit {
        Commit::Write(_) => None,
        Commit::Alarm(_, stored) | Commit::Left(_, stored) => Some(*stored),
    })?
}
