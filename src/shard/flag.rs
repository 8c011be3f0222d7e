//! What is raised once and waited for by many: the steps of a shard that stops.

use std::cell::Cell;

/// A flag that tasks of one shard wait for.
#[derive(Default)]
pub(crate) struct Flag {
    raised: Cell<bool>,
    event: event_listener::Event,
}

impl Flag {
    pub fn raise(&self) {
        self.raised.set(true);
        self.event.notify(usize::MAX);
    }

    pub fn is_raised(&self) -> bool {
        self.raised.get()
    }

    pub async fn wait(&self) {
        while !self.raised.get() {
            let listener = self.event.listen();
            if self.raised.get() {
                return;
            }
            listener.await;
        }
    }
}
