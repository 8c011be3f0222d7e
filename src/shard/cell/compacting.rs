//! Files of a cell are merged while it lives, so that a restore reads tens of objects.
//!
//! Invariant: files are deleted only after the one that covers them is in the bucket and a later
//! read of `own.json` has still named this session at this epoch.

use std::rc::Rc;

use celld_core::compaction::Job;
use celld_core::ownership::Record;
use celld_core::plan::LtxFile;
use celld_core::time::Wall;
use celld_core::txid::Txid;
use celld_rt as rt;
use celld_s3::Writer;

use super::{Cell, Live, Phase};
use crate::shard::{Shard, now};
use crate::storage::Segment;

/// Merges of one shard at a time: each holds some parts of its file in memory.
const AT_ONCE_MAX: usize = 2;
/// Stores take little more in one object that is sent in parts. A larger cell keeps its files.
const FILE_BYTES_MAX: u64 = 64 << 30;
/// Pages between two looks at the rest of the shard: half a millisecond.
const PAGES_AT_ONCE: usize = 64;
/// Bytes that are collected before they are handed on.
const WRITE_BYTES: usize = 1 << 20;
/// Keys deleted after one merge; what is left goes with the next.
const DELETES_MAX: usize = 1_000;

impl Cell {
    /// To be called right after a segment was encoded: begins a merge if one is due.
    pub(super) fn compact_if_due(self: &Rc<Self>) {
        let Some(shard) = self.shard.upgrade() else { return };
        if shard.compactions.get() >= AT_ONCE_MAX {
            return;
        }
        let (life, job, max) = {
            let mut state = self.state.borrow_mut();
            let life = state.life;
            let Phase::Live(live) = &mut state.phase else { return };
            let bytes = live.store.database_bytes();
            if bytes > FILE_BYTES_MAX {
                return;
            }
            let Some(job) = live.compactor.next(bytes) else { return };
            match live.store.begin_compaction(job.min, wall()) {
                Ok(max) => (life, job, max),
                Err(error) => {
                    live.compactor.on_failed();
                    return rt::log!("celld: cell {}: files are not merged: {error}", self.id);
                }
            }
        };
        let permit = Permit::take(&shard);
        let cell = self.clone();
        self.spawn(async move {
            if let Err(why) = cell.compact(&shard, life, job, max).await {
                if !why.is_empty() {
                    rt::log!("celld: cell {}: files are not merged: {why}", cell.id);
                }
                cell.with_live(life, |live| {
                    live.store.abandon_compaction();
                    live.compactor.on_failed();
                });
            }
            drop(permit);
        });
    }

    /// An empty error: the cell has left memory.
    async fn compact(
        &self,
        shard: &Rc<Shard>,
        life: u64,
        job: Job,
        max: Txid,
    ) -> Result<(), String> {
        let gone = String::new;
        let token = self.with_live(life, |live| live.token.clone()).ok_or_else(gone)?;
        let Job { level, min } = job;
        let mut file = LtxFile { epoch: token.epoch, level, min, max, bytes: 0 };
        let counted = self.uploads();
        let writer = shard.bucket.writer(&file.key(&self.id)).await;
        let mut writer = writer.map_err(|error| error.to_string())?;
        file.bytes = self.write_file(life, &mut writer).await?.bytes_len;
        writer.finish().await.map_err(|error| error.to_string())?;
        drop(counted);
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
            rt::log!("celld: cell {}: merged files are not deleted: {error}", self.id);
        }
        Ok(())
    }

    async fn write_file(&self, life: u64, writer: &mut Writer) -> Result<Segment, String> {
        let mut bytes = Vec::new();
        loop {
            let step =
                self.with_live(life, |live| live.store.compaction_step(PAGES_AT_ONCE, &mut bytes));
            let whole = step.ok_or_else(String::new)?.map_err(|error| error.to_string())?;
            if whole.is_some() || bytes.len() >= WRITE_BYTES {
                let written = writer.write(std::mem::take(&mut bytes).into()).await;
                written.map_err(|error| error.to_string())?;
            }
            match whole {
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

/// One of the merges of a shard.
struct Permit(Rc<Shard>);

impl Permit {
    fn take(shard: &Rc<Shard>) -> Self {
        shard.compactions.set(shard.compactions.get() + 1);
        Self(shard.clone())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.compactions.set(self.0.compactions.get() - 1);
    }
}

fn wall() -> Wall {
    Wall::from_millis(rt::wall_ms())
}
