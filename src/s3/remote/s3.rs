//! The dialect of S3, and of those who speak it: R2, Tigris, SeaweedFS, Ceph, MinIO's heirs.
//!
//! Source: Amazon S3 API reference; "Conditional writes", Amazon S3 user guide.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use base64_simd::STANDARD;
use bytes::Bytes;
use celld_core::cas::{Etag, Guard};
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH, RANGE,
};
use http::{Method, response};
use md5::{Digest as _, Md5};

use super::dialect::{Ask, Code, Dialect, From, Listing, Part, decode, encode_path, encode_query};
use super::xml::{self, XmlFault};
use crate::{Entry, PAGE_ENTRIES_MAX};

const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");
pub(super) const MARK: HeaderName = HeaderName::from_static("x-amz-meta-upload");

/// A bucket that speaks S3.
pub(crate) struct S3 {
    /// `https://host[:port]`.
    origin: String,
    /// Before each key in a path: `/` or `/bucket/`, and the prefix, encoded.
    root: String,
    /// The path of the bucket itself: `/` or `/bucket`.
    bucket: String,
    /// Before each key, as it is: empty, or ends with a slash.
    prefix: String,
    in_order: bool,
    bare_etags: AtomicBool,
}

impl S3 {
    /// `path_style`: the bucket's name stands in the path and not in `origin`.
    pub fn new(origin: String, name: &str, prefix: &str, path_style: bool, in_order: bool) -> Self {
        let mut bucket = "/".to_owned();
        if path_style {
            encode_path(name, &mut bucket);
        }
        let mut root = bucket.clone();
        if path_style {
            root.push('/');
        }
        encode_path(prefix, &mut root);
        let bare_etags = AtomicBool::new(false);
        Self { origin, root, bucket, prefix: prefix.to_owned(), in_order, bare_etags }
    }

    fn object(&self, key: &str) -> String {
        // Exactly as long as most get: then the request takes it as it is.
        let mut target = String::with_capacity(self.root.len() + key.len());
        target.push_str(&self.root);
        encode_path(key, &mut target);
        target
    }

    fn tag(&self, etag: &Etag) -> String {
        let bare = etag.as_str().trim_matches('"');
        if self.bare_etags.load(Ordering::Relaxed) {
            bare.to_owned()
        } else {
            format!("\"{bare}\"")
        }
    }
}

impl Dialect for S3 {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn get(&self, key: &str, part: &Part<'_>) -> Ask {
        let ask = Ask::new(Method::GET, self.object(key));
        match part {
            Part::Whole => ask,
            Part::Range(range, tag) => {
                let ask = ask.header(RANGE, &format!("bytes={}-{}", range.start, range.end - 1));
                match tag {
                    Some(tag) => ask.header(IF_MATCH, &self.tag(tag)),
                    None => ask,
                }
            }
        }
    }

    fn put(&self, key: &str, guard: Option<&Guard>, body: Bytes) -> Ask {
        let ask = with_body(Ask::new(Method::PUT, self.object(key)), body);
        match guard {
            None => ask,
            Some(Guard::Absent) => ask.header(IF_NONE_MATCH, "*"),
            Some(Guard::Match(etag)) => ask.header(IF_MATCH, &self.tag(etag)),
        }
    }

    fn delete(&self, key: &str) -> Ask {
        Ask::new(Method::DELETE, self.object(key))
    }

    fn delete_many(&self, keys: &[String]) -> Option<Ask> {
        let mut text = "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_owned();
        for key in keys {
            text.push_str("<Object><Key>");
            xml::escape(&self.prefix, &mut text)?;
            xml::escape(key, &mut text)?;
            text.push_str("</Key></Object>");
        }
        text.push_str("<Quiet>true</Quiet></Delete>");
        let sum = STANDARD.encode_to_string(Md5::digest(text.as_bytes()));
        let ask = Ask::new(Method::POST, format!("{}?delete=", self.bucket));
        Some(with_body(ask, text.into()).header(CONTENT_MD5, &sum))
    }

    fn list(&self, prefix: &str, from: From<'_>) -> Ask {
        let mut target = format!("{}?", self.bucket);
        // Sorted, as a signature wants it.
        if let From::Token(token) = from {
            target.push_str("continuation-token=");
            encode_query(token, &mut target);
            target.push('&');
        }
        write!(target, "encoding-type=url&list-type=2&max-keys={PAGE_ENTRIES_MAX}&prefix=")
            .expect("a string takes all");
        encode_query(&self.prefix, &mut target);
        encode_query(prefix, &mut target);
        if let From::After(key) = from {
            target.push_str("&start-after=");
            encode_query(&self.prefix, &mut target);
            encode_query(key, &mut target);
        }
        Ask::new(Method::GET, target)
    }

    fn begin(&self, key: &str, mark: &str) -> Option<Ask> {
        let ask = Ask::new(Method::POST, format!("{}?uploads=", self.object(key)));
        Some(with_body(ask, Bytes::new()).header(MARK, mark))
    }

