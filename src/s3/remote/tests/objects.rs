//! Reads and plain writes, answered by a store that is not one.

use bytes::Bytes;
use celld_rt::block_on;

use super::{Say, Scripted, attempts, error, say};
use crate::{Etag, GET_BYTES_MAX, StoreError};

/// A store that says this to all.
fn saying(answer: impl Fn() -> Say + Send + 'static) -> Scripted {
    Scripted::start(move |_| answer())
}

#[test]
fn nothing_is_there_only_when_the_store_itself_says_so() {
    let store = saying(|| error(404, "NoSuchKey"));
    assert_eq!(block_on(store.bucket().get("a")).expect("an answer"), None);
    let others: [fn() -> Say; 5] = [
        || error(404, "NoSuchBucket"),
        || say(404, &[], "<html>not found</html>"),
        || say(404, &[], ""),
        || error(403, "AccessDenied"),
        || Say::Last(b"HTTP/1.1 404 X\r\nContent-Length: 99\r\n\r\n<Error><Code>NoSuchKey".into()),
    ];
    for (n, answer) in others.into_iter().enumerate() {
        let store = saying(answer);
        let read = block_on(store.bucket().with_limits(attempts(1)).get("a"));
        assert!(read.is_err(), "case {n}: {read:?}");
    }
}

#[test]
fn an_object_is_whole_or_an_error() {
    let cut = "HTTP/1.1 200 OK\r\nETag: \"t\"\r\nContent-Length: 9\r\n\r\n12345";
    let chunked =
        "HTTP/1.1 200 OK\r\nETag: \"t\"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n";
    for text in [cut, chunked] {
        let store = saying(move || Say::Last(text.into()));
        let read = block_on(store.bucket().with_limits(attempts(1)).get("a"));
        assert!(matches!(read, Err(StoreError::Unreachable { .. })), "{text:?}: {read:?}");
    }
    let store = saying(|| say(200, &[], "no tag"));
    let read = block_on(store.bucket().get("a"));
    assert!(matches!(read, Err(StoreError::Broken { .. })), "{read:?}");
    let store = saying(|| say(200, &[("ETag", "W/\"t\"")], "12345"));
    let read = block_on(store.bucket().get("a")).expect("an answer").expect("an object");
    assert_eq!((read.body, read.etag), (Bytes::from("12345"), Etag::new("\"t\"")));
}

#[test]
fn a_length_that_is_only_claimed_takes_no_memory() {
    let claimed = GET_BYTES_MAX + 1;
    let head = format!("HTTP/1.1 200 OK\r\nETag: \"t\"\r\nContent-Length: {claimed}\r\n\r\n");
    let store = saying(move || Say::Bytes(head.clone().into()));
    let read = block_on(store.bucket().get("a"));
    assert!(matches!(read, Err(StoreError::TooLarge { size, .. }) if size == claimed), "{read:?}");
}

#[test]
fn a_large_object_is_of_one_version() {
    const SIZE: u64 = 20 << 20;
    let store = Scripted::start(|asked| {
        if asked.header("range").is_none() {
            let head =
                format!("HTTP/1.1 200 OK\r\nETag: \"old\"\r\nContent-Length: {SIZE}\r\n\r\n");
            return Say::Bytes(head.into());
        }
        match asked.header("if-match") {
            Some("\"old\"") => error(412, "PreconditionFailed"),
            _ => say(206, &[("ETag", "\"new\""), ("Content-Range", "bytes 0-0/1")], "x"),
        }
    });
    let read = block_on(store.bucket().with_limits(attempts(1)).get("a"));
    assert!(matches!(read, Err(StoreError::Unreachable { .. })), "{read:?}");
}

