//! Two nodes for tests: a server on an executor of its own, and what it answers.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use celld_core::fleet::{FleetId, FleetRecord, FleetSecret};
use celld_core::node::{NodeId, SessionId};
use celld_peer::identity::{Identity, Principal, Role};
use celld_peer::probe::ProbeReply;
use celld_peer::tunnel::{Received, SocketReader, SocketWriter};
use celld_peer::{
    Address, Answer, Ask, Call, CallError, CallKind, Code, Link, PROTOCOL, Patience, Refusal,
    Server,
};
use celld_rt as rt;

/// Sends back what it gets.
pub const ECHO: CallKind = CallKind(10);
/// Never answers, and reads nothing; ends when the caller has gone.
pub const HANG: CallKind = CallKind(11);
/// Is refused with the code in its head.
pub const REFUSED: CallKind = CallKind(12);
/// Ends without an answer.
pub const DROPPED: CallKind = CallKind(13);
/// Panics.
pub const PANICS: CallKind = CallKind(14);
/// A body without an end.
pub const FLOOD: CallKind = CallKind(15);
/// Answers at once, and does not read.
pub const HASTY: CallKind = CallKind(16);
/// Sends back each message of a WebSocket, and its close.
pub const SOCKET: CallKind = CallKind(17);
/// Reads its body to its end, and says how long it was or how it broke.
pub const LENGTH: CallKind = CallKind(18);
/// Answers when its body has ended, with the first of three pieces; then breaks off.
pub const BREAKS: CallKind = CallKind(19);

/// Of [`FLOOD`].
pub const FLOOD_PIECE: usize = 50_000;

/// What the handlers of a server have seen.
#[derive(Default)]
pub struct Seen {
    pub begun: AtomicU64,
    pub running: AtomicU64,
    pub gone: AtomicU64,
    /// Bytes that [`FLOOD`] could send.
    pub flooded: AtomicU64,
}

pub fn get(number: &AtomicU64) -> u64 {
    number.load(Ordering::SeqCst)
}

pub fn fleet(n: u8) -> FleetRecord {
    FleetRecord { fleet: FleetId::drawn(n.into()), secret: FleetSecret::drawn([n; 32]) }
}

pub fn principal(name: &str) -> Principal {
    let session = SessionId::parse(&"7e".repeat(16)).expect("32 digits");
    Principal { role: Role::Node, node: NodeId::parse(name).expect("a name"), session }
}

pub fn identity(fleet: &FleetRecord, name: &str) -> Rc<Identity> {
    Rc::new(Identity::new(fleet, principal(name)).expect("certificates"))
}

/// A server that runs.
pub struct Node {
    pub at: SocketAddr,
    pub seen: Arc<Seen>,
    stop: Option<rt::oneshot::Sender<Stop>>,
    thread: Option<JoinHandle<Option<Ended>>>,
}

pub enum Stop {
    Drain,
    Cut,
}

/// What a server knows at its end.
#[derive(Debug)]
pub struct Ended {
    pub connections: usize,
    pub refused: u64,
    pub why_refused: String,
}

impl Node {
    pub fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), 1, Patience::NORMAL)
    }

    /// Of another fleet.
    pub fn start_foreign() -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), 2, Patience::NORMAL)
    }

    pub fn start_at(at: SocketAddr, fleet_number: u8, patience: Patience) -> Self {
        let (stop, stopped) = rt::oneshot::channel();
        let (tell, told) = sync_channel(1);
        let seen = Arc::new(Seen::default());
        let seen_there = seen.clone();
        let make = move || async move {
            let listener = rt::net::listen(at).expect("a port");
            tell.send(listener.local_addr().expect("an address")).expect("the test waits");
            let server = Server::with_patience(identity(&fleet(fleet_number), "server"), patience);
            let serving = server.clone();
            rt::spawn(async move {
                serving.serve(listener, move |call| answer(call, seen_there.clone())).await;
            });
            match stopped.await {
                Ok(Stop::Drain) => server.drain().await,
                Ok(Stop::Cut) | Err(_) => server.cut(),
            }
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            while server.connections() > 0 && std::time::Instant::now() < deadline {
                rt::sleep(Duration::from_millis(5)).await;
            }
            let refused = server.refused();
            let why_refused = refused.last.map(|cause| cause.to_string()).unwrap_or_default();
            let connections = server.connections();
            Ended { connections, refused: refused.count, why_refused }
        };
        let thread = rt::spawn_thread("server", rt::Placement::Floating, make);
        let thread = Some(thread.expect("a thread"));
        Self { at: told.recv().expect("a server"), seen, stop: Some(stop), thread }
    }

    pub fn address(&self) -> Address {
        address(self.at)
    }

    /// To it, from a node of its fleet.
    pub fn link(&self) -> Link {
        Link::new(identity(&fleet(1), "client"), self.address())
    }

    pub fn tell(&mut self, stop: Stop) {
        if let Some(tell) = self.stop.take() {
            assert!(tell.send(stop).is_ok(), "the server runs");
        }
    }

    pub fn stop(mut self, stop: Stop) -> Ended {
        self.tell(stop);
        self.ended()
    }

    pub fn ended(mut self) -> Ended {
        let thread = self.thread.take().expect("joined once");
        thread.join().expect("no panic").expect("an executor")
    }
}

