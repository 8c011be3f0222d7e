//! The dialect of Azure Blob Storage: block blobs.
//!
//! The version of an object is its ETag, which each write changes. A create of what is there is
//! answered 409 `BlobAlreadyExists`, and 412 is everything else that a guard refuses.
//!
//! What is large is sent as blocks, whose names hold the name of the upload, so that two uploads
//! of one blob do not mix; the list of blocks makes the blob, and blocks in no list are forgotten
//! by the store after a week. Listings begin at a prefix or at a marker of the store's own, never
//! behind a key.
//!
//! Names: Azure takes away a dot at the end of a name or of a segment; we make no such keys.
//! Source: "Blob service REST API", learn.microsoft.com, version 2021-12-02.

use std::fmt::Write as _;

use base64_simd::STANDARD;
use bytes::Bytes;
use celld_core::cas::{Etag, Guard};
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH, RANGE,
};
use http::{Method, response};

use super::dialect::{Ask, Code, Dialect, From, Listing, Part, decode, encode_path, encode_query};
use super::s3::canonical_etag;
use super::xml::{self, XmlFault};
use crate::{Entry, PAGE_ENTRIES_MAX};

const VERSION: HeaderName = HeaderName::from_static("x-ms-version");
/// The first with blobs of 5,000 MiB in one request, encoded names in listings, and OAuth.
const VERSION_SPOKEN: &str = "2021-12-02";
const BLOB_TYPE: HeaderName = HeaderName::from_static("x-ms-blob-type");
const DELETE_SNAPSHOTS: HeaderName = HeaderName::from_static("x-ms-delete-snapshots");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-ms-error-code");
/// Names with signs that XML cannot have are encoded.
const ENCODED_NAME: &str = "EnumerationResults/Blobs/Blob/Name@Encoded";
/// Names of blocks are equally long: so much of the upload's name is in them.
const UPLOAD_CHARS: usize = 32;

/// A container.
pub(crate) struct Azure {
    /// `https://account.blob.core.windows.net`.
    origin: String,
    /// The path of the container, with the account before it on an emulator; encoded.
    container: String,
    /// Before each key in a path: the container, a slash and the prefix, encoded.
    root: String,
    /// Before each key, as it is: empty, or ends with a slash.
    prefix: String,
}

impl Azure {
    /// `base`: empty, or `/account` where the account is a part of the path.
    pub fn new(origin: String, base: &str, name: &str, prefix: &str) -> Self {
        let mut container = format!("{base}/");
        encode_path(name, &mut container);
        let mut root = format!("{container}/");
        encode_path(prefix, &mut root);
        Self { origin, container, root, prefix: prefix.to_owned() }
    }

    fn blob(&self, key: &str) -> String {
        let mut target = String::with_capacity(self.root.len() + key.len() + 64);
        target.push_str(&self.root);
        encode_path(key, &mut target);
        target
    }
}

fn ask(method: Method, target: String) -> Ask {
    Ask::new(method, target).header(VERSION, VERSION_SPOKEN)
}

/// Hyper leaves out the length of an empty body, which stores insist on.
fn put(target: String, body: Bytes) -> Ask {
    ask(Method::PUT, target).header(CONTENT_LENGTH, &body.len().to_string()).body(body)
}

impl Dialect for Azure {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn get(&self, key: &str, part: &Part<'_>) -> Ask {
        let ask = ask(Method::GET, self.blob(key));
        match part {
            Part::Whole => ask,
            Part::Range(range, tag) => {
                let ask = ask.header(RANGE, &format!("bytes={}-{}", range.start, range.end - 1));
                match tag {
                    Some(tag) => ask.header(IF_MATCH, tag.as_str()),
                    None => ask,
                }
            }
        }
    }

    fn put(&self, key: &str, guard: Option<&Guard>, body: Bytes) -> Ask {
        let ask = put(self.blob(key), body).header(BLOB_TYPE, "BlockBlob");
        match guard {
            None => ask,
            Some(Guard::Absent) => ask.header(IF_NONE_MATCH, "*"),
            Some(Guard::Match(etag)) => ask.header(IF_MATCH, etag.as_str()),
        }
    }

    /// A blob with snapshots, which an operator may have taken, is not deleted otherwise.
    fn delete(&self, key: &str) -> Ask {
        ask(Method::DELETE, self.blob(key)).header(DELETE_SNAPSHOTS, "include")
    }

    /// A batch is a body of many requests, each with a signature of its own.
    fn delete_many(&self, _keys: &[String]) -> Option<Ask> {
        None
    }

    fn list(&self, prefix: &str, from: From<'_>) -> Ask {
        let mut target = format!("{}?comp=list", self.container);
        match from {
            From::Start | From::After(_) => {}
            From::Token(token) => {
                target.push_str("&marker=");
                encode_query(token, &mut target);
            }
        }
        write!(target, "&maxresults={PAGE_ENTRIES_MAX}&prefix=").expect("a string takes all");
        encode_query(&self.prefix, &mut target);
        encode_query(prefix, &mut target);
        target.push_str("&restype=container");
        ask(Method::GET, target)
    }

