//! Deployments: the records below `deploy/` in the bucket, and what must hold of them. [`stored`] reads
//! and writes them.
//!
//! Invariant: `current.json` names a version whose manifest and modules are already in the bucket,
//! and an object below `modules/` or `versions/` is never written twice with different bytes. So
//! whoever reads `current.json` can read all of that version, at any later time too.
//! Units: sizes are bytes; `created_ms` is milliseconds since 1970.
//!
//! | key | content |
//! | --- | --- |
//! | `deploy/modules/<sha256>` | a module or a source map, named by its content |
//! | `deploy/versions/<id>.json` | [`Manifest`]: create-if-absent |
//! | `deploy/current.json` | [`Current`]: moved by compare-and-swap |

mod stored;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use celld_core::cell::CellId;
use celld_s3::StoreError;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use self::stored::{load, move_current, put_blob, put_manifest, read_current, read_manifest};

/// Key of the record that names the version to serve.
pub const CURRENT_KEY: &str = "deploy/current.json";
/// What this code writes, and the only thing that it reads.
pub const FORMAT: u32 = 1;
/// A manifest that is larger was not written by us.
const MANIFEST_BYTES_MAX: u64 = 8 << 20;
/// Modules of one version.
pub const MODULES_MAX: usize = 10_000;
/// Bytes of all modules and source maps of one version, so that a node never loads more. Modules
/// are at most 64 MiB together; a source map holds its sources once more.
pub const VERSION_BYTES_MAX: u64 = 256 << 20;
/// Longest name of a module, a binding, a class.
const NAME_BYTES_MAX: usize = 1_024;

/// What a module is to the code that imports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ModuleKind {
    /// JavaScript with `import` and `export`.
    #[serde(rename = "esm")]
    EsModule,
    /// A string.
    #[serde(rename = "text")]
    Text,
    /// An `ArrayBuffer`.
    #[serde(rename = "data")]
    Data,
    /// A `WebAssembly.Module`.
    #[serde(rename = "wasm")]
    Wasm,
    /// What its JSON says.
    #[serde(rename = "json")]
    Json,
}

/// Bytes in the bucket, named by their content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    /// 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

impl Blob {
    /// The name of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self { sha256: hex::encode(Sha256::digest(bytes)), size: bytes.len() as u64 }
    }

    /// Its key in the bucket.
    pub fn key(&self) -> String {
        format!("deploy/modules/{}", self.sha256)
    }
}

/// One module of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleRef {
    /// What imports resolve to, relative to the root of the modules.
    pub name: String,
    /// What it is.
    pub kind: ModuleKind,
    /// Its content.
    pub content: Blob,
    /// Leads back to the sources that a bundler read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_map: Option<Blob>,
}

/// A Durable Object binding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DurableObject {
    /// Its name on `env`.
    pub binding: String,
    /// The exported class.
    pub class_name: String,
    /// Key of the class in the bucket.
    pub namespace: String,
}

/// Bounds that the project asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// CPU of one event, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u32>,
    /// Outgoing requests of one event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subrequests: Option<u32>,
}

/// One version of a script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Its id: sorts as it was created.
    pub version: String,
    /// When it was made.
    pub created_ms: u64,
    /// The script.
    pub name: String,
    /// Name of the entry among `modules`.
    pub main: String,
    /// All modules, sorted by name.
    pub modules: Vec<ModuleRef>,
    /// Text and JSON values of `env`.
    #[serde(default)]
    pub vars: serde_json::Map<String, serde_json::Value>,
    /// Durable Objects of `env`.
    #[serde(default)]
    pub durable_objects: Vec<DurableObject>,
    /// Namespace key of each class that exists.
    #[serde(default)]
    pub classes: BTreeMap<String, String>,
    /// Namespace keys of classes that a migration deleted.
    #[serde(default)]
    pub deleted: Vec<String>,
    /// The last migration that is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_tag: Option<String>,
    /// As `2026-01-31`.
    pub compatibility_date: String,
    /// Flags beyond the date's.
    #[serde(default)]
    pub compatibility_flags: Vec<String>,
    /// Cron expressions.
    #[serde(default)]
    pub crons: Vec<String>,
    /// Bounds.
    #[serde(default)]
    pub limits: Limits,
}

