//! The global `fetch`: requests of JavaScript to the world.
//!
//! Source: WHATWG Fetch, "HTTP-redirect fetch".

use bytes::Bytes;
use celld_rt::http_client::{HttpClient, Upgraded, tls_config};
use celld_v8host::{Encoding, Failure, Redirect};
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH,
    CONTENT_LOCATION, CONTENT_TYPE, COOKIE, HOST, HeaderValue, LOCATION, TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use url::Url;

use crate::body::{Answered, Asked, Flow, HttpBody, Outcome, SocketBody, failure};
use crate::websocket::codec::Role;
use crate::websocket::wire::Wire;
use crate::websocket::{self, handshake};

/// As browsers and Cloudflare.
const REDIRECTS_MAX: usize = 20;

/// The client of one shard. It is made when the first request goes out: most shards of most
/// applications send none, and reading the system's root certificates takes milliseconds.
pub(crate) struct Outbound {
    client: std::cell::OnceCell<HttpClient<HttpBody>>,
}

/// What is sent again when a redirect asks for it. A body that flowed is gone.
enum Again {
    Bytes(Bytes),
    Nothing,
    Gone,
}

impl Outbound {
    pub fn new() -> Self {
        Self { client: std::cell::OnceCell::new() }
    }

    /// Sends a request, follows redirects as it says, and returns the response with its body
    /// still to be read.
    ///
    /// # Errors
    /// A `TypeError` as `fetch` rejects with.
    pub async fn fetch(&self, asked: Asked) -> Outcome {
        let client = self.client.get_or_init(|| HttpClient::new(tls_config()));
        let Asked { mut method, url, mut headers, body, redirect, is_rpc: _ } = asked;
        let mut url = Url::parse(&url)
            .map_err(|error| failure("TypeError", format!("Invalid URL: {url} ({error})")))?;
        let mut next = body;
        let mut visited: Vec<Url> = Vec::new();
        loop {
            let again = match &next {
                Flow::Empty => Again::Nothing,
                Flow::Bytes(bytes) => Again::Bytes(bytes.clone()),
                Flow::Stream(..) | Flow::Coded(..) => Again::Gone,
            };
            let request = build(&method, &url, headers.clone(), next)?;
            let response = client.send(request).await.map_err(|error| lost(&url, &error))?;
            let target = match location(&response, &url, redirect)? {
                Some(target) => target,
                None => return Ok(answered(response, &url, !visited.is_empty())),
            };
            visited.push(url.clone());
            if visited.len() > REDIRECTS_MAX {
                let all: Vec<_> = visited.iter().map(Url::as_str).collect();
                let text = format!("Too many redirects.{}", all.join(", "));
                return Err(failure("TypeError", text));
            }
            let is_see_other = response.status() == StatusCode::SEE_OTHER;
            next = match (becomes_get(response.status(), &method), again) {
                (true, again) if is_see_other || !matches!(again, Again::Gone) => {
                    method = Method::GET;
                    for name in BODY_HEADERS {
                        headers.remove(name);
                    }
                    Flow::Empty
                }
                (_, Again::Bytes(bytes)) => Flow::Bytes(bytes),
                (_, Again::Nothing) => Flow::Empty,
                (_, Again::Gone) => {
                    let text = "A request with a one-time-use body (it was initialized from a \
                                stream, not a buffer) encountered a redirect requiring the body to \
                                be retransmitted. To avoid this error in the future, construct \
                                this request from a buffer-like body initializer.";
                    return Err(failure("TypeError", text));
                }
            };
            if target.origin() != url.origin() {
                headers.remove(AUTHORIZATION);
                headers.remove(COOKIE);
            }
            url = target;
        }
    }
}

impl Outbound {
    /// A request for a WebSocket of another server. Redirects are not followed.
    ///
    /// # Errors
    /// As [`Outbound::fetch`].
    pub async fn open_socket(&self, asked: Asked) -> Outcome {
        let client = self.client.get_or_init(|| HttpClient::new(tls_config()));
        let Asked { method, url, mut headers, body, .. } = asked;
        let url = Url::parse(&url)
            .map_err(|error| failure("TypeError", format!("Invalid URL: {url} ({error})")))?;
        let mut request = build(&method, &url, std::mem::take(&mut headers), body)?;
        let key = handshake::ask(request.headers_mut());
        let upgraded = client.upgrade(request).await.map_err(|error| lost(&url, &error))?;
        let (head, socket, read) = match upgraded {
            Upgraded::Answered(response) => return Ok(answered(response, &url, false)),
            Upgraded::Switched { head, socket, read } => (head, socket, read),
        };
        let (head, ()) = head.into_parts();
        handshake::check_answer(&head.headers, &key)?;
        let (near, far) = websocket::connect();
        let wire = Wire::new(socket, Role::Client, &read, near);
        celld_rt::spawn(wire.run(std::future::pending()));
        Ok(Answered {
            status: head.status.as_u16(),
            status_text: head.status.canonical_reason().unwrap_or_default().into(),
            headers: head.headers,
            body: Flow::Empty,
            encoding: Encoding::Manual,
            url: url.as_str().to_owned(),
            redirected: false,
            web_socket: Some(far),
        })
    }
}