    /// Blocks may be sent at once.
    fn begin(&self, _key: &str, _mark: &str) -> Option<Ask> {
        None
    }

    fn part(&self, key: &str, upload: &str, number: u32, body: Bytes) -> Ask {
        let mut target = format!("{}?blockid=", self.blob(key));
        encode_query(&block_id(upload, number), &mut target);
        target.push_str("&comp=block");
        put(target, body)
    }

    fn complete(&self, key: &str, _upload: &str, tags: &[String]) -> Ask {
        let mut text = "<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>".to_owned();
        for id in tags {
            // Those of a list that was taken before are found, too: a lost answer is asked again.
            write!(text, "<Latest>{id}</Latest>").expect("a string takes all");
        }
        text.push_str("</BlockList>");
        let ask = put(format!("{}?comp=blocklist", self.blob(key)), text.into());
        ask.header(CONTENT_TYPE, "application/xml")
    }

    fn abort(&self, _key: &str, _upload: &str) -> Option<Ask> {
        None
    }

    fn etag(&self, head: &response::Parts) -> Option<Etag> {
        canonical_etag(head.headers.get(ETAG)?.to_str().ok()?)
    }

    /// Never asked for: the list of an upload's blocks may be sent twice.
    fn mark<'a>(&self, _head: &'a response::Parts) -> Option<&'a str> {
        None
    }

    /// Never asked for: see [`Azure::begin`].
    fn upload(&self, _body: &[u8]) -> Result<String, XmlFault> {
        Err(XmlFault::Lacks("UploadId"))
    }

    /// The name that we gave it.
    fn part_tag(&self, _head: &response::Parts, upload: &str, number: u32) -> Option<String> {
        Some(block_id(upload, number))
    }

    fn completed(&self, head: &response::Parts, _body: &[u8]) -> Option<Etag> {
        self.etag(head)
    }

    fn listing(&self, body: &[u8]) -> Result<Listing, XmlFault> {
        listing(body, &self.prefix)
    }

    /// Never asked for: see [`Azure::delete_many`].
    fn not_deleted(&self, _body: &[u8]) -> Result<Option<String>, XmlFault> {
        Ok(None)
    }

    fn code(&self, name: &str) -> Code {
        match name {
            "BlobNotFound" | "ResourceNotFound" => Code::NoSuchKey,
            "ContainerNotFound"
            | "ContainerBeingDeleted"
            | "ContainerDisabled"
            | "InvalidResourceName" => Code::NoSuchBucket,
            "BlobAlreadyExists" => Code::Exists,
            "ConditionNotMet" | "TargetConditionNotMet" | "LeaseIdMissing" => Code::Precondition,
            "InvalidRange" => Code::BadRange,
            "ServerBusy" | "OperationTimedOut" => Code::SlowDown,
            "InternalError" => Code::Server,
            // Of a token that is over; a wrong signature is the other one.
            "InvalidAuthenticationInfo" | "NoAuthenticationInformation" => Code::Expired,
            "AuthenticationFailed"
            | "AuthorizationFailure"
            | "AuthorizationPermissionMismatch"
            | "AuthorizationProtocolMismatch"
            | "AuthorizationResourceTypeMismatch"
            | "AuthorizationServiceMismatch"
            | "AuthorizationSourceIPMismatch"
            | "InsufficientAccountPermissions"
            | "AccountIsDisabled"
            | "BlobImmutableDueToPolicy"
            | "PublicAccessNotPermitted" => Code::Denied,
            "Md5Mismatch" | "InvalidMd5" => Code::Mangled,
            "InvalidBlockList" | "InvalidBlobOrBlock" => Code::NoSuchUpload,
            "FeatureVersionMismatch" | "UnsupportedHttpVerb" | "UnsupportedHeader" => {
                Code::NotBuilt
            }
            "AccountQuotaExceeded" | "InsufficientStorage" => Code::Full,
            _ => Code::Other,
        }
    }

    fn code_header(&self) -> Option<HeaderName> {
        Some(ERROR_CODE)
    }

    fn lists_in_byte_order(&self) -> bool {
        false
    }

    fn lists_behind_keys(&self) -> bool {
        false
    }
}

/// Names of blocks of one blob are equally long, in base64.
fn block_id(upload: &str, number: u32) -> String {
    STANDARD.encode_to_string(format!("{upload:->UPLOAD_CHARS$.UPLOAD_CHARS$}{number:010}"))
}

