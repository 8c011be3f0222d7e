//! TLS to a store: whom we trust, and what a second connection costs.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use celld_rt::block_on;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{HandshakeKind, ServerConfig, ServerConnection, StreamOwned};

use super::{attempts, options_at};
use crate::{Bucket, Guard, OpenOptions, StoreError};

const CERTIFICATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/tls");

/// A store that answers one request on each connection. Says how each began.
fn store() -> (u16, Arc<Mutex<Vec<HandshakeKind>>>) {
    let read = |name: &str| std::fs::read(format!("{CERTIFICATES}/{name}")).expect("a file");
    let chain = CertificateDer::from_pem_slice(&read("server.pem")).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(&read("server.key")).expect("PEM");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring offers TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .expect("a certificate with its key");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (config, kinds) = (Arc::new(config), Arc::new(Mutex::new(Vec::new())));
    let known = kinds.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let connection = ServerConnection::new(config.clone()).expect("a configuration");
            let mut tls = StreamOwned::new(connection, socket.expect("a connection"));
            let mut text = Vec::new();
            while !text.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match tls.read(&mut byte) {
                    Ok(1) => text.push(byte[0]),
                    Ok(_) | Err(_) => break,
                }
            }
            if text.is_empty() {
                continue;
            }
            known.lock().expect("no panic").extend(tls.conn.handshake_kind());
            let _gone = tls.write_all(
                b"HTTP/1.1 200 OK\r\nETag: \"t\"\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
            );
            tls.conn.send_close_notify();
            let _gone = tls.flush();
        }
    });
    (port, kinds)
}

fn options(port: u16, ca_file: Option<&str>) -> OpenOptions {
    OpenOptions {
        endpoint: Some(format!("https://localhost:{port}")),
        ca_file: ca_file.map(PathBuf::from),
        ..options_at(port)
    }
}

#[test]
fn a_store_of_a_private_authority_is_trusted_and_its_sessions_are_resumed() {
    let (port, kinds) = store();
    let authority = format!("{CERTIFICATES}/authority.pem");
    let bucket = Bucket::open_with("s3://bucket", &options(port, Some(&authority)));
    let bucket = bucket.expect("a bucket");
    block_on(async {
        for _ in 0..3 {
            let object = bucket.get("a").await.expect("an answer").expect("an object");
            assert_eq!(object.body, "hi");
        }
    });
    use HandshakeKind::{Full, Resumed};
    assert_eq!(*kinds.lock().expect("no panic"), [Full, Resumed, Resumed]);
}

#[test]
fn a_store_that_nobody_vouches_for_is_not_asked() {
    let (port, kinds) = store();
    let bucket = Bucket::open_with("s3://bucket", &options(port, None)).expect("a bucket");
    let error = block_on(async {
        let put = bucket.with_limits(attempts(1)).put_if("a", Guard::Absent, Bytes::new()).await;
        put.expect_err("it did not apply")
    });
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("TLS with localhost: invalid peer certificate"), "{error}");
    assert!(kinds.lock().expect("no panic").is_empty());
}

#[test]
fn a_file_of_authorities_that_has_none_is_named() {
    for (file, what) in [("/nowhere.pem", "No such file"), ("/dev/null", "has no certificate")] {
        let opened = Bucket::open_with("s3://bucket", &options(1, Some(file)));
        let error = opened.expect_err("no authorities").to_string();
        assert!(error.contains(file) && error.contains(what), "{error}");
    }
}
