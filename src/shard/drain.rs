//! A shard that leaves: feeds `core::drain` and performs what it wants.
//!
//! Each shard hands its own cells over. The node waits on the [`Board`] until all of them have
//! nothing left at the same time, closes what is open still, and gives up its lease.

use std::cell::{Cell as StdCell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use celld_core::drain::{Drain, Effect, Event, Limits};
use celld_core::time::{Micros, Mono};
use celld_rt as rt;

use crate::body::failure;
use crate::shard::{Shard, now};

/// For the last bytes of what is closed when nothing runs any more.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// Of a turn when the time is over: many times what one takes that answers a request.
const LAST_TURN_CPU_MAX: Duration = Duration::from_millis(100);

/// For a request that came while the node was stopping.
pub(crate) fn stopping() -> celld_v8host::Failure {
    celld_v8host::Failure { retryable: true, ..failure("Error", "this node is shutting down") }
}

/// How a node drains that may take this long.
fn limits(limit: Duration) -> Limits {
    let limit = Micros::from_micros(u64::try_from(limit.as_micros()).unwrap_or(u64::MAX));
    Limits { limit, ..Limits::default() }
}

/// When the time comes to cut off what runs, JavaScript that keeps its shard from doing so is ended.
/// Returns never.
pub(crate) async fn end_long_turns(limit: Duration) {
    rt::sleep(Duration::from_micros(limits(limit).cut_after().as_micros())).await;
    celld_v8host::bound_turns(LAST_TURN_CPU_MAX);
    std::future::pending().await
}

/// Where the shards of a node say which of them have nothing left.
///
/// What one shard asks of another is counted by the one that asks, before the other begins with
/// it and until it has the answer. So once all are quiet nothing can come any more.
pub(crate) struct Board {
    /// When the node was told to stop: a shard may hear of it late.
    begun: Mono,
    said: Mutex<Said>,
    is_over: AtomicBool,
}

struct Said {
    is_quiet: Vec<bool>,
    /// Told when all are, and dropped.
    told: Option<rt::oneshot::Sender<()>>,
}

impl Board {
    /// Of so many shards, and what is told when all are quiet.
    pub fn new(shards: usize) -> (Arc<Self>, rt::oneshot::Receiver<()>) {
        let (told, all_quiet) = rt::oneshot::channel();
        let said = Said { is_quiet: vec![false; shards], told: Some(told) };
        let board = Self { begun: now(), said: Mutex::new(said), is_over: AtomicBool::new(false) };
        (Arc::new(board), all_quiet)
    }

    fn say(&self, shard: usize, is_quiet: bool) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.is_quiet[shard] = is_quiet;
        if said.is_quiet.iter().all(|is_quiet| *is_quiet)
            && let Some(told) = said.told.take()
        {
            self.is_over.store(true, Ordering::Release);
            // A node that does not wait any more has run out of time.
            let _gone = told.send(());
        }
    }
}

/// The drain of one shard.
pub(crate) struct Leaving {
    machine: RefCell<Drain<u64>>,
    /// What is to be done, in its order: doing one thing may lead to the next.
    effects: RefCell<VecDeque<Effect<u64>>>,
    is_performing: StdCell<bool>,
    /// When the timer is due that counts.
    timer: StdCell<Option<Mono>>,
    board: OnceCell<Arc<Board>>,
    is_quiet: StdCell<bool>,
    entered: StdCell<usize>,
}

impl Leaving {
    /// Of a shard that still serves.
    pub fn new(limit: Duration, shards: usize) -> Self {
        let limits = limits(limit);
        let share = limits.handovers_max.div_ceil(shards);
        Self {
            machine: RefCell::new(Drain::new(Limits { handovers_max: share, ..limits })),
            effects: RefCell::default(),
            is_performing: StdCell::new(false),
            timer: StdCell::new(None),
            board: OnceCell::new(),
            is_quiet: StdCell::new(false),
            entered: StdCell::new(0),
        }
    }
}

/// Something that entered at this shard and is not over: a connection of a client, an event of the
/// Worker. Until it is dropped the node does not leave, if there is time.
pub(crate) struct Entered(Weak<Shard>);

impl Entered {
    pub fn new(shard: &Rc<Shard>) -> Self {
        shard.counts(|entered| entered + 1);
        Self(Rc::downgrade(shard))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(shard) = self.0.upgrade() {
            shard.counts(|entered| entered - 1);
        }
    }
}

impl Shard {
    fn counts(self: &Rc<Self>, change: impl FnOnce(usize) -> usize) {
        let entered = change(self.leaving.entered.get());
        self.leaving.entered.set(entered);
        self.drain_event(|| Event::Requests(entered));
        self.close_sockets_if_stopping();
    }

    /// The sockets that the Worker holds end when no request needs them any more: what runs may wait
    /// for what comes on them.
    pub fn close_sockets_if_stopping(&self) {
        if self.draining.is_raised() && self.leaving.entered.get() == 0 {
            self.close_sockets();
        }
    }

