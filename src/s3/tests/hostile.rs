//! The client before something that answers anything: garbage, endless bodies, listings without an
//! end. It gives an error in bounded time and memory, never a panic, and takes none of it for an
//! object, an empty bucket or a write that applied.

#[path = "hostile/server.rs"]
mod server;

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_s3::{Bucket, CasOutcome, Etag, Guard, Limits, OpenOptions, StaticKeys, StoreError};
use proptest::prelude::*;
use server::{Server, Words, answer, listing};

/// More than the largest listing that is believed, and far less than what was sent.
const MEMORY_MAX: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_secs(4);

/// Peaks of memory are those of the process: one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(server: &Server) -> Bucket {
    let keys = StaticKeys { id: "id".into(), secret: "secret".into(), token: None };
    let options = OpenOptions {
        endpoint: Some(format!("http://127.0.0.1:{}", server.port())),
        region: Some("us-east-1".into()),
        keys: Some(keys),
        ..OpenOptions::default()
    };
    let bucket = Bucket::open_with("s3://bucket", &options).expect("a bucket");
    bucket.with_limits(Limits { deadline: DEADLINE, attempts: 2 })
}

/// How each verb ended, in words, and whether it was a success.
async fn ask_all(bucket: &Bucket) -> Vec<(&'static str, Result<String, StoreError>)> {
    let body = || Bytes::from("body");
    let keys: Vec<String> = ["k", "l", "m"].map(Into::into).into();
    let matches = Guard::Match(Etag::new("\"0\""));
    let said = |outcome| match outcome {
        CasOutcome::Applied(_) => "applied".to_owned(),
        CasOutcome::Refused => "refused".to_owned(),
        CasOutcome::Unknown => "unknown".to_owned(),
    };
    vec![
        ("get", bucket.get("k").await.map(|object| format!("{}", object.is_some()))),
        ("get_range", bucket.get_range("k", 0..9).await.map(|bytes| format!("{bytes:?}"))),
        ("put", bucket.put("k", body()).await.map(|etag| etag.to_string())),
        ("create", bucket.put_if("k", Guard::Absent, body()).await.map(said)),
        ("swap", bucket.put_if("k", matches, body()).await.map(said)),
        ("list", bucket.list("", None).await.map(|page| format!("{page:?}"))),
        ("delete", bucket.delete(&keys).await.map(|()| "deleted".to_owned())),
    ]
}

/// The most memory that `work` had at once, above what there was before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    fs::write("/proc/self/clear_refs", "5").expect("the peak is forgotten");
    let before = resident("VmRSS:");
    let done = work();
    (done, resident("VmHWM:").saturating_sub(before))
}

