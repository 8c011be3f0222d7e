//! A client that speaks WebSocket, and what the rooms say of themselves over HTTP.

use std::net::TcpStream;
use std::time::Duration;

use tungstenite::protocol::WebSocketConfig;
use tungstenite::protocol::frame::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Error, Message, WebSocket};

use super::support::node::Node;
use super::support::wait_for;

/// Longer than anything that works takes on a machine that is busy with other tests.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for what should not come.
pub const SILENCE: Duration = Duration::from_millis(700);

pub type Socket = WebSocket<TcpStream>;

pub fn config() -> WebSocketConfig {
    WebSocketConfig::default().max_message_size(Some(80 << 20)).max_frame_size(Some(80 << 20))
}

pub fn stream(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.address()).expect("a connection");
    stream.set_nodelay(true).expect("an open socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("an open socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("an open socket");
    stream
}

/// A WebSocket, or why there is none.
pub fn try_open(node: &Node, path: &str) -> Result<Socket, String> {
    let request = format!("ws://{}{path}", node.address());
    tungstenite::client::client_with_config(request, stream(node), Some(config()))
        .map(|(socket, _)| socket)
        .map_err(|error| error.to_string())
}

pub fn open(node: &Node, path: &str) -> Socket {
    try_open(node, path).unwrap_or_else(|error| panic!("{path} is no WebSocket: {error}"))
}

pub fn say(socket: &mut Socket, text: &str) {
    socket.send(Message::text(text)).expect("an open socket");
}

pub fn hear(socket: &mut Socket) -> String {
    match socket.read().expect("a message") {
        Message::Text(text) => text.to_string(),
        other => panic!("not a text: {other:?}"),
    }
}

pub fn ask(socket: &mut Socket, text: &str) -> String {
    say(socket, text);
    hear(socket)
}

/// Asserts that nothing comes for a while.
pub fn hears_nothing(socket: &mut Socket, why: &str) {
    socket.get_ref().set_read_timeout(Some(SILENCE)).expect("an open socket");
    let early = socket.read();
    assert!(early.is_err(), "heard {early:?} {why}");
    socket.get_ref().set_read_timeout(Some(PATIENCE)).expect("an open socket");
}

/// Reads up to the Close of the node, answers it, and waits for the end of the connection.
pub fn closed(socket: &mut Socket) -> (u16, String) {
    let mut close = None;
    loop {
        match socket.read() {
            Ok(Message::Close(frame)) => {
                assert!(close.is_none(), "a second Close");
                close = Some(frame.map_or((1005, String::new()), |frame| {
                    (frame.code.into(), frame.reason.to_string())
                }));
            }
            Ok(_) => assert!(close.is_none(), "a message after the Close"),
            Err(Error::ConnectionClosed) => return close.expect("a Close"),
            Err(error) => panic!("after {close:?}: {error}"),
        }
    }
}

pub fn close(socket: &mut Socket, code: u16, reason: &str) {
    let frame = CloseFrame { code: CloseCode::from(code), reason: reason.into() };
    socket.close(Some(frame)).expect("an open socket");
}

/// What a room has heard of Closes and errors.
pub fn events(node: &Node, room: &str) -> Vec<String> {
    let text = node.ask("GET", &format!("/{room}/events")).text();
    text.lines().map(str::to_owned).collect()
}

pub fn wait_for_events(node: &Node, room: &str, count: usize) -> Vec<String> {
    wait_for("events of a room", PATIENCE, || {
        let events = events(node, room);
        (events.len() >= count).then_some(events)
    })
}

/// What the node has in memory now, in bytes.
pub fn memory(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") << 10
}