/// Which version is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Current {
    /// [`FORMAT`].
    pub format: u32,
    /// Id of the version.
    pub version: String,
    /// A number that no other write of this record has.
    pub nonce: String,
}

/// One loaded module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// What imports resolve to.
    pub name: String,
    /// What it is.
    pub kind: ModuleKind,
    /// Its content, checked against its sum.
    pub bytes: Bytes,
    /// Its source map, checked likewise.
    pub source_map: Option<Bytes>,
}

/// A version with all that it consists of.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// The record.
    pub manifest: Manifest,
    /// In the manifest's order.
    pub modules: Vec<Module>,
}

/// Why a deployment was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The bucket did not answer: reads may be repeated.
    #[error("{key}: {error}")]
    Store {
        /// The object.
        key: String,
        /// What the bucket says.
        error: StoreError,
    },
    /// A record or module is not what it must be: an operator must deploy again.
    #[error("{key} cannot be used: {what}{}", advice(key))]
    Damaged {
        /// The object.
        key: String,
        /// What is wrong with it.
        what: String,
    },
    /// Somebody else deployed at the same time: look and deploy again.
    #[error("another deployment moved {CURRENT_KEY} at the same time; it now serves {version}")]
    Raced {
        /// What is served now.
        version: String,
    },
    /// The new version would lose data that the served one has.
    #[error("{0}")]
    Migration(String),
    /// The bucket does not say whether the write applied.
    #[error(
        "the bucket does not tell whether {key} was written; see what is served, and deploy again if it is the old version"
    )]
    Unknown {
        /// The object.
        key: String,
    },
}

/// What an operator can do about a record that says which version is served: nothing overwrites it,
/// as a new version is compared with that one.
fn advice(key: &str) -> &'static str {
    match key {
        CURRENT_KEY => {
            "; put an older copy of it back, or delete it and deploy again (then nothing checks \
             whether the new version drops a class that has objects)"
        }
        _ => "",
    }
}

impl DeployError {
    fn damaged(key: &str, what: impl Into<String>) -> Self {
        Self::Damaged { key: key.to_owned(), what: what.into() }
    }
}

/// True for what may be the id of a version: one plain segment of a key.
fn is_version(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    (1..=64).contains(&text.len()) && text.bytes().all(plain)
}

/// Key of the manifest of a version.
pub fn version_key(version: &str) -> String {
    format!("deploy/versions/{version}.json")
}

