//! The global `fetch` against servers that behave, and against servers that do not.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::raw_http::{Dev, wait_for};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

/// Takes connections for as long as the tests run, and hands each to `serve` on a thread.
fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Reads one request with a `content-length` or without a body.
fn request(stream: &mut impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        bytes.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&bytes).into_owned();
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    Ok(head + &String::from_utf8_lossy(&body))
}

fn answer(stream: &mut impl Write, head: &str, body: &str) {
    let text = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    // A client that has gone away does not want it.
    let _gone = stream.write_all(text.as_bytes());
}

/// A server with a path for each thing that servers do.
fn upstream() -> SocketAddr {
    server(|mut stream| {
        while let Ok(asked) = request(&mut stream) {
            let path = asked.split(' ').nth(1).unwrap_or_default().to_owned();
            let number =
                path.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
            match path.trim_end_matches(|c: char| c.is_ascii_digit()) {
                "/phrase" => answer(&mut stream, "200 Quite fine", "x"),
                "/hops" if number > 0 => {
                    let next = number - 1;
                    answer(&mut stream, &format!("302 Found\r\nlocation: hops{next}"), "");
                }
                "/redirect" => {
                    answer(&mut stream, &format!("{number} R\r\nlocation: /show#there"), "")
                }
                "/nowhere" => answer(&mut stream, "302 Found\r\nlocation: ftp://x/", ""),
                "/cut" => {
                    let _gone =
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
                    return;
                }
                "/cut-head" => {
                    let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le");
                    return;
                }
                "/nonsense" => {
                    let _gone = stream.write_all(b"I speak no HTTP\r\n\r\n");
                    return;
                }
                "/close" => {
                    let _gone =
                        stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nto the end");
                    return;
                }
                "/chunks" => {
                    let _gone = stream.write_all(
                        b"HTTP/1.1 201 Created\r\nx-seen: 1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n",
                    );
                }
                _ => answer(&mut stream, "200 OK", &asked),
            }
        }
    })
}

fn fetch(dev: &Dev, url: &str, more: &str) -> Value {
    dev.json(&format!("/fetch?url={url}{more}"))
}

#[test]
fn answers_arrive_whole() {
    let dev = Dev::start("http", 1);
    let up = upstream();
    let plain = fetch(&dev, &format!("http://{up}/a?b=c"), "");
    let body = plain["body"].as_str().unwrap_or_default();
    assert!(body.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{body}");
    assert!(body.contains(&format!("host: {up}\r\n")), "{body}");
    assert_eq!((&plain["status"], &plain["statusText"]), (&json!(200), &json!("OK")));
    assert_eq!(plain["redirected"], false);
    let phrase = fetch(&dev, &format!("http://{up}/phrase"), "");
    assert_eq!(phrase["statusText"], "Quite fine");
    assert_eq!(fetch(&dev, &format!("http://{up}/close"), "")["body"], "to the end");
    assert_eq!(fetch(&dev, &format!("http://{up}/chunks"), "")["body"], "abcdef");
    let posted = fetch(&dev, &format!("http://{up}/p"), "&method=POST&body=hello");
    let body = posted["body"].as_str().unwrap_or_default();
    assert!(body.starts_with("POST /p ") && body.ends_with("\r\n\r\nhello"), "{body}");
    // Handed on as it comes, with status, phrase and headers.
    let passed = dev.get(&format!("/proxy?url=http://{up}/chunks"));
    assert_eq!(
        (passed.status, passed.header("x-seen"), passed.text().as_str()),
        (201, Some("1"), "abcdef")
    );
}

#[test]
fn redirects_are_followed_as_the_request_says() {
    let dev = Dev::start("http", 1);
    let up = upstream();
    let hops = fetch(&dev, &format!("http://{up}/hops5"), "");
    assert_eq!(
        (&hops["url"], &hops["redirected"]),
        (&json!(format!("http://{up}/hops0")), &json!(true))
    );
    assert_eq!(fetch(&dev, &format!("http://{up}/hops20"), "")["status"], 200);
    let all: Vec<_> = (1..=21).rev().map(|n| format!("http://{up}/hops{n}")).collect();
    assert_eq!(
        fetch(&dev, &format!("http://{up}/hops21"), "")["message"],
        format!("Too many redirects.{}", all.join(", "))
    );
    for (status, method) in [(301, "GET"), (302, "GET"), (303, "GET"), (307, "POST"), (308, "POST")]
    {
        let end = fetch(&dev, &format!("http://{up}/redirect{status}"), "&method=POST&body=again");
        let body = end["body"].as_str().unwrap_or_default();
        assert!(body.starts_with(&format!("{method} /show ")), "{status}: {end}");
        assert_eq!(body.ends_with("again"), method == "POST", "{status}: {end}");
    }
    let manual = fetch(&dev, &format!("http://{up}/redirect302"), "&redirect=manual");
    assert_eq!((&manual["status"], &manual["redirected"]), (&json!(302), &json!(false)));
    let error = fetch(&dev, &format!("http://{up}/redirect302"), "&redirect=error");
    assert_eq!(error["name"], "TypeError", "{error}");
    assert_eq!(fetch(&dev, &format!("http://{up}/nowhere"), "")["name"], "TypeError");
}

#[test]
fn servers_that_fail_become_errors_that_say_how() {
    let dev = Dev::start("http", 1);
    let up = upstream();
    let no_tls = server(|mut stream| answer(&mut stream, "400 Bad Request", "speak HTTP"));
    for (url, words) in [
        (format!("http://{up}/cut"), "Network connection lost"),
        (format!("http://{up}/cut-head"), "Network connection lost"),
        (format!("http://{up}/nonsense"), "Network connection lost"),
        ("http://127.0.0.1:1/".to_owned(), "cannot connect to 127.0.0.1:1"),
        ("http://no-such-name.invalid/".to_owned(), "cannot resolve no-such-name.invalid"),
        (format!("https://{no_tls}/"), "TLS with 127.0.0.1"),
        ("ftp://example.com/".to_owned(), "cannot load: ftp://"),
    ] {
        let error = fetch(&dev, &url, "");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains(words), "{url}: {error}");
    }
    // Handed on, a body that is cut is cut for the client too.
    let mut client = dev.open();
    client.send(format!("GET /proxy?url=http://{up}/cut HTTP/1.1\r\nhost: test\r\n\r\n"));
    assert!(client.try_reply(true).is_err(), "half a body is no whole one");
    assert_eq!(fetch(&dev, &format!("http://{up}/a"), "")["status"], 200);
}

