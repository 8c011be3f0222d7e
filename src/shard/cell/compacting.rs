//! Files of a cell are merged while it lives, so that a restore reads tens of objects.
//!
//! Invariant: files are deleted only after the one that covers them is in the bucket and a later
//! read of `own.json` has still named this session at this epoch.

use std::rc::Rc;

use bytes::Bytes;
use celld_core::compaction::Job;
use celld_core::ownership::Record;
use celld_core::plan::LtxFile;
use celld_core::time::Wall;
use celld_rt as rt;

use super::{Cell, Live, Phase};
use crate::shard::{Shard, now};
use crate::storage::Segment;

/// Merges of one shard at a time: each holds its file in memory.
const AT_ONCE_MAX: usize = 2;
/// Larger snapshots would have to be uploaded in parts; until then such a cell keeps its files.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Pages between two looks at the rest of the shard: half a millisecond.
const PAGES_AT_ONCE: usize = 64;
/// Keys deleted after one merge; what is left goes with the next.
const DELETES_MAX: usize = 1_000;

impl Cell {
    /// To be called right after a segment was encoded: begins a merge if one is due.
    pub(super) fn compact_if_due(self: &Rc<Self>) {
        let Some(shard) = self.shard.upgrade() else { return };
        if shard.compactions.get() >= AT_ONCE_MAX {
            return;
        }
        let (life, job) = {
            let mut state = self.state.borrow_mut();
            let life = state.life;
            let Phase::Live(live) = &mut state.phase else { return };
            let bytes = live.store.database_bytes();
            if bytes > FILE_BYTES_MAX {
                return;
            }
            let Some(job) = live.compactor.next(bytes) else { return };
            if let Err(error) = live.store.begin_compaction(job.min, wall()) {
                live.compactor.on_failed();
                return eprintln!("celld: cell {}: files are not merged: {error}", self.id);
            }
            (life, job)
        };
        shard.compactions.set(shard.compactions.get() + 1);
        let cell = self.clone();
        rt::spawn(async move {
            if let Err(why) = cell.compact(&shard, life, job).await {
                if !why.is_empty() {
                    eprintln!("celld: cell {}: files are not merged: {why}", cell.id);
                }
                cell.with_live(life, |live| {
                    live.store.abandon_compaction();
                    live.compactor.on_failed();
                });
            }
            shard.compactions.set(shard.compactions.get() - 1);
        });
    }

    /// An empty error: the cell has left memory.
    async fn compact(&self, shard: &Rc<Shard>, life: u64, job: Job) -> Result<(), String> {
        let gone = String::new;
        let mut bytes = Vec::new();
        let segment = self.encode_file(life, &mut bytes).await?;
        let token = self.with_live(life, |live| live.token.clone()).ok_or_else(gone)?;
        let Segment { min, max, bytes_len, .. } = segment;
        let file = LtxFile { epoch: token.epoch, level: job.level, min, max, bytes: bytes_len };
        let counted = self.uploads();
        let put = shard.bucket.put(&file.key(&self.id), Bytes::from(bytes)).await;
        drop(counted);
        put.map_err(|error| error.to_string())?;
        let read = shard.bucket.get(&self.id.own_key()).await.map_err(|error| error.to_string())?;
        let record = read.and_then(|object| Record::parse(&object.body, &self.id).ok());
        if !record.is_some_and(|record| record.is_of(&token)) {
            return Err("the cell has another owner".into());
        }
        let old = self.with_live(life, |live| {
            live.compactor.on_written(file, now());
            live.store.forget_boundaries(min, max);
            live.compactor.take_deletable(DELETES_MAX, now())
        });
        let keys: Vec<String> = old.ok_or_else(gone)?.iter().map(|f| f.key(&self.id)).collect();
        if let Err(error) = shard.bucket.delete(&keys).await {
            // The next restore finds them again, as superseded.
            eprintln!("celld: cell {}: merged files are not deleted: {error}", self.id);
        }
        Ok(())
    }

    async fn encode_file(&self, life: u64, out: &mut Vec<u8>) -> Result<Segment, String> {
        loop {
            let step = self.with_live(life, |live| live.store.compaction_step(PAGES_AT_ONCE, out));
            match step.ok_or_else(String::new)?.map_err(|error| error.to_string())? {
                Some(segment) => return Ok(segment),
                None => rt::yield_now().await,
            }
        }
    }

    /// `None`: that life of the cell is over.
    fn with_live<R>(&self, life: u64, act: impl FnOnce(&mut Live) -> R) -> Option<R> {
        let mut state = self.state.borrow_mut();
        if state.life != life {
            return None;
        }
        match &mut state.phase {
            Phase::Live(live) => Some(act(live)),
            Phase::Cold | Phase::Activating | Phase::Leaving => None,
        }
    }
}

fn wall() -> Wall {
    Wall::from_millis(rt::wall_ms())
}
