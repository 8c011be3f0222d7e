//! Azure's sources: a connection string, the account's key, a shared access signature, a client
//! secret, a workload identity, the managed identity of this machine.
//!
//! The first three are ours, by the names that Microsoft's command line uses, as the library has
//! them by other names only; so is the emulator's well-known key. The others are the library's
//! and end in a bearer token.

use http::Uri;
use http::request::Parts;
use http::uri::PathAndQuery;
use reqsign_azure_storage::{
    ClientSecretCredentialProvider, ImdsCredentialProvider, WorkloadIdentityCredentialProvider,
};

use super::aws::wall_ms;
use super::context::{self, Environment};
use super::shared_key::SharedKey;
use super::sources::Search;
use super::{Credential, CredentialError, Proof, Sources, bearer};

const ADVICE: &str = "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT and \
                      AZURE_STORAGE_KEY, or give this machine or pod an identity";

/// Public, and the same for every emulator: learn.microsoft.com, "Use the Azurite emulator".
pub(crate) const EMULATOR_ACCOUNT: &str = "devstoreaccount1";
const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const EMULATOR_ENDPOINT: &str = "http://127.0.0.1:10000/devstoreaccount1";

/// What a connection string says, or the settings that stand for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connection {
    /// The storage account.
    pub(crate) account: Option<String>,
    /// Where its blobs are, as `https://account.blob.core.windows.net`.
    pub(crate) endpoint: Option<String>,
    key: Option<String>,
    signature: Option<String>,
}

impl Connection {
    /// From `AZURE_STORAGE_CONNECTION_STRING`, or else from `AZURE_STORAGE_ACCOUNT`,
    /// `AZURE_STORAGE_KEY`, `AZURE_STORAGE_SAS_TOKEN` and `AZURE_STORAGE_BLOB_ENDPOINT`.
    ///
    /// # Errors
    /// The string has no meaning; the text says why.
    pub(crate) fn of(env: &Environment) -> Result<Self, String> {
        if let Some(text) = env.get("AZURE_STORAGE_CONNECTION_STRING") {
            return Self::parse(text)
                .map_err(|what| format!("AZURE_STORAGE_CONNECTION_STRING {what}"));
        }
        let get = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| env.get(name));
            found.map(ToOwned::to_owned)
        };
        Ok(Self {
            account: get(["AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"]),
            key: get(["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"]),
            signature: env.get("AZURE_STORAGE_SAS_TOKEN").map(ToOwned::to_owned),
            endpoint: env.get("AZURE_STORAGE_BLOB_ENDPOINT").map(ToOwned::to_owned),
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (mut connection, mut protocol, mut suffix) =
            (Self::default(), "https", "core.windows.net");
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            // The values of keys and signatures have `=` in them.
            let (name, value) = part.split_once('=').ok_or("has a part without `=`")?;
            let value = value.trim();
            match name.trim().to_ascii_lowercase().as_str() {
                "usedevelopmentstorage" if value.eq_ignore_ascii_case("true") => {
                    connection.account = Some(EMULATOR_ACCOUNT.to_owned());
                    connection.key = Some(EMULATOR_KEY.to_owned());
                    connection.endpoint = Some(EMULATOR_ENDPOINT.to_owned());
                }
                "accountname" => connection.account = Some(value.to_owned()),
                "accountkey" => connection.key = Some(value.to_owned()),
                "sharedaccesssignature" => connection.signature = Some(value.to_owned()),
                "blobendpoint" => {
                    connection.endpoint = Some(value.trim_end_matches('/').to_owned())
                }
                "defaultendpointsprotocol" => protocol = value,
                "endpointsuffix" => suffix = value,
                // Queues, tables, files.
                _ => {}
            }
        }
        if connection.endpoint.is_none() {
            let account = connection.account.as_deref().ok_or("has no AccountName")?;
            connection.endpoint = Some(format!("{protocol}://{account}.blob.{suffix}"));
        }
        Ok(connection)
    }
}

