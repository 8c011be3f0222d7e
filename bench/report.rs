//! One table, then one JSON line.
//!
//! Each number is the median of the runs, with the lowest and the highest. Compare only runs of
//! one machine and one hour.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::load::Outcome;

/// What a number counts, so that it is printed well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds.
    Micros,
    /// Things in a second.
    PerSecond,
    /// Bytes.
    Bytes,
    /// Just a number.
    Count,
}

/// All rows of one bench. A row is one thing on one server; a run adds one sample to each column.
#[derive(Debug)]
pub struct Report {
    bench: &'static str,
    conditions: String,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    name: String,
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    name: &'static str,
    unit: Unit,
    samples: Vec<f64>,
}

impl Report {
    /// `conditions`: what was measured, in a few words.
    pub fn new(bench: &'static str, conditions: impl Into<String>) -> Self {
        Self { bench, conditions: conditions.into(), rows: Vec::new() }
    }

    /// Adds one run's number.
    pub fn add(&mut self, row: &str, column: &'static str, unit: Unit, sample: f64) {
        let at = self.rows.iter().position(|known| known.name == row).unwrap_or_else(|| {
            self.rows.push(Row { name: row.to_owned(), columns: Vec::new() });
            self.rows.len() - 1
        });
        let columns = &mut self.rows[at].columns;
        match columns.iter_mut().find(|known| known.name == column) {
            Some(known) => known.samples.push(sample),
            None => columns.push(Column { name: column, unit, samples: vec![sample] }),
        }
    }

    /// Adds one run's latencies: p50, p99, p99.9 and the longest.
    pub fn add_latency(&mut self, row: &str, latency: &Histogram<u64>) {
        if latency.is_empty() {
            return;
        }
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
            self.add(row, name, Unit::Micros, latency.value_at_quantile(quantile) as f64);
        }
    }

    /// Adds one run of the load generator.
    pub fn add_outcome(&mut self, row: &str, outcome: &Outcome) {
        self.add(row, "rate", Unit::PerSecond, outcome.per_second);
        self.add_latency(row, &outcome.latency);
        if outcome.errors + outcome.unanswered > 0 {
            let failed = outcome.errors + outcome.unanswered;
            self.add(row, "failed", Unit::Count, failed as f64);
        }
    }

    /// The table: one line for each row.
    pub fn table(&self) -> String {
        let runs = self.rows.iter().flat_map(|row| &row.columns).map(|c| c.samples.len()).max();
        let mut text = format!(
            "{}  {}   median of {} (range)\n",
            self.bench,
            self.conditions,
            runs.unwrap_or(0)
        );
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        for row in &self.rows {
            let mut line = format!("{:width$}", row.name);
            for column in &row.columns {
                let [low, median, high] = spread(&column.samples);
                let shown = |value| show(value, column.unit);
                let range = match column.samples.len() {
                    1 => String::new(),
                    _ => format!(" ({}..{})", shown(low), shown(high)),
                };
                let _infallible = write!(line, "   {} {}{range}", column.name, shown(median));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// One line for machines, with what is needed to compare it with others.
    pub fn json(&self) -> Value {
        let rows: Vec<_> = self.rows.iter().map(row_json).collect();
        json!({
            "bench": self.bench,
            "conditions": self.conditions,
            "commit": commit(),
            "machine": machine(),
            "kernel": first_line("/proc/sys/kernel/osrelease"),
            "arguments": std::env::args().skip(1).collect::<Vec<_>>(),
            "rows": rows,
        })
    }

    /// Prints both.
    ///
    /// # Errors
    /// Nothing was measured.
    pub fn print(&self) -> Result<()> {
        anyhow::ensure!(!self.rows.is_empty(), "nothing was measured");
        println!("{}{}", self.table(), self.json());
        Ok(())
    }
}

fn row_json(row: &Row) -> Value {
    let columns: BTreeMap<_, _> = row
        .columns
        .iter()
        .map(|column| {
            let [low, median, high] = spread(&column.samples);
            let unit = match column.unit {
                Unit::Micros => "us",
                Unit::PerSecond => "1/s",
                Unit::Bytes => "bytes",
                Unit::Count => "count",
            };
            (column.name, json!({ "median": median, "min": low, "max": high, "unit": unit }))
        })
        .collect();
    json!({ "name": row.name, "columns": columns })
}

/// Lowest, median, highest.
fn spread(samples: &[f64]) -> [f64; 3] {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted[..] {
        [] => [0.0; 3],
        [low, ..] => {
            let (middle, last) = (sorted.len() / 2, sorted[sorted.len() - 1]);
            let median = if sorted.len().is_multiple_of(2) {
                f64::midpoint(sorted[middle - 1], sorted[middle])
            } else {
                sorted[middle]
            };
            [low, median, last]
        }
    }
}

fn show(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Micros if value < 1_000.0 => format!("{value:.0} µs"),
        Unit::Micros if value < 1_000_000.0 => format!("{:.2} ms", value / 1_000.0),
        Unit::Micros => format!("{:.2} s", value / 1_000_000.0),
        Unit::PerSecond => format!("{}/s", thousands(value)),
        Unit::Bytes if value.abs() < 10_240.0 => format!("{value:.0} B"),
        Unit::Bytes if value.abs() < 10_485_760.0 => format!("{:.1} KiB", value / 1_024.0),
        Unit::Bytes => format!("{:.1} MiB", value / 1_048_576.0),
        Unit::Count if value.fract() == 0.0 => thousands(value),
        Unit::Count => format!("{value:.2}"),
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        let left = digits.len() - n;
        if n > 0 && left.is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let text = text.and_then(|text| String::from_utf8(text).ok()).unwrap_or_default();
    if text.is_empty() { "unknown".to_owned() } else { text.trim().to_owned() }
}

fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|line| line.split_once(':')).map_or("unknown", |(_, name)| name);
    let memory = first_line("/proc/meminfo");
    let memory = memory.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok());
    format!("{cpus} x {}, {} MiB", model.trim(), memory.unwrap_or(0) / 1_024)
}

fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_the_median_and_the_range() {
        let mut report = Report::new("sample", "nothing");
        for sample in [12.0, 900.0, 1_234.0, 15_000.0, 2_500_000.0] {
            report.add("first", "p50", Unit::Micros, sample);
            report.add("second one", "rate", Unit::PerSecond, sample);
        }
        assert_eq!(
            report.table(),
            "sample  nothing   median of 5 (range)\n\
             first        p50 1.23 ms (12 µs..2.50 s)\n\
             second one   rate 1,234/s (12/s..2,500,000/s)\n"
        );
        let json = report.json();
        assert_eq!(json["rows"][0]["columns"]["p50"]["median"], 1_234.0);
        assert_eq!(json["bench"], "sample");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), [1.0, 2.5, 4.0]);
        assert_eq!(spread(&[]), [0.0; 3]);
    }
}
