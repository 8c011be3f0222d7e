//! The wake index: what fires an armed alarm whose cell is in nobody's memory.
//!
//! The truth about an alarm is in the cell's own database. The index holds hints, one empty-handed
//! object each: `wake/<minute>/<cell>/<second>-<epoch>-<number>` says "look at this cell then".
//!
//! Invariants:
//! - Whatever a cell shows of an armed alarm leaves its gate only when an entry that the same
//!   epoch wrote, due no later than the alarm, is in the bucket ([`cover::Cover`]).
//! - A name is never written again after somebody was allowed to delete it: epoch and number are
//!   used once. So a delete that arrives late, or twice, or from a stale owner, harms nobody: an
//!   owner relies on entries of its own epoch alone.
//! - An entry is deleted only after the owner has said that it is not needed: no alarm is armed,
//!   or another entry of its own covers it, and that state is proven. One whose write is not
//!   answered yet stays (found by simulation: its owner would rely on it after it was deleted).
//!
//! So one that is stale costs a visit, one that is there twice costs a run more (at least once),
//! and one entry serves every later alarm: arming again costs nothing while an entry is due
//! earlier. The owner looks after the alarms that it has in memory, and after those of cells that
//! it has put to rest ([`sleepers::Sleepers`]); one node of the fleet visits what is overdue all
//! the same ([`scan::Scan`]).
//! Units: seconds and minutes of the wall clock.

pub mod cover;
pub mod scan;
pub mod sleepers;

use alloc::format;
use alloc::string::String;
use core::fmt;

use crate::cell::CellId;
use crate::epoch::Epoch;
use crate::time::Wall;
use crate::txid::parse_hex16;

/// Where the index is.
pub const PREFIX: &str = "wake/";

/// Digits of a minute: the year 275760 has twelve.
const MINUTE_DIGITS: usize = 12;

/// One hint of the index; its order is that of the keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// When to look, in seconds since 1970.
    pub due_s: u64,
    /// At which cell.
    pub cell: CellId,
    /// Whose hint it is.
    pub epoch: Epoch,
    /// Tells the hints of one epoch apart.
    pub number: u64,
}

/// What the owner says about an entry that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not needed any more: delete it.
    Done,
    /// It is needed: come again.
    Later,
    /// The owner could not be asked, or could not say.
    Failed,
}

/// The second in which `wall` lies.
pub(crate) fn second(wall: Wall) -> u64 {
    wall.as_millis() / 1_000
}

impl Entry {
    /// Its key.
    pub fn key(&self) -> String {
        let (minute, second) = (self.due_s / 60, self.due_s % 60);
        let Self { cell, epoch, number, .. } = self;
        format!("{PREFIX}{minute:0MINUTE_DIGITS$}/{cell}/{second:02}-{epoch}-{number:016x}")
    }
    /// Reads a key. `None`: not one that [`Entry::key`] makes.
    pub fn parse(key: &str) -> Option<Self> {
        let mut parts = key.strip_prefix(PREFIX)?.split('/');
        let (minute, namespace, id) = (parts.next()?, parts.next()?, parts.next()?);
        let name = parts.next().filter(|_| parts.next().is_none())?;
        let mut words = name.split('-');
        let (second, epoch) = (words.next()?, words.next()?);
        let number = words.next().filter(|_| words.next().is_none())?;
        let second = digits(second, 2).filter(|second| *second < 60)?;
        Some(Self {
            due_s: digits(minute, MINUTE_DIGITS)?.checked_mul(60)? + second,
            cell: CellId::new(namespace, id)?,
            epoch: Epoch::parse(epoch)?,
            number: parse_hex16(number)?,
        })
    }
    /// The minute in which it is due.
    pub fn minute(&self) -> u64 {
        self.due_s / 60
    }
    /// Whether its time has come.
    pub fn is_due(&self, wall: Wall) -> bool {
        self.due_s <= second(wall)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key())
    }
}

/// Exactly `count` decimal digits.
fn digits(text: &str, count: usize) -> Option<u64> {
    let is_plain = text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::alarm::LATEST;

    fn entry(due_s: u64) -> Entry {
        let cell = CellId::new("app.Room-2", &"0a".repeat(32)).expect("a good name");
        Entry { due_s, cell, epoch: Epoch::from_record(7).expect("not zero"), number: 3 }
    }

    #[test]
    fn an_entry_reads_back_what_it_writes_from_1970_to_the_year_275760() {
        for due_s in [0, 59, 60, 1_764_000_000, second(LATEST)] {
            assert_eq!(Entry::parse(&entry(due_s).key()), Some(entry(due_s)));
        }
        let key = entry(second(LATEST)).key();
        assert!(key.starts_with("wake/144000000000/app.Room-2/0a0a"), "{key}");
        assert!(key.ends_with("/00-0000000000000007-0000000000000003"), "{key}");
    }

    #[test]
    fn keys_are_in_the_order_of_their_minutes() {
        let keys: vec::Vec<_> = [0, 59, 61, 6_000, 1_764_000_000].map(entry).into();
        assert!(keys.is_sorted_by(|a, b| a.minute() == b.minute() || a.key() < b.key()));
    }

    #[test]
    fn other_names_are_no_entries() {
        let good = entry(61).key();
        let minute = "wake/000000000001/";
        for bad in [
            good.replace("wake/", "wakes/"),
            good.replacen("0000", "000", 1),
            good.replace("/01-", "/60-"),
            good.replace("/01-", "/1-"),
            good.replace("-0000000000000007-", "-0000000000000000-"),
            good.replace("/app.", "/../app."),
            good.replace("app.Room-2/", ""),
            format!("{good}/x"),
            format!("{good}-0"),
            minute.into(),
        ] {
            assert_eq!(Entry::parse(&bad), None, "{bad}");
        }
    }
}
