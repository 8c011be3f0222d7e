//! The contract of all stores: each test takes any bucket and a prefix that nobody else uses.
//!
//! A new dialect calls [`all`] on each store that it claims, and then the races and the counter.

pub mod counter;
pub mod races;
pub mod streams;

use std::ops::Range;

use bytes::Bytes;
use celld_s3::{Bucket, CasOutcome, Etag, Guard, PAGE_ENTRIES_MAX, StoreError};

/// Keys that stores and file systems like to get wrong, in byte order.
const ODD_KEYS: [&str; 24] = [
    "\u{1}", " ", "%", "%2F", "%2f", "+", "...", ".a", "A", "\\", "a", "a b", "a!", "a+b", "a/b",
    "a/b/c", "a/b=", "a0", "a=", "a@", "a@/b", "ä/ö", "日本", "🦀",
];

/// What a store cannot do, as its makers say. All else holds on each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variations {
    /// Keys are paths in a tree of files: a backslash counts as a slash, and the names between
    /// slashes have 255 bytes at most.
    pub is_tree: bool,
    /// A backslash counts as a slash.
    pub takes_backslash_for_slash: bool,
    /// Keys with control characters cannot be listed.
    pub fails_on_control_signs: bool,
}

/// All of it that a store with these variations does.
pub async fn all(bucket: &Bucket, prefix: &str, variations: Variations) {
    objects(bucket, &format!("{prefix}objects/")).await;
    large_objects(bucket, &format!("{prefix}large/")).await;
    streams::all(bucket, &format!("{prefix}streams/")).await;
    ranges(bucket, &format!("{prefix}ranges/")).await;
    create_if_absent(bucket, &format!("{prefix}create/")).await;
    compare_and_swap(bucket, &format!("{prefix}swap/")).await;
    odd_keys(bucket, &format!("{prefix}odd/"), variations).await;
    long_keys(bucket, &format!("{prefix}long/"), variations).await;
    prefixes(bucket, &format!("{prefix}prefixes/")).await;
    pages(bucket, &format!("{prefix}pages/")).await;
    deletes(bucket, &format!("{prefix}deletes/")).await;
    bad_keys(bucket).await;
}

async fn put(bucket: &Bucket, key: &str, body: &str) -> Etag {
    bucket.put(key, Bytes::from(body.to_owned())).await.expect("a write")
}

async fn put_if(bucket: &Bucket, key: &str, guard: Guard, body: &str) -> CasOutcome {
    bucket.put_if(key, guard, Bytes::from(body.to_owned())).await.expect("an answer")
}

async fn body(bucket: &Bucket, key: &str) -> Option<Bytes> {
    bucket.get(key).await.expect("a read").map(|object| object.body)
}

/// All keys below `prefix`, which the answers leave out, page by page.
async fn keys(bucket: &Bucket, prefix: &str, rest: &str) -> Vec<String> {
    let (mut keys, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = bucket.list(&format!("{prefix}{rest}"), after.as_deref()).await.expect("a page");
        assert!(page.entries.len() <= PAGE_ENTRIES_MAX);
        keys.extend(page.entries.iter().map(|entry| entry.key[prefix.len()..].to_owned()));
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            return keys;
        }
        assert!(after.is_some(), "an empty page says that there are more");
    }
}

async fn objects(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}a");
    assert_eq!(bucket.get(&key).await.expect("a read"), None);
    let first = put(bucket, &key, "one").await;
    let seen = bucket.get(&key).await.expect("a read").expect("an object");
    assert_eq!((seen.body.as_ref(), &seen.etag), (&b"one"[..], &first));
    let second = put(bucket, &key, "two").await;
    assert_ne!(first, second);
    assert_eq!(body(bucket, &key).await.as_deref(), Some(&b"two"[..]));
    put(bucket, &key, "").await;
    assert_eq!(body(bucket, &key).await.as_deref(), Some(&b""[..]));
    // Larger than what is read in passing, and not a round number.
    let large: Vec<u8> = (0..3_000_001_u32).map(|n| (n % 251) as u8).collect();
    let etag = bucket.put(&key, Bytes::from(large.clone())).await.expect("a write");
    let seen = bucket.get(&key).await.expect("a read").expect("an object");
    assert!(seen.body == large && seen.etag == etag);
}

