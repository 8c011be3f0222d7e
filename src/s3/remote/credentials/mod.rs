//! Who we are for the store: where a credential comes from, and how a request is signed with it.
//!
//! Invariant: signing waits only for the first credential, for one after an expiry, and for one
//! after a 403. Before that a new one is loaded in the background (`cache`). All shards share one
//! [`Signer`]: one load serves them all.
//!
//! The sources are those of the reqsign crates, on this runtime's sockets and files (`context`);
//! what those lack is added in `aws` and `azure`, and said there. A source that is configured and
//! fails ends the search: the next one would be another identity. Signatures are ours (`sigv4`,
//! `shared_key`).

mod aws;
mod azure;
mod cache;
mod context;
mod google;
#[cfg(test)]
mod loopback;
mod profile;
mod shared_key;
mod sigv4;
mod sources;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use celld_rt::http_client::TlsConfig;
use event_listener::Event;
use http::request::Parts;
use http::{HeaderName, HeaderValue};

pub(crate) use azure::Connection;
use cache::{Answer, Cache, Now};
pub(crate) use context::Environment;
use shared_key::SharedKey;
use sigv4::AccessKey;

use crate::options::StaticKeys;

/// A longer body is hashed on another thread: more than 100 µs on the executor would be noticed.
const HASH_HERE_MAX: usize = 256 << 10;

/// Whose credentials are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SignerKind {
    /// Amazon's S3 and stores like it; the region is part of the signature.
    S3 {
        /// As in `us-east-1`.
        region: String,
    },
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure {
        /// The storage account.
        account: String,
    },
}

/// What the sources read and how they reach their servers.
#[derive(Clone)]
pub(crate) struct Sources {
    /// Where the settings are.
    pub(crate) environment: Environment,
    /// Trust for those sources that are asked by TLS.
    pub(crate) tls: TlsConfig,
    /// Keys that are known beforehand: no source is asked.
    pub(crate) keys: Option<StaticKeys>,
}

/// Why a request could not be signed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CredentialError {
    /// No source has a credential, or the one that is configured failed. The text names what was
    /// tried, how each ended, and what to set. An operator must act, or a server comes back.
    #[error("{0}")]
    Unavailable(Arc<str>),
    /// There was a credential, it is over, and its source does not give the next one: it may be
    /// back soon.
    #[error("{0}")]
    Lapsed(Arc<str>),
    /// The request cannot be signed: a fault of ours, or of a URL that was given.
    #[error("the request cannot be signed: it has {0}")]
    Unsignable(&'static str),
}

/// Signs requests with a credential that it keeps fresh. Clones share it, on any thread.
#[derive(Clone)]
pub(crate) struct Signer(Arc<Shared>);

struct Shared {
    kind: SignerKind,
    sources: Sources,
    cache: Mutex<Cache>,
    /// Told when a load has ended.
    ended: Event,
}

impl Signer {
    /// Reads nothing yet: the first request does.
    pub(crate) fn new(kind: SignerKind, sources: Sources) -> Self {
        Self(Arc::new(Shared { kind, sources, cache: Mutex::default(), ended: Event::new() }))
    }

    /// Signs a request as it will be sent: all its headers are there, its URI is absolute and
    /// encoded. `body` is what is sent with it, for its hash and length; `wall_ms` is the time, by
    /// the store's clock where ours is wrong.
    ///
    /// # Errors
    /// There is no credential, or the request cannot be signed.
    pub(crate) async fn sign(
        &self,
        parts: &mut Parts,
        body: &Bytes,
        wall_ms: u64,
    ) -> Result<(), CredentialError> {
        let credential = match self.ask(wall_ms) {
            Answer::Use(credential) => credential,
            // In a box, as below: large, and rare.
            other @ (Answer::UseAndLoad(_) | Answer::Load | Answer::Wait | Answer::Failed(_)) => {
                Box::pin(self.credential(other, wall_ms)).await?
            }
        };
        if body.len() < HASH_HERE_MAX || parts.uri.scheme() == Some(&http::uri::Scheme::HTTPS) {
            return credential.sign(parts, body, wall_ms);
        }
        Box::pin(sign_apart(credential, parts, body.clone(), wall_ms)).await
    }

    /// After a 403: the next request waits for what the sources say now.
    pub(crate) fn forget(&self) {
        let mono_ms = mono_ms();
        self.0.with_cache(|cache| cache.forget(mono_ms));
    }

    fn ask(&self, wall_ms: u64) -> Answer {
        let now = Now { wall_ms, mono_ms: mono_ms() };
        self.0.with_cache(|cache| cache.ask(now))
    }

    async fn credential(
        &self,
        mut answer: Answer,
        wall_ms: u64,
    ) -> Result<Arc<Credential>, CredentialError> {
        loop {
            match answer {
                Answer::Use(credential) => return Ok(credential),
                Answer::UseAndLoad(credential) => {
                    self.start_load(wall_ms);
                    return Ok(credential);
                }
                Answer::Failed(error) => return Err(error),
                Answer::Load => self.start_load(wall_ms),
                Answer::Wait => {}
            }
            let ended = self.0.ended.listen();
            // It may have ended before we listened.
            if self.0.with_cache(|cache| cache.is_loading()) {
                ended.await;
            }
            answer = self.ask(wall_ms);
        }
    }

