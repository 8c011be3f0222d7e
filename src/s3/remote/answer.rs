//! What the end of an attempt means: to the next attempt, and to the caller.
//!
//! Invariant: a 404 counts as "no such object" only when the store itself says so by the error's
//! name. A proxy's page, or the 404 of a missing bucket, must never look like an empty bucket.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use celld_core::retry::Trouble;
use celld_core::time::Micros;
use celld_rt::http_client::SendError;
use http::header::RETRY_AFTER;
use http::{StatusCode, response};

use super::clock::http_date;
use super::dialect::{Code, Dialect};
use super::xml;
use crate::error::StoreError;

/// What a store asks us to wait is believed up to here.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(20);
/// Of a store's own words, in an error.
const MESSAGE_CHARS_MAX: usize = 300;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub head: response::Parts,
    pub body: Bytes,
}

/// An attempt did not end with what was asked for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store has not seen it.
    NotSent(io::Error),
    /// The store may have done it.
    NoAnswer {
        /// The connection had been idle: it may have been dead already.
        reused: bool,
        source: io::Error,
    },
    /// What came is not an answer to what was asked.
    Malformed(String),
    /// More than these bytes, which is all that we take into memory.
    TooLong(u64),
    /// It breaks what the protocol rests on.
    Broken(String),
    /// The store is taken for down, or asked to be left alone: nothing was sent.
    Withheld(Micros),
    /// It could not be signed: nothing was sent.
    Unsigned(String),
    /// The store said no.
    Refused(Box<Refusal>),
}

/// An answer with an error.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub status: StatusCode,
    /// `None`: the answer does not say it in the store's own way. It may be somebody else's.
    pub code: Option<Code>,
    /// The error's name, or what stands in its place.
    name: String,
    message: String,
    /// Where the bucket is.
    region: Option<String>,
    /// How long to wait.
    after: Option<Duration>,
    /// The store's clock.
    pub server_ms: Option<u64>,
    /// The length of the object, when the wanted range is past it.
    pub size: Option<u64>,
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::NotSent(source) => Self::NotSent(source),
            SendError::NoAnswer { reused, source } => Self::NoAnswer { reused, source },
        }
    }
}

impl Failure {
    pub fn timed_out() -> Self {
        let source = io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
        Self::NoAnswer { reused: false, source }
    }

    /// The store says what this is.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(refusal) => refusal.code,
            Self::NotSent(_)
            | Self::NoAnswer { .. }
            | Self::Malformed(_)
            | Self::TooLong(_)
            | Self::Broken(_)
            | Self::Withheld(_)
            | Self::Unsigned(_) => None,
        }
    }

    /// Whether the store itself is not well, or cannot be reached.
    pub fn is_of_the_store(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::NoAnswer { reused: false, .. } => true,
            Self::Refused(refusal) => refusal.is_of_the_store(),
            Self::NoAnswer { .. }
            | Self::Malformed(_)
            | Self::TooLong(_)
            | Self::Broken(_)
            | Self::Withheld(_)
            | Self::Unsigned(_) => false,
        }
    }

    /// Whether the store asks for less.
    pub fn is_throttle(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_throttle())
    }

    /// What it means for a verb that may be repeated. `None`: repeating changes nothing.
    pub fn trouble(&self) -> Option<Trouble> {
        match self {
            Self::NoAnswer { reused: true, .. } => Some(Trouble::Stale),
            Self::NotSent(_) | Self::NoAnswer { .. } | Self::Malformed(_) => Some(Trouble::Failing),
            Self::TooLong(_) | Self::Broken(_) | Self::Withheld(_) | Self::Unsigned(_) => None,
            Self::Refused(refusal) => refusal.trouble(),
        }
    }

    /// Whether it is sure that a write has not applied, and will not.
    pub fn did_not_apply(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::Withheld(_) | Self::Unsigned(_) => true,
            Self::NoAnswer { .. } | Self::Malformed(_) | Self::TooLong(_) | Self::Broken(_) => {
                false
            }
            Self::Refused(refusal) => refusal.did_not_apply(),
        }
    }

    /// What the caller is told.
    pub fn into_error(self, key: &str) -> StoreError {
        let key = key.to_owned();
        match self {
            Self::NotSent(source) | Self::NoAnswer { source, .. } => {
                StoreError::Unreachable { key, source }
            }
            Self::Malformed(what) => {
                StoreError::Unreachable { key, source: io::Error::other(what) }
            }
            Self::TooLong(size) => StoreError::TooLarge { key, size },
            Self::Broken(what) => StoreError::Broken { key, what },
            Self::Withheld(wait) => {
                let after = Some(Duration::from_micros(wait.as_micros()));
                let source = io::Error::other("it has not answered lately, so nothing was sent");
                StoreError::Throttled { key, after, source }
            }
            Self::Unsigned(what) => StoreError::Denied { key, source: io::Error::other(what) },
            Self::Refused(refusal) => refusal.into_error(key),
        }
    }
}

