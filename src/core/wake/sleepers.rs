//! Cells that this node owns, has put to rest, and must wake for their alarm.
//!
//! It makes alarms of resting cells punctual. It is no promise: the wake index covers what is
//! forgotten here, when the node ends or when there are too many.
//! Units: alarms are [`Wall`], timers [`Mono`].

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::time::{Micros, Mono, Wall};

/// About 20 MB with the names of the cells; beyond it, alarms are as punctual as the scan.
pub const SLEEPERS_MAX: usize = 100_000;

/// No timer is set for longer, so that the alarms follow a wall clock that is put right.
const LOOK_AGAIN: Micros = Micros::from_secs(60);

/// The machine. `K` names a cell. It wants one timer at a time: a new `SetTimer` replaces the one
/// before.
#[derive(Debug)]
pub struct Sleepers<K> {
    max: usize,
    alarms: BTreeMap<K, Wall>,
    order: BTreeSet<(Wall, K)>,
    timer: Option<Mono>,
}

/// What the sleepers are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<K> {
    /// The cell has left memory with its alarm due then, and is still ours.
    Slept(K, Wall),
    /// It is in memory again, or is not ours any more.
    Woke(K),
    /// The timer is due.
    TimerFired,
}

/// What they want done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<K> {
    /// Bring it back into memory; it runs its alarm by itself. Whoever owns it by now does.
    Wake(K),
    /// Tell `TimerFired` then.
    SetTimer(Mono),
}

impl<K: Clone + Ord> Sleepers<K> {
    /// Nobody sleeps yet; no more than `max` ever do.
    pub fn new(max: usize) -> Self {
        Self { max, alarms: BTreeMap::new(), order: BTreeSet::new(), timer: None }
    }
    /// How many sleep.
    pub fn len(&self) -> usize {
        self.alarms.len()
    }
    /// When a cell is woken, if it sleeps.
    pub fn due(&self, cell: &K) -> Option<Wall> {
        self.alarms.get(cell).copied()
    }
    /// Whether nobody sleeps.
    pub fn is_empty(&self) -> bool {
        self.alarms.is_empty()
    }
    /// Takes the event in, then wakes whose time has come. `wall` is the same instant as `now`.
    pub fn on_event(
        &mut self,
        now: Mono,
        wall: Wall,
        event: Event<K>,
        effects: &mut Vec<Effect<K>>,
    ) {
        match event {
            Event::Slept(cell, due) => {
                self.forget(&cell);
                self.alarms.insert(cell.clone(), due);
                self.order.insert((due, cell));
                if self.alarms.len() > self.max {
                    let (_, last) = self.order.pop_last().expect("more than none sleep");
                    self.alarms.remove(&last);
                }
            }
            Event::Woke(cell) => self.forget(&cell),
            Event::TimerFired => self.timer = None,
        }
        while self.order.first().is_some_and(|(due, _)| *due <= wall) {
            let (_, cell) = self.order.pop_first().expect("it was looked at");
            self.alarms.remove(&cell);
            effects.push(Effect::Wake(cell));
        }
        let Some((due, _)) = self.order.first() else { return };
        let wait = Micros::from_millis(due.as_millis() - wall.as_millis());
        let at = now + wait.min(LOOK_AGAIN);
        // One that is set for earlier serves too: most events set none.
        if self.timer.is_none_or(|timer| at < timer || timer <= now) {
            self.timer = Some(at);
            effects.push(Effect::SetTimer(at));
        }
    }
    fn forget(&mut self, cell: &K) {
        if let Some((cell, due)) = self.alarms.remove_entry(cell) {
            self.order.remove(&(due, cell));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::Effect::{SetTimer, Wake};
    use super::Event::{Slept, TimerFired, Woke};
    use super::*;

    fn at(sleepers: &mut Sleepers<u32>, s: u64, event: Event<u32>) -> Vec<Effect<u32>> {
        let mut effects = vec![];
        sleepers.on_event(mono(s), wall(s), event, &mut effects);
        effects
    }
    fn mono(s: u64) -> Mono {
        Mono::from_micros(s * 1_000_000)
    }
    fn wall(s: u64) -> Wall {
        Wall::from_millis(s * 1_000)
    }

    #[test]
    fn each_cell_is_woken_once_in_the_order_of_the_alarms() {
        let mut sleepers = Sleepers::new(9);
        assert_eq!(at(&mut sleepers, 0, Slept(1, wall(30))), [SetTimer(mono(30))]);
        assert_eq!(at(&mut sleepers, 0, Slept(2, wall(20))), [SetTimer(mono(20))]);
        assert_eq!(at(&mut sleepers, 0, Slept(3, wall(500))), []);
        assert_eq!((sleepers.due(&2), sleepers.due(&9)), (Some(wall(20)), None));
        assert_eq!(at(&mut sleepers, 20, TimerFired), [Wake(2), SetTimer(mono(30))]);
        assert_eq!(at(&mut sleepers, 30, TimerFired), [Wake(1), SetTimer(mono(90))]);
        assert_eq!(at(&mut sleepers, 90, TimerFired), [SetTimer(mono(150))]);
        assert_eq!(sleepers.len(), 1);
    }

    #[test]
    fn who_is_awake_or_has_another_alarm_is_not_woken_for_the_old_one() {
        let mut sleepers = Sleepers::new(9);
        at(&mut sleepers, 0, Slept(1, wall(30)));
        at(&mut sleepers, 0, Slept(2, wall(30)));
        at(&mut sleepers, 1, Woke(1));
        at(&mut sleepers, 1, Slept(2, wall(50)));
        assert_eq!(at(&mut sleepers, 30, TimerFired), [SetTimer(mono(50))]);
        assert_eq!(at(&mut sleepers, 50, TimerFired), [Wake(2)]);
        assert!(sleepers.is_empty());
    }

    #[test]
    fn when_there_are_too_many_the_last_alarm_is_left_to_the_index() {
        let mut sleepers = Sleepers::new(2);
        at(&mut sleepers, 0, Slept(1, wall(30)));
        at(&mut sleepers, 0, Slept(2, wall(40)));
        at(&mut sleepers, 0, Slept(3, wall(20)));
        assert_eq!(at(&mut sleepers, 50, TimerFired), [Wake(3), Wake(1)]);
    }
}
