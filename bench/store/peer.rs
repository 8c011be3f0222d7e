//! The crate `object_store` with its default client, on tokio: `--features object_store`.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use celld_stores::{ACCESS_KEY, BUCKET, REGION, SECRET_KEY};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStore as _, PutMode, PutOptions, UpdateVersion};

use crate::target::{Client, Target, Verb, key};

/// A worker; all share one store.
pub struct ObjectStore {
    store: Arc<AmazonS3>,
    path: Path,
    version: Option<UpdateVersion>,
}

impl ObjectStore {
    /// The bucket of a target.
    ///
    /// # Errors
    /// The options make no sense.
    pub fn bucket(target: &Target) -> Result<Arc<AmazonS3>> {
        // It makes a TLS client even for a store without TLS. A second time there is one already.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let builder = AmazonS3Builder::new()
            .with_endpoint(target.endpoint())
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_region(REGION)
            .with_access_key_id(ACCESS_KEY)
            .with_secret_access_key(SECRET_KEY);
        Ok(Arc::new(builder.build()?))
    }

    /// A worker.
    pub fn new(store: &Arc<AmazonS3>, worker: usize) -> Self {
        Self { store: store.clone(), path: key("object_store", worker).into(), version: None }
    }
}

impl Client for ObjectStore {
    async fn write(&mut self, verb: Verb, body: Bytes) -> Result<()> {
        let mode = match verb {
            Verb::Put => PutMode::Overwrite,
            Verb::Swap => PutMode::Update(self.version.clone().context("nothing was written yet")?),
        };
        let options = PutOptions::from(mode);
        let done = self.store.put_opts(&self.path, body.into(), options).await?;
        self.version = Some(done.into());
        Ok(())
    }
}
