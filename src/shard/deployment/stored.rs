//! How the records of deployments, and what they name, are read from the bucket and written to it.

use bytes::Bytes;
use celld_s3::{Bucket, CasOutcome, Etag, Guard};

use super::{
    Blob, CURRENT_KEY, Current, DeployError, Deployment, MANIFEST_BYTES_MAX, Manifest, Module,
    version_key,
};

/// `current.json` is three short fields.
const CURRENT_BYTES_MAX: u64 = 4 << 10;
/// An unknown end of a write is looked up this many times before it is reported.
const READ_BACKS: u32 = 3;

/// Reads which version is served, and the record's ETag. `None`: nothing was ever deployed.
///
/// # Errors
/// The bucket does not answer, or the record is damaged.
pub async fn read_current(bucket: &Bucket) -> Result<Option<(Current, Etag)>, DeployError> {
    match read(bucket, CURRENT_KEY, CURRENT_BYTES_MAX).await? {
        Some((body, etag)) => Ok(Some((Current::decode(&body)?, etag))),
        None => Ok(None),
    }
}

/// Reads the manifest of a version.
///
/// # Errors
/// It is missing or damaged, or the bucket does not answer.
pub async fn read_manifest(bucket: &Bucket, version: &str) -> Result<Manifest, DeployError> {
    let key = version_key(version);
    let (body, _) = read(bucket, &key, MANIFEST_BYTES_MAX)
        .await?
        .ok_or_else(|| DeployError::damaged(&key, "it is not in the bucket"))?;
    let manifest = Manifest::decode(&key, &body)?;
    if manifest.version != version {
        return Err(DeployError::damaged(&key, format!("it calls itself {:?}", manifest.version)));
    }
    Ok(manifest)
}

/// Reads one version with all its modules; each is checked against its sum.
///
/// # Errors
/// Something is missing or damaged, or the bucket does not answer.
pub async fn load(bucket: &Bucket, version: &str) -> Result<Deployment, DeployError> {
    let manifest = read_manifest(bucket, version).await?;
    let mut modules = Vec::with_capacity(manifest.modules.len());
    for module in &manifest.modules {
        let bytes = read_blob(bucket, &module.content).await?;
        let source_map = match &module.source_map {
            Some(blob) => Some(read_blob(bucket, blob).await?),
            None => None,
        };
        modules.push(Module { name: module.name.clone(), kind: module.kind, bytes, source_map });
    }
    Ok(Deployment { manifest, modules })
}

async fn read_blob(bucket: &Bucket, blob: &Blob) -> Result<Bytes, DeployError> {
    let key = blob.key();
    let (body, _) = read(bucket, &key, blob.size)
        .await?
        .ok_or_else(|| DeployError::damaged(&key, "it is not in the bucket"))?;
    if Blob::of(&body) != *blob {
        return Err(DeployError::damaged(&key, "its content does not match its name"));
    }
    Ok(body)
}

/// Reads an object of at most `max` bytes.
async fn read(bucket: &Bucket, key: &str, max: u64) -> Result<Option<(Bytes, Etag)>, DeployError> {
    let object =
        bucket.get(key).await.map_err(|error| DeployError::Store { key: key.to_owned(), error })?;
    match object {
        Some(object) if object.body.len() as u64 > max => Err(DeployError::damaged(
            key,
            format!("it has {} bytes, and {max} are the most that it may have", object.body.len()),
        )),
        Some(object) => Ok(Some((object.body, object.etag))),
        None => Ok(None),
    }
}

/// Puts a module or source map into the bucket. `false`: it was there already.
///
/// # Errors
/// The bucket does not answer, or has other bytes under that name.
pub async fn put_blob(bucket: &Bucket, bytes: &Bytes) -> Result<bool, DeployError> {
    put_once(bucket, &Blob::of(bytes).key(), bytes).await
}

/// Puts a manifest into the bucket.
///
/// # Errors
/// As [`put_blob`]; also when the manifest could not be served.
pub async fn put_manifest(bucket: &Bucket, manifest: &Manifest) -> Result<(), DeployError> {
    put_once(bucket, &version_key(&manifest.version), &manifest.encode()?).await.map(drop)
}

/// Creates an object that is never changed. Of an unknown end only a read tells; the create may be
/// repeated, as it can only write the same bytes.
async fn put_once(bucket: &Bucket, key: &str, bytes: &Bytes) -> Result<bool, DeployError> {
    let fault = |error| DeployError::Store { key: key.to_owned(), error };
    for _ in 0..READ_BACKS {
        match bucket.put_if(key, Guard::Absent, bytes.clone()).await.map_err(fault)? {
            CasOutcome::Applied(_) => return Ok(true),
            CasOutcome::Refused | CasOutcome::Unknown => {}
        }
        match bucket.get(key).await.map_err(fault)? {
            Some(object) if object.body == bytes => return Ok(false),
            Some(_) => {
                return Err(DeployError::damaged(
                    key,
                    "the bucket has other bytes under this name",
                ));
            }
            None => {}
        }
    }
    Err(DeployError::Unknown { key: key.to_owned() })
}

/// Moves `current.json` to `version`, if it still is what `old` says.
///
/// # Errors
/// [`DeployError::Raced`] when somebody else was first; [`DeployError::Unknown`] when the bucket
/// does not tell.
pub async fn move_current(
    bucket: &Bucket,
    old: Option<Etag>,
    version: &str,
) -> Result<(), DeployError> {
    let fault = |error| DeployError::Store { key: CURRENT_KEY.to_owned(), error };
    let record = Current::new(version)?;
    let guard = old.map_or(Guard::Absent, Guard::Match);
    let known = match bucket.put_if(CURRENT_KEY, guard, record.encode()).await.map_err(fault)? {
        CasOutcome::Applied(_) => return Ok(()),
        CasOutcome::Refused => true,
        CasOutcome::Unknown => false,
    };
    // The nonce tells whether what stands there is our write, also when the answer was lost.
    match read_current(bucket).await? {
        Some((current, _)) if current == record => Ok(()),
        Some((current, _)) if known => Err(DeployError::Raced { version: current.version }),
        Some(_) | None => Err(DeployError::Unknown { key: CURRENT_KEY.to_owned() }),
    }
}
