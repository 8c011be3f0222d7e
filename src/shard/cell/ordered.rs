//! What an operator wants done with a cell: put to rest, moved, purged, or taken.
//!
//! From the order on, what arrives waits, so that the cell becomes quiet also under load; what runs
//! in it ends as usual. If it does not end in time, the order is refused, and the cell goes on; only
//! a purge ends it.

use std::cell::Cell as StdCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use celld_core::cas::CasOutcome;
use celld_core::node::NodeId;
use celld_core::ownership::Record;
use celld_core::time::Wall;
use celld_core::wake::sleepers;
use celld_rt as rt;
use celld_s3::StoreError;
use celld_v8host::Failure;

use super::{Arrival, Cell, Phase, State};
use crate::body::failure;
use crate::fleet::forward::Destination;
use crate::fleet::handover;
use crate::operator::purge::{delete_files, not_had, owned_elsewhere, purge};
use crate::operator::resident::{CellState, ResidentCell};
use crate::operator::{Done, Refused, ShardAnswer, Tell};
use crate::shard::Shard;

/// For what runs in a cell to end: longer than most requests, and a person still waits.
const QUIET_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at uploads that are under way.
const UPLOADS_PAUSE: Duration = Duration::from_millis(5);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Give it back to the bucket.
    Evict,
    /// Give it to this node.
    Move(NodeId),
    /// Delete all its data.
    Purge,
    /// Have it in memory: another node has given it up for this one.
    Take,
}

/// An order that the cell works on, and who is told of its end.
pub(super) struct Ordered {
    pub order: Order,
    pub tell: Tell,
}

/// See [`Cell::uploads`].
pub(super) struct Uploading<'a>(&'a StdCell<u32>);

impl Drop for Uploading<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Ordered {
    fn ends(self, result: Result<Done, Refused>) {
        // Who has gone does not want to know.
        let _gone = self.tell.send(result.map(ShardAnswer::Done));
    }
}

impl Cell {
    /// An operator wants this done.
    pub fn order(self: &Rc<Self>, order: Order, tell: Tell) {
        let is_cold = matches!(self.state.borrow().phase, Phase::Cold);
        let ordered = Ordered { order, tell };
        if is_cold && ordered.order == Order::Purge {
            // Its database may be what keeps it from coming into memory.
            return self.purge_from_bucket(ordered);
        }
        self.enqueue(Arrival::Order(ordered));
    }

    /// The cell is in memory, and this is next.
    pub(super) fn begin_order(self: &Rc<Self>, ordered: Ordered) {
        let life = {
            let mut state = self.state.borrow_mut();
            let life = state.life;
            let Phase::Live(live) = &state.phase else {
                unreachable!("orders are delivered to a cell that lives")
            };
            if ordered.order == Order::Take {
                let epoch = live.token.epoch;
                drop(state);
                return ordered.ends(Ok(Done::of(epoch)));
            }
            state.ordered = Some(ordered);
            life
        };
        let cell = Rc::downgrade(self);
        self.spawn(async move {
            rt::sleep(QUIET_LIMIT).await;
            if let Some(cell) = cell.upgrade() {
                cell.give_order_up(life);
            }
        });
        self.leave_if_ordered();
    }

    /// Leaves memory if an order wants that and nothing runs. Returns whether there is an order.
    pub(super) fn leave_if_ordered(self: &Rc<Self>) -> bool {
        let is_ordered = self.state.borrow().ordered.is_some();
        if is_ordered && self.only_listens() {
            // What is due all the same is found again by whoever has the cell next.
            self.state.borrow_mut().arrivals.retain(|arrival| match arrival {
                Arrival::Fetch(_) | Arrival::Order(_) => true,
                Arrival::Alarm { .. } | Arrival::Socket(_) => false,
            });
            self.close_sockets("the Durable Object leaves this node");
            self.leave();
        }
        is_ordered
    }

