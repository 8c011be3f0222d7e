//! One cell on the shard that owns it: its phases, its gates, its proof.
//!
//! Invariant: no borrow of the state lives while JavaScript, the host or another task may run.
//! What is to happen is collected under the borrow and done after it.

pub(crate) mod alarm;
mod arriving;
mod compacting;
mod covering;
mod input_gate;
mod leaving;
mod ordered;
mod proving;
mod sockets;

use std::cell::{Cell as StdCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use celld_core::alarm::{Alarm, Stored};
use celld_core::cas::Etag;
use celld_core::cell::CellId;
use celld_core::compaction::Compactor;
use celld_core::drain;
use celld_core::epoch::FencingToken;
use celld_core::gate::{self, Gate};
use celld_core::ownership::Record;
use celld_core::proof::Proof;
use celld_core::txid::Txid;
use celld_core::wake::cover::Cover;
use celld_core::wake::sleepers;
use celld_core::wake::{Entry, Verdict};
use celld_rt as rt;
use celld_v8host::{
    CellSlot, Database, Failure, HostCall, OpenCell, SectionId, SocketId, Sockets, Target,
};
use futures_util::FutureExt as _;
use rustc_hash::FxHashMap;

use crate::activation::{self, Activated, NotServed};
use crate::body::{failure, internal_error};
use crate::deadline::Deadline;
use crate::host::{Host, Queued};
use crate::shard::Shard;
use crate::storage::CellStore;
use arriving::Arrival;
pub(crate) use arriving::{Via, Wanted, overloaded};
pub(crate) use ordered::Order;
use ordered::Ordered;
pub(crate) use sockets::SocketArrival;

/// A cell that this shard has heard of.
pub(crate) struct Cell {
    pub id: CellId,
    /// Names the cell on its shard, for as long as it is in the shard's table.
    pub key: u64,
    class: String,
    name: RefCell<Option<String>>,
    shard: Weak<Shard>,
    state: RefCell<State>,
    /// Its hibernatable WebSockets, as a realm sees them, and their connections.
    sockets: Rc<Sockets>,
    links: RefCell<FxHashMap<SocketId, sockets::Link>>,
    /// Writes of its files that are under way, also of earlier lives.
    uploads: StdCell<u32>,
}

struct State {
    phase: Phase,
    /// What no instance has seen yet.
    arrivals: VecDeque<Arrival>,
    /// Entries of the wake index that somebody has found due.
    visits: Vec<Visit>,
    /// The cell is out of memory and still ours, for the sake of its sockets.
    kept: Option<leaving::Kept>,
    /// What an operator wants done with it. Until then nothing new begins.
    ordered: Option<Ordered>,
    /// Counts lives of the cell in memory, so that late answers to an earlier one are dropped.
    life: u64,
}

/// A question of the scan: is this entry still needed?
type Visit = (Entry, rt::oneshot::Sender<Verdict>);

enum Phase {
    /// Nothing in memory.
    Cold,
    /// A task claims and restores it.
    Activating,
    Live(Box<Live>),
    /// A task gives it back to the bucket.
    Leaving,
}

struct Live {
    host: Rc<Host>,
    slot: CellSlot,
    is_open: bool,
    /// The next version's realm waits for the last event of this one.
    is_outdated: bool,
    database: Rc<Database>,
    store: CellStore,
    record: Record,
    etag: Etag,
    token: FencingToken,
    gate: Gate<HostCall>,
    proof: Proof,
    cover: Cover,
    alarm: Alarm,
    /// The alarm that was in the database when it was restored.
    found_alarm: Option<Stored>,
    /// What it is since, with what an earlier life owed; told once the constructor has run.
    restored: Option<Option<Stored>>,
    /// What the constructor has set or deleted instead.
    set_at_start: Option<Option<Stored>>,
    /// Of the run of `alarm()`.
    alarm_deadline: Option<Deadline>,
    compactor: Compactor,
    /// The segment on its way to the bucket. The same bytes go again when it fails.
    upload: Option<Upload>,
    /// Open `blockConcurrencyWhile`s, outermost first.
    sections: Vec<(SectionId, Deadline)>,
    parked: VecDeque<Queued>,
    /// Events that JavaScript works on.
    busy: u32,
    /// Eviction counts its rest.
    is_resting: bool,
    /// Since eviction was told of its rest.
    was_used: bool,
}

impl Live {
    /// Whether this `blockConcurrencyWhile` is open.
    fn has(&self, section: SectionId) -> bool {
        self.sections.iter().any(|(open, _)| *open == section)
    }
}

#[derive(Clone)]
struct Upload {
    key: String,
    bytes: Bytes,
    max: Txid,
}

/// The failure that callers of a cell get when its gate breaks.
pub(crate) fn reset_failure() -> Failure {
    Failure {
        retryable: true,
        durable_object_reset: true,
        ..failure("Error", "The Durable Object was reset: its writes could not be proven durable.")
    }
}

impl Cell {
    pub fn new(shard: &Rc<Shard>, id: CellId, key: u64, class: String) -> Rc<Self> {
        Rc::new(Self {
            id,
            key,
            class,
            name: RefCell::new(None),
            shard: Rc::downgrade(shard),
            state: RefCell::new(State {
                phase: Phase::Cold,
                arrivals: VecDeque::new(),
                visits: Vec::new(),
                kept: None,
                ordered: None,
                life: 0,
            }),
            sockets: Rc::default(),
            links: RefCell::default(),
            uploads: StdCell::new(0),
        })
    }

    /// `ctx.id.name`, once a caller has told it.
    pub fn learn_name(&self, name: Option<String>) {
        if name.is_some() {
            *self.name.borrow_mut() = name;
        }
    }

    /// Whether nothing of it is here: it is not in memory, nor on its way there or back, nor kept
    /// for the sake of its sockets.
    pub fn is_cold(&self) -> bool {
        let state = self.state.borrow();
        matches!(state.phase, Phase::Cold) && state.kept.is_none()
    }

    /// What it is to others.
    pub fn target(&self) -> Target {
        Target {
            namespace: self.id.namespace().to_owned(),
            id: self.id.id().to_owned(),
            class: self.class.clone(),
            name: self.name.borrow().clone(),
        }
    }

    /// Starts a task that the cell waits for. A panic in it is a bug of ours: what waits for the cell
    /// fails, and the next request starts from what is durable.
    fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        let (cell, life) = (Rc::downgrade(self), self.state.borrow().life);
        rt::spawn(rt::guarded(task).map(move |end| {
            if let (None, Some(cell)) = (end, cell.upgrade()) {
                cell.break_down(life);
            }
        }));
    }

    fn break_down(self: &Rc<Self>, life: u64) {
        let is_live = {
            let state = self.state.borrow();
            if state.life != life {
                return;
            }
            matches!(state.phase, Phase::Live(_))
        };
        if is_live {
            self.fail_life(&internal_error());
        } else {
            self.fail_arrivals(&internal_error());
        }
    }

    fn activate(self: &Rc<Self>) {
        // Claimed anew, whoever the record names.
        let kept = self.state.borrow_mut().kept.take();
        let Some(shard) = self.shard.upgrade() else { return };
        shard.drain_event(|| drain::Event::Busy(self.key));
        shard.sleepers_event(sleepers::Event::Woke(self.id.clone()));
        let cell = self.clone();
        self.spawn(async move {
            match activation::activate(&shard, &cell.id, Some(cell.key), cell.purpose(&shard)).await
            {
                Ok(activated) => cell.go_live(&shard, activated),
                Err(NotServed::Full) => cell.find_no_room(kept),
                Err(NotServed::Failed(why)) => cell.fail_arrivals(&why),
                Err(NotServed::Elsewhere(to)) => cell.send_arrivals(&shard, &to),
                Err(NotServed::Purged(_)) => unreachable!("it was wanted in memory"),
            }
        });
    }

    fn go_live(self: &Rc<Self>, shard: &Rc<Shard>, activated: Activated) {
        let Some(host) = shard.host_for_cell() else {
            return self.fail_arrivals(&failure("Error", "no deployment is loaded"));
        };
        let Activated { record, etag, token, store, database, compactor, alarm, name } = activated;
        if self.name.borrow().is_none() {
            self.learn_name(name);
        }
        let database = Rc::new(database);
        let proven = store.txid();
        let patience = shard.facts.patience;
        let due = alarm.map(|alarm| alarm.due);
        let cover = Cover::new(self.id.clone(), record.epoch, proven, due, patience);
        let slot = host.reserve_slot(self);
        let live = Live {
            host: host.clone(),
            slot,
            is_open: false,
            is_outdated: false,
            database: database.clone(),
            store,
            record,
            etag,
            token,
            // Until the cover begins: what was restored shows an alarm, too.
            gate: Gate::closed(proven),
            proof: Proof::new(proven, patience),
            cover,
            alarm: Alarm::default(),
            found_alarm: alarm,
            restored: Some(alarm),
            set_at_start: None,
            alarm_deadline: None,
            compactor,
            upload: None,
            sections: Vec::new(),
            parked: VecDeque::new(),
            // The constructor.
            busy: 1,
            is_resting: false,
            was_used: false,
        };
        {
            let mut state = self.state.borrow_mut();
            state.phase = Phase::Live(Box::new(live));
            state.life += 1;
        }
        self.start_cover();
        if let Some(after) = shard.alarm_owed(&self.id).and_then(|owed| owed.settle(alarm)) {
            self.settle_alarm(after);
        }
        host.open_cell(self, slot, self.open_input(database));
    }

    fn open_input(&self, database: Rc<Database>) -> OpenCell {
        OpenCell {
            class: self.class.clone(),
            id: self.id.id().to_owned(),
            name: self.name.borrow().clone(),
            namespace: self.id.namespace().to_owned(),
            database,
            sockets: self.sockets(),
        }
    }

    /// The constructor has ended.
    pub fn opened(self: &Rc<Self>, host: &Rc<Host>, result: Result<(), Failure>) {
        match result {
            Ok(()) => {
                if let Phase::Live(live) = &mut self.state.borrow_mut().phase
                    && Rc::ptr_eq(&live.host, host)
                {
                    live.is_open = true;
                }
                self.deliver_arrivals();
                self.begin_alarm();
            }
            Err(why) => {
                let why = Failure { remote: true, durable_object_reset: true, ..why };
                self.fail_life(&why);
            }
        }
    }
}

fn perform_gate(host: &Rc<Host>, effects: Vec<gate::Effect<HostCall>>) {
    for effect in effects {
        match effect {
            gate::Effect::Release(call) => host.release(call),
            gate::Effect::Drop(call) => host.dropped(call),
        }
    }
}
