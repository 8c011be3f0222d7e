//! Whether the late answers of a store come by chance, told by requests that are sent in twos.
//!
//! Of two that are sent at the same instant, one that is late by chance has a twin that is not: a
//! second request beside it would have helped. A store that has too much to do, or that stands still
//! for a moment, is late for both.
//! Source: the same as of `hedge`, whose wait this one has.

use alloc::vec::Vec;

use crate::hedge::{DELAY_MIN, QUANTILE};
use crate::time::Micros;

/// Fewer pairs tell nothing of what happens once in a hundred times.
const PAIRS_MIN: usize = 100;
/// Late is who takes so many times the wait: a second request that is sent after the wait, and takes
/// as long as the wait, has then won by as much again.
const LATE_WAITS: u64 = 3;
/// Fewer late ones are not worth a second request, and may be anything.
const LATE_MIN: usize = 4;

/// What pairs tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lateness {
    /// There are too few of them.
    Unknown,
    /// Hardly any request was late.
    Rare,
    /// Three of four late ones, or more, were late alone: a second request would have helped.
    ByChance(Counts),
    /// Late ones were late together: a second request would have been one more that waits.
    Together(Counts),
}

/// Of all requests of the pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// All.
    pub requests: usize,
    /// Those that took three times the wait or more.
    pub late: usize,
    /// Late ones whose twin was answered within the wait.
    pub alone: usize,
    /// What 95 of a hundred took at most, and 2 ms at least.
    pub wait: Micros,
}

/// Looks at pairs of requests of one kind, each with what both took.
pub fn lateness(pairs: &[[Micros; 2]]) -> Lateness {
    if pairs.len() < PAIRS_MIN {
        return Lateness::Unknown;
    }
    let mut sorted: Vec<_> = pairs.iter().flatten().copied().collect();
    sorted.sort_unstable();
    let wait = sorted[sorted.len() * QUANTILE as usize / 100].max(DELAY_MIN);
    let is_late = |took: Micros| took.as_micros() >= wait.as_micros() * LATE_WAITS;
    let both_ways = || pairs.iter().flat_map(|&[one, other]| [(one, other), (other, one)]);
    let late = both_ways().filter(|&(took, _)| is_late(took)).count();
    let alone = both_ways().filter(|&(took, twin)| is_late(took) && twin <= wait).count();
    let counts = Counts { requests: sorted.len(), late, alone, wait };
    if late < LATE_MIN {
        Lateness::Rare
    } else if alone * 4 >= late * 3 {
        Lateness::ByChance(counts)
    } else {
        Lateness::Together(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: u64 = 100;

    /// So many pairs that take 5 to 9 ms, and those at `late` what it says, in milliseconds.
    fn pairs(count: u64, late: &[(u64, [u64; 2])]) -> Vec<[Micros; 2]> {
        let usual = |n: u64| 5 + n % 5;
        let mut pairs: Vec<_> = (0..count).map(|n| [usual(n), usual(n + 3)]).collect();
        late.iter().for_each(|&(at, took)| pairs[at as usize] = took);
        pairs.into_iter().map(|pair| pair.map(Micros::from_millis)).collect()
    }

    #[test]
    fn late_answers_whose_twins_are_in_time_come_by_chance() {
        let late: Vec<_> = (0..6).map(|n| (n * 40, [7, LATE])).collect();
        let wait = Micros::from_millis(9);
        let counts = Counts { requests: 500, late: 6, alone: 6, wait };
        assert_eq!(lateness(&pairs(250, &late)), Lateness::ByChance(counts));
        // Two meet now and then, also by chance.
        let mut some = late.clone();
        some.push((249, [LATE, LATE]));
        let counts = Counts { late: 8, ..counts };
        assert_eq!(lateness(&pairs(250, &some)), Lateness::ByChance(counts));
    }

    #[test]
    fn a_store_that_stands_still_is_late_for_both() {
        let late: Vec<_> = (0..6).map(|n| (n * 40, [LATE - n, LATE])).collect();
        let wait = Micros::from_millis(9);
        let counts = Counts { requests: 500, late: 12, alone: 0, wait };
        assert_eq!(lateness(&pairs(250, &late)), Lateness::Together(counts));
        // A twin that waits for less is no proof: the store is busy for it, too.
        let late: Vec<_> = (0..6).map(|n| (n * 40, [12, LATE])).collect();
        assert!(matches!(lateness(&pairs(250, &late)), Lateness::Together(_)));
    }

    #[test]
    fn few_late_answers_and_broad_ones_are_no_reason() {
        assert_eq!(lateness(&pairs(250, &[])), Lateness::Rare);
        assert_eq!(lateness(&pairs(250, &[(1, [7, LATE]), (9, [LATE, 5])])), Lateness::Rare);
        // Of a crowd each waits for another time, and what is usual is as long as what is late.
        let crowd: Vec<_> = (0..250).map(|n| (n, [1 + n * 7 % 200, 1 + n * 13 % 200])).collect();
        assert_eq!(lateness(&pairs(250, &crowd)), Lateness::Rare);
        assert_eq!(lateness(&pairs(99, &[(1, [7, LATE])])), Lateness::Unknown);
        // What is over in a few milliseconds is not worth a timer.
        let fast: Vec<_> = (0..250).map(|n| (n, [0, 5 * u64::from(n % 50 == 0)])).collect();
        assert_eq!(lateness(&pairs(250, &fast)), Lateness::Rare);
    }
}
