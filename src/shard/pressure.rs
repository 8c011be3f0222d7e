//! What a shard keeps in memory: its cells are counted and weighed, and those that rest make room
//! for others.
//!
//! Weighed is what the cells hold: heaps of JavaScript, their buffers, pages of databases, SQLite's
//! own. Memory that the allocator keeps for later is not among it: it does not shrink when cells
//! leave, and would have all of them leave.

use std::rc::Rc;

use celld_core::eviction;
use celld_core::placement;
use celld_core::time::Micros;
use celld_v8host::Failure;

use crate::body::failure;
use crate::shard::{Shard, now};
use crate::storage;

/// Garbage counts as long as nobody has collected it. It is collected before cells are put to rest,
/// unless heaps take less than this part of all.
const HEAP_PART: u64 = 4;
/// Garbage is not collected more often for that.
const COLLECT_PAUSE: Micros = Micros::from_secs(1);

/// For who wants a cell that finds no room.
pub(crate) fn full() -> Failure {
    let text = "this node has as many Durable Objects in memory as it may have, and none of them \
                is idle: it is overloaded, try again later";
    Failure { overloaded: true, retryable: true, ..failure("Error", text) }
}

impl Shard {
    /// A cell wants to come into memory: one that rests makes room for it. `false`: none does.
    pub fn take_room(self: &Rc<Self>, key: u64) -> bool {
        self.eviction_event(eviction::Event::Busy(key));
        let has_room = self.has_room();
        if !has_room {
            self.eviction_event(eviction::Event::Gone(key));
        }
        has_room
    }

    /// Tells the node what this shard holds.
    pub fn weigh(&self) {
        let heaps: usize = self.all_hosts().iter().map(|host| host.memory_bytes()).sum();
        self.status.has_memory(self.index, heaps as u64, storage::memory_bytes() as u64);
    }

    /// Puts idle cells to rest while memory is short.
    pub fn make_room(self: &Rc<Self>) {
        self.weigh();
        let load = self.status.load();
        if placement::excess(&load) == 0 {
            return;
        }
        let is_due = now() >= self.collected.get() + COLLECT_PAUSE;
        if is_due && self.status.heap_bytes() > load.memory_bytes / HEAP_PART {
            self.collected.set(now());
            self.all_hosts().iter().for_each(|host| host.collect());
            self.weigh();
        }
        let excess = placement::excess(&self.status.load());
        if excess > 0 {
            self.eviction_event(eviction::Event::Shed(excess.div_ceil(self.facts.shards)));
        }
    }
}
