//! How a node finds the current deployment, and has its shards run it.

use std::sync::Arc;

use celld_rt as rt;
use celld_rt::Stop;

use super::Node;
use super::shards::Order;
use crate::deployment::{self, Deployment};
use crate::trial;

/// What the last look at the deployment has found.
#[derive(Default)]
pub(super) struct Seen {
    /// The version that was adopted or refused.
    version: Option<String>,
    /// Why none was adopted.
    refusal: Option<String>,
}

impl Node {
    /// As [`Self::look_for_deployment`]. `None`: the node is to stop, and does not wait for a bucket
    /// that may be away.
    pub(super) async fn look_unless_stopped(
        &mut self,
        seen: &mut Seen,
    ) -> Option<Result<String, String>> {
        let signals = self.signals.clone();
        let stopped = async {
            signals.wait(Stop::Drain).await;
            None
        };
        let found = async { Some(self.look_for_deployment(seen).await) };
        futures_lite::future::or(found, stopped).await
    }

    /// Adopts the current deployment if it is another one than `seen`. Returns the version that it
    /// found serving or made serve, or why there is none; what is news goes to the log as well.
    async fn look_for_deployment(&mut self, seen: &mut Seen) -> Result<String, String> {
        let found = self.adopt_current(seen).await;
        if let Err(why) = &found
            && seen.refusal.as_ref() != Some(why)
        {
            rt::log!("celld: {why}");
        }
        seen.refusal = found.as_ref().err().cloned();
        found
    }

    async fn adopt_current(&mut self, seen: &mut Seen) -> Result<String, String> {
        let bucket = self.common.bucket.clone();
        let version = match deployment::read_current(&bucket).await {
            Ok(Some((current, _))) => current.version,
            Ok(None) => {
                let why = "nothing is deployed yet".to_owned();
                // No news: whoever starts a node before the first deployment knows.
                seen.refusal = Some(why.clone());
                return Err(why);
            }
            Err(error) => {
                self.common.status.rejects(None, &error.to_string());
                return Err(format!("the deployment cannot be read: {error}"));
            }
        };
        self.common.status.reads_current();
        if seen.version.as_ref() == Some(&version) {
            let refused = || seen.refusal.clone().unwrap_or_else(|| "it was refused".to_owned());
            return self.common.status.version().ok_or_else(refused);
        }
        let rejected = match deployment::load(&bucket, &version).await {
            Ok(loaded) => {
                seen.version = Some(version.clone());
                let name = loaded.manifest.name.clone();
                match self.adopt(loaded).await {
                    Ok(()) => {
                        self.common.status.serves(&version);
                        rt::log!("celld: serving version {version} of {name}");
                        return Ok(version);
                    }
                    Err(error) => (error.clone(), format!("is not adopted: {error}")),
                }
            }
            // Not remembered: what is missing may come.
            Err(error) => (error.to_string(), format!("cannot be loaded: {error}")),
        };
        let (error, what) = rejected;
        self.common.status.rejects(Some(&version), &error);
        Err(format!("version {version} {what}"))
    }

    /// Every shard runs the same code: what the first accepts, the others accept too.
    async fn adopt(&mut self, deployment: Deployment) -> Result<(), String> {
        let script = Arc::new(trial::script_of(deployment));
        for shard in 0..self.orders.len() {
            let (done, adopted) = rt::oneshot::channel();
            self.order(shard, Order::Adopt(script.clone(), done)).await;
            adopted.await.unwrap_or_else(|_| Err("the shard has ended".into()))?;
        }
        Ok(())
    }
}
