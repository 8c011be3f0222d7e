//! The end of a cell's data.
//!
//! Invariant: a file is deleted only after a record stands that says that none of its epoch counts
//! any more. So whoever comes to own the cell meanwhile begins with nothing, at a later epoch, and
//! what a stale owner uploads late is read by nobody. The record itself stays: it keeps the epoch
//! growing.

use std::rc::Rc;

use celld_core::cell::CellId;
use celld_core::claim::Purpose;
use celld_core::epoch::Epoch;
use celld_core::plan::LtxFile;
use celld_s3::{Bucket, StoreError};

use super::{Done, Refused};
use crate::activation::{NotServed, activate};
use crate::fleet::forward::Destination;
use crate::shard::Shard;

/// Purges a cell that nobody has in memory here, if nobody else owns it.
///
/// # Errors
/// It is not purged, or not all its files are deleted; the same may be asked again.
pub(crate) async fn purge(shard: &Rc<Shard>, cell: &CellId) -> Result<Done, Refused> {
    match activate(shard, cell, None, Purpose::Purge).await {
        Err(NotServed::Purged(record)) => delete_files(&shard.bucket, cell, record.epoch).await,
        Err(NotServed::Elsewhere(to)) => Err(owned_elsewhere(cell, &to)),
        Err(NotServed::Failed(why)) => Err(not_had(&why)),
        Err(NotServed::Full) | Ok(_) => unreachable!("a purge ends in no activation"),
    }
}

/// Another node has the cell, or is to have it.
pub(crate) fn owned_elsewhere(cell: &CellId, to: &Destination) -> Refused {
    let node = match to {
        Destination::Owner(route) => &route.owner.node,
        Destination::Placed(node) => node,
    };
    Refused::for_now("not_owner", format!("the cell {cell} is at node {node}"))
}

/// It could not be activated or claimed.
pub(crate) fn not_had(why: &celld_v8host::Failure) -> Refused {
    Refused { code: "unavailable", words: why.message.clone(), retryable: why.retryable }
}

/// Deletes what was written up to this epoch, which no record admits any more.
///
/// # Errors
/// Some of it may be there still. It does not count.
pub(crate) async fn delete_files(
    bucket: &Bucket,
    cell: &CellId,
    upto: Epoch,
) -> Result<Done, Refused> {
    let failed = |error: StoreError| {
        let words = format!(
            "the cell {cell} is empty now, but not all of its old files are deleted: {error}; \
             purge it again to delete the rest"
        );
        Refused::for_now("files_left", words)
    };
    let prefix = cell.ltx_prefix();
    let mut done = Done { epoch: upto, files: 0, bytes: 0 };
    let mut after: Option<String> = None;
    loop {
        let page = bucket.list(&prefix, after.as_deref()).await.map_err(failed)?;
        let is_old = |key: &str, size| {
            // What has another name is none of ours, and goes too.
            LtxFile::parse(cell, key, size).is_none_or(|file| file.epoch <= upto)
        };
        let old = page.entries.iter().filter(|entry| is_old(&entry.key, entry.size));
        let keys: Vec<String> = old.clone().map(|entry| entry.key.clone()).collect();
        bucket.delete(&keys).await.map_err(failed)?;
        done.files += keys.len() as u64;
        done.bytes += old.map(|entry| entry.size).sum::<u64>();
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more || after.is_none() {
            return Ok(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use celld_core::txid::Txid;
    use celld_rt as rt;

    use super::*;

    #[test]
    fn files_of_later_epochs_and_of_other_cells_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let bucket = Bucket::open_dir(dir.path()).expect("a bucket");
        let cell = CellId::new("app.Room", &"0f".repeat(32)).expect("a good name");
        let other = CellId::new("app.Room", &"0e".repeat(32)).expect("a good name");
        let epoch = |n| Epoch::from_record(n).expect("not zero");
        let key = |cell: &CellId, n: u64| cell.ltx_key(epoch(n), 0, Txid::new(n), Txid::new(n));
        rt::block_on(async {
            let put = async |key: String| bucket.put(&key, Bytes::from_static(b"1234")).await;
            let stray = format!("{}rubbish", cell.ltx_prefix());
            for old in [key(&cell, 1), key(&cell, 7), stray, key(&cell, 8), key(&other, 1)] {
                put(old).await.expect("a write");
            }
            put(cell.own_key()).await.expect("a write");
            let done = delete_files(&bucket, &cell, epoch(7)).await.expect("deleted");
            assert_eq!(done, Done { epoch: epoch(7), files: 3, bytes: 12 });
            let left = bucket.list("cells/", None).await.expect("a list").entries;
            let left: Vec<_> = left.into_iter().map(|entry| entry.key).collect();
            assert_eq!(left, [key(&other, 1), key(&cell, 8), cell.own_key()]);
            let again = delete_files(&bucket, &cell, epoch(7)).await.expect("nothing to do");
            assert_eq!((again.files, again.bytes), (0, 0));
        });
    }
}
