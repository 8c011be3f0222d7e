//! The URL of a bucket.
//!
//! Source: RFC 8089 for `file:`; a host other than `localhost` is refused. The others are
//! `SCHEME://NAME[/PREFIX]`, taken as they are, without percent-encoding.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use crate::error::OpenError;
use crate::key;

/// What a URL names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// A directory of this machine.
    Directory(PathBuf),
    /// A bucket of a store.
    Remote(RemoteLocation),
}

/// A bucket of a store, and the part of it that is ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RemoteLocation {
    pub scheme: Scheme,
    /// Of the bucket or container.
    pub name: String,
    /// Before each key: empty, or ends with a slash.
    pub prefix: String,
}

/// Which language the store speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    S3,
    Gs,
    Az,
}

impl Scheme {
    pub fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gs => "gs",
            Self::Az => "az",
        }
    }
}

impl RemoteLocation {
    /// The URL that [`parse`] reads back.
    pub fn url(&self) -> String {
        let Self { scheme, name, prefix } = self;
        let slash = if prefix.is_empty() { "" } else { "/" };
        format!("{}://{name}{slash}{}", scheme.name(), prefix.trim_end_matches('/'))
    }
}

/// What a URL names.
pub(crate) fn parse(url: &str) -> Result<Location, OpenError> {
    let fault = |what| OpenError::Url { url: url.to_owned(), what };
    let (scheme, rest) = url.split_once("://").ok_or_else(|| fault("has no scheme"))?;
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "file" => return directory(rest).map(Location::Directory).map_err(fault),
        "s3" => Scheme::S3,
        "gs" => Scheme::Gs,
        "az" => Scheme::Az,
        _ => return Err(fault("has a scheme that no bucket has")),
    };
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    // What all three allow in a name, and what cannot be taken for a part of a host or a path.
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if !(3..=222).contains(&name.len()) || !name.bytes().all(plain) || name.starts_with('.') {
        return Err(fault("has no bucket's name after the scheme (3 or more of a-z 0-9 . - _)"));
    }
    let mut prefix = prefix.trim_end_matches('/').to_owned();
    if !prefix.is_empty() {
        key::check(&prefix).map_err(|_| fault("has a prefix that no key can have"))?;
        prefix.push('/');
    }
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err(fault("has a prefix longer than 256 bytes"));
    }
    Ok(Location::Remote(RemoteLocation { scheme, name: name.to_owned(), prefix }))
}

/// Leaves room for our own keys.
const PREFIX_BYTES_MAX: usize = 257;

/// The path behind `file://`.
fn directory(rest: &str) -> Result<PathBuf, &'static str> {
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err("names no absolute path");
    }
    if path.contains(['?', '#']) {
        return Err("has a query or fragment (write %3F and %23 for these signs)");
    }
    let bytes = percent_decoded(path).ok_or("has a % without two digits")?;
    if bytes.contains(&0) {
        return Err("has a NUL");
    }
    let path = PathBuf::from(std::ffi::OsString::from_vec(bytes));
    if path.components().any(|part| part == Component::ParentDir) {
        return Err("has `..` in its path");
    }
    if !path.components().any(|part| matches!(part, Component::Normal(_))) {
        return Err("names the root of the file system (a bucket needs a directory of its own)");
    }
    Ok(path)
}

/// The URL that [`parse`] reads back as `path`.
pub(crate) fn url_of(path: &Path) -> String {
    let mut url = "file://".to_owned();
    for &byte in OsStr::as_bytes(path.as_os_str()) {
        if byte.is_ascii_alphanumeric() || b"/-._~@=+,:".contains(&byte) {
            url.push(char::from(byte));
        } else {
            write!(url, "%{byte:02X}").expect("a string takes all");
        }
    }
    url
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digit = |b: Option<u8>| char::from(b?).to_digit(16);
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            u8::try_from(high * 16 + low).ok()?
        } else {
            byte
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_url_names_a_directory() {
        let named = |url: &str| match parse(url).expect(url) {
            Location::Directory(path) => path,
            Location::Remote(other) => panic!("{url}: {other:?}"),
        };
        for (url, path) in [
            ("file:///a/b", "/a/b"),
            ("FILE:///a%20b", "/a b"),
            ("file://localhost/a", "/a"),
            ("file:///%C3%A9%25", "/é%"),
        ] {
            assert_eq!(named(url), Path::new(path), "{url}");
        }
        let odd = Path::new("/a b/é?#%");
        assert_eq!(named(&url_of(odd)), odd);
    }

    #[test]
    fn other_urls_name_a_bucket_and_a_prefix() {
        for (url, scheme, name, prefix, shown) in [
            ("s3://bucket", Scheme::S3, "bucket", "", "s3://bucket"),
            ("s3://bucket/", Scheme::S3, "bucket", "", "s3://bucket"),
            ("S3://my.bucket/a/b", Scheme::S3, "my.bucket", "a/b/", "s3://my.bucket/a/b"),
            ("gs://b_1/a b+c/", Scheme::Gs, "b_1", "a b+c/", "gs://b_1/a b+c"),
            ("az://container/%2F", Scheme::Az, "container", "%2F/", "az://container/%2F"),
        ] {
            let Location::Remote(found) = parse(url).expect(url) else { panic!("{url}") };
            assert_eq!((found.scheme, found.name.as_str()), (scheme, name), "{url}");
            assert_eq!((found.prefix.as_str(), found.url().as_str()), (prefix, shown), "{url}");
        }
    }

    #[test]
    fn other_urls_are_refused_with_the_reason() {
        let long = format!("s3://bucket/{}", "p".repeat(300));
        for (url, reason) in [
            ("/a/b", "has no scheme"),
            ("file://host/a", "no absolute path"),
            ("file://a", "no absolute path"),
            ("file:///a?b", "query"),
            ("file:///%2", "two digits"),
            ("file:///%zz", "two digits"),
            ("file:///%00", "NUL"),
            ("file:///a/../b", "`..`"),
            ("file:///", "root of the file system"),
            ("file:////./", "root of the file system"),
            ("ftp://a/b", "scheme"),
            ("s3://", "bucket's name"),
            ("s3:///a", "bucket's name"),
            ("s3://a@b/c", "bucket's name"),
            ("s3://host:80/c", "bucket's name"),
            ("s3://bucket?x=y", "bucket's name"),
            ("s3://bucket//a", "prefix"),
            ("s3://bucket/../a", "prefix"),
            (&long, "longer"),
        ] {
            let error = parse(url).expect_err(url).to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
