//! The URL of a request, from its target and its `Host`.
//!
//! Invariant: what comes out is serialised as WHATWG URL does, and its host is what the client
//! named: nothing in a `Host` header reaches the path, the query or the user's name.
//! Source: RFC 9112, section 3.2; RFC 9110, section 7.2.

use std::net::SocketAddr;

use celld_v8host::api::url::is_serialised;
use http::header::{HOST, HeaderValue};
use http::{Method, StatusCode, Version, request};
use url::Url;

/// Why a request has no URL.
pub(crate) type Refusal = (StatusCode, String);

fn bad(text: &str) -> Refusal {
    (StatusCode::BAD_REQUEST, format!("{text}\n"))
}

/// The URL that a request is for. `local`: where its connection came in, which stands for the host
/// that HTTP/1.0 need not name.
///
/// # Errors
/// The status and the text of the answer.
pub(crate) fn url_of(parts: &mut request::Parts, local: SocketAddr) -> Result<String, Refusal> {
    if parts.method == Method::CONNECT {
        let text = "CONNECT is for proxies, and this is none\n".to_owned();
        return Err((StatusCode::METHOD_NOT_ALLOWED, text));
    }
    let host = match (parts.uri.scheme(), parts.uri.authority()) {
        (Some(_), Some(authority)) => {
            let host = authority.as_str().to_owned();
            let value = HeaderValue::from_str(&host).map_err(|_| bad("the target is malformed"))?;
            // The target wins, and the application must not see two answers.
            parts.headers.insert(HOST, value);
            host
        }
        (None, Some(_)) => return Err(bad("the target must begin with a slash")),
        (_, None) => host_header(parts, local)?,
    };
    let target = match parts.uri.path_and_query().map_or("/", |target| target.as_str()) {
        "*" => "/",
        target => target,
    };
    let mut url = String::with_capacity(7 + host.len() + target.len());
    url.push_str("http://");
    url.push_str(&host);
    url.push_str(target);
    if host.is_empty() || host.contains(['/', '?', '#', '@', '\\']) {
        return Err(bad("the Host header is malformed"));
    }
    if is_serialised(url.as_bytes()) {
        return Ok(url);
    }
    match Url::parse(&url) {
        Ok(url) => Ok(url.into()),
        Err(error) => Err(bad(&format!("the Host header is malformed: {error}"))),
    }
}

fn host_header(parts: &request::Parts, local: SocketAddr) -> Result<String, Refusal> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => {
            let text = host.to_str().map_err(|_| bad("the Host header is not text"))?;
            Ok(text.to_owned())
        }
        (Some(_), Some(_)) => Err(bad("there is more than one Host header")),
        (None, _) if parts.version == Version::HTTP_10 => Ok(local.to_string()),
        (None, _) => Err(bad("there is no Host header")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(target: &str, hosts: &[&str], version: Version) -> Result<String, Refusal> {
        let mut request = http::Request::builder().uri(target).version(version);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let (mut parts, ()) = request.body(()).expect("a request").into_parts();
        url_of(&mut parts, "127.0.0.1:8787".parse().expect("an address"))
    }

    fn good(target: &str, host: &str) -> String {
        url(target, &[host], Version::HTTP_11).expect("a URL")
    }

    #[test]
    fn urls_are_serialised() {
        assert_eq!(good("/p", "EXAMPLE.com:80"), "http://example.com/p");
        assert_eq!(good("/a/../b/%2e%2e/c?q='", "h"), "http://h/c?q=%27");
        assert_eq!(good("/", "[::1]:90"), "http://[::1]:90/");
        assert_eq!(good("*", "h"), "http://h/");
        assert_eq!(good("http://Other:8080/x?y", "h"), "http://other:8080/x?y");
    }

    #[test]
    fn a_host_cannot_reach_into_the_rest_of_the_url() {
        for host in ["a/b", "a?b", "a#b", "u:p@a", "a\\b", "", "a b", "a:x", "a:99999"] {
            let refused = url("/p", &[host], Version::HTTP_11).expect_err(host);
            assert_eq!(refused.0, StatusCode::BAD_REQUEST, "{host}");
        }
        assert!(url("/", &["a", "a"], Version::HTTP_11).is_err());
        assert!(url("/", &[], Version::HTTP_11).is_err());
        assert!(url("foo", &["a"], Version::HTTP_11).is_err());
        assert_eq!(url("/", &[], Version::HTTP_10).as_deref(), Ok("http://127.0.0.1:8787/"));
    }
}
