//! What JavaScript asks for, performed: at once, or when the output gate of its cell opens.

use std::rc::Rc;
use std::time::Duration;

use celld_rt as rt;
use celld_v8host::{
    CallId, CellSlot, Encoding, Failure, HostCall, Input, LogLevel, Origin, Request, TimerId,
};
use futures_lite::FutureExt as _;

use super::{Host, Reply, Waiting};
use crate::body::failure;
use crate::cell::{self, Cell};
use crate::websocket::{handshake, message_weight};

/// workerd's words.
const NOT_ASKED_FOR: &str = "Worker tried to return a WebSocket in a response to a request which \
    did not contain the header \"Upgrade: websocket\".";

/// Which output gate a call has to pass.
enum Gate {
    /// None: nobody outside can observe it.
    Inside,
    /// That of this cell; of the Worker there is none.
    Of(Option<CellSlot>),
}

fn gate_of(call: &HostCall) -> Gate {
    match call {
        HostCall::Respond { cell, .. } => Gate::Of(*cell),
        HostCall::Fetch { origin, .. }
        | HostCall::FetchCell { origin, .. }
        | HostCall::Sync { origin, .. }
        | HostCall::Chunk { origin, .. }
        | HostCall::SocketSend { origin, .. } => Gate::Of(origin.cell),
        HostCall::SocketPair { .. }
        | HostCall::SocketAccept { .. }
        | HostCall::SocketHibernate { .. }
        | HostCall::AlarmEnded { .. }
        | HostCall::Opened { .. }
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
        | HostCall::Uncaught { .. } => Gate::Inside,
    }
}

/// Cells that have aborted themselves in this turn.
pub(super) fn aborted(calls: &[HostCall]) -> Vec<CellSlot> {
    let of = |call: &HostCall| {
        if let HostCall::AbortCell { cell, .. } = call { Some(*cell) } else { None }
    };
    calls.iter().filter_map(of).collect()
}

impl Host {
    /// Performs the calls of a turn. Those of a cell that has aborted itself come last, so that they
    /// find its gate broken: they would show writes that are gone.
    pub(super) fn perform_all(self: &Rc<Self>, calls: &mut Vec<HostCall>, aborted: &[CellSlot]) {
        let is_late = |call: &HostCall| match gate_of(call) {
            Gate::Of(Some(slot)) => aborted.contains(&slot),
            Gate::Of(None) | Gate::Inside => false,
        };
        let mut late = Vec::new();
        for call in calls.drain(..) {
            if is_late(&call) { late.push(call) } else { self.perform(call) }
        }
        for call in late {
            self.perform(call);
        }
    }

    fn wait_for(&self, call: CallId, origin: Origin, encoding: Encoding) {
        let waiting = Waiting { origin, encoding, task: None };
        self.table.borrow_mut().calls.insert(call, waiting);
    }

