//! HTTP/1.1 from clients: one listener for each shard on the same address.
//!
//! Invariant: a connection's trouble stays its own. What a client gets wrong is answered with a
//! 4xx; a client that stalls is cut off.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use celld_rt as rt;
use celld_rt::hyper_io::{HyperIo, HyperTimer};
use celld_v8host::{Encoding, Redirect};
use futures_lite::FutureExt as _;
use futures_lite::io::AsyncWrite as _;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::ext::ReasonPhrase;
use hyper::service::service_fn;

use crate::address::{Refusal, url_of};
use crate::body::{Answered, Asked, BodyError, Flow, HttpBody, SocketBody};
use crate::coding::recode;
use crate::drain::Entered;
use crate::follow::{self, Course, Ends, Moving};
use crate::shard::Shard;
use crate::socket::ClientSocket;
use crate::websocket::codec::Role;
use crate::websocket::wire::Wire;
use crate::websocket::{Duplex, handshake};

/// As on Cloudflare.
const URI_BYTES_MAX: usize = 16 << 10;
/// As on Cloudflare.
const HEADER_BYTES_MAX: usize = 128 << 10;
/// Headers of one request; hyper's table is made for this many.
const HEADERS_MAX: usize = 256;
/// As on Cloudflare's plan for businesses; a Worker sees larger bodies refused with 413.
const BODY_BYTES_MAX: u64 = 500 << 20;
/// A body that is announced this small is read before JavaScript runs: one turn instead of three.
const WHOLE_BODY_MAX: u64 = 64 << 10;
/// A client that sends its head or its small body slower than this is cut off.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// A client that takes nothing of a response, or sends nothing of a body that is wanted, for this
/// long is cut off.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// A host that has answered nothing for this long, not even the kernel's probes, is gone.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);
/// For the answers of requests that are cut off because the node stops.
const CUT_GRACE: Duration = Duration::from_millis(500);
/// Health for load balancers and supervisors; the only path that is not the application's.
pub(crate) const HEALTH_PATH: &str = "/.well-known/celld/health";
/// Only for `celld dev`.
const SCHEDULED_PATH: &str = "/cdn-cgi/handler/scheduled";

/// Serves connections until the shard is told to drain, and then lets the open ones finish.
pub(crate) async fn serve(shard: Rc<Shard>, listener: rt::net::TcpListener) {
    loop {
        let accepted = async { Some(rt::net::accept(&listener).await) };
        let draining = async {
            shard.draining.wait().await;
            None
        };
        let Some(stream) = accepted.or(draining).await else { return };
        // Nobody answers a client that has gone meanwhile.
        if let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) {
            start(&shard, stream, Ends { peer, local }, Bytes::new());
        }
    }
}

/// Goes on with a connection of another shard.
pub(crate) fn take_over(shard: &Rc<Shard>, moving: Moving) {
    let Moving { socket, ends, unread, arrived } = moving;
    start(shard, rt::net::attach(socket), ends, unread);
    drop(arrived);
}

fn start(shard: &Rc<Shard>, stream: rt::net::TcpStream, ends: Ends, unread: Bytes) {
    let shard = shard.clone();
    let entered = Entered::new(&shard);
    rt::spawn(async move {
        let upgraded = connection(&shard, stream, ends, unread).await;
        drop(entered);
        if let Some(wire) = upgraded {
            speak(&shard, wire).await;
        }
    });
}

/// Counts one WebSocket, also when its task ends with a panic.
struct Speaking(Rc<Shard>);

impl Drop for Speaking {
    fn drop(&mut self) {
        self.0.wires.set(self.0.wires.get() - 1);
    }
}

/// Pumps a WebSocket until it is over.
async fn speak(shard: &Rc<Shard>, wire: Wire<ClientSocket>) {
    shard.wires.set(shard.wires.get() + 1);
    let _guard = Speaking(shard.clone());
    wire.run(shard.closing.wait()).await;
}

/// What becomes of a connection.
enum Served {
    /// Nothing is left of it.
    Over,
    /// It speaks WebSocket.
    Speaks(Wire<ClientSocket>),
    /// Another shard is nearer to what it asks for. What was read of its next request goes along.
    Leaves(u16, rt::net::TcpStream, Bytes),
}

