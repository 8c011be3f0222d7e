//! Where the bucket is and how it is reached: one set of options for all commands that have one.

use std::path::PathBuf;

use celld_s3::{Bucket, OpenError, OpenOptions};

use super::{Environment, Given, SettingError, from_environment, given};

/// The options of a bucket, as typed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BucketArgs {
    /// `--bucket`
    pub(crate) bucket: Option<String>,
    /// `--endpoint`
    pub(crate) endpoint: Option<String>,
    /// `--region`
    pub(crate) region: Option<String>,
    /// `--ca-file`
    pub(crate) ca_file: Option<PathBuf>,
}

/// A bucket that may be opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BucketSettings {
    pub(crate) url: String,
    /// Another server than the provider's.
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    /// Authorities that are trusted beside the system's, in PEM.
    pub(crate) ca_file: Option<PathBuf>,
    /// A second request is sent beside one that is late. Of nodes only.
    pub(crate) hedge: bool,
    /// What the person should know, one line each.
    pub(crate) notes: Vec<String>,
}

/// What a bucket is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// All of it. A directory is made if it is missing.
    Write,
    /// Looking: nothing is made or changed.
    Read,
}

impl BucketSettings {
    /// Opens it.
    ///
    /// # Errors
    /// It cannot be used.
    pub(crate) fn open(&self, access: Access) -> Result<Bucket, OpenError> {
        let options = self.options();
        match access {
            Access::Write => Bucket::open_with(&self.url, &options),
            Access::Read => Bucket::open_read_only(&self.url, &options),
        }
    }

    /// What its URL does not say.
    pub(super) fn options(&self) -> OpenOptions {
        OpenOptions {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            ca_file: self.ca_file.clone(),
            keys: None,
            hedge: self.hedge,
        }
    }

    /// Whether nodes on several machines can share it: all but a directory.
    pub(crate) fn is_shared(&self) -> bool {
        !self.url.starts_with("file:")
    }
}

/// Merges and checks the options of a bucket, before anything is built.
///
/// # Errors
/// There is no bucket, or an option cannot be used.
pub(crate) fn bucket(
    typed: BucketArgs,
    environment: Environment<'_>,
) -> Result<BucketSettings, SettingError> {
    let BucketArgs { bucket, endpoint, region, ca_file } = typed;
    let ca_file = ca_file.map(|path| path.to_string_lossy().into_owned());
    let names = [("--endpoint", &endpoint), ("--region", &region), ("--ca-file", &ca_file)];
    let without_effect = names
        .into_iter()
        .filter_map(|(flag, value)| Some((flag, value.as_ref()?)))
        .map(|(flag, value)| format!("{flag}={value} has no effect on a bucket in a directory"))
        .collect();
    let url =
        given("--bucket", bucket, "CELLD_BUCKET", environment).ok_or(SettingError::NoBucket)?;
    // These speak of Amazon's stores; the others have settings of their own.
    let variables = if url.value.starts_with("s3:") { ENDPOINT } else { &[] };
    let endpoint = first("--endpoint", endpoint, variables, environment);
    if let Some(given) = &endpoint
        && !(given.value.starts_with("http://") || given.value.starts_with("https://"))
    {
        return Err(given.bad("a URL that starts with http:// or https://"));
    }
    let region = first("--region", region, REGION, environment);
    let ca_file = first("--ca-file", ca_file, CA_FILE, environment);
    let url = url_of(url)?;
    let is_directory = url.starts_with("file:");
    Ok(BucketSettings {
        url,
        endpoint: endpoint.map(|given| given.value),
        region: region.map(|given| given.value),
        ca_file: ca_file.map(|given| given.value.into()),
        hedge: false,
        notes: if is_directory { without_effect } else { Vec::new() },
    })
}

/// Variables, the most special first.
const ENDPOINT: &[&str] = &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT"];
const REGION: &[&str] = &["AWS_REGION", "AWS_DEFAULT_REGION"];
const CA_FILE: &[&str] = &["AWS_CA_BUNDLE"];

fn first(
    flag: &'static str,
    typed: Option<String>,
    variables: &'static [&'static str],
    environment: Environment<'_>,
) -> Option<Given> {
    let from_flag = typed.map(|value| Given { source_name: flag, value });
    from_flag.or_else(|| variables.iter().find_map(|name| from_environment(name, environment)))
}

/// What can be said without opening it; the rest is for the bucket's own crate.
fn url_of(given: Given) -> Result<String, SettingError> {
    match given.value.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(given.value),
        Some(("file", _)) => Err(given.bad("file:// and an absolute path, as file:///srv/celld")),
        Some(("s3" | "gs" | "az", name)) if !name.is_empty() => Ok(given.value),
        _ => Err(given.bad(
            "a URL: s3://NAME, gs://NAME or az://NAME, each with /PREFIX behind it or not, or \
             file:///absolute/path",
        )),
    }
}
