//! The request and the answer with which HTTP becomes WebSocket, on both sides.
//!
//! Source: RFC 6455, section 4.

use celld_v8host::Failure;
use http::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, Method, Response, StatusCode, Version};
use tungstenite::handshake::client::generate_key;
use tungstenite::handshake::derive_accept_key;

use crate::address::Refusal;
use crate::body::failure;

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const VERSION: &str = "13";
/// 16 bytes in base64.
const KEY_LENGTH: usize = 24;

/// Whether a request asks for a WebSocket.
pub(crate) fn asks(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// What a client has asked with, read before the request is handed on.
pub(crate) struct Asked {
    method: Method,
    version: Version,
    has_connection: bool,
    key: Option<HeaderValue>,
    protocol_version: Option<HeaderValue>,
}

impl Asked {
    /// `None`: it asks for something else.
    pub fn read<B>(request: &http::Request<B>) -> Option<Self> {
        let headers = request.headers();
        asks(headers).then(|| Self {
            method: request.method().clone(),
            version: request.version(),
            has_connection: has_token(headers, CONNECTION, "upgrade"),
            key: headers.get(SEC_WEBSOCKET_KEY).cloned(),
            protocol_version: headers.get(SEC_WEBSOCKET_VERSION).cloned(),
        })
    }

    /// The value of `Sec-WebSocket-Accept`, or why there can be no WebSocket.
    pub fn accept(&self) -> Result<HeaderValue, Refusal> {
        let bad = |text: &str| (StatusCode::BAD_REQUEST, format!("not a WebSocket: {text}\n"));
        if self.method != Method::GET || self.version != Version::HTTP_11 {
            return Err(bad("the request must be a GET of HTTP/1.1"));
        }
        if !self.has_connection {
            return Err(bad("the header Connection does not say upgrade"));
        }
        if self
            .protocol_version
            .as_ref()
            .is_none_or(|version| version.as_bytes() != VERSION.as_bytes())
        {
            let text = format!("only version {VERSION} of WebSocket is spoken here\n");
            return Err((StatusCode::UPGRADE_REQUIRED, text));
        }
        let key = self.key.as_ref().filter(|key| key.len() == KEY_LENGTH);
        let key = key.ok_or_else(|| bad("Sec-WebSocket-Key is not 16 bytes in base64"))?;
        let accept = derive_accept_key(key.as_bytes());
        Ok(HeaderValue::try_from(accept).expect("base64 is plain text"))
    }
}

/// The head of the answer that switches to WebSocket. `headers` are the application's.
pub(crate) fn switch<B>(mut headers: HeaderMap, accept: HeaderValue, body: B) -> Response<B> {
    for name in OURS {
        headers.remove(name);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = headers;
    response
}

/// Headers of the handshake that no application sets. No extension is spoken here.
const OURS: [HeaderName; 6] = [
    CONNECTION,
    http::header::TRANSFER_ENCODING,
    http::header::CONTENT_LENGTH,
    SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY,
];

/// Adds what a request needs that asks a server for a WebSocket; the key is to be kept.
pub(crate) fn ask(headers: &mut HeaderMap) -> String {
    for name in OURS {
        headers.remove(name);
    }
    let key = generate_key();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
    headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::try_from(&key).expect("base64 is plain text"));
    key
}

/// Whether the server's answer is one to this key.
///
/// # Errors
/// What `fetch` rejects with.
pub(crate) fn check_answer(headers: &HeaderMap, key: &str) -> Result<(), Failure> {
    let wrong = |what: &str| {
        let text = format!("Network connection lost: the server's handshake is wrong: {what}");
        Err(failure("Error", text))
    };
    if !asks(headers) {
        return wrong("it switches to something else than WebSocket");
    }
    let expected = derive_accept_key(key.as_bytes());
    let accept = headers.get(SEC_WEBSOCKET_ACCEPT);
    if accept.is_none_or(|accept| accept.as_bytes() != expected.as_bytes()) {
        return wrong("Sec-WebSocket-Accept does not answer our key");
    }
    if headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
        return wrong("it speaks an extension that was not asked for");
    }
    Ok(())
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    let values = headers.get_all(name);
    values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|word| word.trim().eq_ignore_ascii_case(token)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455, section 1.2.
    fn request() -> http::Request<()> {
        http::Request::get("/chat")
            .header("upgrade", "WebSocket")
            .header("connection", "keep-alive, Upgrade")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-version", "13")
            .body(())
            .expect("a request")
    }

    fn answer(change: impl FnOnce(&mut http::Request<()>)) -> Result<HeaderValue, StatusCode> {
        let mut request = request();
        change(&mut request);
        let asked = Asked::read(&request).expect("it asks");
        asked.accept().map_err(|(status, _)| status)
    }

    #[test]
    fn the_example_of_the_standard_is_answered_as_there() {
        let accept = answer(|_| ()).expect("a good request");
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let response = switch(HeaderMap::new(), accept, ());
        assert_eq!(response.status(), 101);
        assert!(check_answer(response.headers(), "dGhlIHNhbXBsZSBub25jZQ==").is_ok());
        assert!(check_answer(response.headers(), "AAAAAAAAAAAAAAAAAAAAAA==").is_err());
    }

    #[test]
    fn a_request_that_cannot_become_one_is_refused() {
        let bad = Err(StatusCode::BAD_REQUEST);
        assert_eq!(answer(|request| *request.method_mut() = Method::POST), bad);
        assert_eq!(answer(|request| *request.version_mut() = Version::HTTP_10), bad);
        let without = |name: &'static str| {
            answer(|request| {
                request.headers_mut().remove(name);
            })
        };
        assert_eq!(without("connection"), bad);
        assert_eq!(without("sec-websocket-key"), bad);
        assert_eq!(without("sec-websocket-version"), Err(StatusCode::UPGRADE_REQUIRED));
    }

    #[test]
    fn the_application_does_not_spoil_the_handshake() {
        let mut headers = HeaderMap::new();
        for name in ["connection", "sec-websocket-extensions", "content-length", "x-own"] {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        let response = switch(headers, WEBSOCKET, ());
        assert_eq!(response.headers()["connection"], "Upgrade");
        assert_eq!(response.headers()["x-own"], "1");
        assert_eq!(response.headers().len(), 4);
    }
}