/// Serves one connection until it is over or another shard has it. What is left of it, if it speaks
/// WebSocket from then on.
async fn connection(
    shard: &Rc<Shard>,
    mut stream: rt::net::TcpStream,
    ends: Ends,
    mut unread: Bytes,
) -> Option<Wire<ClientSocket>> {
    loop {
        match serve_here(shard, stream, ends, unread).await {
            Served::Over => return None,
            Served::Speaks(wire) => return Some(wire),
            Served::Leaves(to, left, rest) => {
                match follow::leave(shard, to, left, ends, rest).await {
                    Ok(()) => return None,
                    Err(back) => (stream, unread) = back,
                }
            }
        }
    }
}

async fn serve_here(
    shard: &Rc<Shard>,
    stream: rt::net::TcpStream,
    ends: Ends,
    unread: Bytes,
) -> Served {
    // A write may take this long twice: at its end the kernel may have room for a little more. It
    // cannot fail, as the time is not zero.
    let _no_limit = stream.set_write_timeout(Some(STALL_LIMIT));
    let course = Course::new(shard);
    let switched: Rc<RefCell<Option<Duplex>>> = Rc::default();
    let connection =
        Rc::new(Connection { shard: shard.clone(), ends, course, switching: switched.clone() });
    let course = connection.course.clone();
    let service = service_fn(move |request| {
        let connection = connection.clone();
        // At once: hyper may go on reading before the future below begins.
        connection.course.stays();
        // In a box, as a connection that is taken apart may not be pinned.
        Box::pin(
            async move { Ok::<_, std::convert::Infallible>(respond(&connection, request).await) },
        )
    });
    let socket = ClientSocket::new(stream, unread, course.clone());
    let mut served = http1().serve_connection(HyperIo::new(socket), service);
    let finished = async {
        let over = poll_fn(|cx| match served.poll_without_shutdown(cx) {
            Poll::Ready(end) => Poll::Ready(Some(end)),
            Poll::Pending if course.leaves().is_some() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        if let Some(end) = over.await {
            tell_if_ours(end);
        }
        true
    };
    let draining = async {
        shard.draining.wait().await;
        false
    };
    if !finished.or(draining).await {
        course.stays();
        Pin::new(&mut served).graceful_shutdown();
        let finished = async {
            tell_if_ours(poll_fn(|cx| served.poll_without_shutdown(cx)).await);
            true
        };
        let cut = async {
            shard.cutting.wait().await;
            rt::sleep(CUT_GRACE).await;
            false
        };
        if !finished.or(cut).await {
            return Served::Over;
        }
    }
    let parts = served.into_parts();
    let mut socket = parts.io.into_inner();
    if let Some(to) = course.leaves() {
        let (stream, last) = socket.into_parts();
        let unread =
            if parts.read_buf.is_empty() { last } else { [parts.read_buf, last].concat().into() };
        return Served::Leaves(to, stream, unread);
    }
    let Some(end) = switched.take() else {
        let _closed = poll_fn(|cx| Pin::new(&mut socket).poll_close(cx)).await;
        return Served::Over;
    };
    // A client that vanished without a word would keep it for ever.
    let _unnoticed = rt::net::notice_dead_host(socket.stream(), SILENCE_LIMIT);
    Served::Speaks(Wire::new(socket, Role::Server, &parts.read_buf, end))
}

/// Without `pipeline_flush`: with it, an answer stays in the buffer for as long as a part of a further
/// request is there, and the answer to a malformed one is never sent.
fn http1() -> hyper::server::conn::http1::Builder {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .keep_alive(true)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEADER_BYTES_MAX + URI_BYTES_MAX)
        .timer(HyperTimer)
        .header_read_timeout(HEAD_LIMIT);
    builder
}

/// How a connection ended. Nearly always that is the client's: a reset, a malformed head (answered by
/// hyper), a stall. But when the application fails in the middle of a body, its client sees no more
/// than the end of the connection.
fn tell_if_ours(served: hyper::Result<()>) {
    use std::error::Error as _;
    let Err(error) = served else { return };
    if let Some(BodyError(failure)) = error.source().and_then(|source| source.downcast_ref()) {
        rt::log!("Uncaught {failure} (in the body of a response)");
    }
}

/// What the requests of one connection have in common.
struct Connection {
    shard: Rc<Shard>,
    ends: Ends,
    course: Rc<Course>,
    switching: Rc<RefCell<Option<Duplex>>>,
}

async fn respond(connection: &Connection, request: Request<Incoming>) -> Response<HttpBody> {
    let shard = &connection.shard;
    if request.uri().path() == HEALTH_PATH {
        return shard.status.health_response();
    }
    if shard.facts.is_dev && request.uri().path() == SCHEDULED_PATH {
        return scheduled(shard, request.uri().query().unwrap_or_default()).await;
    }
    let started = rt::mono_us();
    let is_head = request.method() == Method::HEAD;
    let line = shard.facts.log_requests.then(|| {
        let target = request.uri().path_and_query().map_or("/", |path| path.as_str());
        format!("{} {}", request.method(), target)
    });
    let handshake = handshake::Asked::read(&request);
    let goes_on = goes_on(&request);
    let response = match asked(request, connection.ends).await {
        Ok(asked) => {
            let may_leave = goes_on && matches!(asked.body, Flow::Empty | Flow::Bytes(_));
            match shard.fetch_worker(asked, connection.course.clone()).await {
                Ok(Answered { web_socket: Some(end), headers, .. }) => {
                    switch(handshake, headers, end, &connection.switching)
                }
                Ok(answered) => {
                    let mut response = http_response(answered, is_head);
                    if may_leave && connection.course.answered(shard) {
                        response.body_mut().is_last_of(connection.course.clone());
                    }
                    response
                }
                Err(error) => failed(shard, &error),
            }
        }
        Err((status, text)) => refused(status, text),
    };
    if let Some(line) = line {
        let took = celld_core::time::Micros::from_micros(rt::mono_us() - started);
        rt::log!("{line} {} ({took})", response.status().as_u16());
    }
    response
}

/// Whether the connection is there for more requests.
fn goes_on(request: &Request<Incoming>) -> bool {
    let mut options = request.headers().get_all(CONNECTION).iter();
    let says_nothing = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"keep-alive");
    request.version() == http::Version::HTTP_11 && options.all(says_nothing)
}