/// Larger than what is sent in one request, and not a whole number of parts.
async fn large_objects(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}a");
    let byte = |n: u64| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    let large: Bytes = (0..(17 << 20) + 1).map(byte).collect::<Vec<_>>().into();
    let first = bucket.put(&key, large.clone()).await.expect("a write");
    let seen = bucket.get(&key).await.expect("a read").expect("an object");
    assert!(seen.body == large && seen.etag == first);
    for range in
        [0..1, (8 << 20) - 3..(8 << 20) + 3, (1 << 20)..(16 << 20), (17 << 20)..(17 << 20) + 1]
    {
        let bytes = bucket.get_range(&key, range.clone()).await.expect("bytes");
        assert!(bytes == large[range.start as usize..range.end as usize], "{range:?}");
    }
    // Its version is one that a swap can name.
    let small = put_if(bucket, &key, Guard::Match(first.clone()), "small").await;
    assert!(matches!(small, CasOutcome::Applied(_)), "{small:?}");
    let guard = Guard::Match(first);
    let refused = bucket.put_if(&key, guard, large.clone()).await.expect("an answer");
    assert_eq!(refused, CasOutcome::Refused);
    let created = bucket.put_if(&format!("{prefix}b"), Guard::Absent, large.clone()).await;
    let CasOutcome::Applied(etag) = created.expect("an answer") else {
        panic!("a create of a large object that is not there must apply");
    };
    let seen = bucket.get(&format!("{prefix}b")).await.expect("a read").expect("an object");
    assert!(seen.body == large && seen.etag == etag);
}

async fn ranges(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}a");
    let range = async |bytes: Range<u64>| bucket.get_range(&key, bytes).await;
    assert!(matches!(range(0..1).await, Err(StoreError::Missing { .. })));
    put(bucket, &key, "0123456789").await;
    for (wanted, bytes) in [(0..10, "0123456789"), (0..1, "0"), (9..10, "9"), (3..7, "3456")] {
        assert_eq!(range(wanted.clone()).await.expect("bytes"), bytes, "{wanted:?}");
    }
    assert_eq!(range(4..4).await.expect("no bytes"), "");
    // Exactly these bytes or an error; and no memory for a length that is only claimed.
    #[expect(clippy::reversed_empty_ranges, reason = "a reversed range is one of the faults")]
    for wanted in [0..11, 9..11, 10..11, 11..12, 5..u64::MAX, 7..3] {
        match range(wanted.clone()).await {
            Err(StoreError::Range { size, .. }) => assert_eq!(size, 10),
            other => panic!("{wanted:?}: {other:?}"),
        }
    }
}

async fn create_if_absent(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}a");
    let CasOutcome::Applied(etag) = put_if(bucket, &key, Guard::Absent, "one").await else {
        panic!("a create of an object that is not there must apply");
    };
    assert_eq!(put_if(bucket, &key, Guard::Absent, "two").await, CasOutcome::Refused);
    assert_eq!(put_if(bucket, &key, Guard::Absent, "one").await, CasOutcome::Refused);
    let seen = bucket.get(&key).await.expect("a read").expect("an object");
    assert_eq!((seen.body.as_ref(), seen.etag), (&b"one"[..], etag));
    bucket.delete(std::slice::from_ref(&key)).await.expect("a delete");
    assert!(matches!(put_if(bucket, &key, Guard::Absent, "three").await, CasOutcome::Applied(_)));
}

