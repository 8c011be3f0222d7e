//! Signature version 4 in headers, as Amazon (`AWS4`) and Google (`GOOG4`, HMAC keys) want it.
//!
//! Ours and not the library's: the library's takes the time from the clock, and a request must be
//! signed by the *server's* time when this machine's clock is wrong; and it writes anew for each
//! request what all requests of a second have in common.
//!
//! All headers are signed, conditions and ranges among them, so that nothing on the way can take
//! one away unnoticed; except those that a hop may change by right.
//!
//! Expects: path and query of the URI are encoded as RFC 3986 has it, once, with nothing but
//! `A-Z a-z 0-9 - . _ ~` left as it is (and `/` in the path): they are signed as they are sent.
//! Source: "Signature Version 4 signing process", "V4 signing process with your own program".

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{AUTHORIZATION, HOST};
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use sha2::digest::Output;
use sha2::{Digest as _, Sha256};

use super::super::clock::stamp_of;
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

/// Of a sum.
const SUM_BYTES: usize = 32;
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

const SIGNATURE: &str = ", Signature=";

/// An access key, and what it signs with in the present second.
pub(super) struct AccessKey {
    flavor: &'static Flavor,
    id: String,
    secret: String,
    token: Option<HeaderValue>,
    region: String,
    moment: Mutex<Option<Arc<Moment>>>,
}

/// What all signatures of one second have in common.
struct Moment {
    /// Since 1970.
    second: u64,
    stamp: HeaderValue,
    /// The header with the signature, up to the names of what is signed.
    opening: String,
    /// By the key of the day, of all that is signed but the sum of the request.
    mac: Hmac<Sha256>,
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
        Ok(Self { flavor, id, secret, token, region, moment: Mutex::new(None) })
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
        let moment = self.moment(wall_ms / 1_000);
        self.prepare(parts, body, &moment)?;
        let signed = signed_headers(parts);
        let names_len = signed.iter().map(|(name, _)| name.len() + 1).sum::<usize>() - 1;
        // Exactly as long as it gets: then the header takes it as it is.
        let header_len = moment.opening.len() + names_len + SIGNATURE.len() + 2 * SUM_BYTES;
        let mut header = String::with_capacity(header_len);
        header.push_str(&moment.opening);
        for (place, (name, _)) in signed.iter().enumerate() {
            if place > 0 {
                header.push(';');
            }
            header.push_str(name);
        }
        let names = &header[moment.opening.len()..];
        let sum = self.sum_of(parts, &signed, names)?;
        let signature = moment.mac.clone().chain_update(hex_of(&sum)).finalize().into_bytes();
        header.push_str(SIGNATURE);
        header.push_str(text(&hex_of(&signature)));
        insert_secret(parts, AUTHORIZATION, header)
    }

    /// The headers that the signature is about.
    fn prepare(
        &self,
        parts: &mut Parts,
        body: &Bytes,
        moment: &Moment,
    ) -> Result<(), CredentialError> {
        if !parts.headers.contains_key(HOST) {
            let authority = parts.uri.authority().ok_or(CredentialError::Unsignable("no host"))?;
            let host = HeaderValue::from_str(authority.as_str())
                .map_err(|_| CredentialError::Unsignable("a host that no header can hold"))?;
            parts.headers.insert(HOST, host);
        }
        parts.headers.insert(&self.flavor.date, moment.stamp.clone());
        if let Some(token) = &self.token {
            parts.headers.insert(&self.flavor.token, token.clone());
        }
        if !parts.headers.contains_key(&self.flavor.payload) {
            let hash = if body.is_empty() {
                HeaderValue::from_static(EMPTY)
            } else if parts.uri.scheme_str() == Some("https") {
                HeaderValue::from_static(UNSIGNED)
            } else {
                let hash = hex_of(&Sha256::digest(body));
                HeaderValue::from_bytes(&hash).expect("hexadecimal digits")
            };
            parts.headers.insert(&self.flavor.payload, hash);
        }
        Ok(())
    }

    /// Of the canonical request.
    fn sum_of(
        &self,
        parts: &Parts,
        signed: &[(&str, &HeaderValue)],
        names: &str,
    ) -> Result<Output<Sha256>, CredentialError> {
        let mut sum = Sha256::new();
        for part in [parts.method.as_str(), "\n", parts.uri.path(), "\n"] {
            sum.update(part);
        }
        add_query(&mut sum, parts.uri.query().unwrap_or_default());
        sum.update("\n");
        for (name, value) in signed {
            sum.update(name);
            sum.update(":");
            add_trimmed(&mut sum, text_of(value)?);
            sum.update("\n");
        }
        let payload = text_of(&parts.headers[&self.flavor.payload])?;
        for part in ["\n", names, "\n", payload] {
            sum.update(part);
        }
        Ok(sum.finalize())
    }

    fn moment(&self, second: u64) -> Arc<Moment> {
        let mut known = self.moment.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(moment) = known.as_ref().filter(|moment| moment.second == second) {
            return moment.clone();
        }
        let moment = Arc::new(self.begin(second));
        *known = Some(moment.clone());
        moment
    }

    fn begin(&self, second: u64) -> Moment {
        let Flavor { algorithm, key_prefix, service, end, .. } = *self.flavor;
        let stamp = stamp_of(second);
        let day = &stamp[..8];
        let mut mac = keyed([key_prefix, &self.secret].concat().as_bytes());
        for part in [day, &self.region, service, end] {
            mac = keyed(&mac.chain_update(part).finalize().into_bytes());
        }
        let scope = [day, &self.region, service, end].join("/");
        for part in [algorithm, "\n", &stamp, "\n", &scope, "\n"] {
            mac.update(part.as_bytes());
        }
        let opening = format!("{algorithm} Credential={}/{scope}, SignedHeaders=", self.id);
        let stamp = HeaderValue::try_from(stamp).expect("digits and letters");
        Moment { second, stamp, opening, mac }
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key of any length")
}

