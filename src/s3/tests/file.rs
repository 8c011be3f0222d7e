//! The contract of all stores, on the file dialect.

mod contract;

use bytes::Bytes;
use celld_s3::{Bucket, Rule, probe};

#[test]
fn a_directory_keeps_the_contract() {
    let directory = tempfile::tempdir().expect("a directory");
    let bucket = Bucket::open_dir(directory.path()).expect("a new bucket");
    celld_rt::block_on(contract::all(&bucket, "contract/"));
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