async fn compare_and_swap(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}a");
    let nowhere = Guard::Match(Etag::new("none"));
    assert_eq!(put_if(bucket, &key, nowhere.clone(), "no").await, CasOutcome::Refused);
    assert_eq!(body(bucket, &key).await, None);
    // A version that a plain write made can be swapped too.
    let mut now = put(bucket, &key, "0").await;
    let mut old = Vec::new();
    for n in 1..=5 {
        let guard = Guard::Match(now.clone());
        let CasOutcome::Applied(next) = put_if(bucket, &key, guard, &n.to_string()).await else {
            panic!("a swap of the current version must apply");
        };
        old.push(std::mem::replace(&mut now, next));
        for etag in &old {
            let guard = Guard::Match(etag.clone());
            assert_eq!(put_if(bucket, &key, guard, "stale").await, CasOutcome::Refused);
        }
        let seen = bucket.get(&key).await.expect("a read").expect("an object");
        assert_eq!((seen.body, &seen.etag), (Bytes::from(n.to_string()), &now));
    }
    assert_eq!(put_if(bucket, &key, nowhere, "no").await, CasOutcome::Refused);
    bucket.delete(std::slice::from_ref(&key)).await.expect("a delete");
    assert_eq!(put_if(bucket, &key, Guard::Match(now), "no").await, CasOutcome::Refused);
    assert_eq!(body(bucket, &key).await, None);
}

async fn odd_keys(bucket: &Bucket, prefix: &str, variations: Variations) {
    let mut sorted: Vec<&str> = ODD_KEYS.into();
    let turns_backslash = variations.is_tree || variations.takes_backslash_for_slash;
    sorted.retain(|key| !(turns_backslash && *key == "\\"));
    sorted.retain(|key| !(variations.fails_on_control_signs && *key == "\u{1}"));
    for key in &sorted {
        put(bucket, &format!("{prefix}{key}"), key).await;
    }
    for key in &sorted {
        let seen = body(bucket, &format!("{prefix}{key}")).await;
        assert_eq!(seen.as_deref(), Some(key.as_bytes()), "{key:?}");
    }
    sorted.sort_unstable();
    assert_eq!(keys(bucket, prefix, "").await, sorted);
    for after in 0..sorted.len() {
        let full = format!("{prefix}{}", sorted[after]);
        let page = bucket.list(prefix, Some(&full)).await.expect("a page");
        let seen: Vec<_> = page.entries.iter().map(|e| &e.key[prefix.len()..]).collect();
        assert_eq!(seen, sorted[after + 1..], "after {:?}", sorted[after]);
    }
}

async fn long_keys(bucket: &Bucket, prefix: &str, variations: Variations) {
    let mut wanted = Vec::new();
    for length in [249, 250, 251, 255, 256, 500, 501, 700] {
        for tail in ["", "!", "/x", "0", "~/y"] {
            wanted.push(format!("{}{tail}", "s".repeat(length)));
        }
    }
    wanted.push("é".repeat(400));
    wanted.push("a/".repeat(400) + "b");
    let fits = |key: &String| key.split('/').all(|name| name.len() <= 255);
    wanted.retain(|key| !variations.is_tree || fits(key));
    wanted.sort_unstable();
    wanted.dedup();
    for key in &wanted {
        put(bucket, &format!("{prefix}{key}"), key).await;
    }
    for key in &wanted {
        let seen = body(bucket, &format!("{prefix}{key}")).await;
        assert_eq!(seen.as_deref(), Some(key.as_bytes()), "{key:?}");
    }
    assert_eq!(keys(bucket, prefix, "").await, wanted);
    for cut in [1, 248, 249, 250, 251, 499, 500, 501] {
        let start = "s".repeat(cut);
        let with: Vec<_> = wanted.iter().filter(|key| key.starts_with(&start)).collect();
        assert_eq!(keys(bucket, prefix, &start).await.iter().collect::<Vec<_>>(), with, "{cut}");
    }
}

