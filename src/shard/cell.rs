//! One cell on the shard that owns it: its phases, its gates, its proof.
//!
//! Invariant: no borrow of the state lives while JavaScript, the host or another task may run.
//! What is to happen is collected under the borrow and done after it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use celld_core::cas::{Etag, Guard, Nonce};
use celld_core::cell::CellId;
use celld_core::epoch::FencingToken;
use celld_core::gate::{self, Gate};
use celld_core::ownership::Record;
use celld_core::proof::{self, Proof};
use celld_core::time::{Mono, Wall};
use celld_core::txid::Txid;
use celld_rt as rt;
use celld_v8host::{CellSlot, Database, Failure, HostCall, OpenCell, SectionId};

use crate::activation::{self, Activated};
use crate::body::{Asked, failure};
use crate::host::{Host, Queued, Reply};
use crate::shard::{Shard, now};
use crate::storage::CellStore;

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
}

struct State {
    phase: Phase,
    /// Requests that no instance has seen yet.
    arrivals: VecDeque<(Asked, Reply)>,
    /// Counts lives of the cell in memory, so that late answers to an earlier one are dropped.
    life: u64,
}

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
    is_moving: bool,
    database: Rc<Database>,
    store: CellStore,
    record: Record,
    etag: Etag,
    token: FencingToken,
    gate: Gate<HostCall>,
    proof: Proof,
    /// The segment on its way to the bucket. The same bytes go again when it fails.
    upload: Option<Upload>,
    /// Open `blockConcurrencyWhile`s, outermost first.
    sections: Vec<SectionId>,
    parked: VecDeque<Queued>,
    /// Events that JavaScript works on.
    busy: u32,
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
            state: RefCell::new(State { phase: Phase::Cold, arrivals: VecDeque::new(), life: 0 }),
        })
    }

    /// `ctx.id.name`, once a caller has told it.
    pub fn learn_name(&self, name: Option<String>) {
        if name.is_some() {
            *self.name.borrow_mut() = name;
        }
    }

    /// A request for this cell.
    pub fn arrive(self: &Rc<Self>, asked: Asked, reply: Reply) {
        let mut state = self.state.borrow_mut();
        let held = match &state.phase {
            Phase::Live(live) => live.gate.len() + live.parked.len(),
            Phase::Cold | Phase::Activating | Phase::Leaving => 0,
        };
        if state.arrivals.len() + held >= WAITING_MAX {
            drop(state);
            return reply.send(Err(overloaded()));
        }
        let State { phase, arrivals, .. } = &mut *state;
        match phase {
            Phase::Live(live) if live.is_open && !live.is_moving && arrivals.is_empty() => {
                let (host, slot) = (live.host.clone(), live.slot);
                let first = live.busy == 0;
                live.busy += 1;
                drop(state);
                if first {
                    self.tell_busy();
                }
                host.start_fetch(Some((self, slot)), asked, reply);
            }
            Phase::Live(_) | Phase::Activating | Phase::Leaving => {
                arrivals.push_back((asked, reply));
            }
            Phase::Cold => {
                arrivals.push_back((asked, reply));
                *phase = Phase::Activating;
                drop(state);
                self.activate();
            }
        }
    }

    fn activate(self: &Rc<Self>) {
        let Some(shard) = self.shard.upgrade() else { return };
        self.tell_busy();
        let cell = self.clone();
        rt::spawn(async move {
            match activation::activate(&shard, &cell.id).await {
                Ok(activated) => cell.go_live(&shard, activated),
                Err(why) => cell.fail_arrivals(&why),
            }
        });
    }

    fn go_live(self: &Rc<Self>, shard: &Rc<Shard>, activated: Activated) {
        let Some(host) = shard.host_for_cell() else {
            return self.fail_arrivals(&failure("Error", "no deployment is loaded"));
        };
        let Activated { record, etag, token, store, database } = activated;
        let database = Rc::new(database);
        let proven = store.txid();
        let slot = host.reserve_slot(self);
        let live = Live {
            host: host.clone(),
            slot,
            is_open: false,
            is_moving: false,
            database: database.clone(),
            store,
            record,
            etag,
            token,
            gate: Gate::new(proven),
            proof: Proof::new(proven, shard.patience),
            upload: None,
            sections: Vec::new(),
            parked: VecDeque::new(),
            // The constructor.
            busy: 1,
        };
        {
            let mut state = self.state.borrow_mut();
            state.phase = Phase::Live(Box::new(live));
            state.life += 1;
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
        }
    }

    /// The activation failed: so do those who waited for it. The next request tries again.
    fn fail_arrivals(self: &Rc<Self>, why: &Failure) {
        let arrivals = {
            let mut state = self.state.borrow_mut();
            state.phase = Phase::Cold;
            std::mem::take(&mut state.arrivals)
        };
        for (_, reply) in arrivals {
            reply.send(Err(why.clone()));
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
            }
            Err(why) => {
                let arrivals = std::mem::take(&mut self.state.borrow_mut().arrivals);
                self.reset(&why);
                for (_, reply) in arrivals {
                    reply.send(Err(why.clone()));
                }
            }
        }
    }

    fn deliver_arrivals(self: &Rc<Self>) {
        loop {
            let (host, slot, asked, reply) = {
                let mut state = self.state.borrow_mut();
                let State { phase: Phase::Live(live), arrivals, .. } = &mut *state else { return };
                if !live.is_open || live.is_moving {
                    return;
                }
                let Some((asked, reply)) = arrivals.pop_front() else { return };
                live.busy += 1;
                (live.host.clone(), live.slot, asked, reply)
            };
            host.start_fetch(Some((self, slot)), asked, reply);
        }
    }

    /// Whether the input gate lets this in. `section`: it answers a question of that section.
    pub fn passes(&self, section: Option<SectionId>) -> bool {
        match &self.state.borrow().phase {
            Phase::Live(live) => {
                live.sections.is_empty() || section.is_some_and(|s| live.sections.contains(&s))
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
        let life = {
            let mut state = self.state.borrow_mut();
            let life = state.life;
            let Phase::Live(live) = &mut state.phase else { return };
            live.sections.push(section);
            life
        };
        let cell = Rc::downgrade(self);
        rt::spawn(async move {
            rt::sleep(activation::SECTION_LIMIT).await;
            let Some(cell) = cell.upgrade() else { return };
            let still_runs = {
                let state = cell.state.borrow();
                let Phase::Live(live) = &state.phase else { return };
                state.life == life && live.sections.contains(&section)
            };
            if still_runs {
                let text = "A call to blockConcurrencyWhile() in a Durable Object waited for too \
                            long. The call was canceled and the Durable Object was reset.";
                cell.reset(&Failure { durable_object_reset: true, ..failure("Error", text) });
            }
        });
    }

    /// `blockConcurrencyWhile` has ended.
    pub fn unblock(self: &Rc<Self>, host: &Rc<Host>, section: SectionId, why: Option<Failure>) {
        if let Some(why) = why {
            return self.reset(&why);
        }
        let parked = {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            live.sections.retain(|open| *open != section);
            std::mem::take(&mut live.parked)
        };
        host.requeue(parked);
    }

    /// A turn of this cell has written: its transaction ends, its commit goes its way.
    pub fn end_turn(self: &Rc<Self>, host: &Rc<Host>) {
        let mut effects = Vec::new();
        let ended = {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            debug_assert!(Rc::ptr_eq(&live.host, host));
            match live.database.end_turn() {
                Ok(_) => match live.store.commit_boundary() {
                    Some(txid) => {
                        let event = proof::Event::Committed(txid);
                        live.proof.on_event(now(), event, &mut effects);
                        Ok(())
                    }
                    None => Ok(()),
                },
                Err(error) => Err(error),
            }
        };
        match ended {
            Ok(()) => self.perform_proof(effects),
            Err(error) => {
                let text = format!("the transaction could not be committed: {error}");
                self.reset(&Failure { durable_object_reset: true, ..failure("Error", text) });
            }
        }
    }

    /// Holds a call until all that this cell has committed so far is proven.
    pub fn hold(self: &Rc<Self>, host: &Rc<Host>, call: HostCall) {
        let mut effects = Vec::new();
        {
            let mut state = self.state.borrow_mut();
            if let Phase::Live(live) = &mut state.phase {
                let at = live.store.txid();
                live.gate.hold(at, call, &mut effects);
            } else {
                effects.push(gate::Effect::Drop(call));
            }
        }
        perform_gate(host, effects);
    }

    /// Tells the proof something, unless it concerns an earlier life of the cell.
    fn proof_event(self: &Rc<Self>, life: u64, event: proof::Event) {
        let mut effects = Vec::new();
        {
            let mut state = self.state.borrow_mut();
            if state.life != life {
                return;
            }
            let Phase::Live(live) = &mut state.phase else { return };
            if matches!(event, proof::Event::Uploaded { .. }) {
                live.upload = None;
            }
            live.proof.on_event(now(), event, &mut effects);
        }
        self.perform_proof(effects);
    }

    fn perform_proof(self: &Rc<Self>, effects: Vec<proof::Effect>) {
        for effect in effects {
            match effect {
                proof::Effect::Upload { .. } => self.upload(),
                proof::Effect::ReadOwner { number } => self.read_owner(number),
                proof::Effect::Proven(txid) => self.proven(txid),
                proof::Effect::SetTimer(at) => self.set_proof_timer(at),
                proof::Effect::Lost(loss) => {
                    eprintln!("celld: cell {}: reset, {loss}", self.id);
                    self.reset(&reset_failure());
                }
            }
        }
    }

    fn upload(self: &Rc<Self>) {
        let Some(shard) = self.shard.upgrade() else { return };
        let (life, upload) = {
            let mut state = self.state.borrow_mut();
            let life = state.life;
            let Phase::Live(live) = &mut state.phase else { return };
            let upload = match &live.upload {
                Some(again) => again.clone(),
                None => {
                    let mut bytes = Vec::new();
                    let wall = Wall::from_millis(rt::wall_ms());
                    match live.store.encode_pending(wall, &mut bytes) {
                        Ok(segment) => {
                            let (min, max) = (segment.min, segment.max);
                            let key = self.id.ltx_key(live.token.epoch, 0, min, max);
                            let upload = Upload { key, bytes: Bytes::from(bytes), max };
                            live.upload = Some(upload.clone());
                            upload
                        }
                        Err(error) => {
                            drop(state);
                            eprintln!("celld: cell {}: reset, {error}", self.id);
                            return self.reset(&reset_failure());
                        }
                    }
                }
            };
            (life, upload)
        };
        let cell = self.clone();
        rt::spawn(async move {
            let event = match shard.bucket.put(&upload.key, upload.bytes).await {
                Ok(_) => proof::Event::Uploaded { max: upload.max },
                Err(error) => {
                    eprintln!("celld: cell {}: upload failed: {error}", cell.id);
                    proof::Event::UploadFailed
                }
            };
            cell.proof_event(life, event);
        });
    }

    fn read_owner(self: &Rc<Self>, number: u64) {
        let Some(shard) = self.shard.upgrade() else { return };
        let (life, token) = {
            let state = self.state.borrow();
            let Phase::Live(live) = &state.phase else { return };
            (state.life, live.token.clone())
        };
        let cell = self.clone();
        rt::spawn(async move {
            let event = match shard.bucket.get(&cell.id.own_key()).await {
                Ok(read) => {
                    let record = read.and_then(|object| Record::parse(&object.body).ok());
                    let still_ours = record.is_some_and(|record| record.is_of(&token));
                    proof::Event::OwnerRead { asked: number, still_ours }
                }
                Err(_) => proof::Event::ReadFailed { asked: number },
            };
            cell.proof_event(life, event);
        });
    }

    fn proven(self: &Rc<Self>, txid: Txid) {
        let mut effects = Vec::new();
        let host = {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            live.gate.durable(txid, &mut effects);
            live.host.clone()
        };
        perform_gate(&host, effects);
        self.move_if_idle();
        self.rest_if_idle();
    }

    fn set_proof_timer(self: &Rc<Self>, at: Mono) {
        let life = self.state.borrow().life;
        let cell = Rc::downgrade(self);
        rt::spawn(async move {
            let wait = at.since(now()).as_micros();
            rt::sleep(std::time::Duration::from_micros(wait)).await;
            if let Some(cell) = cell.upgrade() {
                cell.proof_event(life, proof::Event::TimerFired);
            }
        });
    }

    /// One event of this cell is over.
    pub fn event_finished(self: &Rc<Self>) {
        {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            live.busy = live.busy.saturating_sub(1);
        }
        self.move_if_idle();
        self.rest_if_idle();
    }

    /// Drops what is in memory. Callers get `why`; the next request starts from what is durable.
    pub fn reset(self: &Rc<Self>, why: &Failure) {
        let live = {
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
        let Live { host, slot, mut gate, .. } = *live;
        let mut effects = Vec::new();
        gate.break_now(&mut effects);
        host.close_cell(slot, why);
        perform_gate(&host, effects);
        self.wake_or_forget();
    }

    /// After a life in memory: those who came meanwhile start the next one.
    fn wake_or_forget(self: &Rc<Self>) {
        let wake = {
            let mut state = self.state.borrow_mut();
            let wake = matches!(state.phase, Phase::Cold) && !state.arrivals.is_empty();
            if wake {
                state.phase = Phase::Activating;
            }
            wake
        };
        if wake { self.activate() } else { self.forget_if_cold() }
    }

    fn forget_if_cold(self: &Rc<Self>) {
        let cold = {
            let state = self.state.borrow();
            matches!(state.phase, Phase::Cold) && state.arrivals.is_empty()
        };
        if let (true, Some(shard)) = (cold, self.shard.upgrade()) {
            shard.forget_cell(self);
        }
    }

    fn tell_busy(&self) {
        if let Some(shard) = self.shard.upgrade() {
            shard.eviction_event(celld_core::eviction::Event::Busy(self.key));
        }
    }

    /// Whether nothing runs in it and nothing waits for a proof.
    pub fn is_idle(&self) -> bool {
        let state = self.state.borrow();
        match &state.phase {
            Phase::Live(live) => {
                live.busy == 0
                    && live.is_open
                    && live.sections.is_empty()
                    && live.gate.is_empty()
                    && live.proof.is_settled()
                    && state.arrivals.is_empty()
            }
            Phase::Cold | Phase::Activating | Phase::Leaving => false,
        }
    }

    fn rest_if_idle(&self) {
        if let (true, Some(shard)) = (self.is_idle(), self.shard.upgrade()) {
            let rest = celld_core::eviction::Rest::Plain;
            shard.eviction_event(celld_core::eviction::Event::Idle(self.key, rest));
        }
    }

    /// A newer version of the script runs: the cell moves there once its events are over.
    pub fn start_moving(self: &Rc<Self>) {
        if let Phase::Live(live) = &mut self.state.borrow_mut().phase {
            live.is_moving = true;
        }
        self.move_if_idle();
    }

    /// Events of the old code that do not end are cut off.
    pub fn stop_waiting_to_move(self: &Rc<Self>) {
        let waits = match &self.state.borrow().phase {
            Phase::Live(live) => live.is_moving,
            Phase::Cold | Phase::Activating | Phase::Leaving => false,
        };
        if waits {
            let text = "Durable Object reset because its code was updated.";
            self.reset(&Failure {
                retryable: true,
                durable_object_reset: true,
                ..failure("Error", text)
            });
        }
    }

    fn move_if_idle(self: &Rc<Self>) {
        let Some(shard) = self.shard.upgrade() else { return };
        let Some(next) = shard.host_for_cell() else { return };
        let (old, old_slot, slot, database) = {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            if !live.is_moving || live.busy > 0 || !live.gate.is_empty() {
                return;
            }
            let slot = next.reserve_slot(self);
            let old = std::mem::replace(&mut live.host, next.clone());
            let old_slot = std::mem::replace(&mut live.slot, slot);
            live.is_moving = false;
            live.is_open = false;
            live.busy = 1;
            (old, old_slot, slot, live.database.clone())
        };
        old.close_cell(old_slot, &crate::ingress::stopping());
        next.open_cell(self, slot, self.open_input(database));
    }

    /// Gives the cell back to the bucket and takes it out of memory, if nothing runs in it.
    ///
    /// Returns whether it was idle and is on its way out.
    pub fn evict(self: &Rc<Self>) -> bool {
        if !self.is_idle() {
            return false;
        }
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
        let Live { host, slot, record, etag, store, database, .. } = *live;
        host.close_cell(slot, &crate::ingress::stopping());
        let txid = store.txid();
        drop(database);
        drop(store);
        let cell = self.clone();
        rt::spawn(async move {
            let released = record.release(txid, Nonce::numbered(crate::shard::random(), 0));
            let guard = Guard::Match(etag);
            let body = Bytes::from(released.encode());
            // Whatever comes of it: a record that still names us is claimed anew by the next
            // activation, here or after our lease elsewhere.
            if let Err(error) = shard.bucket.put_if(&cell.id.own_key(), guard, body).await {
                eprintln!("celld: cell {}: release failed: {error}", cell.id);
            }
            cell.state.borrow_mut().phase = Phase::Cold;
            cell.wake_or_forget();
        });
        true
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
