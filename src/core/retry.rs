//! Whether a request that may be repeated is repeated, and when; and whether any is sent at all.
//!
//! Invariants: a store that is sick gets no more than one request in ten on top of what it is
//! asked, and about one a second once it answers nothing. What is waited is never past the
//! deadline. Randomness is an argument.
//! Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015; "Addressing Cascading
//! Failures" in "Site Reliability Engineering", O'Reilly 2016 (retry budgets).

use crate::pace::Pace;
use crate::time::{Micros, Mono};

/// A first wait: what a store that was asked too much needs, and nobody notices.
const BACKOFF_FIRST: Micros = Micros::from_millis(50);
/// The longest wait between two attempts: a store that is back is noticed within seconds.
const BACKOFF_LAST: Micros = Micros::from_secs(2);
/// Dead connections in a row that are passed over at once; more of them are an outage.
const STALE_MAX: u32 = 2;

/// Tokens are counted in tenths, as each request earns one.
const RETRY_COST: u32 = 10;
/// Enough for the requests that a restart of the store cuts off at once.
const BUDGET_MAX: u32 = 64 * RETRY_COST;
/// Earned by time: an idle node repeats, too.
const TIME_EARNS: Micros = Micros::from_millis(100);

/// Failures in a row, of all requests of the process, after which the store is taken for down.
const DOWN_AFTER: u32 = 10;
/// Between the requests that look whether it is back: at first, and in the long run.
const LOOK_FIRST: Micros = Micros::from_millis(100);
const LOOK_LAST: Micros = Micros::from_secs(1);

/// Why an attempt did not do what it should, as far as that decides about the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A connection that had been idle was dead: nothing is known against the store.
    Stale,
    /// The store asks for less, and perhaps says for how long.
    Throttled(Option<Micros>),
    /// No answer, or a fault of the store.
    Failing,
    /// Something was put right on our side, such as old credentials.
    Mended,
}

/// What to do with a request that met [`Trouble`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send it again after this time.
    Again(Micros),
    /// Tell the caller.
    GiveUp,
}

/// The attempts of one request.
#[derive(Clone, Debug)]
pub struct Retry {
    deadline: Mono,
    left: u32,
    stale_left: u32,
    mended: bool,
    backoff: Micros,
}

impl Retry {
    /// `attempts` in all, until `deadline`.
    pub fn new(attempts: u32, deadline: Mono) -> Self {
        let left = attempts.saturating_sub(1);
        Self { deadline, left, stale_left: STALE_MAX, mended: false, backoff: BACKOFF_FIRST }
    }

    /// When the caller stops waiting.
    pub fn deadline(&self) -> Mono {
        self.deadline
    }

    /// Decides after an attempt. `random` is any number.
    pub fn on_trouble(
        &mut self,
        now: Mono,
        trouble: Trouble,
        random: u32,
        health: &mut Health,
    ) -> Decision {
        let wait = match trouble {
            Trouble::Stale if self.stale_left > 0 => {
                self.stale_left -= 1;
                return self.within(now, Micros::ZERO);
            }
            Trouble::Mended if !self.mended => {
                self.mended = true;
                return self.within(now, Micros::ZERO);
            }
            Trouble::Mended => return Decision::GiveUp,
            Trouble::Throttled(Some(asked)) => asked.max(self.jittered(random)),
            Trouble::Stale | Trouble::Throttled(None) | Trouble::Failing => self.jittered(random),
        };
        if self.left == 0 || self.within(now, wait) == Decision::GiveUp {
            return Decision::GiveUp;
        }
        // A store that is down gets no more than its looks anyway: who can wait for it, may.
        if !health.circuit.is_down() && !health.budget.spend(now) {
            return Decision::GiveUp;
        }
        self.left -= 1;
        self.backoff = (self.backoff + self.backoff).min(BACKOFF_LAST);
        Decision::Again(wait)
    }

    /// Between half of the backoff and all of it: never at once, never all together.
    fn jittered(&self, random: u32) -> Micros {
        let half = self.backoff.as_micros() / 2;
        Micros::from_micros(half + half * u64::from(random) / u64::from(u32::MAX))
    }

