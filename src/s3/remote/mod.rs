//! Buckets of stores, over HTTP: build by dialect, sign, send, read, and repeat what may be.
//!
//! Invariants: a conditional write is sent once, and its end is one of three; what may be repeated
//! is repeated within the caller's deadline and a budget of the whole process; no answer takes
//! more memory than was asked for.
//!
//! Shared by all shards: credentials, the store's state (`core::retry`), metrics. Each executor has
//! connections of its own, and those of leases are apart from the others (`pool`).

mod answer;
mod attempt;
mod az;
mod clock;
mod credentials;
mod dialect;
mod endpoint;
mod gs;
mod large;
mod listing;
mod metrics;
mod object;
mod pool;
mod s3;
mod stream;
mod xml;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use celld_core::retry::Health;
use celld_rt::http_client::{Origin, TlsConfig, tls_config, tls_config_with};
use http::Uri;

use crate::KEY_BYTES_MAX;
use crate::error::{OpenError, StoreError};
use crate::location::{RemoteLocation, Scheme};
use crate::options::{Lane, Limits, OpenOptions};
use clock::Offset;
use credentials::{Environment, Signer, SignerKind, Sources};
use dialect::{Base, Dialect};
use listing::Resume;
use metrics::Metrics;

pub use metrics::{StoreMetrics, VERBS, Verb};
pub(crate) use stream::{RemoteReader, RemoteWriter};

/// A bucket of a store.
pub(crate) struct Remote {
    url: String,
    /// Of all keys together.
    prefix_bytes: usize,
    dialect: Box<dyn Dialect>,
    signer: Signer,
    origin: Origin,
    base: Base,
    tls: TlsConfig,
    health: Mutex<Health>,
    /// Nothing is known against the store: the lock above need not be taken.
    is_clean: AtomicBool,
    offset: Offset,
    /// The store's clock less ours, once it has refused ours; then requests are signed with it.
    skew_ms: AtomicI64,
    /// When the store's clock was last looked at.
    looked_ms: AtomicI64,
    metrics: Metrics,
    is_read_only: bool,
    /// Plain reads and writes that take unusually long are sent a second time.
    hedges: bool,
    in_byte_order: AtomicBool,
    resumes: Mutex<VecDeque<Resume>>,
}

/// One verb of a caller: its bounds, and what it is about.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub remote: &'a Arc<Remote>,
    pub lane: Lane,
    pub limits: Limits,
    pub key: &'a str,
}

impl Remote {
    /// Reads the authorities that are trusted, and no network.
    ///
    /// # Errors
    /// The options make no sense, or a file that they name cannot be read.
    pub fn open(location: &RemoteLocation, options: &OpenOptions) -> Result<Self, OpenError> {
        let url = location.url();
        let environment = Environment::of_process();
        let (dialect, signer): (Box<dyn Dialect>, SignerKind) = match location.scheme {
            Scheme::S3 => {
                let (dialect, signer) = endpoint::s3(location, options, &environment)?;
                (Box::new(dialect), signer)
            }
            Scheme::Gs => {
                let (dialect, signer) = endpoint::gs(location, options, &environment)?;
                (Box::new(dialect), signer)
            }
            Scheme::Az => {
                let (dialect, signer) = endpoint::az(location, options, &environment)?;
                (Box::new(dialect), signer)
            }
        };
        let fault = |what: String| OpenError::Option { url: url.clone(), what };
        let uri = dialect.origin().parse::<Uri>().map_err(std::io::Error::other);
        let found = uri.and_then(|uri| Ok((Origin::of(&uri)?, Base::of(uri)?)));
        let (origin, base) =
            found.map_err(|error| fault(format!("its endpoint is no URL: {error}")))?;
        refuse_proxy(&origin, |name| std::env::var(name).ok()).map_err(fault)?;
        let tls = match &options.ca_file {
            None => tls_config(),
            Some(path) => tls_config_with(path).map_err(|error| {
                fault(format!("the authorities' file {} {error}", path.display()))
            })?,
        };
        let sources = Sources { environment, tls: tls.clone(), keys: options.keys.clone() };
        let health = Health::new(attempt::now());
        Ok(Self {
            url,
            prefix_bytes: location.prefix.len(),
            signer: Signer::new(signer, sources),
            origin,
            base,
            tls,
            health: Mutex::new(health),
            is_clean: AtomicBool::new(true),
            offset: Offset::default(),
            skew_ms: AtomicI64::new(0),
            looked_ms: AtomicI64::new(0),
            metrics: Metrics::default(),
            is_read_only: false,
            hedges: options.hedge,
            in_byte_order: AtomicBool::new(dialect.lists_in_byte_order()),
            resumes: Mutex::default(),
            dialect,
        })
    }

