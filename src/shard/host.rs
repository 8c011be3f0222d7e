//! One realm on this shard, and everything that is under way in it.
//!
//! Invariant: a turn is never entered from within a turn. Whoever has something for JavaScript
//! puts it into the inbox; the first to come drives it until it is empty or a time slice is over.

use std::cell::{Cell as StdCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use celld_rt as rt;
use celld_v8host::{
    Answer, Body, CallId, CellSlot, EventId, Failure, HostCall, Input, Origin, Realm, Request,
    Response, Script, SectionId, StreamId, Termination, TimerId, Turn,
};
use futures_util::StreamExt as _;
use rustc_hash::FxHashMap;

use crate::body::{Answered, Asked, Flow, Outcome, failure};
use crate::cell::Cell;
use crate::pulled::{Pulled, Sink, Source as PullSource};
use crate::shard::Shard;

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
    next_event: StdCell<u64>,
    next_slot: StdCell<u32>,
    next_stream: StdCell<u64>,
    /// A newer version runs, or the heap was full: nothing new starts here.
    pub retired: StdCell<bool>,
}

/// An input on its way in. One that is bound for a cell passes its input gate when its turn comes,
/// not before: the turn ahead of it may close the gate.
pub(crate) struct Queued {
    gate: Option<(CellSlot, Option<SectionId>)>,
    input: Input,
}

#[derive(Default)]
struct Table {
    events: FxHashMap<EventId, Event>,
    calls: FxHashMap<CallId, Origin>,
    timers: FxHashMap<TimerId, Origin>,
    sources: FxHashMap<StreamId, Source>,
    sinks: FxHashMap<StreamId, (Rc<RefCell<Sink>>, EventId)>,
    cells: FxHashMap<CellSlot, Rc<Cell>>,
}

/// One event that JavaScript works on.
struct Event {
    cell: Option<Rc<Cell>>,
    reply: Option<Reply>,
    /// JavaScript has said that nothing of it is left.
    done: bool,
    /// Streams of it that somebody still reads.
    sinks: u32,
    timers: Vec<TimerId>,
    sources: Vec<StreamId>,
}

/// A stream that JavaScript reads.
enum Source {
    Waiting(Flow),
    /// A task is fetching the next piece.
    Pulled,
}

/// Who gets the response of an event.
pub(crate) enum Reply {
    /// A task of this shard.
    Task(rt::oneshot::Sender<Outcome>),
    /// JavaScript of this shard, which called `stub.fetch`.
    Call(Weak<Host>, CallId),
    /// Another shard, which has numbered its question.
    Shard(Weak<Shard>, usize, u64),
    /// Nobody: the opening of a cell.
    Nobody,
}

