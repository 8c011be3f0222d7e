//! TLS on a socket, for one task that drives both directions.
//!
//! Reads and writes of the socket are as large as its buffers allow: many small writes become one
//! record and one system call, and one read brings many records. (The usual adapters read 4 KiB and
//! write one record at a time.)
//!
//! Invariant: at most [`UNSENT_MAX`] bytes and one write wait to be sent; a reader that stalls
//! leaves the rest in the socket.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use crate::net::{TcpStream, attach, detach};

/// What one read takes from the socket: four of the largest records.
const RECEIVE_BYTES: usize = 64 * 1024;
/// Encrypted bytes that wait for the socket before more are taken.
const UNSENT_MAX: usize = 64 * 1024;

thread_local! {
    /// Between a read of the socket and the decryption, which nothing comes between.
    static RECEIVED: RefCell<Box<[u8]>> = RefCell::new(vec![0; RECEIVE_BYTES].into());
}

/// A [`TlsStream`] on its way to another executor.
pub struct Detached {
    socket: OwnedFd,
    tls: Connection,
    undecrypted: Vec<u8>,
    unsent: Vec<u8>,
}

/// A socket that speaks TLS.
pub struct TlsStream {
    socket: TcpStream,
    tls: Connection,
    /// Encrypted bytes that have come and did not fit.
    undecrypted: Vec<u8>,
    unsent: Vec<u8>,
    /// How many of `unsent` are sent.
    sent: usize,
}

impl TlsStream {
    /// Opens TLS as the client.
    ///
    /// # Errors
    /// The handshake failed: [`tls_error`] tells if it was TLS that did.
    pub async fn connect(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Self::shake_hands(socket, tls.into()).await
    }

    /// Opens TLS as the server.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub async fn accept(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        Self::shake_hands(socket, tls.into()).await
    }

    /// What the other side has shown, its own first.
    pub fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.tls.peer_certificates()
    }

    /// Takes the connection off this executor, with all that has come and is to go.
    ///
    /// # Errors
    /// The process has no descriptor left. The connection ends.
    pub fn detach(mut self) -> io::Result<Detached> {
        let socket = detach(&self.socket)?;
        let unsent = self.unsent.split_off(self.sent);
        Ok(Detached { socket, tls: self.tls, undecrypted: self.undecrypted, unsent })
    }

    /// The connection goes on on the executor that runs this.
    pub fn attach(detached: Detached) -> Self {
        let Detached { socket, tls, undecrypted, unsent } = detached;
        Self { socket: attach(socket), tls, undecrypted, unsent, sent: 0 }
    }

    /// Gives back the memory of a connection that rests.
    pub fn shrink(&mut self) {
        if self.unsent.is_empty() {
            self.unsent = Vec::new();
        }
        if self.undecrypted.is_empty() {
            self.undecrypted = Vec::new();
        }
    }

    async fn shake_hands(socket: TcpStream, tls: Connection) -> io::Result<Self> {
        let mut stream = Self { socket, tls, undecrypted: Vec::new(), unsent: Vec::new(), sent: 0 };
        poll_fn(|cx| stream.poll_handshake(cx)).await?;
        Ok(stream)
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.is_handshaking() {
            if let Poll::Ready(result) = self.poll_flush_all(cx) {
                result?;
            }
            let received = RECEIVED.with_borrow_mut(|received| {
                let len = ready!(Pin::new(&mut self.socket).poll_read(cx, received))?;
                if len == 0 {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
                }
                let mut bytes = &received[..len];
                while !bytes.is_empty() && self.tls.is_handshaking() {
                    self.feed(&mut bytes, cx)?;
                }
                self.undecrypted.extend_from_slice(bytes);
                Poll::Ready(Ok(()))
            });
            ready!(received)?;
        }
        self.poll_flush_all(cx)
    }

    /// Decrypts some of `bytes`.
    fn feed(&mut self, bytes: &mut &[u8], cx: &mut Context<'_>) -> io::Result<()> {
        self.tls.read_tls(bytes)?;
        if let Err(error) = self.tls.process_new_packets() {
            // The other side is told why, if the socket takes it at once.
            let _told = self.poll_flush_all(cx);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(())
    }

    /// Decrypts `bytes` into `room` until either is used up. `None`: nothing comes after them.
    fn decrypt(
        &mut self,
        bytes: &mut &[u8],
        room: &mut [u8],
        cx: &mut Context<'_>,
    ) -> io::Result<Option<usize>> {
        let mut filled = 0;
        loop {
            while filled < room.len() {
                match self.tls.reader().read(&mut room[filled..]) {
                    Ok(0) => return Ok((filled > 0).then_some(filled)),
                    Ok(len) => filled += len,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) if filled > 0 => return Ok(Some(filled)),
                    Err(error) => return Err(error),
                }
            }
            if filled == room.len() || bytes.is_empty() {
                return Ok(Some(filled));
            }
            self.feed(bytes, cx)?;
        }
    }

    /// Encrypts what is to be sent, and sends what can be.
    fn poll_flush_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.unsent)?;
        }
        while self.sent < self.unsent.len() {
            let rest = &self.unsent[self.sent..];
            let len = ready!(Pin::new(&mut self.socket).poll_write(cx, rest))?;
            if len == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += len;
        }
        self.unsent.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if room.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            let here = std::mem::take(&mut this.undecrypted);
            let mut bytes = &here[..];
            let filled = this.decrypt(&mut bytes, room, cx)?;
            this.undecrypted.extend_from_slice(bytes);
            match filled {
                Some(0) => {}
                Some(len) => return Poll::Ready(Ok(len)),
                None => return Poll::Ready(Ok(0)),
            }
            let filled = RECEIVED.with_borrow_mut(|received| {
                let len = ready!(Pin::new(&mut this.socket).poll_read(cx, received))?;
                let mut bytes = &received[..len];
                if len == 0 {
                    this.tls.read_tls(&mut bytes)?; // so that it knows
                }
                let filled = this.decrypt(&mut bytes, room, cx)?;
                this.undecrypted.extend_from_slice(bytes);
                Poll::Ready(io::Result::Ok(filled))
            });
            match ready!(filled)? {
                Some(0) => {}
                Some(len) => return Poll::Ready(Ok(len)),
                None => return Poll::Ready(Ok(0)),
            }
        }
    }
}

