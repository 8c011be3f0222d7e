//! When a request that takes long is sent a second time, beside the first.
//!
//! Invariants: nothing is sent twice before the store's own latency is known; of a hundred
//! requests, five are sent twice at most, whatever the store does.
//! Units: µs. Quantiles are exact to a quarter of a power of two.
//! Source: "The Tail at Scale", Communications of the ACM 56(2), 2013.

use crate::time::Micros;

/// Each power of two of µs in four steps, up to 16 s.
const BUCKETS: usize = 24 * 4;
/// Samples that tell a latency. Until then nothing is known.
const SAMPLES_MIN: u32 = 200;
/// At so many the older half is forgotten: a store that changes is followed.
const SAMPLES_MAX: u32 = 4_000;
/// Of a hundred requests, so many are faster than the wait.
pub(crate) const QUANTILE: u32 = 95;
/// A request earns it, and a second one costs a hundred: five of a hundred.
const EARNED: u32 = 5;
const COST: u32 = 100;
/// Second requests that may come in a burst.
const BURST: u32 = 10 * COST;
/// Shorter waits cost more than they save: the timer itself may be late by as much.
pub(crate) const DELAY_MIN: Micros = Micros::from_millis(2);

/// Latencies of one kind of request, and the right to send some of them twice.
#[derive(Clone, Debug)]
pub struct Hedge {
    counts: [u32; BUCKETS],
    samples: u32,
    earned: u32,
}

impl Default for Hedge {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], samples: 0, earned: 0 }
    }
}

impl Hedge {
    /// A request took this long.
    pub fn observe(&mut self, took: Micros) {
        self.counts[bucket(took)] += 1;
        self.samples += 1;
        if self.samples >= SAMPLES_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.samples = self.counts.iter().sum();
        }
    }

    /// A request is sent. Returns after which time a second one makes sense, if it ever does.
    pub fn on_request(&mut self) -> Option<Micros> {
        self.earned = (self.earned + EARNED).min(BURST);
        if self.samples < SAMPLES_MIN {
            return None;
        }
        let mut left = self.samples * QUANTILE / 100;
        let slow = self.counts.iter().position(|count| {
            let within = left < *count;
            left = left.saturating_sub(*count);
            within
        })?;
        Some(upper(slow).max(DELAY_MIN))
    }

    /// That time has passed: whether a second one may be sent.
    pub fn may_send(&mut self) -> bool {
        let enough = self.earned >= COST;
        if enough {
            self.earned -= COST;
        }
        enough
    }
}

fn bucket(took: Micros) -> usize {
    let us = took.as_micros().max(4);
    let power = us.ilog2();
    let step = (us >> (power - 2)) & 3;
    (power as usize * 4 + step as usize).min(BUCKETS - 1)
}

/// What no request of a bucket took.
fn upper(bucket: usize) -> Micros {
    let (power, step) = (bucket / 4, bucket as u64 % 4);
    Micros::from_micros((4 + step + 1) << power >> 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_a_quarter_of_a_power_of_two() {
        for us in [4, 5, 7, 8, 100, 1_000, 1_023, 1_024, 65_535, 1_000_000, 16_000_000] {
            let end = upper(bucket(Micros::from_micros(us))).as_micros();
            assert!(us < end && end <= us + us / 4 + 1, "{us}: {end}");
        }
        assert_eq!(bucket(Micros::ZERO), bucket(Micros::from_micros(4)));
        assert_eq!(bucket(Micros::from_secs(1 << 40)), BUCKETS - 1);
    }

    #[test]
    fn nothing_is_hedged_until_the_latency_is_known_and_then_after_what_most_take() {
        let mut hedge = Hedge::default();
        for n in 0..SAMPLES_MIN {
            assert_eq!(hedge.on_request(), None);
            // One of twenty takes 200 ms, the others 10 ms.
            hedge.observe(Micros::from_millis(if n % 25 == 0 { 200 } else { 10 }));
        }
        let delay = hedge.on_request().expect("known");
        assert!((10..=13).contains(&delay.as_millis()), "{delay}");
        for _ in 0..SAMPLES_MAX {
            hedge.observe(Micros::from_micros(50));
        }
        assert_eq!(hedge.on_request(), Some(DELAY_MIN), "the old is forgotten");
    }

    #[test]
    fn of_a_hundred_requests_five_are_sent_twice() {
        let mut hedge = Hedge::default();
        let mut twice = 0;
        for _ in 0..10_000 {
            hedge.on_request();
            twice += u32::from(hedge.may_send());
        }
        assert_eq!(twice, 500);
        for _ in 0..10_000 {
            hedge.on_request();
        }
        assert_eq!((0..100).filter(|_| hedge.may_send()).count(), 10, "a burst has a bound");
    }
}
