//! Signature version 4 in headers, as Amazon (`AWS4`) and Google (`GOOG4`, HMAC keys) want it.
//!
//! Ours and not the library's: the library's takes the time from the clock, and a request must be
//! signed by the *server's* time when this machine's clock is wrong; and the key of the day is
//! derived once and not for every request.
//!
//! All headers are signed, conditions and ranges among them, so that nothing on the way can take
//! one away unnoticed; except those that a hop may change by right.
//!
//! Expects: path and query of the URI are encoded as RFC 3986 has it, once, with nothing but
//! `A-Z a-z 0-9 - . _ ~` left as it is (and `/` in the path): they are signed as they are sent.
//! Source: "Signature Version 4 signing process", "V4 signing process with your own program".

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use ring::digest::{SHA256, digest};
use ring::hmac::{self, HMAC_SHA256};

use super::super::clock::Civil;
use super::{CredentialError, insert_secret};

/// What differs between the two clouds.
#[derive(Debug)]
pub(super) struct Flavor {
    algorithm: &'static str,
    key_prefix: &'static str,
    service: &'static str,
    end: &'static str,
    date: HeaderName,
    payload: HeaderName,
    token: HeaderName,
}

pub(super) static AWS: Flavor = Flavor {
    algorithm: "AWS4-HMAC-SHA256",
    key_prefix: "AWS4",
    service: "s3",
    end: "aws4_request",
    date: HeaderName::from_static("x-amz-date"),
    payload: HeaderName::from_static("x-amz-content-sha256"),
    token: HeaderName::from_static("x-amz-security-token"),
};

/// With `AWS4` Google wants `x-amz-` headers and refuses `x-goog-` ones beside them in places;
/// with its own spelling, conditions are of the same family.
pub(super) static GOOG: Flavor = Flavor {
    algorithm: "GOOG4-HMAC-SHA256",
    key_prefix: "GOOG4",
    service: "storage",
    end: "goog4_request",
    date: HeaderName::from_static("x-goog-date"),
    payload: HeaderName::from_static("x-goog-content-sha256"),
    token: HeaderName::from_static("x-goog-security-token"),
};

const DAY_MS: u64 = 86_400_000;
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Not signed: a hop may change them, or the client writes them after the signature.
const UNTOUCHED: [&str; 9] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "expect",
    "te",
    "trailer",
    "transfer-encoding",
    "user-agent",
];

/// An access key, and its key of the day.
pub(super) struct AccessKey {
    flavor: &'static Flavor,
    id: String,
    secret: String,
    token: Option<HeaderValue>,
    region: String,
    /// Day since 1970, and the key that is derived for it.
    derived: Mutex<Option<(u64, hmac::Key)>>,
}

