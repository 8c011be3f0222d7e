//! Who signs the requests of a bucket.
//!
//! Invariant: one signer serves all shards; it holds no lock across a wait.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::request::Parts;

use super::sigv4::{self, DayKey, Keys};
use crate::error::OpenError;
use crate::options::OpenOptions;

/// A request could not be signed: no credentials, or none that hold. The text says what was tried.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CredentialError(pub String);

/// Which signature the store wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SignerKind {
    /// AWS Signature Version 4, for this region.
    S3 { region: String },
}

/// Signs requests; shared by all shards.
pub(crate) struct Signer {
    kind: SignerKind,
    keys: Option<Keys>,
    day: Mutex<Option<Arc<DayKey>>>,
}

impl Signer {
    /// With the keys of `options`, or of the environment. Reads nothing yet that would wait.
    ///
    /// # Errors
    /// What is configured contradicts itself.
    pub fn new(kind: SignerKind, options: &OpenOptions) -> Result<Self, OpenError> {
        let keys = match &options.keys {
            Some(keys) => Some(Keys {
                id: keys.id.clone(),
                secret: keys.secret.clone(),
                token: keys.token.clone(),
            }),
            None => {
                let get = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
                get("AWS_ACCESS_KEY_ID")
                    .zip(get("AWS_SECRET_ACCESS_KEY"))
                    .map(|(id, secret)| Keys { id, secret, token: get("AWS_SESSION_TOKEN") })
            }
        };
        Ok(Self { kind, keys, day: Mutex::default() })
    }

    /// Signs a request with an absolute URI, its `Host` and all other headers, as of `wall_ms`,
    /// which is the server's clock where ours is wrong.
    ///
    /// # Errors
    /// There are no credentials.
    pub async fn sign(
        &self,
        parts: &mut Parts,
        body: &Bytes,
        wall_ms: u64,
    ) -> Result<(), CredentialError> {
        let SignerKind::S3 { region } = &self.kind;
        let keys = self.keys.as_ref().ok_or_else(|| {
            let text = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
            CredentialError(text.to_owned())
        })?;
        let day = self.day_key(keys, region, wall_ms);
        sigv4::sign(parts, body, keys, &day, (region, "s3"), wall_ms);
        Ok(())
    }

    /// The store refused the credentials: read them again before the next signature.
    pub fn forget(&self) {
        *self.day.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn day_key(&self, keys: &Keys, region: &str, wall_ms: u64) -> Arc<DayKey> {
        let mut day = self.day.lock().unwrap_or_else(PoisonError::into_inner);
        match &*day {
            Some(key) if key.holds(wall_ms) => key.clone(),
            Some(_) | None => {
                let key = Arc::new(DayKey::new(&keys.secret, wall_ms, region, "s3"));
                *day = Some(key.clone());
                key
            }
        }
    }
}
