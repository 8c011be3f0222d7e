//! Amazon's profiles: a section of `~/.aws/credentials` and of `~/.aws/config`.
//!
//! Invariant: a profile that is named and not there, or that cannot be followed to its end, is an
//! error.
//!
//! The library follows a profile to keys only. Here also: a role with a source profile, with a
//! source of this machine or with a web identity; SSO with a session of its own section;
//! programs. Source: "Configuration and credential file settings", docs.aws.amazon.com.

use std::sync::Arc;

use ini::{Ini, ParseOption};
use reqsign_aws_v4::{
    AssumeRoleCredentialProvider, AssumeRoleWithWebIdentityCredentialProvider,
    EnvCredentialProvider, IMDSv2CredentialProvider, ProcessCredentialProvider, RequestSigner,
    SSOCredentialProvider, StaticCredentialProvider,
};
use reqsign_core::{Context, Signer};

use super::aws::{self, Provider};
use super::context::{Environment, read_file};

/// How we are called in Amazon's logs, when nobody says otherwise.
pub(super) const SESSION: &str = "celld";
/// A role whose source is a role whose source ...
const DEPTH_MAX: usize = 5;

/// Both files.
pub(super) struct Profiles {
    env: Environment,
    credentials: File,
    config: File,
}

struct File {
    path: String,
    content: Result<Ini, String>,
    /// The message is that there is no such file.
    missing: bool,
}

impl File {
    async fn read(env: &Environment, setting: &str, default: &str) -> Self {
        let path = env.get(setting).unwrap_or(default);
        let path = match (path.strip_prefix("~/"), env.get("HOME")) {
            (Some(rest), Some(home)) => format!("{home}/{rest}"),
            (Some(_), None) | (None, _) => path.to_owned(),
        };
        let bytes = read_file(&path).await;
        let missing = bytes.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        // A secret may have any sign in it.
        let plain =
            ParseOption { enabled_quote: false, enabled_escape: false, ..ParseOption::default() };
        let content = bytes.map_err(|error| error.to_string()).and_then(|bytes| {
            Ini::load_from_str_opt(&String::from_utf8_lossy(&bytes), plain)
                .map_err(|error| error.to_string())
        });
        Self { path, content, missing }
    }

    fn get(&self, section: &str, key: &str) -> Option<&str> {
        let text = self.content.as_ref().ok()?.section(Some(section))?.get(key)?;
        (!text.is_empty()).then_some(text)
    }

    fn has(&self, section: &str) -> bool {
        self.content.as_ref().is_ok_and(|content| content.section(Some(section)).is_some())
    }
}

impl Profiles {
    pub(super) async fn read(env: &Environment) -> Self {
        let credentials = "AWS_SHARED_CREDENTIALS_FILE";
        Self {
            env: env.clone(),
            credentials: File::read(env, credentials, "~/.aws/credentials").await,
            config: File::read(env, "AWS_CONFIG_FILE", "~/.aws/config").await,
        }
    }

    /// The profile that is meant.
    pub(super) fn chosen(&self) -> &str {
        self.named().unwrap_or("default")
    }

    fn named(&self) -> Option<&str> {
        self.env.get("AWS_PROFILE").or_else(|| self.env.get("AWS_DEFAULT_PROFILE"))
    }

    pub(super) fn get(&self, profile: &str, key: &str) -> Option<&str> {
        let in_config = || self.config.get(&config_section(profile), key);
        self.credentials.get(profile, key).or_else(in_config)
    }

    fn has(&self, profile: &str) -> bool {
        self.credentials.has(profile) || self.config.has(&config_section(profile))
    }

    /// Where was looked.
    pub(super) fn describe(&self) -> String {
        let file = |file: &File| match &file.content {
            Ok(_) => format!("{} has no credential in it", file.path),
            Err(error) => format!("{}: {error}", file.path),
        };
        format!("{}, {}", file(&self.credentials), file(&self.config))
    }
}

fn config_section(profile: &str) -> String {
    if profile == "default" { profile.to_owned() } else { format!("profile {profile}") }
}

/// The source that the chosen profile names; `None` when there is no profile.
///
/// # Errors
/// The profile is named and missing, or names what is not there.
pub(super) fn provider(
    profiles: &Profiles,
    context: &Context,
    region: Option<String>,
) -> Result<Option<Provider>, String> {
    for file in [&profiles.credentials, &profiles.config] {
        match &file.content {
            Err(error) if !file.missing => return Err(format!("{}: {error}", file.path)),
            Ok(_) | Err(_) => {}
        }
    }
    let chosen = profiles.chosen();
    if !profiles.has(chosen) {
        return match profiles.named() {
            Some(_) => Err(format!("no such profile; {}", profiles.describe())),
            None => Ok(None),
        };
    }
    Follow { profiles, context, region }.profile(chosen, 0)
}

struct Follow<'a> {
    profiles: &'a Profiles,
    context: &'a Context,
    region: Option<String>,
}

