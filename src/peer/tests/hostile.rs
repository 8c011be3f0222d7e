//! Who is not let in, and what those cannot do who are: other fleets, other protocols, noise.

mod peers;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_core::time::Wall;
use celld_peer::frame::{Frame, HEAD_MAX};
use celld_peer::hello::hello;
use celld_peer::{
    Address, CallId, CallKind, Cause, Fate, FrameError, Link, More, PROTOCOL, Patience, Refusal,
};
use celld_rt as rt;
use celld_rt::tls::TlsStream;
use futures_lite::io::{AsyncReadExt as _, AsyncWriteExt as _};
use peers::*;
use rustls::pki_types::ServerName;

async fn refusal(link: &Link) -> celld_peer::CallError {
    let error = link.ask(ask(HASTY, "h")).await.map(|_| ()).expect_err("refused");
    assert_eq!(error.fate, Fate::NotSent, "{error}");
    error
}

#[test]
fn a_node_of_another_fleet_is_refused_in_both_directions() {
    let node = Node::start_foreign();
    let seen = node.seen.clone();
    rt::block_on(async {
        let error = refusal(&node.link()).await;
        assert_eq!((error.code(), error.retryable()), ("peer_foreign", false), "{error}");
    });
    // The client noticed it first, and told the server.
    let ended = node.stop(Stop::Drain);
    assert_eq!((ended.refused, get(&seen.begun)), (1, 0), "{ended:?}");
}

#[test]
fn who_shows_no_certificate_or_speaks_no_tls_is_refused() {
    let node = Node::start();
    rt::block_on(async {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a version")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        let mut stream = tls(&node, Arc::new(config)).await;
        let _may_fail = stream.write_all(&hello()).await;
        let error = read_to_end(&mut stream).await.expect_err("an alert");
        assert!(error.to_string().contains("CertificateRequired"), "{error}");
    });
    for noise in [&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], &[0; 10_000], &[0x16; 200_000]] {
        let mut socket = TcpStream::connect(node.at).expect("a port");
        let _may_fail = socket.write_all(noise);
        let _any = socket.read_to_end(&mut Vec::new());
    }
    drop(TcpStream::connect(node.at).expect("a port"));
    rt::block_on(async {
        // Those who are let in notice nothing.
        call(&node.link(), ECHO, "h", Bytes::new()).await.expect("an answer");
    });
    let ended = node.stop(Stop::Drain);
    assert_eq!(ended.refused, 5, "{ended:?}");
}

#[test]
fn strangers_who_say_nothing_do_not_keep_the_fleet_out() {
    let node = Node::start();
    let connect = |_| TcpStream::connect(node.at).expect("a port");
    let mute: Vec<_> = (0..300).map(connect).collect();
    rt::block_on(async {
        let mut ask = ask(HASTY, "h");
        // Less than a stranger's time.
        ask.wait = Some(Duration::from_secs(8));
        let asked = node.link().ask(ask).await.expect("let in");
        asked.answer().await.expect("an answer");
    });
    drop(mute);
    let ended = node.stop(Stop::Drain);
    assert!(ended.refused >= 300 - 256, "{ended:?}");
}

/// Trusts everybody.
#[derive(Debug)]
struct Anybody;

mod anybody {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    impl ServerCertVerifier for super::Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            unreachable!("the server speaks 1.3 only")
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }
    }
}

fn now() -> Wall {
    Wall::from_millis(rt::wall_ms())
}

async fn tls(node: &Node, config: Arc<rustls::ClientConfig>) -> TlsStream {
    let socket = rt::net::connect(&[node.at], Duration::from_secs(10)).await.expect("a port");
    let name = ServerName::try_from("celld").expect("a name");
    TlsStream::connect(socket, config, name).await.expect("TLS")
}

/// A node of the fleet that speaks by hand, up to the greetings.
async fn member(node: &Node) -> TlsStream {
    let config = identity(&fleet(1), "client").client(now()).expect("certificates");
    tls(node, config).await
}

async fn read_to_end(stream: &mut TlsStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    rt::timeout(Duration::from_secs(30), stream.read_to_end(&mut all)).await.expect("an end")?;
    Ok(all)
}

#[test]
fn another_protocol_is_refused_by_both_sides_and_each_says_its_own() {
    let node = Node::start();
    rt::block_on(async {
        for theirs in [greeting(PROTOCOL - 1), greeting(PROTOCOL + 1), *b"GET / HTTP/1"] {
            let mut stream = member(&node).await;
            stream.write_all(&theirs).await.expect("a socket");
            stream.flush().await.expect("a socket");
            let mut ours = [0; 12];
            stream.read_exact(&mut ours).await.expect("a greeting");
            assert_eq!(ours, hello());
            let _closed = read_to_end(&mut stream).await;
        }
    });
    let ended = node.stop(Stop::Drain);
    assert_eq!(ended.refused, 3, "{ended:?}");
    for theirs in [PROTOCOL - 1, PROTOCOL + 1] {
        meets_one_that_speaks(theirs);
    }
}

