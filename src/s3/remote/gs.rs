//! The dialect of Google Cloud Storage: its XML API.
//!
//! The version of an object is its generation, a number that each write changes; its ETag is the
//! MD5 of the content and tells nothing. Only conditions on generations count for writes
//! (`If-Match` is for reads), so a guard is `x-goog-if-generation-match`, with 0 for "there is
//! none".
//!
//! An upload in parts takes no condition here. It is used for what is large and plain only: such
//! an object has a name that nobody else can pick, and what must win a race is small and one
//! request.
//! Source: "XML API reference" and "Request preconditions", cloud.google.com/storage/docs.

use bytes::Bytes;
use celld_core::cas::{Etag, Guard};
use http::header::{HeaderName, IF_MATCH};
use http::response;

use super::dialect::{Ask, Code, Dialect, From, Listing, Part};
use super::s3::S3;
use super::xml::XmlFault;

const IF_GENERATION: HeaderName = HeaderName::from_static("x-goog-if-generation-match");
const MARK: HeaderName = HeaderName::from_static("x-goog-meta-upload");
const GENERATION: &str = "x-goog-generation";
const NOTHING: &str = "0";
/// Matches nothing: generations are microseconds since 1970.
const NEVER: &str = "1";

/// A bucket of Google's: S3's spelling, and versions of its own.
pub(crate) struct Gcs {
    s3: S3,
}

impl Gcs {
    /// `origin`: `https://storage.googleapis.com`, or an emulator's. The bucket is in the path, as
    /// its name may have dots.
    pub fn new(origin: String, name: &str, prefix: &str) -> Self {
        Self { s3: S3::new(origin, name, prefix, true, true) }
    }
}

impl Dialect for Gcs {
    fn origin(&self) -> &str {
        self.s3.origin()
    }

    fn get(&self, key: &str, part: &Part<'_>) -> Ask {
        let mut ask = self.s3.get(key, part);
        match part {
            Part::Range(_, Some(tag)) => {
                ask.headers.remove(IF_MATCH);
                ask.header(IF_GENERATION, generation(tag))
            }
            Part::Range(_, None) | Part::Whole => ask,
        }
    }

    fn put(&self, key: &str, guard: Option<&Guard>, body: Bytes) -> Ask {
        let ask = self.s3.put(key, None, body);
        match guard {
            None => ask,
            Some(Guard::Absent) => ask.header(IF_GENERATION, NOTHING),
            Some(Guard::Match(etag)) => ask.header(IF_GENERATION, generation(etag)),
        }
    }

    fn delete(&self, key: &str) -> Ask {
        self.s3.delete(key)
    }

    /// It is not a part of this API.
    fn delete_many(&self, _keys: &[String]) -> Option<Ask> {
        None
    }

    fn list(&self, prefix: &str, from: From<'_>) -> Ask {
        self.s3.list(prefix, from)
    }

    fn begin(&self, key: &str, mark: &str) -> Option<Ask> {
        let mut ask = self.s3.begin(key, mark)?;
        ask.headers.remove(super::s3::MARK);
        Some(ask.header(MARK, mark))
    }

    fn part(&self, key: &str, upload: &str, number: u32, body: Bytes) -> Ask {
        self.s3.part(key, upload, number, body)
    }

    fn complete(&self, key: &str, upload: &str, tags: &[String]) -> Ask {
        self.s3.complete(key, upload, tags)
    }

    fn abort(&self, key: &str, upload: &str) -> Option<Ask> {
        self.s3.abort(key, upload)
    }

    fn etag(&self, head: &response::Parts) -> Option<Etag> {
        let text = head.headers.get(GENERATION)?.to_str().ok()?.trim();
        is_generation(text).then(|| Etag::new(text))
    }

    fn mark<'a>(&self, head: &'a response::Parts) -> Option<&'a str> {
        head.headers.get(MARK)?.to_str().ok()
    }

    fn upload(&self, body: &[u8]) -> Result<String, XmlFault> {
        self.s3.upload(body)
    }

    fn part_tag(&self, head: &response::Parts, upload: &str, number: u32) -> Option<String> {
        self.s3.part_tag(head, upload, number)
    }

    /// Where the answer does not name the generation, its ETag stands for it: no guard holds
    /// with that, and a read tells the generation.
    fn completed(&self, head: &response::Parts, body: &[u8]) -> Option<Etag> {
        let made = self.s3.completed(head, body)?;
        Some(self.etag(head).unwrap_or(made))
    }

    fn listing(&self, body: &[u8]) -> Result<Listing, XmlFault> {
        self.s3.listing(body)
    }

    fn not_deleted(&self, body: &[u8]) -> Result<Option<String>, XmlFault> {
        self.s3.not_deleted(body)
    }

    fn code(&self, name: &str) -> Code {
        match name {
            "AuthenticationRequired" | "InvalidAuthentication" => Code::Expired,
            "InvalidSecurity"
            | "UserProjectMissing"
            | "UserProjectAccessDenied"
            | "AccountDisabled" => Code::Denied,
            "rateLimitExceeded" | "RateLimitExceeded" => Code::SlowDown,
            _ => self.s3.code(name),
        }
    }

    fn code_header(&self) -> Option<HeaderName> {
        None
    }

    fn lists_in_byte_order(&self) -> bool {
        true
    }

    fn lists_behind_keys(&self) -> bool {
        true
    }
}

/// What a guard says. A version that is not one of ours is not the object's either.
fn generation(etag: &Etag) -> &str {
    if is_generation(etag.as_str()) { etag.as_str() } else { NEVER }
}

/// Zeros are "there is none", and would match that.
fn is_generation(text: &str) -> bool {
    text.parse::<u64>().is_ok_and(|number| number > 0) && !text.starts_with('+')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> Gcs {
        Gcs::new("https://storage.googleapis.com".to_owned(), "my.bucket", "p/")
    }

    fn head(name: &str, value: &str) -> response::Parts {
        http::Response::builder().header(name, value).body(()).expect("a head").into_parts().0
    }

    #[test]
    fn a_guard_is_a_generation_and_nothing_else() {
        let etag = Etag::new("1700000000000001");
        for (guard, wanted) in [
            (None, None),
            (Some(Guard::Absent), Some("0")),
            (Some(Guard::Match(etag.clone())), Some("1700000000000001")),
            (Some(Guard::Match(Etag::new("\"9e10\""))), Some("1")),
            (Some(Guard::Match(Etag::new("0"))), Some("1")),
        ] {
            let ask = bucket().put("k", guard.as_ref(), Bytes::from("x"));
            assert_eq!(ask.target, "/my.bucket/p/k");
            let seen = ask.headers.get(IF_GENERATION).map(|value| value.to_str().expect("text"));
            assert_eq!(seen, wanted);
            assert!(
                !ask.headers.contains_key(IF_MATCH) && !ask.headers.contains_key("if-none-match")
            );
        }
        let ask = bucket().get("k", &Part::Range(0..10, Some(&etag)));
        assert_eq!(ask.headers[IF_GENERATION], "1700000000000001");
        assert_eq!(ask.headers["range"], "bytes=0-9");
        assert!(!ask.headers.contains_key(IF_MATCH));
    }

    #[test]
    fn a_version_is_a_generation_that_is_a_number() {
        let etag = |name, value| bucket().etag(&head(name, value));
        assert_eq!(etag(GENERATION, "17").expect("a version").as_str(), "17");
        for (name, value) in
            [("etag", "\"9e10\""), (GENERATION, ""), (GENERATION, "00"), (GENERATION, "+1")]
        {
            assert_eq!(etag(name, value), None, "{name}: {value}");
        }
    }
}