impl AccessKey {
    /// # Errors
    /// The session token cannot be a header.
    pub(super) fn new(
        flavor: &'static Flavor,
        id: String,
        secret: String,
        token: Option<&str>,
        region: String,
    ) -> Result<Self, String> {
        let token = match token.filter(|token| !token.is_empty()).map(HeaderValue::from_str) {
            None => None,
            Some(Ok(mut token)) => {
                token.set_sensitive(true);
                Some(token)
            }
            Some(Err(_)) => return Err("the session token has a line break in it".to_owned()),
        };
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the access key id is empty or has a character that no id has".to_owned());
        }
        if secret.is_empty() {
            return Err("the secret access key is empty".to_owned());
        }
        Ok(Self { flavor, id, secret, token, region, derived: Mutex::new(None) })
    }

    /// Adds date, token, payload hash and signature to a request.
    ///
    /// Over `https` a body is not hashed: TLS keeps it whole, and its checksum has a header of its
    /// own. A payload header that is there already is kept.
    pub(super) fn sign(
        &self,
        parts: &mut Parts,
        body: &Bytes,
        wall_ms: u64,
    ) -> Result<(), CredentialError> {
        let stamp = Civil::of(wall_ms).to_string();
        self.prepare(parts, body, &stamp)?;
        let mut signed = signed_headers(parts);
        signed.sort_unstable_by_key(|(name, _)| *name);
        let names = names_of(&signed);
        let canonical = self.canonical_request(parts, &signed, &names)?;
        let scope = [&stamp[..8], &self.region, self.flavor.service, self.flavor.end].join("/");
        let mut to_sign = String::with_capacity(192);
        for line in [self.flavor.algorithm, &stamp, &scope] {
            to_sign.push_str(line);
            to_sign.push('\n');
        }
        push_hex(&mut to_sign, digest(&SHA256, canonical.as_bytes()).as_ref());

        let signature = hmac::sign(&self.key_of(wall_ms / DAY_MS, &stamp[..8]), to_sign.as_bytes());
        let mut header = String::with_capacity(256);
        for part in [self.flavor.algorithm, " Credential=", &self.id, "/", &scope] {
            header.push_str(part);
        }
        for part in [", SignedHeaders=", &names, ", Signature="] {
            header.push_str(part);
        }
        push_hex(&mut header, signature.as_ref());
        insert_secret(parts, AUTHORIZATION, header)
    }

    /// The headers that the signature is about.
    fn prepare(&self, parts: &mut Parts, body: &Bytes, stamp: &str) -> Result<(), CredentialError> {
        if !parts.headers.contains_key(HOST) {
            let authority = parts.uri.authority().ok_or(CredentialError::Unsignable("no host"))?;
            let host = HeaderValue::from_str(authority.as_str())
                .map_err(|_| CredentialError::Unsignable("a host that no header can hold"))?;
            parts.headers.insert(HOST, host);
        }
        let stamp = HeaderValue::from_str(stamp).expect("digits and letters");
        parts.headers.insert(self.flavor.date.clone(), stamp);
        if let Some(token) = &self.token {
            parts.headers.insert(&self.flavor.token, token.clone());
        }
        if !parts.headers.contains_key(&self.flavor.payload) {
            let hash = if body.is_empty() {
                HeaderValue::from_static(EMPTY)
            } else if parts.uri.scheme_str() == Some("https") {
                HeaderValue::from_static(UNSIGNED)
            } else {
                let mut hash = String::with_capacity(64);
                push_hex(&mut hash, digest(&SHA256, body).as_ref());
                HeaderValue::try_from(hash).expect("hexadecimal digits")
            };
            parts.headers.insert(&self.flavor.payload, hash);
        }
        Ok(())
    }

    fn canonical_request(
        &self,
        parts: &Parts,
        signed: &[(&str, &HeaderValue)],
        names: &str,
    ) -> Result<String, CredentialError> {
        let mut text = String::with_capacity(1_024);
        text.push_str(parts.method.as_str());
        text.push('\n');
        text.push_str(parts.uri.path());
        text.push('\n');
        push_query(&mut text, parts.uri.query().unwrap_or_default());
        text.push('\n');
        for (name, value) in signed {
            text.push_str(name);
            text.push(':');
            push_trimmed(&mut text, text_of(value)?);
            text.push('\n');
        }
        text.push('\n');
        text.push_str(names);
        text.push('\n');
        text.push_str(text_of(&parts.headers[&self.flavor.payload])?);
        Ok(text)
    }

    fn key_of(&self, day: u64, date: &str) -> hmac::Key {
        let mut derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, key)) = derived.as_ref()
            && *known == day
        {
            return key.clone();
        }
        let root = [self.flavor.key_prefix.as_bytes(), self.secret.as_bytes()].concat();
        let mut key = hmac::Key::new(HMAC_SHA256, &root);
        for part in [date, &self.region, self.flavor.service, self.flavor.end] {
            key = hmac::Key::new(HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref());
        }
        *derived = Some((day, key.clone()));
        key
    }
}

fn signed_headers(parts: &Parts) -> Vec<(&str, &HeaderValue)> {
    let all = parts.headers.iter().map(|(name, value)| (name.as_str(), value));
    all.filter(|(name, _)| !UNTOUCHED.contains(name)).collect()
}

fn names_of(signed: &[(&str, &HeaderValue)]) -> String {
    let mut names = String::with_capacity(128);
    for (name, _) in signed {
        if !names.is_empty() {
            names.push(';');
        }
        names.push_str(name);
    }
    names
}

fn text_of(value: &HeaderValue) -> Result<&str, CredentialError> {
    value.to_str().map_err(|_| CredentialError::Unsignable("a header that is not ASCII"))
}

/// Pairs in byte order, each with its `=`.
fn push_query(text: &mut String, query: &str) {
    let mut pairs: Vec<_> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .collect();
    pairs.sort_unstable();
    for (place, (name, value)) in pairs.into_iter().enumerate() {
        if place > 0 {
            text.push('&');
        }
        text.push_str(name);
        text.push('=');
        text.push_str(value);
    }
}

/// Without white space at the ends, and one space where there are several.
fn push_trimmed(text: &mut String, value: &str) {
    for (place, word) in value.split_ascii_whitespace().enumerate() {
        if place > 0 {
            text.push(' ');
        }
        text.push_str(word);
    }
}

/// Of a sum of SHA-256.
fn push_hex(text: &mut String, sum: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 64];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(sum) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    let digits = &digits[..sum.len() * 2];
    text.push_str(str::from_utf8(digits).expect("digits are ASCII"));
}

#[cfg(test)]
mod tests;