/// What a node of that version says first.
fn greeting(version: u16) -> [u8; 12] {
    let mut bytes = hello();
    bytes[8..10].copy_from_slice(&version.to_be_bytes());
    bytes
}

fn meets_one_that_speaks(version: u16) {
    rt::block_on(async {
        let listener = rt::net::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let at = listener.local_addr().expect("an address");
        rt::spawn(async move {
            let config = identity(&fleet(1), "server").server(now()).expect("certificates");
            let socket = rt::net::accept(&listener).await;
            let mut stream = TlsStream::accept(socket, config).await.expect("TLS");
            stream.write_all(&greeting(version)).await.expect("a socket");
            stream.flush().await.expect("a socket");
            let _closed = read_to_end(&mut stream).await;
        });
        let error = refusal(&Link::new(identity(&fleet(1), "client"), address(at))).await;
        assert_eq!(error.cause, Cause::Protocol(FrameError::Version(version)));
        assert_eq!((error.fate, error.code()), (Fate::NotSent, "peer_protocol"));
        assert!(!error.retryable());
        let words =
            format!("speaks version {version} of the protocol, and this node only {PROTOCOL}");
        assert!(error.to_string().contains(&words), "{error}");
    });
}

#[test]
fn another_session_or_node_at_the_address_is_not_taken_for_the_one_that_is_meant() {
    let node = Node::start();
    rt::block_on(async {
        let right = node.address();
        let other = Address { session: "00".repeat(16).parse_session(), ..right.clone() };
        let another = Address { node: "another".parse_node(), ..right };
        for address in [other, another] {
            let link = Link::new(identity(&fleet(1), "client"), address);
            let error = refusal(&link).await;
            assert_eq!((error.code(), error.retryable()), ("peer_replaced", true));
            let Cause::Replaced(found) = &error.cause else { panic!("{error}") };
            assert_eq!(**found, principal("server"));
        }
    });
    node.stop(Stop::Drain);
}

trait Parse {
    fn parse_session(&self) -> celld_core::node::SessionId;
    fn parse_node(&self) -> celld_core::node::NodeId;
}

impl Parse for str {
    fn parse_session(&self) -> celld_core::node::SessionId {
        celld_core::node::SessionId::parse(self).expect("a session")
    }
    fn parse_node(&self) -> celld_core::node::NodeId {
        celld_core::node::NodeId::parse(self).expect("a name")
    }
}

#[test]
fn a_port_where_nobody_listens_is_told_quickly_and_not_stormed() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = port.local_addr().expect("an address");
    drop(port);
    rt::block_on(async {
        let link = Link::new(identity(&fleet(1), "client"), address(at));
        let error = refusal(&link).await;
        assert_eq!((error.code(), error.retryable()), ("peer_unreachable", true));
        assert!(error.to_string().contains(&at.to_string()), "{error}");
        // Between attempts the answer is known: a hundred thousand of them would take minutes.
        let begun = Instant::now();
        for _ in 0..100_000 {
            refusal(&link).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    });
}

#[test]
fn a_port_that_takes_connections_and_says_nothing_costs_the_deadline() {
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = mute.local_addr().expect("an address");
    rt::block_on(async {
        let link = Link::new(identity(&fleet(1), "client"), address(at));
        let mut ask = ask(HASTY, "h");
        ask.wait = Some(Duration::from_millis(50));
        let error = link.ask(ask).await.map(|_| ()).expect_err("nobody speaks");
        assert_eq!((error.fate, error.cause), (Fate::NotSent, Cause::Deadline));
    });
}

/// After a good greeting, whatever follows.
async fn send_raw(node: &Node, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = member(node).await;
    stream.write_all(&hello()).await?;
    stream.write_all(bytes).await?;
    stream.flush().await?;
    let told = read_to_end(&mut stream).await?;
    assert_eq!(told[..12], hello());
    Ok(told[12..].to_vec())
}