/// As workerd: what the network did may be tried again.
fn lost(url: &Url, error: &dyn std::fmt::Display) -> Failure {
    let text = format!("Network connection lost: fetch of {url} failed: {error}");
    Failure { retryable: true, ..failure("Error", text) }
}

const BODY_HEADERS: [http::HeaderName; 5] =
    [CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE, CONTENT_LENGTH];

fn build(
    method: &Method,
    url: &Url,
    mut headers: HeaderMap,
    body: Flow,
) -> Result<Request<HttpBody>, Failure> {
    // These belong to the connection, which is ours.
    for name in [HOST, CONNECTION, TRANSFER_ENCODING, CONTENT_LENGTH] {
        headers.remove(name);
    }
    let mut bare = url.clone();
    bare.set_fragment(None);
    let malformed =
        |error: http::Error| failure("TypeError", format!("cannot be requested: {error}"));
    let empty_post = matches!(body, Flow::Empty)
        && matches!(*method, Method::POST | Method::PUT | Method::PATCH);
    let mut request = Request::builder()
        .method(method)
        .uri(bare.as_str())
        .body(HttpBody::new(body))
        .map_err(malformed)?;
    if empty_post {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    *request.headers_mut() = headers;
    Ok(request)
}

/// Where a response redirects to, if it does and that is to be followed.
fn location(
    response: &Response<Incoming>,
    url: &Url,
    redirect: Redirect,
) -> Result<Option<Url>, Failure> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let value = response.headers().get(LOCATION);
    let Some(value) = value.filter(|value| is_redirect && !value.is_empty()) else {
        return Ok(None);
    };
    match redirect {
        Redirect::Manual => return Ok(None),
        Redirect::Follow => {}
    }
    let bad =
        || failure("TypeError", "Invalid Location header; unable to follow redirect.".to_owned());
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| bad())?;
    let mut target = url.join(text).map_err(|_| bad())?;
    if target.fragment().is_none() {
        target.set_fragment(url.fragment());
    }
    if !matches!(target.scheme(), "http" | "https") {
        return Err(bad());
    }
    Ok(Some(target))
}

fn becomes_get(status: StatusCode, method: &Method) -> bool {
    match status {
        StatusCode::SEE_OTHER => !matches!(*method, Method::GET | Method::HEAD),
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => *method == Method::POST,
        _ => false,
    }
}

fn answered(response: Response<Incoming>, url: &Url, redirected: bool) -> Answered {
    let (parts, body) = response.into_parts();
    let flow = if body.is_end_stream() {
        Flow::Empty
    } else {
        let length = body.size_hint().exact();
        Flow::Stream(Box::pin(SocketBody::of_server(body)), length)
    };
    // Hyper keeps a phrase only when it is not the standard one.
    let phrase = parts.extensions.get::<hyper::ext::ReasonPhrase>();
    let standard = parts.status.canonical_reason().unwrap_or_default();
    Answered {
        status: parts.status.as_u16(),
        status_text: phrase
            .map_or_else(|| standard.into(), |it| String::from_utf8_lossy(it.as_bytes()).into()),
        headers: parts.headers,
        body: flow,
        encoding: Encoding::Manual,
        url: url.as_str().to_owned(),
        redirected,
        web_socket: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_post_becomes_a_get_after_301_and_302() {
        assert!(becomes_get(StatusCode::FOUND, &Method::POST));
        assert!(!becomes_get(StatusCode::FOUND, &Method::PUT));
        assert!(becomes_get(StatusCode::SEE_OTHER, &Method::PUT));
        assert!(!becomes_get(StatusCode::TEMPORARY_REDIRECT, &Method::POST));
    }

    #[test]
    fn headers_of_the_connection_are_ours() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("elsewhere"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("999"));
        let url = Url::parse("http://example.com/a#b").expect("a URL");
        let request = build(&Method::GET, &url, headers, Flow::Empty).expect("a request");
        assert_eq!(request.uri(), "http://example.com/a");
        assert!(!request.headers().contains_key(HOST));
        assert!(!request.headers().contains_key(CONTENT_LENGTH));
    }
}
