//! Azure's SharedKey, for Blob Storage as of version 2015-02-21 and later.
//!
//! Conditions, range and all `x-ms-` headers are signed by it.
//!
//! Expects: path and query of the URI are percent-encoded as they are sent. The account stands
//! once more in the path where an emulator is meant (`/devstoreaccount1/container`), and counts
//! there as a part of it.
//! Source: "Authorize with Shared Key", learn.microsoft.com.

use std::borrow::Cow;

use base64_simd::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_UNMODIFIED_SINCE, RANGE,
};
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use sha2::Sha256;

use super::super::clock::http_date_of;
use super::{CredentialError, insert_secret};

const DATE: HeaderName = HeaderName::from_static("x-ms-date");
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// An account and its key.
pub(super) struct SharedKey {
    account: String,
    key: Hmac<Sha256>,
}

impl SharedKey {
    /// `key` in base64, as the portal shows it.
    ///
    /// # Errors
    /// It is not base64, or empty.
    pub(super) fn new(account: String, key: &str) -> Result<Self, String> {
        let bytes = STANDARD
            .decode_to_vec(key.trim())
            .ok()
            .filter(|bytes| !bytes.is_empty())
            .ok_or("the account key is not base64")?;
        if account.is_empty() || !account.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err("the account name is not of letters and digits".to_owned());
        }
        let key = Hmac::new_from_slice(&bytes).expect("a key of any length");
        Ok(Self { account, key })
    }

    /// Adds date and signature to a request.
    pub(super) fn sign(
        &self,
        parts: &mut Parts,
        body: &Bytes,
        wall_ms: u64,
    ) -> Result<(), CredentialError> {
        insert_date(parts, wall_ms);
        let signature = self.key.clone().chain_update(self.string_to_sign(parts, body)?);
        let text = STANDARD.encode_to_string(signature.finalize().into_bytes());
        insert_secret(parts, AUTHORIZATION, format!("SharedKey {}:{text}", self.account))
    }

    fn string_to_sign(&self, parts: &Parts, body: &Bytes) -> Result<String, CredentialError> {
        let mut text = String::with_capacity(512);
        text.push_str(parts.method.as_str());
        text.push('\n');
        push_header(&mut text, parts, &CONTENT_ENCODING)?;
        push_header(&mut text, parts, &CONTENT_LANGUAGE)?;
        if !body.is_empty() {
            text.push_str(&body.len().to_string());
        }
        text.push('\n');
        push_header(&mut text, parts, &CONTENT_MD5)?;
        push_header(&mut text, parts, &CONTENT_TYPE)?;
        // `Date` is empty where there is `x-ms-date`.
        text.push('\n');
        for name in [IF_MODIFIED_SINCE, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, RANGE] {
            push_header(&mut text, parts, &name)?;
        }
        let mut own: Vec<_> = parts
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value))
            .filter(|(name, _)| name.starts_with("x-ms-"))
            .collect();
        own.sort_unstable_by_key(|(name, _)| *name);
        for (name, value) in own {
            text.push_str(name);
            text.push(':');
            text.push_str(text_of(value)?.trim());
            text.push('\n');
        }
        text.push('/');
        text.push_str(&self.account);
        text.push_str(parts.uri.path());
        push_query(&mut text, parts.uri.query().unwrap_or_default())?;
        Ok(text)
    }
}

/// Also a request with a bearer token has a date, so that a replay is refused.
pub(super) fn insert_date(parts: &mut Parts, wall_ms: u64) {
    let date = HeaderValue::from_str(&http_date_of(wall_ms)).expect("letters, digits and colons");
    parts.headers.insert(DATE, date);
}

fn push_header(text: &mut String, parts: &Parts, name: &HeaderName) -> Result<(), CredentialError> {
    if let Some(value) = parts.headers.get(name) {
        text.push_str(text_of(value)?);
    }
    text.push('\n');
    Ok(())
}

fn text_of(value: &HeaderValue) -> Result<&str, CredentialError> {
    value.to_str().map_err(|_| CredentialError::Unsignable("a header that is not ASCII"))
}

/// Each name once, in byte order, with its decoded value. We never send a name twice.
fn push_query(text: &mut String, query: &str) -> Result<(), CredentialError> {
    let mut pairs = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        pairs.push((decoded(name)?.to_ascii_lowercase(), decoded(value)?));
    }
    pairs.sort_unstable();
    for (name, value) in pairs {
        for part in ["\n", &name, ":", &value] {
            text.push_str(part);
        }
    }
    Ok(())
}

fn decoded(text: &str) -> Result<Cow<'_, str>, CredentialError> {
    percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| CredentialError::Unsignable("a query that is not percent-encoded UTF-8"))
}

#[cfg(test)]
mod tests;
