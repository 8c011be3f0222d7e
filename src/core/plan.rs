//! Which files of a cell, applied one after the other, give its database.
//!
//! Invariant: a plan is contiguous from nothing to the last commit that any admitted file covers,
//! and reaches the record's base; otherwise there is no plan. Where files compete for the same
//! last commit, the highest epoch wins: only a stale owner can have written the other.
//! Units: TXIDs; a file covers `min..=max` and follows the state at `min - 1`.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::cell::CellId;
use crate::epoch::Epoch;
use crate::ownership::Base;
use crate::txid::Txid;

/// One LTX file, as its key and the listing tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LtxFile {
    /// Whose owner wrote it.
    pub epoch: Epoch,
    /// 0: a segment as it was committed; above: compacted.
    pub level: u8,
    /// First TXID covered.
    pub min: Txid,
    /// Last TXID covered.
    pub max: Txid,
    /// Bytes of the object.
    pub bytes: u64,
}

/// What to apply, in this order, and what the listing had besides.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// To apply, in order. Empty: the cell has no commits.
    pub files: Vec<LtxFile>,
    /// Files of the cell's history that the chosen ones make superfluous.
    pub superseded: Vec<LtxFile>,
    /// Keys that do not count, each with the reason. Worth a line in the log: none of them is
    /// written by a node that works as it should and is alone.
    pub strays: Vec<Stray>,
}

/// A key that does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The whole key.
    pub key: String,
    /// Why.
    pub reason: StrayReason,
}

/// Why a key does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrayReason {
    /// Not a name that this version writes.
    UnknownName,
    /// Written by an owner after the cell had been taken from it.
    StaleOwner,
    /// Of an epoch after the one that restores: somebody else owns the cell by now.
    LaterEpoch,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Commits that must exist have no file.
    #[error(
        "commits are missing: the files reach TXID {reached}, but the cell must reach {needed}{}",
        Behind(.needed, .base)
    )]
    Gap {
        /// Everything up to here can be restored.
        reached: Txid,
        /// The last commit that a file or the record names.
        needed: Txid,
        /// What the ownership record names.
        base: Txid,
    },
}

struct Behind<'a>(&'a Txid, &'a Txid);

impl core::fmt::Display for Behind<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let by = if self.0 == self.1 { "its ownership record" } else { "a later file" };
        write!(f, " (known from {by})")
    }
}

impl LtxFile {
    /// Reads a key of `cell`. `None`: not one that [`CellId::ltx_key`] makes.
    pub fn parse(cell: &CellId, key: &str, bytes: u64) -> Option<Self> {
        let name = key.strip_prefix(cell.ltx_prefix().as_str())?;
        let (epoch, rest) = name.strip_prefix('e')?.split_once('/')?;
        let (level, rest) = rest.split_once('/')?;
        let (min, max) = rest.strip_suffix(".ltx")?.split_once('-')?;
        let level = match level.as_bytes() {
            [digit @ b'0'..=b'9'] => digit - b'0',
            _ => return None,
        };
        let (min, max) = (Txid::parse(min)?, Txid::parse(max)?);
        let covers = Txid::ZERO < min && min <= max;
        covers.then_some(Self { epoch: Epoch::parse(epoch)?, level, min, max, bytes })
    }

    /// Its key.
    pub fn key(&self, cell: &CellId) -> String {
        cell.ltx_key(self.epoch, self.level, self.min, self.max)
    }

    /// The state that it continues.
    pub fn follows(&self) -> Txid {
        Txid::new(self.min.get() - 1)
    }
}