impl Manifest {
    /// Reads a record. `key` is for the message.
    ///
    /// # Errors
    /// [`DeployError::Damaged`]: it is not a manifest that can be served.
    pub fn decode(key: &str, bytes: &[u8]) -> Result<Self, DeployError> {
        let format: Format = serde_json::from_slice(bytes)
            .map_err(|error| DeployError::damaged(key, error.to_string()))?;
        format.check(key)?;
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| DeployError::damaged(key, error.to_string()))?;
        manifest.check().map_err(|what| DeployError::damaged(key, what))?;
        Ok(manifest)
    }

    /// The bytes of the record.
    ///
    /// # Errors
    /// [`DeployError::Damaged`]: no node would serve it.
    pub fn encode(&self) -> Result<Bytes, DeployError> {
        let key = version_key(&self.version);
        self.check().map_err(|what| DeployError::damaged(&key, what))?;
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| DeployError::damaged(&key, error.to_string()))?;
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(DeployError::damaged(
                &key,
                format!("it has more than {MANIFEST_BYTES_MAX} bytes; variables are part of it"),
            ));
        }
        Ok(bytes.into())
    }

    /// What must hold of every manifest.
    fn check(&self) -> Result<(), String> {
        if !is_version(&self.version) {
            return Err(format!("{:?} is not the id of a version", self.version));
        }
        if self.modules.len() > MODULES_MAX {
            return Err(format!("{} modules are more than {MODULES_MAX}", self.modules.len()));
        }
        let mut names = BTreeSet::new();
        let mut total = 0_u64;
        for module in &self.modules {
            if module.name.is_empty() || module.name.len() > NAME_BYTES_MAX {
                return Err("a module's name is empty or too long".to_owned());
            }
            if !names.insert(module.name.as_str()) {
                return Err(format!("the module {:?} is there twice", module.name));
            }
            for blob in std::iter::once(&module.content).chain(&module.source_map) {
                let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
                if blob.sha256.len() != 64 || !blob.sha256.bytes().all(digit) {
                    return Err(format!(
                        "the sum of the module {:?} is not 64 hexadecimal digits",
                        module.name
                    ));
                }
                total = total.saturating_add(blob.size);
            }
        }
        if total > VERSION_BYTES_MAX {
            return Err(format!("modules of {total} bytes are more than {VERSION_BYTES_MAX}"));
        }
        match self.modules.iter().find(|module| module.name == self.main) {
            None => return Err(format!("the entry {:?} is not among the modules", self.main)),
            Some(module) if module.kind != ModuleKind::EsModule => {
                return Err(format!("the entry {:?} is not an ES module", self.main));
            }
            Some(_) => {}
        }
        self.check_bindings()
    }

    fn check_bindings(&self) -> Result<(), String> {
        let zero = "0".repeat(64);
        let mut bindings: BTreeSet<&str> = self.vars.keys().map(String::as_str).collect();
        for object in &self.durable_objects {
            if object.binding.is_empty()
                || object.class_name.is_empty()
                || object.class_name.len() > NAME_BYTES_MAX
            {
                return Err("a Durable Object binding has no name or no class".to_owned());
            }
            if CellId::new(&object.namespace, &zero).is_none() {
                return Err(format!("{:?} is not the key of a namespace", object.namespace));
            }
            if !bindings.insert(&object.binding) {
                return Err(format!("two bindings are called {:?}", object.binding));
            }
        }
        match self.classes.values().find(|namespace| CellId::new(namespace, &zero).is_none()) {
            Some(namespace) => Err(format!("{namespace:?} is not the key of a namespace")),
            None => Ok(()),
        }
    }

    /// Whether this version may follow `old`: each class that is served keeps its key, or goes by a
    /// migration.
    ///
    /// # Errors
    /// [`DeployError::Migration`] says which class would lose its objects.
    pub fn follows(&self, old: &Self) -> Result<(), DeployError> {
        if self.name != old.name {
            // Another script: its keys are its own, and the old one's data stays where it is.
            return Ok(());
        }
        for (class, namespace) in &old.classes {
            let is_kept = self.classes.values().any(|other| other == namespace);
            if !is_kept && !self.deleted.contains(namespace) {
                return Err(DeployError::Migration(format!(
                    "the class {class:?} is served now, with its objects under {namespace:?}, and this version neither has nor deletes it; \
                     keep all migrations in the wrangler file, and delete or rename the class by one"
                )));
            }
        }
        Ok(())
    }
}

/// The field that is read first: another format may have any other field.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl Format {
    fn check(&self, key: &str) -> Result<(), DeployError> {
        if self.format == FORMAT {
            return Ok(());
        }
        let what =
            format!("its format is {}, and this version of celld knows {FORMAT}", self.format);
        Err(DeployError::damaged(key, what))
    }
}

impl Current {
    /// Names `version`, with a nonce of its own.
    ///
    /// # Errors
    /// [`DeployError::Damaged`]: the system gives no random bytes.
    pub fn new(version: &str) -> Result<Self, DeployError> {
        let mut nonce = [0_u8; 16];
        getrandom::fill(&mut nonce).map_err(|error| {
            DeployError::damaged(CURRENT_KEY, format!("no random bytes: {error}"))
        })?;
        Ok(Self { format: FORMAT, version: version.to_owned(), nonce: hex::encode(nonce) })
    }

    /// Reads the record.
    ///
    /// # Errors
    /// [`DeployError::Damaged`]
    pub fn decode(bytes: &[u8]) -> Result<Self, DeployError> {
        let format: Format = serde_json::from_slice(bytes)
            .map_err(|error| DeployError::damaged(CURRENT_KEY, error.to_string()))?;
        format.check(CURRENT_KEY)?;
        let current: Self = serde_json::from_slice(bytes)
            .map_err(|error| DeployError::damaged(CURRENT_KEY, error.to_string()))?;
        if !is_version(&current.version) {
            return Err(DeployError::damaged(
                CURRENT_KEY,
                format!("{:?} is not the id of a version", current.version),
            ));
        }
        Ok(current)
    }

    fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("three plain fields can always be written").into()
    }
}

#[cfg(test)]
mod tests;
