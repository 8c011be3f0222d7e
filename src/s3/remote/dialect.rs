//! What differs between stores: how a question is spelled, and how an answer is read.
//!
//! Invariant: a dialect is pure. It neither signs, nor sends, nor decides what is repeated; one
//! question is one request.

use std::ops::Range;

use bytes::Bytes;
use celld_core::cas::{Etag, Guard};
use http::header::{HOST, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Uri, request, response, uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::xml::XmlFault;
use crate::Entry;

/// Most requests have no more: length, condition, host, date, sum and signature.
const HEADERS: usize = 6;

/// A request before time and credentials: all that the store is asked.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub method: Method,
    /// Path and query: encoded once, the query sorted by name and each name with its `=`.
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// What all requests to a store begin with.
#[derive(Debug)]
pub(crate) struct Base {
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    host: HeaderValue,
}

/// Which part of an object is read.
#[derive(Clone, Debug)]
pub(crate) enum Part<'a> {
    Whole,
    /// Not empty. The tag: of this version only.
    Range(Range<u64>, Option<&'a Etag>),
}

/// Where a listing goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From<'a> {
    Start,
    /// Behind this key, in the store's order.
    After(&'a str),
    /// Where the answer before said.
    Token(&'a str),
}

/// One answer to a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// Whole keys, in the store's order.
    pub entries: Vec<Entry>,
    /// There is more behind it.
    pub next: Option<String>,
}

/// What an error's name means, in any dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// There is no such object.
    NoSuchKey,
    /// There is no such bucket, container or account.
    NoSuchBucket,
    /// The guard did not hold.
    Precondition,
    /// The guard was that there is none, and there is one.
    Exists,
    /// Another write of the same object was under way: it has not applied.
    Conflict,
    /// Not all of the wanted bytes are there.
    BadRange,
    /// Too much at once.
    SlowDown,
    /// Our clock and the store's differ too much for the signature.
    Skewed,
    /// The credentials are over: newer ones may do.
    Expired,
    /// The credentials are wrong, or may not do this.
    Denied,
    /// The bucket is in another region, at another endpoint.
    Elsewhere,
    /// The request did not arrive as it was sent.
    Mangled,
    /// A fault of the store, for now.
    Server,
    /// The parts of this upload are gone, or it has ended already.
    NoSuchUpload,
    /// The store does not know this request.
    NotBuilt,
    /// No space, or a quota is used up.
    Full,
    /// All else: repeating changes nothing.
    Other,
}

/// The language of one kind of store. Keys are without the bucket's prefix, which the dialect adds
/// and takes away.
pub(crate) trait Dialect: Send + Sync {
    /// Of all requests: `https://host[:port]`.
    fn origin(&self) -> &str;

    /// Reads an object.
    fn get(&self, key: &str, part: &Part<'_>) -> Ask;
    /// Writes an object, if the guard holds.
    fn put(&self, key: &str, guard: Option<&Guard>, body: Bytes) -> Ask;
    /// Deletes one object.
    fn delete(&self, key: &str) -> Ask;
    /// Deletes up to 1,000 objects. `None`: they must be deleted one by one.
    fn delete_many(&self, keys: &[String]) -> Option<Ask>;
    /// Lists 1,000 objects at most.
    fn list(&self, prefix: &str, from: From<'_>) -> Ask;

    /// Begins an object that arrives in parts, and will carry `mark` as metadata. `None`: nothing
    /// is to be asked, and the mark is the upload's name.
    fn begin(&self, key: &str, mark: &str) -> Option<Ask>;
    /// One part of it. Parts count from 1.
    fn part(&self, key: &str, upload: &str, number: u32, body: Bytes) -> Ask;
    /// Makes the object of its parts, whose tags are in order. Where it may not be asked twice,
    /// the object's mark tells whether it has.
    fn complete(&self, key: &str, upload: &str, tags: &[String]) -> Ask;
    /// Forgets the parts. `None`: the store forgets them by itself.
    fn abort(&self, key: &str, upload: &str) -> Option<Ask>;

    /// The version that an answer names; what [`Guard::Match`] takes.
    fn etag(&self, head: &response::Parts) -> Option<Etag>;
    /// The mark of the object that was read.
    fn mark<'a>(&self, head: &'a response::Parts) -> Option<&'a str>;
    /// The name of the upload that [`Dialect::begin`] began.
    fn upload(&self, body: &[u8]) -> Result<String, XmlFault>;
    /// What [`Dialect::complete`] wants of the answer to [`Dialect::part`].
    fn part_tag(&self, head: &response::Parts, upload: &str, number: u32) -> Option<String>;
    /// The version that [`Dialect::complete`] made. `None`: the body has an error all the same.
    fn completed(&self, head: &response::Parts, body: &[u8]) -> Option<Etag>;
    /// The answer to [`Dialect::list`]: keys without the bucket's prefix.
    fn listing(&self, body: &[u8]) -> Result<Listing, XmlFault>;
    /// What [`Dialect::delete_many`] could not delete: the name of the error of the first one.
    fn not_deleted(&self, body: &[u8]) -> Result<Option<String>, XmlFault>;
    /// What an error's name means.
    fn code(&self, name: &str) -> Code;
    /// A header with the error's name, for answers without a body.
    fn code_header(&self) -> Option<HeaderName>;
    /// Whether listings are known to be in byte order, over pages too.
    fn lists_in_byte_order(&self) -> bool;
    /// Whether a listing may begin behind a key.
    fn lists_behind_keys(&self) -> bool;
    /// From now on, tags are sent without their quotes.
    fn set_bare_etags(&self) {}
}

impl Base {
    /// # Errors
    /// Its host cannot be a header.
    pub fn of(origin: Uri) -> std::io::Result<Self> {
        let uri::Parts { scheme, authority, .. } = origin.into_parts();
        let host = authority.as_ref().map_or("", Authority::as_str);
        let host = HeaderValue::from_str(host).map_err(std::io::Error::other)?;
        Ok(Self { scheme, authority, host })
    }
}

impl Ask {
    pub fn new(method: Method, target: String) -> Self {
        let headers = HeaderMap::with_capacity(HEADERS);
        Self { method, target, headers, body: Bytes::new() }
    }

