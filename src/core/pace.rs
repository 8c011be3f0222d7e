//! How fast a store is asked that asks for less.
//!
//! Stores refuse what is above a rate that they do not tell. So the rate is found: while requests
//! are refused, those that are not are counted, and a little less than that is asked from then on;
//! while none is refused, more and more. After a while without refusals there is no limit.
//!
//! Invariant: in the long run a store that takes a steady rate refuses a part of what it is asked
//! that does not depend on how much there is to ask.
//! Source: additive increase and multiplicative decrease, "Congestion Avoidance and Control",
//! SIGCOMM 1988; here of a rate, as refusals cost no time.

use core::ops::Range;

use crate::time::{Micros, Mono};

/// What a store takes is counted for so long. Longer than the bursts that stores allow.
const WINDOW: Micros = Micros::from_millis(200);
/// The slowest pace. Some stores refuse by chance, whatever the rate: slower would not help there,
/// and this much is no storm. A store that takes nothing at all is `retry::Circuit`'s.
const INTERVAL_MAX: Micros = Micros::from_millis(50);
/// Faster than this is no limit any more.
const INTERVAL_MIN: Micros = Micros::from_micros(100);
/// Without a limit, one refusal may be chance.
const REFUSALS_MIN: u32 = 2;
/// After so many windows without refusals, the store takes more than a little more.
const CLEAN_WINDOWS: u64 = 3;

/// All requests of one process to one store.
#[derive(Clone, Debug, Default)]
pub struct Pace(Option<Counted>);

#[derive(Clone, Debug)]
struct Counted {
    since: Mono,
    taken: u32,
    refused: u32,
    limit: Option<Limit>,
}

#[derive(Clone, Debug)]
struct Limit {
    interval: Micros,
    next: Mono,
    /// Windows without refusals, up to this one.
    clean: u64,
}

impl Pace {
    /// Whether a request may be sent now.
    ///
    /// # Errors
    /// Not before this time has passed; others may take the place then.
    pub fn admit(&mut self, now: Mono) -> Result<(), Micros> {
        self.turn_over(now);
        let Some(limit) = self.0.as_mut().and_then(|counted| counted.limit.as_mut()) else {
            return Ok(());
        };
        if now < limit.next {
            return Err(limit.next.since(now));
        }
        // Who comes late does not lose the places before it, but no more than those of a window.
        let owed = Micros::from_micros(now.since(limit.next).as_micros().min(WINDOW.as_micros()));
        let paid = Micros::from_micros(limit.interval.as_micros().saturating_sub(owed.as_micros()));
        limit.next = if paid > Micros::ZERO { now + paid } else { limit.next + limit.interval };
        Ok(())
    }

    /// The store took a request.
    pub fn on_taken(&mut self, now: Mono) {
        if let Some(counted) = &mut self.0 {
            counted.taken = counted.taken.saturating_add(1);
        }
        self.turn_over(now);
    }

    /// The store asked for less.
    pub fn on_refused(&mut self, now: Mono) {
        self.turn_over(now);
        let counted = self.0.get_or_insert_with(|| Counted::new(now, None));
        counted.refused = counted.refused.saturating_add(1);
    }

    /// Nothing is counted, and nothing is kept back.
    pub fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// Sets the pace anew when a window is over.
    fn turn_over(&mut self, now: Mono) {
        let Some(counted) = &self.0 else { return };
        let window = counted.window().as_micros();
        let passed = now.since(counted.since).as_micros();
        if passed < window {
            return;
        }
        let limited = counted.limit.as_ref();
        let refusals = if limited.is_some() { 1 } else { REFUSALS_MIN };
        let windows = passed / window;
        let (interval, clean) = if counted.refused >= refusals {
            // Seven eighths of what it took; nobody has asked since.
            let took = window * 8 / 7 / u64::from(counted.taken).max(1);
            (Some(faster(took.min(INTERVAL_MAX.as_micros()), 0..windows - 1)), windows - 1)
        } else {
            let clean = limited.map_or(0, |limit| limit.clean);
            let interval = limited.map(|limit| limit.interval.as_micros());
            let windows = clean..clean + windows;
            (interval.map(|interval| faster(interval, windows.clone())), windows.end)
        };
        let interval = interval.map(|interval| interval.min(INTERVAL_MAX.as_micros()));
        let interval = interval.filter(|interval| *interval >= INTERVAL_MIN.as_micros());
        self.0 = interval.map(|interval| {
            let interval = Micros::from_micros(interval);
            let next = limited.map_or(now, |limit| limit.next).min(now + interval);
            Counted::new(now, Some(Limit { interval, next, clean }))
        });
    }
}

