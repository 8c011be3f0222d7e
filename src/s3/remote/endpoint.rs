//! Where a store is: from the bucket's URL, the options, and the settings that its cloud's tools
//! read.

use http::Uri;

use super::az::Azure;
use super::credentials::{Connection, Environment, SignerKind};
use super::gs::Gcs;
use super::s3::S3;
use crate::error::OpenError;
use crate::location::RemoteLocation;
use crate::options::OpenOptions;

/// Google's own; the bucket is in the path.
const GOOGLE: &str = "https://storage.googleapis.com";

/// An `s3://` bucket: at `--endpoint`, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `S3_ENDPOINT`, or
/// at Amazon.
pub(super) fn s3(
    location: &RemoteLocation,
    options: &OpenOptions,
    env: &Environment,
) -> Result<(S3, SignerKind), OpenError> {
    let RemoteLocation { name, prefix, .. } = location;
    let fault = |what: &str| OpenError::Option { url: location.url(), what: what.to_owned() };
    if name.ends_with("--x-s3") {
        return Err(fault(
            "it is a directory bucket (S3 Express), which is signed for in another way; use a \
             general purpose bucket",
        ));
    }
    let region = options.region.clone();
    let settings = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT"];
    if let Some(origin) = origin(location, options, env, &settings)? {
        let region = region.unwrap_or_else(|| region_of(&origin));
        return Ok((S3::new(origin, name, prefix, true, false), SignerKind::S3 { region }));
    }
    let unknown = || fault("its region is not known: say --region REGION or set AWS_REGION");
    let region = region.ok_or_else(unknown)?;
    let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
    let host = format!("s3.{region}.amazonaws.com{suffix}");
    // A certificate's wildcard covers no dots.
    let path_style = name.contains('.');
    let origin =
        if path_style { format!("https://{host}") } else { format!("https://{name}.{host}") };
    Ok((S3::new(origin, name, prefix, path_style, true), SignerKind::S3 { region }))
}

/// A `gs://` bucket: at `--endpoint`, at the emulator `STORAGE_EMULATOR_HOST`, or at Google.
pub(super) fn gs(
    location: &RemoteLocation,
    options: &OpenOptions,
    env: &Environment,
) -> Result<(Gcs, SignerKind), OpenError> {
    let RemoteLocation { name, prefix, .. } = location;
    let origin = origin(location, options, env, &["STORAGE_EMULATOR_HOST"])?;
    let origin = origin.unwrap_or_else(|| GOOGLE.to_owned());
    Ok((Gcs::new(origin, name, prefix), SignerKind::Gcs))
}

/// An `az://` container: of the account that `--endpoint`, a connection string or
/// `AZURE_STORAGE_ACCOUNT` names.
pub(super) fn az(
    location: &RemoteLocation,
    options: &OpenOptions,
    env: &Environment,
) -> Result<(Azure, SignerKind), OpenError> {
    let RemoteLocation { name, prefix, .. } = location;
    let fault = |what: String| OpenError::Option { url: location.url(), what };
    let connection = Connection::of(env).map_err(fault)?;
    let endpoint = options.endpoint.as_ref().or(connection.endpoint.as_ref());
    let place = match endpoint {
        None => None,
        Some(text) => Some(blob_endpoint(text).map_err(|what| {
            let form = "https://ACCOUNT.blob.core.windows.net or http://host:port/ACCOUNT";
            fault(format!("its endpoint {text:?} {what}; write {form}"))
        })?),
    };
    let given = options.keys.as_ref().map(|keys| keys.id.clone());
    let in_endpoint = || place.as_ref().and_then(|place| place.account.clone());
    let account = given.or(connection.account).or_else(in_endpoint).ok_or_else(|| {
        fault(
            "its account is not known: set AZURE_STORAGE_ACCOUNT, or say --endpoint \
               https://ACCOUNT.blob.core.windows.net"
                .to_owned(),
        )
    })?;
    let (origin, base) = match place {
        None => (format!("https://{account}.blob.core.windows.net"), String::new()),
        Some(BlobEndpoint { origin, is_path_style: true, .. }) => (origin, format!("/{account}")),
        Some(BlobEndpoint { origin, is_path_style: false, .. }) => (origin, String::new()),
    };
    Ok((Azure::new(origin, &base, name, prefix), SignerKind::Azure { account }))
}

struct BlobEndpoint {
    origin: String,
    account: Option<String>,
    /// The account stands in the path, as on emulators.
    is_path_style: bool,
}

