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
    /// So many must go now, as far as they are idle: memory is short, or another node has room.
    Shed(usize),
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
    /// Whether no more are in memory than may be, apart from those that leave.
    pub fn has_room(&self) -> bool {
        self.cells.len() - self.leaving <= self.limits.resident_max
    }
    /// Takes the event in, then evicts what is due or too much.
    pub fn on_event(&mut self, now: Mono, event: Event<K>, effects: &mut Vec<Effect<K>>) {
        match event {
            Event::Busy(cell) => self.turn(cell, Some(State::Busy)),
            Event::Idle(cell, rest) => self.turn(cell, Some(State::Idle(now, rest))),
            Event::Gone(cell) => self.turn(cell, None),
            Event::Shed(count) => {
                for _ in 0..count {
                    let Some((_, cell)) = self.oldest() else { break };
                    self.evict(cell, effects);
                }
            }
            Event::TimerFired => self.timer = None,
        }
        while !self.has_room()
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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::Effect::{Evict, SetTimer};
    use super::*;

    /// Cells are numbers; the clock is in seconds.
    fn at(eviction: &mut Eviction<u32>, s: u64, event: Event<u32>) -> Vec<Effect<u32>> {
        let mut effects = vec![];
        eviction.on_event(second(s), event, &mut effects);
        effects
    }
    fn second(s: u64) -> Mono {
        Mono::from_micros(s * 1_000_000)
    }
    fn idle(cell: u32) -> Event<u32> {
        Event::Idle(cell, Rest::Hibernatable)
    }

    #[test]
    fn a_hibernatable_cell_goes_after_ten_seconds_and_any_other_after_seventy() {
        let mut eviction = Eviction::new(Limits::default());
        assert_eq!(at(&mut eviction, 0, Event::Idle(1, Rest::Plain)), [SetTimer(second(70))]);
        assert_eq!(at(&mut eviction, 1, idle(2)), [SetTimer(second(11))]);
        let effects = at(&mut eviction, 11, Event::TimerFired);
        assert_eq!(effects, [Evict(2), SetTimer(second(70))]);
        assert_eq!(at(&mut eviction, 12, Event::Gone(2)), []);
        assert_eq!(at(&mut eviction, 70, Event::TimerFired), [Evict(1)]);
        assert_eq!(eviction.resident(), 1);
    }

    #[test]
    fn a_cell_that_works_or_waits_for_a_proof_stays_whatever_the_pressure() {
        let mut eviction = Eviction::new(Limits { resident_max: 1, ..Limits::default() });
        for cell in 0..5 {
            assert_eq!(at(&mut eviction, 0, Event::Busy(cell)), []);
            assert_eq!(eviction.has_room(), cell == 0);
        }
        assert_eq!(at(&mut eviction, 1_000, Event::TimerFired), []);
        assert_eq!(at(&mut eviction, 1_000, idle(3))[0], Evict(3));
    }

    #[test]
    fn a_new_rest_counts_from_its_own_start() {
        let mut eviction = Eviction::new(Limits::default());
        at(&mut eviction, 0, idle(1));
        at(&mut eviction, 5, Event::Busy(1));
        at(&mut eviction, 8, idle(1));
        assert_eq!(at(&mut eviction, 10, Event::TimerFired), [SetTimer(second(18))]);
        assert_eq!(at(&mut eviction, 18, Event::TimerFired), [Evict(1)]);
    }

    #[test]
    fn under_pressure_the_cell_that_rests_longest_goes_first() {
        let mut eviction = Eviction::new(Limits { resident_max: 3, ..Limits::default() });
        at(&mut eviction, 0, Event::Idle(7, Rest::Plain));
        at(&mut eviction, 1, idle(3));
        at(&mut eviction, 2, idle(5));
        assert_eq!(at(&mut eviction, 3, Event::Busy(9)), [Evict(7)]);
        assert!(eviction.has_room(), "it has displaced another one");
        // It is on its way: the next one is not told to go for it again.
        assert_eq!(at(&mut eviction, 4, Event::Busy(9)), []);
        assert_eq!(at(&mut eviction, 5, Event::Busy(11)), [Evict(3)]);
    }

    #[test]
    fn cells_that_must_go_are_idle_ones_those_that_rest_longest_first() {
        let mut eviction = Eviction::new(Limits::default());
        for cell in 0..4 {
            at(&mut eviction, u64::from(cell), idle(cell));
        }
        at(&mut eviction, 4, Event::Busy(0));
        assert_eq!(at(&mut eviction, 5, Event::Shed(2)), [Evict(1), Evict(2)]);
        assert_eq!(at(&mut eviction, 5, Event::Shed(9)), [Evict(3)]);
    }

    #[test]
    fn a_cell_that_is_needed_before_it_left_stays() {
        let mut eviction = Eviction::new(Limits { resident_max: 1, ..Limits::default() });
        at(&mut eviction, 0, idle(1));
        assert_eq!(at(&mut eviction, 1, Event::Busy(2)), [Evict(1)]);
        assert_eq!(at(&mut eviction, 2, Event::Busy(1)), []);
        assert_eq!(at(&mut eviction, 3, idle(2)), [Evict(2)]);
        at(&mut eviction, 4, Event::Gone(2));
        assert_eq!(eviction.resident(), 1);
    }

    #[test]
    fn a_hundred_thousand_cells_come_and_go_without_a_walk() {
        let mut eviction = Eviction::new(Limits { resident_max: 100_000, ..Limits::default() });
        let mut effects = vec![];
        let mut timers = 0;
        for n in 0..400_000_u64 {
            let cell = u32::try_from(n * 7_919 % 100_000).expect("small");
            let now = Mono::from_micros(n * 10);
            eviction.on_event(now, Event::Busy(cell), &mut effects);
            eviction.on_event(now, idle(cell), &mut effects);
            timers += effects.drain(..).filter(|e| matches!(e, SetTimer(_))).count();
        }
        assert_eq!((eviction.resident(), timers), (100_000, 1));
        at(&mut eviction, 10, Event::TimerFired);
        let gone = at(&mut eviction, 100, Event::TimerFired);
        assert!(gone.len() > 90_000, "{}", gone.len());
    }
}