impl Follow<'_> {
    fn profile(&self, name: &str, depth: usize) -> Result<Option<Provider>, String> {
        if depth > DEPTH_MAX {
            return Err(format!("source_profile goes on for more than {DEPTH_MAX} profiles"));
        }
        if !self.profiles.has(name) {
            return Err(format!("its source_profile {name:?} does not exist"));
        }
        let get = |key| self.profiles.get(name, key);
        // A profile that is its own source has keys beside its role.
        let own_source = depth > 0 && get("source_profile") == Some(name);
        if let Some(role) = get("role_arn").filter(|_| !own_source) {
            return self.role(name, role, depth).map(Some);
        }
        if let (Some(id), Some(secret)) = (get("aws_access_key_id"), get("aws_secret_access_key")) {
            let mut keys = StaticCredentialProvider::new(id, secret);
            if let Some(token) = get("aws_session_token") {
                keys = keys.with_session_token(token);
            }
            return Ok(Some(Arc::new(keys)));
        }
        if get("sso_account_id").is_some() || get("sso_session").is_some() {
            return self.sso(name).map(Some);
        }
        Ok(get("credential_process")
            .map(|command| ProcessCredentialProvider::new().with_command(command))
            .map(|process| Arc::new(process) as Provider))
    }

    fn role(&self, name: &str, role: &str, depth: usize) -> Result<Provider, String> {
        let get = |key| self.profiles.get(name, key);
        let session = get("role_session_name").unwrap_or(SESSION).to_owned();
        if let Some(file) = get("web_identity_token_file") {
            let web = AssumeRoleWithWebIdentityCredentialProvider::with_config(
                role.to_owned(),
                file.into(),
            );
            let web = web.with_role_session_name(session);
            return Ok(Arc::new(aws::at_region(web, &self.profiles.env, self.region.clone())));
        }
        let source = self.source_of_role(name, depth)?;
        let region = self.region.as_deref().unwrap_or("us-east-1");
        let signer = RequestSigner::new("sts", region);
        let signer = Signer::new(self.context.clone(), source, signer);
        let mut assume = AssumeRoleCredentialProvider::new(role.to_owned(), signer)
            .with_role_session_name(session)
            .with_region(region.to_owned())
            .with_regional_sts_endpoint();
        if let Some(id) = get("external_id") {
            assume = assume.with_external_id(id.to_owned());
        }
        if let Some(text) = get("duration_seconds") {
            let seconds = text.parse().map_err(|_| format!("duration_seconds is {text:?}"))?;
            assume = assume.with_duration_seconds(seconds);
        }
        if get("mfa_serial").is_some() {
            return Err("it asks for a code (mfa_serial), and a server has nobody to ask".into());
        }
        Ok(Arc::new(assume))
    }

    fn source_of_role(&self, name: &str, depth: usize) -> Result<Provider, String> {
        let get = |key| self.profiles.get(name, key);
        match (get("source_profile"), get("credential_source")) {
            (Some(source), _) => self
                .profile(source, depth + 1)?
                .ok_or_else(|| format!("its source_profile {source:?} has no credential in it")),
            (None, Some("Environment")) => Ok(Arc::new(EnvCredentialProvider::new())),
            (None, Some("Ec2InstanceMetadata")) => {
                let endpoint = aws::metadata_endpoint(&self.profiles.env);
                Ok(Arc::new(IMDSv2CredentialProvider::new().with_endpoint(endpoint)))
            }
            (None, Some("EcsContainer")) => Ok(Arc::new(aws::container(&self.profiles.env)?)),
            (None, Some(other)) => Err(format!("it has an unknown credential_source {other:?}")),
            (None, None) => Err("it has role_arn, and neither source_profile nor \
                                 credential_source nor web_identity_token_file"
                .to_owned()),
        }
    }

    /// The token that `aws sso login` has left below `~/.aws/sso/cache` is exchanged for keys.
    fn sso(&self, name: &str) -> Result<Provider, String> {
        let session = self.profiles.get(name, "sso_session");
        let section = session.map(|session| format!("sso-session {session}"));
        let get = |key: &'static str| {
            let in_section = || self.profiles.config.get(section.as_deref()?, key);
            let found = self.profiles.get(name, key).or_else(in_section);
            found.map(ToOwned::to_owned).ok_or_else(|| format!("it uses SSO and has no {key}"))
        };
        // The token's file is named by the session where there is one, and by the URL otherwise;
        // the library uses what it takes for the URL for nothing else.
        let url = get("sso_start_url")?;
        let cached_by = session.map_or(url, ToOwned::to_owned);
        Ok(Arc::new(
            SSOCredentialProvider::new()
                .with_account_id(get("sso_account_id")?)
                .with_role_name(get("sso_role_name")?)
                .with_region(get("sso_region")?)
                .with_start_url(cached_by),
        ))
    }
}
