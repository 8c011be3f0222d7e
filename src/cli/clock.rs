//! Days and seconds of the calendar, for dates in configurations and names of versions.
//!
//! Units: Unix time, UTC. Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".

use std::time::{SystemTime, UNIX_EPOCH};

/// Year, month and day of a day counted from 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Today, as `2026-01-31`.
pub(crate) fn today() -> String {
    let (year, month, day) = civil((now_ms() / 86_400_000).cast_signed());
    format!("{year:04}-{month:02}-{day:02}")
}

/// The day that it is somewhere already, where the sun is ahead of UTC.
pub(crate) fn latest() -> String {
    let (year, month, day) = civil(((now_ms() + 14 * 3_600_000) / 86_400_000).cast_signed());
    format!("{year:04}-{month:02}-{day:02}")
}

/// An instant as `20260131T235959Z`, which sorts as it counts.
pub(crate) fn stamp(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (year, month, day) = civil((seconds / 86_400).cast_signed());
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// True for `2026-01-31` and the like: a day that exists.
pub(crate) fn is_date(text: &str) -> bool {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        text.get(range).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
    };
    let dashes = text.len() == 10 && text.as_bytes()[4] == b'-' && text.as_bytes()[7] == b'-';
    let (true, Some(year), Some(month), Some(day)) =
        (dashes, number(0..4), number(5..7), number(8..10))
    else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_days_come_out_right() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(-1), (1969, 12, 31));
        assert_eq!(stamp(951_827_696_000), "20000229T123456Z");
    }

    #[test]
    fn only_days_that_exist_are_dates() {
        for good in ["2026-01-31", "2024-02-29", "2000-02-29"] {
            assert!(is_date(good), "{good}");
        }
        for bad in [
            "2026-02-29",
            "1900-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-04-31",
            "2026-1-1",
            "20260131",
            "2026-01-3ä",
            "+026-01-01",
        ] {
            assert!(!is_date(bad), "{bad}");
        }
        assert!(is_date(&today()));
    }
}
