//! An HTTP/1.1 client for one executor: keep-alive connections, TLS by rustls.
//!
//! Invariant: a request is sent at most once. Only when a pooled connection turns out to be dead
//! before a byte of the request was written is it sent on a fresh one.

mod connecting;
mod pool;
mod tls;
mod upgrade;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::poll_fn;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::{Body, Incoming};
use rustls::ClientConfig;

pub use pool::{Counts, Limits, Pool, Used};
pub use tls::{TlsConfig, tls_config, tls_config_with};
pub use upgrade::{Socket, Upgraded};

/// Memory taken ahead for a body whose length was only claimed.
const BODY_AHEAD: u64 = 1 << 20;
/// Origins whose connections are kept; past it those without any are forgotten.
const ORIGINS_MAX: usize = 1_024;

/// Where connections lead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// TLS, or plain.
    pub tls: bool,
    /// A name or an address; an IPv6 address in brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// A request has no answer.
#[derive(Debug)]
pub enum SendError {
    /// No byte of it was written: the server has not seen it.
    NotSent(io::Error),
    /// It was written, or a part of it: the server may have acted on it.
    NoAnswer {
        /// On a connection that had carried others before, and may have been closed meanwhile.
        reused: bool,
        /// What happened.
        source: io::Error,
    },
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(error) | Self::NoAnswer { source: error, .. } => error.fmt(f),
        }
    }
}

impl std::error::Error for SendError {}

/// Sends requests to any origin; keeps connections warm. Clones share them.
pub struct HttpClient<B> {
    pools: Rc<RefCell<HashMap<Origin, Pool<B>>>>,
    tls: Arc<ClientConfig>,
    limits: Limits,
}

impl<B> Clone for HttpClient<B> {
    fn clone(&self) -> Self {
        Self { pools: self.pools.clone(), tls: self.tls.clone(), limits: self.limits }
    }
}

impl<B> HttpClient<B>
where
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// A client with no connections yet.
    pub fn new(tls: TlsConfig) -> Self {
        Self::with_limits(tls, Limits::default())
    }

    /// A client with limits of its own.
    pub fn with_limits(tls: TlsConfig, limits: Limits) -> Self {
        Self { pools: Rc::default(), tls, limits }
    }

    /// Sends a request with an absolute `http` or `https` URI and waits for the response's head.
    ///
    /// # Errors
    /// The name, the connection, TLS or the exchange failed; the text says which.
    pub async fn send(&self, request: Request<B>) -> Result<Response<Incoming>, SendError> {
        let (origin, request) = origin_form(request).map_err(SendError::NotSent)?;
        let pool = self.pool(origin);
        pool.send(request).await
    }

    fn pool(&self, origin: Origin) -> Pool<B> {
        let mut pools = self.pools.borrow_mut();
        if pools.len() >= ORIGINS_MAX && !pools.contains_key(&origin) {
            pools.retain(|_, pool| !pool.is_empty());
        }
        let make = || Pool::new(origin.clone(), self.tls.clone(), self.limits, Arc::default());
        pools.entry(origin.clone()).or_insert_with(make).clone()
    }
}

/// The whole body, if it has `max` bytes or fewer; otherwise `None`, and the connection is closed.
///
/// # Errors
/// The connection ended before the body.
pub async fn read_body(mut body: Incoming, max: u64) -> io::Result<Option<Bytes>> {
    let claimed = body.size_hint().lower();
    if claimed > max {
        return Ok(None);
    }
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame.map_err(pool::to_io)?.into_data() else { continue };
        if (first.len() + whole.len() + data.len()) as u64 > max {
            return Ok(None);
        }
        if first.is_empty() && whole.is_empty() {
            // Nearly always the only one.
            first = data;
            continue;
        }
        if whole.is_empty() {
            whole.reserve(claimed.clamp(first.len() as u64 * 2, BODY_AHEAD) as usize);
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok(Some(if whole.is_empty() { first } else { whole.freeze() }))
}

/// HTTP/1.1 wants the path in the first line and the host in a header.
fn origin_form<B>(mut request: Request<B>) -> io::Result<(Origin, Request<B>)> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let uri = request.uri().clone();
    let origin = Origin::of(&uri)?;
    if !request.headers().contains_key(HOST) {
        let authority = uri.authority().map_or("", http::uri::Authority::as_str);
        let shown = authority.rsplit('@').next().unwrap_or_default();
        let value = HeaderValue::from_str(shown).map_err(|_| bad("the URL's host is malformed"))?;
        request.headers_mut().insert(HOST, value);
    }
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    *request.uri_mut() = path.parse::<Uri>().map_err(io::Error::other)?;
    Ok((origin, request))
}

impl Origin {
    /// Of an absolute URI.
    ///
    /// # Errors
    /// It is not `http` or `https`, or has no host.
    pub fn of(uri: &Uri) -> io::Result<Self> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad("only http and https URLs can be requested")),
        };
        let authority = uri.authority().ok_or_else(|| bad("the URL has no host"))?;
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { tls, host: authority.host().to_owned(), port })
    }
}

#[cfg(test)]
mod tests;
