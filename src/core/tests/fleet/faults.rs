//! Which faults a seed has, and what becomes of one request.

use super::SECOND;
use super::rng::Rng;

/// After this a sender gives up and takes the end for unknown.
const TIMEOUT: u64 = 1_600_000;

/// In ten-thousandths of all requests, effects or clients' ops.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub slow: u64,
    pub lost: u64,
    pub late: u64,
    pub throttled: u64,
    /// Applied, and refused when something on the way repeated it.
    pub refused: u64,
    /// The same for the wake index, whose prefix may have a limit of its own.
    pub throttled_index: u64,
    /// A listing as it was some seconds ago.
    pub stale: u64,
    pub crash: u64,
    pub pause: u64,
    /// A second process of the same node starts while the first lives.
    pub twin: u64,
    /// And its state directory is a copy of the first one's.
    pub copied: bool,
    /// Somebody deletes a lease record.
    pub sweep: u64,
    /// Two processes, or a process and the bucket, do not reach each other.
    pub partition: u64,
    /// A call of another process gets no answer, or its answer no call.
    pub cut: u64,
    /// A wall clock is set.
    pub jump: u64,
    /// A monotonic clock stands still beside its process.
    pub stand: u64,
    pub drain: u64,
    /// A process does not restart as it was.
    pub moved: u64,
    /// When the faults end, a process stands still for ever.
    pub frozen: bool,
}

/// What becomes of a request.
pub struct Fate {
    pub apply_after: Option<u64>,
    pub answer_after: u64,
    pub hears: Hears,
    pub is_stale: bool,
}

#[derive(PartialEq, Eq)]
pub enum Hears {
    Truth,
    Nothing,
    Refusal,
}

impl Faults {
    /// Each fault exists in half of the seeds or fewer.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut rate = |of, max| if rng.chance(of) { rng.range(1, max) } else { 0 };
        let mut faults = Self {
            slow: rate(5_000, 3_000),
            lost: rate(5_000, 800),
            late: rate(5_000, 800),
            throttled: rate(5_000, 1_500),
            refused: rate(5_000, 500),
            throttled_index: rate(2_500, 9_000),
            stale: rate(5_000, 3_000),
            crash: rate(5_000, 60),
            pause: rate(5_000, 60),
            twin: rate(2_500, 150),
            copied: false,
            sweep: rate(2_500, 100),
            partition: rate(5_000, 150),
            cut: rate(5_000, 400),
            jump: rate(5_000, 100),
            stand: rate(1_500, 150),
            drain: rate(5_000, 150),
            moved: rate(5_000, 6_000),
            frozen: false,
        };
        faults.copied = rng.chance(5_000);
        faults.frozen = rng.chance(2_500);
        faults
    }
    /// Whether rights may overlap: a clock lies about the time that has passed, a process about the
    /// end of another one, or the record of a process that lives is deleted just before another
    /// one starts under its name. What was proven must hold all the same.
    pub fn is_lenient(&self) -> bool {
        self.stand > 0 || (self.twin > 0 && (self.copied || self.sweep > 0))
    }
    /// Draws what becomes of one request.
    pub fn fate(&self, rng: &mut Rng) -> Fate {
        let mut there = rng.range(500, 30_000);
        let back = rng.range(500, 30_000);
        if rng.chance(self.slow) {
            there += rng.range(0, 800_000);
        }
        let slow_back = if rng.chance(self.slow) { rng.range(0, 700_000) } else { 0 };
        let truth = Fate {
            apply_after: Some(there),
            answer_after: there + back + slow_back,
            hears: Hears::Truth,
            is_stale: rng.chance(self.stale),
        };
        if rng.chance(self.throttled) {
            return Fate { apply_after: None, hears: Hears::Nothing, ..truth };
        }
        if rng.chance(self.lost) {
            return Fate { answer_after: TIMEOUT, hears: Hears::Nothing, ..truth };
        }
        if rng.chance(self.late) {
            let late = Some(TIMEOUT + rng.range(0, 25 * SECOND));
            return Fate { apply_after: late, hears: Hears::Nothing, ..Self::unreachable() };
        }
        if rng.chance(self.refused) {
            return Fate { hears: Hears::Refusal, ..truth };
        }
        truth
    }
    /// Nobody answers.
    pub fn unreachable() -> Fate {
        Fate { apply_after: None, answer_after: TIMEOUT, hears: Hears::Nothing, is_stale: false }
    }
}
