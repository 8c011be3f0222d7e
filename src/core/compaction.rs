//! Which files of a cell to merge, and which keys that makes superfluous.
//!
//! Invariant: the chain is what a restore would apply: contiguous, without overlaps. Only its end
//! can be merged, as the merged file is made from the live database: it holds the pages that
//! changed since its first commit. A file is given up only after the one that covers it was
//! written and the ownership was proven after that.
//! Units: bytes as stored; instants of the monotonic clock.
//!
//! With a fan-in of 16 there are at most 15 files of each level, so 40,000 commits are restored
//! from at most 60 objects, and each page is written once more for each level. Once the files
//! behind a snapshot weigh as much as the database, a new snapshot costs less than they do.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::plan::LtxFile;
use crate::time::{Micros, Mono};
use crate::txid::Txid;

/// Files of one level that become one of the next.
pub const FAN_IN: usize = 16;
/// The level of snapshots, as in Litestream.
pub const SNAPSHOT_LEVEL: u8 = 9;
/// The highest level of merged files that are no snapshots: 16^8 commits.
const MERGED_LEVEL_MAX: u8 = 8;

/// A file to make: everything from commit `min` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its level.
    pub level: u8,
    /// Its first commit; 1: a snapshot.
    pub min: Txid,
}

/// The files of one resident cell.
#[derive(Debug)]
pub struct Compactor {
    chain: Vec<LtxFile>,
    running: Option<Job>,
    /// Superseded files and since when, oldest first.
    superseded: VecDeque<(Mono, LtxFile)>,
    retention: Micros,
}

impl Compactor {
    /// After a restore: the files that were applied, and those that they cover. `retention`: how
    /// long a superseded file is kept, for restores to an earlier time; zero for none.
    ///
    /// # Panics
    /// `chain` is not contiguous.
    pub fn new(
        chain: Vec<LtxFile>,
        superseded: Vec<LtxFile>,
        retention: Micros,
        now: Mono,
    ) -> Self {
        let mut at = Txid::ZERO;
        for file in &chain {
            assert_eq!(file.follows(), at, "the chain has a gap");
            at = file.max;
        }
        let superseded = superseded.into_iter().map(|file| (now, file)).collect();
        Self { chain, running: None, superseded, retention }
    }

    /// A segment was uploaded and proven.
    ///
    /// # Panics
    /// It does not continue the chain.
    pub fn on_segment(&mut self, file: LtxFile) {
        let at = self.chain.last().map_or(Txid::ZERO, |last| last.max);
        assert_eq!(file.follows(), at, "segments are uploaded in order");
        self.chain.push(file);
    }

    /// What to make now, if anything; one job at a time. `database_bytes`: what a snapshot would
    /// weigh at most.
    pub fn next(&mut self, database_bytes: u64) -> Option<Job> {
        if self.running.is_some() {
            return None;
        }
        let job = self.due(database_bytes)?;
        self.running = Some(job);
        Some(job)
    }

    fn due(&self, database_bytes: u64) -> Option<Job> {
        let deltas = self.chain.iter().filter(|file| file.level < SNAPSHOT_LEVEL);
        let (count, bytes) = deltas.fold((0, 0_u64), |(n, sum), file| (n + 1, sum + file.bytes));
        let segments = self.chain.iter().rev().take_while(|file| file.level == 0).count();
        if segments < FAN_IN {
            return None;
        }
        if count >= FAN_IN && bytes > database_bytes {
            return Some(Job { level: SNAPSHOT_LEVEL, min: Txid::new(1) });
        }
        // A merge that would fill the next level takes that level along.
        let (mut start, mut level) = (self.chain.len() - segments, 1);
        while level < MERGED_LEVEL_MAX {
            let before = self.chain[..start].iter().rev();
            let full = before.take_while(|file| file.level == level).count();
            if full + 1 < FAN_IN {
                break;
            }
            (start, level) = (start - full, level + 1);
        }
        let first = &self.chain[start];
        let whole = first.min == Txid::new(1);
        Some(Job { level: if whole { SNAPSHOT_LEVEL } else { level }, min: first.min })
    }

    /// The job's file was written, and the ownership was proven by a read after that: what it
    /// covers is superseded.
    ///
    /// # Panics
    /// No such job runs, or the file does not cover whole files of the chain.
    pub fn on_written(&mut self, file: LtxFile, now: Mono) {
        let job = self.running.take().expect("a file is written for a job");
        assert_eq!((file.level, file.min), (job.level, job.min), "the file is of another job");
        let start = self.chain.partition_point(|known| known.max < file.min);
        let end = self.chain.partition_point(|known| known.max <= file.max);
        assert!(start < end && self.chain[start].min == file.min, "the file covers no whole files");
        assert_eq!(self.chain[end - 1].max, file.max, "the file ends within another");
        let covered = self.chain.splice(start..end, [file]);
        self.superseded.extend(covered.map(|old| (now, old)));
    }

    /// The job was given up; it comes again.
    pub fn on_failed(&mut self) {
        self.running = None;
    }

