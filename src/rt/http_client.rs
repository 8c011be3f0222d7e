//! An HTTP/1.1 client for one executor: keep-alive connections, TLS by rustls.
//!
//! Invariant: a request is sent at most once. Only when a pooled connection turns out to be dead
//! before a byte of the request was written is it sent on a fresh one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_rustls::TlsConnector;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::hyper_io::HyperIo;
use crate::net::{connect, resolve};
use crate::{spawn, timeout};

/// A server that has not answered a SYN, or the first words of TLS, by then will not.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Servers close idle connections after 60 s or more; most proxies after 30 s.
const IDLE_LIMIT: Duration = Duration::from_secs(25);
/// Idle connections kept for one origin.
const IDLE_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Origin {
    tls: bool,
    host: String,
    port: u16,
}

/// Sends requests; keeps connections warm. Clones share them.
pub struct HttpClient<B> {
    idle: Rc<RefCell<Idle<B>>>,
    tls: Arc<ClientConfig>,
}

type Idle<B> = HashMap<Origin, Vec<(Instant, SendRequest<B>)>>;

impl<B> Clone for HttpClient<B> {
    fn clone(&self) -> Self {
        Self { idle: self.idle.clone(), tls: self.tls.clone() }
    }
}

/// The system's roots, and Mozilla's where the system has none.
pub fn tls_config() -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(native.certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring offers TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

impl<B> HttpClient<B>
where
    B: Body<Data = bytes::Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// A client with no connections yet.
    pub fn new(tls: Arc<ClientConfig>) -> Self {
        Self { idle: Rc::default(), tls }
    }

    /// Sends a request with an absolute `http` or `https` URI and waits for the response's head.
    ///
    /// # Errors
    /// The name, the connection, TLS or the exchange failed; the text says which.
    pub async fn send(&self, request: Request<B>) -> io::Result<Response<Incoming>> {
        let (origin, mut request) = origin_form(request)?;
        loop {
            let (mut sender, pooled) = match self.take(&origin) {
                Some(sender) => (sender, true),
                None => (self.connect(&origin).await?, false),
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.give_back_when_ready(origin, sender);
                    return Ok(response);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if pooled => request = unsent,
                    _ => return Err(io::Error::other(error.into_error())),
                },
            }
        }
    }

    fn take(&self, origin: &Origin) -> Option<SendRequest<B>> {
        let mut idle = self.idle.borrow_mut();
        let waiting = idle.get_mut(origin)?;
        while let Some((since, sender)) = waiting.pop() {
            if since.elapsed() < IDLE_LIMIT && !sender.is_closed() && sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    /// The connection is free again once the response's body has been read.
    fn give_back_when_ready(&self, origin: Origin, mut sender: SendRequest<B>) {
        let idle = Rc::downgrade(&self.idle);
        spawn(async move {
            if sender.ready().await.is_err() {
                return;
            }
            let Some(idle) = idle.upgrade() else { return };
            let mut idle = idle.borrow_mut();
            let waiting = idle.entry(origin).or_default();
            if waiting.len() < IDLE_MAX {
                waiting.push((Instant::now(), sender));
            }
        });
    }

    async fn connect(&self, origin: &Origin) -> io::Result<SendRequest<B>> {
        let addresses = resolve(&origin.host, origin.port).await.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot resolve {}: {error}", origin.host))
        })?;
        let socket = connect(&addresses, CONNECT_LIMIT).await.map_err(|error| {
            let Origin { host, port, .. } = origin;
            io::Error::new(error.kind(), format!("cannot connect to {host}:{port}: {error}"))
        })?;
        if !origin.tls {
            return handshake(HyperIo::new(socket)).await;
        }
        let bare = origin.host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(io::Error::other)?;
        let connected = TlsConnector::from(self.tls.clone()).connect(name, socket);
        // A server that does not speak TLS may wait for more instead of saying so.
        let tls = timeout(CONNECT_LIMIT, connected)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| {
                io::Error::new(error.kind(), format!("TLS with {}: {error}", origin.host))
            })?;
        handshake(HyperIo::new(tls)).await
    }
}

async fn handshake<S, B>(io: S) -> io::Result<SendRequest<B>>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
    B: Body<Data = bytes::Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (sender, connection) = Builder::new().handshake(io).await.map_err(io::Error::other)?;
    spawn(async move {
        // Its error is also the error of the request that was under way.
        let _closed = connection.await;
    });
    Ok(sender)
}

/// HTTP/1.1 wants the path in the first line and the host in a header.
fn origin_form<B>(mut request: Request<B>) -> io::Result<(Origin, Request<B>)> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let uri = request.uri().clone();
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(bad("only http and https URLs can be requested")),
    };
    let authority = uri.authority().ok_or_else(|| bad("the URL has no host"))?;
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let origin = Origin { tls, host: authority.host().to_owned(), port };
    if !request.headers().contains_key(HOST) {
        let shown = authority.as_str().rsplit('@').next().unwrap_or_default();
        let value = HeaderValue::from_str(shown).map_err(|_| bad("the URL's host is malformed"))?;
        request.headers_mut().insert(HOST, value);
    }
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    *request.uri_mut() = path.parse::<Uri>().map_err(io::Error::other)?;
    Ok((origin, request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_sent_in_origin_form() {
        let request = Request::get("https://example.com:8443/a?b=c").body(()).expect("a request");
        let (origin, request) = origin_form(request).expect("a good URL");
        assert_eq!(origin, Origin { tls: true, host: "example.com".into(), port: 8443 });
        assert_eq!(request.uri(), "/a?b=c");
        assert_eq!(request.headers()[HOST], "example.com:8443");
    }

    #[test]
    fn other_schemes_are_refused() {
        let request = Request::get("ftp://example.com/").body(()).expect("a request");
        assert!(origin_form(request).is_err());
    }
}
