//! How a node leaves: unhealthy at once, its cells handed over a few at a time, and gone in time.
//!
//! Invariants: a cell is handed over only when nothing runs in it, until the time is nearly over.
//! The right to act is given up last, after every cell has gone, so that nobody takes a cell that
//! is still served. A cell or a request that comes before it is given up puts that off.
//! Units: µs of this process.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::time::{Micros, Mono};

/// The time that is left for those that were cut off: to prove what they wrote, and to give up the
/// lease. Of a short limit, a third.
const RESERVE: Micros = Micros::from_secs(4);

/// The part of the limit for which cells are kept from new work. It is longer than nearly every
/// request.
const QUIET_PART: u64 = 5;

/// How to drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// All of it may take this long: less than a supervisor waits.
    pub limit: Micros,
    /// The node serves at least this long after it became unhealthy, by forwarding: who sends it
    /// clients must notice first.
    pub linger: Micros,
    /// Cells that are handed over at a time: each is a few requests to the bucket here, and a
    /// cold start elsewhere.
    pub handovers_max: usize,
}

impl Limits {
    /// What still runs this long after the beginning is cut off.
    pub fn cut_after(self) -> Micros {
        let third = Micros::from_micros(self.limit.as_micros() / 3);
        self.limit - RESERVE.min(third)
    }
}

impl Default for Limits {
    /// Kubernetes and systemd wait for 30 s or longer.
    fn default() -> Self {
        Self { limit: Micros::from_secs(25), linger: Micros::ZERO, handovers_max: 32 }
    }
}

/// The machine. `K` names a cell. It wants one timer at a time: a new `SetTimer` replaces the one
/// before.
#[derive(Debug)]
pub struct Drain<K> {
    limits: Limits,
    begun: Mono,
    phase: Phase,
    /// What still ran is cut off, and so is what still comes.
    is_cutting: bool,
    cells: BTreeMap<K, State>,
    /// Idle cells in the order in which they became so; some may be busy again or gone.
    idle: VecDeque<K>,
    handovers: usize,
    /// Requests that entered here and are not answered.
    requests: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining,
    /// Nothing is left: the lease may be given up.
    Retiring,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Busy,
    Idle,
    Leaving,
}

/// What the drain is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<K> {
    /// A cell is in memory, and works or waits. Each cell is told at the latest right before
    /// `Started`.
    Busy(K),
    /// Nothing runs in it.
    Idle(K),
    /// It has left memory, and is released if that was possible.
    Gone(K),
    /// So many requests that entered here are not answered yet.
    Requests(usize),
    /// Leave.
    Started,
    /// The timer is due.
    TimerFired,
    /// The lease has been given up.
    Retired,
}

/// What the drain wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect<K> {
    /// Say so to whoever asks for the node's health, and in the lease record. Take no cell any
    /// more; serve what enters by forwarding it.
    Unhealthy,
    /// Prove what it wrote, release it, and tell `Gone`; or tell `Busy`, if something came first.
    /// Its WebSockets are closed with 1012.
    HandOver(K),
    /// The same, but end what runs in it first.
    CutOff(K),
    /// End the requests that entered here.
    CutRequests,
    /// Nothing is left. Give up the lease, unless something comes first, and tell `Retired`.
    Retire,
    /// Leave the process.
    Exit(Exit),
    /// Tell `TimerFired` then.
    SetTimer(Mono),
}

/// How the drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything was handed over.
    Clean,
    /// The time was over.
    Cut,
}

