//! Requests that switch their connection to another protocol.

use std::io;

use bytes::Bytes;
use futures_channel::oneshot;
use futures_io::{AsyncRead, AsyncWrite};
use http::{Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::Builder;

use super::connecting::{Opened, open};
use super::pool::to_io;
use super::{HttpClient, origin_form};
use crate::hyper_io::HyperIo;
use crate::spawn;

/// A socket, or TLS on one.
pub trait Socket: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket for S {}

/// How a request that asks for another protocol is answered.
pub enum Upgraded {
    /// The connection speaks it from here on.
    Switched {
        /// The head of the answer, with status 101.
        head: Response<()>,
        /// The connection.
        socket: Box<dyn Socket>,
        /// What has come behind the head.
        read: Bytes,
    },
    /// An answer like any other.
    Answered(Response<Incoming>),
}

impl<B> HttpClient<B>
where
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Sends a request with an absolute URI on a connection of its own.
    ///
    /// # Errors
    /// The name, the connection, TLS or the exchange failed; the text says which.
    pub async fn upgrade(&self, request: Request<B>) -> io::Result<Upgraded> {
        let (origin, request) = origin_form(request)?;
        match open(&origin, &self.tls, self.limits.connect, self.limits.silence).await? {
            Opened::Plain(socket) => exchange(socket, request).await,
            Opened::Tls(socket) => exchange(*socket, request).await,
        }
    }
}

async fn exchange<S, B>(socket: S, request: Request<B>) -> io::Result<Upgraded>
where
    S: Socket + 'static,
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let handshake = Builder::new().handshake(HyperIo::new(socket)).await;
    let (mut sender, connection) = handshake.map_err(to_io)?;
    let (done, parts) = oneshot::channel();
    spawn(async move {
        // Its error is also the error of the request.
        if let Ok(parts) = connection.without_shutdown().await {
            // Who does not wait for it has another answer, whose body is through.
            let _through = done.send(parts);
        }
    });
    let response = sender.send_request(request).await.map_err(to_io)?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Upgraded::Answered(response));
    }
    let (head, _) = response.into_parts();
    let parts = parts.await.map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    let socket = Box::new(parts.io.into_inner());
    Ok(Upgraded::Switched { head: Response::from_parts(head, ()), socket, read: parts.read_buf })
}