    /// What runs has not ended in time.
    fn give_order_up(self: &Rc<Self>, life: u64) {
        let ordered = {
            let mut state = self.state.borrow_mut();
            if state.life != life || !matches!(state.phase, Phase::Live(_)) {
                return;
            }
            let is_purge = |ordered: &Ordered| ordered.order == Order::Purge;
            if state.ordered.as_ref().is_some_and(is_purge) {
                drop(state);
                let text = "The Durable Object was purged by an operator.";
                return self
                    .reset(&Failure { durable_object_reset: true, ..failure("Error", text) });
            }
            state.ordered.take()
        };
        if let Some(ordered) = ordered {
            ordered.ends(Err(self.is_busy()));
            self.deliver_arrivals();
            self.rest_if_idle();
        }
    }

    fn is_busy(&self) -> Refused {
        let words = format!(
            "the cell {} is busy: requests, WebSockets or alarms of it did not end within {} s; it \
             goes on as before, so try again later",
            self.id,
            QUIET_LIMIT.as_secs()
        );
        Refused::for_now("cell_busy", words)
    }

    /// The cell was reset while it had an order. Returns whether the order goes on.
    pub(super) fn reset_under_order(self: &Rc<Self>) -> bool {
        let Some(ordered) = self.state.borrow_mut().ordered.take() else { return false };
        if ordered.order == Order::Purge {
            self.purge_from_bucket(ordered);
            return true;
        }
        let words = format!("the cell {} was reset meanwhile; try again", self.id);
        ordered.ends(Err(Refused::for_now("cell_reset", words)));
        false
    }

    /// The cell has left memory for an order: `written` was to be its record.
    pub(super) async fn obey(
        self: Rc<Self>,
        shard: Rc<Shard>,
        ordered: Ordered,
        written: Record,
        outcome: Result<CasOutcome, StoreError>,
        due: Option<Wall>,
    ) {
        let stands = match outcome {
            Ok(CasOutcome::Applied(_)) => true,
            Ok(CasOutcome::Refused | CasOutcome::Unknown) | Err(_) => {
                self.stands(&shard, &written).await
            }
        };
        match ordered.order.clone() {
            Order::Purge if stands => {
                self.until_nothing_is_uploaded().await;
                ordered.ends(delete_files(&shard.bucket, &self.id, written.epoch).await);
                self.is_away(&shard, None);
            }
            Order::Purge => self.purge_from_bucket(ordered),
            Order::Evict | Order::Move(_) | Order::Take if !stands => {
                let words = format!(
                    "the cell {} has left memory, but its record still names this node: the bucket \
                     did not take the release; try again",
                    self.id
                );
                ordered.ends(Err(Refused::for_now("not_released", words)));
                self.is_away(&shard, due);
            }
            Order::Evict | Order::Take => {
                ordered.ends(Ok(Done::of(written.epoch)));
                self.is_away(&shard, due);
            }
            Order::Move(to) => match handover::hand_to(&shard, &self, &to).await {
                Ok(epoch) => {
                    ordered.ends(Ok(Done::of(epoch)));
                    self.send_arrivals(&shard, &Destination::Placed(to));
                }
                Err(refused) => {
                    ordered.ends(Err(refused));
                    self.is_away(&shard, due);
                }
            },
        }
    }

    /// Whether the record in the bucket is `written`.
    async fn stands(&self, shard: &Shard, written: &Record) -> bool {
        let read = shard.bucket.get(&self.id.own_key()).await;
        let record = read.ok().flatten().map(|object| Record::parse(&object.body, &self.id));
        record.is_some_and(|record| record.as_ref() == Ok(written))
    }

    /// It is out of memory. `due`: its alarm, if this node is to wake it.
    fn is_away(self: &Rc<Self>, shard: &Rc<Shard>, due: Option<Wall>) {
        self.state.borrow_mut().phase = Phase::Cold;
        shard.owes_alarm(&self.id, due, None);
        self.wake_or_forget();
    }

