//! Listings of stores that list as they like.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use celld_rt::block_on;

use super::{Asked, Say, Scripted, attempts, say};
use crate::{Dialect, PAGE_ENTRIES_MAX, Page, StoreError};

/// The value of a parameter, decoded.
fn query(asked: &Asked, name: &str) -> Option<String> {
    let (_, query) = asked.target.split_once('?')?;
    let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")))?;
    super::super::dialect::decode(pair, false)
}

fn page(keys: &[String], next: Option<usize>) -> Say {
    let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult \
                    xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>bucket</Name>\
                    <EncodingType>url</EncodingType>"
        .to_owned();
    for key in keys {
        let mut encoded = String::new();
        super::super::dialect::encode_query(&format!("pre/{key}"), &mut encoded);
        write!(text, "<Contents><Key>{encoded}</Key><Size>{}</Size></Contents>", key.len())
            .expect("a string takes all");
    }
    match next {
        Some(at) => write!(
            text,
            "<IsTruncated>true</IsTruncated><NextContinuationToken>t {at}</NextContinuationToken>"
        ),
        None => write!(text, "<IsTruncated>false</IsTruncated>"),
    }
    .expect("a string takes all");
    say(200, &[], &format!("{text}</ListBucketResult>"))
}

/// A store that lists `keys` in this order, 1,000 at a time, and takes tokens only.
fn listing(keys: Vec<String>) -> Scripted {
    Scripted::start(move |asked| {
        let prefix = query(asked, "prefix").unwrap_or_default();
        let prefix = prefix.strip_prefix("pre/").expect("all is below the bucket's prefix");
        let keys: Vec<_> = keys.iter().filter(|key| key.starts_with(prefix)).cloned().collect();
        let start = query(asked, "continuation-token");
        let start = start.map_or(0, |token| token[2..].parse::<usize>().expect("our token"));
        let end = keys.len().min(start + PAGE_ENTRIES_MAX);
        page(&keys[start..end], (end < keys.len()).then_some(end))
    })
}

fn all_keys(store: &Scripted, prefix: &str) -> (Vec<String>, usize) {
    let bucket = store.bucket();
    block_on(async {
        let (mut keys, mut pages) = (Vec::new(), 0);
        loop {
            let after = keys.last().cloned();
            let Page { entries, more } =
                bucket.list(prefix, after.as_deref()).await.expect("a page");
            pages += 1;
            keys.extend(entries.into_iter().map(|entry| entry.key));
            if !more {
                return (keys, pages);
            }
        }
    })
}

#[test]
fn pages_are_in_byte_order_whatever_the_store_does() {
    // As a tree lists: what is below `d` comes before `d!`.
    let mut keys: Vec<_> = (0..1_500).map(|n| format!("d/{n:04}")).collect();
    keys.extend((0..1_500).map(|n| format!("d!{n:04}")));
    let store = listing(keys.clone());
    let (found, pages) = all_keys(&store, "d");
    keys.sort_unstable();
    assert!(found == keys, "each key once, in order");
    assert_eq!(pages, 3);
    assert!(store.asked().iter().all(|asked| query(asked, "start-after").is_none()));
}

#[test]
fn a_listing_that_fits_is_one_request_and_odd_keys_come_as_they_are() {
    let keys = ["a<b>&\"'", "a b+c", "%2F", "é🦀", "\u{1}", "]]>"].map(str::to_owned);
    let store = listing(keys.to_vec());
    let (found, _) = all_keys(&store, "");
    let mut wanted = keys.to_vec();
    wanted.sort_unstable();
    assert_eq!((found, store.asked().len()), (wanted, 1));
}