#[test]
fn a_range_is_exactly_the_wanted_bytes_or_an_error() {
    let range = |answer: fn() -> Say| {
        let store = saying(answer);
        let read = block_on(store.bucket().with_limits(attempts(2)).get_range("a", 3..7));
        (read, store.asked())
    };
    let (read, asked) = range(|| say(206, &[("Content-Range", "bytes 3-6/10")], "3456"));
    assert_eq!(read.expect("bytes"), "3456");
    assert_eq!(asked[0].header("range"), Some("bytes=3-6"));
    let broken: [fn() -> Say; 7] = [
        || say(200, &[], "3456"),
        || say(200, &[("Content-Range", "bytes 3-6/10")], "3456"),
        || say(206, &[], "3456"),
        || say(206, &[("Content-Range", "bytes 0-3/10")], "0123"),
        || say(206, &[("Content-Range", "bytes 3-6/10")], "345"),
        || say(206, &[("Content-Range", "bytes 3-6/10")], "34567"),
        || say(206, &[("Content-Range", "bytes 3-5/10")], "345"),
    ];
    for (n, answer) in broken.into_iter().enumerate() {
        let (read, asked) = range(answer);
        assert!(matches!(read, Err(StoreError::Broken { .. })), "case {n}: {read:?}");
        assert_eq!(asked.len(), 1, "case {n}: asking again does not help");
    }
    let short: [fn() -> Say; 3] = [
        || say(206, &[("Content-Range", "bytes 3-4/5")], "34"),
        || say(416, &[("Content-Range", "bytes */5")], ""),
        || {
            let size = "<ActualObjectSize>5</ActualObjectSize>";
            say(416, &[], &format!("<Error><Code>InvalidRange</Code>{size}</Error>"))
        },
    ];
    for (n, answer) in short.into_iter().enumerate() {
        let (read, _) = range(answer);
        assert!(matches!(read, Err(StoreError::Range { size: 5, .. })), "case {n}: {read:?}");
    }
    let (read, _) = range(|| error(404, "NoSuchKey"));
    assert!(matches!(read, Err(StoreError::Missing { .. })), "{read:?}");
}

#[test]
fn keys_are_encoded_once_below_the_prefix() {
    let store = saying(|| say(200, &[("ETag", "\"t\"")], ""));
    let bucket = store.bucket();
    block_on(async {
        for key in ["a b+c", "%2F", "é/?#&", "a/b.c_d-e~f"] {
            bucket.put(key, Bytes::from("x")).await.expect("a write");
        }
        let long = "k".repeat(1_021);
        let refused = bucket.put(&long, Bytes::new()).await;
        assert!(matches!(refused, Err(StoreError::BadKey { .. })), "no room for the prefix");
    });
    let targets: Vec<_> = store.asked().into_iter().map(|asked| asked.target).collect();
    let wanted = ["a%20b%2Bc", "%252F", "%C3%A9/%3F%23%26", "a/b.c_d-e~f"];
    assert_eq!(targets, wanted.map(|key| format!("/bucket/pre/{key}")));
}

#[test]
fn a_deletion_of_many_is_one_request_and_each_that_failed_is_tried_by_itself() {
    let store = Scripted::start(|asked| match asked.method.as_str() {
        "POST" => {
            let failed = "<Error><Key>pre/b</Key><Code>InternalError</Code></Error>";
            say(200, &[], &format!("<DeleteResult>{failed}</DeleteResult>"))
        }
        _ => say(204, &[], ""),
    });
    let keys = ["a<&>", "b"].map(str::to_owned);
    block_on(store.bucket().delete(&keys)).expect("all are deleted");
    let asked = store.asked();
    let body = String::from_utf8(asked[0].body.clone()).expect("text");
    assert!(body.contains("<Key>pre/a&lt;&amp;&gt;</Key>"), "{body}");
    assert_eq!(asked[0].target, "/bucket?delete=");
    assert!(asked[0].header("content-md5").is_some(), "stores insist on it");
    let mut single: Vec<_> = asked[1..].iter().map(|asked| asked.target.as_str()).collect();
    single.sort_unstable();
    assert_eq!(single, ["/bucket/pre/a%3C%26%3E", "/bucket/pre/b"]);
}

#[test]
fn a_store_without_deletion_of_many_is_asked_one_by_one() {
    let store = Scripted::start(|asked| match asked.method.as_str() {
        "POST" => error(501, "NotImplemented"),
        _ => error(404, "NoSuchKey"),
    });
    let keys: Vec<_> = (0..20).map(|n| format!("k{n}")).collect();
    block_on(store.bucket().delete(&keys)).expect("what is not there counts as deleted");
    assert_eq!(store.asked().len(), 21);
    // What XML cannot carry goes by itself, too.
    let odd = ["a\u{1}", "b"].map(str::to_owned);
    block_on(store.bucket().delete(&odd)).expect("deleted");
    assert!(store.asked()[21..].iter().all(|asked| asked.method == "DELETE"));
}