/// Runs the Worker's `scheduled` by hand, as `wrangler dev` does: `?cron=…&time=<ms>`.
async fn scheduled(shard: &Rc<Shard>, query: &str) -> Response<HttpBody> {
    let value = |name: &str| {
        url::form_urlencoded::parse(query.as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    };
    let time = match value("time").map(|text| text.parse::<f64>()) {
        None => rt::wall_ms() as f64,
        Some(Ok(time)) => time,
        Some(Err(_)) => {
            let text = "`time` is milliseconds since 1970\n".to_owned();
            return plain(StatusCode::BAD_REQUEST, text);
        }
    };
    match shard.run_scheduled(value("cron").unwrap_or_default(), time).await {
        Ok(_) => plain(StatusCode::OK, "ok\n".into()),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, full_text(&error)),
    }
}

fn full_text(error: &celld_v8host::Failure) -> String {
    format!("{}: {}\n{}\n", error.name, error.message, error.stack)
}

/// The answer that switches to WebSocket, if the client has asked as it must.
fn switch(
    asked: Option<handshake::Asked>,
    headers: http::HeaderMap,
    end: Duplex,
    switching: &RefCell<Option<Duplex>>,
) -> Response<HttpBody> {
    match asked.map(|asked| asked.accept()) {
        Some(Ok(accept)) => {
            *switching.borrow_mut() = Some(end);
            handshake::switch(headers, accept, HttpBody::new(Flow::Empty))
        }
        Some(Err((status, text))) => plain(status, text),
        // The Worker has been told so before.
        None => plain(StatusCode::UPGRADE_REQUIRED, "not a WebSocket\n".into()),
    }
}

fn failed(shard: &Rc<Shard>, error: &celld_v8host::Failure) -> Response<HttpBody> {
    let status = if error.overloaded || error.retryable {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        // The client is told nothing of it, so this is the only place where it is seen.
        rt::log!("Uncaught {error}");
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let shown =
        if shard.facts.is_dev { full_text(error) } else { format!("{}\n", public_text(error)) };
    plain(status, shown)
}

/// What a stranger may read of a failure: nothing of the application's own text.
fn public_text(error: &celld_v8host::Failure) -> &'static str {
    match (error.overloaded, error.retryable) {
        (true, _) => "the application is overloaded, try again later",
        (false, true) => "the request could not be completed, try again",
        (false, false) => "the application failed",
    }
}