#[test]
fn a_store_that_is_trusted_is_asked_to_go_on_and_a_lie_is_noticed() {
    let keys: Vec<_> = (0..2_500).map(|n| format!("{n:04}")).collect();
    let sorted = keys.clone();
    let store = Scripted::start(move |asked| {
        let after = query(asked, "start-after").unwrap_or_default();
        let rest: Vec<_> =
            sorted.iter().filter(|key| format!("pre/{key}") > after).cloned().collect();
        let end = rest.len().min(PAGE_ENTRIES_MAX);
        page(&rest[..end], (end < rest.len()).then_some(end))
    });
    let bucket = store.bucket();
    bucket.trust_list_order();
    block_on(async {
        let (mut found, mut more) = (Vec::new(), true);
        while more {
            let after = found.last().cloned();
            let page = bucket.list("", after.as_deref()).await.expect("a page");
            found.extend(page.entries.into_iter().map(|entry| entry.key));
            more = page.more;
        }
        assert!(found == keys);
    });
    assert_eq!(store.asked().len(), 3, "one request for each page");
    let liar = listing(["b", "a"].map(str::to_owned).to_vec());
    let bucket = liar.bucket();
    bucket.trust_list_order();
    let page = block_on(bucket.list("", None)).expect("a page");
    assert_eq!(page.entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn byte_order_is_believed_after_a_listing_that_could_tell_another() {
    for (keys, is_believed) in [
        (&["d!", "d/a"][..], true),
        (&["d/a", "d!"], false),
        // Not all of what was written: it tells nothing.
        (&["d!"], false),
        (&[], false),
    ] {
        let store = listing(keys.iter().map(|key| (*key).to_owned()).collect());
        let bucket = store.bucket();
        block_on(bucket.learn_list_order("d")).expect("a listing");
        let Dialect::Remote(remote) = &bucket.dialect else { panic!("it is a store") };
        assert_eq!(remote.in_byte_order.load(Ordering::Relaxed), is_believed, "{keys:?}");
    }
}

#[test]
fn what_others_put_there_is_not_ours() {
    let keys = ["a", "dir/", "a//b", "../x", "b"].map(str::to_owned);
    let (found, _) = all_keys(&listing(keys.to_vec()), "");
    assert_eq!(found, ["a", "b"]);
}

#[test]
fn an_answer_that_is_no_listing_is_an_error_and_costs_little() {
    let entry = "<Contents><Key>pre/k</Key><Size>1</Size></Contents>";
    let texts = [
        "<html>hello</html>".to_owned(),
        "{}".to_owned(),
        String::new(),
        "<ListBucketResult><Contents><Key>pre/k</Key></Contents></ListBucketResult>".to_owned(),
        "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>".to_owned(),
        "<ListBucketResult><Contents><Key>other/k</Key><Size>1</Size></Contents></ListBucketResult>"
            .to_owned(),
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>".to_owned(),
        format!("<ListBucketResult>{}", entry.repeat(10)),
        format!("<ListBucketResult>{}</ListBucketResult>", entry.repeat(100_000)),
        "x".repeat(9 << 20),
    ];
    for text in texts {
        let shown = text.chars().take(100).collect::<String>();
        let store = Scripted::start(move |_| say(200, &[], &text));
        let listed = block_on(store.bucket().with_limits(attempts(1)).list("", None));
        assert!(matches!(listed, Err(StoreError::Unreachable { .. })), "{shown}: {listed:?}");
    }
}

#[test]
fn a_body_without_end_is_cut() {
    let store = Scripted::start(|_| {
        let mut text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for _ in 0..160 {
            text.extend_from_slice(b"10000\r\n");
            text.extend_from_slice(&[b'x'; 0x10000]);
            text.extend_from_slice(b"\r\n");
        }
        Say::Bytes(text)
    });
    let listed = block_on(store.bucket().with_limits(attempts(1)).list("", None));
    let error = listed.expect_err("no listing").to_string();
    assert!(error.contains("without end"), "{error}");
}

#[test]
fn a_listing_that_goes_round_in_circles_breaks_the_contract() {
    let store = Scripted::start(|_| page(&["a".to_owned()], Some(7)));
    let listed = block_on(store.bucket().list("", None));
    assert!(matches!(listed, Err(StoreError::Broken { .. })), "{listed:?}");
}

/// A container of 2,500 blobs, listed in order and by markers only.
fn container() -> (Scripted, Vec<String>) {
    let keys: Vec<_> = (0..2_500).map(|n| format!("{n:04}")).collect();
    let all = keys.clone();
    let store = Scripted::start(move |asked| {
        assert!(asked.target.starts_with("/account/bucket?comp=list&"), "{}", asked.target);
        let start = query(asked, "marker");
        let start = start.map_or(0, |marker| marker[2..].parse::<usize>().expect("our marker"));
        let end = all.len().min(start + PAGE_ENTRIES_MAX);
        let mut text = "<EnumerationResults><Blobs>".to_owned();
        for key in &all[start..end] {
            let size = "<Properties><Content-Length>4</Content-Length></Properties>";
            write!(text, "<Blob><Name>pre/{key}</Name>{size}</Blob>").expect("a string takes all");
        }
        let marker = if end < all.len() { format!("2!{end}") } else { String::new() };
        write!(text, "</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>")
            .expect("a string takes all");
        say(200, &[], &text)
    });
    (store, keys)
}

#[test]
fn a_listing_that_cannot_begin_behind_a_key_goes_on_at_its_token() {
    let (store, keys) = container();
    let bucket = store.container();
    bucket.trust_list_order();
    block_on(async {
        let (mut found, mut more) = (Vec::new(), true);
        while more {
            let after = found.last().cloned();
            let page = bucket.list("", after.as_deref()).await.expect("a page");
            found.extend(page.entries.into_iter().map(|entry| entry.key));
            more = page.more;
        }
        assert!(found == keys);
        assert_eq!(store.asked().len(), 3, "one request for each page");
        // Of this one there is no token: what is before is read again.
        let page = bucket.list("", Some("1999")).await.expect("a page");
        assert_eq!((page.entries.len(), page.more), (500, false));
        assert_eq!(page.entries[0].key, "2000");
        assert_eq!(store.asked().len(), 6);
    });
}
