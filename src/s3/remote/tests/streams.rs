//! Objects in parts: whatever fails or is given up takes its parts with it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_rt::{block_on, sleep};

use super::{Asked, Say, Scripted, attempts, error, say};
use crate::StoreError;

const PART: usize = 8 << 20;
/// What a busy machine needs to send some parts.
const PATIENCE: Duration = Duration::from_secs(30);

/// A store that takes uploads; `part` answers the part of this number.
fn taking(mut part: impl FnMut(u32) -> Say + Send + 'static) -> Scripted {
    Scripted::start(move |asked| match asked.method.as_str() {
        "POST" if asked.target.ends_with("?uploads=") => {
            let id = "<UploadId>u1</UploadId>";
            let name = "InitiateMultipartUploadResult";
            say(200, &[], &format!("<{name}>{id}</{name}>"))
        }
        "PUT" => part(number(asked)),
        "POST" => {
            let name = "CompleteMultipartUploadResult";
            say(200, &[], &format!("<{name}><ETag>\"whole\"</ETag></{name}>"))
        }
        "DELETE" => say(204, &[], ""),
        other => panic!("{other} {}", asked.target),
    })
}

fn number(asked: &Asked) -> u32 {
    let (_, rest) = asked.target.split_once("?partNumber=").expect("a part");
    rest.split('&').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn taken(number: u32) -> Say {
    say(200, &[("ETag", &format!("\"part{number}\""))], "")
}

fn is_abort(asked: &Asked) -> bool {
    asked.method == "DELETE" && asked.target == "/bucket/pre/a?uploadId=u1"
}

/// Waits until the parts are removed, which is the last that is asked. Returns how often they were,
/// and how many requests began or ended an upload.
async fn is_aborted(store: &Scripted) -> (usize, usize) {
    let begin = Instant::now();
    while !store.look(|asked| asked.last().is_some_and(is_abort)) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", store.look(<[Asked]>::len));
        sleep(Duration::from_millis(10)).await;
    }
    store.look(|asked| {
        let posts = asked.iter().filter(|asked| asked.method == "POST");
        (asked.iter().filter(|asked| is_abort(asked)).count(), posts.count())
    })
}

#[test]
fn parts_arrive_once_and_their_tags_in_order() {
    let store = taking(taken);
    block_on(async {
        let mut writer = store.bucket().writer("a").await.expect("a writer");
        for piece in [3 * PART, 5, PART - 1, 7] {
            writer.write(vec![piece as u8; piece].into()).await.expect("a write");
        }
        assert_eq!(writer.finish().await.expect("an object").as_str(), "\"whole\"");
    });
    let asked = store.asked();
    let mut parts: Vec<_> = asked.iter().filter(|asked| asked.method == "PUT").collect();
    parts.sort_by_key(|asked| number(asked));
    let sizes: Vec<_> = parts.iter().map(|asked| (number(asked), asked.body.len())).collect();
    assert_eq!(sizes, [(1, PART), (2, PART), (3, PART), (4, PART), (5, 11)]);
    let end = &parts[3].body[..6];
    assert_eq!(end, [5, 5, 5, 5, 5, 255], "the bytes of one write behind those of another");
    let complete = String::from_utf8_lossy(&asked.last().expect("requests").body).into_owned();
    let tags: Vec<_> = complete.split("<ETag>").skip(1).map(|tag| &tag[..7]).collect();
    assert_eq!(tags, ["\"part1\"", "\"part2\"", "\"part3\"", "\"part4\"", "\"part5\""]);
}

#[test]
fn what_fits_into_one_request_is_one() {
    let store = Scripted::start(|_| say(200, &[("ETag", "\"t\"")], ""));
    block_on(async {
        let mut writer = store.bucket().writer("a").await.expect("a writer");
        writer.write(vec![1; PART - 1].into()).await.expect("a write");
        writer.write(Bytes::from("2")).await.expect("a write");
        writer.finish().await.expect("an object");
        store
            .bucket()
            .writer("a")
            .await
            .expect("a writer")
            .finish()
            .await
            .expect("an empty object");
    });
    let asked: Vec<_> =
        store.asked().into_iter().map(|a| (a.method, a.target, a.body.len())).collect();
    let put = |length| ("PUT".to_owned(), "/bucket/pre/a".to_owned(), length);
    assert_eq!(asked, [put(PART), put(0)]);
}

#[test]
fn a_writer_that_is_dropped_takes_its_parts_with_it() {
    let store = taking(taken);
    block_on(async {
        let mut writer = store.bucket().writer("a").await.expect("a writer");
        writer.write(vec![0; 2 * PART + 1].into()).await.expect("a write");
        drop(writer);
        assert_eq!(is_aborted(&store).await, (1, 1), "it was begun and not completed");
    });
}

/// A store that takes no part until the lock is let go.
fn stuck(lock: &Arc<Mutex<()>>) -> Scripted {
    let gate = lock.clone();
    taking(move |number| {
        drop(gate.lock());
        taken(number)
    })
}

