//! Pools before servers that close, hang and count.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::body::{Body, Frame, SizeHint};

use super::*;
use crate::{block_on, sleep, spawn_joined, timeout};

/// No body.
struct Nothing;

impl Body for Nothing {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(0)
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

/// What a server does with the connections that it has.
#[derive(Clone, Default)]
struct Server {
    port: u16,
    /// Those that came.
    connections: Arc<Mutex<Vec<TcpStream>>>,
    /// Requests read in whole.
    requests: Arc<AtomicUsize>,
}

impl Server {
    /// Answers each request with what `answer` makes of its number; `None` closes the connection.
    fn start(answer: impl Fn(usize) -> Option<&'static [u8]> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = Self { port, ..Self::default() };
        let (known, answer) = (server.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.expect("a connection");
                known.connections.lock().expect("no panic").push(socket.try_clone().expect("two"));
                let (requests, answer) = (known.requests.clone(), answer.clone());
                std::thread::spawn(move || {
                    let mut lines = BufReader::new(&socket).lines();
                    while let Some(Ok(line)) = lines.next() {
                        if !line.is_empty() {
                            continue;
                        }
                        let Some(bytes) = answer(requests.fetch_add(1, Ordering::SeqCst)) else {
                            let _gone = socket.shutdown(Shutdown::Both);
                            return;
                        };
                        let _gone = (&socket).write_all(bytes);
                    }
                });
            }
        });
        server
    }

    fn connections(&self) -> usize {
        self.connections.lock().expect("no panic").len()
    }

    fn close_all(&self) {
        for socket in self.connections.lock().expect("no panic").iter() {
            let _gone = socket.shutdown(Shutdown::Both);
        }
    }

    fn pool(&self, limits: Limits) -> (Pool<Nothing>, Arc<Counts>) {
        let origin = Origin { tls: false, host: "127.0.0.1".into(), port: self.port };
        let counts = Arc::<Counts>::default();
        (Pool::new(origin, tls_config(), limits, counts.clone()), counts)
    }
}

fn request() -> Request<Nothing> {
    Request::get("/").header("host", "test").body(Nothing).expect("a request")
}

async fn body(pool: &Pool<Nothing>) -> Result<Bytes, SendError> {
    let response = pool.send(request()).await?;
    Ok(read_body(response.into_body(), 100).await.expect("a body").expect("a short one"))
}

#[test]
fn requests_one_after_the_other_share_a_connection() {
    let server = Server::start(|_| Some(OK));
    block_on(async {
        let (pool, counts) = server.pool(Limits::default());
        for _ in 0..20 {
            assert_eq!(body(&pool).await.expect("an answer"), "hi");
        }
        assert_eq!((server.connections(), counts.connects.load(Ordering::Relaxed)), (1, 1));
    });
}

#[test]
fn connections_that_the_server_closed_are_passed_over_and_those_to_come_kept_shorter() {
    let server = Server::start(|_| Some(OK));
    block_on(async {
        let (pool, counts) = server.pool(Limits { warm: 2, ..Limits::default() });
        assert_eq!(pool.warm(2).await.expect("reachable"), 2);
        // Again and again: the server may not have taken them yet.
        while counts.closed_idle.load(Ordering::Relaxed) < 2 {
            server.close_all();
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(body(&pool).await.expect("on a fresh one"), "hi");
        assert!(pool.idle_limit() < Limits::default().idle);
        // And somebody opens others before they are wanted.
        while pool.idle_count() < 2 {
            sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn idle_connections_are_replaced_before_they_are_old() {
    let server = Server::start(|_| Some(OK));
    block_on(async {
        let limits = Limits { warm: 1, idle: Duration::from_millis(1), ..Limits::default() };
        let (pool, counts) = server.pool(limits);
        pool.warm(1).await.expect("reachable");
        while counts.connects.load(Ordering::Relaxed) < 3 {
            sleep(Duration::from_millis(5)).await;
        }
        // That was our doing.
        assert_eq!(counts.closed_idle.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_request_that_was_written_is_never_sent_twice() {
    // The first answer makes the connection a pooled one.
    let server = Server::start(|n| (n == 0).then_some(OK));
    block_on(async {
        let (pool, _) = server.pool(Limits::default());
        body(&pool).await.expect("an answer");
        match pool.send(request()).await {
            Err(SendError::NoAnswer { reused, .. }) => assert!(reused),
            other => panic!("{other:?}"),
        }
        assert_eq!(server.requests.load(Ordering::SeqCst), 2);
        // On a fresh connection it cannot have been an old one's fault.
        match pool.send(request()).await {
            Err(SendError::NoAnswer { reused, .. }) => assert!(!reused),
            other => panic!("{other:?}"),
        }
        assert_eq!(server.requests.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn a_server_that_is_not_there_has_not_seen_the_request() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let server = Server { port, ..Server::default() };
    block_on(async {
        let (pool, counts) = server.pool(Limits::default());
        assert!(matches!(pool.send(request()).await, Err(SendError::NotSent(_))));
        assert_eq!(counts.connect_failures.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn requests_beyond_the_limit_wait_and_those_that_go_away_free_their_place() {
    let server = Server::start(|_| Some(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"));
    block_on(async {
        let (pool, _) = server.pool(Limits { in_flight_max: 2, ..Limits::default() });
        let first = pool.send(request()).await.expect("a head");
        let second = pool.send(request()).await.expect("a head");
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let pool = pool.clone();
                spawn_joined(async move { pool.send(request()).await.map(drop) })
            })
            .collect();
        // One that gives up while it waits takes no place from the others.
        assert!(timeout(Duration::from_millis(20), pool.send(request())).await.is_err());
        assert_eq!(server.requests.load(Ordering::SeqCst), 2, "the bodies of two are not read");
        drop((first, second));
        for task in waiting {
            task.join().await.expect("no panic").expect("a head");
        }
    });
}

#[test]
fn a_body_is_bounded_whatever_its_head_claims() {
    const SHORT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi";
    const HUGE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n";
    const CHUNKS: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n2\r\nho\r\n0\r\n\r\n";
    let server = Server::start(|n| [SHORT, HUGE, CHUNKS, CHUNKS].get(n).copied());
    block_on(async {
        let (pool, _) = server.pool(Limits::default());
        let response = pool.send(request()).await.expect("a head");
        assert!(
            timeout(Duration::from_millis(20), read_body(response.into_body(), 9)).await.is_err()
        );
        let next = async |max| {
            let response = pool.send(request()).await.expect("a head");
            read_body(response.into_body(), max).await.expect("no error")
        };
        assert_eq!(next(1 << 30).await, None);
        assert_eq!(next(4).await.as_deref(), Some(&b"hiho"[..]));
        assert_eq!(next(3).await, None);
    });
}

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
