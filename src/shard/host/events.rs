//! The events of a realm: from the input that begins one until nothing of it is left.

use std::rc::Rc;

use celld_rt as rt;
use celld_v8host::{EventId, Failure, Input, SocketId, StreamId, TimerId};

use super::{Host, Reply, hung};
use crate::cell::Cell;
use crate::deadline::Deadline;
use crate::drain::Entered;
use crate::follow::Course;

/// One event that JavaScript works on.
pub(super) struct Event {
    pub(super) cell: Option<Rc<Cell>>,
    /// Of the Worker: the node does not leave before it is over, unless nobody waits for it.
    pub(super) entered: Option<Entered>,
    pub(super) reply: Option<Reply>,
    pub(super) is_answered: bool,
    /// JavaScript has said that nothing of it is left.
    pub(super) done: bool,
    /// Streams of it that somebody still reads.
    pub(super) sinks: u32,
    pub(super) timers: Vec<TimerId>,
    pub(super) sources: Vec<StreamId>,
    pub(super) sockets: Vec<SocketId>,
    /// The request asked for a WebSocket.
    pub(super) wants_socket: bool,
    /// Where the connection goes that it came on.
    pub(super) course: Option<Rc<Course>>,
    /// Nothing is under way for it.
    pub(super) silence: Option<hung::Silence>,
    /// Dropped with the event.
    pub(super) over: Option<rt::oneshot::Sender<()>>,
    /// Of an event that is bounded; dropped with it.
    pub(super) deadline: Option<Deadline>,
}

impl Host {
    /// The event whose answer is for who `is_asker` knows.
    pub fn event_of(&self, is_asker: impl Fn(&Reply) -> bool) -> Option<EventId> {
        let table = self.table.borrow();
        let mut events = table.events.iter();
        events.find(|(_, event)| event.reply.as_ref().is_some_and(&is_asker)).map(|(id, _)| *id)
    }

    /// The client of an event has gone away.
    pub fn disconnected(self: &Rc<Self>, event: EventId) {
        let entered = match self.table.borrow_mut().events.get_mut(&event) {
            Some(event) => event.entered.take(),
            None => return,
        };
        drop(entered);
        self.deliver(Input::Disconnected { event });
    }

    /// Ends all events of the Worker.
    pub fn cut_off(self: &Rc<Self>, why: &Failure) {
        let events: Vec<EventId> = {
            let table = self.table.borrow();
            let of_worker = table.events.iter().filter(|(_, event)| event.cell.is_none());
            of_worker.map(|(id, _)| *id).collect()
        };
        for event in events {
            self.fail_event(event, why);
        }
    }

    pub(super) fn fail_event(self: &Rc<Self>, id: EventId, why: &Failure) {
        let reply = {
            let mut table = self.table.borrow_mut();
            let Some(event) = table.events.get_mut(&id) else { return };
            let reply = event.reply.take();
            // Who reads a stream of it learns that there is no more.
            table.sinks.retain(|_, (sink, of)| {
                if *of == id {
                    sink.borrow_mut().push(Err(why.clone()));
                }
                *of != id
            });
            reply
        };
        if let Some(reply) = reply {
            reply.send(Err(why.clone()));
        }
        self.finish(id);
    }

    pub(super) fn open_event(&self, cell: Option<Rc<Cell>>, reply: Reply) -> EventId {
        let id = EventId(self.next_event.get());
        self.next_event.set(id.0 + 1);
        let reply = match reply {
            Reply::Nobody => None,
            Reply::Task(_) | Reply::Call(..) | Reply::Shard(..) | Reply::Node(..) => Some(reply),
        };
        let entered = match (&cell, self.shard.upgrade()) {
            (None, Some(shard)) => Some(Entered::new(&shard)),
            (Some(_), _) | (None, None) => None,
        };
        let event = Event {
            cell,
            entered,
            reply,
            is_answered: false,
            done: false,
            sinks: 0,
            timers: Vec::new(),
            sources: Vec::new(),
            sockets: Vec::new(),
            wants_socket: false,
            course: None,
            silence: None,
            over: None,
            deadline: None,
        };
        self.table.borrow_mut().events.insert(id, event);
        id
    }

    /// Forgets an event of which nothing is left.
    pub(super) fn finish(self: &Rc<Self>, id: EventId) {
        // Dropped after the borrow: their writers are told, and they may be of this realm.
        let mut unread = Vec::new();
        let event = {
            let mut table = self.table.borrow_mut();
            let Some(event) = table.events.remove(&id) else { return };
            // What a cell started belongs to the cell and outlives the event, as on Cloudflare.
            if event.cell.is_none() {
                for timer in &event.timers {
                    table.timers.remove(timer);
                }
                for source in &event.sources {
                    unread.extend(table.sources.remove(source));
                }
            }
            event
        };
        drop(unread);
        self.drop_sockets(&event.sockets);
        if let Some(cell) = event.cell {
            cell.event_finished();
        }
    }

    /// JavaScript is through with an event; streams of it may still be read.
    pub(super) fn done(self: &Rc<Self>, id: EventId) {
        if let Some(event) = self.table.borrow_mut().events.get_mut(&id) {
            event.done = true;
        }
        self.finish_if_idle(id);
    }

    pub(super) fn finish_if_idle(self: &Rc<Self>, id: EventId) {
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
}
