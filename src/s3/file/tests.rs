//! What the file dialect does beyond the contract of all stores.

use super::*;

fn bucket() -> (tempfile::TempDir, FileBucket) {
    let directory = tempfile::tempdir().expect("a directory");
    let bucket = FileBucket::open(directory.path()).expect("a new bucket");
    (directory, bucket)
}

#[test]
fn directories_that_are_empty_go_and_come_back() {
    let (directory, bucket) = bucket();
    for round in 0..3 {
        bucket.put("a/b/c", b"1").expect("a write");
        bucket.put("a/d", b"2").expect("a write");
        bucket.delete(&["a/b/c".into()]).expect("a delete");
        assert!(!directory.path().join("a@/b@").exists(), "round {round}");
        assert!(directory.path().join("a@/d").exists());
        bucket.delete(&["a/d".into(), "a/d".into()]).expect("a delete");
        assert!(!directory.path().join("a@").exists(), "round {round}");
    }
}

#[test]
fn writers_and_deleters_of_one_directory_do_not_fail_each_other() {
    let (_directory, bucket) = bucket();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let bucket = &bucket;
            scope.spawn(move || {
                let key = format!("a/b/{n}");
                for _ in 0..60 {
                    bucket.put(&key, b"body").expect("a write beside deletes");
                    assert!(bucket.get(&key).expect("a read").is_some());
                    bucket.delete(std::slice::from_ref(&key)).expect("a delete beside writes");
                }
            });
        }
    });
}

#[test]
fn both_ways_to_the_disk_keep_the_contract() {
    let (_directory, mut bucket) = bucket();
    for journal in [Journal::Ordered, Journal::None] {
        bucket.journal = journal;
        let key = format!("a/{journal:?}");
        let etag = bucket.put(&key, b"one").expect("a write");
        let outcome = bucket.put_if(&key, &Guard::Match(etag.clone()), b"two").expect("a write");
        assert!(matches!(outcome, CasOutcome::Applied(_)));
        let outcome = bucket.put_if(&key, &Guard::Match(etag), b"three").expect("a write");
        assert_eq!(outcome, CasOutcome::Refused);
        let object = bucket.get(&key).expect("a read").expect("an object");
        assert_eq!(object.body, "two");
    }
}

#[test]
fn a_read_without_waiting_sees_what_the_other_one_sees() {
    let (_directory, bucket) = bucket();
    for size in [0_usize, 1, 4_096, 65_536] {
        let body = vec![7; size];
        bucket.put("a", &body).expect("a write");
        let waited = bucket.get("a").expect("a read");
        // The kernel may decline, but not for a file that was written just now on this machine.
        let cached = bucket.get_cached("a").expect("no wait").expect("a read");
        assert_eq!(cached, waited);
        assert_eq!(cached.expect("an object").body, body);
    }
    bucket.put("a", &vec![7; 65_537]).expect("a write");
    assert!(bucket.get_cached("a").is_none(), "too large to copy on a shard");
    bucket.delete(&["a".into()]).expect("a delete");
    assert!(matches!(bucket.get_cached("a"), None | Some(Ok(None))));
}

#[test]
fn after_a_failed_flush_nothing_is_served() {
    let (_directory, bucket) = bucket();
    bucket.put("a", b"1").expect("a write");
    bucket.failed.store(true, Ordering::Release);
    assert!(matches!(bucket.get("a"), Err(StoreError::Broken { .. })));
    assert!(matches!(bucket.get_cached("a"), Some(Err(StoreError::Broken { .. }))));
    assert!(matches!(bucket.put("a", b"2"), Err(StoreError::Broken { .. })));
}

#[test]
fn foreign_things_in_the_directory_are_not_objects() {
    let (directory, bucket) = bucket();
    bucket.put("a/b", b"1").expect("a write");
    fs::create_dir(directory.path().join("lost+found")).expect("a directory");
    fs::create_dir(directory.path().join("z")).expect("a directory");
    fs::write(directory.path().join("odd="), b"").expect("a file");
    let page = bucket.list("", None).expect("a listing");
    assert_eq!(page.entries.iter().map(|e| e.key.as_str()).collect::<Vec<_>>(), ["a/b"]);
    assert!(matches!(bucket.get("z"), Err(StoreError::Broken { .. })));
}