pub(super) async fn load(sources: &Sources, account: &str) -> Result<Credential, CredentialError> {
    let env = &sources.environment;
    let mut search = Search::new("az", ADVICE, context::of(sources));

    let source = "environment";
    match Connection::of(env).and_then(|connection| of_connection(connection, account)) {
        Ok(Some(found)) => return Ok(found),
        Ok(None) => search.absent(
            source,
            "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY and AZURE_STORAGE_SAS_TOKEN are \
             not set",
        ),
        Err(what) => return Err(search.failed(source, &what)),
    }
    if account == EMULATOR_ACCOUNT {
        let key = SharedKey::new(account.to_owned(), EMULATOR_KEY)
            .map_err(|what| search.failed("emulator", &what))?;
        return Ok(Credential::new(Proof::SharedKey(key), None));
    }

    let source = "client secret";
    let absent = "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET are not all set";
    let secret = ClientSecretCredentialProvider::new();
    if let Some(found) = search.ask(source, absent, secret, credential).await? {
        return Ok(found);
    }

    let source = "workload identity";
    let absent = "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_FEDERATED_TOKEN_FILE are not all set";
    let workload = WorkloadIdentityCredentialProvider::new();
    if let Some(found) = search.ask(source, absent, workload, credential).await? {
        return Ok(found);
    }

    let endpoint = env
        .get("AZURE_IMDS_ENDPOINT")
        .unwrap_or("http://169.254.169.254/metadata/identity/oauth2/token");
    let source = format!("managed identity at {endpoint}");
    let managed = ImdsCredentialProvider::new().with_endpoint(endpoint);
    match search.ask(&source, "it has nothing", managed, credential).await? {
        Some(found) => Ok(found),
        None => Err(search.nothing()),
    }
}

fn of_connection(connection: Connection, account: &str) -> Result<Option<Credential>, String> {
    if let Some(named) = &connection.account
        && named != account
    {
        return Err(format!("it is for the account {named:?}, and the bucket is in {account:?}"));
    }
    if let Some(key) = connection.key {
        let key = SharedKey::new(account.to_owned(), &key)?;
        return Ok(Some(Credential::new(Proof::SharedKey(key), None)));
    }
    let Some(signature) = connection.signature else { return Ok(None) };
    let query = signature.trim_start_matches('?').to_owned();
    let is_query = format!("/?{query}").parse::<PathAndQuery>().is_ok();
    if !is_query || !query.contains("sig=") {
        return Err("AZURE_STORAGE_SAS_TOKEN is not a query with a `sig`".to_owned());
    }
    Ok(Some(Credential::new(Proof::AccessSignature(query), None)))
}

fn credential(found: reqsign_azure_storage::Credential) -> Result<Credential, String> {
    match found {
        reqsign_azure_storage::Credential::BearerToken { token, expires_in } => {
            Ok(Credential::new(bearer(&token, true)?, expires_in.map(wall_ms)))
        }
        reqsign_azure_storage::Credential::SharedKey { .. }
        | reqsign_azure_storage::Credential::SasToken { .. } => {
            Err("it gave another kind of credential than a token".to_owned())
        }
    }
}

/// A shared access signature goes behind what the request asks for.
pub(super) fn append_query(parts: &mut Parts, query: &str) -> Result<(), CredentialError> {
    let bad = |_| CredentialError::Unsignable("a URI that takes no query");
    let mut uri = parts.uri.clone().into_parts();
    let joined = match (parts.uri.path(), parts.uri.query()) {
        (path, None | Some("")) => format!("{path}?{query}"),
        (path, Some(own)) => format!("{path}?{own}&{query}"),
    };
    uri.path_and_query = Some(joined.parse().map_err(bad)?);
    let uri = Uri::from_parts(uri);
    parts.uri = uri.map_err(|_| CredentialError::Unsignable("a URI that takes no query"))?;
    Ok(())
}