    fn close_sockets(&self) {
        for host in self.all_hosts() {
            host.close_sockets_of_worker();
        }
    }

    /// Begins to leave. Told once.
    pub fn drain(self: &Rc<Self>, board: Arc<Board>) {
        let begun = board.begun;
        let is_first = self.leaving.board.set(board).is_ok();
        assert!(is_first, "a shard leaves once");
        self.draining.raise();
        self.drain_event(|| Event::Requests(self.leaving.entered.get()));
        for cell in self.all_cells() {
            let key = cell.key;
            self.drain_event(|| if cell.may_leave() { Event::Idle(key) } else { Event::Busy(key) });
        }
        self.drain_event_at(begun, || Event::Started);
        self.close_sockets_if_stopping();
    }

    /// Whether a request of another node is to look for its cell elsewhere, or again.
    pub fn turns_away(&self, is_here: bool) -> bool {
        let Some(board) = self.leaving.board.get() else { return false };
        let is_over = board.is_over.load(Ordering::Acquire);
        is_over || self.leaving.machine.borrow().turns_away(now(), is_here)
    }

    /// Tells the drain something, if there is one.
    pub fn drain_event(self: &Rc<Self>, event: impl FnOnce() -> Event<u64>) {
        self.drain_event_at(now(), event);
    }

    fn drain_event_at(self: &Rc<Self>, at: Mono, event: impl FnOnce() -> Event<u64>) {
        let Some(board) = self.leaving.board.get() else { return };
        let Leaving { machine, effects, is_performing, is_quiet, .. } = &self.leaving;
        let mut wanted = Vec::new();
        let quiet = {
            let mut machine = machine.borrow_mut();
            machine.on_event(at, event(), &mut wanted);
            machine.is_retiring()
        };
        effects.borrow_mut().extend(wanted);
        if is_quiet.replace(quiet) != quiet {
            board.say(self.index, quiet);
        }
        if is_performing.replace(true) {
            return;
        }
        loop {
            let next = effects.borrow_mut().pop_front();
            let Some(effect) = next else { break };
            rt::guard(|| self.perform_drain(effect));
        }
        is_performing.set(false);
    }

    fn perform_drain(self: &Rc<Self>, effect: Effect<u64>) {
        match effect {
            Effect::HandOver(key) => {
                let is_leaving = self.cell_of(key).is_none_or(|cell| cell.hand_over());
                if !is_leaving {
                    self.drain_event(|| Event::Busy(key));
                }
            }
            Effect::CutOff(key) => {
                if let Some(cell) = self.cell_of(key) {
                    cell.cut_off();
                }
            }
            Effect::CutRequests => {
                let entered = self.leaving.entered.get();
                let is_cell = |effect: &&Effect<u64>| matches!(effect, Effect::CutOff(_));
                let cells = self.leaving.effects.borrow().iter().filter(is_cell).count();
                rt::log!(
                    "celld: shard {}: the time is over: {entered} requests and {cells} cells are \
                     cut off",
                    self.index
                );
                self.close_sockets();
                for host in self.all_hosts() {
                    host.cut_off(&stopping());
                }
                self.cutting.raise();
            }
            Effect::SetTimer(at) => self.set_drain_timer(at),
            // The node has said so before; it gives up the lease when the board says that all are
            // ready; and it watches the limit itself, as this shard may be in the middle of
            // JavaScript then.
            Effect::Unhealthy | Effect::Retire | Effect::Exit(_) => {}
        }
    }

    fn set_drain_timer(self: &Rc<Self>, at: Mono) {
        self.leaving.timer.set(Some(at));
        let shard = Rc::downgrade(self);
        rt::spawn(async move {
            rt::sleep(Duration::from_micros(at.since(now()).as_micros())).await;
            let Some(shard) = shard.upgrade() else { return };
            if shard.leaving.timer.get() == Some(at) {
                shard.drain_event(|| Event::TimerFired);
            }
        });
    }

    /// Closes what is still open when nothing runs any more.
    pub async fn close(self: &Rc<Self>) {
        self.close_sockets();
        self.closing.raise();
        let closing = async {
            while self.wires.get() > 0 {
                rt::sleep(Duration::from_millis(10)).await;
            }
        };
        // What cannot be told in time is cut with the process.
        let _cut = rt::timeout(CLOSE_LIMIT, closing).await;
        if let Some(fleet) = self.fleet.get() {
            let _cut = rt::timeout(CLOSE_LIMIT, fleet.server.drain()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_quiet_when_all_its_shards_are_at_the_same_time() {
        let (board, mut all_quiet) = Board::new(2);
        board.say(0, true);
        board.say(0, false);
        board.say(1, true);
        assert_eq!(all_quiet.try_recv(), Ok(None));
        board.say(0, true);
        assert_eq!(all_quiet.try_recv(), Ok(Some(())));
        // Once it was, it is too late to change one's mind, and nobody minds.
        board.say(1, false);
        board.say(1, true);
    }
}
