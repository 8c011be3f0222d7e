//! The two clocks of a process.
//!
//! Units: monotonic microseconds since the first reading, wall milliseconds since 1970.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

static START: OnceLock<u64> = OnceLock::new();

/// Microseconds since the first reading of this process, on a clock that only goes forward. It
/// counts the time for which the machine is suspended, unlike `Instant`: the right to act as an
/// owner ends in that time too.
pub fn mono_us() -> u64 {
    let now = boot_us();
    // Two threads may be first at once: what the other one read may be later.
    now.saturating_sub(*START.get_or_init(|| now))
}

fn boot_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the struct that it is given, and nothing else.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert_eq!(result, 0, "every Linux since 2.6.39 has this clock");
    let part = |number: libc::c_long| u64::try_from(number).expect("since the boot");
    part(time.tv_sec) * 1_000_000 + part(time.tv_nsec) / 1_000
}

/// Milliseconds since 1970 on the wall clock; zero for a clock set before that.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_clock_goes_forward_on_all_threads_and_as_fast_as_others() {
        let before = mono_us();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    let mut last = mono_us();
                    for _ in 0..100_000 {
                        let now = mono_us();
                        assert!(now >= last, "{now} after {last}");
                        last = now;
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(50));
        let slept = mono_us() - before;
        assert!((50_000..30_000_000).contains(&slept), "{slept} µs");
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}
