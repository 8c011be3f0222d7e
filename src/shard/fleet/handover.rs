//! A cell goes to a node that its owner has chosen: given back to the bucket here, taken there.
//!
//! Between the two nobody owns it. If somebody else takes it then, the move has failed and nothing
//! else: ownership is decided in the bucket, as ever.

use std::rc::Rc;
use std::time::Duration;

use celld_core::epoch::Epoch;
use celld_core::node::NodeId;
use celld_peer::take::{TakeHead, Taken};
use celld_peer::{Ask, Call, CallError, CallKind, Cause, Code, Refusal};

use crate::cell::{Cell, Order};
use crate::operator::{Done, Refused, ShardAsk, order};
use crate::shard::Shard;

/// To claim a cell, and to restore it: of a large one this takes a while.
const TAKE_LIMIT: Duration = Duration::from_secs(30);

/// Has `to` take a cell that nobody owns any more. Returns its epoch there.
///
/// # Errors
/// It did not, or is not known to have.
pub(crate) async fn hand_to(
    shard: &Rc<Shard>,
    cell: &Rc<Cell>,
    to: &NodeId,
) -> Result<Epoch, Refused> {
    let not_taken = |why: &dyn std::fmt::Display| {
        let words = format!(
            "the cell {} has left this node, and node {to} did not take it: {why}; its next request \
             places it",
            cell.id
        );
        Refused::for_now("not_taken", words)
    };
    let link = shard.fleet.get().and_then(|fleet| fleet.link(to, None, &cell.id));
    let Some(link) = link else { return Err(not_taken(&"it cannot be reached from here")) };
    let target = cell.target();
    let head = TakeHead { cell: cell.id.clone(), class: target.class, name: target.name };
    let head = head.encode().map_err(|error| not_taken(&error))?;
    let ask = Ask { kind: CallKind::TAKE, head, wait: Some(TAKE_LIMIT) };
    let answer = async { link.ask(ask).await?.answer().await };
    match answer.await {
        Ok(answer) => {
            Taken::decode(&answer.head).map(|taken| taken.epoch).map_err(|error| not_taken(&error))
        }
        Err(error) if is_lost_race(&error) => {
            let words = format!("another node has taken the cell {} first", cell.id);
            Err(Refused::for_now("not_owner", words))
        }
        Err(error) => Err(not_taken(&error)),
    }
}

fn is_lost_race(error: &CallError) -> bool {
    matches!(&error.cause, Cause::Refused(refusal) if refusal.code == Code::NotOwner)
}

/// Takes a cell that its owner has given up for this node.
pub(super) async fn take(shard: Rc<Shard>, call: Call) {
    let Call { head, reply, .. } = call;
    let TakeHead { cell, class, name } = match TakeHead::decode(&head) {
        Ok(head) => head,
        Err(error) => return reply.refuse(Refusal::new(Code::Unsupported, error.to_string())),
    };
    let known_as = Some((class, name));
    let asked = ShardAsk::Order { cell: cell.clone(), known_as, order: Order::Take };
    match order(&shard, &cell, asked).await {
        Ok(Done { epoch, .. }) => {
            if let Err(error) = reply.send(Taken { epoch }.encode()) {
                celld_rt::log!("celld: cell {cell}: its former owner is not answered: {error}");
            }
        }
        Err(Refused { code, words, .. }) => {
            let code = match code {
                "not_owner" => Code::NotOwner,
                "draining" => Code::Draining,
                _ => Code::Failed,
            };
            reply.refuse(Refusal::new(code, words));
        }
    }
}