/// Chooses the files. `listing`: every key below the cell's LTX prefix, with its size. `base`: of
/// the ownership record that was read before the listing. `limit`: the epoch that restores.
///
/// # Errors
/// The admitted files leave a gap, or do not reach the base.
pub fn plan<'a>(
    cell: &CellId,
    listing: impl IntoIterator<Item = (&'a str, u64)>,
    base: Base,
    limit: Epoch,
) -> Result<Plan, PlanError> {
    let (mut files, mut strays) = (Vec::new(), Vec::new());
    for (key, bytes) in listing {
        let reason = match LtxFile::parse(cell, key, bytes) {
            None => StrayReason::UnknownName,
            Some(file) if file.epoch > limit => StrayReason::LaterEpoch,
            Some(file) if !base.admits(file.epoch, file.max) => StrayReason::StaleOwner,
            Some(file) => {
                files.push(file);
                continue;
            }
        };
        strays.push(Stray { key: key.to_owned(), reason });
    }
    let (files, superseded) = choose(files, base.txid)?;
    Ok(Plan { files, superseded, strays })
}

/// What it costs to reach a position: objects first, as each is a request, then bytes.
type Cost = (usize, u64);

/// The chosen ones in order, and the others.
type Choice = (Vec<LtxFile>, Vec<LtxFile>);

fn choose(mut files: Vec<LtxFile>, base: Txid) -> Result<Choice, PlanError> {
    let needed = files.iter().map(|file| file.max).fold(base, Txid::max);
    files.sort_by_key(|file| (file.max, file.min));
    // Cheapest way to each position that can be reached at all.
    let mut costs = BTreeMap::from([(Txid::ZERO, (0, 0))]);
    for file in &files {
        let Some(cost) = cost_with(&costs, file) else { continue };
        let known = costs.entry(file.max).or_insert(cost);
        *known = cost.min(*known);
    }
    if !costs.contains_key(&needed) {
        let reached = costs.last_key_value().map_or(Txid::ZERO, |(&txid, _)| txid);
        return Err(PlanError::Gap { reached, needed, base });
    }
    // From the end, so that the newest owner is asked first what it continued.
    let (mut chosen, mut at) = (Vec::new(), needed);
    while at > Txid::ZERO {
        let start = files.partition_point(|file| file.max < at);
        let ending = (start..).zip(&files[start..]).take_while(|(_, file)| file.max == at);
        let ways = ending.filter_map(|(n, file)| Some((n, file, cost_with(&costs, file)?)));
        let best = ways.min_by_key(|&(_, file, cost)| (Reverse(file.epoch), cost));
        let (n, file, _) = best.expect("a position has a cost because a file reaches it");
        at = file.follows();
        chosen.push(n);
    }
    let mut plan = Vec::with_capacity(chosen.len());
    let mut others = Vec::new();
    for (n, file) in files.into_iter().enumerate() {
        if chosen.last() == Some(&n) {
            chosen.pop();
            plan.push(file);
        } else {
            others.push(file);
        }
    }
    Ok((plan, others))
}

