//! The URL of a bucket.
//!
//! Source: RFC 8089 for `file:`; a host other than `localhost` is refused.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use crate::error::OpenError;

/// The directory that a `file:` URL names.
pub(crate) fn parse(url: &str) -> Result<PathBuf, OpenError> {
    let fault = |what| OpenError::Url { url: url.to_owned(), what };
    let (scheme, rest) = url.split_once("://").ok_or_else(|| fault("has no scheme"))?;
    match scheme.to_ascii_lowercase().as_str() {
        "file" => {}
        "s3" | "gs" | "az" => {
            return Err(OpenError::NotBuilt { url: url.to_owned(), scheme: scheme.to_owned() });
        }
        _ => return Err(fault("has a scheme that no bucket has")),
    }
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(fault("names no absolute path"));
    }
    if path.contains(['?', '#']) {
        return Err(fault("has a query or fragment (write %3F and %23 for these signs)"));
    }
    let bytes = percent_decoded(path).ok_or_else(|| fault("has a % without two digits"))?;
    if bytes.contains(&0) {
        return Err(fault("has a NUL"));
    }
    let path = PathBuf::from(std::ffi::OsString::from_vec(bytes));
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(fault("has `..` in its path"));
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
        for (url, path) in [
            ("file:///a/b", "/a/b"),
            ("FILE:///a%20b", "/a b"),
            ("file://localhost/a", "/a"),
            ("file:///%C3%A9%25", "/é%"),
        ] {
            assert_eq!(parse(url).expect(url), Path::new(path), "{url}");
        }
        let odd = Path::new("/a b/é?#%");
        assert_eq!(parse(&url_of(odd)).expect("our own spelling"), odd);
    }

    #[test]
    fn other_urls_are_refused_with_the_reason() {
        for (url, reason) in [
            ("/a/b", "has no scheme"),
            ("file://host/a", "no absolute path"),
            ("file://a", "no absolute path"),
            ("file:///a?b", "query"),
            ("file:///%2", "two digits"),
            ("file:///%zz", "two digits"),
            ("file:///%00", "NUL"),
            ("file:///a/../b", "`..`"),
            ("ftp://a/b", "scheme"),
            ("s3://bucket/prefix", "s3:// is not built yet"),
            ("gs://bucket", "gs:// is not built yet"),
        ] {
            let error = parse(url).expect_err(url).to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
