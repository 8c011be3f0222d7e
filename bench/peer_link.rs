//! What does a request cost that is forwarded to another node? Round trips of calls on one link,
//! with TLS, between two executors of this process.
//!
//! The server answers at once, so what is measured is the way: two pinned cores do all of it. Each
//! of `in flight` tasks asks again when it is answered. CPU is that of both sides.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use celld_bench::args::Args;
use celld_bench::report::{Report, Unit};
use celld_bench::{histogram, record};
use celld_core::cell::CellId;
use celld_core::epoch::{Epoch, FencingToken};
use celld_core::fleet::{FleetId, FleetRecord, FleetSecret};
use celld_core::node::{NodeId, SessionId};
use celld_peer::fetch::{Content, FetchHead, FetchReply, ResponseHead};
use celld_peer::identity::{Identity, Principal, Role};
use celld_peer::{Address, Ask, Call, CallKind, Link, Server};
use celld_rt as rt;
use hdrhistogram::Histogram;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// Nothing but a frame in each direction.
const EMPTY: CallKind = CallKind(100);
const BODY_BYTES: usize = 1_024;

/// What is asked.
#[derive(Clone, Copy, Debug)]
enum What {
    /// No head, no body.
    Empty,
    /// A request to a cell with headers and a body, and the same back.
    Fetch,
}

struct Run {
    latency: Histogram<u64>,
    answered: u64,
    cpu_us: f64,
}

fn main() -> Result<()> {
    let args = Args::read();
    let mut report =
        Report::new("peer_link", format!("one link, TLS 1.3, {BODY_BYTES} B bodies of fetches"));
    let at = start_server()?;
    for _ in 0..args.runs() {
        for (what, name) in [(What::Empty, "empty call"), (What::Fetch, "fetch")] {
            for in_flight in [1, 64] {
                let run = measure(at, what, in_flight, args.time())?;
                let row = format!("{name}, {in_flight} in flight");
                let rate = run.answered as f64 / args.time().as_secs_f64();
                report.add(&row, "rate", Unit::PerSecond, rate);
                report.add_latency(&row, &run.latency);
                let cpu = run.cpu_us / run.answered.max(1) as f64;
                report.add(&row, "CPU", Unit::Micros, cpu);
            }
        }
    }
    report.print()
}

/// Which core a side has, where there are two.
fn placement(side: usize) -> rt::Placement {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => rt::Placement::Floating,
        _ => rt::Placement::Core(side),
    }
}

fn identity(name: &str) -> Result<(Rc<Identity>, Principal)> {
    let fleet = FleetRecord { fleet: FleetId::drawn(1), secret: FleetSecret::drawn([1; 32]) };
    let node = NodeId::parse(name).context("a name")?;
    let me = Principal { role: Role::Node, node, session: session()? };
    Ok((Rc::new(Identity::new(&fleet, me.clone())?), me))
}

fn session() -> Result<SessionId> {
    SessionId::parse(&"5e".repeat(16)).context("a session")
}

/// It runs until the process ends.
fn start_server() -> Result<SocketAddr> {
    let (tell, told) = sync_channel(1);
    let make = move || async move {
        let serve = async {
            let listener = rt::net::listen("127.0.0.1:0".parse()?)?;
            let at = listener.local_addr().map_err(|error| anyhow!("{error}"))?;
            tell.send(at)?;
            Server::new(identity("server")?.0).serve(listener, answer).await;
            anyhow::Ok(())
        };
        if let Err(error) = serve.await {
            eprintln!("peer_link: the server ended: {error}");
        }
    };
    rt::spawn_thread("server", placement(1), make)?;
    told.recv().context("the server did not start")
}

async fn answer(call: Call) {
    if call.kind == EMPTY {
        let _gone = call.reply.send(Bytes::new());
        return;
    }
    let answered = async {
        let request = FetchHead::decode(&call.head)?;
        let body = call.body.whole(1 << 20).await?;
        let reply = FetchReply::Response(ResponseHead {
            status: 200,
            status_text: String::new(),
            headers: request.headers,
            content: Content::Body(Some(body.len() as u64)),
        });
        call.reply.send_whole(reply.encode()?, body)?;
        anyhow::Ok(())
    };
    if let Err(error) = answered.await {
        eprintln!("peer_link: no answer: {error}");
    }
}

fn measure(at: SocketAddr, what: What, in_flight: usize, time: Duration) -> Result<Run> {
    let make = move || async move {
        let (identity, me) = identity("client")?;
        let node = NodeId::parse("server").context("a name")?;
        let (host, port) = (at.ip().to_string(), at.port());
        let link = Link::new(identity, Address { node, session: me.session, host, port });
        // Opens the connection, and warms it up.
        for _ in 0..100 {
            ask(&link, what).await?;
        }
        let (cpu, end) = (cpu_us(), Instant::now() + time);
        let tasks: Vec<_> =
            (0..in_flight).map(|_| rt::spawn_joined(ask_until(link.clone(), what, end))).collect();
        let mut run = Run { latency: histogram(), answered: 0, cpu_us: 0.0 };
        for task in tasks {
            let latency = task.join().await.context("a task ended")??;
            run.answered += latency.len();
            run.latency.add(&latency)?;
        }
        run.cpu_us = cpu_us() - cpu;
        anyhow::Ok(run)
    };
    let client = rt::spawn_thread("client", placement(0), make)?;
    client.join().map_err(|_| anyhow!("the client panicked"))?.context("no executor")?
}

async fn ask_until(link: Link, what: What, end: Instant) -> Result<Histogram<u64>> {
    let mut latency = histogram();
    loop {
        let begin = Instant::now();
        if begin >= end {
            return Ok(latency);
        }
        ask(&link, what).await?;
        record(&mut latency, begin.elapsed());
    }
}

async fn ask(link: &Link, what: What) -> Result<()> {
    match what {
        What::Empty => {
            let ask = Ask { kind: EMPTY, head: Bytes::new(), wait: None };
            link.ask(ask).await?.answer().await?;
        }
        What::Fetch => {
            let ask = Ask { kind: CallKind::FETCH, head: request()?.encode()?, wait: None };
            let (asked, mut writer) = link.ask_with_body(ask).await?;
            writer.send(Bytes::from_static(&[7; BODY_BYTES]));
            writer.finish();
            let (head, body) = asked.answer().await?.whole(1 << 20).await?;
            let FetchReply::Response(_) = FetchReply::decode(&head)? else {
                return Err(anyhow!("it failed"));
            };
            anyhow::ensure!(body.len() == BODY_BYTES, "{} bytes came back", body.len());
        }
    }
    Ok(())
}

/// As a browser sends it.
fn request() -> Result<FetchHead> {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
        ("accept-language", "en-GB,en;q=0.5"),
        ("content-type", "application/json"),
        ("cookie", "session=0123456789abcdef0123456789abcdef"),
        ("host", "example.com"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Ok(FetchHead {
        cell: CellId::new("worker.Room", &"0f".repeat(32)).context("a cell")?,
        class: "Room".into(),
        name: Some("lobby".into()),
        token: Some(FencingToken { epoch: Epoch::FIRST, session: session()? }),
        method: Method::POST,
        url: "https://example.com/rooms/lobby/messages?after=100".into(),
        headers,
        content: Content::Body(Some(BODY_BYTES as u64)),
    })
}

/// Of all threads of this process so far.
fn cpu_us() -> f64 {
    // SAFETY: `rusage` is plain numbers, and the call fills the one that it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}
