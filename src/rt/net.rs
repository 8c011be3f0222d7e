//! Sockets and names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

pub use glommio::net::{TcpListener, TcpStream};

use crate::{blocking, sleep};

/// How long a name's addresses are believed. Short enough for a fail-over by DNS.
const NAME_TTL: Duration = Duration::from_secs(30);
/// Names remembered at once; a full table is emptied.
const NAMES_MAX: usize = 1_024;

/// Listens on `address`. Every shard may listen on the same one (`SO_REUSEPORT`): the kernel
/// spreads connections over them.
///
/// # Errors
/// The address is in use by another process, or not ours.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).map_err(to_io)
}

/// Waits for the next connection. Errors of a single connection, or a full file table, are not
/// the listener's: it waits a little and goes on.
pub async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                // Answers are small and must not wait for more of them.
                let _slower = stream.set_nodelay(true);
                return stream;
            }
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Connects to the first address that answers.
///
/// # Errors
/// The last address's error, or `TimedOut`.
pub async fn connect(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for &address in addresses {
        match TcpStream::connect_timeout(address, limit).await {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(to_io)?;
                return Ok(stream);
            }
            Err(error) => last = to_io(error),
        }
    }
    Err(last)
}

/// Host and port to the addresses and when they were learnt.
type Names = HashMap<(String, u16), (Instant, Vec<SocketAddr>)>;

thread_local! {
    static NAMES: RefCell<Names> = RefCell::default();
}

/// The addresses of a host, by the system's resolver. Remembered for half a minute.
///
/// # Errors
/// The name does not exist, or no resolver answers.
pub async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<std::net::IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let key = (host.to_owned(), port);
    let known = NAMES.with_borrow(|names| match names.get(&key) {
        Some((at, addresses)) if at.elapsed() < NAME_TTL => Some(addresses.clone()),
        _ => None,
    });
    if let Some(addresses) = known {
        return Ok(addresses);
    }
    let question = key.clone();
    let addresses: Vec<SocketAddr> =
        blocking(move || question.to_socket_addrs().map(Iterator::collect)).await?;
    NAMES.with_borrow_mut(|names| {
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.insert(key, (Instant::now(), addresses.clone()));
    });
    Ok(addresses)
}

/// Glommio's errors are not `Sync`; what they say fits into an `io::Error`.
pub(crate) fn to_io<T>(error: glommio::GlommioError<T>) -> io::Error {
    match error {
        glommio::GlommioError::IoError(error) => error,
        glommio::GlommioError::EnhancedIoError { source, .. } => source,
        glommio::GlommioError::TimedOut(_) => io::Error::from(io::ErrorKind::TimedOut),
        other => io::Error::other(other.to_string()),
    }
}