/// Reads `EnumerationResults` of up to [`PAGE_ENTRIES_MAX`] blobs, and takes `prefix` off each.
fn listing(body: &[u8], prefix: &str) -> Result<Listing, XmlFault> {
    let mut listing = Listing::default();
    let (mut key, mut size) = (None, None);
    let root = xml::walk(body, &mut |path, text| {
        match path {
            "EnumerationResults/Blobs/Blob/Name" => key = Some(text.to_owned()),
            ENCODED_NAME => key = Some(decode(text, false).ok_or(XmlFault::Value("Name"))?),
            "EnumerationResults/Blobs/Blob/Properties/Content-Length" => size = text.parse().ok(),
            "EnumerationResults/Blobs/Blob" => {
                if listing.entries.len() == PAGE_ENTRIES_MAX {
                    return Err(XmlFault::TooMuch);
                }
                let key = key.take().ok_or(XmlFault::Lacks("Name"))?;
                let key = key.strip_prefix(prefix).ok_or(XmlFault::Value("Name"))?.to_owned();
                let size = size.take().ok_or(XmlFault::Lacks("Content-Length"))?;
                listing.entries.push(Entry { key, size });
            }
            "EnumerationResults/NextMarker" if !text.is_empty() => {
                listing.next = Some(text.to_owned());
            }
            _ => {}
        }
        Ok(())
    })?;
    if root == "EnumerationResults" { Ok(listing) } else { Err(XmlFault::Root(root)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> Azure {
        Azure::new("https://a1.blob.core.windows.net".to_owned(), "", "c1", "p/")
    }

    #[test]
    fn a_guard_is_a_condition_on_the_tag() {
        let etag = Etag::new("\"0x8DA\"");
        for (guard, absent, matching) in [
            (None, None, None),
            (Some(Guard::Absent), Some("*"), None),
            (Some(Guard::Match(etag)), None, Some("\"0x8DA\"")),
        ] {
            let ask = container().put("a b", guard.as_ref(), Bytes::from("x"));
            assert_eq!(ask.target, "/c1/p/a%20b");
            let get = |name: HeaderName| ask.headers.get(name).map(|v| v.to_str().expect("text"));
            assert_eq!((get(IF_NONE_MATCH), get(IF_MATCH)), (absent, matching));
            assert_eq!((get(BLOB_TYPE), get(VERSION)), (Some("BlockBlob"), Some(VERSION_SPOKEN)));
        }
    }

    #[test]
    fn blocks_of_one_blob_are_named_equally_long_and_those_of_two_uploads_differently() {
        let ids = [("0123456789abcdef", 1), ("0123456789abcdef", 10_000), ("f", 1)]
            .map(|(upload, number)| block_id(upload, number));
        assert_eq!(ids[0].len(), ids[1].len());
        assert_eq!(ids[0].len(), ids[2].len());
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
        // Azure takes 64 bytes before they are encoded.
        assert!(STANDARD.decode_to_vec(&ids[0]).expect("base64").len() <= 64);
        let ask = container().complete("k", "f", &ids);
        assert_eq!(ask.target, "/c1/p/k?comp=blocklist");
        let text = std::str::from_utf8(&ask.body).expect("text");
        let named = format!("<BlockList><Latest>{}</Latest><Latest>{}</Latest>", ids[0], ids[1]);
        assert!(text.contains(&named), "{text}");
    }

    #[test]
    fn an_emulator_has_the_account_in_its_path() {
        let emulator =
            Azure::new("http://127.0.0.1:10000".to_owned(), "/devstoreaccount1", "c1", "");
        assert_eq!(emulator.get("a/b", &Part::Whole).target, "/devstoreaccount1/c1/a/b");
        let list = emulator.list("a/", From::Token("2!x"));
        let wanted = "/devstoreaccount1/c1?comp=list&marker=2%21x&maxresults=1000&prefix=a%2F\
                      &restype=container";
        assert_eq!(list.target, wanted);
    }

    #[test]
    fn a_listing_is_read_to_its_marker() {
        let blob = |name: &str, size: u32| {
            format!(
                "<Blob><Name>{name}</Name><Properties><Etag>0x8</Etag><Content-Length>{size}\
                 </Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>"
            )
        };
        let page = |blobs: &str, marker: &str| {
            let text = format!(
                "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults \
                 ServiceEndpoint=\"https://a1/\" ContainerName=\"c1\"><Prefix>p/</Prefix><Blobs>\
                 {blobs}</Blobs>{marker}</EnumerationResults>"
            );
            listing(text.as_bytes(), "p/")
        };
        let control = blob("p%2F%01%25", 1).replace("<Name>", "<Name Encoded=\"true\">");
        let blobs = [control, blob("p/a&amp;b%25", 3), blob("p/ä", 0)].concat();
        let read = page(&blobs, "<NextMarker>2!8!bQ--</NextMarker>").expect("a listing");
        let entry = |key: &str, size| Entry { key: key.to_owned(), size };
        assert_eq!(read.entries, [entry("\u{1}%", 1), entry("a&b%25", 3), entry("ä", 0)]);
        assert_eq!(read.next.as_deref(), Some("2!8!bQ--"));
        assert_eq!(page("", "<NextMarker />").expect("a listing"), Listing::default());
        assert_eq!(page(&blob("other/a", 1), ""), Err(XmlFault::Value("Name")));
        assert_eq!(
            page("<Blob><Name>p/a</Name></Blob>", ""),
            Err(XmlFault::Lacks("Content-Length"))
        );
        assert!(listing(b"<ListBucketResult/>", "p/").is_err());
    }
}