fn resident(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

#[test]
fn a_peak_of_memory_is_seen() {
    let _machine = alone();
    let (_, peak) = peak_of(|| drop(std::hint::black_box(vec![1_u8; 100 << 20])));
    assert!(peak > (90 << 20).max(MEMORY_MAX), "{peak}");
}

#[test]
fn bodies_without_end_cost_bounded_time_and_memory() {
    let _machine = alone();
    for head in [
        "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-8/9\r\nETag: \"1\"\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 500 Internal Server Error\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let server = Server::start(Words::Endless(head.into()));
        let bucket = open(&server);
        let begin = Instant::now();
        let verbs = async {
            // `get` itself takes a gigabyte, as it must: large objects are read so.
            vec![
                bucket.get_range("k", 0..9).await.map(drop),
                bucket.list("", None).await.map(drop),
                bucket.delete(&["a".to_owned(), "b".to_owned()]).await,
            ]
        };
        let (ended, peak) = peak_of(|| celld_rt::block_on(verbs));
        assert!(ended.iter().all(Result::is_err), "{head}: {ended:?}");
        assert!(peak < MEMORY_MAX, "{head}: {} MiB", peak >> 20);
        assert!(begin.elapsed() < 4 * DEADLINE * 3, "{head}: {:?}", begin.elapsed());
    }
}

#[test]
fn a_length_that_is_only_claimed_takes_no_memory() {
    let _machine = alone();
    for length in ["999999999999", "18446744073709551615", "1073741824"] {
        let head = format!("HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: {length}\r\n\r\nabc");
        let server = Server::start(Words::Once(head.into_bytes()));
        let bucket = open(&server);
        let (ended, peak) = peak_of(|| celld_rt::block_on(bucket.get("k")));
        assert!(ended.is_err(), "{length}: {ended:?}");
        assert!(peak < MEMORY_MAX, "{length}: {} MiB", peak >> 20);
    }
}

#[test]
fn listings_that_are_longer_than_asked_for_or_without_an_end_are_refused() {
    let _machine = alone();
    let keys: Vec<String> = (0..100_000).map(|n| format!("{n:06}")).collect();
    let long = listing(&keys, None);
    let circle = listing(&["a".to_owned()], Some("again"));
    for (name, words) in [("long", Words::Once(long)), ("circle", Words::Once(circle))] {
        let server = Server::start(words);
        let bucket = open(&server);
        let begin = Instant::now();
        let (ended, peak) = peak_of(|| celld_rt::block_on(bucket.list("", None)));
        assert!(ended.is_err(), "{name}: {ended:?}");
        assert!(peak < MEMORY_MAX, "{name}: {} MiB", peak >> 20);
        assert!(begin.elapsed() < 4 * DEADLINE, "{name}: {:?}", begin.elapsed());
    }
}

#[test]
fn a_hundred_thousand_keys_in_honest_pages_cost_bounded_memory() {
    let _machine = alone();
    let server = Server::start(Words::Pages { keys: 100_000 });
    let bucket = open(&server).with_limits(Limits::default());
    let list = async {
        let (mut seen, mut after) = (0, None::<String>);
        // The first pages are enough to see that each is the right one.
        for _ in 0..3 {
            let page = bucket.list("", after.as_deref()).await.expect("a page");
            assert!(page.more);
            seen += page.entries.len();
            after = page.entries.last().map(|entry| entry.key.clone());
        }
        (seen, after)
    };
    let (found, peak) = peak_of(|| celld_rt::block_on(list));
    assert_eq!(found, (3_000, Some("key-002999".to_owned())));
    assert!(peak < MEMORY_MAX, "{} MiB", peak >> 20);
}

#[test]
fn objects_that_are_larger_than_memory_should_hold_are_read_and_written_piece_by_piece() {
    const SIZE: u64 = 512 << 20;
    let _machine = alone();
    let server = Server::start(Words::Zeros { size: SIZE });
    let bucket = open(&server).with_limits(Limits::default());
    let read = async {
        let mut reader = bucket.reader("k").await.expect("a read").expect("an object");
        let mut seen = 0;
        while let Some(piece) = reader.next().await.expect("a piece") {
            seen += piece.len() as u64;
        }
        seen
    };
    let (seen, peak) = peak_of(|| celld_rt::block_on(read));
    assert_eq!(seen, SIZE);
    assert!(peak < MEMORY_MAX, "reading: {} MiB", peak >> 20);
    let write = async {
        let mut writer = bucket.writer("k").await.expect("a writer");
        for _ in 0..SIZE >> 20 {
            writer.write(vec![0; 1 << 20].into()).await.expect("a write");
        }
        writer.finish().await.map(drop)
    };
    let (ended, peak) = peak_of(|| celld_rt::block_on(write));
    ended.expect("an object");
    assert!(peak < 2 * MEMORY_MAX, "writing: {} MiB", peak >> 20);
}

#[test]
fn what_others_say_in_the_store_s_place_is_an_error_and_no_answer() {
    let _machine = alone();
    let html = "<html><head><title>Sign in</title></head><body>Hotel network</body></html>";
    let cut = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>fal";
    for (status, content, body) in [
        ("200 OK", "text/html", html),
        ("404 Not Found", "text/html", html),
        ("412 Precondition Failed", "text/plain", "no"),
        ("403 Forbidden", "text/html", html),
        ("302 Found", "text/html", html),
        ("502 Bad Gateway", "text/html", html),
        ("200 OK", "application/xml", cut),
        ("200 OK", "application/xml", ""),
        ("204 No Content", "text/plain", ""),
        ("404 Not Found", "application/xml", "<Error><Code>NoSuchBucket</Code></Error>"),
    ] {
        let server = Server::start(Words::Once(answer(status, content, "", body)));
        let bucket = open(&server);
        for (verb, ended) in celld_rt::block_on(ask_all(&bucket)) {
            let context = format!("{verb} on {status} {body:?}: {ended:?}");
            match (verb, ended) {
                // A proxy's 412 is as good as the store's: nothing was written.
                ("create" | "swap", Ok(outcome)) => assert_ne!(outcome, "applied", "{context}"),
                // Emptiness is what the answer to a deletion may be.
                ("delete", Ok(_)) => assert!(body.is_empty(), "{context}"),
                (_, ended) => assert!(ended.is_err(), "{context}"),
            }
        }
    }
}

#[test]
fn an_answer_that_breaks_off_anywhere_is_not_taken_for_a_whole_one() {
    let _machine = alone();
    let keys: Vec<String> = (0..20).map(|n| format!("{n:06}")).collect();
    let object = answer("200 OK", "binary/octet-stream", "ETag: \"1\"\r\n", "0123456789");
    for (whole, body_at) in [(object, 10), (listing(&keys, None), 40)] {
        let start = whole.len() - body_at;
        for cut in (0..start).step_by(7).chain(start..whole.len()) {
            let server = Server::start(Words::Once(whole[..cut].to_vec()));
            let bucket = open(&server).with_limits(Limits { deadline: DEADLINE, attempts: 1 });
            celld_rt::block_on(async {
                let object = bucket.get("k").await;
                assert!(object.is_err(), "{cut} of {}: {object:?}", whole.len());
                let page = bucket.list("", None).await;
                assert!(page.is_err(), "{cut} of {}: {page:?}", whole.len());
            });
        }
    }
}

/// What a server may say, whole or in part, in the wrong place or with other bytes.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        answer("200 OK", "binary/octet-stream", "ETag: \"1\"\r\n", "0123456789"),
        answer(
            "206 Partial Content",
            "x/y",
            "Content-Range: bytes 0-8/9\r\nETag: \"1\"\r\n",
            "012345678",
        ),
        answer(
            "412 Precondition Failed",
            "application/xml",
            "",
            "<Error><Code>PreconditionFailed</Code></Error>",
        ),
        answer("404 Not Found", "application/xml", "", "<Error><Code>NoSuchKey</Code></Error>"),
        answer(
            "503 Slow Down",
            "application/xml",
            "Retry-After: 1\r\n",
            "<Error><Code>SlowDown</Code></Error>",
        ),
        answer(
            "200 OK",
            "application/xml",
            "",
            "<DeleteResult><Error><Code>x</Code></Error></DeleteResult>",
        ),
        listing(&["a".to_owned(), "b&<\"".to_owned()], None),
        listing(&["a".to_owned()], Some("token")),
    ]);
    let changed = (known, prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6));
    let changed = changed.prop_map(|(mut bytes, changes)| {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            match byte % 4 {
                0 => bytes.truncate(at + 1),
                1 => bytes.insert(at, byte),
                2 => drop(bytes.remove(at)),
                _ => bytes[at] = byte,
            }
            if bytes.is_empty() {
                bytes.push(byte);
            }
        }
        bytes
    });
    prop_oneof![3 => changed, 1 => prop::collection::vec(any::<u8>(), 0..400)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_server_says_no_verb_panics_and_none_waits_for_ever(bytes in words()) {
        let _machine = alone();
        let says_applied = bytes.starts_with(b"HTTP/1.1 200") || bytes.starts_with(b"HTTP/1.0 200")
            || bytes.starts_with(b"HTTP/1.1 2") || bytes.starts_with(b"HTTP/1.0 2");
        let server = Server::start(Words::Once(bytes));
        let limits = Limits { deadline: Duration::from_millis(300), attempts: 1 };
        let bucket = open(&server).with_limits(limits);
        let begin = Instant::now();
        let ended = celld_rt::block_on(ask_all(&bucket));
        prop_assert!(begin.elapsed() < Duration::from_secs(20));
        for (verb, ended) in ended {
            if matches!(ended.as_deref(), Ok("applied")) {
                prop_assert!(says_applied, "{verb} was taken for applied");
            }
        }
    }
}
