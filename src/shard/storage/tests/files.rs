//! The files of a cell: merged, read again, from the bucket too, and refused when they are not its own.

use celld_core::epoch::Epoch;
use celld_core::ltx::{Item, Pages};
use celld_core::ownership::Base;

use super::*;
use crate::storage::restore::{RestoreError, Restored, restore};

#[test]
fn a_compacted_file_replaces_the_files_that_it_covers() {
    let mut bench = Bench::new();
    bench.run("CREATE TABLE t(id INTEGER PRIMARY KEY, b)");
    bench.encode();
    for n in 0..20 {
        bench.run(&format!("INSERT INTO t VALUES ({n}, randomblob(9000))"));
        bench.encode();
    }
    bench.run("DELETE FROM t WHERE id = 3; VACUUM");
    bench.encode();
    for min in [1_u64, 2, 7] {
        let mut file = vec![];
        bench.store.begin_compaction(Txid::new(min), NOW).expect("a boundary");
        let segment = bench.store.compaction_step(usize::MAX, &mut file).expect("pages");
        let segment = segment.expect("one step was enough");
        assert_eq!((segment.min, segment.max), (Txid::new(min), Txid::new(22)));
        let mut files = bench.files[..min as usize - 1].to_vec();
        files.push(file);
        let image = restored(bench.place(), &files);
        assert!(bytes_of(&image) == bytes_of(&bench.store.shared.borrow().image), "from {min}");
    }
    let at = |min| Txid::new(min);
    bench.store.forget_boundaries(at(7), at(22));
    let gone = bench.store.begin_compaction(at(9), NOW);
    assert!(matches!(gone, Err(StorageError::NoBoundary(_))), "{gone:?}");
    bench.store.begin_compaction(at(7), NOW).expect("the beginning is still known");
    bench.run("INSERT INTO t VALUES (99, 1)");
    let pending = bench.store.begin_compaction(at(7), NOW);
    assert!(matches!(pending, Err(StorageError::Pending)), "{pending:?}");
}

#[test]
fn a_file_made_in_steps_shows_the_database_at_its_start() {
    for memory in [MEMORY_BYTES_MAX, 64 << 10] {
        let mut bench = Bench::with_memory(memory);
        bench.run("CREATE TABLE t(id INTEGER PRIMARY KEY, b)");
        for n in 0..60 {
            bench.run(&format!("INSERT INTO t VALUES ({n}, randomblob(9000))"));
        }
        bench.encode();
        let then = bytes_of(&bench.store.shared.borrow().image);
        bench.store.begin_compaction(Txid::new(1), NOW).expect("a snapshot");
        let mut snapshot = vec![];
        let mut n = 0;
        while bench.store.compaction_step(7, &mut snapshot).expect("a step").is_none() {
            n += 1;
            match n {
                3 => bench.run("DELETE FROM t WHERE id > 20; VACUUM"),
                5 => bench.run("INSERT INTO t(b) VALUES (randomblob(400000))"),
                _ => bench.run(&format!("UPDATE t SET b = zeroblob({n}) WHERE id = {n}")),
            }
            bench.encode();
        }
        assert!(n > 10, "{n} steps");
        let image = restored(bench.place(), &[snapshot]);
        assert!(bytes_of(&image) == then);
        bench.assert_restores();
    }
}

#[test]
fn files_of_another_history_or_damaged_ones_are_refused() {
    let mut bench = Bench::new();
    let mut other = Bench::new();
    for n in 0..3 {
        bench.run(&format!("CREATE TABLE t{n}(a)"));
        other.run(&format!("CREATE TABLE u{n}(a)"));
        bench.encode();
        other.encode();
    }
    let refuse = |files: &[&[u8]], why: &str| {
        let mut applier = Applier::new(Image::new(bench.place()));
        let mut apply = || {
            for file in files {
                applier.feed(file)?;
                applier.end_file()?;
            }
            Ok::<(), super::restore::FileError>(())
        };
        let text = apply().expect_err(why).to_string();
        assert!(text.contains(why), "{text}");
    };
    let [a, b, c] = &bench.files[..] else { panic!("three files") };
    refuse(&[a, &other.files[1]], "checksum");
    let mut foreign = Applier::new(Image::new(Place { tag: 1, ..bench.place() }));
    let error = foreign.feed(a).expect_err("another cell's").to_string();
    assert!(error.contains("of another cell"), "{error}");
    refuse(&[a, c], "follows TXID");
    refuse(&[b], "follows TXID");
    refuse(&[a, a], "follows TXID");
    refuse(&[&a[..a.len() - 1]], "ends here");
    refuse(&[a, &[&b[..], b"x"].concat()], "after its trailer");
    let mut at = Pages::new(b).expect("a file");
    assert!(matches!(at.next_item(), Ok(Item::Page(..))));
    let mut wrong = b.clone();
    let half = wrong.len() / 2;
    wrong[half] ^= 0x10;
    refuse(&[a, &wrong], "of the LTX file");
}

/// A cell whose files lie in a bucket.
struct Stored {
    bench: Bench,
    bucket: celld_s3::Bucket,
    cell: CellId,
}

const LIMIT: Epoch = Epoch::FIRST.next();