    fn within(&self, now: Mono, wait: Micros) -> Decision {
        if now + wait < self.deadline { Decision::Again(wait) } else { Decision::GiveUp }
    }
}

/// What all requests of one process know of a store.
#[derive(Clone, Debug)]
pub struct Health {
    /// Whether requests are sent at all.
    pub circuit: Circuit,
    /// How many may be repeated.
    pub budget: Budget,
    /// How fast they are sent.
    pub pace: Pace,
}

impl Health {
    /// Nothing is known against the store.
    pub fn new(now: Mono) -> Self {
        Self { circuit: Circuit::default(), budget: Budget::new(now), pace: Pace::default() }
    }

    /// Whether a request may be sent now.
    ///
    /// # Errors
    /// Not before this time has passed; others may take the place then.
    pub fn admit(&mut self, now: Mono) -> Result<(), Micros> {
        if self.circuit.is_down() { self.circuit.admit(now) } else { self.pace.admit(now) }
    }
}

/// Repetitions that all requests of one process share: one for every ten requests, and one a
/// second.
#[derive(Clone, Debug)]
pub struct Budget {
    tenths: u32,
    earned_until: Mono,
}

impl Budget {
    /// A full one.
    pub fn new(now: Mono) -> Self {
        Self { tenths: BUDGET_MAX, earned_until: now }
    }

    /// A request is sent for the first time.
    pub fn earn(&mut self) {
        self.tenths = (self.tenths + 1).min(BUDGET_MAX);
    }

    /// Takes one repetition, if there is one.
    pub fn spend(&mut self, now: Mono) -> bool {
        let earned = now.since(self.earned_until).as_micros() / TIME_EARNS.as_micros();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        if earned > 0 {
            self.tenths = self.tenths.saturating_add(earned).min(BUDGET_MAX);
            self.earned_until = now;
        }
        let enough = self.tenths >= RETRY_COST;
        if enough {
            self.tenths -= RETRY_COST;
        }
        enough
    }
}

/// Keeps requests back from a store that answers nothing, and looks whether it is back.
#[derive(Clone, Debug, Default)]
pub struct Circuit {
    failures: u32,
    down: Option<Down>,
}

#[derive(Clone, Debug)]
struct Down {
    next: Mono,
    interval: Micros,
}

impl Circuit {
    /// Whether a request may be sent now.
    ///
    /// # Errors
    /// Not before this time has passed; others may take the place then.
    pub fn admit(&mut self, now: Mono) -> Result<(), Micros> {
        let Some(down) = &mut self.down else { return Ok(()) };
        if now < down.next {
            return Err(down.next.since(now));
        }
        down.next = now + down.interval;
        down.interval = (down.interval + down.interval).min(LOOK_LAST);
        Ok(())
    }

    /// The store answered, whatever it said. Returns whether it had been taken for down.
    pub fn on_answer(&mut self) -> bool {
        self.failures = 0;
        self.down.take().is_some()
    }

    /// The store did not answer, or with a fault of its own. Returns whether it is taken for down
    /// from now on.
    pub fn on_failure(&mut self, now: Mono) -> bool {
        self.failures = self.failures.saturating_add(1);
        let opens = self.failures >= DOWN_AFTER && self.down.is_none();
        if opens {
            self.down = Some(Down { next: now + LOOK_FIRST, interval: LOOK_FIRST });
        }
        opens
    }

