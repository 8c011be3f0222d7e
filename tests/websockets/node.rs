//! One node, whose shards are several, so that a socket and its room may be on two of them.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use tungstenite::client::IntoClientRequest as _;
use tungstenite::{Error, Message};

use super::client::{
    PATIENCE, Socket, ask, close, closed, events, hear, open, say, stream, wait_for_events,
};
use super::exchange;
use super::support::hold::Hold;
use super::support::node::{Plan, Site, worker_dir};
use super::support::wait_for;

fn site() -> Site {
    Site::of("sockets")
}

fn plan(site: &Site) -> Plan {
    site.node("n").flag("--shards", "2")
}

/// Rooms, and how they take sockets.
const ROOMS: [(&str, &str); 2] = [("a", "plain"), ("b", "hib")];
const KINDS: [&str; 3] = ["/worker/echo", "/a/plain", "/b/hib"];

#[test]
fn messages_of_every_kind_and_size_come_back() {
    let site = site();
    let node = plan(&site).start();
    for path in KINDS {
        exchange::kinds_and_sizes(&node, path);
    }
}

#[test]
fn ten_thousand_messages_keep_their_order_in_both_directions() {
    let site = site();
    let node = plan(&site).start();
    // Rooms on both shards, and connections on both.
    for path in ["/worker/echo", "/a/plain", "/b/plain", "/c/hib", "/d/hib"] {
        exchange::order_of_echoes(&node, path);
        if path != "/worker/echo" {
            exchange::order_of_a_room(&node, path);
        }
    }
}

#[test]
fn a_close_from_either_side_is_answered_and_told_once() {
    let site = site();
    let node = plan(&site).start();
    for (room, kind) in ROOMS {
        exchange::closes(&node, room, kind);
    }
    // Half open: the room goes on after the Close of its client.
    let mut socket = open(&node, "/c/plain?half");
    say(&mut socket, "slow 300");
    close(&mut socket, 1000, "");
    assert_eq!(hear(&mut socket), "slow");
}

#[test]
fn what_breaks_the_protocol_ends_with_its_code_and_is_told_as_an_error() {
    let site = site();
    let node = plan(&site).start();
    let masked = |first: u8, payload: &[u8]| {
        let mut bytes = vec![first, 0x80 | u8::try_from(payload.len()).expect("short"), 0, 0, 0, 0];
        bytes.extend_from_slice(payload);
        bytes
    };
    let cases = [
        (1007, masked(0x81, &[0xff, 0xfe])),
        (1002, vec![0x81, 0x01, b'a']),
        (1002, masked(0xf1, b"a")),
        (1002, masked(0x83, b"a")),
        (1002, masked(0x88, &[0x03, 0xed])),
        // A frame that says it has 40 MiB.
        (1009, vec![0x82, 0xff, 0, 0, 0, 0, 0x02, 0x80, 0, 0, 0, 0, 0, 0]),
    ];
    for (room, kind) in ROOMS {
        for (n, (code, bytes)) in cases.iter().enumerate() {
            let mut socket = open(&node, &format!("/{room}/{kind}"));
            socket.get_mut().write_all(bytes).expect("an open socket");
            assert_eq!(closed(&mut socket).0, *code, "{bytes:?}");
            // The client may hear of it before the room does.
            let event = &wait_for_events(&node, room, n + 1)[n];
            assert!(event.starts_with("error WebSocket protocol error"), "{event}");
            assert!(event.contains(&format!("statusCode = {code};")), "{event}");
        }
        assert_eq!(events(&node, room).len(), cases.len(), "room {room}");
    }
}