#[test]
fn a_fetch_that_is_aborted_leaves_its_server() {
    let dev = Dev::start("http", 1);
    let left = Arc::new(Mutex::new(0));
    let count = left.clone();
    let silent = server(move |mut stream| {
        // The request, and then the end of the connection: nothing is ever answered.
        let mut all = Vec::new();
        let _reset = stream.read_to_end(&mut all);
        *count.lock().expect("no panic") += 1;
    });
    let error = fetch(&dev, &format!("http://{silent}/"), "&abort=50");
    assert_eq!(error["name"], "TimeoutError", "{error}");
    wait_for("the end of the connection", || (*left.lock().expect("no panic") == 1).then_some(()));
}

#[test]
fn https_trusts_the_authorities_of_the_environment() {
    let up = tls_upstream();
    let certificates = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers/http");
    let authority = certificates.join("authority.pem");
    let dev = Dev::start_project(&project, 1, &[("SSL_CERT_FILE", &authority)]);
    let port = up.port();
    for host in ["localhost", "127.0.0.1"] {
        let seen = fetch(&dev, &format!("https://{host}:{port}/secret"), "");
        assert_eq!((&seen["status"], &seen["body"]), (&json!(200), &json!("GET /secret HTTP/1.1")));
    }
    // One that is not asked to trust it does not.
    let stranger = certificates.join("server.pem");
    let dev = Dev::start_project(&project, 1, &[("SSL_CERT_FILE", &stranger)]);
    let error = fetch(&dev, &format!("https://localhost:{port}/"), "");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("TLS with localhost") && message.contains("certificate"), "{error}");
}

fn tls_upstream() -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = CertificateDer::from_pem_slice(include_bytes!("../tls/server.pem")).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../tls/server.key")).expect("PEM");
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the versions of ring")
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .expect("key and certificate belong together");
    let config = Arc::new(config);
    server(move |stream| {
        let connection = rustls::ServerConnection::new(config.clone()).expect("a configuration");
        let mut tls = rustls::StreamOwned::new(connection, stream);
        while let Ok(asked) = request(&mut tls) {
            answer(&mut tls, "200 OK", asked.lines().next().unwrap_or_default());
        }
    })
}