/// The next interval, in µs, after these windows without refusals, also such in which nobody asked.
fn faster(interval: u64, windows: Range<u64>) -> u64 {
    windows.take(64).fold(interval, |interval, window| {
        if window < CLEAN_WINDOWS { interval * 4 / 5 } else { interval / 2 }
    })
}

impl Counted {
    fn new(now: Mono, limit: Option<Limit>) -> Self {
        Self { since: now, taken: 0, refused: 0, limit }
    }

    /// Long enough for some requests.
    fn window(&self) -> Micros {
        let interval = self.limit.as_ref().map_or(Micros::ZERO, |limit| limit.interval);
        WINDOW.max(interval + interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that takes `rate` a second and bursts of a tenth of that.
    struct Store {
        rate: u64,
        level: u64,
        at: u64,
    }

    impl Store {
        /// Tokens are counted in millionths.
        fn takes(&mut self, now: u64) -> bool {
            let burst = (self.rate * 100_000).max(1_000_000);
            self.level = burst.min(self.level + (now - self.at) * self.rate);
            self.at = now;
            let taken = self.level >= 1_000_000;
            if taken {
                self.level -= 1_000_000;
            }
            taken
        }
    }

    /// Callers that ask again 20 ms after each refusal, and at once after an answer of 1 ms. Returns
    /// what was taken and refused in the last half of `seconds`.
    fn ask(pace: &mut Pace, store: &mut Store, callers: usize, seconds: u64) -> (u64, u64) {
        let begin = store.at;
        let mut due: std::vec::Vec<u64> = (0..callers as u64).map(|n| begin + n).collect();
        let (mut taken, mut refused) = (0, 0);
        for now in (begin..begin + seconds * 1_000_000).step_by(100) {
            for due in &mut due {
                if *due > now {
                    continue;
                }
                let late = now >= begin + seconds * 500_000;
                match pace.admit(Mono::from_micros(now)) {
                    Err(wait) => *due = now + wait.as_micros(),
                    Ok(()) if store.takes(now) => {
                        pace.on_taken(Mono::from_micros(now));
                        taken += u64::from(late);
                        *due = now + 1_000;
                    }
                    Ok(()) => {
                        pace.on_refused(Mono::from_micros(now));
                        refused += u64::from(late);
                        *due = now + 20_000;
                    }
                }
            }
        }
        (taken, refused)
    }

    #[test]
    fn a_store_gets_what_it_takes_and_little_more_however_many_ask() {
        for rate in [20, 300, 3_000] {
            for callers in [8, 64] {
                let (mut pace, mut store) = (Pace::default(), Store { rate, level: 0, at: 0 });
                let (taken, refused) = ask(&mut pace, &mut store, callers, 20);
                assert!(taken * 10 >= rate * 10 * 6, "{rate}/s, {callers}: {taken} taken");
                assert!(refused * 2 <= taken, "{rate}/s, {callers}: {refused} and {taken}");
            }
        }
    }

    #[test]
    fn without_refusals_there_is_soon_no_limit() {
        let (mut pace, mut store) = (Pace::default(), Store { rate: 20, level: 0, at: 0 });
        ask(&mut pace, &mut store, 16, 5);
        assert!(!pace.is_off());
        store.rate = 1_000_000;
        let (_, refused) = ask(&mut pace, &mut store, 16, 8);
        assert!(pace.is_off() && refused == 0);
        // Also when nobody asks.
        let (mut pace, mut store) = (Pace::default(), Store { rate: 20, level: 0, at: 0 });
        ask(&mut pace, &mut store, 16, 5);
        assert!(pace.admit(Mono::from_micros(store.at + 10_000_000)).is_ok() && pace.is_off());
    }

    #[test]
    fn one_refusal_is_no_reason() {
        let mut pace = Pace::default();
        pace.on_refused(Mono::from_micros(0));
        assert!((0..1_000).all(|us| pace.admit(Mono::from_micros(us)).is_ok()));
        assert!(pace.admit(Mono::from_micros(300_000)).is_ok() && pace.is_off());
    }

    #[test]
    fn no_store_is_asked_less_than_twenty_times_a_second() {
        let (mut pace, mut store) = (Pace::default(), Store { rate: 0, level: 0, at: 0 });
        let (taken, refused) = ask(&mut pace, &mut store, 16, 20);
        assert!(taken == 0 && (190..=210).contains(&refused), "{refused} in 10 s");
    }
}
