//! AWS Signature Version 4 in headers.
//!
//! Invariant: time is an argument, so that requests can be signed with the server's clock when
//! ours is wrong. The query of a request is already canonical: sorted, encoded once, each name
//! with its `=`.
//! Source: "Create a signed AWS API request", AWS Identity and Access Management user guide.

use std::fmt::Write as _;

use http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue};
use http::request::Parts;
use ring::{digest, hmac};

use super::clock::Civil;

pub(crate) const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// Who signs.
#[derive(Clone)]
pub(crate) struct Keys {
    /// Public.
    pub id: String,
    /// Secret.
    pub secret: String,
    /// Of temporary keys.
    pub token: Option<String>,
}

/// A key that holds for one day, one region and one service.
pub(crate) struct DayKey {
    day: u64,
    key: hmac::Key,
}

impl DayKey {
    /// For the day of `wall_ms`.
    pub fn new(secret: &str, wall_ms: u64, region: &str, service: &str) -> Self {
        let date = Civil::of(wall_ms).to_string();
        let sign = |key: &[u8], text: &str| {
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
        };
        let first = format!("AWS4{secret}");
        let key = sign(first.as_bytes(), &date[..8]);
        let key = sign(key.as_ref(), region);
        let key = sign(key.as_ref(), service);
        let key = sign(key.as_ref(), "aws4_request");
        Self { day: day(wall_ms), key: hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()) }
    }

    /// Whether it holds at `wall_ms`.
    pub fn holds(&self, wall_ms: u64) -> bool {
        self.day == day(wall_ms)
    }
}

fn day(wall_ms: u64) -> u64 {
    wall_ms / 86_400_000
}

/// Signs a request with an absolute URI: all of its headers, and the hash of its body.
pub(crate) fn sign(
    parts: &mut Parts,
    body: &[u8],
    keys: &Keys,
    day: &DayKey,
    scope: (&str, &str),
    wall_ms: u64,
) {
    debug_assert!(day.holds(wall_ms), "the key of another day");
    let (region, service) = scope;
    let date = Civil::of(wall_ms).to_string();
    let payload = match parts.headers.get(CONTENT_SHA256).and_then(|value| value.to_str().ok()) {
        Some(known) => known.to_owned(),
        None => hex(digest::digest(&digest::SHA256, body).as_ref()),
    };
    if !parts.headers.contains_key(HOST) {
        let host = parts.uri.authority().map_or("", http::uri::Authority::as_str);
        parts.headers.insert(HOST, value(host));
    }
    parts.headers.insert(DATE, value(&date));
    parts.headers.insert(CONTENT_SHA256, value(&payload));
    if let Some(token) = &keys.token {
        let mut token = value(token);
        token.set_sensitive(true);
        parts.headers.insert(TOKEN, token);
    }
    let (canonical, names) = canonical(parts, &payload);
    let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let scope = format!("{}/{region}/{service}/aws4_request", &date[..8]);
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hash}");
    let signature = hex(hmac::sign(&day.key, text.as_bytes()).as_ref());
    let mut authorization = value(&format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        keys.id
    ));
    authorization.set_sensitive(true);
    parts.headers.insert(AUTHORIZATION, authorization);
}

/// The canonical request, and the names of its headers.
fn canonical(parts: &Parts, payload: &str) -> (String, String) {
    let mut headers: Vec<(&HeaderName, &HeaderValue)> = parts.headers.iter().collect();
    headers.sort_by_key(|(name, _)| name.as_str());
    let mut text = String::with_capacity(512);
    let mut names = String::with_capacity(96);
    let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
    write!(text, "{}\n{path}\n{query}\n", parts.method).expect("a string takes all");
    for (name, value) in headers {
        let trimmed = value.to_str().unwrap_or_default().trim();
        text.push_str(name.as_str());
        text.push(':');
        text.push_str(trimmed);
        text.push('\n');
        if !names.is_empty() {
            names.push(';');
        }
        names.push_str(name.as_str());
    }
    text.push('\n');
    text.push_str(&names);
    text.push('\n');
    text.push_str(payload);
    (text, names)
}

/// What is not fit for a header is sent as nothing, and the server refuses the signature.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    /// "Signature Calculations for the Authorization Header", Amazon S3 API reference.
    const WALL_MS: u64 = 1_369_353_600_000;

    fn keys() -> Keys {
        Keys {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            token: None,
        }
    }

    fn signature(request: Request<()>, body: &[u8]) -> String {
        let (mut parts, ()) = request.into_parts();
        let keys = keys();
        let day = DayKey::new(&keys.secret, WALL_MS, "us-east-1", "s3");
        sign(&mut parts, body, &keys, &day, ("us-east-1", "s3"), WALL_MS);
        let text = parts.headers[AUTHORIZATION].to_str().expect("text");
        text.rsplit_once("Signature=").expect("a signature").1.to_owned()
    }

    #[test]
    fn the_examples_of_the_reference_are_signed_as_it_says() {
        let get = Request::get("https://examplebucket.s3.amazonaws.com/test.txt")
            .header("range", "bytes=0-9");
        assert_eq!(
            signature(get.body(()).expect("a request"), b""),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let put = Request::put("https://examplebucket.s3.amazonaws.com/test%24file.text")
            .header("date", "Fri, 24 May 2013 00:00:00 GMT")
            .header("x-amz-storage-class", "REDUCED_REDUNDANCY");
        assert_eq!(
            signature(put.body(()).expect("a request"), b"Welcome to Amazon S3."),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        );
        let list = Request::get("https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J");
        assert_eq!(
            signature(list.body(()).expect("a request"), b""),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    #[test]
    fn a_key_holds_for_its_day() {
        let key = DayKey::new("secret", WALL_MS, "r", "s3");
        assert!(key.holds(WALL_MS) && key.holds(WALL_MS + 86_399_999));
        assert!(!key.holds(WALL_MS - 1) && !key.holds(WALL_MS + 86_400_000));
    }
}
