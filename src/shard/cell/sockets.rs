//! The hibernatable WebSockets of a cell: they are the shard's, and stay while the cell is out of
//! memory. What comes on one wakes the cell, unless an automatic response is set for it.
//!
//! Invariant: of one socket, the next message is delivered after the first turn of the one before,
//! and when most of what the cell has sent on it is on its way.
//! While there are any, the cell stays this node's, in memory or not: its record is not released.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use celld_rt as rt;
use celld_v8host::{SocketEvent, SocketId, SocketMessage, Sockets};

use super::{Arrival, Cell, Phase};
use crate::deadline::Deadline;
use crate::host::while_wanted;
use crate::websocket::{Duplex, RESTART, Receiver, Sender, close, is_last};

/// The connection of one.
pub(super) struct Link {
    sender: Rc<Sender>,
    /// Dropped with this, the task ends that hears what comes.
    #[expect(dead_code, reason = "its drop is what counts")]
    task: rt::oneshot::Sender<()>,
}

/// Something that came on one.
pub(crate) struct SocketArrival {
    pub socket: SocketId,
    pub happened: SocketEvent,
    /// Dropped when the first turn has ended.
    pub turn: rt::oneshot::Sender<()>,
    /// Dropped when nothing of the event is left.
    pub over: rt::oneshot::Sender<()>,
}

impl Cell {
    /// `ctx.acceptWebSocket`. The realm has entered it in the list already.
    pub fn take_socket(self: &Rc<Self>, socket: SocketId, end: Duplex) {
        let Duplex { sender, receiver } = end;
        let (task, cancelled) = rt::oneshot::channel();
        let sender = Rc::new(sender);
        self.links.borrow_mut().insert(socket, Link { sender: sender.clone(), task });
        let cell = self.clone();
        rt::spawn(async move {
            while_wanted(cancelled, cell.hear_all(socket, &sender, receiver)).await;
            // Only its drop tells the other side that nothing comes any more.
            drop(sender);
            cell.drop_socket(socket);
        });
    }

    async fn hear_all(self: &Rc<Self>, socket: SocketId, sender: &Sender, mut receiver: Receiver) {
        while let Some(event) = receiver.next().await {
            if let SocketEvent::Message(SocketMessage::Text(text)) = &event
                && let Some(answer) = self.sockets.auto_response(socket, text, rt::wall_ms() as f64)
            {
                // Whoever asks without reading waits.
                sender.send(SocketEvent::Message(SocketMessage::Text(answer))).await;
                continue;
            }
            let last = is_last(&event);
            if !last {
                poll_fn(|cx| sender.poll_caught_up(cx)).await;
            }
            let (turn, first_turn) = rt::oneshot::channel();
            let (over, is_over) = rt::oneshot::channel();
            let arrived = SocketArrival { socket, happened: event, turn, over };
            self.enqueue(Arrival::Socket(Box::new(arrived)));
            let _dropped = first_turn.await;
            if last {
                // A handler that answers the Close may still send, but nobody finds the socket.
                self.sockets.remove(socket);
                let _dropped = is_over.await;
                // What it has sent may be in the output gate.
                sender.settled().await;
            }
        }
    }

    /// Starts the event of an arrival, bounded by the time that the cell has set.
    pub(super) fn start_socket_event(
        self: &Rc<Self>,
        host: &Rc<crate::host::Host>,
        slot: celld_v8host::CellSlot,
        arrived: SocketArrival,
    ) {
        let event = host.start_socket_event(self, slot, arrived);
        let Some(limit_ms) = self.sockets.event_timeout_ms() else { return };
        let weak = Rc::downgrade(host);
        let deadline = Deadline::after(Duration::from_millis(limit_ms.into()), move || {
            if let Some(host) = weak.upgrade() {
                host.socket_event_timed_out(event);
            }
        });
        host.bound_event(event, deadline);
    }

    /// Uses the sending side of a socket, if there is such a one.
    pub fn with_sender<R>(&self, socket: SocketId, act: impl FnOnce(&Sender) -> R) -> Option<R> {
        let sender = self.links.borrow().get(&socket).map(|link| link.sender.clone())?;
        Some(act(&sender))
    }

    /// Whether there are any.
    pub fn has_sockets(&self) -> bool {
        !self.links.borrow().is_empty()
    }

    /// How many there are.
    pub fn socket_count(&self) -> usize {
        self.links.borrow().len()
    }

    /// Closes every socket: the cell starts anew, or elsewhere.
    pub fn close_sockets(self: &Rc<Self>, reason: &str) {
        let place = match &self.state.borrow().phase {
            Phase::Live(live) => Some((live.host.clone(), live.slot)),
            Phase::Cold | Phase::Activating | Phase::Leaving => None,
        };
        if let Some((host, slot)) = place {
            host.close_sockets_of(slot, reason);
        }
        let links = std::mem::take(&mut *self.links.borrow_mut());
        for (socket, link) in links {
            self.sockets.remove(socket);
            link.sender.push(close(RESTART, reason));
        }
        self.release_if_kept();
    }

    /// Closes one whose message could not be delivered: to leave it out would be worse.
    pub(super) fn close_socket(self: &Rc<Self>, socket: SocketId, reason: &str) {
        let link = self.links.borrow_mut().remove(&socket);
        self.sockets.remove(socket);
        if let Some(link) = link {
            link.sender.push(close(RESTART, reason));
        }
        self.release_if_kept();
    }

    fn drop_socket(self: &Rc<Self>, socket: SocketId) {
        self.sockets.remove(socket);
        let link = self.links.borrow_mut().remove(&socket);
        drop(link);
        self.release_if_kept();
    }

    /// The sockets of the cell, as a realm sees them.
    pub(super) fn sockets(&self) -> Rc<Sockets> {
        self.sockets.clone()
    }

    /// A cell that was put to rest with its sockets, and has none any more, goes back to the
    /// bucket.
    fn release_if_kept(self: &Rc<Self>) {
        if self.has_sockets() {
            return;
        }
        let kept = {
            let mut state = self.state.borrow_mut();
            if !matches!(state.phase, Phase::Cold) {
                return;
            }
            let Some(kept) = state.kept.take() else {
                drop(state);
                return self.forget_if_cold();
            };
            state.phase = Phase::Leaving;
            kept
        };
        self.release(kept);
    }
}