#[test]
fn requests_that_cannot_become_a_websocket_are_answered() {
    let site = site();
    let node = plan(&site).start();
    let refused =
        tungstenite::client::client(format!("ws://{}/a/refuse", node.address()), stream(&node));
    let Err(tungstenite::HandshakeError::Failure(Error::Http(response))) = refused else {
        panic!("not refused");
    };
    assert_eq!(response.status(), 403);
    // A Worker that answers a plain request with a WebSocket has failed.
    assert_eq!(node.ask("GET", "/a/hib").status, 500);
    let answer = |lines: &str| {
        let mut stream = stream(&node);
        let request = format!(
            "GET /a/hib HTTP/1.1\r\nhost: test\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n{lines}\r\n"
        );
        stream.write_all(request.as_bytes()).expect("an open socket");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    };
    let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    assert!(answer(key).starts_with("HTTP/1.1 426 "), "{}", answer(key));
    assert!(answer("sec-websocket-version: 13\r\n").starts_with("HTTP/1.1 400 "));
    assert!(answer(&format!("sec-websocket-version: 8\r\n{key}")).starts_with("HTTP/1.1 426 "));
    // The protocol that the application chose, and nothing that we do not speak.
    let mut request =
        format!("ws://{}/a/hib", node.address()).into_client_request().expect("a URL");
    for (name, value) in [
        ("sec-websocket-protocol", "chat, superchat"),
        ("sec-websocket-extensions", "permessage-deflate"),
    ] {
        request.headers_mut().insert(name, value.parse().expect("plain text"));
    }
    let (mut socket, response) =
        tungstenite::client::client(request, stream(&node)).expect("a WebSocket");
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    assert!(!response.headers().contains_key("sec-websocket-extensions"));
    assert_eq!(ask(&mut socket, "still fine"), "still fine");
}

#[test]
fn hibernatable_sockets_outlive_their_cell() {
    let site = site();
    let node = plan(&site).flag("--idle-evict-ms", "300").start();
    exchange::hibernation(&site, &node, &node, "a", Vec::new());
}

#[test]
fn a_node_that_dies_is_noticed_and_one_that_stops_says_so() {
    let site = site();
    let mut plan = plan(&site);
    let node = plan.start();
    let mut sockets: Vec<Socket> = KINDS.iter().map(|path| open(&node, path)).collect();
    for socket in &mut sockets {
        assert_eq!(ask(socket, "hello"), "hello");
    }
    node.kill();
    for socket in &mut sockets {
        let error = socket.read().expect_err("nobody is there");
        assert!(
            matches!(error, Error::Io(_) | Error::Protocol(_) | Error::ConnectionClosed),
            "{error}"
        );
    }
    let mut node = plan.flag("--idle-evict-ms", "300").start();
    let mut sockets: Vec<Socket> = KINDS.iter().map(|path| open(&node, path)).collect();
    for socket in &mut sockets {
        assert_eq!(ask(socket, "hello"), "hello");
    }
    // One cell rests, the others do not.
    std::thread::sleep(Duration::from_secs(2));
    let started = Instant::now();
    node.terminate();
    for (socket, path) in sockets.iter_mut().zip(KINDS) {
        let (code, reason) = closed(socket);
        assert_eq!((code, reason.as_str()), (1012, "the node is stopping"), "{path}");
    }
    let status = node.wait_for_end(PATIENCE);
    assert!(status.success(), "{status}: {}", node.log());
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert!(!node.log().contains("panicked"), "{}", node.log());
}

#[test]
fn a_cell_that_is_reset_closes_its_sockets_and_starts_anew() {
    let site = site();
    let node = plan(&site).start();
    for (room, kind) in ROOMS {
        let path = format!("/{room}/{kind}");
        let (mut one, mut two) = (open(&node, &path), open(&node, &path));
        assert_eq!(ask(&mut two, "life"), "life 1");
        say(&mut one, "abort");
        assert_eq!(closed(&mut one), (1012, "as was asked".into()));
        assert_eq!(closed(&mut two), (1012, "as was asked".into()));
        let mut again = open(&node, &path);
        assert_eq!(ask(&mut again, "life"), "life 2");
        if kind == "hib" {
            assert_eq!(ask(&mut again, "attached none"), "null  0");
        }
    }
}

/// A server outside that answers one request when it is told to.
fn reluctant_server() -> (String, std::sync::mpsc::SyncSender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (answer, may_answer) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        // It is closed before the head has come only if the test has failed.
        if may_answer.recv().is_ok() {
            let _read = stream.read(&mut [0; 4_096]);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nat last";
            stream.write_all(answer).expect("an open socket");
        }
    });
    (url, answer)
}