#[test]
fn a_put_that_nobody_waits_for_any_more_takes_its_parts_with_it() {
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock().expect("nobody else has it");
    let store = stuck(&lock);
    block_on(async {
        let bucket = store.bucket();
        let put = bucket.put("a", vec![0; 8 * PART].into());
        celld_rt::timeout(Duration::from_millis(100), put).await.expect_err("nobody takes it");
        drop(held);
        assert_eq!(is_aborted(&store).await, (1, 1), "it was begun and not completed");
    });
}

#[test]
fn a_part_that_is_refused_ends_the_object_after_those_under_way() {
    let arrived = Arc::new(AtomicUsize::new(0));
    let count = arrived.clone();
    let store = taking(move |number| {
        count.fetch_add(1, Ordering::SeqCst);
        if number == 2 { error(403, "AccessDenied") } else { taken(number) }
    });
    block_on(async {
        let mut writer = store.bucket().writer("a").await.expect("a writer");
        let mut failed = None;
        for _ in 0..20 {
            if let Err(error) = writer.write(vec![0; PART].into()).await {
                failed = Some(error);
                break;
            }
        }
        let error = failed.expect("nobody takes twenty parts after a refusal");
        assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
        let again = writer.write(Bytes::from("more")).await.map(drop).expect_err("it has failed");
        assert!(again.to_string().contains("begin it anew"), "{again}");
        writer.finish().await.expect_err("it has failed");
        is_aborted(&store).await;
    });
    assert!(arrived.load(Ordering::SeqCst) < 12, "{arrived:?} parts of an object that has failed");
}

#[test]
fn a_write_that_is_dropped_half_way_spoils_the_object() {
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock().expect("nobody else has it");
    let store = stuck(&lock);
    block_on(async {
        let mut writer = store.bucket().writer("a").await.expect("a writer");
        let write = writer.write(vec![0; 8 * PART].into());
        celld_rt::timeout(Duration::from_millis(200), write).await.expect_err("nobody takes it");
        drop(held);
        writer.write(Bytes::from("more")).await.expect_err("bytes before these are lost");
        writer.finish().await.expect_err("it cannot be whole");
        is_aborted(&store).await;
    });
}

/// A store with one object of this many bytes, all of them zero.
fn holding(size: usize, mut version: impl FnMut() -> &'static str + Send + 'static) -> Scripted {
    Scripted::start(move |asked| {
        let tag = version();
        let wanted = asked.header("range").and_then(|range| range.strip_prefix("bytes="));
        if asked.header("if-match").is_some_and(|wanted| wanted != tag) {
            return error(412, "PreconditionFailed");
        }
        let Some((start, last)) = wanted.and_then(|range| range.split_once('-')) else {
            return say(200, &[("ETag", tag)], &"0".repeat(size));
        };
        let number = |text: &str| text.parse::<usize>().expect("a number");
        let (start, end) = (number(start), (number(last) + 1).min(size));
        if start >= size {
            return say(416, &[("Content-Range", &format!("bytes */{size}"))], "");
        }
        let range = format!("bytes {start}-{}/{size}", end - 1);
        say(206, &[("ETag", tag), ("Content-Range", &range)], &"0".repeat(end - start))
    })
}

#[test]
fn a_reader_asks_ahead_and_no_further() {
    let store = holding(40 << 20, || "\"t\"");
    block_on(async {
        let mut reader = store.bucket().reader("a").await.expect("a read").expect("an object");
        assert_eq!((reader.size(), reader.etag().as_str()), (40 << 20, "\"t\""));
        assert_eq!(store.look(<[Asked]>::len), 1, "nobody wants more than the first piece yet");
        let mut seen = reader.next().await.expect("a piece").expect("a piece").len();
        sleep(Duration::from_millis(300)).await;
        assert_eq!(store.look(<[Asked]>::len), 3);
        // Dropped while it waits, and asked again.
        if let Ok(ended) = celld_rt::timeout(Duration::ZERO, reader.next()).await {
            seen += ended.expect("a piece").expect("a piece").len();
        }
        while let Some(piece) = reader.next().await.expect("a piece") {
            seen += piece.len();
        }
        assert_eq!(seen, 40 << 20);
    });
    assert_eq!(store.look(<[Asked]>::len), 10);
}

#[test]
fn a_reader_of_an_object_that_is_replaced_ends_with_an_error() {
    let mut asked = 0;
    let store = holding(12 << 20, move || {
        asked += 1;
        if asked < 3 { "\"old\"" } else { "\"new\"" }
    });
    block_on(async {
        let bucket = store.bucket().with_limits(attempts(1));
        let mut reader = bucket.reader("a").await.expect("a read").expect("an object");
        let mut pieces = 0;
        let error = loop {
            match reader.next().await {
                Ok(piece) => pieces += usize::from(piece.expect("not all of it").len() == 4 << 20),
                Err(error) => break error,
            }
        };
        assert!(pieces <= 2, "{pieces}");
        assert!(error.to_string().contains("another took its place"), "{error}");
        reader.next().await.expect_err("what failed has no end");
    });
}
