//! What is repeated, when, and how often; and what is put right in between.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_rt::block_on;

use super::super::pool::DATA_IN_FLIGHT_MAX;
use super::{Say, Scripted, attempts, bucket_at, error, say};
use crate::{Bucket, Lane, Limits, StoreError};

fn found() -> Say {
    say(200, &[("ETag", "\"t\"")], "x")
}

/// Says each of these once, and then that it is found.
fn first(answers: Vec<Say>) -> Scripted {
    let mut answers = answers.into_iter();
    Scripted::start(move |_| answers.next().unwrap_or_else(found))
}

#[test]
fn what_may_be_repeated_is_repeated_and_what_makes_no_sense_is_not() {
    let again: [fn() -> Say; 9] = [
        || error(500, "InternalError"),
        || error(503, "SlowDown"),
        || error(429, "TooManyRequests"),
        || error(400, "RequestTimeout"),
        || error(409, "OperationAborted"),
        || say(502, &[], "<html>bad gateway</html>"),
        || say(404, &[], "<html>not found</html>"),
        || Say::Last(Vec::new()),
        || Say::Last(b"HTTP/1.1 200 OK\r\nETag: \"t\"\r\nContent-Length: 9\r\n\r\n1".into()),
    ];
    for (n, answer) in again.into_iter().enumerate() {
        let store = first(vec![answer()]);
        let read = block_on(store.bucket().get("a"));
        assert!(read.is_ok_and(|read| read.is_some()), "case {n}");
        assert_eq!(store.asked().len(), 2, "case {n}");
    }
    let never: [fn() -> Say; 5] = [
        || error(403, "AllAccessDisabled"),
        || error(400, "InvalidArgument"),
        || error(404, "NoSuchBucket"),
        || error(301, "PermanentRedirect"),
        || error(501, "NotImplemented"),
    ];
    for (n, answer) in never.into_iter().enumerate() {
        let store = first(vec![answer()]);
        let read = block_on(store.bucket().get("a"));
        assert!(matches!(read, Err(StoreError::Denied { .. })), "case {n}: {read:?}");
        assert_eq!(store.asked().len(), 1, "case {n}");
    }
}

#[test]
fn attempts_and_deadline_are_the_callers() {
    let store = Scripted::start(|_| error(500, "InternalError"));
    let read = block_on(store.bucket().with_limits(attempts(3)).get("a"));
    assert!(matches!(read, Err(StoreError::Unreachable { .. })), "{read:?}");
    assert_eq!(store.asked().len(), 3);
    let store = Scripted::start(|_| Say::Hang);
    let limits = Limits { attempts: 100, deadline: Duration::from_millis(200) };
    let begin = Instant::now();
    let read = block_on(store.bucket().with_limits(limits).get("a"));
    assert!(read.expect_err("no answer").to_string().contains("no answer in time"));
    assert!(begin.elapsed() >= Duration::from_millis(200));
}