    /// In a task of its own: a request that is given up does not take the others' load with it.
    fn start_load(&self, wall_ms: u64) {
        let load = Load { shared: self.0.clone(), wall_ms, ended: false };
        celld_rt::spawn(load.run());
    }
}

/// On a thread for what takes long.
async fn sign_apart(
    credential: Arc<Credential>,
    parts: &mut Parts,
    body: Bytes,
    wall_ms: u64,
) -> Result<(), CredentialError> {
    let mut apart = std::mem::replace(parts, http::Request::new(()).into_parts().0);
    let signing = celld_rt::blocking(move || {
        let signed = credential.sign(&mut apart, &body, wall_ms);
        (apart, signed)
    });
    let signed;
    (*parts, signed) = signing.await;
    signed
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({:?})", self.0.kind)
    }
}

impl Shared {
    fn with_cache<T>(&self, work: impl FnOnce(&mut Cache) -> T) -> T {
        work(&mut self.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn mono_ms() -> u64 {
    celld_rt::mono_us() / 1_000
}

/// A load that is under way. It ends also when its executor does.
struct Load {
    shared: Arc<Shared>,
    /// When it began, by the store's clock.
    wall_ms: u64,
    ended: bool,
}

impl Load {
    async fn run(mut self) {
        let Shared { kind, sources, .. } = &*self.shared;
        let result = match (&sources.keys, kind) {
            (Some(keys), _) => Credential::of_keys(keys, kind),
            (None, SignerKind::S3 { region }) => aws::load(sources, region).await,
            (None, SignerKind::Gcs) => google::load(sources).await,
            (None, SignerKind::Azure { account }) => azure::load(sources, account).await,
        };
        let now = Now { wall_ms: self.wall_ms, mono_ms: mono_ms() };
        self.shared.with_cache(|cache| cache.loaded(now, result));
        self.ended = true;
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.with_cache(Cache::abandoned);
        }
        self.shared.ended.notify(usize::MAX);
    }
}

/// What a source gave us.
pub(crate) struct Credential {
    proof: Proof,
    /// Milliseconds since 1970; `None` for one that does not end.
    expires_ms: Option<u64>,
}

/// How a request shows who sends it.
enum Proof {
    /// An emulator asks nobody.
    Nothing,
    AccessKey(AccessKey),
    SharedKey(SharedKey),
    /// The whole header. Azure wants a date beside it.
    Bearer {
        header: HeaderValue,
        dated: bool,
    },
    /// A query that is added to every URI.
    AccessSignature(String),
}

impl Credential {
    fn new(proof: Proof, expires_ms: Option<u64>) -> Self {
        Self { proof, expires_ms }
    }

    fn of_keys(keys: &StaticKeys, kind: &SignerKind) -> Result<Self, CredentialError> {
        let StaticKeys { id, secret, token } = keys;
        let access = |flavor, region: &str| {
            let token = token.as_deref();
            AccessKey::new(flavor, id.clone(), secret.clone(), token, region.to_owned())
                .map(Proof::AccessKey)
        };
        let proof = match kind {
            SignerKind::S3 { region } => access(&sigv4::AWS, region),
            SignerKind::Gcs => access(&sigv4::GOOG, google::REGION),
            SignerKind::Azure { .. } => SharedKey::new(id.clone(), secret).map(Proof::SharedKey),
        };
        proof.map(|proof| Self::new(proof, None)).map_err(|what| {
            CredentialError::Unavailable(format!("the keys that are given: {what}").into())
        })
    }

    fn anonymous() -> Self {
        Self::new(Proof::Nothing, None)
    }

    fn sign(&self, parts: &mut Parts, body: &Bytes, wall_ms: u64) -> Result<(), CredentialError> {
        match &self.proof {
            Proof::Nothing => Ok(()),
            Proof::AccessKey(key) => key.sign(parts, body, wall_ms),
            Proof::SharedKey(key) => key.sign(parts, body, wall_ms),
            Proof::Bearer { header, dated } => {
                if *dated {
                    shared_key::insert_date(parts, wall_ms);
                }
                parts.headers.insert(http::header::AUTHORIZATION, header.clone());
                Ok(())
            }
            Proof::AccessSignature(query) => azure::append_query(parts, query),
        }
    }

    #[cfg(test)]
    fn until(mut self, expires_ms: u64) -> Self {
        self.expires_ms = Some(expires_ms);
        self
    }
}

/// Says nothing of what is secret.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("expires_ms", &self.expires_ms).finish_non_exhaustive()
    }
}

/// A header that logs do not show.
fn insert_secret(parts: &mut Parts, name: HeaderName, text: String) -> Result<(), CredentialError> {
    let mut value = HeaderValue::try_from(text)
        .map_err(|_| CredentialError::Unsignable("a credential that no header can hold"))?;
    value.set_sensitive(true);
    parts.headers.insert(name, value);
    Ok(())
}

fn bearer(token: &str, dated: bool) -> Result<Proof, String> {
    let mut header = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
        .map_err(|_| "the token cannot be a header".to_owned())?;
    header.set_sensitive(true);
    Ok(Proof::Bearer { header, dated })
}

#[cfg(test)]
mod tests;
