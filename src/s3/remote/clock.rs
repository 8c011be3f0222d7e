//! Dates in headers, and how far the store's clock is from ours.
//!
//! Units: milliseconds since 1970, as the wall clock.
//! Source: RFC 9110, section 5.6.7 (`IMF-fixdate`); the calendar after "chrono-Compatible
//! Low-Level Date Algorithms", H. Hinnant.

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;

const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";

/// A second in the Gregorian calendar, in UTC. Shown as `20130524T000000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Civil {
    pub year: u64,
    pub month: u64,
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
}

impl Civil {
    pub fn of(wall_ms: u64) -> Self {
        let seconds = wall_ms / 1_000;
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        // Eras of 400 years, which begin on the first of March of a year divisible by 400.
        let days = days + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * of_year + 2) / 153;
        let day = of_year - (153 * shifted + 2) / 5 + 1;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = year_of_era + era * 400 + u64::from(month <= 2);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        Self { year, month, day, hour, minute, second }
    }

    pub fn wall_ms(self) -> u64 {
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let (era, year_of_era) = (year / 400, year % 400);
        let shifted = if self.month > 2 { self.month - 3 } else { self.month + 9 };
        let of_year = (153 * shifted + 2) / 5 + self.day - 1;
        let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
        let days = era * 146_097 + of_era - 719_468;
        (days * 86_400 + self.hour * 3_600 + self.minute * 60 + self.second) * 1_000
    }
}

impl fmt::Display for Civil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day, hour, minute, second } = *self;
        let mut text = *b"00000000T000000Z";
        let fields = [(0..4, year), (4..6, month), (6..8, day)];
        let times = [(9..11, hour), (11..13, minute), (13..15, second)];
        for (range, mut value) in fields.into_iter().chain(times) {
            for digit in text[range].iter_mut().rev() {
                *digit = b'0' + (value % 10) as u8;
                value /= 10;
            }
        }
        f.write_str(str::from_utf8(&text).expect("digits are ASCII"))
    }
}

/// Writes `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn http_date_of(wall_ms: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let Civil { year, month, day, hour, minute, second } = Civil::of(wall_ms);
    let name = DAYS[(wall_ms / 86_400_000 % 7) as usize];
    let month = &MONTHS[(month as usize - 1) * 3..][..3];
    format!("{name}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn http_date(text: &str) -> Option<u64> {
    let text = text.strip_suffix(" GMT")?.split_once(", ")?.1;
    let bytes = text.as_bytes();
    if !text.is_ascii() || bytes.len() != 20 {
        return None;
    }
    let number = |range: std::ops::Range<usize>| -> Option<u64> {
        let digits = &text[range];
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let at = MONTHS.find(&text[3..6]).filter(|at| at % 3 == 0)?;
    let separators = [(2, b' '), (6, b' '), (11, b' '), (14, b':'), (17, b':')];
    if separators.iter().any(|&(at, sign)| bytes[at] != sign) {
        return None;
    }
    let civil = Civil {
        year: number(7..11)?,
        month: at as u64 / 3 + 1,
        day: number(0..2)?,
        hour: number(12..14)?,
        minute: number(15..17)?,
        second: number(18..20)?,
    };
    let sound = (1970..=9999).contains(&civil.year)
        && (1..=31).contains(&civil.day)
        && civil.hour < 24
        && civil.minute < 60
        && civil.second <= 60;
    sound.then(|| civil.wall_ms())
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
    fn days_are_those_of_the_calendar() {
        for (ms, shown) in [
            (0, "19700101T000000Z"),
            (951_782_399_000, "20000228T235959Z"),
            (951_782_400_000, "20000229T000000Z"),
            (951_868_800_000, "20000301T000000Z"),
            (1_369_353_600_999, "20130524T000000Z"),
            (4_107_542_400_000, "21000301T000000Z"),
            (253_402_300_799_000, "99991231T235959Z"),
        ] {
            let civil = Civil::of(ms);
            assert_eq!(civil.to_string(), shown);
            assert_eq!(civil.wall_ms(), ms / 1_000 * 1_000, "{shown}");
        }
    }

    #[test]
    fn dates_of_http_are_read_and_others_are_not() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777_000));
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        for bad in [
            "",
            "Sunday, 06-Nov-94 08:49:37 GMT",
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
