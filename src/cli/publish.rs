//! Puts a bundle into a bucket and makes it the current deployment: `celld deploy` and each
//! rebuild of `celld dev` end here.

use bytes::Bytes;
use celld_s3::Bucket;
use celld_shard::deployment::{
    self, Blob, DeployError, Deployment, DurableObject, FORMAT, Limits, Manifest, ModuleRef,
};

use super::bundle::Bundle;
use super::clock;
use super::config::{Project, Purpose};

/// What became of it.
#[derive(Debug)]
pub(crate) struct Published {
    /// What is served now.
    pub(crate) version: String,
    /// What was served before.
    pub(crate) previous: Option<String>,
    /// The same was served already, and nothing was written.
    pub(crate) is_unchanged: bool,
    /// Sums of the contents that the bucket did not have.
    pub(crate) uploaded: Vec<String>,
}

/// The record that describes `bundle`, under an id of its own.
///
/// # Errors
/// The system gives no random bytes.
pub(crate) fn manifest(project: &Project, bundle: &Bundle) -> Result<Manifest, getrandom::Error> {
    let mut tail = [0_u8; 4];
    getrandom::fill(&mut tail)?;
    let created_ms = clock::now_ms();
    let modules = bundle.modules.iter().map(|module| ModuleRef {
        name: module.name.clone(),
        kind: module.kind,
        content: Blob::of(&module.bytes),
        source_map: module.source_map.as_deref().map(Blob::of),
    });
    let objects = project.durable_objects.iter().map(|object| DurableObject {
        binding: object.binding.clone(),
        class_name: object.class_name.clone(),
        namespace: object.namespace.clone(),
    });
    Ok(Manifest {
        format: FORMAT,
        version: format!("{}-{}", clock::stamp(created_ms), hex::encode(tail)),
        created_ms,
        name: project.name.clone(),
        main: bundle.main.clone(),
        modules: modules.collect(),
        vars: project.vars.clone(),
        durable_objects: objects.collect(),
        classes: project.classes.clone(),
        deleted: project.deleted.clone(),
        migration_tag: project.migration_tag.clone(),
        compatibility_date: project.compatibility_date.clone(),
        compatibility_flags: project.compatibility_flags.clone(),
        crons: project.crons.clone(),
        limits: Limits { cpu_ms: project.limits.cpu_ms, subrequests: project.limits.subrequests },
    })
}

/// What a node would read of it.
pub(crate) fn deployment(manifest: &Manifest, bundle: &Bundle) -> Deployment {
    let modules = bundle.modules.iter().map(|module| deployment::Module {
        name: module.name.clone(),
        kind: module.kind,
        bytes: module.bytes.clone().into(),
        source_map: module.source_map.clone().map(Bytes::from),
    });
    Deployment { manifest: manifest.clone(), modules: modules.collect() }
}

/// Uploads what `bucket` lacks of `bundle`, then its manifest, then moves `current.json`.
/// `progress` is told after each module how many of how many are there.
///
/// # Errors
/// The bucket fails, somebody else deploys at the same time, or (for a deployment) a class that
/// is served would lose its objects.
pub(crate) async fn publish(
    bucket: &Bucket,
    manifest: &Manifest,
    bundle: Bundle,
    purpose: Purpose,
    mut progress: impl FnMut(usize, usize, &str),
) -> Result<Published, DeployError> {
    let current = deployment::read_current(bucket).await?;
    let previous = current.as_ref().map(|(current, _)| current.version.clone());
    if let Some(version) = &previous {
        // A damaged version is what a new deployment is the remedy for.
        match deployment::read_manifest(bucket, version).await {
            Ok(old) if is_same(&old, manifest) => {
                return Ok(Published {
                    version: version.clone(),
                    previous,
                    is_unchanged: true,
                    uploaded: Vec::new(),
                });
            }
            // In development a class comes and goes while it is written.
            Ok(old) if purpose == Purpose::Deploy => manifest.follows(&old)?,
            Ok(_) | Err(DeployError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let total = bundle.modules.len();
    let mut uploaded = Vec::new();
    for (done, module) in bundle.modules.into_iter().enumerate() {
        for bytes in std::iter::once(module.bytes).chain(module.source_map).map(Bytes::from) {
            if deployment::put_blob(bucket, &bytes).await? {
                uploaded.push(Blob::of(&bytes).sha256);
            }
        }
        progress(done + 1, total, &module.name);
    }
    deployment::put_manifest(bucket, manifest).await?;
    deployment::move_current(bucket, current.map(|(_, etag)| etag), &manifest.version).await?;
    Ok(Published { version: manifest.version.clone(), previous, is_unchanged: false, uploaded })
}

/// Whether two versions differ in their id and date only.
fn is_same(old: &Manifest, new: &Manifest) -> bool {
    Manifest { version: old.version.clone(), created_ms: old.created_ms, ..new.clone() } == *old
}