impl Stored {
    async fn with_commits(commits: u64) -> Self {
        let bench = Bench::new();
        let bucket =
            celld_s3::Bucket::open_dir(&bench.dir.path().join("bucket")).expect("a bucket");
        bench.run("CREATE TABLE t(id INTEGER PRIMARY KEY, b)");
        let mut stored = Self { bench, bucket, cell: cell() };
        for n in 1..=commits {
            stored.bench.run(&format!("INSERT INTO t VALUES ({n}, randomblob(2000))"));
            stored.upload_pending().await;
        }
        stored
    }

    async fn upload_pending(&mut self) -> String {
        let segment = self.bench.encode();
        let file = self.bench.files.last().expect("a file").clone();
        self.upload(0, segment, file).await
    }

    async fn upload(&self, level: u8, segment: Segment, file: Vec<u8>) -> String {
        let key = self.cell.ltx_key(Epoch::FIRST, level, segment.min, segment.max);
        self.bucket.put(&key, file.into()).await.expect("an upload");
        key
    }

    async fn restore(&self, base: u64) -> Result<Restored, RestoreError> {
        let base = Base { epoch: Epoch::FIRST, txid: Txid::new(base) };
        restore(&self.bucket, &self.cell, base, LIMIT, self.bench.place()).await
    }

    async fn assert_restores(&self) -> Restored {
        let txid = self.bench.store.txid().get();
        let restored = self.restore(txid).await.expect("a database");
        let live = bytes_of(&self.bench.store.shared.borrow().image);
        assert!(bytes_of(&restored.image) == live);
        assert_eq!(restored.image.position(), self.bench.store.encoded());
        restored
    }
}

#[test]
fn a_cell_is_restored_from_the_bucket_and_goes_on() {
    celld_rt::block_on(async {
        let mut stored = Stored::with_commits(40).await;
        let restored = stored.assert_restores().await;
        assert_eq!(restored.files.len(), 40);
        // The next owner continues: its segment follows the restored ones.
        let (store, db) = CellStore::open(restored.image).expect("the cell");
        (stored.bench.store, stored.bench.db) = (store, db);
        stored.bench.run("DELETE FROM t WHERE id % 2 = 0");
        stored.upload_pending().await;
        let min = Txid::new(5);
        let mut file = vec![];
        stored.bench.store.begin_compaction(min, NOW).expect("a boundary of the old owner");
        let made = stored.bench.store.compaction_step(usize::MAX, &mut file).expect("pages");
        stored.upload(1, made.expect("one step"), file).await;
        let restored = stored.assert_restores().await;
        assert_eq!((restored.files.len(), restored.superseded.len()), (5, 37));
        let keys: Vec<_> = restored.superseded.iter().map(|old| old.key(&stored.cell)).collect();
        stored.bucket.delete(&keys).await.expect("deletion");
        assert_eq!(stored.assert_restores().await.superseded, []);
    });
}

#[test]
fn a_cell_without_files_is_empty_only_if_its_record_says_so() {
    celld_rt::block_on(async {
        let stored = Stored::with_commits(0).await;
        let restored = stored.restore(0).await.expect("an empty cell");
        assert_eq!((restored.image.pages(), restored.files.len()), (0, 0));
        let lost = stored.restore(1).await.err().expect("a commit is missing");
        assert!(matches!(lost, RestoreError::Plan { .. }), "{lost}");
    });
}

#[test]
fn damaged_cut_swapped_and_missing_files_are_errors_with_their_key() {
    celld_rt::block_on(async {
        let mut stored = Stored::with_commits(4).await;
        let key = stored.upload_pending_row().await;
        let good = stored.bucket.get(&key).await.expect("a read").expect("a file").body;
        let other = stored.bench.files[2].clone();
        let mut changed = good.to_vec();
        let middle = changed.len() / 2;
        changed[middle] ^= 4;
        let cases = [changed, good[..good.len() - 3].to_vec(), vec![], other, b"LTX?".to_vec()];
        for bad in cases {
            stored.bucket.put(&key, bad.into()).await.expect("an upload");
            let error = stored.restore(5).await.err().expect("a bad file");
            assert!(matches!(&error, RestoreError::File { key: k, .. } if *k == key), "{error}");
            assert!(error.to_string().contains(&key), "{error}");
        }
        stored.bucket.delete(std::slice::from_ref(&key)).await.expect("deletion");
        let error = stored.restore(5).await.err().expect("a missing file");
        assert!(matches!(error, RestoreError::Plan { .. }), "{error}");
        stored.bucket.put(&key, good).await.expect("an upload");
        stored.assert_restores().await;
    });
}

impl Stored {
    async fn upload_pending_row(&mut self) -> String {
        self.bench.run("INSERT INTO t(b) VALUES (randomblob(9000))");
        self.upload_pending().await
    }
}

/// One file that is read in several pieces, and many small ones.
#[test]
fn large_snapshots_are_read_in_pieces() {
    celld_rt::block_on(async {
        let mut stored = Stored::with_commits(1).await;
        stored.bench.run("INSERT INTO t(b) VALUES (randomblob(9000000))");
        stored.upload_pending().await;
        let restored = stored.assert_restores().await;
        assert!(restored.files[1].bytes > 8 << 20, "{:?}", restored.files);
        assert!(restored.image.position().txid == Txid::new(2));
    });
}
