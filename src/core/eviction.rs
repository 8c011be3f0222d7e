//! Which resident cells leave memory, and when.
//!
//! Invariant: only a cell that its shard called idle is evicted: nothing in flight, nothing
//! unproven. All steps cost a logarithm of the number of cells, none walks them.
//! Source: workerd evicts a hibernatable object after 10 s and any other after 70 to 140 s.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::time::{Micros, Mono};

/// When to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Idle for this long, with nothing in JavaScript that an eviction would lose.
    pub hibernatable_after: Micros,
    /// Idle for this long otherwise.
    pub idle_after: Micros,
    /// More cells than this are not kept, as far as some are idle.
    pub resident_max: usize,
}

impl Default for Limits {
    /// As workerd; the number of cells is bounded by memory alone.
    fn default() -> Self {
        Self {
            hibernatable_after: Micros::from_secs(10),
            idle_after: Micros::from_secs(70),
            resident_max: usize::MAX,
        }
    }
}

/// How a cell rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It can wake as if nothing had been: no timers, no plain sockets, no calls under way.
    Hibernatable,
    /// It holds something in JavaScript that an eviction ends.
    Plain,
}

/// The machine. `K` names a cell on its shard. It wants one timer at a time: a new `SetTimer`
/// replaces the one before.
#[derive(Debug)]
pub struct Eviction<K> {
    limits: Limits,
    cells: BTreeMap<K, State>,
    /// Idle cells by the start of their rest. Each kind waits equally long, so this is also the
    /// order of their deadlines.
    hibernatable: BTreeSet<(Mono, K)>,
    plain: BTreeSet<(Mono, K)>,
    /// Cells that were told to go and are still there.
    leaving: usize,
    timer: Option<Mono>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Busy,
    Idle(Mono, Rest),
    Leaving,
}

/// What eviction is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<K> {
    /// The cell is in memory, and works or waits for a proof. Also ends its eviction, if the shard
    /// has not begun with it.
    Busy(K),
    /// It does nothing, and all that it wrote is proven.
    Idle(K, Rest),
    /// It is out of memory.
    Gone(K),
    /// The timer is due.
    TimerFired,
}

/// What eviction wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect<K> {
    /// Let it go; tell `Gone` when it is out of memory, or `Busy` if it was needed first.
    Evict(K),
    /// Tell `TimerFired` then.
    SetTimer(Mono),
}

impl<K: Copy + Ord> Eviction<K> {
    /// No cell is resident yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            cells: BTreeMap::new(),
            hibernatable: BTreeSet::new(),
            plain: BTreeSet::new(),
            leaving: 0,
            timer: None,
        }
    }
    /// How many cells are in memory.
    pub fn resident(&self) -> usize {
        self.cells.len()
    }
    /// Takes the event in, then evicts what is due or too much.
    pub fn on_event(&mut self, now: Mono, event: Event<K>, effects: &mut Vec<Effect<K>>) {
        match event {
            Event::Busy(cell) => self.turn(cell, Some(State::Busy)),
            Event::Idle(cell, rest) => self.turn(cell, Some(State::Idle(now, rest))),
            Event::Gone(cell) => self.turn(cell, None),
            Event::TimerFired => self.timer = None,
        }
        while self.cells.len() - self.leaving > self.limits.resident_max
            && let Some((_, cell)) = self.oldest()
        {
            self.evict(cell, effects);
        }
        while let Some((due, cell)) = self.next_due()
            && due <= now
        {
            self.evict(cell, effects);
        }
        // A timer that is set for earlier serves too: most events set none.
        if let Some((due, _)) = self.next_due()
            && self.timer.is_none_or(|timer| due < timer)
        {
            self.timer = Some(due);
            effects.push(Effect::SetTimer(due));
        }
    }
    fn evict(&mut self, cell: K, effects: &mut Vec<Effect<K>>) {
        self.turn(cell, Some(State::Leaving));
        effects.push(Effect::Evict(cell));
    }
    /// The one place where a cell changes its state, so that the sets always agree with the map.
    fn turn(&mut self, cell: K, state: Option<State>) {
        let before = match state {
            Some(state) => self.cells.insert(cell, state),
            None => self.cells.remove(&cell),
        };
        match before {
            Some(State::Idle(since, rest)) => {
                self.resting(rest).remove(&(since, cell));
            }
            Some(State::Leaving) => self.leaving -= 1,
            Some(State::Busy) | None => {}
        }
        match state {
            Some(State::Idle(since, rest)) => {
                self.resting(rest).insert((since, cell));
            }
            Some(State::Leaving) => self.leaving += 1,
            Some(State::Busy) | None => {}
        }
    }
    fn resting(&mut self, rest: Rest) -> &mut BTreeSet<(Mono, K)> {
        match rest {
            Rest::Hibernatable => &mut self.hibernatable,
            Rest::Plain => &mut self.plain,
        }
    }
    /// The cell that rests longest.
    fn oldest(&self) -> Option<(Mono, K)> {
        self.hibernatable.first().into_iter().chain(self.plain.first()).min().copied()
    }
    /// The idle cell whose time is over first, and when.
    fn next_due(&self) -> Option<(Mono, K)> {
        let due = |after: Micros| move |&(since, cell): &(Mono, K)| (since + after, cell);
        let hibernatable = self.hibernatable.first().map(due(self.limits.hibernatable_after));
        let plain = self.plain.first().map(due(self.limits.idle_after));
        hibernatable.into_iter().chain(plain).min()
    }
}