fn blob_endpoint(text: &str) -> Result<BlobEndpoint, &'static str> {
    let uri: Uri = text.parse().map_err(|_| "is no URL")?;
    let path = uri.path().trim_matches('/').to_owned();
    if path.contains('/') {
        return Err("has a path of more than an account");
    }
    let mut bare = uri.clone().into_parts();
    bare.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    if uri.query().is_some() {
        return Err("has a query");
    }
    let bare = Uri::from_parts(bare).map_err(|_| "has no scheme or no host")?;
    let origin = origin_of(&bare.to_string())?;
    let host = uri.host().unwrap_or_default();
    if !path.is_empty() {
        return Ok(BlobEndpoint { origin, account: Some(path), is_path_style: true });
    }
    let is_address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    let account = host.split_once(".blob.").map(|(account, _)| account.to_owned());
    Ok(BlobEndpoint { origin, account, is_path_style: is_address || host == "localhost" })
}

/// What is said about the endpoint, by an option or by the first of the settings that has a value.
fn origin(
    location: &RemoteLocation,
    options: &OpenOptions,
    env: &Environment,
    settings: &[&'static str],
) -> Result<Option<String>, OpenError> {
    let said = options.endpoint.as_deref().map(|endpoint| ("its endpoint", endpoint));
    let set = || settings.iter().find_map(|name| Some((*name, env.get(name)?)));
    let Some((source, endpoint)) = said.or_else(set) else { return Ok(None) };
    // Google's tools take a host without a scheme.
    let with_scheme = if endpoint.contains("://") || source != "STORAGE_EMULATOR_HOST" {
        endpoint.to_owned()
    } else {
        format!("http://{endpoint}")
    };
    let origin = origin_of(&with_scheme).map_err(|what| {
        let what = format!("{source} {endpoint:?} {what}; write https://host[:port]");
        OpenError::Option { url: location.url(), what }
    })?;
    Ok(Some(origin))
}

/// `http[s]://host[:port]` without a slash at the end.
fn origin_of(endpoint: &str) -> Result<String, &'static str> {
    let uri: Uri = endpoint.parse().map_err(|_| "is no URL")?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err("has no scheme or no host");
    };
    if !matches!(scheme, "http" | "https") {
        return Err("is neither http nor https");
    }
    if authority.as_str().contains('@') {
        return Err("has a user's name");
    }
    if uri.path() != "/" || uri.query().is_some() {
        return Err("has a path");
    }
    Ok(format!("{scheme}://{authority}"))
}

