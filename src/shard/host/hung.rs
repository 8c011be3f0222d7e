//! Events of the Worker that have hung: nothing is under way that could let them go on.
//!
//! workerd fails such a request at once. Here it is looked for once a second, and what requests
//! share in the isolate is respected: a promise that an older request keeps may settle a younger one.
//! Cells are left alone, as in workerd: whatever comes next to a cell may let an event of it go on.

use std::rc::Rc;
use std::time::Duration;

use celld_rt as rt;
use celld_v8host::{EventId, Input};
use rustc_hash::FxHashSet;

use super::sockets::Near;
use super::{Event, Host, Source, Table};
use crate::body::failure;

/// Costs nothing measurable, and nobody waits longer for an error that tells of a mistake.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looks for which an older request is waited for: as long as Cloudflare lets `waitUntil` run.
const LOOKS_MAX: u32 = 30;

/// workerd's words.
const HUNG: &str = "The Workers runtime canceled this request because it detected that your \
    Worker's code had hung and would never generate a response.";

/// An event for which nothing is under way.
#[derive(Clone, Copy)]
pub(super) struct Silence {
    /// Events below this one had begun before.
    before: EventId,
    looks: u32,
}

impl Host {
    /// Looks for events that have hung, for as long as the Worker has any.
    pub(super) fn watch_events(self: &Rc<Self>) {
        if self.watching.replace(true) {
            return;
        }
        let host = Rc::downgrade(self);
        rt::spawn(async move {
            loop {
                rt::sleep(LOOK_EVERY).await;
                let Some(host) = host.upgrade() else { return };
                host.fail_hung();
                if !host.table.borrow().events.values().any(|event| event.cell.is_none()) {
                    host.watching.set(false);
                    return;
                }
            }
        });
    }

    fn fail_hung(self: &Rc<Self>) {
        // Of a node that has lost its lease nothing goes on, and nobody is told anything.
        if !self.shard.upgrade().is_some_and(|shard| shard.authority.is_held()) {
            return;
        }
        let next = EventId(self.next_event.get());
        let queued = self.queued_events();
        let hung = self.table.borrow_mut().hung(next, &queued);
        for event in hung {
            self.fail_event(event, &failure("Error", HUNG));
            self.deliver(Input::Forget { event });
        }
    }

    /// Events for which something is in the inbox.
    fn queued_events(&self) -> FxHashSet<EventId> {
        let inbox = self.inbox.borrow();
        let of = inbox.iter().filter_map(|queued| match queued.origin {
            Some(origin) => Some(origin.event),
            None => self.culprit(&queued.input).map(|(event, _)| event),
        });
        of.collect()
    }
}

impl Table {
    fn hung(&mut self, next: EventId, queued: &FxHashSet<EventId>) -> Vec<EventId> {
        let mut busy = queued.clone();
        busy.extend(self.calls.values().map(|waiting| waiting.origin.event));
        busy.extend(self.timers.values().map(|(origin, _)| origin.event));
        busy.extend(self.sockets.values().filter_map(Near::hears_for));
        let sources = &self.sources;
        let is_pulled = |event: &Event| {
            event.sources.iter().any(|id| matches!(sources.get(id), Some(Source::Pulled)))
        };
        let mut oldest_busy = None;
        let mut silent = Vec::new();
        for (id, event) in self.events.iter_mut().filter(|(_, event)| event.cell.is_none()) {
            if busy.contains(id) || is_pulled(event) {
                event.silence = None;
                oldest_busy = Some(oldest_busy.map_or(*id, |oldest: EventId| oldest.min(*id)));
            } else if event.sinks == 0 {
                let before = Silence { before: next, looks: 0 };
                let silence = event.silence.get_or_insert(before);
                silence.looks += 1;
                silent.push((*id, *silence));
            }
        }
        let may_settle = |silence: &Silence| {
            silence.looks < LOOKS_MAX && oldest_busy.is_some_and(|busy| busy < silence.before)
        };
        silent.into_iter().filter(|(_, it)| !may_settle(it)).map(|(id, _)| id).collect()
    }
}
