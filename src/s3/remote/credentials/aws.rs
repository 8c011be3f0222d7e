//! Amazon's sources, in the order of its SDKs: environment, profile, web identity, container,
//! instance metadata.
//!
//! What the library's lack and is done here: profiles (`profile`); the token file of a container
//! goes before the token; a container's URI by plain HTTP has to be near; the metadata server by
//! IPv6; STS is asked where the role lives, and at `AWS_ENDPOINT_URL_STS` where that is set.
//! What is missing: S3 Express and SSO tokens that could be renewed (`aws sso login` does it).

use std::sync::Arc;

use reqsign_aws_v4::{
    AssumeRoleWithWebIdentityCredentialProvider, ECSCredentialProvider, EnvCredentialProvider,
    IMDSv2CredentialProvider,
};
use reqsign_core::ProvideCredentialDyn;
use reqsign_core::time::Timestamp;

use super::context::{self, Environment, is_near};
use super::profile::{self, Profiles};
use super::sigv4::{self, AccessKey};
use super::sources::Search;
use super::{Credential, CredentialError, Proof, Sources};

/// One of the library's sources.
pub(super) type Provider = Arc<dyn ProvideCredentialDyn<Credential = reqsign_aws_v4::Credential>>;

const ADVICE: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile in \
                      AWS_PROFILE, or give this machine or container a role";

pub(super) async fn load(sources: &Sources, region: &str) -> Result<Credential, CredentialError> {
    let env = &sources.environment;
    let mut search = Search::new("s3", ADVICE, context::of(sources));
    let read = |found| credential(found, region);

    if let Some(lone) = lone_key(env) {
        return Err(search.failed("environment", lone));
    }
    let source = "environment";
    let absent = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set";
    if let Some(found) = search.ask(source, absent, EnvCredentialProvider::new(), read).await? {
        return Ok(found);
    }

    let profiles = Profiles::read(env).await;
    let source = format!("profile {:?}", profiles.chosen());
    match profile::provider(&profiles, search.context(), sts_region(env, &profiles, region)) {
        Ok(Some(provider)) => {
            let absent = "it has nothing";
            if let Some(found) = search.ask(&source, absent, provider, read).await? {
                return Ok(found);
            }
        }
        Ok(None) => search.absent(&source, &profiles.describe()),
        Err(what) => return Err(search.failed(&source, &what)),
    }

    let source = "web identity";
    let absent = "AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE are not set";
    let web = web_identity(env, sts_region(env, &profiles, region));
    if let Some(found) = search.ask(source, absent, web, read).await? {
        return Ok(found);
    }

    let source = "container";
    let absent = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and AWS_CONTAINER_CREDENTIALS_FULL_URI \
                  are not set";
    let agent = container(env).map_err(|what| search.failed(source, &what))?;
    if let Some(found) = search.ask(source, absent, agent, read).await? {
        return Ok(found);
    }

    let endpoint = metadata_endpoint(env);
    let source = format!("instance metadata at {endpoint}");
    let imds = IMDSv2CredentialProvider::new().with_endpoint(endpoint);
    if is_set(env, "AWS_EC2_METADATA_DISABLED") {
        search.absent(&source, "AWS_EC2_METADATA_DISABLED is set");
    } else if let Some(found) = search.ask(&source, "it has nothing", imds, read).await? {
        return Ok(found);
    }
    Err(search.nothing())
}

/// Half a key is a mistake, and not a reason to look elsewhere.
fn lone_key(env: &Environment) -> Option<&'static str> {
    match (env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")) {
        (Some(_), None) => Some("AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not"),
        (None, Some(_)) => Some("AWS_SECRET_ACCESS_KEY is set and AWS_ACCESS_KEY_ID is not"),
        (Some(_), Some(_)) | (None, None) => None,
    }
}

fn is_set(env: &Environment, name: &str) -> bool {
    env.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Where STS is asked. A store's region may be a word of its own (`auto`); Amazon's have a number.
fn sts_region(env: &Environment, profiles: &Profiles, region: &str) -> Option<String> {
    let named = env.get("AWS_REGION").or_else(|| env.get("AWS_DEFAULT_REGION"));
    let of_store = region.ends_with(|last: char| last.is_ascii_digit()).then_some(region);
    named.or_else(|| profiles.get(profiles.chosen(), "region")).or(of_store).map(ToOwned::to_owned)
}

/// For a role that a Kubernetes service account may take.
fn web_identity(
    env: &Environment,
    region: Option<String>,
) -> AssumeRoleWithWebIdentityCredentialProvider {
    let mut web = AssumeRoleWithWebIdentityCredentialProvider::new();
    if env.get("AWS_ROLE_SESSION_NAME").is_none() {
        web = web.with_role_session_name(profile::SESSION.to_owned());
    }
    at_region(web, env, region)
}

/// The region's own STS, which answers also when the global one does not; except where the
/// environment says otherwise.
pub(super) fn at_region(
    web: AssumeRoleWithWebIdentityCredentialProvider,
    env: &Environment,
    region: Option<String>,
) -> AssumeRoleWithWebIdentityCredentialProvider {
    match region {
        Some(region) if env.get("AWS_STS_REGIONAL_ENDPOINTS") != Some("legacy") => {
            web.with_region(region).with_regional_sts_endpoint()
        }
        Some(region) => web.with_region(region),
        None => web,
    }
}

/// The agent of ECS, or of EKS Pod Identity. Its token file is read for every load, as it rotates.
pub(super) fn container(env: &Environment) -> Result<ECSCredentialProvider, String> {
    let mut agent = ECSCredentialProvider::new();
    if let Some(path) = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        agent = agent.with_relative_uri(path);
    } else if let Some(text) = env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI") {
        let uri: http::Uri = text
            .parse()
            .map_err(|_| format!("AWS_CONTAINER_CREDENTIALS_FULL_URI is not a URL: {text:?}"))?;
        if uri.scheme_str() != Some("https") && !is_near(uri.host().unwrap_or_default()) {
            return Err(format!(
                "AWS_CONTAINER_CREDENTIALS_FULL_URI is {text:?}, and only https may leave this \
                 machine"
            ));
        }
    }
    if let Some(file) = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        agent = agent.with_auth_token_file(file);
    }
    Ok(agent)
}

pub(super) fn metadata_endpoint(env: &Environment) -> String {
    let is_v6 = env
        .get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE")
        .is_some_and(|mode| mode.eq_ignore_ascii_case("ipv6"));
    let default = if is_v6 { "http://[fd00:ec2::254]" } else { "http://169.254.169.254" };
    let endpoint = env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or(default);
    endpoint.trim_end_matches('/').to_owned()
}

fn credential(found: reqsign_aws_v4::Credential, region: &str) -> Result<Credential, String> {
    let key = AccessKey::new(
        &sigv4::AWS,
        found.access_key_id,
        found.secret_access_key,
        found.session_token.as_deref(),
        region.to_owned(),
    )?;
    Ok(Credential::new(Proof::AccessKey(key), found.expires_in.map(wall_ms)))
}

/// Before 1970 nothing ends.
pub(super) fn wall_ms(at: Timestamp) -> u64 {
    u64::try_from(at.as_second()).unwrap_or(0) * 1_000
}