    fn part(&self, key: &str, upload: &str, number: u32, body: Bytes) -> Ask {
        let mut target = self.object(key);
        write!(target, "?partNumber={number}&uploadId=").expect("a string takes all");
        encode_query(upload, &mut target);
        with_body(Ask::new(Method::PUT, target), body)
    }

    fn complete(&self, key: &str, upload: &str, tags: &[String]) -> Ask {
        let mut target = self.object(key);
        target.push_str("?uploadId=");
        encode_query(upload, &mut target);
        let mut text =
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
                .to_owned();
        for (number, tag) in (1..).zip(tags) {
            text.push_str("<Part><ETag>");
            // Tags come from headers, which carry nothing that XML cannot.
            let _plain = xml::escape(tag, &mut text);
            write!(text, "</ETag><PartNumber>{number}</PartNumber></Part>")
                .expect("a string takes all");
        }
        text.push_str("</CompleteMultipartUpload>");
        with_body(Ask::new(Method::POST, target), text.into()).header(CONTENT_TYPE, "text/xml")
    }

    fn abort(&self, key: &str, upload: &str) -> Option<Ask> {
        let mut target = self.object(key);
        target.push_str("?uploadId=");
        encode_query(upload, &mut target);
        Some(Ask::new(Method::DELETE, target))
    }

    fn etag(&self, head: &response::Parts) -> Option<Etag> {
        canonical_etag(head.headers.get(ETAG)?.to_str().ok()?)
    }

    fn mark<'a>(&self, head: &'a response::Parts) -> Option<&'a str> {
        head.headers.get(MARK)?.to_str().ok()
    }

    fn upload(&self, body: &[u8]) -> Result<String, XmlFault> {
        let mut id = None;
        xml::walk(body, &mut |path, text| {
            if path == "InitiateMultipartUploadResult/UploadId" {
                id = Some(text.to_owned());
            }
            Ok(())
        })?;
        id.filter(|id| !id.is_empty()).ok_or(XmlFault::Lacks("UploadId"))
    }

    fn part_tag(&self, head: &response::Parts, _upload: &str, _number: u32) -> Option<String> {
        Some(head.headers.get(ETAG)?.to_str().ok()?.to_owned())
    }

    fn completed(&self, _head: &response::Parts, body: &[u8]) -> Option<Etag> {
        let mut tag = None;
        let root = xml::walk(body, &mut |path, text| {
            if path == "CompleteMultipartUploadResult/ETag" {
                tag = canonical_etag(text);
            }
            Ok(())
        });
        tag.filter(|_| root.is_ok())
    }

    fn listing(&self, body: &[u8]) -> Result<Listing, XmlFault> {
        listing(body, &self.prefix)
    }

    fn not_deleted(&self, body: &[u8]) -> Result<Option<String>, XmlFault> {
        let mut first = None;
        let root = xml::walk(body, &mut |path, text| {
            if path == "DeleteResult/Error/Code" && first.is_none() {
                first = Some(text.to_owned());
            }
            Ok(())
        })?;
        if root == "DeleteResult" { Ok(first) } else { Err(XmlFault::Root(root)) }
    }

    fn code(&self, name: &str) -> Code {
        match name {
            "NoSuchKey" | "NoSuchVersion" => Code::NoSuchKey,
            "NoSuchBucket" | "InvalidBucketName" => Code::NoSuchBucket,
            "PreconditionFailed" => Code::Precondition,
            "ConditionalRequestConflict" | "OperationAborted" => Code::Conflict,
            "InvalidRange" => Code::BadRange,
            "SlowDown"
            | "ServiceUnavailable"
            | "TooManyRequests"
            | "RequestLimitExceeded"
            | "Throttling"
            | "ThrottlingException"
            | "BandwidthLimitExceeded" => Code::SlowDown,
            "RequestTimeTooSkewed" => Code::Skewed,
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" | "InvalidAccessKeyId" => {
                Code::Expired
            }
            "AccessDenied"
            | "SignatureDoesNotMatch"
            | "InvalidSecurity"
            | "AccountProblem"
            | "AllAccessDisabled"
            | "NotSignedUp"
            | "InvalidPayer" => Code::Denied,
            "PermanentRedirect"
            | "TemporaryRedirect"
            | "Redirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException" => Code::Elsewhere,
            "RequestTimeout" | "BadDigest" | "IncompleteBody" | "XAmzContentSHA256Mismatch" => {
                Code::Mangled
            }
            "InternalError" => Code::Server,
            "NoSuchUpload" => Code::NoSuchUpload,
            "NotImplemented" | "MethodNotAllowed" => Code::NotBuilt,
            "QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage" => Code::Full,
            _ => Code::Other,
        }
    }

    fn code_header(&self) -> Option<HeaderName> {
        None
    }

    fn lists_in_byte_order(&self) -> bool {
        self.in_order
    }

    fn lists_behind_keys(&self) -> bool {
        true
    }

    fn set_bare_etags(&self) {
        self.bare_etags.store(true, Ordering::Relaxed);
    }
}

