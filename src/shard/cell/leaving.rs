//! How a cell leaves memory: by a reset, by eviction, or into the realm of a newer version.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use celld_core::cas::{Etag, Guard, Nonce};
use celld_core::drain;
use celld_core::eviction::{Event, Rest};
use celld_core::ownership::Record;
use celld_core::route::Refusal;
use celld_core::time::Wall;
use celld_core::txid::Txid;
use celld_core::wake::Verdict;
use celld_rt as rt;
use celld_v8host::Failure;

use super::{Arrival, Cell, Live, Order, Phase, State, alarm, perform_gate};
use crate::body::failure;
use crate::drain::stopping;
use crate::shard::random;

impl Cell {
    /// One event of this cell is over.
    pub fn event_finished(self: &Rc<Self>) {
        {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            live.busy = live.busy.saturating_sub(1);
        }
        self.rest_if_idle();
    }

    /// As `reset`, for what the cell's own code did. Before the end of the constructor it is told to
    /// those who wait for that, too: the next life would end in the same way.
    pub fn fail_life(self: &Rc<Self>, why: &Failure) {
        let waiting = {
            let mut state = self.state.borrow_mut();
            let State { phase, arrivals, .. } = &mut *state;
            let Phase::Live(live) = phase else { return };
            (!live.is_open).then(|| std::mem::take(arrivals))
        };
        let Some(mut waiting) = waiting else { return self.reset(why) };
        self.keep_purge(&mut waiting);
        self.reset(why);
        if waiting.is_empty() {
            rt::log!("Uncaught {why} (in the constructor)");
        }
        self.fail(waiting, why);
    }

    /// Drops what is in memory. Callers get `why`; the next request starts from what is durable.
    pub fn reset(self: &Rc<Self>, why: &Failure) {
        let mut live = {
            let mut state = self.state.borrow_mut();
            match std::mem::replace(&mut state.phase, Phase::Cold) {
                Phase::Live(live) => {
                    state.life += 1;
                    live
                }
                other => {
                    state.phase = other;
                    return;
                }
            }
        };
        let (due, owed) = alarm::cut_off(&mut live, why, &self.id);
        let Live { host, slot, mut gate, .. } = *live;
        let mut effects = Vec::new();
        gate.break_now(&mut effects);
        host.close_cell(slot, why);
        perform_gate(&host, effects);
        // What came on them is for nobody any more.
        self.state.borrow_mut().arrivals.retain(|arrival| !matches!(arrival, Arrival::Socket(_)));
        self.close_sockets(&why.message);
        if let Some(shard) = self.shard.upgrade() {
            shard.owes_alarm(&self.id, due, owed);
        }
        self.fail_visits();
        self.wake_or_forget();
    }

    fn fail_visits(&self) {
        let visits = std::mem::take(&mut self.state.borrow_mut().visits);
        for (_, answer) in visits {
            let _gone = answer.send(Verdict::Failed);
        }
    }

    /// A node that gives its cells away takes none back for another one.
    fn refuse_if_draining(&self) {
        if !self.shard.upgrade().is_some_and(|shard| shard.draining.is_raised()) {
            return;
        }
        refuse(self.take_arrivals_of_nodes(), Refusal::Draining);
    }

    pub(super) fn take_arrivals_of_nodes(&self) -> VecDeque<Arrival> {
        let mut state = self.state.borrow_mut();
        let (of_nodes, others) = std::mem::take(&mut state.arrivals)
            .into_iter()
            .partition(|arrival| matches!(arrival, Arrival::Fetch(wanted) if wanted.via.is_node()));
        state.arrivals = others;
        of_nodes
    }

    /// After a life in memory: those who came meanwhile start the next one.
    pub(super) fn wake_or_forget(self: &Rc<Self>) {
        self.refuse_if_draining();
        if self.reset_under_order() {
            return;
        }
        let wake = {
            let mut state = self.state.borrow_mut();
            let wanted = !state.arrivals.is_empty() || !state.visits.is_empty();
            let wake = matches!(state.phase, Phase::Cold) && wanted;
            if wake {
                state.phase = Phase::Activating;
            }
            wake
        };
        if wake { self.activate() } else { self.forget_if_cold() }
    }

    pub(super) fn forget_if_cold(self: &Rc<Self>) {
        let cold = {
            let state = self.state.borrow();
            matches!(state.phase, Phase::Cold)
                && state.arrivals.is_empty()
                && state.visits.is_empty()
                && !self.has_sockets()
        };
        if let (true, Some(shard)) = (cold, self.shard.upgrade()) {
            shard.forget_cell(self);
        }
    }

    /// Whether nothing runs in it and nothing waits for it or for a proof.
    pub fn is_idle(&self) -> bool {
        self.is_quiet() && self.state.borrow().arrivals.is_empty()
    }

    /// The same, whoever waits for it.
    fn is_quiet(&self) -> bool {
        matches!(&self.state.borrow().phase, Phase::Live(live) if live.busy == 0 && live.is_at_rest())
    }

