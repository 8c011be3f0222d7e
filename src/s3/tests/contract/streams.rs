//! Objects that are written and read piece by piece.

use bytes::{Bytes, BytesMut};
use celld_s3::{Bucket, Guard, Reader};

/// Of one request to a store.
const PART: usize = 8 << 20;

/// All of it.
pub async fn all(bucket: &Bucket, prefix: &str) {
    come_back(bucket, &format!("{prefix}back/")).await;
    appear_whole_or_not_at_all(bucket, &format!("{prefix}whole/")).await;
    are_of_one_version(bucket, &format!("{prefix}version/")).await;
}

/// Bytes that differ from place to place and from `seed` to `seed`.
fn noise(seed: u64, bytes: usize) -> Bytes {
    let byte = |n: u64| (n.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..bytes as u64).map(byte).collect::<Vec<_>>().into()
}

async fn write(bucket: &Bucket, key: &str, body: &Bytes, piece: usize) -> celld_s3::Etag {
    let mut writer = bucket.writer(key).await.expect("a writer");
    for start in (0..body.len()).step_by(piece) {
        let bytes = body.slice(start..body.len().min(start + piece));
        writer.write(bytes).await.expect("a write");
    }
    writer.finish().await.expect("an object")
}

async fn rest(reader: &mut Reader) -> Bytes {
    let mut all = BytesMut::new();
    while let Some(piece) = reader.next().await.expect("a piece") {
        assert!(!piece.is_empty(), "an empty piece is no piece");
        all.extend_from_slice(&piece);
    }
    assert!(reader.next().await.expect("the end").is_none(), "the end comes again");
    all.freeze()
}

async fn come_back(bucket: &Bucket, prefix: &str) {
    assert!(bucket.reader(&format!("{prefix}none")).await.expect("a read").is_none());
    for (size, piece) in
        [(0, 1), (1, 1), (PART, 1_000_003), (PART + 1, PART + 1), (2 * PART + 77, 3_000_001)]
    {
        let (key, body) = (format!("{prefix}{size}"), noise(size as u64, size));
        let etag = write(bucket, &key, &body, piece).await;
        let mut reader = bucket.reader(&key).await.expect("a read").expect("an object");
        assert_eq!((reader.size(), reader.etag()), (size as u64, &etag), "{size}");
        assert!(rest(&mut reader).await == body, "{size}");
        let seen = bucket.get(&key).await.expect("a read").expect("an object");
        assert!(seen.body == body && seen.etag == etag, "{size}");
        // Its version is one that a swap can name.
        let swapped = bucket.put_if(&key, Guard::Match(etag), Bytes::from("small")).await;
        assert!(matches!(swapped, Ok(celld_s3::CasOutcome::Applied(_))), "{size}: {swapped:?}");
    }
}

async fn appear_whole_or_not_at_all(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}a");
    let body = noise(1, 2 * PART + 1);
    for before in [None, Some("before")] {
        if let Some(before) = before {
            bucket.put(&key, Bytes::from(before)).await.expect("a write");
        }
        let mut writer = bucket.writer(&key).await.expect("a writer");
        writer.write(body.clone()).await.expect("a write");
        let seen = bucket.get(&key).await.expect("a read").map(|object| object.body);
        assert_eq!(seen.as_deref(), before.map(str::as_bytes), "it is not finished");
        drop(writer);
        let seen = bucket.get(&key).await.expect("a read").map(|object| object.body);
        assert_eq!(seen.as_deref(), before.map(str::as_bytes), "it was given up");
    }
    write(bucket, &key, &body, PART).await;
    assert!(bucket.get(&key).await.expect("a read").expect("an object").body == body);
}

async fn are_of_one_version(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}a");
    let (old, new) = (noise(2, 2 * PART), noise(3, 2 * PART));
    bucket.put(&key, old.clone()).await.expect("a write");
    let mut reader = bucket.reader(&key).await.expect("a read").expect("an object");
    let mut seen = BytesMut::from(reader.next().await.expect("a piece").expect("a piece"));
    bucket.put(&key, new).await.expect("a write");
    loop {
        match reader.next().await {
            Ok(Some(piece)) => seen.extend_from_slice(&piece),
            // A store keeps one version only.
            Err(_) => break drop(reader.next().await.expect_err("what failed has no end")),
            Ok(None) => break assert_eq!(seen.len(), old.len()),
        }
    }
    assert!(old.starts_with(&seen), "the bytes of two versions");
}