    /// Up to `count` files whose time is over, to be deleted now. Deleting may be repeated: a file
    /// that is still there at the next restore comes back as superseded.
    pub fn take_deletable(&mut self, count: usize, now: Mono) -> Vec<LtxFile> {
        let old = |(since, _): &&(Mono, LtxFile)| now.since(*since) >= self.retention;
        let ready = self.superseded.iter().take(count).take_while(old).count();
        self.superseded.drain(..ready).map(|(_, file)| file).collect()
    }

    /// What a restore would apply now.
    pub fn chain(&self) -> &[LtxFile] {
        &self.chain
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::epoch::Epoch;

    fn file(level: u8, min: u64, max: u64, bytes: u64) -> LtxFile {
        LtxFile { epoch: Epoch::FIRST, level, min: Txid::new(min), max: Txid::new(max), bytes }
    }

    /// Commits one by one and does every job at once, with files of `bytes`.
    fn run(commits: u64, bytes: u64, database_bytes: u64) -> (Compactor, usize) {
        let mut compactor = Compactor::new(vec![], vec![], Micros::ZERO, Mono::default());
        let mut longest = 0;
        for n in 1..=commits {
            compactor.on_segment(file(0, n, n, bytes));
            while let Some(job) = compactor.next(database_bytes) {
                let weight = if job.level == SNAPSHOT_LEVEL { database_bytes } else { bytes };
                let made = file(job.level, job.min.get(), n, weight);
                compactor.on_written(made, Mono::default());
            }
            longest = longest.max(compactor.chain().len());
            compactor.take_deletable(usize::MAX, Mono::default());
        }
        (compactor, longest)
    }

    #[test]
    fn forty_thousand_commits_stay_a_few_tens_of_files() {
        for database_bytes in [4_000, 1_000_000, u64::MAX] {
            let (compactor, longest) = run(40_000, 500, database_bytes);
            assert!(longest <= 60, "{longest} files at {database_bytes} bytes");
            let levels: Vec<_> = compactor.chain().iter().map(|file| file.level).collect();
            assert!(levels.is_sorted_by(|a, b| a >= b), "{levels:?}");
        }
    }

    #[test]
    fn a_merge_that_fills_a_level_goes_one_higher() {
        let mut chain = vec![file(9, 1, 10, 1)];
        chain.extend((0..15).map(|n| file(1, 11 + n * 16, 26 + n * 16, 1)));
        chain.extend((0..15).map(|n| file(0, 251 + n, 251 + n, 1)));
        let mut compactor = Compactor::new(chain, vec![], Micros::ZERO, Mono::default());
        assert_eq!(compactor.next(1_000), None);
        compactor.on_segment(file(0, 266, 266, 1));
        let job = Job { level: 2, min: Txid::new(11) };
        assert_eq!(compactor.next(1_000), Some(job));
        assert_eq!(compactor.next(1_000), None, "one job at a time");
        compactor.on_segment(file(0, 267, 267, 1));
        compactor.on_written(file(2, 11, 266, 5), Mono::default());
        let chain = [file(9, 1, 10, 1), file(2, 11, 266, 5), file(0, 267, 267, 1)];
        assert_eq!(compactor.chain(), chain);
        assert_eq!(compactor.take_deletable(usize::MAX, Mono::default()).len(), 31);
    }

    #[test]
    fn heavy_deltas_cause_a_snapshot() {
        let mut chain = vec![file(9, 1, 10, 50)];
        chain.extend((11..=26).map(|n| file(0, n, n, 100)));
        let mut compactor = Compactor::new(chain, vec![], Micros::ZERO, Mono::default());
        assert_eq!(compactor.next(1_599), Some(Job { level: 9, min: Txid::new(1) }));
        compactor.on_failed();
        assert_eq!(compactor.next(1_600), Some(Job { level: 1, min: Txid::new(11) }));
    }

    #[test]
    fn superseded_files_are_kept_for_the_retention() {
        let (second, at) = (Micros::from_secs(1), |s: u64| Mono::from_micros(s * 1_000_000));
        let chain = (1..=16).map(|n| file(0, n, n, 9)).collect();
        let left = vec![file(0, 1, 3, 9)];
        let mut compactor = Compactor::new(chain, left.clone(), second, at(10));
        compactor.next(1_000_000).expect("16 segments");
        compactor.on_written(file(9, 1, 16, 9), at(11));
        assert_eq!(compactor.take_deletable(100, at(10)), vec![]);
        assert_eq!(compactor.take_deletable(100, at(11)), left);
        assert_eq!(compactor.take_deletable(10, at(12)).len(), 10);
        assert_eq!(compactor.take_deletable(10, at(12)).len(), 6);
    }

    #[test]
    #[should_panic(expected = "segments are uploaded in order")]
    fn a_segment_that_leaves_a_gap_stops_the_process() {
        let mut compactor = Compactor::new(vec![], vec![], Micros::ZERO, Mono::default());
        compactor.on_segment(file(0, 2, 2, 1));
    }
}