    /// Purges the cell, which is not in memory. What arrives waits.
    fn purge_from_bucket(self: &Rc<Self>, ordered: Ordered) {
        let Some(shard) = self.shard.upgrade() else { return };
        {
            let mut state = self.state.borrow_mut();
            state.phase = Phase::Leaving;
            state.kept = None;
        }
        self.close_sockets("the Durable Object was purged");
        shard.sleepers_event(sleepers::Event::Woke(self.id.clone()));
        let _nothing_is_owed = shard.alarm_owed(&self.id);
        let cell = self.clone();
        self.spawn(async move {
            cell.until_nothing_is_uploaded().await;
            ordered.ends(purge(&shard, &cell.id).await);
            cell.is_away(&shard, None);
        });
    }

    /// Counts a write of a file, for as long as this lives.
    pub(super) fn uploads(&self) -> Uploading<'_> {
        self.uploads.set(self.uploads.get() + 1);
        Uploading(&self.uploads)
    }

    /// What is to be done with the cell, which leaves memory.
    pub(super) fn take_order(&self) -> Option<Ordered> {
        self.state.borrow_mut().ordered.take()
    }

    pub(super) fn is_to_be_purged(&self) -> bool {
        let state = self.state.borrow();
        state.ordered.as_ref().is_some_and(|ordered| ordered.order == Order::Purge)
    }

    /// What an earlier life still writes would stay behind.
    async fn until_nothing_is_uploaded(&self) {
        while self.uploads.get() > 0 {
            rt::sleep(UPLOADS_PAUSE).await;
        }
    }

    /// The constructor has thrown, and a reset follows: a purge that waits is not to fail with it.
    pub(super) fn keep_purge(&self, arrivals: &mut VecDeque<Arrival>) {
        let mut state = self.state.borrow_mut();
        let is_purge = |arrival: &Arrival| match arrival {
            Arrival::Order(ordered) => ordered.order == Order::Purge,
            Arrival::Fetch(_) | Arrival::Alarm { .. } | Arrival::Socket(_) => false,
        };
        let waits = arrivals.iter().position(is_purge).filter(|_| state.ordered.is_none());
        if let Some(Arrival::Order(purge)) = waits.and_then(|at| arrivals.remove(at)) {
            state.ordered = Some(purge);
        }
    }

    /// The cell cannot come into memory: that is no reason not to purge it.
    pub(super) fn fail_order(self: &Rc<Self>, ordered: Ordered, why: &Failure) {
        let is_cold = matches!(self.state.borrow().phase, Phase::Cold);
        if is_cold && ordered.order == Order::Purge {
            self.purge_from_bucket(ordered);
        } else {
            ordered.ends(Err(not_had(why)));
        }
    }

    /// Another node has the cell.
    pub(super) fn order_is_elsewhere(&self, ordered: Ordered, to: &Destination) {
        ordered.ends(Err(owned_elsewhere(&self.id, to)));
    }

    /// The cell as it is in memory.
    pub fn resident(&self) -> ResidentCell {
        let is_idle = self.is_idle();
        let State { phase, arrivals, .. } = &*self.state.borrow();
        let is_fetch = |arrival: &&Arrival| matches!(arrival, Arrival::Fetch(_));
        let known = |state| ResidentCell {
            name: self.name.borrow().clone(),
            class: Some(self.class.clone()),
            sockets: self.socket_count() as u64,
            waiting: arrivals.iter().filter(is_fetch).count() as u64,
            ..ResidentCell::of(&self.id, state)
        };
        let live = match phase {
            Phase::Cold => return known(CellState::Absent),
            Phase::Activating => return known(CellState::Activating),
            Phase::Leaving => return known(CellState::Leaving),
            Phase::Live(live) => live,
        };
        let restored = live.restored.flatten();
        ResidentCell {
            epoch: Some(live.token.epoch.get()),
            txid: Some(live.store.txid().get()),
            proven_txid: Some(live.proof.proven().get()),
            database_bytes: Some(live.store.database_bytes()),
            memory_bytes: Some(live.store.memory_bytes() as u64),
            events: u64::from(live.busy),
            alarm_ms: live.alarm.stored().or(restored).map(|alarm| alarm.due.as_millis()),
            ..known(if is_idle { CellState::Idle } else { CellState::Busy })
        }
    }
}