#[test]
fn a_new_version_closes_plain_sockets_when_nothing_else_runs_and_keeps_the_others() {
    let site = site();
    let node = plan(&site).start();
    let ([mut plain, mut hibernatable], mut busy) = (
        ROOMS.map(|(room, kind)| open(&node, &format!("/{room}/{kind}"))),
        open(&node, "/c/plain"),
    );
    let (url, answer) = reluctant_server();
    let mut request = node.client();
    request.send("GET", &format!("/c/relay?to={url}")).expect("a connection");
    for socket in [&mut plain, &mut hibernatable, &mut busy] {
        assert_eq!(ask(socket, "version"), "first");
    }

    let next = site.path().join("next");
    std::fs::create_dir(&next).expect("a directory");
    for file in ["index.js", "wrangler.jsonc"] {
        let text = std::fs::read_to_string(worker_dir("sockets").join(file)).expect("a file");
        let text = text.replace("const VERSION = \"first\"", "const VERSION = \"second\"");
        std::fs::write(next.join(file), text).expect("a file");
    }
    let output = site.deploy(&next).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // On both shards.
    wait_for("the new version", PATIENCE, || {
        (node.log().matches("serving version").count() == 2).then_some(())
    });
    let adopted = Instant::now();

    let why = (1012, "Durable Object reset because its code was updated.".to_owned());
    assert_eq!(closed(&mut plain), why);
    // Events that do not end are cut off after 30 s.
    assert!(adopted.elapsed() < Duration::from_secs(20), "{:?}", adopted.elapsed());
    assert_eq!(ask(&mut open(&node, "/a/plain"), "version"), "second");
    assert_eq!(ask(&mut hibernatable, "version"), "second");
    // What runs ends where it began, and the sockets beside it are open until then.
    assert_eq!(ask(&mut busy, "version"), "first");
    answer.send(()).expect("it waits");
    assert_eq!(request.receive().expect("an answer").good(), b"first at last");
    assert_eq!(closed(&mut busy), why);
    assert_eq!(ask(&mut open(&node, "/c/plain"), "version"), "second");
    assert!(!node.log().contains("panicked"), "{}", node.log());
}

#[test]
fn a_message_waits_for_the_proof_of_what_it_tells() {
    let site = site();
    let hold = Hold::build(site.path());
    let node = hold.load_into(plan(&site), "/ltx@/").start();
    for path in &KINDS[1..] {
        exchange::waits_for_its_proof(&hold, &node, path);
    }
}

#[test]
fn a_message_about_an_alarm_waits_for_its_entry_in_the_index() {
    let site = site();
    let hold = Hold::build(site.path());
    let node = hold.load_into(plan(&site), "/wake@/").start();
    for (room, kind) in ROOMS {
        exchange::waits_for_its_wake_entry(&hold, &node, room, kind);
    }
}

#[test]
fn a_client_that_does_not_read_costs_little_and_is_given_up() {
    let site = site();
    let node = plan(&site).start();
    for (room, kind) in ROOMS {
        exchange::a_deaf_client(&node, &[&node], room, kind);
    }
}

#[test]
fn a_room_that_does_not_listen_slows_its_client_down() {
    let site = site();
    let node = plan(&site).start();
    for path in &KINDS[1..] {
        exchange::a_deaf_room(&node, &[&node], path);
    }
}

#[test]
#[expect(clippy::result_large_err, reason = "the types are the library's")]
fn a_worker_talks_to_a_server_outside() {
    let site = site();
    let node = plan(&site).start();
    for kind in ["constructor", "fetch"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("an open socket");
            let choose =
                |request: &tungstenite::handshake::server::Request,
                 mut response: tungstenite::handshake::server::Response| {
                    if request.headers().contains_key("sec-websocket-protocol") {
                        let chosen = "two".parse().expect("plain text");
                        response.headers_mut().insert("sec-websocket-protocol", chosen);
                    }
                    Ok(response)
                };
            let mut socket = tungstenite::accept_hdr(stream, choose).expect("a WebSocket");
            loop {
                match socket.read() {
                    Ok(message @ (Message::Text(_) | Message::Binary(_))) => {
                        socket.send(message).expect("an open socket");
                    }
                    Ok(_) => {}
                    Err(Error::ConnectionClosed) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let answer = node.ask("GET", &format!("/out/{kind}?to=ws://{address}/"));
        let text = String::from_utf8(answer.good()).expect("text");
        let protocol = if kind == "constructor" { "two" } else { "" };
        let expected =
            format!("first\nbytes 70000\nthird\nclose 3003 thanks true\nprotocol {protocol}\n");
        assert_eq!(text, expected, "{kind}");
        server.join().expect("the server has seen a good end");
    }
    // Somebody who speaks no WebSocket.
    let answer = node.ask("GET", &format!("/out/constructor?to=ws://{}/a/refuse", node.address()));
    let text = answer.text();
    assert!(text.contains("but received 403 instead") && text.contains("close 1006"), "{text}");
}