#[test]
fn a_bucket_of_another_layout_is_refused() {
    let (directory, bucket) = bucket();
    drop(bucket);
    fs::write(directory.path().join(".celld=/layout"), "celld file bucket 2\n").expect("a file");
    let error = FileBucket::open(directory.path()).expect_err("another layout");
    assert!(matches!(error, OpenError::Layout { .. }), "{error}");
}

#[test]
fn a_relative_path_is_made_with_its_parents() {
    // Below the directory of the package, which tests run in.
    let place = tempfile::tempdir_in(".").expect("a directory");
    let name = place.path().file_name().expect("it has a name");
    let relative = Path::new(name).join("a/b");
    FileBucket::open(&relative).expect("a bucket");
    assert!(relative.is_dir());
}

#[test]
fn a_file_in_the_place_of_the_directory_is_a_clear_error() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let error = FileBucket::open(file.path()).expect_err("not a directory");
    assert!(error.to_string().contains("cannot make it"), "{error}");
}

#[test]
fn errors_of_the_system_become_what_the_caller_must_do() {
    let of = |code| StoreError::of("k", io::Error::from_raw_os_error(code));
    assert!(matches!(of(libc::ENOSPC), StoreError::Full { .. }));
    assert!(matches!(of(libc::EDQUOT), StoreError::Full { .. }));
    assert!(matches!(of(libc::EACCES), StoreError::Denied { .. }));
    assert!(matches!(of(libc::EROFS), StoreError::Denied { .. }));
    assert!(matches!(of(libc::EMFILE), StoreError::Throttled { .. }));
    assert!(matches!(of(libc::EIO), StoreError::Unreachable { .. }));
    assert!(matches!(of(libc::ENOTDIR), StoreError::Broken { .. }));
}

#[test]
fn a_directory_is_known_to_last_until_it_is_made_anew() {
    let (_directory, mut bucket) = bucket();
    bucket.journal = Journal::None;
    let known = |bucket: &FileBucket, name| bucket.lasting().get(&bucket.root.join(name)).cloned();
    bucket.put("a/b", b"1").expect("a write");
    let first = known(&bucket, "a@").expect("a file system with handles");
    bucket.put("a/c", b"1").expect("a write");
    assert_eq!(known(&bucket, "a@"), Some(first.clone()));
    bucket.delete(&["a/b".into(), "a/c".into()]).expect("a delete");
    bucket.put("a/b", b"1").expect("a write");
    assert_ne!(known(&bucket, "a@"), Some(first), "another directory at the same place");
    assert!(known(&bucket, "").is_some(), "the root too");
}

#[test]
fn a_bucket_that_is_opened_to_be_read_is_not_touched() {
    let directory = tempfile::tempdir().expect("a directory");
    let empty = FileBucket::open_read_only(directory.path()).expect_err("no bucket yet");
    assert!(empty.to_string().contains("cannot find a bucket in it"), "{empty}");
    assert!(fs::read_dir(directory.path()).expect("a listing").next().is_none());
    let missing = FileBucket::open_read_only(&directory.path().join("a"));
    assert!(missing.expect_err("no directory").to_string().contains("cannot find it"));

    let writer = FileBucket::open(directory.path()).expect("a new bucket");
    let etag = writer.put("a/b", b"1").expect("a write");
    let reader = FileBucket::open_read_only(directory.path()).expect("the bucket");
    let drafts = directory.path().join(path::CONTROL).join("drafts");
    assert_eq!(fs::read_dir(drafts).expect("a listing").count(), 1, "only the writer's");
    let denied = |result: Result<(), StoreError>| {
        assert!(matches!(result, Err(StoreError::Denied { .. })), "{result:?}");
    };
    denied(reader.put("a/b", b"2").map(drop));
    denied(reader.put_if("a/b", &Guard::Match(etag), b"2").map(drop));
    denied(reader.put_if("a/c", &Guard::Absent, b"2").map(drop));
    denied(reader.delete(&["a/b".into()]));
    let seen = reader.get("a/b").expect("a read").expect("an object");
    assert_eq!(seen.body, "1");
    writer.put("a/b", b"3").expect("a write");
    assert_eq!(reader.get("a/b").expect("a read").expect("an object").body, "3");
    assert_eq!(reader.list("", None).expect("a page").entries.len(), 1);
}
