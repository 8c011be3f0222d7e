//! Sockets and names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
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

/// The same connection without the executor: what its ring has asked of the socket stays behind.
///
/// # Errors
/// The process has no descriptor left.
pub fn detach(stream: &TcpStream) -> io::Result<OwnedFd> {
    // SAFETY: the stream keeps its descriptor open through the call.
    unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) }.try_clone_to_owned()
}

/// The connection, for the executor that runs this.
pub fn attach(socket: OwnedFd) -> TcpStream {
    // SAFETY: nobody else has this descriptor.
    unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) }
}

/// Has the kernel end a connection whose other host has not answered for about `limit`, whether
/// something is under way on it or not. A host that answers while its process is stopped or busy
/// does not count as gone.
///
/// # Errors
/// The socket refuses an option.
pub fn notice_dead_host(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    const PROBES: u64 = 3;
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let seconds = (limit_ms / 1_000 / (PROBES + 1)).max(1);
    for (level, option, value) in [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, PROBES),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, limit_ms),
    ] {
        let value = libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX);
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the call reads one integer of this length.
        let result = unsafe {
            let value = (&raw const value).cast();
            libc::setsockopt(stream.as_raw_fd(), level, option, value, len)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;

    fn option(stream: &TcpStream, level: libc::c_int, option: libc::c_int) -> libc::c_int {
        let mut value: libc::c_int = -1;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the call writes one integer of this length.
        let result = unsafe {
            let value = (&raw mut value).cast();
            libc::getsockopt(stream.as_raw_fd(), level, option, value, &raw mut len)
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        value
    }

    #[test]
    fn connections_send_at_once_and_have_the_kernel_look_for_a_dead_host() {
        block_on(async {
            let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
            let address = listener.local_addr().expect("an address");
            let limit = Duration::from_secs(8);
            let ours = connect(&[address], limit).await.expect("a connection");
            let theirs = accept(&listener).await;
            for stream in [&ours, &theirs] {
                assert_eq!(option(stream, libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
            }
            notice_dead_host(&ours, limit).expect("options of a socket");
            assert_eq!(option(&ours, libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
            let seconds = |name| option(&ours, libc::IPPROTO_TCP, name);
            let probes = seconds(libc::TCP_KEEPINTVL) * seconds(libc::TCP_KEEPCNT);
            assert_eq!(seconds(libc::TCP_KEEPIDLE) + probes, 8, "of silence");
            assert_eq!(seconds(libc::TCP_USER_TIMEOUT), 8_000, "milliseconds");
        });
    }
}
