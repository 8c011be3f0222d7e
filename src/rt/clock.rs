//! The two clocks of a process.
//!
//! Units: monotonic microseconds since the first reading, wall milliseconds since 1970.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

static START: OnceLock<Instant> = OnceLock::new();

/// Microseconds since the first reading of this process, on the monotonic clock.
pub fn mono_us() -> u64 {
    let start = START.get_or_init(Instant::now);
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970 on the wall clock; zero for a clock set before that.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
