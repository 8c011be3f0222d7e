//! What a URL, the options and the environment make of a bucket.

use celld_rt::http_client::Origin;

use super::super::{refuse_proxy, s3};
use crate::OpenOptions;
use crate::location::{RemoteLocation, Scheme};
use crate::remote::dialect::Dialect as _;

fn options(endpoint: Option<&str>, region: Option<&str>) -> OpenOptions {
    let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
    OpenOptions { endpoint: owned(endpoint), region: owned(region), ..OpenOptions::default() }
}

fn location(name: &str) -> RemoteLocation {
    RemoteLocation { scheme: Scheme::S3, name: name.into(), prefix: String::new() }
}

#[test]
fn a_bucket_of_aws_has_a_host_of_its_own_unless_its_name_has_dots() {
    for (name, region, origin) in [
        ("bucket", "eu-west-1", "https://bucket.s3.eu-west-1.amazonaws.com"),
        ("my.bucket", "eu-west-1", "https://s3.eu-west-1.amazonaws.com"),
        ("bucket", "cn-north-1", "https://bucket.s3.cn-north-1.amazonaws.com.cn"),
    ] {
        let (dialect, found) = s3(&location(name), &options(None, Some(region))).expect(name);
        assert_eq!((dialect.origin(), found.as_str()), (origin, region));
    }
    let error = s3(&location("bucket"), &options(None, None)).err().expect("no region");
    assert!(error.to_string().contains("--region"), "{error}");
    let express = s3(&location("a--use1-az4--x-s3"), &options(None, Some("us-east-1")));
    assert!(express.err().expect("not spoken").to_string().contains("directory bucket"));
}

#[test]
fn an_endpoint_is_an_origin_and_nothing_else() {
    for (endpoint, region) in
        [("http://127.0.0.1:9000", "us-east-1"), ("https://x.r2.cloudflarestorage.com/", "auto")]
    {
        let (dialect, found) = s3(&location("bucket"), &options(Some(endpoint), None))
            .unwrap_or_else(|error| panic!("{endpoint}: {error}"));
        assert_eq!(dialect.origin(), endpoint.trim_end_matches('/'));
        assert_eq!(found, region);
    }
    for bad in ["127.0.0.1:9000", "ftp://a", "http://a/b", "http://a?b", "http://u@a", ""] {
        assert!(s3(&location("bucket"), &options(Some(bad), None)).is_err(), "{bad:?}");
    }
}

#[test]
fn a_proxy_that_would_be_used_is_refused_and_others_are_not() {
    let origin = |text: &str| Origin::of(&text.parse().expect("a URI")).expect("an origin");
    let check = |url: &str, set: &[(&str, &str)]| {
        refuse_proxy(&origin(url), |name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    };
    let proxy = ("HTTPS_PROXY", "http://p:3128");
    assert!(check("https://a.example.com", &[proxy]).is_err());
    assert!(check("https://a.example.com", &[]).is_ok());
    assert!(check("https://a.example.com", &[("HTTPS_PROXY", "")]).is_ok());
    assert!(check("http://a.example.com", &[proxy]).is_ok());
    assert!(check("http://a.example.com", &[("http_proxy", "p")]).is_err());
    assert!(check("https://127.0.0.1:1", &[proxy]).is_ok());
    for (except, refused) in
        [("example.com", false), (".example.com", false), ("*", false), ("ample.com", true)]
    {
        let found = check("https://a.example.com", &[proxy, ("NO_PROXY", except)]);
        assert_eq!(found.is_err(), refused, "{except}");
    }
}
