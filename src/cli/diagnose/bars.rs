//! Latencies as one line of blocks each, on one logarithmic axis.

use std::fmt::Write as _;

use super::latency::Series;

/// Characters of the axis: with the names beside it, it fits a narrow terminal.
const WIDTH: usize = 56;
/// What is drawn up to which quantile.
const STEPS: [(f64, char); 5] = [(0.5, '█'), (0.9, '▓'), (0.99, '▒'), (0.999, '░'), (1.0, '·')];

/// Draws all of `series` that have samples; nothing for none.
pub(super) fn draw(series: &[Series]) -> String {
    let drawn: Vec<_> = series.iter().filter(|series| series.count() > 0).collect();
    let us = |series: &Series, quantile| series.quantile(quantile).as_micros().max(1);
    let (Some(low), Some(high)) = (
        drawn.iter().map(|series| us(series, 0.0)).min(),
        drawn.iter().map(|series| us(series, 1.0)).max(),
    ) else {
        return String::new();
    };
    // Whole powers of ten, so that the axis has marks.
    let (first, last) = (low.ilog10(), high.ilog10() + 1);
    let place = |us: u64| {
        let part = (us as f64).log10() - f64::from(first);
        (part / f64::from(last - first) * WIDTH as f64).round() as usize
    };
    let mut text = format!("  {:<20}{}\n", "", axis(first, last, &place));
    for series in drawn {
        let mut bar = String::new();
        for (quantile, block) in STEPS {
            let end = place(us(series, quantile)).max(1);
            let drawn = bar.chars().count();
            bar.extend(std::iter::repeat_n(block, end.saturating_sub(drawn)));
        }
        let _infallible = writeln!(text, "  {}{bar}", label(series));
    }
    text.push_str("                      █ to the p50  ▓ p90  ▒ p99  ░ p99.9  · max\n");
    text
}

/// Its name, as wide as all others.
pub(super) fn label(series: &Series) -> String {
    let short: String = series.name.chars().take(19).collect();
    format!("{short:<20}")
}

/// A mark for each power of ten.
fn axis(first: u32, last: u32, place: &impl Fn(u64) -> usize) -> String {
    let mut axis = String::new();
    for power in first..last {
        let us = 10_u64.pow(power);
        let label = match us {
            0..1_000 => format!("|{us} µs"),
            1_000..1_000_000 => format!("|{} ms", us / 1_000),
            _ => format!("|{} s", us / 1_000_000),
        };
        let gap = place(us).saturating_sub(axis.chars().count());
        axis.extend(std::iter::repeat_n(' ', gap));
        axis.push_str(&label);
    }
    axis
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bars_stand_on_one_axis_and_end_at_their_longest() {
        let mut fast = Series::new("fast", "fast");
        let mut slow = Series::new("slow", "slow");
        for n in 1..=1_000 {
            fast.record(Duration::from_micros(10 + n / 10));
            slow.record(Duration::from_micros(1_000 + n * 90));
        }
        let text = draw(&[fast, Series::new("none", "none"), slow]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(lines[0].trim(), "|10 µs        |100 µs       |1 ms         |10 ms");
        assert!(!text.contains("none"));
        let length = |line: &str| line.chars().skip(22).count();
        // 110 µs and 91 ms on an axis from 10 µs to 100 ms.
        assert_eq!((length(lines[1]), length(lines[2])), (15, 55), "{text}");
        assert!(lines[2].trim_end().starts_with("  slow"));
    }

    #[test]
    fn one_sample_has_a_bar_too() {
        let mut one = Series::new("one", "one");
        one.record(Duration::from_micros(1));
        assert!(draw(&[one]).contains("one"));
        assert_eq!(draw(&[]), "");
    }
}