impl Refusal {
    /// Reads an answer whose status says that it is an error.
    pub fn of(dialect: &dyn Dialect, answer: &Answer) -> Self {
        let Answer { head, body } = answer;
        let found = xml::error(body);
        let named = dialect.code_header().and_then(|name| {
            let name = head.headers.get(name)?.to_str().ok()?;
            (!name.is_empty()).then(|| name.to_owned())
        });
        let text = |name: &str| Some(head.headers.get(name)?.to_str().ok()?.to_owned());
        let size = text("content-range").as_deref().and_then(size_of_unsatisfied);
        let code_name = found.as_ref().map(|found| found.code.clone()).or(named);
        let header_region = text("x-amz-bucket-region");
        let after = text(RETRY_AFTER.as_str()).as_deref().and_then(|text| {
            let asked = Duration::from_secs(text.trim().parse().ok()?);
            Some(asked.min(RETRY_AFTER_MAX))
        });
        let server_ms = text("date").as_deref().and_then(http_date);
        let found = found.unwrap_or_default();
        Self {
            status: head.status,
            code: code_name.as_deref().map(|name| dialect.code(name)),
            message: match (&code_name, found.message.is_empty()) {
                (_, false) => shortened(&found.message),
                (Some(_), true) => String::new(),
                (None, true) => shortened(&String::from_utf8_lossy(body)),
            },
            name: code_name.unwrap_or_default(),
            region: header_region.or(found.region),
            after,
            server_ms,
            size: size.or(found.size),
        }
    }

    /// Not all of the wanted bytes are there.
    pub fn is_bad_range(&self) -> bool {
        self.status == StatusCode::RANGE_NOT_SATISFIABLE || self.code == Some(Code::BadRange)
    }