impl<K: Copy + Ord> Drain<K> {
    /// Of a node that still serves.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            begun: Mono::default(),
            phase: Phase::Serving,
            is_cutting: false,
            cells: BTreeMap::new(),
            idle: VecDeque::new(),
            handovers: 0,
            requests: 0,
        }
    }
    /// Whether cells may still be activated here.
    pub fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }
    /// Whether nothing is left, so that the lease may be given up.
    pub fn is_retiring(&self) -> bool {
        self.phase == Phase::Retiring
    }
    /// Whether a request that another node sends is to be turned away. `is_here`: its cell is in
    /// memory.
    ///
    /// At first, one for a cell that is here: a cell that is asked all the time would never leave.
    /// A cell that works for longer is served again: what it waits for may come back to it through
    /// another node. One that is not here is served, if it is ours: until the lease is given up
    /// nobody else can.
    pub fn turns_away(&self, now: Mono, is_here: bool) -> bool {
        let quiet = Micros::from_micros(self.limits.limit.as_micros() / QUIET_PART);
        self.phase != Phase::Serving && (self.is_cutting || (is_here && now < self.begun + quiet))
    }
    /// Takes the event in, then hands over what may go.
    pub fn on_event(&mut self, now: Mono, event: Event<K>, effects: &mut Vec<Effect<K>>) {
        match event {
            Event::Busy(cell) => {
                self.turn(cell, Some(State::Busy));
                self.come_back();
                if self.phase == Phase::Draining && self.is_cutting {
                    self.cut_off(cell, effects);
                }
            }
            Event::Idle(cell) => {
                self.turn(cell, Some(State::Idle));
                self.come_back();
            }
            Event::Gone(cell) => self.turn(cell, None),
            Event::Requests(count) => {
                self.requests = count;
                if count > 0 && !self.is_cutting {
                    self.come_back();
                }
            }
            Event::Started => self.start(now, effects),
            Event::TimerFired => self.look(now, effects),
            Event::Retired => {
                if matches!(self.phase, Phase::Draining | Phase::Retiring) {
                    self.phase = Phase::Over;
                    effects.push(Effect::Exit(Exit::Clean));
                }
            }
        }
        self.go_on(now, effects);
    }
    /// Something has come before the lease was given up.
    fn come_back(&mut self) {
        if self.phase == Phase::Retiring {
            self.phase = Phase::Draining;
        }
    }
    /// When what still runs is cut off.
    fn cut_at(&self) -> Mono {
        self.begun + self.limits.cut_after()
    }
    fn start(&mut self, now: Mono, effects: &mut Vec<Effect<K>>) {
        if self.phase != Phase::Serving {
            return;
        }
        (self.phase, self.begun) = (Phase::Draining, now);
        let idle = self.cells.iter().filter(|(_, state)| **state == State::Idle);
        self.idle = idle.map(|(cell, _)| *cell).collect();
        effects.push(Effect::Unhealthy);
        let linger = now + self.limits.linger;
        let first = if linger > now { linger.min(self.cut_at()) } else { self.cut_at() };
        effects.push(Effect::SetTimer(first));
    }
    fn look(&mut self, now: Mono, effects: &mut Vec<Effect<K>>) {
        if matches!(self.phase, Phase::Serving | Phase::Over) {
            return;
        }
        if now >= self.begun + self.limits.limit {
            self.phase = Phase::Over;
            return effects.push(Effect::Exit(Exit::Cut));
        }
        if !self.is_cutting && now >= self.cut_at() {
            self.is_cutting = true;
            if self.phase == Phase::Draining {
                effects.push(Effect::CutRequests);
            }
            let busy = self.cells.iter().filter(|(_, state)| **state == State::Busy);
            let busy: Vec<K> = busy.map(|(cell, _)| *cell).collect();
            for cell in busy {
                self.cut_off(cell, effects);
            }
        }
        let cut_at = self.cut_at();
        let next = if now < cut_at { cut_at } else { self.begun + self.limits.limit };
        effects.push(Effect::SetTimer(next));
    }
    fn cut_off(&mut self, cell: K, effects: &mut Vec<Effect<K>>) {
        self.turn(cell, Some(State::Leaving));
        effects.push(Effect::CutOff(cell));
    }
    fn go_on(&mut self, now: Mono, effects: &mut Vec<Effect<K>>) {
        if self.phase != Phase::Draining {
            return;
        }
        while self.handovers < self.limits.handovers_max
            && let Some(cell) = self.idle.pop_front()
        {
            if self.cells.get(&cell) == Some(&State::Idle) {
                self.turn(cell, Some(State::Leaving));
                effects.push(Effect::HandOver(cell));
            }
        }
        let has_lingered = now >= self.begun + self.limits.linger;
        let is_quiet = self.requests == 0 || self.is_cutting;
        if self.cells.is_empty() && is_quiet && has_lingered {
            self.phase = Phase::Retiring;
            effects.push(Effect::Retire);
        }
    }
    /// The one place where a cell changes its state.
    fn turn(&mut self, cell: K, state: Option<State>) {
        let before = match state {
            Some(state) => self.cells.insert(cell, state),
            None => self.cells.remove(&cell),
        };
        if before == Some(State::Leaving) {
            self.handovers -= 1;
        }
        match state {
            Some(State::Idle) if self.phase != Phase::Serving => self.idle.push_back(cell),
            Some(State::Leaving) => self.handovers += 1,
            Some(State::Busy | State::Idle) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::Effect::{
        CutOff, CutRequests, Exit as Leave, HandOver, Retire, SetTimer, Unhealthy,
    };
    use super::Event::{Busy, Gone, Idle, Requests, Retired, Started, TimerFired};
    use super::*;

    /// A drain on a clock in seconds. Cells are numbers.
    struct Case(Drain<u32>);

    impl Case {
        fn new(idle: u32, busy: u32) -> Self {
            let mut case = Self(Drain::new(Limits { handovers_max: 2, ..Limits::default() }));
            for cell in 0..idle + busy {
                let event = if cell < idle { Idle(cell) } else { Busy(cell) };
                assert_eq!(case.at(0, event), []);
            }
            case
        }
        fn at(&mut self, s: u64, event: Event<u32>) -> Vec<Effect<u32>> {
            let mut effects = vec![];
            self.0.on_event(second(s), event, &mut effects);
            effects
        }
    }
    fn second(s: u64) -> Mono {
        Mono::from_micros(s * 1_000_000)
    }

    #[test]
    fn a_node_without_cells_and_requests_leaves_at_once() {
        let mut case = Case::new(0, 0);
        assert_eq!(case.at(0, Started), [Unhealthy, SetTimer(second(21)), Retire]);
        assert_eq!(case.at(1, Retired), [Leave(Exit::Clean)]);
        assert_eq!(case.at(21, TimerFired), []);
    }

    #[test]
    fn idle_cells_are_handed_over_a_few_at_a_time() {
        let mut case = Case::new(3, 0);
        let effects = case.at(0, Started);
        assert_eq!(effects, [Unhealthy, SetTimer(second(21)), HandOver(0), HandOver(1)]);
        assert_eq!(case.at(1, Gone(1)), [HandOver(2)]);
        assert_eq!(case.at(1, Gone(0)), []);
        assert_eq!(case.at(2, Gone(2)), [Retire]);
    }

    #[test]
    fn a_cell_that_works_finishes_first_and_requests_too() {
        let mut case = Case::new(0, 1);
        case.at(0, Requests(2));
        case.at(0, Started);
        assert!(!case.0.is_serving());
        assert_eq!(case.at(3, Idle(0)), [HandOver(0)]);
        // Something came first.
        assert_eq!(case.at(3, Busy(0)), []);
        assert_eq!(case.at(4, Idle(0)), [HandOver(0)]);
        assert_eq!(case.at(4, Gone(0)), []);
        assert_eq!(case.at(5, Requests(1)), []);
        assert_eq!(case.at(6, Requests(0)), [Retire]);
    }

    #[test]
    fn what_still_runs_is_cut_off_in_time_to_be_proven() {
        let mut case = Case::new(0, 3);
        case.at(0, Requests(1));
        case.at(0, Started);
        let effects = case.at(21, TimerFired);
        assert_eq!(effects, [CutRequests, CutOff(0), CutOff(1), CutOff(2), SetTimer(second(25))]);
        case.at(22, Gone(0));
        assert_eq!(case.at(22, Busy(1)), [CutOff(1)]);
        case.at(22, Gone(1));
        assert_eq!(case.at(23, Gone(2)), [Retire]);
        assert_eq!(case.at(24, Retired), [Leave(Exit::Clean)]);
    }

    #[test]
    fn a_node_that_does_not_get_done_leaves_all_the_same() {
        for wedged in [Some(Gone(0)), None] {
            let mut case = Case::new(1, 0);
            case.at(0, Started);
            wedged.map(|event| case.at(1, event));
            case.at(21, TimerFired);
            assert_eq!(case.at(25, TimerFired), [Leave(Exit::Cut)]);
            assert_eq!(case.at(26, TimerFired), []);
        }
    }

    #[test]
    fn a_node_that_lingers_serves_until_its_clients_have_noticed() {
        let linger = Micros::from_secs(3);
        let mut case = Case(Drain::new(Limits { linger, ..Limits::default() }));
        assert_eq!(case.at(0, Started), [Unhealthy, SetTimer(second(3))]);
        assert_eq!(case.at(1, Requests(0)), []);
        assert_eq!(case.at(3, TimerFired), [SetTimer(second(21)), Retire]);
    }

    #[test]
    fn what_comes_before_the_lease_is_given_up_puts_that_off() {
        let mut case = Case::new(0, 0);
        assert_eq!(case.at(0, Started), [Unhealthy, SetTimer(second(21)), Retire]);
        assert!(case.0.is_retiring());
        assert_eq!(case.at(1, Busy(4)), []);
        assert!(!case.0.is_retiring());
        assert_eq!(case.at(2, Idle(4)), [HandOver(4)]);
        assert_eq!(case.at(2, Gone(4)), [Retire]);
        assert_eq!(case.at(3, Requests(1)), []);
        assert!(!case.0.is_retiring());
        assert_eq!(case.at(4, Requests(0)), [Retire]);
        // When the time is over it is cut off, as what was there before.
        assert_eq!(case.at(21, TimerFired), [SetTimer(second(25))]);
        assert_eq!(case.at(22, Busy(5)), [CutOff(5)]);
        assert_eq!(case.at(22, Gone(5)), [Retire]);
        assert_eq!(case.at(23, Retired), [Leave(Exit::Clean)]);
        assert_eq!(case.at(23, Busy(6)), []);
    }

    #[test]
    fn a_cell_that_is_asked_all_the_time_can_leave_and_one_that_waits_for_itself_gets_done() {
        let mut case = Case::new(0, 1);
        assert!(!case.0.turns_away(second(0), true));
        case.at(0, Started);
        assert!(case.0.turns_away(second(0), true));
        assert!(!case.0.turns_away(second(0), false), "nobody else can serve it");
        assert!(!case.0.turns_away(second(5), true), "it may be what the cell waits for");
        case.at(21, TimerFired);
        assert!(case.0.turns_away(second(21), true) && case.0.turns_away(second(21), false));
    }

    #[test]
    fn a_second_order_to_leave_changes_nothing() {
        let mut case = Case::new(1, 0);
        case.at(0, Started);
        assert_eq!(case.at(9, Started), []);
    }
}