pub fn address(at: SocketAddr) -> Address {
    let Principal { node, session, .. } = principal("server");
    Address { node, session, host: at.ip().to_string(), port: at.port() }
}

pub fn ask(kind: CallKind, head: impl Into<Bytes>) -> Ask {
    Ask { kind, head: head.into(), wait: None }
}

/// A whole call whose body fits.
pub async fn call(
    link: &Link,
    kind: CallKind,
    head: &'static str,
    body: Bytes,
) -> Result<(Bytes, Bytes), CallError> {
    let (asked, mut writer) = link.ask_with_body(ask(kind, head)).await?;
    writer.send(body);
    writer.finish();
    whole(asked.answer().await?).await
}

pub async fn whole(answer: Answer) -> Result<(Bytes, Bytes), CallError> {
    answer.whole(1 << 26).await.map_err(|error| match error {
        celld_peer::WholeError::Call(error) => error,
        celld_peer::WholeError::TooLong(_) => panic!("{error}"),
    })
}

/// Until `is_so`, for at most half a minute.
pub async fn until(is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "it does not come to that");
        rt::sleep(Duration::from_millis(2)).await;
    }
}

struct Running(Arc<Seen>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

pub async fn answer(call: Call, seen: Arc<Seen>) {
    seen.begun.fetch_add(1, Ordering::SeqCst);
    seen.running.fetch_add(1, Ordering::SeqCst);
    let _running = Running(seen.clone());
    let Call { kind, head, body, reply, .. } = call;
    match kind {
        ECHO => echo(head, body, reply).await,
        HANG => {
            let _error = reply.gone().await;
            seen.gone.fetch_add(1, Ordering::SeqCst);
        }
        REFUSED => {
            let code = Code::ALL[usize::from(head[0])];
            reply.refuse(Refusal::new(code, "as it was asked"));
        }
        DROPPED => drop(reply),
        PANICS => panic!("a panic that was asked for"),
        FLOOD => {
            let Ok(mut writer) = reply.send_with_body(head) else { return };
            let piece = Bytes::from(vec![7; FLOOD_PIECE]);
            while writer.write(piece.clone()).await.is_ok() {
                seen.flooded.fetch_add(FLOOD_PIECE as u64, Ordering::SeqCst);
            }
            seen.gone.fetch_add(1, Ordering::SeqCst);
        }
        HASTY => reply.send(head).expect("a short head"),
        SOCKET => {
            let writer = SocketWriter::new(reply.send_with_body(head).expect("a short head"));
            socket(SocketReader::new(body), writer, &seen).await;
        }
        LENGTH => {
            let mut body = body;
            let mut len = 0;
            let told = loop {
                match body.next().await {
                    Ok(Some(piece)) => len += piece.len(),
                    Ok(None) => break format!("{len} bytes"),
                    Err(error) => break error.code().to_owned(),
                }
            };
            // A caller that is gone does not hear it.
            seen.gone.fetch_add(u64::from(!told.ends_with("bytes")), Ordering::SeqCst);
            reply.send(Bytes::from(told)).expect("a short head");
        }
        BREAKS => {
            let mut writer = reply.send_with_body(head).expect("a short head");
            let _piece = body.whole(1 << 20).await.expect("a short body");
            writer.write(Bytes::from_static(b"first")).await.expect("the caller reads");
            writer.flushed().await.expect("the caller reads");
            writer.abort("the disk is on fire");
        }
        CallKind::PROBE => {
            let Principal { node, session, .. } = principal("server");
            let probe = ProbeReply {
                protocol: PROTOCOL,
                version: "0.1.0".into(),
                node,
                session,
                shards: 1,
                resident_cells: 2,
                load_permille: 3,
                restoring: 4,
                is_draining: false,
            };
            reply.send(probe.encode().expect("short")).expect("a short head");
        }
        _ => reply.refuse(Refusal::new(Code::Unsupported, "no such call")),
    }
}

async fn echo(head: Bytes, mut body: celld_peer::BodyReader, reply: celld_peer::Reply) {
    if body.is_at_end() {
        return reply.send(head).expect("the head was short enough before");
    }
    let Ok(mut writer) = reply.send_with_body(head) else { return };
    loop {
        match body.next().await {
            Ok(Some(piece)) => {
                if writer.write(piece).await.is_err() {
                    return;
                }
            }
            Ok(None) => return writer.finish(),
            Err(_) => return,
        }
    }
}

async fn socket(mut reader: SocketReader, mut writer: SocketWriter, seen: &Seen) {
    loop {
        match reader.next().await {
            Some(Received::Message(message)) => {
                if writer.send(&message).await.is_err() {
                    return;
                }
            }
            Some(Received::Closed(close)) => {
                assert!(reader.next().await.is_none(), "one close");
                let _gone = writer.close(close).await;
                return;
            }
            Some(Received::Broken(_)) => {
                assert!(reader.next().await.is_none(), "one end");
                seen.gone.fetch_add(1, Ordering::SeqCst);
                return writer.break_off("the other side broke");
            }
            None => unreachable!("the close comes before"),
        }
    }
}