/// Turns hyper's request into ours, or says with which status it is refused.
async fn asked(request: Request<Incoming>, ends: Ends) -> Result<Asked, Refusal> {
    let (mut parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if target.len() > URI_BYTES_MAX {
        let text = format!("the URI is longer than {URI_BYTES_MAX} bytes\n");
        return Err((StatusCode::URI_TOO_LONG, text));
    }
    let header_bytes: usize =
        parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if header_bytes > HEADER_BYTES_MAX {
        let text = format!("the headers are larger than {HEADER_BYTES_MAX} bytes\n");
        return Err((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, text));
    }
    // Hyper takes any list of codings that ends in `chunked`, and undoes only that one.
    let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    if !codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        let text = "the only transfer coding that is known is chunked\n".to_owned();
        return Err((StatusCode::BAD_REQUEST, text));
    }
    let url = url_of(&mut parts, ends.local)?;
    // The address that the kernel saw; what a client claims is overwritten.
    let ip = HeaderValue::from_str(&ends.peer.ip().to_string());
    parts.headers.insert("cf-connecting-ip", ip.expect("an address is plain text"));
    let body = read_body(body).await?;
    Ok(Asked {
        is_rpc: false,
        method: parts.method,
        url,
        headers: parts.headers,
        body,
        redirect: Redirect::Manual,
    })
}

async fn read_body(body: Incoming) -> Result<Flow, Refusal> {
    if body.is_end_stream() {
        return Ok(Flow::Empty);
    }
    match body.size_hint().exact() {
        Some(length) if length > BODY_BYTES_MAX => {
            let text = format!("the body is larger than {BODY_BYTES_MAX} bytes\n");
            Err((StatusCode::PAYLOAD_TOO_LARGE, text))
        }
        Some(length) if length <= WHOLE_BODY_MAX => {
            let whole = rt::timeout(HEAD_LIMIT, body.collect()).await;
            let slow = |_| (StatusCode::REQUEST_TIMEOUT, "the body came too slowly\n".to_owned());
            let cut = |_| (StatusCode::BAD_REQUEST, "the body was cut off\n".to_owned());
            Ok(Flow::Bytes(whole.map_err(slow)?.map_err(cut)?.to_bytes()))
        }
        length => Ok(Flow::Stream(
            Box::pin(SocketBody::of_client(body, BODY_BYTES_MAX, STALL_LIMIT)),
            length,
        )),
    }
}

/// Headers that belong to a connection; the one to the client is ours.
fn is_hop_by_hop(name: &http::HeaderName) -> bool {
    name == CONNECTION || name == TRANSFER_ENCODING || name == "keep-alive" || name == "upgrade"
}

fn http_response(answered: Answered, is_head: bool) -> Response<HttpBody> {
    let Answered { status, status_text, mut headers, body, encoding, .. } = answered;
    let body = recode(body, &headers, encoding, Encoding::Manual);
    let Ok(status) = StatusCode::from_u16(status) else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "the status is not one of HTTP\n".into());
    };
    if headers.keys().any(is_hop_by_hop) {
        for name in ["connection", "transfer-encoding", "keep-alive", "upgrade"] {
            headers.remove(name);
        }
    }
    // The body says how long it is. Without one, the header tells of the body that a GET would get.
    let tells_of_another = matches!(body, Flow::Empty) && (is_head || status == 304);
    if !tells_of_another {
        headers.remove(CONTENT_LENGTH);
    }
    let mut response = Response::new(HttpBody::new(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    // Without a phrase of the Worker's hyper writes the usual one, and `<none>` where there is none.
    let usual = status.canonical_reason();
    let is_usual = usual.is_some_and(|usual| status_text.is_empty() || status_text == usual);
    if !is_usual && let Ok(phrase) = ReasonPhrase::try_from(status_text.into_bytes()) {
        response.extensions_mut().insert(phrase);
    }
    response
}

/// After what is malformed nothing on the connection can be trusted.
fn refused(status: StatusCode, text: String) -> Response<HttpBody> {
    let mut response = plain(status, text);
    if status == StatusCode::BAD_REQUEST {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

pub(crate) fn plain(status: StatusCode, text: String) -> Response<HttpBody> {
    let mut response = Response::new(HttpBody::new(Flow::Bytes(Bytes::from(text))));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