    /// The store is taken for down.
    pub fn is_down(&self) -> bool {
        self.down.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn at(ms: u64) -> Mono {
        Mono::from_micros(ms * 1_000)
    }

    #[test]
    fn waits_double_with_jitter_up_to_a_bound_and_attempts_end() {
        let mut health = Health::new(at(0));
        for (random, part) in [(0, 2), (u32::MAX, 1)] {
            let mut retry = Retry::new(9, at(60_000));
            let waits: Vec<u64> = (0..9)
                .map_while(|_| {
                    match retry.on_trouble(at(0), Trouble::Failing, random, &mut health) {
                        Decision::Again(wait) => Some(wait.as_millis()),
                        Decision::GiveUp => None,
                    }
                })
                .collect();
            let full = [50, 100, 200, 400, 800, 1_600, 2_000, 2_000];
            assert_eq!(waits, full.map(|ms| ms / part));
        }
    }

    #[test]
    fn nothing_is_repeated_past_the_deadline() {
        let mut health = Health::new(at(0));
        let mut retry = Retry::new(9, at(100));
        let asked = Trouble::Throttled(Some(Micros::from_millis(100)));
        assert_eq!(retry.on_trouble(at(0), asked, 0, &mut health), Decision::GiveUp);
        let asked = Trouble::Throttled(Some(Micros::from_millis(99)));
        let wait = Decision::Again(Micros::from_millis(99));
        assert_eq!(retry.on_trouble(at(0), asked, 0, &mut health), wait);
        assert_eq!(retry.on_trouble(at(99), Trouble::Failing, 0, &mut health), Decision::GiveUp);
        assert_eq!(retry.on_trouble(at(100), Trouble::Stale, 0, &mut health), Decision::GiveUp);
    }

    #[test]
    fn a_dead_connection_costs_no_wait_and_an_outage_does() {
        let mut health = Health::new(at(0));
        let mut retry = Retry::new(2, at(1_000));
        let mut next = |trouble| retry.on_trouble(at(0), trouble, 0, &mut health);
        assert_eq!(next(Trouble::Stale), Decision::Again(Micros::ZERO));
        assert_eq!(next(Trouble::Stale), Decision::Again(Micros::ZERO));
        assert_eq!(next(Trouble::Stale), Decision::Again(Micros::from_millis(25)));
        assert_eq!(next(Trouble::Stale), Decision::GiveUp);
        assert_eq!(next(Trouble::Mended), Decision::Again(Micros::ZERO));
        assert_eq!(next(Trouble::Mended), Decision::GiveUp);
    }

    #[test]
    fn a_sick_store_gets_a_tenth_more_requests_and_no_storm() {
        let mut budget = Budget::new(at(0));
        while budget.spend(at(0)) {}
        let mut repeated = 0;
        for _ in 0..1_000 {
            budget.earn();
            repeated += u32::from(budget.spend(at(0)));
        }
        assert_eq!(repeated, 100);
        let by_time = (0..10_000).filter(|ms| budget.spend(at(*ms))).count();
        assert_eq!(by_time, 9);
    }

    #[test]
    fn who_can_wait_for_a_store_that_is_down_needs_no_budget() {
        let mut health = Health::new(at(0));
        while health.budget.spend(at(0)) {}
        let mut retry = Retry::new(2, at(60_000));
        assert_eq!(retry.on_trouble(at(0), Trouble::Failing, 0, &mut health), Decision::GiveUp);
        for _ in 0..DOWN_AFTER {
            health.circuit.on_failure(at(0));
        }
        let wait = Decision::Again(Micros::from_millis(25));
        assert_eq!(retry.on_trouble(at(0), Trouble::Failing, 0, &mut health), wait);
    }

    #[test]
    fn a_store_that_is_down_is_looked_at_once_a_second_and_served_at_once_when_it_is_back() {
        let mut circuit = Circuit::default();
        for _ in 1..DOWN_AFTER {
            assert!(!circuit.on_failure(at(0)));
            assert_eq!(circuit.admit(at(0)), Ok(()));
        }
        assert!(circuit.on_failure(at(0)));
        assert_eq!(circuit.admit(at(0)), Err(Micros::from_millis(100)));
        let sent = (0..60_000).filter(|ms| circuit.admit(at(*ms)).is_ok()).count();
        assert!((60..=66).contains(&sent), "{sent}");
        assert!(!circuit.on_failure(at(60_000)), "it is down already");
        assert!(circuit.on_answer());
        assert!(!circuit.is_down());
        assert!((0..100).all(|_| circuit.admit(at(60_000)) == Ok(())));
    }

    #[test]
    fn an_answer_between_failures_starts_the_count_anew() {
        let mut circuit = Circuit::default();
        for _ in 0..10 * DOWN_AFTER {
            circuit.on_failure(at(0));
            assert!(!circuit.on_answer());
        }
        assert_eq!(circuit.admit(at(0)), Ok(()));
    }
}
