//! Random choices from a seed that is printed, so that a run can be repeated.

use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64.
pub struct Rng(u64);

impl Rng {
    /// From the variable `SEED`, or else from the clock. Prints the seed: the test harness shows
    /// it when the test fails.
    pub fn from_environment(test: &str) -> Self {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros());
        let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or(clock as u64);
        println!("SEED={seed} replays the choices of {test}");
        Self(seed)
    }

    /// Another stream for each `number`.
    pub fn fork(&self, number: u64) -> Self {
        Self(self.0.wrapping_add(number.wrapping_mul(0xa076_1d64_78bd_642f)))
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `end`, without it.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
