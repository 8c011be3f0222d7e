//! The clocks of one process. Monotonic ones run at rates of their own, and on a machine that was
//! suspended they stand still; wall clocks differ, and are set.
//!
//! Units: µs of true time, unless a type says otherwise.

use celld_core::time::{Mono, Wall};

/// True time zero, in milliseconds since 1970.
const WALL_BASE: u64 = 1_700_000_000_000;

/// What a monotonic clock shows when its process starts: a machine has been up for a while.
const MONO_BASE: u64 = 77_000_000;

const MILLION: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub struct Clock {
    start: u64,
    /// Ticks in a million µs.
    rate: u64,
    /// How long it has stood still.
    stood: u64,
    skew_ms: i64,
}

/// The wall clock that is right.
pub fn true_wall(now: u64) -> Wall {
    Wall::from_millis(WALL_BASE + now / 1_000)
}

impl Clock {
    pub fn new(start: u64, drift_ppm: i64, skew_ms: i64) -> Self {
        let rate = MILLION.checked_add_signed(drift_ppm).expect("a small drift");
        Self { start, rate, stood: 0, skew_ms }
    }
    pub fn mono(&self, now: u64) -> Mono {
        let ran = (now - self.start).saturating_sub(self.stood);
        Mono::from_micros(MONO_BASE + ran * self.rate / MILLION)
    }
    /// When it shows `at`, if it does not stand still.
    pub fn when(&self, at: Mono) -> u64 {
        let ticks = at.as_micros().saturating_sub(MONO_BASE).min(1 << 40);
        self.start + self.stood + (ticks * MILLION).div_ceil(self.rate)
    }
    pub fn wall(&self, now: u64) -> Wall {
        let right = true_wall(now).as_millis();
        Wall::from_millis(right.checked_add_signed(self.skew_ms).expect("after 1970"))
    }
    /// The machine is suspended for this long, and the clock does not count it.
    pub fn stand(&mut self, span: u64) {
        self.stood += span;
    }
    pub fn set_skew(&mut self, skew_ms: i64) {
        self.skew_ms = skew_ms;
    }
}
