//! WebSockets of a realm: the ends that JavaScript holds, but for hibernatable ones, which are the
//! cell's (`cell/sockets`).
//!
//! Invariant: an end is in the table until both directions are over, or whoever made it is: an
//! event of the Worker, or a cell.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use celld_rt as rt;
use celld_v8host::{CellSlot, EventId, Input, Origin, SocketEvent, SocketId, SocketMessage};
use rustc_hash::FxHashSet;

use super::perform::while_wanted;
use super::{Host, Queued};
use crate::deadline::Deadline;
use crate::websocket::{self, Duplex, RESTART, Receiver, Sender, close, is_last, message_weight};

/// Who takes messages this slowly does not take them.
const TOO_SLOW: u16 = 1008;

/// One end.
pub(super) struct Near {
    origin: Origin,
    sender: Sender,
    hears: Hears,
}

enum Hears {
    /// Nothing, so far: what comes waits.
    NotYet(Receiver),
    /// A task brings it what comes. Dropped with this, it stops.
    Everything {
        #[expect(dead_code, reason = "its drop is what counts")]
        task: rt::oneshot::Sender<()>,
    },
    /// Nothing any more.
    Over,
}

impl Near {
    /// The event that may hear something on it.
    pub(super) fn hears_for(&self) -> Option<EventId> {
        match self.hears {
            Hears::Everything { .. } => Some(self.origin.event),
            Hears::NotYet(_) | Hears::Over => None,
        }
    }
}

impl Host {
    /// JavaScript has made a pair.
    pub(super) fn socket_pair(&self, sockets: [SocketId; 2], origin: Origin) {
        let (first, second) = websocket::connect();
        let [first_id, second_id] = sockets;
        self.keep_socket(first_id, first, origin);
        self.keep_socket(second_id, second, origin);
    }

    /// An end for JavaScript, which came with a response.
    pub(super) fn socket_in(&self, end: Duplex, origin: Origin) -> SocketId {
        let socket = SocketId::fresh();
        self.keep_socket(socket, end, origin);
        socket
    }

    fn keep_socket(&self, socket: SocketId, end: Duplex, origin: Origin) {
        let Duplex { sender, receiver } = end;
        // Dropped after the borrow: a node that stops does not wait for sockets, but closes them.
        let mut entered = None;
        let mut table = self.table.borrow_mut();
        if origin.cell.is_none()
            && let Some(event) = table.events.get_mut(&origin.event)
        {
            event.sockets.push(socket);
            entered = event.entered.take();
        }
        table.sockets.insert(socket, Near { origin, sender, hears: Hears::NotYet(receiver) });
        drop(table);
        drop(entered);
    }

    /// The end leaves JavaScript: for a response, or for the cell that hibernates with it.
    pub(super) fn socket_out(&self, socket: SocketId) -> Option<Duplex> {
        let near = self.table.borrow_mut().sockets.remove(&socket)?;
        match near.hears {
            Hears::NotYet(receiver) => Some(Duplex { sender: near.sender, receiver }),
            Hears::Everything { .. } | Hears::Over => None,
        }
    }

    /// JavaScript wants to hear what comes.
    pub(super) fn socket_accept(self: &Rc<Self>, socket: SocketId, origin: Origin) {
        let (task, cancelled) = rt::oneshot::channel();
        let receiver = {
            let mut table = self.table.borrow_mut();
            let Some(near) = table.sockets.get_mut(&socket) else { return };
            match std::mem::replace(&mut near.hears, Hears::Everything { task }) {
                Hears::NotYet(receiver) => receiver,
                before @ (Hears::Everything { .. } | Hears::Over) => {
                    near.hears = before;
                    return;
                }
            }
        };
        let host = self.clone();
        rt::spawn(async move {
            while_wanted(cancelled, host.hear_all(socket, origin, receiver)).await;
        });
    }

    async fn hear_all(self: &Rc<Self>, socket: SocketId, origin: Origin, mut receiver: Receiver) {
        while let Some(event) = receiver.next().await {
            let is_gone = matches!(event, SocketEvent::Lost | SocketEvent::Failed(_));
            let is_last = is_last(&event);
            if !is_last {
                poll_fn(|cx| self.poll_caught_up(socket, cx)).await;
            }
            // The next one comes after the turn of this one.
            let (turn, is_over) = rt::oneshot::channel();
            let gate = origin.cell.map(|slot| (slot, origin.section));
            let input = Input::Socket { socket, event };
            self.queue(Queued { gate, origin: Some(origin), input, turn: Some(turn) });
            let _dropped = is_over.await;
            if is_last {
                self.hears_no_more(socket, is_gone);
            }
        }
    }

    fn poll_caught_up(&self, socket: SocketId, cx: &mut Context<'_>) -> Poll<()> {
        let table = self.table.borrow();
        table.sockets.get(&socket).map_or(Poll::Ready(()), |near| near.sender.poll_caught_up(cx))
    }

    /// Nothing comes any more; `is_gone`: nor can anything be sent.
    fn hears_no_more(&self, socket: SocketId, is_gone: bool) {
        let mut table = self.table.borrow_mut();
        let Some(near) = table.sockets.get_mut(&socket) else { return };
        near.hears = Hears::Over;
        if is_gone || near.sender.has_ended() {
            let near = table.sockets.remove(&socket);
            drop(table);
            drop(near);
        }
    }

    /// JavaScript sends something that its gate may hold. `false`: the socket has been given up,
    /// because too much waits already.
    pub(super) fn socket_reserve(&self, socket: SocketId, origin: Origin, bytes: usize) -> bool {
        let reserve = |sender: &Sender| {
            let has_room = sender.reserve(bytes);
            if !has_room {
                sender.give_up(close(TOO_SLOW, "messages are taken too slowly"));
            }
            has_room
        };
        self.with_sender(socket, origin.cell, reserve).unwrap_or(true)
    }

