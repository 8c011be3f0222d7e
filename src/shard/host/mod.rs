//! One realm on this shard, and everything that is under way in it.
//!
//! Invariant: a turn is never entered from within a turn. Whoever has something for JavaScript
//! puts it into the inbox; the first to come drives it until it is empty or a time slice is over.

use std::cell::{Cell as StdCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use celld_rt as rt;
use celld_v8host::{
    Answer, CallId, CellSlot, Encoding, EventId, Failure, HostCall, Input, Origin, Realm, Request,
    Response, Script, SectionId, SocketId, StreamId, TimerId, Turn,
};
use rustc_hash::FxHashMap;

use crate::body::{Answered, Asked, Flow, Outcome};
use crate::cell::Cell;
use crate::coding::recode;
use crate::fleet::direct::Direct;
use crate::follow::Course;
use crate::pulled::Sink;
use crate::shard::Shard;
use crate::websocket::handshake;

mod ending;
mod events;
mod hung;
mod perform;
mod reply;
mod sockets;
mod streams;

use events::Event;
pub(crate) use perform::while_wanted;
pub(crate) use reply::Reply;
use sockets::Near;

/// Turns are driven for this long before sockets and timers of the shard get their turn.
const SLICE_US: u64 = 2_000;

/// A realm and its tables.
pub(crate) struct Host {
    pub shard: Weak<Shard>,
    pub script: Arc<Script>,
    realm: RefCell<Realm>,
    inbox: RefCell<VecDeque<Queued>>,
    driving: StdCell<bool>,
    calls: RefCell<Vec<HostCall>>,
    table: RefCell<Table>,
    pub direct: Direct,
    next_event: StdCell<u64>,
    next_slot: StdCell<u32>,
    next_stream: StdCell<u64>,
    /// A newer version runs, or the heap was full: nothing new starts here.
    pub retired: StdCell<bool>,
    /// Nothing runs here any more.
    broken: StdCell<bool>,
    /// A task looks for events that have hung.
    watching: StdCell<bool>,
}

/// An input on its way in. One that is bound for a cell passes its input gate when its turn comes,
/// not before: the turn ahead of it may close the gate.
pub(crate) struct Queued {
    gate: Option<(CellSlot, Option<SectionId>)>,
    /// Whose turn it will be, where the input itself does not tell.
    origin: Option<Origin>,
    input: Input,
    /// Dropped when the turn has ended, or will never be.
    turn: Option<rt::oneshot::Sender<()>>,
}

/// A call of JavaScript that waits for its answer.
struct Waiting {
    origin: Origin,
    /// How the body of its answer is to come.
    encoding: Encoding,
    /// Dropped with this: the task that works on the answer gives up.
    task: Option<rt::oneshot::Sender<()>>,
}

#[derive(Default)]
struct Table {
    events: FxHashMap<EventId, Event>,
    calls: FxHashMap<CallId, Waiting>,
    /// Dropping the sender ends the task that waits.
    timers: FxHashMap<TimerId, (Origin, rt::oneshot::Sender<()>)>,
    sources: FxHashMap<StreamId, Source>,
    sinks: FxHashMap<StreamId, (Rc<RefCell<Sink>>, EventId)>,
    sockets: FxHashMap<SocketId, Near>,
    cells: FxHashMap<CellSlot, Rc<Cell>>,
    /// The event in which a cell's constructor runs; it is over when that is.
    opening: FxHashMap<CellSlot, EventId>,
}

/// A stream that JavaScript reads.
enum Source {
    Waiting(Flow),
    /// A task is fetching the next piece.
    Pulled,
}

impl Host {
    pub fn new(shard: &Rc<Shard>, realm: Realm, script: Arc<Script>) -> Rc<Self> {
        Rc::new(Self {
            shard: Rc::downgrade(shard),
            script,
            realm: RefCell::new(realm),
            inbox: RefCell::default(),
            driving: StdCell::new(false),
            calls: RefCell::default(),
            table: RefCell::default(),
            direct: Direct::default(),
            next_event: StdCell::new(1),
            next_slot: StdCell::new(0),
            next_stream: StdCell::new(2),
            retired: StdCell::new(false),
            broken: StdCell::new(false),
            watching: StdCell::new(false),
        })
    }

    /// Whether JavaScript still waits for the answer to a call.
    fn waits_for(&self, call: CallId) -> bool {
        self.table.borrow().calls.contains_key(&call)
    }

    /// Cells that live here.
    pub fn cell_count(&self) -> usize {
        self.table.borrow().cells.len()
    }

    /// Whether its heap is still smaller than `bytes`.
    pub fn has_memory(&self, bytes: usize) -> bool {
        self.realm.try_borrow_mut().is_ok_and(|mut realm| realm.usage().heap_bytes < bytes)
    }

    /// Its heap and its buffers; nothing while a turn runs.
    pub fn memory_bytes(&self) -> usize {
        let usage = self.realm.try_borrow_mut().map(|mut realm| realm.usage());
        usage.map_or(0, |usage| usage.heap_bytes + usage.buffer_bytes)
    }

    /// Collects its garbage, unless a turn runs.
    pub fn collect(&self) {
        if let Ok(mut realm) = self.realm.try_borrow_mut() {
            realm.collect();
        }
    }

    /// Starts `fetch` of the Worker or of a cell.
    pub fn start_fetch(
        self: &Rc<Self>,
        cell: Option<(&Rc<Cell>, CellSlot)>,
        asked: Asked,
        reply: Reply,
        course: Option<Rc<Course>>,
    ) -> EventId {
        let event = self.open_event(cell.map(|(cell, _)| cell.clone()), reply);
        if cell.is_none() {
            self.watch_events();
        }
        if let Some(opened) = self.table.borrow_mut().events.get_mut(&event) {
            opened.wants_socket = handshake::asks(&asked.headers);
            opened.course = course;
        }
        let request = Request {
            is_rpc: asked.is_rpc,
            method: asked.method,
            url: asked.url,
            headers: asked.headers,
            body: self.body_in(asked.body, event),
            redirect: asked.redirect,
            answer: Encoding::Automatic,
        };
        let slot = cell.map(|(_, slot)| slot);
        let input = Input::Fetch { event, cell: slot, request };
        self.queue(Queued { gate: slot.map(|slot| (slot, None)), origin: None, input, turn: None });
        event
    }

    /// Starts `scheduled` of the Worker.
    pub fn start_scheduled(self: &Rc<Self>, cron: String, scheduled_time: f64, reply: Reply) {
        let event = self.open_event(None, reply);
        self.watch_events();
        self.deliver(Input::Scheduled { event, cron, scheduled_time });
    }

    /// Starts `alarm()` of a cell. Ends in `Cell::alarm_ended`.
    pub fn start_alarm(
        self: &Rc<Self>,
        cell: &Rc<Cell>,
        slot: CellSlot,
        scheduled_ms: u64,
        retries: u32,
    ) {
        let event = self.open_event(Some(cell.clone()), Reply::Nobody);
        let input = Input::Alarm { event, cell: slot, scheduled_ms, retries };
        self.queue(Queued { gate: Some((slot, None)), origin: None, input, turn: None });
    }

    /// Gives a cell a slot here.
    pub fn reserve_slot(&self, cell: &Rc<Cell>) -> CellSlot {
        let slot = CellSlot(self.next_slot.get());
        self.next_slot.set(slot.0.checked_add(1).expect("a realm opens fewer than 2^32 cells"));
        self.table.borrow_mut().cells.insert(slot, cell.clone());
        slot
    }

    /// Constructs the instance of a cell that has its slot. Ends in `Cell::opened`.
    pub fn open_cell(
        self: &Rc<Self>,
        cell: &Rc<Cell>,
        slot: CellSlot,
        open: celld_v8host::OpenCell,
    ) {
        let event = self.open_event(Some(cell.clone()), Reply::Nobody);
        self.table.borrow_mut().opening.insert(slot, event);
        self.deliver(Input::OpenCell { event, cell: slot, open });
    }

    /// Forgets a cell: what it had under way fails with `why`.
    pub fn close_cell(self: &Rc<Self>, slot: CellSlot, why: &Failure) {
        let Some(cell) = self.table.borrow_mut().cells.remove(&slot) else { return };
        let mut replies = Vec::new();
        // Dropped after the borrow: their writers are told, and they may be of this realm.
        let mut unread = Vec::new();
        {
            let mut table = self.table.borrow_mut();
            let ours = |origin: &Origin| origin.cell == Some(slot);
            table.opening.remove(&slot);
            table.calls.retain(|_, waiting| !ours(&waiting.origin));
            table.timers.retain(|_, (origin, _)| !ours(origin));
            let events: Vec<EventId> = table
                .events
                .iter()
                .filter(|(_, event)| event.cell.as_ref().is_some_and(|c| Rc::ptr_eq(c, &cell)))
                .map(|(id, _)| *id)
                .collect();
            for id in events {
                let Some(event) = table.events.remove(&id) else { continue };
                replies.extend(event.reply);
                for source in event.sources {
                    unread.extend(table.sources.remove(&source));
                }
                table.sinks.retain(|_, (sink, of)| {
                    if *of == id {
                        sink.borrow_mut().push(Err(why.clone()));
                    }
                    *of != id
                });
            }
        }
        drop(unread);
        self.close_sockets_of(slot, &why.message);
        self.deliver(Input::CloseCell { cell: slot });
        for reply in replies {
            reply.send(Err(why.clone()));
        }
    }

    /// Answers a call that waits for a response.
    pub fn answer_response(self: &Rc<Self>, call: CallId, outcome: Outcome) {
        let Some(waiting) = self.table.borrow_mut().calls.remove(&call) else { return };
        let origin = waiting.origin;
        let answer = outcome.map(|answered| {
            let Answered { body, headers, encoding, .. } = answered;
            let body = recode(body, &headers, encoding, waiting.encoding);
            Answer::Response(Response {
                status: answered.status,
                status_text: answered.status_text,
                headers,
                body: self.body_in(body, origin.event),
                encoding: waiting.encoding,
                url: answered.url,
                redirected: answered.redirected,
                web_socket: answered.web_socket.map(|end| self.socket_in(end, origin)),
            })
        });
        self.admit(origin, Input::Answer { call, answer });
    }

    fn answer_done(self: &Rc<Self>, call: CallId, origin: Origin) {
        self.table.borrow_mut().calls.remove(&call);
        self.admit(origin, Input::Answer { call, answer: Ok(Answer::Done) });
    }

    /// Sends an input through the input gate of the cell that asked for it.
    fn admit(self: &Rc<Self>, origin: Origin, input: Input) {
        let gate = origin.cell.map(|slot| (slot, origin.section));
        self.queue(Queued { gate, origin: Some(origin), input, turn: None });
    }

    /// What a closed gate has kept comes before everything else.
    pub fn requeue(self: &Rc<Self>, parked: VecDeque<Queued>) {
        let mut inbox = self.inbox.borrow_mut();
        for queued in parked.into_iter().rev() {
            inbox.push_front(queued);
        }
        drop(inbox);
        self.drive();
    }

    /// Puts an input into the inbox and runs JavaScript, unless it is running already.
    pub fn deliver(self: &Rc<Self>, input: Input) {
        self.queue(Queued { gate: None, origin: None, input, turn: None });
    }

    fn queue(self: &Rc<Self>, queued: Queued) {
        self.inbox.borrow_mut().push_back(queued);
        self.drive();
    }

    fn drive(self: &Rc<Self>) {
        if self.driving.replace(true) {
            return;
        }
        // Whoever has put something into the inbox goes on, also after a panic.
        match rt::guard(|| self.work_for_a_slice()) {
            Some(true) => self.driving.set(false),
            Some(false) => {
                let host = self.clone();
                rt::spawn(async move {
                    rt::yield_now().await;
                    host.driving.set(false);
                    host.drive();
                });
            }
            None => self.break_down(),
        }
    }

    /// Works the inbox. `false`: something is left in it, for when others have had their turn.
    fn work_for_a_slice(self: &Rc<Self>) -> bool {
        let started = rt::mono_us();
        loop {
            let Some(queued) = self.inbox.borrow_mut().pop_front() else { return true };
            if let Some(queued) = self.pass(queued) {
                self.turn(queued);
            }
            if rt::mono_us() - started > SLICE_US && !self.inbox.borrow().is_empty() {
                return false;
            }
        }
    }

    /// The input, if its gate is open; a closed gate keeps it.
    fn pass(&self, queued: Queued) -> Option<Queued> {
        let Some((slot, section)) = queued.gate else { return Some(queued) };
        // A cell that was closed meanwhile waits for nothing.
        let cell = self.table.borrow().cells.get(&slot).cloned()?;
        if cell.passes(section) {
            Some(queued)
        } else {
            cell.park(queued);
            None
        }
    }

    fn turn(self: &Rc<Self>, queued: Queued) {
        let Some(shard) = self.shard.upgrade() else { return };
        if self.broken.get() || !shard.authority.is_held() {
            // The realm is spent, or the node is fencing itself: nothing runs any more.
            return;
        }
        let Queued { origin, input, turn: _turn, .. } = queued;
        let culprit = match origin {
            Some(origin) => Some((origin.event, origin.cell)),
            None => self.culprit(&input),
        };
        let mut calls = std::mem::take(&mut *self.calls.borrow_mut());
        let turn = self.realm.borrow_mut().turn(rt::wall_ms() as f64, input, &mut calls);
        match turn {
            Turn::Ended { wrote } => {
                let aborted = perform::aborted(&calls);
                // What a turn writes and aborts is not committed: it goes with the database.
                for slot in wrote.into_iter().filter(|slot| !aborted.contains(slot)) {
                    let cell = self.table.borrow().cells.get(&slot).cloned();
                    if let Some(cell) = cell {
                        cell.end_turn(self);
                    }
                }
                self.perform_all(&mut calls, &aborted);
            }
            Turn::Terminated(termination) => {
                calls.clear();
                self.terminated(&shard, termination, culprit);
            }
        }
        *self.calls.borrow_mut() = calls;
    }

    /// Whose turn it is, should it end badly.
    fn culprit(&self, input: &Input) -> Option<(EventId, Option<CellSlot>)> {
        match input {
            Input::Fetch { event, cell, .. } => Some((*event, *cell)),
            Input::OpenCell { event, cell, .. }
            | Input::Alarm { event, cell, .. }
            | Input::CellSocket { event, cell, .. } => Some((*event, Some(*cell))),
            Input::Scheduled { event, .. }
            | Input::Disconnected { event }
            | Input::Forget { event } => Some((*event, None)),
            Input::Pull { stream } | Input::Cancel { stream, .. } => {
                self.table.borrow().sinks.get(stream).map(|(_, event)| (*event, None))
            }
            // These come with their origin, or run nothing of the application.
            Input::Answer { .. }
            | Input::Timer { .. }
            | Input::Socket { .. }
            | Input::Chunk { .. }
            | Input::CloseCell { .. } => None,
        }
    }
}