    /// Whether nothing runs in it but what waits for messages on plain WebSockets, whoever waits for
    /// it. They keep it in memory, but not here: it leaves for good reasons, and they are closed.
    pub(super) fn only_listens(&self) -> bool {
        matches!(&self.state.borrow().phase, Phase::Live(live) if live.is_at_rest() && live.only_listens())
    }

    /// Eviction is told of a rest once, not after every request: when it comes for the cell it
    /// learns whether that was used meanwhile.
    pub fn rest_if_idle(self: &Rc<Self>) {
        if self.leave_if_ordered() {
            return;
        }
        let Some(shard) = self.shard.upgrade() else { return };
        if shard.draining.is_raised() && self.may_leave() {
            shard.drain_event(|| drain::Event::Idle(self.key));
        }
        self.update_if_idle();
        // It may have left just now.
        if !self.is_idle() {
            return;
        }
        {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            if live.is_resting {
                return;
            }
            live.is_resting = true;
            live.was_used = false;
            live.release_memory();
        }
        shard.eviction_event(Event::Idle(self.key, self.rest()));
    }

    /// With sockets that stay, and nothing else that an eviction would end, it leaves early.
    fn rest(&self) -> Rest {
        let place = match &self.state.borrow().phase {
            Phase::Live(live) => Some((live.host.clone(), live.slot)),
            Phase::Cold | Phase::Activating | Phase::Leaving => None,
        };
        match place {
            Some((host, slot)) if self.has_sockets() && !host.holds_something(slot) => {
                Rest::Hibernatable
            }
            Some(_) | None => Rest::Plain,
        }
    }

    /// A newer version of the script runs: the cell goes into its realm once nothing runs in it. Its
    /// plain WebSockets are closed then: they are the old script's.
    pub fn outdate(self: &Rc<Self>) {
        if let Phase::Live(live) = &mut self.state.borrow_mut().phase {
            live.is_outdated = true;
        }
        self.update_if_idle();
    }

    /// Events of the old code that do not end are cut off.
    pub fn stop_waiting_to_update(self: &Rc<Self>) {
        let waits = match &self.state.borrow().phase {
            Phase::Live(live) => live.is_outdated,
            Phase::Cold | Phase::Activating | Phase::Leaving => false,
        };
        if waits {
            self.reset(&code_updated());
        }
    }

    fn update_if_idle(self: &Rc<Self>) {
        let may_update =
            matches!(&self.state.borrow().phase, Phase::Live(live) if live.may_update());
        let Some(shard) = self.shard.upgrade().filter(|_| may_update) else { return };
        let Some(next) = shard.host_for_cell() else { return };
        let (old, old_slot, slot, database) = {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            let slot = next.reserve_slot(self);
            let old = std::mem::replace(&mut live.host, next.clone());
            let old_slot = std::mem::replace(&mut live.slot, slot);
            live.is_outdated = false;
            live.is_open = false;
            live.busy = 1;
            (old, old_slot, slot, live.database.clone())
        };
        old.close_cell(old_slot, &code_updated());
        next.open_cell(self, slot, self.open_input(database));
    }

    /// Eviction's turn has come: what the cell says to it, if it does not leave.
    ///
    /// A cell that was used since rests for another term, so it leaves after one to two of them.
    /// `must_go`: not if it is to make room for others.
    pub fn evict_if_unused(self: &Rc<Self>, must_go: bool) -> Option<Event<u64>> {
        let idle = self.is_idle();
        let mut is_used = true;
        if let Phase::Live(live) = &mut self.state.borrow_mut().phase {
            if !idle {
                live.is_resting = false;
                return Some(Event::Busy(self.key));
            }
            if !std::mem::take(&mut live.was_used) || must_go {
                is_used = false;
            } else {
                live.release_memory();
            }
        }
        if is_used {
            return Some(Event::Idle(self.key, self.rest()));
        }
        if self.evict() { None } else { Some(Event::Busy(self.key)) }
    }

    /// Gives the cell back to the bucket and takes it out of memory, if nothing runs in it.
    ///
    /// Returns whether it was idle and is on its way out.
    pub fn evict(self: &Rc<Self>) -> bool {
        self.is_idle() && self.leave()
    }

    /// The same, with what runs in it. Everything that it wrote is proven.
    pub(super) fn leave(self: &Rc<Self>) -> bool {
        let Some(shard) = self.shard.upgrade() else { return false };
        let live = {
            let mut state = self.state.borrow_mut();
            match std::mem::replace(&mut state.phase, Phase::Leaving) {
                Phase::Live(live) => {
                    state.life += 1;
                    live
                }
                other => {
                    state.phase = other;
                    return false;
                }
            }
        };
        let Live { host, slot, record, etag, store, database, cover, alarm, .. } = *live;
        host.close_cell(slot, &stopping());
        let is_purged = self.is_to_be_purged();
        self.delete_entries(&if is_purged { cover.end() } else { cover.leave() });
        let due = alarm.stored().map(|stored| stored.due);
        let txid = store.txid();
        drop(database);
        drop(store);
        let kept = Kept { record, etag, txid, due };
        if self.has_sockets() {
            // Others ask here, as long as the record names us.
            {
                let mut state = self.state.borrow_mut();
                state.phase = Phase::Cold;
                state.kept = Some(kept);
            }
            shard.eviction_event(Event::Gone(self.key));
            shard.owes_alarm(&self.id, due, None);
            self.wake_or_forget();
        } else {
            self.release(kept);
        }
        true
    }

