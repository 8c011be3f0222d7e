//! The operator's calls: who may make them, which shard answers them, and how.
//!
//! They come over the internal listener, from a certificate of the role *operator*: who can read
//! the fleet's record in the bucket can make one, and nobody else. A call lands on the shard that
//! the kernel chose, which asks the shard of the cell, or all of them, over the mesh.
//!
//! Invariant: each request has an answer, also when the shard that is asked is busy with JavaScript
//! for long: the caller's time ends it. Memory is bounded by [`CELLS_MAX`] for each list.

pub(crate) mod purge;
pub mod resident;

use std::rc::Rc;

use bytes::Bytes;
use celld_core::cell::CellId;
use celld_core::epoch::Epoch;
use celld_peer::operator::{OperatorReply, OperatorRequest};
use celld_peer::{Call, Code, Refusal, Reply};
use celld_rt as rt;

use serde_json::json;

use self::resident::ResidentCell;
use crate::cell::Order;
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
    /// Do this with it. `known_as`: its class and its name, if who asks knows them.
    Order { cell: CellId, known_as: Option<(String, Option<String>)>, order: Order },
}

/// What it says.
pub(crate) enum ShardAnswer {
    /// In the order of their names.
    Cells(Vec<ResidentCell>),
    /// It is done.
    Done(Done),
}

/// What was done with a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// Of its record, afterwards.
    pub epoch: Epoch,
    /// Files that were deleted.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Done {
    /// Without a file.
    pub fn of(epoch: Epoch) -> Self {
        Self { epoch, files: 0, bytes: 0 }
    }

    fn line(self) -> Bytes {
        let Self { epoch, files, bytes } = self;
        let json = json!({ "epoch": epoch.get(), "files": files, "bytes": bytes });
        format!("{json}\n").into()
    }
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
        rt::log!("celld: an operator is not answered: {error}");
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
        OperatorRequest::EvictCell(cell) => obey(shard, cell, Order::Evict).await,
        OperatorRequest::MoveCell { cell, to } if to == shard.facts.me.node => {
            obey(shard, cell, Order::Take).await
        }
        OperatorRequest::MoveCell { cell, to } => {
            if !shard.fleet.get().is_some_and(|fleet| fleet.reaches(&to)) {
                let words = format!("node {to} cannot be reached from here: nothing has moved");
                return Err(Refused::for_now("unreachable", words));
            }
            obey(shard, cell, Order::Move(to)).await
        }
        OperatorRequest::PurgeCell(cell) => obey(shard, cell, Order::Purge).await,
        OperatorRequest::Drain => {
            rt::log!("celld: an operator drains this node");
            shard.facts.signals.request_drain();
            Ok(Bytes::new())
        }
        OperatorRequest::Flush => {
            let facts = shard.facts.clone();
            let flushed = rt::blocking(move || facts.scratch.flush(&facts.state)).await;
            flushed.map(|()| Bytes::new()).map_err(|error| {
                let words = format!("the state directory cannot be written and flushed: {error}");
                Refused::for_now("disk", words)
            })
        }
    }
}

async fn obey(shard: &Rc<Shard>, cell: CellId, order: Order) -> Result<Bytes, Refused> {
    rt::log!("celld: cell {cell}: ordered by an operator: {order:?}");
    let asked = ShardAsk::Order { cell: cell.clone(), known_as: None, order };
    self::order(shard, &cell, asked).await.map(Done::line)
}

/// Has something done with a cell, on the shard that owns it.
pub(crate) async fn order(
    shard: &Rc<Shard>,
    cell: &CellId,
    asked: ShardAsk,
) -> Result<Done, Refused> {
    match ask(shard, cell.shard(shard.facts.shards), asked).await? {
        ShardAnswer::Done(done) => Ok(done),
        ShardAnswer::Cells(_) => unreachable!("it was told what to do"),
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
        ShardAnswer::Done(_) => unreachable!("it was asked what there is"),
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
            ShardAsk::Order { cell, known_as, order } => self.order(cell, known_as, order, tell),
        }
    }

    fn order(
        self: &Rc<Self>,
        id: CellId,
        known_as: Option<(String, Option<String>)>,
        order: Order,
        tell: Tell,
    ) {
        if self.draining.is_raised() {
            let words = "the node drains, and gives all its cells away; ask another one";
            let _gone = tell.send(Err(Refused::for_now("draining", words)));
            return;
        }
        let found = match (self.known_cell(&id), known_as) {
            (Some(cell), _) => Some(cell),
            (None, Some((class, name))) => {
                let cell = self.cell(id.clone(), &class);
                cell.learn_name(name);
                Some(cell)
            }
            (None, None) => self.uncalled_cell(&id),
        };
        match found {
            Some(cell) => cell.order(order, tell),
            None if order == Order::Purge => {
                // No class is needed for that.
                let shard = self.clone();
                rt::spawn(async move {
                    let done = purge::purge(&shard, &id).await;
                    let _gone = tell.send(done.map(ShardAnswer::Done));
                });
            }
            None => {
                let words = format!(
                    "the deployment that this node serves has no class for the namespace {}",
                    id.namespace()
                );
                let _gone = tell.send(Err(Refused::new("no_class", words)));
            }
        }
    }
}
