//! One cell on the shard that owns it: its phases, its gates, its proof.
//!
//! Invariant: no borrow of the state lives while JavaScript, the host or another task may run.
//! What is to happen is collected under the borrow and done after it.

pub(crate) mod alarm;
mod compacting;
mod covering;
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
use celld_core::claim::Purpose;
use celld_core::compaction::Compactor;
use celld_core::drain;
use celld_core::epoch::FencingToken;
use celld_core::gate::{self, Gate};
use celld_core::ownership::Record;
use celld_core::proof::Proof;
use celld_core::route::{Attempt, Refusal};
use celld_core::txid::Txid;
use celld_core::wake::cover::Cover;
use celld_core::wake::sleepers;
use celld_core::wake::{Entry, Verdict};
use celld_rt as rt;
use celld_v8host::{
    CellSlot, Database, Failure, HostCall, OpenCell, SectionId, SocketId, Sockets, Target,
};
pub(crate) use ordered::Order;
use rustc_hash::FxHashMap;
pub(crate) use sockets::SocketArrival;

use crate::activation::{self, Activated, NotServed};
use crate::body::{Asked, failure};
use crate::deadline::Deadline;
use crate::fleet::forward::{self, Destination};
use crate::host::{Host, Queued, Reply};
use crate::pressure;
use crate::shard::{Shard, now};
use crate::storage::CellStore;
use ordered::Ordered;

/// Requests that may wait for one cell; more are refused as overloaded.
const WAITING_MAX: usize = 10_000;

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

/// What a cell is wanted for.
enum Arrival {
    Fetch(Box<Wanted>),
    Alarm { scheduled_ms: u64, retries: u32 },
    Socket(Box<SocketArrival>),
    Order(Ordered),
}

/// A request that waits for its cell, here or on the way to another node.
pub(crate) struct Wanted {
    pub asked: Asked,
    pub reply: Reply,
    pub via: Via,
    pub attempt: Attempt,
    /// The node that it was sent to cannot be reached: this one is to take the cell.
    pub is_taken_here: bool,
}

/// How a request has come to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// From a client, or from a Worker of this node: it may go on to another one.
    Client,
    /// From another node, which takes this one for the owner: it is refused if the cell is not in
    /// memory, so that its place is found anew.
    Routed,
    /// From another node: this one is to take the cell.
    Placed,
}

impl Via {
    /// Served here or refused: never forwarded again.
    pub fn is_node(self) -> bool {
        self != Self::Client
    }
}