#[test]
fn what_is_no_frame_ends_that_connection_and_no_other() {
    let node = Node::start();
    let frame = |frame: Frame<'_>| {
        let mut out = Vec::new();
        frame.encode(&mut out).expect("a frame that fits");
        out
    };
    let call = CallId(1);
    let open = frame(Frame::Open { call, kind: HANG, more: More::Follows, wait_ms: 0, head: b"h" });
    let chunk = frame(Frame::Chunk { call, more: More::Follows, bytes: &[7; 16_000] });
    let reset = Refusal::new(celld_peer::Code::Busy, "");
    let oversize = (u32::from(1_u8) << 24 | (HEAD_MAX as u32 + 7)).to_be_bytes();
    let noise: Vec<u8> = (0..200_000_usize).map(|at| (at * 131 % 251) as u8).collect();
    rt::block_on(async {
        let link = node.link();
        let held = link.ask(ask(HANG, "h")).await.expect("sent");
        for bytes in [
            noise,
            vec![0xff; 100],
            [&oversize[..], &[0; 8]].concat(),
            frame(Frame::Reply { call, more: More::End, head: b"" }),
            [&open[..], &open].concat(),
            // More of a body than its reader has allowed.
            [&open[..], &chunk, &chunk].concat(),
            [&open[..], &frame(Frame::Reset { call, refusal: reset })].concat(),
            frame(Frame::Chunk { call: CallId(9), more: More::End, bytes: b"x" }),
        ] {
            // The end may overtake what was told before it.
            let _ended = send_raw(&node, &bytes).await;
            call_echo(&link).await;
        }
        drop(held);
        until(|| get(&node.seen.running) == 0).await;
    });
    let ended = node.stop(Stop::Drain);
    assert_eq!((ended.connections, ended.refused), (0, 0), "{ended:?}");
}

async fn call_echo(link: &Link) {
    call(link, ECHO, "h", Bytes::from_static(b"body")).await.expect("the others go on");
}

#[test]
fn a_frame_that_never_ends_holds_no_more_than_itself() {
    let node = Node::start();
    rt::block_on(async {
        let mut stream = member(&node).await;
        stream.write_all(&hello()).await.expect("a socket");
        let header = (1_u32 << 24 | HEAD_MAX as u32).to_be_bytes();
        let fixed = [0, 0, 0, 0, 0, 0, 0, 1, 250, 0, 0, 0, 0, 0];
        let part = [&header[..], &fixed, &vec![7; HEAD_MAX - 7]].concat();
        stream.write_all(&part).await.expect("a socket");
        stream.flush().await.expect("a socket");
        call_echo(&node.link()).await;
        // Its last bytes make it a call of a kind that nobody knows.
        stream.write_all(&[7]).await.expect("a socket");
        stream.flush().await.expect("a socket");
        let mut told = [0; 12 + 13];
        stream.read_exact(&mut told).await.expect("a refusal");
        assert_eq!(told[12], 6, "a reset");
    });
    node.stop(Stop::Cut);
}

#[test]
fn a_flood_of_calls_whose_answers_nobody_reads_is_bounded() {
    let node = Node::start();
    rt::block_on(async {
        let mut stream = member(&node).await;
        stream.write_all(&hello()).await.expect("a socket");
        let mut call = 0_u64;
        loop {
            let mut out = Vec::new();
            for _ in 0..500 {
                call += 1;
                let (call, kind, more) = (CallId(call), CallKind(250), More::End);
                let frame = Frame::Open { call, kind, more, wait_ms: 0, head: b"h" };
                frame.encode(&mut out).expect("short");
            }
            // The server does not read on, and so the sockets fill up.
            let sent = rt::timeout(Duration::from_secs(1), stream.write_all(&out)).await;
            if sent.is_err() {
                break;
            }
            assert!(call < 3_000_000, "the server reads on and on");
        }
        call_echo(&node.link()).await;
    });
    node.stop(Stop::Cut);
}

#[test]
fn a_peer_that_says_nothing_for_long_is_taken_for_dead() {
    use celld_core::time::Micros;
    let patience =
        Patience { ping: Micros::from_secs(1), silence: Micros::from_secs(5), ..Patience::NORMAL };
    let node = Node::start_at("127.0.0.1:0".parse().expect("an address"), 1, patience);
    rt::block_on(async {
        // Speaks TLS and frames, and does not answer pings.
        let mut stream = member(&node).await;
        stream.write_all(&hello()).await.expect("a socket");
        let open =
            Frame::Open { call: CallId(1), kind: HANG, more: More::End, wait_ms: 0, head: b"h" };
        let mut out = Vec::new();
        open.encode(&mut out).expect("short");
        stream.write_all(&out).await.expect("a socket");
        stream.flush().await.expect("a socket");
        let told = read_to_end(&mut stream).await.unwrap_or_default();
        assert!(told.len() <= 12 + 12, "a greeting and a ping: {told:?}");
        until(|| get(&node.seen.gone) == 1).await;
        // Who answers them lives.
        let link = node.link();
        let held = link.ask(ask(HANG, "h")).await.expect("sent");
        rt::sleep(Duration::from_secs(7)).await;
        assert_eq!(get(&node.seen.gone), 1);
        assert!(link.is_up());
        drop(held);
    });
    node.stop(Stop::Drain);
}
