//! Signatures against the examples of Amazon's reference, and against the library's signer.

use http::Request;
use reqsign_aws_v4::{RequestSigner, StaticCredentialProvider};
use reqsign_core::{Context, Signer};

use super::*;

const ID: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

fn key(token: Option<&str>) -> AccessKey {
    AccessKey::new(&AWS, ID.into(), SECRET.into(), token, "us-east-1".into()).expect("a key")
}

fn parts(request: http::request::Builder) -> Parts {
    request.body(()).expect("a request").into_parts().0
}

fn authorization(parts: &Parts) -> &str {
    parts.headers[AUTHORIZATION].to_str().expect("text")
}

/// "Signature Calculations for the Authorization Header", Amazon S3 API reference.
#[test]
fn the_examples_of_the_reference_are_signed_as_it_says() {
    const HOST: &str = "http://examplebucket.s3.amazonaws.com";
    for (request, body, wanted) in [
        (
            Request::get(format!("{HOST}/test.txt")).header("range", "bytes=0-9"),
            "",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            Request::put(format!("{HOST}/test%24file.text"))
                .header("date", "Fri, 24 May 2013 00:00:00 GMT")
                .header("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            "Welcome to Amazon S3.",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            Request::get(format!("{HOST}/?lifecycle")),
            "",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            Request::get(format!("{HOST}/?prefix=J&max-keys=2")),
            "",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ] {
        let mut parts = parts(request);
        let now = 1_369_353_600_000;
        key(None).sign(&mut parts, &Bytes::from(body), now).expect("a signature");
        assert!(authorization(&parts).ends_with(&format!("Signature={wanted}")), "{parts:?}");
    }
}

#[test]
fn the_library_signs_the_same_requests_equally() {
    let library = Signer::new(
        Context::new(),
        StaticCredentialProvider::new(ID, SECRET).with_session_token("to/ken=="),
        RequestSigner::new("s3", "us-east-1"),
    );
    celld_rt::block_on(async move {
        for request in [
            Request::get("https://b.example/a%20b/%C3%A9%2B%25?prefix=a%2Fb&list-type=2&empty="),
            Request::put("https://b.example:9000/k").header("if-none-match", "*"),
            Request::put("https://b.example/k")
                .header("if-match", "\"e\"")
                .header("x-amz-meta-a", "b"),
            Request::delete("https://b.example/k?versionId=3"),
        ] {
            let mut theirs = parts(request);
            let mut ours = theirs.clone();
            theirs.headers.insert("x-amz-content-sha256", HeaderValue::from_static(EMPTY));
            library.sign(&mut theirs, None).await.expect("a signature");
            let stamp = theirs.headers["x-amz-date"].to_str().expect("text");
            let now = celld_rt::wall_ms();
            // Their clock may have ticked since.
            let at = [now, now - 1_000].into_iter().find(|&at| stamp_of(at / 1_000) == stamp);
            let at = at.expect("just now");
            key(Some("to/ken==")).sign(&mut ours, &Bytes::new(), at).expect("a signature");
            assert_eq!(authorization(&ours), authorization(&theirs));
        }
    });
}

#[test]
fn a_condition_cannot_be_taken_away_unnoticed_and_a_hop_s_header_can() {
    let signature = |request: http::request::Builder| {
        let mut parts = parts(request);
        key(None).sign(&mut parts, &Bytes::new(), 0).expect("a signature");
        authorization(&parts).to_owned()
    };
    let put = || Request::put("http://b.example/k");
    let plain = signature(put());
    assert_ne!(signature(put().header("if-none-match", "*")), plain);
    assert_ne!(signature(put().header("range", "bytes=0-1")), plain);
    for name in ["content-length", "user-agent", "accept-encoding", "connection"] {
        assert_eq!(signature(put().header(name, "1")), plain, "{name}");
    }
}

#[test]
fn bodies_are_hashed_where_nothing_else_keeps_them_whole() {
    let hash = |url: &str, body: &'static str, given: Option<&str>| {
        let mut request = Request::put(url);
        if let Some(given) = given {
            request = request.header("x-amz-content-sha256", given);
        }
        let mut parts = parts(request);
        key(None).sign(&mut parts, &Bytes::from(body), 0).expect("a signature");
        parts.headers["x-amz-content-sha256"].to_str().expect("text").to_owned()
    };
    assert_eq!(hash("https://b.example/k", "", None), EMPTY);
    assert_eq!(hash("https://b.example/k", "abc", None), UNSIGNED);
    assert_eq!(
        hash("http://b.example/k", "abc", None),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
    assert_eq!(hash("http://b.example/k", "abc", Some(UNSIGNED)), UNSIGNED);
}

#[test]
fn a_key_of_the_day_serves_its_day_only() {
    let key = key(None);
    let signed_at = |ms| {
        let mut parts = parts(Request::get("http://b.example/k"));
        key.sign(&mut parts, &Bytes::new(), ms).expect("a signature");
        authorization(&parts).to_owned()
    };
    let (first, second) = (signed_at(86_399_999), signed_at(86_400_000));
    assert!(first.contains("/19700101/us-east-1/s3/") && second.contains("/19700102/"));
    assert_eq!(signed_at(86_399_999), first, "not by the key of the other day");
}

#[test]
fn what_cannot_be_a_header_is_refused_before_it_signs() {
    let new = |id: &str, secret: &str, token| {
        AccessKey::new(&AWS, id.into(), secret.into(), token, "r".into()).map(drop)
    };
    assert!(new("id", "secret", Some("")).is_ok());
    for (id, secret, token) in
        [("", "s", None), ("i d", "s", None), ("id", "", None), ("id", "s", Some("a\nb"))]
    {
        assert!(new(id, secret, token).is_err(), "{id:?} {secret:?} {token:?}");
    }
}
