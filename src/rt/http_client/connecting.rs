//! From an origin to a socket that leads there.

use std::io;
use std::time::Duration;

use futures_rustls::TlsConnector;
use futures_rustls::client::TlsStream;
use rustls::pki_types::ServerName;

use super::{Origin, TlsConfig};
use crate::net::{TcpStream, connect, notice_dead_host, resolve};
use crate::timeout;

/// A socket to an origin.
pub(super) enum Opened {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Opens a connection. `limit`: for the first words of TCP, and those of TLS. `silence`: a host that
/// has not answered the kernel for so long is gone.
///
/// # Errors
/// The name, the connection or TLS failed; the text says which.
pub(super) async fn open(
    origin: &Origin,
    tls: &TlsConfig,
    limit: Duration,
    silence: Duration,
) -> io::Result<Opened> {
    let Origin { tls: is_tls, host, port } = origin;
    let addresses = resolve(host, *port)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot resolve {host}: {error}")))?;
    let socket = connect(&addresses, limit).await.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot connect to {host}:{port}: {error}"))
    })?;
    // Without it, a connection is only noticed later to be dead.
    let _later = notice_dead_host(&socket, silence);
    if !is_tls {
        return Ok(Opened::Plain(socket));
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(bare).map_err(io::Error::other)?;
    let connected = TlsConnector::from(tls.clone()).connect(name, socket);
    // A server that does not speak TLS may wait for more instead of saying so.
    let tls = timeout(limit, connected)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(|error| io::Error::new(error.kind(), format!("TLS with {host}: {error}")))?;
    Ok(Opened::Tls(Box::new(tls)))
}