async fn prefixes(bucket: &Bucket, prefix: &str) {
    for key in ["a", "a/b", "a/bc", "a/b/c", "ab", "b"] {
        put(bucket, &format!("{prefix}{key}"), "12345").await;
    }
    for (rest, wanted) in [
        ("", &["a", "a/b", "a/b/c", "a/bc", "ab", "b"][..]),
        ("a", &["a", "a/b", "a/b/c", "a/bc", "ab"]),
        ("a/", &["a/b", "a/b/c", "a/bc"]),
        ("a/b", &["a/b", "a/b/c", "a/bc"]),
        ("a/b/", &["a/b/c"]),
        ("a/bc", &["a/bc"]),
        ("a/bcd", &[]),
        ("b/", &[]),
        ("c", &[]),
        (".", &[]),
    ] {
        assert_eq!(keys(bucket, prefix, rest).await, wanted, "{rest:?}");
    }
    let page = bucket.list(&format!("{prefix}b"), None).await.expect("a page");
    assert_eq!(page.entries[0].size, 5);
    // Behind a key that is not there, before the prefix, and behind all of it.
    for (after, count) in [("a/b/", 4), ("\u{1}", 6), ("zz", 0)] {
        let after = format!("{prefix}{after}");
        let page = bucket.list(prefix, Some(&after)).await.expect("a page");
        assert_eq!((page.entries.len(), page.more), (count, false), "{after:?}");
    }
    let page = bucket.list(prefix, Some("")).await.expect("a page");
    assert_eq!(page.entries.len(), 6);
}

async fn pages(bucket: &Bucket, prefix: &str) {
    // One more than fits, spread over directories so that a page ends inside one.
    let wanted: Vec<_> = (0..=PAGE_ENTRIES_MAX).map(|n| format!("{:02}/{n:04}", n / 97)).collect();
    let tasks: Vec<_> = wanted[..PAGE_ENTRIES_MAX]
        .iter()
        .map(|key| (bucket.clone(), format!("{prefix}{key}")))
        .map(|(bucket, key)| celld_rt::spawn_joined(async move { put(&bucket, &key, "").await }))
        .collect();
    for task in tasks {
        task.join().await.expect("a write");
    }
    let full = bucket.list(prefix, None).await.expect("a page");
    assert_eq!((full.entries.len(), full.more), (PAGE_ENTRIES_MAX, false), "exactly one page");
    put(bucket, &format!("{prefix}{}", wanted[PAGE_ENTRIES_MAX]), "").await;
    let first = bucket.list(prefix, None).await.expect("a page");
    assert_eq!((first.entries.len(), first.more), (PAGE_ENTRIES_MAX, true));
    assert_eq!(keys(bucket, prefix, "").await, wanted);
}

async fn deletes(bucket: &Bucket, prefix: &str) {
    let all: Vec<_> = ["a", "a/b", "a/c", "d/e/f"].map(|key| format!("{prefix}{key}")).into();
    for key in &all {
        put(bucket, key, "x").await;
    }
    bucket.delete(&[]).await.expect("nothing to delete");
    bucket.delete(&[all[1].clone(), format!("{prefix}none")]).await.expect("a delete");
    assert_eq!(keys(bucket, prefix, "").await, ["a", "a/c", "d/e/f"]);
    bucket.delete(&all).await.expect("a delete");
    bucket.delete(&all).await.expect("deleting twice");
    assert_eq!(keys(bucket, prefix, "").await, [""; 0]);
    put(bucket, &all[3], "again").await;
    assert_eq!(keys(bucket, prefix, "").await, ["d/e/f"]);
}

async fn bad_keys(bucket: &Bucket) {
    let long = "k".repeat(1_025);
    for key in ["", "/a", "a/", "a//b", "../a", "a/../../b", ".", "a\0b", long.as_str()] {
        let refused = |result: Result<(), StoreError>| {
            assert!(matches!(result, Err(StoreError::BadKey { .. })), "{key:?}: {result:?}");
        };
        let body = Bytes::from("x");
        refused(bucket.get(key).await.map(drop));
        refused(bucket.get_range(key, 0..1).await.map(drop));
        refused(bucket.put(key, body.clone()).await.map(drop));
        refused(bucket.put_if(key, Guard::Absent, body).await.map(drop));
        refused(bucket.delete(&[key.to_owned()]).await);
    }
    assert!(matches!(bucket.list("a/../", None).await, Err(StoreError::BadKey { .. })));
}