#[test]
fn a_store_that_asks_to_wait_is_left_alone_so_long() {
    let store = first(vec![say(503, &[("Retry-After", "1")], "")]);
    block_on(store.bucket().get("a")).expect("an answer");
    let asked = store.asked();
    assert!(asked[1].at - asked[0].at >= Duration::from_secs(1));
    // A caller that cannot wait so long is told.
    let store = first(vec![say(503, &[("Retry-After", "9")], "")]);
    let limits = Limits { attempts: 9, deadline: Duration::from_secs(5) };
    match block_on(store.bucket().with_limits(limits).get("a")) {
        Err(StoreError::Throttled { after, .. }) => assert_eq!(after, Some(Duration::from_secs(9))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_that_died_while_it_was_idle_costs_no_wait() {
    // Each connection answers once, and takes one more request without an answer.
    let mut last = None;
    let store = Scripted::start(move |asked| {
        let is_first = last.replace(asked.connection) != Some(asked.connection);
        if is_first { found() } else { Say::Last(Vec::new()) }
    });
    let bucket = store.bucket().with_limits(attempts(1));
    block_on(async {
        bucket.get("a").await.expect("an answer");
        bucket.get("a").await.expect("on another connection");
        bucket.put("a", Bytes::from("x")).await.expect("the same bytes may be written again");
    });
    assert!(store.asked().len() <= 5);
}

#[test]
fn the_stores_clock_is_used_where_ours_is_wrong() {
    let store = Scripted::start(|asked| {
        let date = asked.header("x-amz-date").expect("signed").to_owned();
        if date.starts_with("20010203T0405") {
            return found();
        }
        let body = "<Error><Code>RequestTimeTooSkewed</Code></Error>";
        say(403, &[("Date", "Sat, 03 Feb 2001 04:05:06 GMT")], body)
    });
    let bucket = store.bucket();
    block_on(async {
        bucket.get("a").await.expect("signed with the store's clock");
        bucket.put("a", Bytes::from("x")).await.expect("from now on");
    });
    assert_eq!(store.asked().len(), 3);
    assert!(bucket.clock_offset_ms().is_some_and(|ms| ms < -86_400_000));
}

#[test]
fn credentials_that_are_over_are_read_again_once() {
    let store = first(vec![error(403, "ExpiredToken")]);
    block_on(store.bucket().get("a")).expect("the second one is good");
    let store = Scripted::start(|_| error(403, "ExpiredToken"));
    let read = block_on(store.bucket().get("a"));
    assert!(matches!(read, Err(StoreError::Denied { .. })), "{read:?}");
    assert_eq!(store.asked().len(), 2);
}

#[test]
fn a_store_that_is_down_sees_no_storm_and_is_found_again() {
    // It takes connections and closes them, which is the cheapest way to be stormed.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (stop, stopped) = std::sync::mpsc::sync_channel::<()>(0);
    let down = std::thread::spawn(move || {
        listener.set_nonblocking(true).expect("a socket");
        let mut count = 0;
        while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
            match listener.accept() {
                Ok(_) => count += 1,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        (count, listener)
    });
    let bucket = bucket_at(port);
    let limits = Limits { attempts: 100, deadline: Duration::from_secs(60) };
    block_on(async {
        let readers: Vec<_> = (0..200)
            .map(|_| {
                let bucket = bucket.with_limits(limits);
                celld_rt::spawn_joined(async move { bucket.get("a").await.is_ok() })
            })
            .collect();
        celld_rt::sleep(Duration::from_secs(4)).await;
        let leased = bucket.lane(Lane::Lease).with_limits(attempts(1)).get("a").await;
        assert!(leased.is_err(), "a lease is tried all the same");
        drop(stop);
        let (count, listener) = down.join().expect("no panic");
        // All of them once, the budget, and then a look each second.
        assert!(count < 200 + 64 + 20, "{count} connections in 4 s");
        let begin = Instant::now();
        std::thread::spawn(move || serve_all(&listener));
        for reader in readers {
            assert!(reader.join().await.expect("no panic"), "found again");
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    });
    let metrics = bucket.metrics();
    assert_eq!(metrics.outages, 1);
    assert!(metrics.failures >= 10, "{metrics:?}");
}

fn serve_all(listener: &TcpListener) {
    listener.set_nonblocking(false).expect("a socket");
    let log = std::sync::Mutex::new(Vec::new());
    let answer = std::sync::Mutex::new(|_: &super::Asked| found());
    std::thread::scope(|scope| {
        for (number, socket) in listener.incoming().enumerate() {
            let (log, answer) = (&log, &answer);
            scope.spawn(move || super::serve(&socket.expect("a connection"), number, log, answer));
        }
    });
}

#[test]
fn a_slow_answer_is_overtaken_by_a_second_one_where_that_is_wanted() {
    // Of 300 requests the last one hangs.
    let answers = |hedge: bool| {
        let mut count = 0;
        let store = Scripted::start(move |_| {
            count += 1;
            if count == 300 { Say::Hang } else { found() }
        });
        let mut options = store.options();
        options.hedge = hedge;
        let bucket = Bucket::open_with("s3://bucket/pre", &options).expect("a bucket");
        block_on(async {
            for _ in 0..299 {
                bucket.get("a").await.expect("an answer");
            }
            let deadline = Duration::from_millis(if hedge { 60_000 } else { 200 });
            let limits = Limits { attempts: 1, deadline };
            let last = bucket.with_limits(limits).get("a").await.is_ok();
            (last, bucket.metrics().hedges > 0, store.asked().len() > 300)
        })
    };
    assert_eq!(answers(true), (true, true, true));
    assert_eq!(answers(false), (false, false, false));
}

#[test]
fn a_lease_waits_for_no_data() {
    // Data is not answered, and there is more of it than may be under way.
    let store =
        Scripted::start(|asked| if asked.target.ends_with("/lease") { found() } else { Say::Hang });
    let bucket = store.bucket();
    block_on(async {
        let readers: Vec<_> = (0..2 * DATA_IN_FLIGHT_MAX)
            .map(|_| {
                let bucket = bucket.clone();
                celld_rt::spawn_joined(async move { bucket.get("data").await.map(drop) })
            })
            .collect();
        while store.asked().len() < DATA_IN_FLIGHT_MAX {
            celld_rt::sleep(Duration::from_millis(10)).await;
        }
        // Data is given up on after 8 s, so this is before any of it ends.
        let limits = Limits { attempts: 1, deadline: Duration::from_secs(5) };
        bucket.lane(Lane::Lease).with_limits(limits).get("lease").await.expect("an answer");
        drop(readers);
    });
    let asked = store.asked();
    let lease = asked.iter().find(|asked| asked.target.ends_with("/lease")).expect("was asked");
    let of_lease = asked.iter().filter(|other| other.connection == lease.connection);
    assert_eq!(of_lease.count(), 1, "on a connection of its own");
}