    /// Other credentials may be allowed what these are not. A clock that differs is none of that.
    pub fn is_denial(&self) -> bool {
        match self.code {
            Some(Code::Expired | Code::Denied) => true,
            Some(Code::Skewed | Code::Elsewhere) => false,
            Some(_) | None => {
                matches!(self.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
            }
        }
    }

    /// The guard did not hold.
    pub fn is_precondition(&self) -> bool {
        self.status == StatusCode::PRECONDITION_FAILED || self.code == Some(Code::Precondition)
    }

    fn is_of_the_store(&self) -> bool {
        self.status.is_server_error()
            || self.status == StatusCode::TOO_MANY_REQUESTS
            || matches!(self.code, Some(Code::Server | Code::SlowDown))
    }

    fn is_throttle(&self) -> bool {
        self.code == Some(Code::SlowDown)
            || matches!(
                self.status,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
            )
    }

    fn trouble(&self) -> Option<Trouble> {
        let after = self.after.map(|after| Micros::from_micros(after.as_micros() as u64));
        match self.code {
            Some(Code::Skewed | Code::Expired) => return Some(Trouble::Mended),
            Some(Code::Conflict | Code::Mangled | Code::Server) => return Some(Trouble::Failing),
            Some(Code::NotBuilt) => return None,
            Some(
                Code::NoSuchKey
                | Code::NoSuchBucket
                | Code::Precondition
                | Code::Exists
                | Code::BadRange
                | Code::SlowDown
                | Code::Denied
                | Code::Elsewhere
                | Code::NoSuchUpload
                | Code::Full
                | Code::Other,
            )
            | None => {}
        }
        match self.status {
            _ if self.is_throttle() => Some(Trouble::Throttled(after)),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY => Some(Trouble::Failing),
            // Others between us and the store have faults, too; not what the store says itself.
            status if status.is_server_error() => Some(Trouble::Failing),
            StatusCode::NOT_FOUND if self.code.is_none() => Some(Trouble::Failing),
            _ => None,
        }
    }

    /// Only in the store's own words, and only where these mean that nothing was done.
    fn did_not_apply(&self) -> bool {
        let Some(code) = self.code else { return false };
        match code {
            Code::Skewed
            | Code::Expired
            | Code::Denied
            | Code::Elsewhere
            | Code::Mangled
            | Code::NoSuchBucket
            | Code::NotBuilt
            | Code::Full => true,
            Code::Other => self.status.is_client_error() && self.status != StatusCode::CONFLICT,
            Code::NoSuchKey
            | Code::Precondition
            | Code::Exists
            | Code::Conflict
            | Code::BadRange
            | Code::SlowDown
            | Code::Server
            | Code::NoSuchUpload => false,
        }
    }

    fn into_error(self, key: String) -> StoreError {
        let source = io::Error::other(self.to_string());
        if self.is_throttle() {
            return StoreError::Throttled { key, after: self.after, source };
        }
        match self.code {
            Some(Code::Conflict | Code::Skewed) => {
                StoreError::Throttled { key, after: self.after, source }
            }
            Some(Code::Full) => StoreError::Full { key, source },
            Some(
                Code::NoSuchBucket
                | Code::Expired
                | Code::Denied
                | Code::Elsewhere
                | Code::NotBuilt
                | Code::Other,
            ) => StoreError::Denied { key, source },
            None if matches!(self.status.as_u16(), 301..=308 | 401 | 403) => {
                StoreError::Denied { key, source }
            }
            Some(
                Code::NoSuchKey
                | Code::Precondition
                | Code::Exists
                | Code::BadRange
                | Code::SlowDown
                | Code::Mangled
                | Code::Server
                | Code::NoSuchUpload,
            )
            | None => StoreError::Unreachable { key, source },
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.status.as_u16())?;
        for (before, text) in [(" ", &self.name), (": ", &self.message)] {
            if !text.is_empty() {
                write!(f, "{before}{text}")?;
            }
        }
        match (self.code, &self.region) {
            (Some(Code::Elsewhere) | None, Some(region)) => {
                write!(f, " (the bucket is in the region {region}: say so with --region {region})")
            }
            (Some(Code::NoSuchBucket), _) => {
                f.write_str(" (make it, or correct the bucket's URL or --endpoint)")
            }
            (None, _) if self.status.is_client_error() => {
                f.write_str(" (not in a store's own words: is there a proxy in between?)")
            }
            _ => Ok(()),
        }
    }
}

/// From `bytes */123`.
fn size_of_unsatisfied(text: &str) -> Option<u64> {
    text.trim().strip_prefix("bytes")?.trim_start().strip_prefix("*/")?.parse().ok()
}

/// From `bytes 0-9/123`: the first byte, the one after the last, and the object's length.
pub(crate) fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    Some((first, last.checked_add(1)?, size.trim().parse().ok()?))
}

/// On one line, and not long.
fn shortened(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let mut line = String::new();
    for word in words.filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > MESSAGE_CHARS_MAX {
            break;
        }
    }
    line.chars().take(MESSAGE_CHARS_MAX).collect()
}