impl Wanted {
    pub fn new(asked: Asked, reply: Reply, via: Via) -> Self {
        let attempt = Attempt { since: now(), failures: 0, is_body_begun: false };
        Self { asked, reply, via, attempt, is_taken_here: false }
    }
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

fn overloaded() -> Failure {
    let text = "Durable Object is overloaded. Too many requests queued.";
    Failure { overloaded: true, ..failure("Error", text) }
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

    /// A request for this cell.
    pub fn arrive(self: &Rc<Self>, asked: Asked, reply: Reply, via: Via) {
        let mut state = self.state.borrow_mut();
        let held = match &state.phase {
            Phase::Live(live) => live.gate.len() + live.parked.len(),
            Phase::Cold | Phase::Activating | Phase::Leaving => 0,
        };
        if state.arrivals.len() + held >= WAITING_MAX {
            drop(state);
            return reply.send(Err(overloaded()));
        }
        let State { phase, arrivals, ordered, .. } = &mut *state;
        match phase {
            Phase::Live(live)
                if live.is_open
                    && !live.is_outdated
                    && arrivals.is_empty()
                    && ordered.is_none() =>
            {
                let (host, slot) = (live.host.clone(), live.slot);
                live.busy += 1;
                live.was_used = true;
                drop(state);
                host.start_fetch(Some((self, slot)), asked, reply, None);
            }
            Phase::Live(_) | Phase::Activating | Phase::Leaving | Phase::Cold => {
                drop(state);
                self.wait_for(Wanted::new(asked, reply, via));
            }
        }
    }

    /// Brings the cell into memory, if that has not begun, and keeps the request until then.
    pub fn wait_for(self: &Rc<Self>, wanted: Wanted) {
        self.enqueue(Arrival::Fetch(Box::new(wanted)));
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

    /// What the activation is for. An alarm makes no cell that does not exist. A node that stops
    /// takes nothing for others, but what its records name nobody else can serve.
    fn purpose(&self, shard: &Shard) -> Purpose {
        let takes = !shard.draining.is_raised();
        let state = self.state.borrow();
        let (mut is_wanted, mut is_ordered) = (false, false);
        for arrival in &state.arrivals {
            match arrival {
                Arrival::Fetch(wanted)
                    if (wanted.via.is_node() && takes) || wanted.is_taken_here =>
                {
                    return Purpose::Placed;
                }
                Arrival::Fetch(_) => is_wanted = true,
                Arrival::Order(_) => is_ordered = true,
                Arrival::Alarm { .. } | Arrival::Socket(_) => {}
            }
        }
        match (is_wanted, is_ordered) {
            (true, false) => Purpose::Entered,
            (true, true) => Purpose::Placed,
            (false, _) => Purpose::WokenPlaced,
        }
    }

    /// Something for this cell: it comes into memory for it, if that has not begun.
    fn enqueue(self: &Rc<Self>, arrival: Arrival) {
        let is_cold = {
            let mut state = self.state.borrow_mut();
            state.arrivals.push_back(arrival);
            if let Phase::Live(live) = &mut state.phase {
                live.was_used = true;
            }
            let is_cold = matches!(state.phase, Phase::Cold);
            if is_cold {
                state.phase = Phase::Activating;
            }
            is_cold
        };
        if is_cold { self.activate() } else { self.deliver_arrivals() }
    }

    fn activate(self: &Rc<Self>) {
        // Claimed anew, whoever the record names.
        let kept = self.state.borrow_mut().kept.take();
        let Some(shard) = self.shard.upgrade() else { return };
        shard.drain_event(|| drain::Event::Busy(self.key));
        shard.sleepers_event(sleepers::Event::Woke(self.id.clone()));
        let cell = self.clone();
        rt::spawn(async move {
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
        // The gate shows nothing before the cover does.
        let shown = Txid::new(proven.get().saturating_sub(1));
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
            gate: Gate::new(shown),
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

    /// Another node has the cell, or is to have it: who waits for it here is sent there.
    fn send_arrivals(self: &Rc<Self>, shard: &Rc<Shard>, to: &Destination) {
        let (arrivals, visits) = {
            let mut state = self.state.borrow_mut();
            state.phase = Phase::Cold;
            (std::mem::take(&mut state.arrivals), std::mem::take(&mut state.visits))
        };
        for (_, answer) in visits {
            // Its owner fires what is due.
            let _gone = answer.send(Verdict::Later);
        }
        for arrival in arrivals {
            match arrival {
                Arrival::Fetch(wanted) if wanted.via.is_node() => {
                    wanted.reply.refuse(Refusal::NotOwner);
                }
                Arrival::Fetch(wanted) => {
                    forward::send(shard.clone(), self.target(), to.clone(), wanted);
                }
                Arrival::Alarm { .. } => {}
                Arrival::Socket(arrived) => {
                    self.close_socket(arrived.socket, "the Durable Object has moved");
                }
                Arrival::Order(ordered) => self.order_is_elsewhere(ordered, to),
            }
        }
        self.forget_if_cold();
    }

    /// Too many are in memory, and none of them rests. A node that has sent the cell here may take
    /// it itself.
    fn find_no_room(self: &Rc<Self>, kept: Option<leaving::Kept>) {
        self.state.borrow_mut().kept = kept;
        leaving::refuse(self.take_arrivals_of_nodes(), Refusal::NotOwner);
        self.fail_arrivals(&pressure::full());
    }

    /// The activation failed: so do those who waited for it. The next request tries again.
    fn fail_arrivals(self: &Rc<Self>, why: &Failure) {
        let (arrivals, visits) = {
            let mut state = self.state.borrow_mut();
            state.phase = Phase::Cold;
            (std::mem::take(&mut state.arrivals), std::mem::take(&mut state.visits))
        };
        self.fail(arrivals, why);
        for (_, answer) in visits {
            let _gone = answer.send(Verdict::Failed);
        }
        self.forget_if_cold();
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

    fn deliver_arrivals(self: &Rc<Self>) {
        let mut is_skipped = false;
        loop {
            let (host, slot, arrival, is_given_up) = {
                let mut state = self.state.borrow_mut();
                let State { phase: Phase::Live(live), arrivals, ordered, .. } = &mut *state else {
                    return;
                };
                if !live.is_open || live.is_outdated || ordered.is_some() {
                    return;
                }
                let Some(arrival) = arrivals.pop_front() else { break };
                let is_given_up =
                    matches!(&arrival, Arrival::Fetch(wanted) if wanted.reply.is_given_up());
                if !is_given_up && !matches!(arrival, Arrival::Order(_)) {
                    live.busy += 1;
                }
                (live.host.clone(), live.slot, arrival, is_given_up)
            };
            if is_given_up {
                // It has not run, and need not.
                is_skipped = true;
                continue;
            }
            match arrival {
                Arrival::Fetch(wanted) => {
                    let Wanted { asked, reply, .. } = *wanted;
                    host.start_fetch(Some((self, slot)), asked, reply, None);
                }
                Arrival::Alarm { scheduled_ms, retries } => {
                    host.start_alarm(self, slot, scheduled_ms, retries);
                }
                Arrival::Socket(arrived) => self.start_socket_event(&host, slot, *arrived),
                Arrival::Order(ordered) => self.begin_order(ordered),
            }
        }
        if is_skipped {
            self.rest_if_idle();
        }
    }

    /// Tells those who wait that there is nothing for them. An alarm is owed all the same.
    fn fail(self: &Rc<Self>, arrivals: VecDeque<Arrival>, why: &Failure) {
        for arrival in arrivals {
            match arrival {
                Arrival::Fetch(wanted) => wanted.reply.send(Err(why.clone())),
                Arrival::Alarm { .. } => {}
                Arrival::Socket(arrived) => self.close_socket(arrived.socket, &why.message),
                Arrival::Order(ordered) => self.fail_order(ordered, why),
            }
        }
    }

    /// Whether the input gate lets this in. `section`: it answers a question of that section.
    pub fn passes(&self, section: Option<SectionId>) -> bool {
        match &self.state.borrow().phase {
            Phase::Live(live) => {
                live.sections.is_empty() || section.is_some_and(|section| live.has(section))
            }
            Phase::Cold | Phase::Activating | Phase::Leaving => true,
        }
    }

    /// Keeps an input until the gate opens.
    pub fn park(&self, queued: Queued) {
        if let Phase::Live(live) = &mut self.state.borrow_mut().phase {
            live.parked.push_back(queued);
        }
    }

    /// `blockConcurrencyWhile` begins. Its time is limited, as on Cloudflare.
    pub fn block(self: &Rc<Self>, section: SectionId) {
        let weak = Rc::downgrade(self);
        let deadline = Deadline::after(activation::SECTION_LIMIT, move || {
            if let Some(cell) = weak.upgrade() {
                cell.section_takes_too_long(section);
            }
        });
        if let Phase::Live(live) = &mut self.state.borrow_mut().phase {
            live.sections.push((section, deadline));
        }
    }

    fn section_takes_too_long(self: &Rc<Self>, section: SectionId) {
        let still_runs = match &self.state.borrow().phase {
            Phase::Live(live) => live.has(section),
            Phase::Cold | Phase::Activating | Phase::Leaving => false,
        };
        if still_runs {
            let text = "A call to blockConcurrencyWhile() in a Durable Object waited for too \
                        long. The call was canceled and the Durable Object was reset.";
            self.fail_life(&Failure { durable_object_reset: true, ..failure("Error", text) });
        }
    }

    /// `blockConcurrencyWhile` has ended.
    pub fn unblock(self: &Rc<Self>, host: &Rc<Host>, section: SectionId, why: Option<Failure>) {
        if let Some(why) = why {
            let why = Failure { remote: true, durable_object_reset: true, ..why };
            return self.fail_life(&why);
        }
        let parked = {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            live.sections.retain(|(open, _)| *open != section);
            std::mem::take(&mut live.parked)
        };
        host.requeue(parked);
        self.rest_if_idle();
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