impl AsyncWrite for TlsStream {
    /// Takes bytes, and has sent them or not: [`AsyncWrite::poll_flush`] tells.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.unsent.len() - self.sent >= UNSENT_MAX {
            ready!(self.poll_flush_all(cx))?;
        }
        let len = self.tls.writer().write(bytes)?;
        if len == 0 && !bytes.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        if let Poll::Ready(result) = self.poll_flush_all(cx) {
            result?;
        }
        Poll::Ready(Ok(len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_all(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tls.send_close_notify();
        ready!(self.poll_flush_all(cx))?;
        Pin::new(&mut self.socket).poll_close(cx)
    }
}

/// What TLS says about a failure, if it was TLS that failed.
pub fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures_lite::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use rustls::RootCertStore;
    use rustls::pki_types::PrivatePkcs8KeyDer;

    use super::*;
    use crate::{block_on, net, spawn_joined};

    fn configs(name: &str) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key.into())
            .expect("a sound pair");
        let mut roots = RootCertStore::empty();
        roots.add(certificate).expect("a certificate");
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        (Arc::new(server), Arc::new(client))
    }

    async fn ends(name: &str, meant: &str) -> [io::Result<TlsStream>; 2] {
        let (server, client) = configs(name);
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let listener = net::listen(any).expect("a port");
        let at = listener.local_addr().expect("an address");
        let accepting =
            spawn_joined(
                async move { TlsStream::accept(net::accept(&listener).await, server).await },
            );
        let socket = net::connect(&[at], std::time::Duration::from_secs(10)).await.expect("a port");
        net::notice_dead_host(&socket, std::time::Duration::from_secs(9)).expect("options");
        let name = ServerName::try_from(meant.to_owned()).expect("a name");
        let connected = TlsStream::connect(socket, client, name).await;
        [connected, accepting.join().await.expect("no panic")]
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| ((at * 31 + at / 251) % 251) as u8).collect()
    }

    #[test]
    fn bytes_come_as_they_were_sent_in_pieces_of_any_size() {
        block_on(async {
            let [client, server] = ends("here", "here").await;
            let (mut client, mut server) = (client.expect("TLS"), server.expect("TLS"));
            let sent = bytes(3_000_000);
            let all = sent.clone();
            let writing = spawn_joined(async move {
                let mut at = 0;
                for len in [1, 7, 100, 16_384, 16_385, 70_000, 200_000].into_iter().cycle() {
                    let end = (at + len).min(all.len());
                    client.write_all(&all[at..end]).await.expect("a reader");
                    client.flush().await.expect("a reader");
                    at = end;
                    if at == all.len() {
                        break;
                    }
                }
                client.close().await.expect("a reader");
                // Dropped later: the server's tickets are unread, and would make it a reset.
                client
            });
            let mut got = Vec::new();
            let mut room = vec![0; 100_000];
            for len in [1, 5, 1_000, 20_000, 100_000].into_iter().cycle() {
                let read = server.read(&mut room[..len]).await.expect("a writer");
                got.extend_from_slice(&room[..read]);
                if read == 0 {
                    break;
                }
            }
            assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
            writing.join().await.expect("no panic");
        });
    }

    #[test]
    fn a_connection_goes_on_on_another_executor() {
        let sent = bytes(300_000);
        let all = sent.clone();
        block_on(async {
            let [client, server] = ends("here", "here").await;
            let (mut client, mut server) = (client.expect("TLS"), server.expect("TLS"));
            // A part of it is read here; what has come beyond that goes along.
            client.write_all(&all[..20_000]).await.expect("a reader");
            client.flush().await.expect("a reader");
            let mut first = [0; 100];
            server.read_exact(&mut first).await.expect("a writer");
            assert_eq!(first, all[..100]);
            let detached = server.detach().expect("a descriptor");
            let (tell, told) = crate::oneshot::channel();
            let there = move || async move {
                let mut server = TlsStream::attach(detached);
                let mut rest = Vec::new();
                server.read_to_end(&mut rest).await.expect("a writer");
                server.write_all(&rest[..5]).await.expect("a reader");
                server.close().await.expect("a reader");
                let _gone = tell.send(rest);
            };
            let floating = crate::Placement::Floating;
            let thread = crate::spawn_thread("other", floating, there);
            client.write_all(&all[20_000..]).await.expect("a reader");
            client.close().await.expect("a reader");
            assert!(told.await.expect("all of it") == all[100..]);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.expect("a writer");
            assert_eq!(answer, all[100..105]);
            thread.expect("a thread").join().expect("no panic");
        });
    }

    #[test]
    fn a_writer_waits_for_a_reader_that_stalls() {
        block_on(async {
            let [client, server] = ends("here", "here").await;
            let (mut client, server) = (client.expect("TLS"), server.expect("TLS"));
            let endless = async {
                loop {
                    client.write_all(&[7; 10_000]).await.expect("a socket");
                }
            };
            let stalled: Result<(), _> =
                crate::timeout(std::time::Duration::from_secs(1), endless).await;
            assert!(stalled.is_err() && client.unsent.len() < UNSENT_MAX * 3);
            drop(server);
        });
    }

    #[test]
    fn a_handshake_that_fails_tells_both_sides_why() {
        block_on(async {
            let [client, server] = ends("here", "there").await;
            let client = client.map(|_| ()).expect_err("another name");
            let why = format!("{:?}", tls_error(&client));
            assert!(why.contains("NotValidForName"), "{why}");
            let server = server.map(|_| ()).expect_err("the client has left");
            let why = format!("{:?}", tls_error(&server));
            assert!(why.contains("AlertReceived"), "{why}");
        });
    }

    #[test]
    fn a_connection_that_breaks_is_no_good_end() {
        block_on(async {
            let [client, server] = ends("here", "here").await;
            drop(client);
            let error = server.expect("TLS").read(&mut [0; 10]).await.expect_err("it broke");
            assert!(
                matches!(
                    error.kind(),
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                ),
                "{error}"
            );
        });
    }
}