    /// With a header. `text` is of our making and fit for one.
    pub fn header(mut self, name: HeaderName, text: &str) -> Self {
        let value = HeaderValue::from_str(text);
        self.headers.insert(name, value.unwrap_or(HeaderValue::from_static("")));
        self
    }

    pub fn body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }

    /// The request to a store, to be signed, and its body.
    ///
    /// # Errors
    /// It has no spelling as a URI.
    pub fn request(self, base: &Base) -> Result<(request::Parts, Bytes), http::Error> {
        let mut uri = uri::Parts::default();
        uri.scheme.clone_from(&base.scheme);
        uri.authority.clone_from(&base.authority);
        uri.path_and_query = Some(PathAndQuery::try_from(self.target)?);
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.method = self.method;
        parts.uri = Uri::from_parts(uri)?;
        parts.headers = self.headers;
        parts.headers.insert(HOST, base.host.clone());
        Ok((parts, self.body))
    }
}

/// What RFC 3986 wants nobody to encode stays.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// Appends `text`, percent-encoded for a path: a slash stays.
pub(crate) fn encode_path(text: &str, into: &mut String) {
    into.extend(utf8_percent_encode(text, PATH));
}

/// Appends `text`, percent-encoded for a query.
pub(crate) fn encode_query(text: &str, into: &mut String) {
    into.extend(utf8_percent_encode(text, QUERY));
}

/// Undoes the percent-encoding of a listing. A plus is a space only where the store says so:
/// S3 encodes a plus in a key as `%2B`, and a space as `+` or `%20`.
pub(crate) fn decode(text: &str, plus_is_space: bool) -> Option<String> {
    let is_encoded = text.contains('%') || plus_is_space && text.contains('+');
    if !is_encoded {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            b'+' if plus_is_space => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_once_and_come_back() {
        for (key, path) in [
            ("a/b-c.d_e~f", "a/b-c.d_e~f"),
            ("a b+c", "a%20b%2Bc"),
            ("%2F", "%252F"),
            ("é🦀", "%C3%A9%F0%9F%A6%80"),
            ("a?b#c&d='\"<>", "a%3Fb%23c%26d%3D%27%22%3C%3E"),
            ("\u{1}", "%01"),
        ] {
            let mut text = String::new();
            encode_path(key, &mut text);
            assert_eq!(text, path);
            assert_eq!(decode(&text, true).as_deref(), Some(key));
            text.clear();
            encode_query(key, &mut text);
            assert_eq!(decode(&text, false).as_deref(), Some(key));
            assert!(!text.contains('/'));
        }
        assert_eq!(decode("a+b", true).as_deref(), Some("a b"));
        assert_eq!(decode("a+b", false).as_deref(), Some("a+b"));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decode(bad, true), None, "{bad}");
        }
    }
}
