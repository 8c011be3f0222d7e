//! What is written to, and by whom.

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use celld_s3::{Bucket, CasOutcome, Etag, Guard, OpenOptions, StaticKeys};
use celld_stores::{ACCESS_KEY, BUCKET, Kind, Process, REGION, SECRET_KEY, Store};

use crate::sink;

/// How an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Whatever is there.
    Put,
    /// What this client wrote last.
    Swap,
}

/// Whoever writes, one request at a time, to an object of its own.
pub trait Client {
    /// Writes `body`, which differs from all others.
    async fn write(&mut self, verb: Verb, body: Bytes) -> Result<()>;
}

/// A store that runs.
pub struct Target {
    /// As the table names it.
    pub name: &'static str,
    /// On this machine.
    pub port: u16,
    store: Option<Store>,
    _sink: Option<Process>,
}

/// The object of a worker.
pub fn key(client: &str, worker: usize) -> String {
    format!("bench/{client}/{worker}")
}

impl Target {
    /// The sink.
    ///
    /// # Errors
    /// It does not start.
    pub fn sink() -> Result<Self> {
        let (process, port) = sink::start()?;
        Ok(Self { name: "sink", port, store: None, _sink: Some(process) })
    }

    /// A store that `scripts/stores` installs.
    ///
    /// # Errors
    /// It does not start.
    pub fn store(name: &'static str, kind: Kind) -> Result<Self> {
        let store = Store::start(kind).with_context(|| name)?;
        Ok(Self { name, port: store.port(), store: Some(store), _sink: None })
    }

    /// Where it is.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Headers that sign a write of this object. The sink wants none.
    pub fn signed(&self, key: &str) -> Vec<(&'static str, String)> {
        self.store.as_ref().map(|store| store.signed("PUT", key)).unwrap_or_default()
    }
}

/// Our client: all workers share one bucket.
pub struct Celld {
    bucket: Bucket,
    key: String,
    etag: Option<Etag>,
}

impl Celld {
    /// The bucket of a target.
    ///
    /// # Errors
    /// The options make no sense.
    pub fn bucket(target: &Target) -> Result<Bucket> {
        let keys = StaticKeys { id: ACCESS_KEY.into(), secret: SECRET_KEY.into(), token: None };
        let options = OpenOptions {
            endpoint: Some(target.endpoint()),
            region: Some(REGION.into()),
            keys: Some(keys),
            ..OpenOptions::default()
        };
        Ok(Bucket::open_with(&format!("s3://{BUCKET}"), &options)?)
    }

    /// A worker.
    pub fn new(bucket: &Bucket, worker: usize) -> Self {
        Self { bucket: bucket.clone(), key: key("celld", worker), etag: None }
    }
}

impl Client for Celld {
    async fn write(&mut self, verb: Verb, body: Bytes) -> Result<()> {
        let etag = match verb {
            Verb::Put => self.bucket.put(&self.key, body).await?,
            Verb::Swap => {
                let guard = Guard::Match(self.etag.clone().context("nothing was written yet")?);
                match self.bucket.put_if(&self.key, guard, body).await? {
                    CasOutcome::Applied(etag) => etag,
                    other @ (CasOutcome::Refused | CasOutcome::Unknown) => bail!("{other:?}"),
                }
            }
        };
        self.etag = Some(etag);
        Ok(())
    }
}