    /// Gives the cell back to the bucket. Its phase is `Leaving`.
    pub(super) fn release(self: &Rc<Self>, kept: Kept) {
        let Some(shard) = self.shard.upgrade() else { return };
        let ordered = self.take_order();
        let cell = self.clone();
        self.spawn(async move {
            let Kept { record, etag, txid, due } = kept;
            let nonce = Nonce::numbered(random(), 0);
            let released = match &ordered {
                Some(ordered) if ordered.order == Order::Purge => record.purge(nonce),
                Some(_) | None => record.release(txid, nonce),
            };
            let guard = Guard::Match(etag);
            let body = Bytes::from(released.encode(&cell.id));
            // Whatever comes of it: a record that still names us is claimed anew by the next
            // activation, here or after our lease elsewhere.
            let written = shard.bucket.put_if(&cell.id.own_key(), guard, body).await;
            if let Err(error) = &written {
                rt::log!("celld: cell {}: release failed: {error}", cell.id);
            }
            if let Some(ordered) = ordered {
                return cell.obey(shard, ordered, released, written, due).await;
            }
            cell.state.borrow_mut().phase = Phase::Cold;
            shard.owes_alarm(&cell.id, due, None);
            cell.wake_or_forget();
        });
    }

    /// Whether nothing of it runs, so that a node that stops may hand it over.
    pub fn may_leave(&self) -> bool {
        let is_cold = matches!(self.state.borrow().phase, Phase::Cold);
        is_cold || (self.only_listens() && self.state.borrow().arrivals.is_empty())
    }

    /// The node stops. What the cell keeps open is closed as soon as nothing runs in it, and the
    /// cell goes back to the bucket. Returns whether it is on its way.
    pub fn hand_over(self: &Rc<Self>) -> bool {
        if !self.may_leave() {
            return false;
        }
        let is_cold = matches!(self.state.borrow().phase, Phase::Cold);
        self.close_sockets("the node is stopping");
        is_cold || self.leave()
    }

    /// The node stops, and its time is over. What waits for the cell looks for it elsewhere; what
    /// runs in it ends. What it wrote and has not proven was shown to nobody, and is lost.
    pub fn cut_off(self: &Rc<Self>) {
        self.fail_visits();
        refuse(self.take_arrivals_of_nodes(), Refusal::Draining);
        let waiting = std::mem::take(&mut self.state.borrow_mut().arrivals);
        self.fail(waiting, &stopping());
        let (is_live, is_settled) = match &self.state.borrow().phase {
            Phase::Live(live) => (true, live.is_settled()),
            Phase::Cold | Phase::Activating | Phase::Leaving => (false, false),
        };
        if is_settled {
            self.close_sockets("the node is stopping");
            self.leave();
        } else if is_live {
            self.reset(&Failure { durable_object_reset: true, ..stopping() });
        } else if let Some(shard) = self.shard.upgrade() {
            // On its way in or out: nothing of it can be shown any more.
            shard.drain_event(|| drain::Event::Gone(self.key));
        }
    }
}

impl Live {
    /// Whether its events do nothing but wait for messages on plain WebSockets, if there are any.
    fn only_listens(&self) -> bool {
        self.busy as usize == self.host.listening_events(self.slot)
    }

    /// Whether its events may be all that is left of it.
    fn is_at_rest(&self) -> bool {
        self.is_open && self.sections.is_empty() && self.is_settled()
    }

    /// Whether a newer version is to have it, and need not wait.
    fn may_update(&self) -> bool {
        let is_at_rest = self.gate.is_empty() && self.sections.is_empty();
        self.is_outdated && is_at_rest && self.only_listens()
    }

    /// Gives back what makes it fast, as it rests.
    fn release_memory(&mut self) {
        self.database.release_memory();
        self.store.rest();
    }

    /// Whether everything that it wrote is proven, and shown to who waits for it.
    fn is_settled(&self) -> bool {
        self.gate.is_empty() && self.proof.is_settled() && self.cover.is_settled()
    }
}

/// What the callers of a cell get, and its WebSockets, when a newer version does not wait for them.
fn code_updated() -> Failure {
    let text = "Durable Object reset because its code was updated.";
    Failure { retryable: true, durable_object_reset: true, ..failure("Error", text) }
}

/// Of other nodes, which look for the cell anew.
pub(super) fn refuse(arrivals: VecDeque<Arrival>, why: Refusal) {
    for arrival in arrivals {
        if let Arrival::Fetch(wanted) = arrival {
            wanted.reply.refuse(why);
        }
    }
}

/// What a cell needs that is out of memory and still ours, to be given back.
pub(super) struct Kept {
    record: Record,
    etag: Etag,
    txid: Txid,
    /// When its alarm is due.
    due: Option<Wall>,
}