/// The region that a store without regions wants in signatures.
fn region_of(origin: &str) -> String {
    let auto = [".r2.cloudflarestorage.com", ".tigris.dev", "storage.googleapis.com"];
    if auto.iter().any(|host| origin.ends_with(host)) { "auto" } else { "us-east-1" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::dialect::Dialect as _;
    use super::*;
    use crate::location::Scheme;

    fn options(endpoint: Option<&str>, region: Option<&str>) -> OpenOptions {
        let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
        OpenOptions { endpoint: owned(endpoint), region: owned(region), ..OpenOptions::default() }
    }

    fn location(scheme: Scheme, name: &str) -> RemoteLocation {
        RemoteLocation { scheme, name: name.into(), prefix: String::new() }
    }

    fn env(settings: &[(&str, &str)]) -> Environment {
        Environment::of(settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())))
    }

    fn s3_at(endpoint: &str, settings: &[(&str, &str)]) -> Result<(String, SignerKind), OpenError> {
        let endpoint = (!endpoint.is_empty()).then_some(endpoint);
        let location = location(Scheme::S3, "bucket");
        let (dialect, kind) = s3(&location, &options(endpoint, None), &env(settings))?;
        Ok((dialect.origin().to_owned(), kind))
    }

    #[test]
    fn a_bucket_of_aws_has_a_host_of_its_own_unless_its_name_has_dots() {
        for (name, region, origin) in [
            ("bucket", "eu-west-1", "https://bucket.s3.eu-west-1.amazonaws.com"),
            ("my.bucket", "eu-west-1", "https://s3.eu-west-1.amazonaws.com"),
            ("bucket", "cn-north-1", "https://bucket.s3.cn-north-1.amazonaws.com.cn"),
        ] {
            let options = options(None, Some(region));
            let (dialect, kind) = s3(&location(Scheme::S3, name), &options, &env(&[])).expect(name);
            assert_eq!(dialect.origin(), origin);
            assert_eq!(kind, SignerKind::S3 { region: region.to_owned() });
        }
        let error = s3_at("", &[]).expect_err("no region");
        assert!(error.to_string().contains("--region"), "{error}");
        let express = location(Scheme::S3, "a--use1-az4--x-s3");
        let express = s3(&express, &options(None, Some("us-east-1")), &env(&[]));
        assert!(express.err().expect("not spoken").to_string().contains("directory bucket"));
    }

    #[test]
    fn an_endpoint_is_an_origin_and_nothing_else() {
        for (endpoint, region) in [
            ("http://127.0.0.1:9000", "us-east-1"),
            ("https://x.r2.cloudflarestorage.com/", "auto"),
        ] {
            let (origin, kind) = s3_at(endpoint, &[]).expect(endpoint);
            assert_eq!(origin, endpoint.trim_end_matches('/'));
            assert_eq!(kind, SignerKind::S3 { region: region.to_owned() });
        }
        for bad in ["127.0.0.1:9000", "ftp://a", "http://a/b", "http://a?b", "http://u@a", "a b"] {
            assert!(s3_at(bad, &[]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_most_special_setting_wins_and_the_option_before_all() {
        let settings = [
            ("AWS_ENDPOINT_URL_S3", ""),
            ("AWS_ENDPOINT_URL", "http://a"),
            ("S3_ENDPOINT", "http://b"),
        ];
        assert_eq!(s3_at("", &settings).expect("an endpoint").0, "http://a");
        assert_eq!(s3_at("http://c", &settings).expect("an endpoint").0, "http://c");
        let error = s3_at("", &[("S3_ENDPOINT", "b")]).expect_err("no URL");
        assert!(error.to_string().contains("S3_ENDPOINT \"b\""), "{error}");
    }

    #[test]
    fn a_bucket_of_google_is_in_the_path_and_not_where_amazon_s_settings_say() {
        let at = |endpoint, settings: &[(&str, &str)]| {
            let location = location(Scheme::Gs, "my.bucket");
            let opened = gs(&location, &options(endpoint, None), &env(settings));
            let (dialect, kind) = opened.expect("a place");
            assert_eq!(kind, SignerKind::Gcs);
            dialect.origin().to_owned()
        };
        assert_eq!(at(None, &[("AWS_ENDPOINT_URL", "http://a")]), GOOGLE);
        assert_eq!(at(None, &[("STORAGE_EMULATOR_HOST", "localhost:9")]), "http://localhost:9");
        let emulator = [("STORAGE_EMULATOR_HOST", "http://a:9/")];
        assert_eq!(at(None, &emulator), "http://a:9");
        assert_eq!(at(Some("https://b"), &emulator), "https://b");
    }

    #[test]
    fn a_container_is_in_the_account_that_is_named_first() {
        let at = |endpoint, settings: &[(&str, &str)]| {
            let location = location(Scheme::Az, "c1c");
            let (dialect, kind) = az(&location, &options(endpoint, None), &env(settings))?;
            let SignerKind::Azure { account } = kind else { panic!("{kind:?}") };
            let target = dialect.delete("k").target;
            Ok::<_, OpenError>((format!("{}{target}", dialect.origin()), account))
        };
        let account = ("AZURE_STORAGE_ACCOUNT", "a1");
        let string = "AZURE_STORAGE_CONNECTION_STRING";
        let emulator = (string, "UseDevelopmentStorage=true");
        for (endpoint, settings, url, wanted) in [
            (None, &[account][..], "https://a1.blob.core.windows.net/c1c/k", "a1"),
            (
                None,
                &[account, emulator],
                "http://127.0.0.1:10000/devstoreaccount1/c1c/k",
                "devstoreaccount1",
            ),
            (
                Some("https://a2.blob.core.windows.net/"),
                &[],
                "https://a2.blob.core.windows.net/c1c/k",
                "a2",
            ),
            (Some("https://blobs.example"), &[account], "https://blobs.example/c1c/k", "a1"),
            (Some("http://127.0.0.1:9/x1"), &[], "http://127.0.0.1:9/x1/c1c/k", "x1"),
            (Some("http://[::1]:9"), &[account], "http://[::1]:9/a1/c1c/k", "a1"),
        ] {
            let found = at(endpoint, settings).expect(url);
            assert_eq!(found, (url.to_owned(), wanted.to_owned()));
        }
        for (endpoint, settings) in [
            (None, &[][..]),
            (Some("https://blobs.example"), &[]),
            (Some("https://a/b/c"), &[account]),
            (Some("a1"), &[account]),
            (None, &[(string, "nonsense")]),
        ] {
            assert!(at(endpoint, settings).is_err(), "{endpoint:?} {settings:?}");
        }
    }
}