/// In byte order of their names.
fn signed_headers(parts: &Parts) -> Vec<(&str, &HeaderValue)> {
    let mut signed = Vec::with_capacity(parts.headers.len());
    let all = parts.headers.iter().map(|(name, value)| (name.as_str(), value));
    signed.extend(all.filter(|(name, _)| !UNTOUCHED.contains(name)));
    signed.sort_unstable_by_key(|(name, _)| *name);
    signed
}

fn text_of(value: &HeaderValue) -> Result<&str, CredentialError> {
    value.to_str().map_err(|_| CredentialError::Unsignable("a header that is not ASCII"))
}

/// Pairs in byte order, each with its `=`.
fn add_query(sum: &mut Sha256, query: &str) {
    let mut pairs: Vec<_> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .collect();
    pairs.sort_unstable();
    for (place, (name, value)) in pairs.into_iter().enumerate() {
        if place > 0 {
            sum.update("&");
        }
        for part in [name, "=", value] {
            sum.update(part);
        }
    }
}

/// Without white space at the ends, and one space where there are several.
fn add_trimmed(sum: &mut Sha256, value: &str) {
    if value.bytes().all(|byte| byte.is_ascii_graphic()) {
        return sum.update(value);
    }
    for (place, word) in value.split_ascii_whitespace().enumerate() {
        if place > 0 {
            sum.update(" ");
        }
        sum.update(word);
    }
}

fn hex_of(sum: &Output<Sha256>) -> [u8; 2 * SUM_BYTES] {
    let mut digits = [0; 2 * SUM_BYTES];
    hex::encode_to_slice(sum, &mut digits).expect("two digits for each byte");
    digits
}

fn text(digits: &[u8]) -> &str {
    str::from_utf8(digits).expect("digits are ASCII")
}

#[cfg(test)]
mod tests;