fn cost_with(costs: &BTreeMap<Txid, Cost>, file: &LtxFile) -> Option<Cost> {
    let (objects, bytes) = costs.get(&file.follows())?;
    Some((objects + 1, bytes.saturating_add(file.bytes)))
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::{format, vec};

    use super::*;

    fn cell() -> CellId {
        CellId::new("app.Room", &"0a".repeat(32)).expect("a good name")
    }

    fn epoch(n: u64) -> Epoch {
        Epoch::from_record(n).expect("not zero")
    }

    /// Each file is (epoch, level, min, max).
    fn planned(
        files: &[(u64, u8, u64, u64)],
        base: (u64, u64),
        limit: u64,
    ) -> Result<Vec<(u64, u8, u64, u64)>, PlanError> {
        let key = |&(e, level, min, max): &(u64, u8, u64, u64)| {
            cell().ltx_key(epoch(e), level, Txid::new(min), Txid::new(max))
        };
        let keys: Vec<_> = files.iter().map(key).collect();
        let base = Base { epoch: epoch(base.0), txid: Txid::new(base.1) };
        let listing = keys.iter().map(|key| (key.as_str(), 1_000));
        let plan = plan(&cell(), listing, base, epoch(limit))?;
        let short = |f: &LtxFile| (f.epoch.get(), f.level, f.min.get(), f.max.get());
        Ok(plan.files.iter().map(short).collect())
    }

    #[test]
    fn a_cell_without_commits_has_an_empty_plan() {
        assert_eq!(planned(&[], (1, 0), 1), Ok(vec![]));
    }

    #[test]
    fn segments_follow_each_other_across_epochs() {
        let files = [(1, 0, 1, 3), (1, 0, 4, 4), (2, 0, 5, 9)];
        assert_eq!(planned(&files, (2, 4), 3), Ok(files.to_vec()));
    }

    #[test]
    fn late_segments_of_a_stale_owner_do_not_count() {
        // Owner 1 uploads 4 and 5 after owner 2 began at 3; owner 2 wrote 4, and then nothing.
        let files = [(1, 0, 1, 3), (1, 0, 4, 4), (1, 0, 5, 5), (2, 0, 4, 4)];
        assert_eq!(planned(&files, (2, 3), 3), Ok(vec![(1, 0, 1, 3), (2, 0, 4, 4)]));
        assert_eq!(planned(&files[..3], (2, 3), 3), Ok(vec![(1, 0, 1, 3)]));
    }

    #[test]
    fn late_segments_below_a_later_base_lose_against_the_higher_epoch() {
        let files = [(1, 0, 1, 3), (1, 0, 4, 6), (2, 0, 4, 4), (2, 0, 5, 6), (3, 0, 7, 7)];
        let plan = vec![(1, 0, 1, 3), (2, 0, 4, 4), (2, 0, 5, 6), (3, 0, 7, 7)];
        assert_eq!(planned(&files, (3, 6), 4), Ok(plan));
    }

    #[test]
    fn a_gap_is_an_error_and_names_both_ends() {
        let error = planned(&[(1, 0, 1, 3), (1, 0, 5, 6)], (1, 0), 2).expect_err("4 is missing");
        let (reached, needed) = (Txid::new(3), Txid::new(6));
        assert_eq!(error, PlanError::Gap { reached, needed, base: Txid::ZERO });
        assert_eq!(
            error.to_string(),
            "commits are missing: the files reach TXID 0000000000000003, but the cell must \
             reach 0000000000000006 (known from a later file)"
        );
    }

    #[test]
    fn files_that_do_not_reach_the_base_are_an_error() {
        let error = planned(&[(1, 0, 1, 3)], (2, 5), 2).expect_err("4 and 5 are missing");
        let (reached, needed) = (Txid::new(3), Txid::new(5));
        assert_eq!(error, PlanError::Gap { reached, needed, base: needed });
        let text = error.to_string();
        assert!(text.ends_with("(known from its ownership record)"), "{text}");
        planned(&[], (2, 1), 2).expect_err("everything is missing");
        planned(&[(1, 0, 2, 3)], (2, 3), 2).expect_err("the first commit is missing");
    }

    #[test]
    fn compacted_files_are_taken_where_they_shorten_the_plan() {
        let mut files: Vec<_> = (1..=64).map(|n| (1, 0, n, n)).collect();
        files.extend([(1, 1, 1, 32), (1, 1, 33, 64)]);
        assert_eq!(planned(&files, (1, 0), 2), Ok(vec![(1, 1, 1, 32), (1, 1, 33, 64)]));
        files.extend([(1, 9, 1, 48), (1, 0, 65, 65)]);
        let with_snapshot = planned(&files, (1, 0), 2).expect("a plan");
        assert_eq!(with_snapshot, [(1, 1, 1, 32), (1, 1, 33, 64), (1, 0, 65, 65)]);
        files.push((1, 9, 1, 65));
        assert_eq!(planned(&files, (1, 0), 2), Ok(vec![(1, 9, 1, 65)]));
    }

    #[test]
    fn a_compaction_that_was_half_cleaned_up_still_gives_a_plan() {
        // 1..=4 were compacted and 1, 2 already deleted; 5..=8 were about to be.
        let files = [(1, 0, 3, 3), (1, 0, 4, 4), (1, 1, 1, 4), (1, 0, 5, 6), (1, 0, 7, 8)];
        let plan = vec![(1, 1, 1, 4), (1, 0, 5, 6), (1, 0, 7, 8)];
        assert_eq!(planned(&files, (1, 0), 2), Ok(plan));
    }

    #[test]
    fn overlaps_that_lead_nowhere_are_left_out() {
        let files = [(1, 0, 1, 3), (1, 1, 3, 5), (1, 0, 4, 5), (1, 1, 2, 5), (1, 0, 6, 6)];
        let plan = vec![(1, 0, 1, 3), (1, 0, 4, 5), (1, 0, 6, 6)];
        assert_eq!(planned(&files, (1, 0), 2), Ok(plan));
    }

    #[test]
    fn what_the_chosen_files_cover_is_superseded() {
        let keys = [(0, 1, 3), (0, 4, 4), (1, 1, 4), (0, 5, 5)].map(|(level, min, max)| {
            cell().ltx_key(epoch(1), level, Txid::new(min), Txid::new(max))
        });
        let listing = keys.iter().map(|key| (key.as_str(), 9));
        let plan = plan(&cell(), listing, Base::ORIGIN, epoch(2)).expect("a plan");
        let superseded: Vec<_> = plan.superseded.iter().map(|file| file.key(&cell())).collect();
        assert_eq!(superseded, keys[..2]);
    }

    #[test]
    fn forty_thousand_commits_are_planned_from_their_levels() {
        let mut files: Vec<_> = (1..=40_000).map(|n| (1, 0, n, n)).collect();
        files.extend((0..1_250).map(|n| (1, 1, n * 32 + 1, n * 32 + 32)));
        files.extend((0..39).map(|n| (1, 2, n * 1_024 + 1, n * 1_024 + 1_024)));
        let plan = planned(&files, (1, 0), 2).expect("a plan");
        assert_eq!(plan.len(), 39 + 2, "{plan:?}");
    }

    #[test]
    fn strays_are_told_apart() {
        let prefix = cell().ltx_prefix();
        let good = cell().ltx_key(epoch(2), 0, Txid::new(1), Txid::new(3));
        let unknown = [
            "snapshot.ltx",
            "e2/0/0000000000000001-0000000000000003.ltx",
            "e0000000000000002/10/0000000000000001-0000000000000003.ltx",
            "e0000000000000002/0/0000000000000003-0000000000000001.ltx",
            "e0000000000000002/0/0000000000000000-0000000000000001.ltx",
            "e0000000000000000/0/0000000000000001-0000000000000001.ltx",
            "e0000000000000002/0/0000000000000001-0000000000000003.ltx.tmp",
            "e0000000000000002/0/000000000000000A-000000000000000B.ltx",
        ];
        let mut keys: Vec<_> = unknown.iter().map(|name| format!("{prefix}{name}")).collect();
        keys.push(cell().ltx_key(epoch(1), 0, Txid::new(1), Txid::new(4)));
        keys.push(cell().ltx_key(epoch(3), 0, Txid::new(4), Txid::new(4)));
        keys.push(good.clone());
        let listing = keys.iter().map(|key| (key.as_str(), 7));
        let base = Base { epoch: epoch(2), txid: Txid::new(3) };
        let plan = plan(&cell(), listing, base, epoch(2)).expect("a plan");
        assert_eq!(plan.files.iter().map(|f| f.key(&cell())).collect::<Vec<_>>(), [good]);
        let reasons: Vec<_> = plan.strays.iter().map(|stray| stray.reason).collect();
        let mut expected = vec![StrayReason::UnknownName; unknown.len()];
        expected.extend([StrayReason::StaleOwner, StrayReason::LaterEpoch]);
        assert_eq!(reasons, expected);
    }
}