/// Hyper writes the length of a body unless it is empty, and stores insist on it.
fn with_body(ask: Ask, body: Bytes) -> Ask {
    if body.is_empty() { ask.header(CONTENT_LENGTH, "0") } else { ask.body(body) }
}

/// One spelling for one version: in quotes, and not weak. A proxy that compresses makes tags weak,
/// and a weak one never matches.
pub(crate) fn canonical_etag(text: &str) -> Option<Etag> {
    let bare = text.trim().trim_start_matches("W/").trim_matches('"');
    (!bare.is_empty()).then(|| Etag::new(["\"", bare, "\""].concat()))
}

/// Reads a `ListBucketResult` of up to [`PAGE_ENTRIES_MAX`] keys, and takes `prefix` off each.
pub(crate) fn listing(body: &[u8], prefix: &str) -> Result<Listing, XmlFault> {
    let mut listing = Listing::default();
    let (mut key, mut size) = (None, None);
    let (mut encoded, mut more, mut next) = (false, false, None);
    let mut keys: Vec<(String, u64)> = Vec::new();
    let root = xml::walk(body, &mut |path, text| {
        match path {
            "ListBucketResult/EncodingType" => encoded = text.eq_ignore_ascii_case("url"),
            "ListBucketResult/IsTruncated" => more = text == "true",
            "ListBucketResult/NextContinuationToken" => next = Some(text.to_owned()),
            "ListBucketResult/Contents/Key" => key = Some(text.to_owned()),
            "ListBucketResult/Contents/Size" => size = text.parse().ok(),
            "ListBucketResult/Contents" => {
                if keys.len() == PAGE_ENTRIES_MAX {
                    return Err(XmlFault::TooMuch);
                }
                let key = key.take().ok_or(XmlFault::Lacks("Key"))?;
                keys.push((key, size.take().ok_or(XmlFault::Lacks("Size"))?));
            }
            _ => {}
        }
        Ok(())
    })?;
    if root != "ListBucketResult" {
        return Err(XmlFault::Root(root));
    }
    // The encoding may be named behind the keys.
    for (key, size) in keys {
        let key = if encoded { decode(&key, true).ok_or(XmlFault::Value("Key"))? } else { key };
        let Some(key) = key.strip_prefix(prefix) else { return Err(XmlFault::Value("Key")) };
        listing.entries.push(Entry { key: key.to_owned(), size });
    }
    listing.next = match (more, next) {
        (false, _) => None,
        (true, Some(token)) if !token.is_empty() => Some(token),
        (true, _) => return Err(XmlFault::Lacks("NextContinuationToken")),
    };
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers as stores write them.
    const SOUND: [&str; 4] = [
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"urn:x\"><Name>b</Name>\
         <Prefix>p/</Prefix><EncodingType>url</EncodingType><MaxKeys>1000</MaxKeys>\
         <IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>\
         <Contents><Key>p/a%20b</Key><ETag>&quot;e&quot;</ETag><Size>17</Size></Contents>\
         <CommonPrefixes><Prefix>p/d/</Prefix></CommonPrefixes></ListBucketResult>",
        "<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b</Key><Code>X</Code></Error>\
         </DeleteResult>",
        "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
        "<Error><Code>NoSuchKey</Code><Message><![CDATA[m]]>&#x41;</Message></Error>",
    ];

    #[test]
    fn what_is_read_of_a_sound_listing() {
        let found = listing(SOUND[0].as_bytes(), "p/").expect("a listing");
        let entries = vec![Entry { key: "a b".to_owned(), size: 17 }];
        assert_eq!(found, Listing { entries, next: Some("a&b".to_owned()) });
        assert_eq!(listing(SOUND[0].as_bytes(), "q/"), Err(XmlFault::Value("Key")));
    }

    #[test]
    fn answers_that_are_damaged_anywhere_are_read_or_refused_and_no_more() {
        let s3 = S3::new("http://h".to_owned(), "b", "p/", true, false);
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut sound = 0;
        for n in 0..40_000 {
            let mut text = SOUND[n % SOUND.len()].as_bytes().to_vec();
            for _ in 0..random(4) {
                let at = random(text.len());
                match random(4) {
                    0 => text[at] = random(256) as u8,
                    1 => text.truncate(at + 1),
                    2 => drop(text.drain(at..(at + random(20)).min(text.len()))),
                    _ => {
                        let from = random(text.len());
                        let piece = text[from..(from + random(40)).min(text.len())].to_vec();
                        text.splice(at..at, piece);
                    }
                }
                if text.is_empty() {
                    break;
                }
            }
            sound += usize::from(listing(&text, "p/").is_ok());
            let _read = (s3.upload(&text), s3.not_deleted(&text), xml::error(&text));
        }
        // Those that were left as they are, and a few more.
        assert!((2_000..9_000).contains(&sound), "{sound}");
    }
}
