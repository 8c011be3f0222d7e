//! How a conditional write can end: one request, one of three outcomes, or an error that means
//! that it did not apply.

use std::net::TcpListener;
use std::time::Duration;

use bytes::Bytes;
use celld_rt::block_on;

use super::{Asked, Say, Scripted, bucket_at, error, say};
use crate::{Bucket, CasOutcome, Etag, Guard, Limits, StoreError};

async fn put_if(bucket: &Bucket, guard: Guard) -> Result<CasOutcome, StoreError> {
    bucket.put_if("a", guard, Bytes::from("body")).await
}

/// The end of one conditional write on a store that says this, and how often it was asked.
fn end_of(
    guard: &Guard,
    answer: impl Fn() -> Say + Send + 'static,
) -> (Result<CasOutcome, StoreError>, usize) {
    let store = Scripted::start(move |_| answer());
    let end = block_on(put_if(&store.bucket(), guard.clone()));
    (end, store.asked().len())
}

fn seen() -> Guard {
    Guard::Match(Etag::new("\"seen\""))
}

#[test]
fn the_guard_the_body_and_the_signature_are_sent() {
    let store = Scripted::start(|_| say(200, &[("ETag", "\"new\"")], ""));
    let bucket = store.bucket();
    block_on(async {
        let applied = CasOutcome::Applied(Etag::new("\"new\""));
        assert_eq!(put_if(&bucket, Guard::Absent).await.expect("an answer"), applied);
        assert_eq!(put_if(&bucket, seen()).await.expect("an answer"), applied);
        // As other stores, or older versions of us, spelled it.
        let bare = Guard::Match(Etag::new("seen"));
        assert_eq!(put_if(&bucket, bare).await.expect("an answer"), applied);
        bucket.set_bare_etags();
        assert_eq!(put_if(&bucket, seen()).await.expect("an answer"), applied);
    });
    let asked = store.asked();
    let guards: Vec<_> = asked
        .iter()
        .map(|asked| (asked.header("if-none-match"), asked.header("if-match")))
        .collect();
    let quoted = (None, Some("\"seen\""));
    assert_eq!(guards, [(Some("*"), None), quoted, quoted, (None, Some("seen"))]);
    for Asked { method, target, body, headers, .. } in &asked {
        assert_eq!((method.as_str(), target.as_str()), ("PUT", "/bucket/pre/a"));
        assert_eq!(body, b"body");
        let signed = headers.iter().find(|(name, _)| name == "authorization").expect("signed");
        assert!(signed.1.contains("host;"), "{}", signed.1);
        assert!(signed.1.contains(";if-match;") || signed.1.contains(";if-none-match;"));
    }
    assert!(asked.iter().all(|asked| asked.connection == 0), "one connection for all");
}

#[test]
fn only_an_answer_that_says_so_is_applied_or_refused() {
    use CasOutcome::{Applied, Refused, Unknown};
    let new = |tag: &str| Applied(Etag::new(tag));
    type Case = (Guard, fn() -> Say, CasOutcome);
    let cases: [Case; 20] = [
        (seen(), || say(200, &[("ETag", "\"new\"")], ""), new("\"new\"")),
        (seen(), || say(201, &[("ETag", "\"new\"")], ""), new("\"new\"")),
        (seen(), || say(200, &[("ETag", "W/\"new\"")], ""), new("\"new\"")),
        (seen(), || say(200, &[("ETag", "new")], ""), new("\"new\"")),
        // Applied, and a read tells the version.
        (seen(), || say(200, &[], ""), Unknown),
        (seen(), || error(412, "PreconditionFailed"), Refused),
        (seen(), || say(412, &[], ""), Refused),
        (Guard::Absent, || error(412, "PreconditionFailed"), Refused),
        // There is nothing that could match.
        (seen(), || error(404, "NoSuchKey"), Refused),
        // Retry, never lost.
        (seen(), || error(409, "ConditionalRequestConflict"), Unknown),
        (Guard::Absent, || error(409, "OperationAborted"), Unknown),
        (seen(), || say(304, &[], ""), Unknown),
        (seen(), || error(500, "InternalError"), Unknown),
        // What Ceph says to those who lose a race.
        (seen(), || error(500, "UnknownError"), Unknown),
        (seen(), || error(503, "SlowDown"), Unknown),
        (seen(), || error(429, "TooManyRequests"), Unknown),
        // Somebody in between: it may have come from before the store or from behind it.
        (seen(), || say(502, &[], "<html>bad gateway</html>"), Unknown),
        (seen(), || say(403, &[], "<html>forbidden</html>"), Unknown),
        (seen(), || say(404, &[], "<html>not found</html>"), Unknown),
        (Guard::Absent, || say(404, &[], ""), Unknown),
    ];
    for (n, (guard, answer, wanted)) in cases.into_iter().enumerate() {
        let (end, count) = end_of(&guard, answer);
        assert_eq!(end.unwrap_or_else(|error| panic!("{n}: {error}")), wanted, "case {n}");
        assert_eq!(count, 1, "case {n}: sent once");
    }
}

