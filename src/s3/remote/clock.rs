//! Dates in headers, and how far the store's clock is from ours.
//!
//! Units: milliseconds since 1970, as the wall clock.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// The last second that has a date: of the year 9999.
const LAST: u64 = 253_402_300_799;

/// Writes `20130524T000000Z`, of seconds since 1970.
pub(crate) fn stamp_of(second: u64) -> String {
    let time = i64::try_from(second).map_or(Ok(Timestamp::MAX), Timestamp::from_second);
    time.unwrap_or(Timestamp::MAX).strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Writes `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn http_date_of(wall_ms: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs((wall_ms / 1_000).min(LAST)))
}

/// Reads a date of HTTP, in any of its three forms.
pub(crate) fn http_date(text: &str) -> Option<u64> {
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok();
    let since = httpdate::parse_http_date(text).ok().and_then(since)?;
    u64::try_from(since.as_millis()).ok()
}

/// What the `Date`s of answers tell about the store's clock.
#[derive(Default)]
pub(crate) struct Offset(Mutex<Option<(i64, i64)>>);

impl Offset {
    /// An answer that came at `received` to a request sent at `sent` said `date`, which was cut to
    /// whole seconds.
    pub fn observe(&self, sent: u64, received: u64, date: u64) {
        let (sent, received, date) = (sent as i64, received as i64, date as i64);
        let seen = (date - received, date + 999 - sent);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(match *known {
            // Each answer narrows it, until one contradicts: a clock was set.
            Some((low, high)) if low.max(seen.0) <= high.min(seen.1) => {
                (low.max(seen.0), high.min(seen.1))
            }
            Some(_) | None => seen,
        });
    }

    /// The store's clock less ours.
    pub fn ms(&self) -> Option<i64> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.map(|(low, high)| low.midpoint(high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_written_as_signatures_want_them() {
        for (second, shown) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_369_353_600, "20130524T000000Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(stamp_of(second), shown);
        }
        // No clock is so far off, but some are wrong.
        assert!(stamp_of(LAST + 1).starts_with("99991230T"));
        assert_eq!(stamp_of(u64::MAX), stamp_of(LAST + 1));
    }

    #[test]
    fn dates_of_http_are_read_and_others_are_not() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777_000));
        assert_eq!(http_date("Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777_000));
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        for bad in [
            "",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun, 06 anF 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 +8:49:37 GMT",
            "Sun, 0é Nov 1994 08:49:7 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
        ] {
            assert_eq!(http_date(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn dates_are_written_as_they_are_read() {
        for (ms, shown) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777_999, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_868_799_000, "Tue, 29 Feb 2000 23:59:59 GMT"),
            (1_369_353_600_000, "Fri, 24 May 2013 00:00:00 GMT"),
        ] {
            assert_eq!(http_date_of(ms), shown);
            assert_eq!(http_date(shown), Some(ms / 1_000 * 1_000));
        }
        assert_eq!(http_date_of(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn answers_narrow_the_offset_until_a_clock_is_set() {
        let offset = Offset::default();
        assert_eq!(offset.ms(), None);
        // The store is 250 ms ahead; answers take 20 ms.
        for n in 0..100 {
            let sent = 1_000_000 + n * 137;
            offset.observe(sent, sent + 20, (sent + 10 + 250) / 1_000 * 1_000);
        }
        let known = offset.ms().expect("known");
        assert!((230..=270).contains(&known), "{known}");
        offset.observe(2_000_000, 2_000_020, 5_000_000);
        assert!((2_999_000..=3_001_000).contains(&offset.ms().expect("known")));
    }
}
