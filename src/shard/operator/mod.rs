//! The operator's calls: who may make them, which shard answers them, and how.
//!
//! They come over the internal listener, from a certificate of the role *operator*: who can read
//! the fleet's record in the bucket can make one, and nobody else. A call lands on the shard that
//! the kernel chose, which asks the shard of the cell, or all of them, over the mesh.
//!
//! Invariant: each request has an answer, also when the shard that is asked is busy with JavaScript
//! for long: the caller's time ends it. Memory is bounded by [`CELLS_MAX`] for each list.

pub mod resident;

use std::rc::Rc;

use bytes::Bytes;
use celld_core::cell::CellId;
use celld_peer::operator::{OperatorReply, OperatorRequest};
use celld_peer::{Call, Code, Refusal, Reply};
use celld_rt as rt;

use self::resident::ResidentCell;
use crate::router;
use crate::shard::Shard;

/// Cells of one list at most: a quarter of a megabyte.
pub const CELLS_MAX: usize = 1_000;

/// What a shard is asked.
pub(crate) enum ShardAsk {
    /// Its cells in memory, in the order of their names.
    List { after: Option<CellId>, limit: usize },
    /// One of them, as it is in memory.
    Show(CellId),
}

/// What it says.
pub(crate) enum ShardAnswer {
    /// In the order of their names.
    Cells(Vec<ResidentCell>),
}

/// Where the answer goes.
pub(crate) type Tell = rt::oneshot::Sender<Result<ShardAnswer, Refused>>;

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Stable: scripts may compare it.
    pub code: &'static str,
    /// For a person: what, where, and what to do.
    pub words: String,
    /// The same may succeed later.
    pub retryable: bool,
}

impl Refused {
    pub fn new(code: &'static str, words: impl Into<String>) -> Self {
        Self { code, words: words.into(), retryable: false }
    }

    pub fn for_now(code: &'static str, words: impl Into<String>) -> Self {
        Self { code, words: words.into(), retryable: true }
    }
}

/// Answers one call of an operator.
pub(crate) async fn answer(shard: Rc<Shard>, call: Call) {
    let request = match OperatorRequest::decode(&call.head) {
        Ok(request) => request,
        Err(error) => {
            return call.reply.refuse(Refusal::new(Code::Unsupported, error.to_string()));
        }
    };
    match perform(&shard, request).await {
        Ok(lines) => send(call.reply, &OperatorReply::Done, lines),
        Err(Refused { code, words, retryable }) => {
            let refused = OperatorReply::Refused { code: code.to_owned(), words, retryable };
            send(call.reply, &refused, Bytes::new());
        }
    }
}

fn send(reply: Reply, head: &OperatorReply, body: Bytes) {
    // The words of a refusal are short, and who has gone does not want them.
    let sent = head.encode().and_then(|head| {
        if body.is_empty() { reply.send(head) } else { reply.send_whole(head, body) }
    });
    if let Err(error) = sent {
        eprintln!("celld: an operator is not answered: {error}");
    }
}

/// The body of the answer.
async fn perform(shard: &Rc<Shard>, request: OperatorRequest) -> Result<Bytes, Refused> {
    match request {
        OperatorRequest::ListCells { after, limit } => {
            let limit = usize::try_from(limit).unwrap_or(CELLS_MAX).min(CELLS_MAX);
            list(shard, after, limit).await
        }
        OperatorRequest::ShowCell(cell) => {
            let cells = ask(shard, cell.shard(shard.facts.shards), ShardAsk::Show(cell)).await?;
            Ok(resident::lines(&cells_of(cells)))
        }
        OperatorRequest::EvictCell(_)
        | OperatorRequest::MoveCell { .. }
        | OperatorRequest::PurgeCell(_)
        | OperatorRequest::Drain => {
            Err(Refused::new("unsupported", "this node does not know how to do that"))
        }
    }
}

async fn list(shard: &Rc<Shard>, after: Option<CellId>, limit: usize) -> Result<Bytes, Refused> {
    let mut all = Vec::new();
    for index in 0..shard.facts.shards {
        let asked = ShardAsk::List { after: after.clone(), limit };
        all.extend(cells_of(ask(shard, index, asked).await?));
        // What is behind the first ones is not kept.
        all.sort_by(|a: &ResidentCell, b| a.parts().cmp(&b.parts()));
        all.truncate(limit);
    }
    Ok(resident::lines(&all))
}

fn cells_of(answer: ShardAnswer) -> Vec<ResidentCell> {
    match answer {
        ShardAnswer::Cells(cells) => cells,
    }
}

/// Asks a shard of this node.
async fn ask(shard: &Rc<Shard>, index: usize, asked: ShardAsk) -> Result<ShardAnswer, Refused> {
    let (tell, told) = rt::oneshot::channel();
    if index == shard.index {
        shard.operate(asked, tell);
    } else if !router::send_operator(shard, index, asked, tell) {
        return Err(Refused::for_now("busy", "the shard of the cell is overloaded"));
    }
    told.await.unwrap_or_else(|_| Err(Refused::for_now("stopping", "the node has stopped")))
}

impl Shard {
    /// Does what an operator wants of this shard. The answer may come later.
    pub fn operate(self: &Rc<Self>, asked: ShardAsk, tell: Tell) {
        match asked {
            ShardAsk::List { after, limit } => {
                let cells = self.first_cells(after.as_ref(), limit);
                let cells = cells.iter().map(|cell| cell.resident()).collect();
                let _gone = tell.send(Ok(ShardAnswer::Cells(cells)));
            }
            ShardAsk::Show(id) => {
                let cell = match self.known_cell(&id) {
                    Some(cell) => cell.resident(),
                    None => ResidentCell::absent(&id, self.sleepers.borrow().due(&id)),
                };
                let _gone = tell.send(Ok(ShardAnswer::Cells(vec![cell])));
            }
        }
    }
}