    /// The same, but whatever writes is denied.
    pub fn read_only(self) -> Self {
        Self { is_read_only: true, ..self }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn metrics(&self) -> StoreMetrics {
        self.metrics.snapshot()
    }

    /// The store's clock less ours, in milliseconds, as its answers tell.
    pub fn clock_offset_ms(&self) -> Option<i64> {
        self.offset.ms()
    }

    /// See [`Dialect::set_bare_etags`].
    pub fn set_bare_etags(&self) {
        self.dialect.set_bare_etags();
    }

    /// Somebody has tried it: the store lists in byte order, over pages too.
    pub fn trust_list_order(&self) {
        self.in_byte_order.store(true, Ordering::Relaxed);
    }

    /// Opens this executor's connections for `lane`.
    ///
    /// # Errors
    /// One could not be opened.
    pub async fn warm(self: &Arc<Self>, lane: Lane) -> std::io::Result<usize> {
        pool::of(self, lane).pool.warm(pool::warm_count(lane)).await
    }
}

impl Call<'_> {
    /// Before anything is sent: the key has room for the prefix, and writing is allowed.
    fn check(&self, verb: Verb) -> Result<(), StoreError> {
        let key = || self.key.chars().take(100).collect();
        if self.remote.prefix_bytes + self.key.len() > KEY_BYTES_MAX {
            let what = "is longer than 1,024 bytes with the bucket's prefix";
            return Err(StoreError::BadKey { key: key(), what });
        }
        let writes = match verb {
            Verb::Get | Verb::GetRange | Verb::List => false,
            Verb::Put | Verb::PutIf | Verb::Delete => true,
        };
        if writes && self.remote.is_read_only {
            let source = std::io::Error::other("it was opened only to look at it");
            return Err(StoreError::Denied { key: key(), source });
        }
        Ok(())
    }
}

/// A proxy between us and the store would be asked for each request, and we do not speak to one.
/// Machines that talk to themselves need none.
fn refuse_proxy(origin: &Origin, get: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let host = origin.host.trim_start_matches('[').trim_end_matches(']');
    let loopback = host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    let set = |names: &[&'static str]| {
        names.iter().copied().find(|name| get(name).is_some_and(|value| !value.trim().is_empty()))
    };
    let wanted = if origin.tls {
        set(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])
    } else {
        // Not HTTP_PROXY: a request's header may have set it in a CGI environment.
        set(&["http_proxy", "all_proxy", "ALL_PROXY"])
    };
    let Some(name) = wanted.filter(|_| !loopback) else { return Ok(()) };
    let except = get("no_proxy").or_else(|| get("NO_PROXY")).unwrap_or_default();
    let excepted = except.split(',').map(|item| item.trim().trim_start_matches('.')).any(|item| {
        let below = host.strip_suffix(item).is_some_and(|rest| rest.ends_with('.'));
        item == "*" || (!item.is_empty() && (host == item || below))
    });
    if excepted {
        return Ok(());
    }
    Err(format!(
        "{name} is set, and requests to a bucket are not sent through proxies; reach {host} \
         directly and add it to NO_PROXY"
    ))
}

#[cfg(test)]
mod tests;