impl Reply {
    /// Delivers the outcome; a receiver that has gone away does not want it.
    pub fn send(self, outcome: Outcome) {
        match self {
            Reply::Task(sender) => {
                let _gone = sender.send(outcome);
            }
            Reply::Call(host, call) => {
                if let Some(host) = host.upgrade() {
                    host.answer_response(call, outcome);
                }
            }
            Reply::Shard(shard, peer, call) => {
                if let Some(shard) = shard.upgrade() {
                    shard.answer_peer(peer, call, outcome);
                }
            }
            Reply::Nobody => {}
        }
    }
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
            next_event: StdCell::new(1),
            next_slot: StdCell::new(0),
            next_stream: StdCell::new(2),
            retired: StdCell::new(false),
        })
    }

    /// Cells that live here.
    pub fn cell_count(&self) -> usize {
        self.table.borrow().cells.len()
    }

    /// Whether its heap is still smaller than `bytes`.
    pub fn has_memory(&self, bytes: usize) -> bool {
        self.realm.try_borrow_mut().is_ok_and(|mut realm| realm.usage().heap_bytes < bytes)
    }

    /// Starts `fetch` of the Worker or of a cell.
    pub fn start_fetch(
        self: &Rc<Self>,
        cell: Option<(&Rc<Cell>, CellSlot)>,
        asked: Asked,
        reply: Reply,
    ) -> EventId {
        let event = self.open_event(cell.map(|(cell, _)| cell.clone()), reply);
        let request = Request {
            method: asked.method,
            url: asked.url,
            headers: asked.headers,
            body: self.body_in(asked.body, event),
            redirect: asked.redirect,
        };
        let slot = cell.map(|(_, slot)| slot);
        let input = Input::Fetch { event, cell: slot, request };
        self.queue(slot.map(|slot| (slot, None)), input);
        event
    }

    /// Starts `scheduled` of the Worker.
    pub fn start_scheduled(self: &Rc<Self>, cron: String, scheduled_time: f64, reply: Reply) {
        let event = self.open_event(None, reply);
        self.deliver(Input::Scheduled { event, cron, scheduled_time });
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
        self.deliver(Input::OpenCell { event, cell: slot, open });
    }

    /// Forgets a cell: what it had under way fails with `why`.
    pub fn close_cell(self: &Rc<Self>, slot: CellSlot, why: &Failure) {
        let Some(cell) = self.table.borrow_mut().cells.remove(&slot) else { return };
        let mut replies = Vec::new();
        {
            let mut table = self.table.borrow_mut();
            let ours = |origin: &Origin| origin.cell == Some(slot);
            table.calls.retain(|_, origin| !ours(origin));
            table.timers.retain(|_, origin| !ours(origin));
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
                    table.sources.remove(&source);
                }
                table.sinks.retain(|_, (sink, of)| {
                    if *of == id {
                        sink.borrow_mut().push(Err(why.clone()));
                    }
                    *of != id
                });
            }
        }
        self.deliver(Input::CloseCell { cell: slot });
        for reply in replies {
            reply.send(Err(why.clone()));
        }
    }

    /// The client of an event has gone away.
    pub fn disconnected(self: &Rc<Self>, event: EventId) {
        if self.table.borrow().events.contains_key(&event) {
            self.deliver(Input::Disconnected { event });
        }
    }

    /// Answers a call that waits for a response.
    pub fn answer_response(self: &Rc<Self>, call: CallId, outcome: Outcome) {
        let Some(origin) = self.table.borrow_mut().calls.remove(&call) else { return };
        let answer = outcome.map(|answered| {
            Answer::Response(Response {
                status: answered.status,
                status_text: answered.status_text,
                headers: answered.headers,
                body: self.body_in(answered.body, origin.event),
                url: answered.url,
                redirected: answered.redirected,
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
        self.queue(origin.cell.map(|slot| (slot, origin.section)), input);
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
        self.queue(None, input);
    }

    fn queue(self: &Rc<Self>, gate: Option<(CellSlot, Option<SectionId>)>, input: Input) {
        self.inbox.borrow_mut().push_back(Queued { gate, input });
        self.drive();
    }

    fn drive(self: &Rc<Self>) {
        if self.driving.replace(true) {
            return;
        }
        let started = rt::mono_us();
        loop {
            let Some(queued) = self.inbox.borrow_mut().pop_front() else { break };
            if let Some(input) = self.pass(queued) {
                self.turn(input);
            }
            if rt::mono_us() - started > SLICE_US && !self.inbox.borrow().is_empty() {
                let host = self.clone();
                rt::spawn(async move {
                    rt::yield_now().await;
                    host.driving.set(false);
                    host.drive();
                });
                return;
            }
        }
        self.driving.set(false);
    }

    /// The input, if its gate is open; a closed gate keeps it.
    fn pass(&self, queued: Queued) -> Option<Input> {
        let Some((slot, section)) = queued.gate else { return Some(queued.input) };
        // A cell that was closed meanwhile waits for nothing.
        let cell = self.table.borrow().cells.get(&slot).cloned()?;
        if cell.passes(section) {
            Some(queued.input)
        } else {
            cell.park(queued);
            None
        }
    }

    fn turn(self: &Rc<Self>, input: Input) {
        let Some(shard) = self.shard.upgrade() else { return };
        if !shard.authority.is_held() {
            // The node is fencing itself: nothing runs any more, nothing is answered.
            return;
        }
        let culprit = self.culprit(&input);
        let mut calls = std::mem::take(&mut *self.calls.borrow_mut());
        let turn = self.realm.borrow_mut().turn(rt::wall_ms() as f64, input, &mut calls);
        match turn {
            Turn::Ended { wrote } => {
                for slot in wrote {
                    let cell = self.table.borrow().cells.get(&slot).cloned();
                    if let Some(cell) = cell {
                        cell.end_turn(self);
                    }
                }
                for call in calls.drain(..) {
                    self.perform(call);
                }
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
        let table = self.table.borrow();
        let of = |origin: &Origin| (origin.event, origin.cell);
        match input {
            Input::Fetch { event, cell, .. } => Some((*event, *cell)),
            Input::OpenCell { event, cell, .. } => Some((*event, Some(*cell))),
            Input::Scheduled { event, .. } | Input::Disconnected { event } => Some((*event, None)),
            Input::Answer { .. } | Input::CloseCell { .. } => None,
            Input::Timer { timer } => table.timers.get(timer).map(of),
            Input::Pull { stream } | Input::Cancel { stream, .. } => {
                table.sinks.get(stream).map(|(_, event)| (*event, None))
            }
            Input::Chunk { .. } => None,
        }
    }

    fn terminated(
        self: &Rc<Self>,
        shard: &Rc<Shard>,
        termination: Termination,
        culprit: Option<(EventId, Option<CellSlot>)>,
    ) {
        let why = match termination {
            Termination::CpuTimeExceeded => failure("Error", "Worker exceeded CPU time limit."),
            Termination::OutOfMemory => failure("Error", "Worker exceeded memory limit."),
        };
        eprintln!("celld: {} (script {})", why.message, self.script.name);
        let all = match termination {
            Termination::OutOfMemory => true,
            // Without a culprit, whoever it was has lost a turn: all start anew.
            Termination::CpuTimeExceeded => culprit.is_none(),
        };
        if all {
            self.retire_broken(shard, &why);
            return;
        }
        let Some((event, slot)) = culprit else { return };
        let cell = slot.and_then(|slot| self.table.borrow().cells.get(&slot).cloned());
        match cell {
            Some(cell) => cell.reset(&why),
            None => self.fail_event(event, &why),
        }
    }

    /// The realm cannot go on: its cells are reset, its events fail, another realm takes over.
    fn retire_broken(self: &Rc<Self>, shard: &Rc<Shard>, why: &Failure) {
        self.retired.set(true);
        shard.replace_host(self);
        let cells: Vec<_> = self.table.borrow().cells.values().cloned().collect();
        for cell in cells {
            cell.reset(why);
        }
        let events: Vec<_> = self.table.borrow().events.keys().copied().collect();
        for event in events {
            self.fail_event(event, why);
        }
    }

    fn fail_event(self: &Rc<Self>, id: EventId, why: &Failure) {
        let reply = {
            let mut table = self.table.borrow_mut();
            let Some(event) = table.events.get_mut(&id) else { return };
            event.reply.take()
        };
        if let Some(reply) = reply {
            reply.send(Err(why.clone()));
        }
        self.finish(id);
    }

    fn open_event(&self, cell: Option<Rc<Cell>>, reply: Reply) -> EventId {
        let id = EventId(self.next_event.get());
        self.next_event.set(id.0 + 1);
        let reply = match reply {
            Reply::Nobody => None,
            Reply::Task(_) | Reply::Call(..) | Reply::Shard(..) => Some(reply),
        };
        let event = Event {
            cell,
            reply,
            done: false,
            sinks: 0,
            timers: Vec::new(),
            sources: Vec::new(),
        };
        self.table.borrow_mut().events.insert(id, event);
        id
    }

    /// Forgets an event of which nothing is left.
    fn finish(self: &Rc<Self>, id: EventId) {
        let event = {
            let mut table = self.table.borrow_mut();
            let Some(event) = table.events.remove(&id) else { return };
            // What a cell started belongs to the cell and outlives the event, as on Cloudflare.
            if event.cell.is_none() {
                for timer in &event.timers {
                    table.timers.remove(timer);
                }
                for source in &event.sources {
                    table.sources.remove(source);
                }
            }
            event
        };
        if let Some(cell) = event.cell {
            cell.event_finished();
        }
    }

    fn finish_if_idle(self: &Rc<Self>, id: EventId) {
        let over = self
            .table
            .borrow()
            .events
            .get(&id)
            .is_some_and(|e| e.done && e.sinks == 0 && e.reply.is_none());
        if over {
            self.finish(id);
        }
    }

    /// Performs what JavaScript asked for: what others can observe goes through the output gate of
    /// its cell, the rest happens at once.
    fn perform(self: &Rc<Self>, call: HostCall) {
        let slot = match &call {
            HostCall::Respond { cell, .. } => *cell,
            HostCall::Fetch { call, origin, .. }
            | HostCall::FetchCell { call, origin, .. }
            | HostCall::Sync { call, origin, .. } => {
                self.table.borrow_mut().calls.insert(*call, *origin);
                origin.cell
            }
            HostCall::Chunk { origin, .. } => origin.cell,
            HostCall::Opened { .. }
            | HostCall::Done { .. }
            | HostCall::Abandon { .. }
            | HostCall::SetTimer { .. }
            | HostCall::ClearTimer { .. }
            | HostCall::Pull { .. }
            | HostCall::Cancel { .. }
            | HostCall::BlockConcurrency { .. }
            | HostCall::Unblock { .. }
            | HostCall::AbortCell { .. }
            | HostCall::Log { .. }
            | HostCall::Uncaught { .. } => return self.perform_inside(call),
        };
        let Some(slot) = slot else { return self.release(call) };
        let cell = self.table.borrow().cells.get(&slot).cloned();
        match cell {
            Some(cell) => cell.hold(self, call),
            // The cell was reset in this very turn: nothing of it may leave.
            None => self.dropped(call),
        }
    }

    /// Performs a call whose gate is open.
    pub fn release(self: &Rc<Self>, call: HostCall) {
        match call {
            HostCall::Respond { event, response, .. } => {
                let reply = {
                    let mut table = self.table.borrow_mut();
                    let Some(event) = table.events.get_mut(&event) else { return };
                    event.reply.take()
                };
                let outcome = response.map(|response| self.answered(response, event));
                if let Some(reply) = reply {
                    reply.send(outcome);
                }
                self.finish_if_idle(event);
            }
            HostCall::Fetch { call, origin, request } => self.fetch_out(call, origin, request),
            HostCall::FetchCell { call, origin, stub: _, target, request } => {
                let Some(shard) = self.shard.upgrade() else { return };
                let asked = self.asked(request, origin.event);
                shard.fetch_cell(target, asked, Reply::Call(Rc::downgrade(self), call));
            }
            HostCall::Chunk { stream, chunk, .. } => self.sink_push(stream, chunk),
            HostCall::Sync { call, origin, .. } => self.answer_done(call, origin),
            other => unreachable!("this call has no gate: {other:?}"),
        }
    }

    /// The gate broke: the call is not performed, who waits for it is told by the cell's reset.
    pub fn dropped(self: &Rc<Self>, call: HostCall) {
        match call {
            HostCall::Respond { event, .. } => self.fail_event(event, &crate::cell::reset_failure()),
            HostCall::Chunk { stream, .. } => {
                self.sink_push(stream, Err(crate::cell::reset_failure()));
            }
            HostCall::Fetch { call, .. }
            | HostCall::FetchCell { call, .. }
            | HostCall::Sync { call, .. } => {
                self.table.borrow_mut().calls.remove(&call);
            }
            other => unreachable!("this call has no gate: {other:?}"),
        }
    }

    /// Calls that nobody outside can observe.
    fn perform_inside(self: &Rc<Self>, call: HostCall) {
        match call {
            HostCall::Opened { cell, result } => {
                self.with_cell(cell, |cell| cell.opened(self, result));
            }
            HostCall::Done { event } => {
                if let Some(event) = self.table.borrow_mut().events.get_mut(&event) {
                    event.done = true;
                }
                self.finish_if_idle(event);
            }
            HostCall::Abandon { call } => {
                self.table.borrow_mut().calls.remove(&call);
            }
            HostCall::SetTimer { timer, origin, delay_ms } => {
                self.set_timer(timer, origin, Duration::from_millis(delay_ms));
            }
            HostCall::ClearTimer { timer } => {
                self.table.borrow_mut().timers.remove(&timer);
            }
            HostCall::Pull { stream, origin } => self.pull(stream, origin),
            HostCall::Cancel { stream } => {
                self.table.borrow_mut().sources.remove(&stream);
            }
            HostCall::BlockConcurrency { cell, section, .. } => {
                self.with_cell(cell, |cell| cell.block(section));
            }
            HostCall::Unblock { cell, section, failure } => {
                self.with_cell(cell, |cell| cell.unblock(self, section, failure));
            }
            HostCall::AbortCell { cell, failure } => self.with_cell(cell, |c| c.reset(&failure)),
            HostCall::Log { level, message, .. } => self.log(level, &message),
            HostCall::Uncaught { failure, .. } => {
                eprintln!("Uncaught {}: {}\n{}", failure.name, failure.message, failure.stack);
            }
            other => unreachable!("this call has a gate: {other:?}"),
        }
    }

    fn log(&self, level: celld_v8host::LogLevel, message: &str) {
        let mark = match level {
            celld_v8host::LogLevel::Debug => "[debug] ",
            celld_v8host::LogLevel::Log | celld_v8host::LogLevel::Info => "",
            celld_v8host::LogLevel::Warn => "[warn] ",
            celld_v8host::LogLevel::Error => "[error] ",
        };
        eprintln!("{mark}{message}");
    }

    fn with_cell(&self, slot: CellSlot, act: impl FnOnce(&Rc<Cell>)) {
        let cell = self.table.borrow().cells.get(&slot).cloned();
        if let Some(cell) = cell {
            act(&cell);
        }
    }

    fn set_timer(self: &Rc<Self>, timer: TimerId, origin: Origin, delay: Duration) {
        {
            let mut table = self.table.borrow_mut();
            table.timers.insert(timer, origin);
            if let Some(event) = table.events.get_mut(&origin.event) {
                event.timers.push(timer);
            }
        }
        let host = Rc::downgrade(self);
        rt::spawn(async move {
            rt::sleep(delay).await;
            let Some(host) = host.upgrade() else { return };
            // A cleared timer, or one of an event that is over, is no longer in the table.
            let origin = host.table.borrow().timers.get(&timer).copied();
            if let Some(origin) = origin {
                host.admit(origin, Input::Timer { timer });
            }
        });
    }

    fn fetch_out(self: &Rc<Self>, call: CallId, origin: Origin, request: Request) {
        let Some(shard) = self.shard.upgrade() else { return };
        let asked = self.asked(request, origin.event);
        let host = self.clone();
        rt::spawn(async move {
            let outcome = shard.fetch_out(asked).await;
            host.answer_response(call, outcome);
        });
    }

    fn pull(self: &Rc<Self>, stream: StreamId, origin: Origin) {
        let flow = {
            let mut table = self.table.borrow_mut();
            match table.sources.insert(stream, Source::Pulled) {
                Some(Source::Waiting(flow)) => flow,
                // One question at a time: the answer to the first is on its way.
                Some(Source::Pulled) => return,
                None => {
                    table.sources.remove(&stream);
                    drop(table);
                    return self.admit(origin, Input::Chunk { stream, chunk: Ok(None) });
                }
            }
        };
        let host = self.clone();
        rt::spawn(async move {
            let (flow, piece) = next_piece(flow).await;
            let still_wanted = {
                let mut table = host.table.borrow_mut();
                match (table.sources.contains_key(&stream), &piece) {
                    (true, Ok(Some(_))) => {
                        table.sources.insert(stream, Source::Waiting(flow));
                        true
                    }
                    (true, _) => table.sources.remove(&stream).is_some(),
                    (false, _) => false,
                }
            };
            if still_wanted {
                host.admit(origin, Input::Chunk { stream, chunk: piece });
            }
        });
    }

    fn sink_push(
        self: &Rc<Self>,
        stream: StreamId,
        chunk: Result<Option<bytes::Bytes>, Failure>,
    ) {
        let last = !matches!(chunk, Ok(Some(_)));
        let sink = self.table.borrow().sinks.get(&stream).map(|(sink, _)| sink.clone());
        if let Some(sink) = sink {
            sink.borrow_mut().push(chunk);
        }
        if last {
            self.sink_closed(stream);
        }
    }

    /// The reader of a stream of ours has gone away.
    pub fn sink_cancelled(self: &Rc<Self>, stream: StreamId) {
        let known = self.table.borrow().sinks.contains_key(&stream);
        if known {
            self.sink_closed(stream);
            let reason = "the reader has gone away".to_owned();
            self.deliver(Input::Cancel { stream, reason });
        }
    }

    fn sink_closed(self: &Rc<Self>, stream: StreamId) {
        let event = {
            let mut table = self.table.borrow_mut();
            let Some((_, id)) = table.sinks.remove(&stream) else { return };
            if let Some(event) = table.events.get_mut(&id) {
                event.sinks -= 1;
            }
            id
        };
        self.finish_if_idle(event);
    }

    /// A body on its way into JavaScript.
    fn body_in(&self, flow: Flow, event: EventId) -> Body {
        match flow {
            Flow::Empty => Body::Empty,
            Flow::Bytes(bytes) => Body::Bytes(bytes),
            Flow::Stream(stream, length) => {
                let id = StreamId(self.next_stream.get());
                self.next_stream.set(id.0 + 2);
                let mut table = self.table.borrow_mut();
                table.sources.insert(id, Source::Waiting(Flow::Stream(stream, length)));
                if let Some(event) = table.events.get_mut(&event) {
                    event.sources.push(id);
                }
                Body::Stream { id, length }
            }
        }
    }

    /// A body on its way out. An even stream is one that came in and was never read here: it is
    /// handed on as it is.
    fn body_out(self: &Rc<Self>, body: Body, event: EventId) -> Flow {
        match body {
            Body::Empty => Flow::Empty,
            Body::Bytes(bytes) => Flow::Bytes(bytes),
            Body::Stream { id, length } if id.0 % 2 == 0 => {
                match self.table.borrow_mut().sources.remove(&id) {
                    Some(Source::Waiting(flow)) => flow,
                    Some(Source::Pulled) | None => {
                        let why = failure("TypeError", "the body has already been read");
                        let broken = futures_util::stream::iter([Err(why)]);
                        Flow::Stream(Box::pin(broken), length)
                    }
                }
            }
            Body::Stream { id, length } => {
                let sink = Rc::new(RefCell::new(Sink::default()));
                let mut table = self.table.borrow_mut();
                table.sinks.insert(id, (sink.clone(), event));
                if let Some(event) = table.events.get_mut(&event) {
                    event.sinks += 1;
                }
                drop(table);
                let stream = JsStream { host: Rc::downgrade(self), id };
                Flow::Stream(Box::pin(Pulled::new(stream, sink)), length)
            }
        }
    }

    fn asked(self: &Rc<Self>, request: Request, event: EventId) -> Asked {
        Asked {
            method: request.method,
            url: request.url,
            headers: request.headers,
            body: self.body_out(request.body, event),
            redirect: request.redirect,
        }
    }

    fn answered(self: &Rc<Self>, response: Response, event: EventId) -> Answered {
        Answered {
            status: response.status,
            status_text: response.status_text,
            headers: response.headers,
            body: self.body_out(response.body, event),
            url: response.url,
            redirected: response.redirected,
        }
    }
}

/// A stream that JavaScript makes.
struct JsStream {
    host: Weak<Host>,
    id: StreamId,
}

impl PullSource for JsStream {
    fn pull(&self) {
        if let Some(host) = self.host.upgrade() {
            host.deliver(Input::Pull { stream: self.id });
        }
    }

    fn cancel(&self) {
        if let Some(host) = self.host.upgrade() {
            host.sink_cancelled(self.id);
        }
    }
}

async fn next_piece(flow: Flow) -> (Flow, Result<Option<bytes::Bytes>, Failure>) {
    match flow {
        Flow::Empty => (Flow::Empty, Ok(None)),
        Flow::Bytes(bytes) => (Flow::Empty, Ok(Some(bytes))),
        Flow::Stream(mut stream, length) => match stream.next().await {
            Some(piece) => (Flow::Stream(stream, length), piece.map(Some)),
            None => (Flow::Empty, Ok(None)),
        },
    }
}