#[test]
fn a_large_write_is_tried_again_when_its_end_fails_behind_a_good_head() {
    let mut completed = 0;
    let store = Scripted::start(move |asked| {
        if asked.target.ends_with("?uploads=") {
            let id = "<UploadId>u/1</UploadId>";
            let body =
                format!("<InitiateMultipartUploadResult>{id}</InitiateMultipartUploadResult>");
            return say(200, &[], &body);
        }
        if asked.method == "PUT" {
            return say(200, &[("ETag", "\"part\"")], "");
        }
        completed += 1;
        let done = "<CompleteMultipartUploadResult><ETag>&quot;t-2&quot;</ETag>\
                    </CompleteMultipartUploadResult>";
        let failed = "<Error><Code>InternalError</Code></Error>";
        say(200, &[], if completed == 1 { failed } else { done })
    });
    let body = Bytes::from(vec![7; (8 << 20) + 1]);
    let etag = block_on(store.bucket().put("a", body)).expect("a write");
    assert_eq!(etag, Etag::new("\"t-2\""));
    let asked = store.asked();
    let parts: Vec<_> = asked.iter().filter(|asked| asked.method == "PUT").collect();
    assert_eq!(parts.iter().map(|asked| asked.body.len()).sum::<usize>(), (8 << 20) + 1);
    assert!(parts.iter().all(|asked| asked.target.ends_with("&uploadId=u%2F1")));
    let complete = String::from_utf8(asked.last().expect("the end").body.clone()).expect("text");
    assert!(complete.contains("<ETag>\"part\"</ETag><PartNumber>2</PartNumber>"), "{complete}");
}

/// A store where the end of a large write is answered with "no such upload", and the object that is
/// there carries the upload's mark, or another one.
fn after_a_lost_end(is_ours: bool) -> Scripted {
    let mut mark = "another".to_owned();
    Scripted::start(move |asked| match asked.method.as_str() {
        "POST" if asked.target.ends_with("?uploads=") => {
            if is_ours {
                mark = asked.header("x-amz-meta-upload").expect("a mark").to_owned();
            }
            let id = "<UploadId>u</UploadId>";
            let name = "InitiateMultipartUploadResult";
            say(200, &[], &format!("<{name}>{id}</{name}>"))
        }
        "POST" | "DELETE" => error(404, "NoSuchUpload"),
        "PUT" => say(200, &[("ETag", "\"part\"")], ""),
        _ => {
            let range = ("Content-Range", "bytes 0-0/9");
            say(206, &[("ETag", "\"made\""), ("x-amz-meta-upload", &mark), range], "x")
        }
    })
}

#[test]
fn a_large_write_that_was_over_has_made_the_object_with_its_mark() {
    let body = Bytes::from(vec![7; (8 << 20) + 1]);
    let made = block_on(after_a_lost_end(true).bucket().put("a", body.clone()));
    assert_eq!(made.expect("a write"), Etag::new("\"made\""));
    let error = block_on(after_a_lost_end(false).bucket().put("a", body)).expect_err("another's");
    assert!(error.to_string().contains("NoSuchUpload"), "{error}");
}

#[test]
fn a_large_write_that_fails_takes_its_parts_back() {
    let store = Scripted::start(|asked| match asked.method.as_str() {
        "POST" => {
            let id = "<UploadId>u</UploadId>";
            say(
                200,
                &[],
                &format!("<InitiateMultipartUploadResult>{id}</InitiateMultipartUploadResult>"),
            )
        }
        "PUT" => error(403, "AccessDenied"),
        _ => say(204, &[], ""),
    });
    let bucket = store.bucket();
    block_on(async {
        let put = bucket.put("a", Bytes::from(vec![7; (8 << 20) + 1])).await;
        assert!(matches!(put, Err(StoreError::Denied { .. })), "{put:?}");
        while !store.asked().iter().any(|asked| asked.method == "DELETE") {
            celld_rt::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    let asked = store.asked();
    assert_eq!(asked.last().expect("a request").target, "/bucket/pre/a?uploadId=u");
}