#[test]
fn an_error_says_that_it_did_not_apply_and_what_to_do() {
    fn denied(error: &StoreError) -> bool {
        matches!(error, StoreError::Denied { .. })
    }
    type Case = (fn() -> Say, fn(&StoreError) -> bool, &'static str);
    let cases: [Case; 9] = [
        (|| error(403, "AccessDenied"), denied, "403 AccessDenied"),
        (|| error(403, "SignatureDoesNotMatch"), denied, "SignatureDoesNotMatch"),
        (|| error(400, "InvalidArgument"), denied, "400 InvalidArgument: m"),
        (|| error(400, "ExpiredToken"), denied, "ExpiredToken"),
        (|| error(404, "NoSuchBucket"), denied, "make it, or correct"),
        (|| error(501, "NotImplemented"), denied, "NotImplemented"),
        (
            || {
                let body = "<Error><Code>AuthorizationHeaderMalformed</Code>\
                            <Region>eu-west-3</Region></Error>";
                say(400, &[], body)
            },
            denied,
            "--region eu-west-3",
        ),
        (
            || {
                let body = "<Error><Code>PermanentRedirect</Code></Error>";
                say(301, &[("x-amz-bucket-region", "eu-west-3")], body)
            },
            denied,
            "--region eu-west-3",
        ),
        (
            || error(507, "QuotaExceeded"),
            |error| matches!(error, StoreError::Full { .. }),
            "QuotaExceeded",
        ),
    ];
    for (n, (answer, is_right, text)) in cases.into_iter().enumerate() {
        let (end, count) = end_of(&seen(), answer);
        let error = end.expect_err("it did not apply");
        assert!(is_right(&error), "case {n}: {error:?}");
        assert!(error.to_string().contains(text), "case {n}: {error}");
        assert_eq!(count, 1, "case {n}: sent once");
    }
}

#[test]
fn a_create_that_finds_nothing_to_create_breaks_the_contract() {
    let (end, _) = end_of(&Guard::Absent, || error(404, "NoSuchKey"));
    let error = end.expect_err("a broken store");
    assert!(matches!(error, StoreError::Broken { .. }), "{error:?}");
}

#[test]
fn a_connection_that_ends_before_the_answer_leaves_it_unknown() {
    for cut in ["", "HTTP/1.1 200 OK\r\nETag: \"new\"\r\n", "garbage\r\n\r\n"] {
        let (end, count) = end_of(&seen(), move || Say::Last(cut.into()));
        assert_eq!((end.expect("no error"), count), (CasOutcome::Unknown, 1), "{cut:?}");
    }
}

#[test]
fn a_store_that_hangs_leaves_it_unknown_at_the_deadline() {
    let store = Scripted::start(|_| Say::Hang);
    let limits = Limits { attempts: 9, deadline: Duration::from_millis(100) };
    let end = block_on(put_if(&store.bucket().with_limits(limits), seen()));
    assert_eq!((end.expect("no error"), store.asked().len()), (CasOutcome::Unknown, 1));
}

#[test]
fn a_store_that_nobody_reaches_was_not_asked() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let error = block_on(put_if(&bucket_at(port), seen())).expect_err("nobody is there");
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("cannot connect to 127.0.0.1"), "{error}");
}

#[test]
fn a_pooled_connection_that_dies_with_the_request_on_it_leaves_it_unknown() {
    // The first request makes the connection a pooled one; the second is taken and not answered.
    let store = Scripted::start(|asked| match asked.method.as_str() {
        "GET" => error(404, "NoSuchKey"),
        _ => Say::Last(Vec::new()),
    });
    let bucket = store.bucket();
    block_on(async {
        assert_eq!(bucket.get("a").await.expect("an answer"), None);
        assert_eq!(put_if(&bucket, seen()).await.expect("no error"), CasOutcome::Unknown);
    });
    let asked = store.asked();
    assert_eq!(asked.iter().filter(|asked| asked.method == "PUT").count(), 1, "never sent again");
    assert_eq!(asked[1].connection, 0, "the pooled one");
    assert_eq!(bucket.metrics().unknown, 1);
}