    /// Performs what JavaScript asked for: what others can observe goes through the output gate of
    /// its cell, the rest happens at once.
    pub(super) fn perform(self: &Rc<Self>, call: HostCall) {
        let Gate::Of(slot) = gate_of(&call) else { return self.perform_inside(call) };
        match &call {
            HostCall::Fetch { call, origin, request }
            | HostCall::FetchCell { call, origin, request, .. } => {
                self.wait_for(*call, *origin, request.answer);
            }
            HostCall::Sync { call, origin, .. } => {
                self.wait_for(*call, *origin, Encoding::Automatic);
            }
            HostCall::SocketSend { socket, origin, message } => {
                if !self.socket_reserve(*socket, *origin, message_weight(message)) {
                    return;
                }
            }
            HostCall::Respond { .. } | HostCall::Chunk { .. } => {}
            other => unreachable!("this call has no gate: {other:?}"),
        }
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
            HostCall::Respond { event, response, cell } => {
                let (reply, wants_socket) = {
                    let mut table = self.table.borrow_mut();
                    let Some(event) = table.events.get_mut(&event) else { return };
                    event.is_answered = true;
                    (event.reply.take(), event.wants_socket)
                };
                let mut outcome = response.map(|response| self.answered(response, event));
                if outcome.as_ref().is_ok_and(|answered| answered.web_socket.is_some())
                    && !wants_socket
                {
                    outcome = Err(failure("TypeError", NOT_ASKED_FOR));
                }
                // Thrown by the code of a cell, which may run elsewhere.
                let remote = cell.is_some();
                let outcome = outcome.map_err(|why| Failure { remote, ..why });
                if let Some(reply) = reply {
                    reply.send(outcome);
                }
                self.finish_if_idle(event);
                let listens = cell.filter(|_| wants_socket);
                let cell = listens.and_then(|slot| self.table.borrow().cells.get(&slot).cloned());
                if let Some(cell) = cell {
                    cell.rest_if_idle();
                }
            }
            HostCall::Fetch { call, origin, request } => self.fetch_out(call, origin, request),
            HostCall::FetchCell { call, origin, stub, target, request } => {
                let Some(shard) = self.shard.upgrade() else { return };
                if !self.table.borrow().calls.contains_key(&call) {
                    // Given up while the gate held it: nothing is sent.
                    return;
                }
                let mut asked = self.asked(request, origin.event);
                if !asked.is_rpc {
                    asked.tell_length();
                }
                let reply = Reply::Call(Rc::downgrade(self), call);
                let near = shard.fetch_of_stub(&self.direct, stub, target, asked, reply);
                let table = self.table.borrow();
                let event = table.events.get(&origin.event);
                if let Some(course) = event.and_then(|event| event.course.as_ref()) {
                    course.asks(near);
                }
            }
            HostCall::Chunk { stream, chunk, .. } => self.sink_push(stream, chunk),
            HostCall::SocketSend { socket, origin, message } => {
                self.socket_send(socket, origin, message);
            }
            HostCall::Sync { call, origin, .. } => self.answer_done(call, origin),
            other => unreachable!("this call has no gate: {other:?}"),
        }
    }

    /// The gate broke: the call is not performed, who waits for it is told by the cell's reset.
    pub fn dropped(self: &Rc<Self>, call: HostCall) {
        match call {
            HostCall::Respond { event, .. } => self.fail_event(event, &cell::reset_failure()),
            HostCall::Chunk { stream, .. } => {
                self.sink_push(stream, Err(cell::reset_failure()));
            }
            HostCall::SocketSend { socket, origin, message } => {
                self.socket_unsent(socket, origin, &message);
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
            HostCall::SocketPair { sockets, origin } => self.socket_pair(sockets, origin),
            HostCall::SocketAccept { socket, origin } => self.socket_accept(socket, origin),
            HostCall::SocketHibernate { socket, cell, .. } => self.socket_hibernate(socket, cell),
            HostCall::AlarmEnded { cell, result, .. } => {
                self.with_cell(cell, |cell| cell.alarm_ended(result));
            }
            HostCall::Opened { cell, result } => {
                let event = self.table.borrow_mut().opening.remove(&cell);
                self.with_cell(cell, |cell| cell.opened(self, result));
                if let Some(event) = event {
                    self.done(event);
                }
            }
            HostCall::Done { event } => self.done(event),
            HostCall::Abandon { call } => {
                // Dropped after the borrow. A task that works on the answer ends with it.
                let waiting = self.table.borrow_mut().calls.remove(&call);
                let asks_a_cell = waiting.is_some_and(|waiting| waiting.task.is_none());
                if let (true, Some(shard)) = (asks_a_cell, self.shard.upgrade()) {
                    shard.abandon(|reply| reply.is_of_call(self, call));
                }
            }
            HostCall::SetTimer { timer, origin, delay_ms } => {
                self.set_timer(timer, origin, Duration::from_millis(delay_ms));
            }
            HostCall::ClearTimer { timer } => {
                self.table.borrow_mut().timers.remove(&timer);
            }
            HostCall::Pull { stream, origin } => self.pull(stream, origin),
            HostCall::Cancel { stream } => {
                // Dropped after the borrow: the writer is told, and it may be of this realm.
                let gone = self.table.borrow_mut().sources.remove(&stream);
                drop(gone);
            }
            HostCall::BlockConcurrency { cell, section, .. } => {
                self.with_cell(cell, |cell| cell.block(section));
            }
            HostCall::Unblock { cell, section, failure } => {
                self.with_cell(cell, |cell| cell.unblock(self, section, failure));
            }
            HostCall::AbortCell { cell, failure } => {
                self.with_cell(cell, |c| c.fail_life(&Failure { remote: true, ..failure }));
            }
            HostCall::Log { level, message, .. } => self.log(level, &message),
            HostCall::Uncaught { failure, .. } => {
                rt::log!("Uncaught {}: {}\n{}", failure.name, failure.message, failure.stack);
            }
            other => unreachable!("this call has a gate: {other:?}"),
        }
    }

    fn log(&self, level: LogLevel, message: &str) {
        let mark = match level {
            LogLevel::Debug => "[debug] ",
            LogLevel::Log | LogLevel::Info => "",
            LogLevel::Warn => "[warn] ",
            LogLevel::Error => "[error] ",
        };
        rt::log!("{mark}{message}");
    }

    fn with_cell(&self, slot: CellSlot, act: impl FnOnce(&Rc<Cell>)) {
        let cell = self.table.borrow().cells.get(&slot).cloned();
        if let Some(cell) = cell {
            act(&cell);
        }
    }

    fn set_timer(self: &Rc<Self>, timer: TimerId, origin: Origin, delay: Duration) {
        let (cancel, cancelled) = rt::oneshot::channel();
        {
            let mut table = self.table.borrow_mut();
            table.timers.insert(timer, (origin, cancel));
            if let Some(event) = table.events.get_mut(&origin.event) {
                event.timers.push(timer);
            }
        }
        let host = Rc::downgrade(self);
        rt::spawn(async move {
            // A cleared timer, or one of an event that is over, does not wait for its time.
            if while_wanted(cancelled, rt::sleep(delay)).await.is_none() {
                return;
            }
            let Some(host) = host.upgrade() else { return };
            let known = host.table.borrow_mut().timers.remove(&timer);
            if let Some((origin, _)) = known {
                host.admit(origin, Input::Timer { timer });
            }
        });
    }

    fn fetch_out(self: &Rc<Self>, call: CallId, origin: Origin, request: Request) {
        let Some(shard) = self.shard.upgrade() else { return };
        let (cancel, cancelled) = rt::oneshot::channel();
        if let Some(waiting) = self.table.borrow_mut().calls.get_mut(&call) {
            waiting.task = Some(cancel);
        } else {
            // Given up while the gate held it: nothing is sent.
            return;
        }
        let asked = self.asked(request, origin.event);
        let host = self.clone();
        rt::spawn(async move {
            // Given up: the request's connection is cut.
            let work = async {
                if asked.method == http::Method::GET && handshake::asks(&asked.headers) {
                    shard.open_socket(asked).await
                } else {
                    shard.fetch_out(asked).await
                }
            };
            let outcome = while_wanted(cancelled, work).await;
            if let Some(outcome) = outcome {
                host.answer_response(call, outcome);
            }
        });
    }
}

/// What `work` gives; `None` if the other end of `wanted` is dropped before.
pub(crate) async fn while_wanted<T>(
    wanted: rt::oneshot::Receiver<()>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let gone = async {
        let _dropped = wanted.await;
        None
    };
    async { Some(work.await) }.or(gone).await
}
