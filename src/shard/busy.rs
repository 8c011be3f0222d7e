//! How busy a shard is: the part of the last seconds in which it had something to do.
//!
//! Invariant: time before the first sample counts as rest, so that a node that has just started is
//! not taken for full.
//! Units: µs of this process, thousandths.

use std::collections::VecDeque;

/// Over which the mean is taken: longer than most requests, shorter than the life of a lease.
const WINDOW_US: u64 = 4_000_000;
/// A shard that has said nothing for this long is in the middle of JavaScript.
pub(crate) const SILENCE_US: u64 = 2_000_000;

/// What was measured lately, oldest first: when, and for how long the shard had been busy by then.
#[derive(Default)]
pub(crate) struct Busy(VecDeque<(u64, u64)>);

impl Busy {
    /// One more sample. Returns thousandths of the time.
    pub fn sample(&mut self, at_us: u64, busy_us: u64) -> u64 {
        self.0.push_back((at_us, busy_us));
        // The newest of those that are a window old stays.
        while self.0.get(1).is_some_and(|(second, _)| second + WINDOW_US <= at_us) {
            self.0.pop_front();
        }
        let (first_at, first_busy) = self.0[0];
        let time = (at_us - first_at).max(WINDOW_US);
        ((busy_us - first_busy) * 1_000 / time).min(1_000)
    }

    /// What the last two samples say, in thousandths of the time between them; `None` before.
    pub fn latest(&self) -> Option<u64> {
        let (last_at, last_busy) = self.0.back()?;
        let (at, busy) = self.0.get(self.0.len().checked_sub(2)?)?;
        Some(((last_busy - busy) * 1_000 / (last_at - at).max(1)).min(1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 500_000;

    /// What it says after each tick, in which the shard is busy for so many thousandths.
    fn says(busy: &mut Busy, from: u64, ticks: u64, permille: u64) -> Vec<u64> {
        let base = busy.0.back().map_or(0, |(_, busy)| *busy);
        let sample = |n| busy.sample((from + n) * TICK, base + n * TICK * permille / 1_000);
        (1..=ticks).map(sample).collect()
    }

    #[test]
    fn what_it_says_is_the_mean_of_four_seconds() {
        let mut busy = Busy::default();
        busy.sample(0, 0);
        assert_eq!(says(&mut busy, 0, 10, 400)[7..], [400, 400, 400]);
        // Four seconds later nothing of that counts.
        assert_eq!(says(&mut busy, 10, 8, 1_000), [475, 550, 625, 700, 775, 850, 925, 1_000]);
        assert_eq!(says(&mut busy, 18, 9, 0)[7..], [0, 0]);
        assert!(busy.0.len() <= 9, "{} samples", busy.0.len());
    }

    #[test]
    fn a_beginning_is_no_load() {
        let mut busy = Busy::default();
        assert_eq!(busy.sample(TICK, TICK), 0);
        assert_eq!(busy.latest(), None);
        assert_eq!(busy.sample(2 * TICK, 2 * TICK), 125);
        assert_eq!(busy.latest(), Some(1_000));
    }

    #[test]
    fn a_sample_that_comes_late_counts_for_the_time_before_it() {
        let mut busy = Busy::default();
        says(&mut busy, 0, 20, 0);
        assert_eq!(busy.sample(20 * TICK + 30_000_000, 30_000_000), 1_000);
    }
}