    /// The gate is open: the message goes.
    pub(super) fn socket_send(&self, socket: SocketId, origin: Origin, message: SocketMessage) {
        let weight = message_weight(&message);
        let event = SocketEvent::Message(message);
        let last = is_last(&event);
        self.with_sender(socket, origin.cell, |sender| {
            // In this order: who waits until all is settled finds it in the pipe.
            sender.push(event);
            sender.unreserve(weight);
        });
        if last {
            let mut table = self.table.borrow_mut();
            if table.sockets.get(&socket).is_some_and(|near| matches!(near.hears, Hears::Over)) {
                let near = table.sockets.remove(&socket);
                drop(table);
                drop(near);
            }
        }
    }

    /// The gate broke: the message does not go.
    pub(super) fn socket_unsent(&self, socket: SocketId, origin: Origin, message: &SocketMessage) {
        let weight = message_weight(message);
        self.with_sender(socket, origin.cell, |sender| sender.unreserve(weight));
    }

    fn with_sender<R>(
        &self,
        socket: SocketId,
        slot: Option<CellSlot>,
        act: impl FnOnce(&Sender) -> R,
    ) -> Option<R> {
        let cell = {
            let table = self.table.borrow();
            if let Some(near) = table.sockets.get(&socket) {
                return Some(act(&near.sender));
            }
            slot.and_then(|slot| table.cells.get(&slot).cloned())
        };
        cell?.with_sender(socket, act)
    }

    /// The cell hibernates with this end.
    pub(super) fn socket_hibernate(&self, socket: SocketId, slot: CellSlot) {
        let end = self.socket_out(socket);
        let cell = self.table.borrow().cells.get(&slot).cloned();
        if let (Some(end), Some(cell)) = (end, cell) {
            cell.take_socket(socket, end);
        }
    }

    /// A cell leaves: its sockets are closed.
    pub fn close_sockets_of(&self, slot: CellSlot, reason: &str) {
        self.close_sockets(reason, |near| near.origin.cell == Some(slot));
    }

    /// The node stops: the sockets that the Worker holds are closed. It hears of the answers.
    pub fn close_sockets_of_worker(&self) {
        let table = self.table.borrow();
        for near in table.sockets.values().filter(|near| near.origin.cell.is_none()) {
            near.sender.push(close(RESTART, "the node is stopping"));
        }
    }

    fn close_sockets(&self, reason: &str, is_one: impl Fn(&Near) -> bool) {
        let closed: Vec<Near> = {
            let mut table = self.table.borrow_mut();
            table.sockets.extract_if(|_, near| is_one(near)).map(|(_, near)| near).collect()
        };
        for near in closed {
            near.sender.push(close(RESTART, reason));
        }
    }

    /// An event of the Worker is over: nobody holds its sockets any more.
    pub(super) fn drop_sockets(&self, sockets: &[SocketId]) {
        // Dropped after the borrow: the other end may be in this realm.
        let mut gone = Vec::new();
        let mut table = self.table.borrow_mut();
        gone.extend(sockets.iter().filter_map(|socket| table.sockets.remove(socket)));
        drop(table);
        drop(gone);
    }

    /// Starts a handler of the cell for what came on one of its hibernatable sockets. `turn` is
    /// dropped when its first turn has ended, `over` when nothing of the event is left.
    pub fn start_socket_event(
        self: &Rc<Self>,
        cell: &Rc<crate::cell::Cell>,
        slot: CellSlot,
        arrived: crate::cell::SocketArrival,
    ) -> EventId {
        let crate::cell::SocketArrival { socket, happened, turn, over } = arrived;
        let event = self.open_event(Some(cell.clone()), super::Reply::Nobody);
        if let Some(opened) = self.table.borrow_mut().events.get_mut(&event) {
            opened.over = Some(over);
        }
        let input = Input::CellSocket { event, cell: slot, socket, happened };
        self.queue(Queued { gate: Some((slot, None)), origin: None, input, turn: Some(turn) });
        event
    }

    /// The event ends at its deadline, if it has not before.
    pub fn bound_event(&self, event: EventId, deadline: Deadline) {
        if let Some(event) = self.table.borrow_mut().events.get_mut(&event) {
            event.deadline = Some(deadline);
        }
    }

    /// The event has had its time: it keeps the cell awake no longer.
    pub fn socket_event_timed_out(self: &Rc<Self>, event: EventId) {
        self.finish(event);
    }

    /// How many events of a cell are answered, and go on only because a WebSocket of theirs is open.
    pub fn listening_events(&self, slot: CellSlot) -> usize {
        let table = self.table.borrow();
        let is_open = |near: &&Near| {
            near.origin.cell == Some(slot) && matches!(near.hears, Hears::Everything { .. })
        };
        let open = table.sockets.values().filter(is_open).map(|near| near.origin.event);
        let listens = |id: &EventId| {
            table.events.get(id).is_some_and(|event| event.is_answered && event.sinks == 0)
        };
        open.collect::<FxHashSet<_>>().iter().filter(|id| listens(id)).count()
    }

    /// Whether the cell has something in JavaScript that an eviction would end.
    pub fn holds_something(&self, slot: CellSlot) -> bool {
        let table = self.table.borrow();
        let ours = |origin: &Origin| origin.cell == Some(slot);
        table.timers.values().any(|(origin, _)| ours(origin))
            || table.calls.values().any(|waiting| ours(&waiting.origin))
            || table.sockets.values().any(|near| ours(&near.origin))
    }
}
