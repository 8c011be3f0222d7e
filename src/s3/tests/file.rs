//! The contract of all stores, on the file dialect.

mod contract;

use std::rc::Rc;

use bytes::Bytes;
use celld_s3::{Bucket, Rule, probe};
use contract::{Variations, counter, races};

#[test]
fn a_directory_keeps_the_contract() {
    let directory = tempfile::tempdir().expect("a directory");
    let bucket = Bucket::open_dir(directory.path()).expect("a new bucket");
    celld_rt::block_on(contract::all(&bucket, "contract/", Variations::default()));
}

#[test]
fn of_many_at_once_one_wins_and_a_counter_counts_each_increment_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let bucket = Bucket::open_dir(directory.path()).expect("a new bucket");
    celld_rt::block_on(async {
        races::all(&bucket, "races/", 4).await;
        let account = Rc::new(counter::Account::default());
        counter::start(&bucket, "counter").await;
        let workers: Vec<_> = (0..8)
            .map(|_| {
                counter::work(bucket.clone(), "counter".to_owned(), account.clone(), |account| {
                    account.applied() < 100
                })
            })
            .map(celld_rt::spawn_joined)
            .collect();
        for worker in workers {
            worker.join().await.expect("no panic");
        }
        assert_eq!(account.check(&bucket, "counter").await, [""; 0]);
        assert_eq!((account.unknown.get(), account.errors.borrow().len()), (0, 0));
        assert!(account.applied() >= 100);
        // It sees an increment that is lost, and one that nobody sent.
        counter::start(&bucket, "counter").await;
        assert_eq!(account.check(&bucket, "counter").await.len(), account.applied());
        bucket.put("counter", Bytes::from("start\n999999\n")).await.expect("a write");
        assert_eq!(account.check(&bucket, "counter").await.len(), account.applied() + 1);
    });
}

#[test]
fn the_probe_passes_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}/a%20b", directory.path().display());
    let bucket = Bucket::open(&url).expect("a new bucket");
    assert_eq!(bucket.to_string(), url);
    celld_rt::block_on(async {
        let report = probe(&bucket).await;
        let rules: Vec<_> = report.checks.iter().map(|check| check.rule).collect();
        assert_eq!(rules, Rule::ALL);
        assert!(report.checks.iter().all(|check| check.attempts == 1), "{report:?}");
        report.verdict().expect("a store that can fence");
        assert!(bucket.list("", None).await.expect("a page").entries.is_empty());
    });
    assert!(!directory.path().join("a b/probe@").exists());
}

#[test]
fn two_openings_of_one_directory_are_one_bucket() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || Bucket::open_dir(directory.path()).expect("the bucket");
    let (one, two) = (open(), open());
    celld_rt::block_on(async {
        one.put("a/b", Bytes::from("x")).await.expect("a write");
        let seen = two.get("a/b").await.expect("a read").expect("an object");
        assert_eq!(seen.body, "x");
        drop(one);
        assert!(two.put("a/c", seen.body).await.is_ok());
        assert_eq!(open().list("a/", None).await.expect("a page").entries.len(), 2);
    });
}
