//! Google's sources: HMAC keys, a key file, the default file of `gcloud`, the metadata server.
//!
//! HMAC keys (`GS_ACCESS_KEY_ID`, `GS_SECRET_ACCESS_KEY`, as `gsutil` calls them) sign requests
//! and are ours; the others are the library's and end in a bearer token. An emulator
//! (`STORAGE_EMULATOR_HOST`) is asked without any, as Google's clients do.

use reqsign_core::time::Timestamp;
use reqsign_core::{Context, ProvideCredential};
use reqsign_google::{
    FileCredentialProvider, ServiceAccountTokenCredentialProvider, VmMetadataCredentialProvider,
};

use super::aws::wall_ms;
use super::context::{self, Environment};
use super::sigv4::{self, AccessKey};
use super::sources::Search;
use super::{Credential, CredentialError, Proof, Sources, bearer};

const ADVICE: &str = "name a key file in GOOGLE_APPLICATION_CREDENTIALS, set GS_ACCESS_KEY_ID and \
                      GS_SECRET_ACCESS_KEY, or give this machine a service account";
/// The region of a bucket is not known here, and Google takes this for it.
pub(super) const REGION: &str = "auto";
const KEY_FILE: &str = "GOOGLE_APPLICATION_CREDENTIALS";

pub(super) async fn load(sources: &Sources) -> Result<Credential, CredentialError> {
    let env = &sources.environment;
    let mut search = Search::new("gs", ADVICE, context::of(sources));

    match hmac_key(env) {
        Ok(Some(found)) => return Ok(found),
        Ok(None) => {
            search.absent("HMAC key", "GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY are not set");
        }
        Err(what) => return Err(search.failed("HMAC key", &what)),
    }
    if env.get("STORAGE_EMULATOR_HOST").is_some() {
        return Ok(Credential::anonymous());
    }

    match env.get(KEY_FILE) {
        None => search.absent("key file", &format!("{KEY_FILE} is not set")),
        Some(path) => {
            let source = format!("key file {path}");
            let file = KeyFile { path: path.to_owned() };
            if let Some(found) = search.ask(&source, "it has nothing", file, credential).await? {
                return Ok(found);
            }
        }
    }

    match default_file(env) {
        None => search.absent("default credentials", "HOME is not set"),
        Some(path) => match context::read_file(&path).await {
            Err(error) => search.absent("default credentials", &format!("{path}: {error}")),
            Ok(_) => {
                let source = format!("default credentials {path}");
                let file = KeyFile { path };
                if let Some(found) = search.ask(&source, "it has nothing", file, credential).await?
                {
                    return Ok(found);
                }
            }
        },
    }

    let host = env.get("GCE_METADATA_HOST").unwrap_or("metadata.google.internal");
    let source = format!("metadata server {host}");
    let metadata = VmMetadataCredentialProvider::new().with_endpoint(host);
    match search.ask(&source, "it has nothing", metadata, credential).await? {
        Some(found) => Ok(found),
        None => Err(search.nothing()),
    }
}

fn hmac_key(env: &Environment) -> Result<Option<Credential>, String> {
    let (id, secret) = match (env.get("GS_ACCESS_KEY_ID"), env.get("GS_SECRET_ACCESS_KEY")) {
        (Some(id), Some(secret)) => (id, secret),
        (Some(_), None) => {
            return Err("GS_ACCESS_KEY_ID is set and GS_SECRET_ACCESS_KEY is not".to_owned());
        }
        (None, Some(_)) => {
            return Err("GS_SECRET_ACCESS_KEY is set and GS_ACCESS_KEY_ID is not".to_owned());
        }
        (None, None) => return Ok(None),
    };
    let region = REGION.to_owned();
    let key = AccessKey::new(&sigv4::GOOG, id.to_owned(), secret.to_owned(), None, region)?;
    Ok(Some(Credential::new(Proof::AccessKey(key), None)))
}

fn default_file(env: &Environment) -> Option<String> {
    const NAME: &str = "application_default_credentials.json";
    match (env.get("CLOUDSDK_CONFIG"), env.get("HOME")) {
        (Some(directory), _) => Some(format!("{directory}/{NAME}")),
        (None, Some(home)) => Some(format!("{home}/.config/gcloud/{NAME}")),
        (None, None) => None,
    }
}

/// A file of any kind. A service account's key in it is exchanged for a token.
#[derive(Debug)]
struct KeyFile {
    path: String,
}

impl ProvideCredential for KeyFile {
    type Credential = reqsign_google::Credential;

    async fn provide_credential(
        &self,
        context: &Context,
    ) -> reqsign_core::Result<Option<Self::Credential>> {
        let found = FileCredentialProvider::new(&self.path).provide_credential(context).await?;
        match found.as_ref().and_then(|found| found.service_account.clone()) {
            None => Ok(found),
            Some(account) => {
                let exchange = ServiceAccountTokenCredentialProvider::new(account);
                exchange.provide_credential(context).await
            }
        }
    }
}

fn credential(found: reqsign_google::Credential) -> Result<Credential, String> {
    let token = found.token.ok_or("it has no token")?;
    let proof = bearer(&token.access_token, false)?;
    Ok(Credential::new(proof, token.expires_at.map(|at: Timestamp| wall_ms(at))))
}
