//! What holds between a client and a room, at whichever node the client has connected.

use std::io::Write as _;
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tungstenite::protocol::Role;
use tungstenite::protocol::frame::Frame;
use tungstenite::protocol::frame::coding::{Data, OpCode};
use tungstenite::{Bytes, Message, WebSocket};

use super::client::{
    PATIENCE, SILENCE, Socket, ask, close, closed, config, events, hear, hears_nothing, memory,
    open, say, wait_for_events,
};
use super::support::hold::Hold;
use super::support::node::{Node, Site};
use super::support::wait_for;

/// What a node may take more while much flows through it: an isolate's garbage, and queues.
const MEMORY_MAX: u64 = 200 << 20;

/// Texts and bytes of all lengths that frames tell apart come back.
pub fn kinds_and_sizes(entry: &Node, path: &str) {
    let mut socket = open(entry, path);
    for text in ["hello", "", "ä€😀", &"long ".repeat(100_000)] {
        assert_eq!(ask(&mut socket, text), text, "{path}");
    }
    for size in [0, 1, 125, 126, 65_535, 65_536, 1 << 20, 32 << 20] {
        let bytes: Vec<u8> = (0..size).map(|n| n as u8).collect();
        socket.send(Message::binary(bytes.clone())).expect("an open socket");
        let Message::Binary(back) = socket.read().expect("a message") else { panic!("{path}") };
        assert!(back == bytes, "{path}: {size} bytes came back as {}", back.len());
    }
    // In fragments, with a Ping between them.
    for (opcode, text, is_final) in [
        (Data::Text, "one ", false),
        (Data::Continue, "two ", false),
        (Data::Continue, "three", true),
    ] {
        let frame = Frame::message(Bytes::from(text), OpCode::Data(opcode), is_final);
        socket.send(Message::Frame(frame)).expect("an open socket");
        if text == "one " {
            socket.send(Message::Ping(Bytes::from("are you there"))).expect("an open socket");
        }
    }
    assert_eq!(socket.read().expect("a Pong"), Message::Pong(Bytes::from("are you there")));
    assert_eq!(hear(&mut socket), "one two three", "{path}");
    close(&mut socket, 1000, "bye");
    assert_eq!(closed(&mut socket), (1000, "bye".into()), "{path}");
}

/// 10,000 messages come back in the order in which they were sent, without waiting for each other.
pub fn order_of_echoes(entry: &Node, path: &str) {
    let mut socket = open(entry, path);
    let mut writer = WebSocket::from_raw_socket(
        socket.get_ref().try_clone().expect("a second handle"),
        Role::Client,
        Some(config()),
    );
    let sending = std::thread::spawn(move || {
        for n in 0..10_000 {
            writer.write(Message::text(format!("message {n}"))).expect("an open socket");
        }
        writer.flush().expect("an open socket");
    });
    for n in 0..10_000 {
        assert_eq!(hear(&mut socket), format!("message {n}"), "{path}");
    }
    sending.join().expect("all were sent");
}

/// 10,000 messages of a room come in the order in which it sent them in one turn.
pub fn order_of_a_room(entry: &Node, path: &str) {
    let mut socket = open(entry, path);
    say(&mut socket, "count 10000");
    for n in 0..10_000 {
        assert_eq!(hear(&mut socket), n.to_string(), "{path}");
    }
}

/// A Close of either side is answered with the same one, and the room hears of each end once.
pub fn closes(entry: &Node, room: &str, kind: &str) {
    let path = format!("/{room}/{kind}");
    let mut socket = open(entry, &path);
    close(&mut socket, 4000, "from the client");
    assert_eq!(closed(&mut socket), (4000, "from the client".into()));
    let mut socket = open(entry, &path);
    say(&mut socket, "close 3001 from the room");
    assert_eq!(closed(&mut socket), (3001, "from the room".into()));
    let mut socket = open(entry, &path);
    socket.close(None).expect("an open socket");
    assert_eq!(closed(&mut socket), (1005, String::new()));
    // Without a word.
    let socket = open(entry, &path);
    socket.get_ref().shutdown(Shutdown::Both).expect("an open socket");
    let lost = "close 1006 WebSocket disconnected without sending Close frame. false";
    let expected = [
        "close 1005  true",
        lost,
        "close 3001 from the room true",
        "close 4000 from the client true",
    ];
    wait_for_events(entry, room, 4);
    std::thread::sleep(SILENCE);
    // Of several sockets in any order, of each one once.
    let mut told = events(entry, room);
    told.sort();
    assert_eq!(told, expected, "{kind}");
}

/// What the room says of a write does not come before the write is held no longer, nor does what
/// it says after that.
pub fn waits_for_its_proof(hold: &Hold, entry: &Node, path: &str) {
    let mut socket = open(entry, path);
    assert_eq!(ask(&mut socket, "hello"), "hello");
    hold.begin();
    say(&mut socket, "write 1");
    hold.wait_until_one_is_held();
    say(&mut socket, "behind");
    hears_nothing(&mut socket, "before the proof");
    hold.end();
    assert_eq!(hear(&mut socket), "wrote 1", "{path}");
    assert_eq!(hear(&mut socket), "behind", "{path}");
}

/// What the room says of an alarm, to anybody, does not come before the alarm's entry in the index.
pub fn waits_for_its_wake_entry(hold: &Hold, entry: &Node, room: &str, kind: &str) {
    let path = format!("/{room}/{kind}");
    let (mut socket, mut other) = (open(entry, &path), open(entry, &path));
    for socket in [&mut socket, &mut other] {
        assert_eq!(ask(socket, "hello"), "hello");
    }
    hold.begin();
    say(&mut socket, "alarm");
    hold.wait_until_one_is_held();
    say(&mut other, "armed?");
    hears_nothing(&mut socket, "before the entry");
    hears_nothing(&mut other, "before the entry");
    hold.end();
    assert_eq!(hear(&mut socket), "armed", "{path}");
    assert_eq!(hear(&mut other), "true", "{path}");
}

/// A client that reads nothing costs the nodes little, and is given up.
pub fn a_deaf_client(entry: &Node, nodes: &[&Node], room: &str, kind: &str) {
    let mut socket = open(entry, &format!("/{room}/{kind}"));
    assert_eq!(ask(&mut socket, "hello"), "hello");
    let mut growth = Growth::of(nodes);
    say(&mut socket, "flood 400");
    wait_for("the end of the flood", PATIENCE, || {
        growth.look();
        std::thread::sleep(Duration::from_millis(20));
        events(entry, room).contains(&"flooded".to_owned()).then_some(())
    });
    growth.assert_below(MEMORY_MAX, kind);
    // What had been on its way comes, and then why nothing more does.
    let mut pieces = 0;
    let code = loop {
        match socket.read() {
            Ok(Message::Binary(_)) => pieces += 1,
            Ok(Message::Close(frame)) => break frame.expect("a code").code,
            other => panic!("{kind}, after {pieces} pieces: {other:?}"),
        }
    };
    assert!(pieces < 400, "{kind}: everything came");
    assert_eq!(u16::from(code), 1008, "{kind}");
}

/// A room that takes nothing for a while slows its client down, and everything comes in the end.
pub fn a_deaf_room(entry: &Node, nodes: &[&Node], path: &str) {
    let mut socket = open(entry, path);
    assert_eq!(ask(&mut socket, "hello"), "hello");
    let mut growth = Growth::of(nodes);
    say(&mut socket, "slow 3000");
    let mut writer = socket.get_ref().try_clone().expect("a second handle");
    let sending = std::thread::spawn(move || {
        // 200 messages of a MiB, all zero, and masked with zero.
        let mut frame = vec![0x82, 0xff, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0];
        frame.resize(frame.len() + (1 << 20), 0);
        for _ in 0..200 {
            writer.write_all(&frame).expect("an open socket");
        }
    });
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        growth.look();
        std::thread::sleep(Duration::from_millis(20));
    }
    growth.assert_below(64 << 20, path);
    assert_eq!(hear(&mut socket), "slow");
    for n in 0..200 {
        match socket.read() {
            Ok(Message::Binary(back)) => assert_eq!(back.len(), 1 << 20, "{path}: {n}"),
            other => panic!("{path}, instead of message {n}: {other:?}"),
        }
    }
    sending.join().expect("all were sent");
}

/// Hibernatable sockets outlive their cell: tags, attachments and messages are as before, and the
/// cell stays its node's for as long as it has any. `owner` evicts after 300 ms, and has no other
/// cell; `before` are sockets of the room that are not needed any more.
pub fn hibernation(site: &Site, entry: &Node, owner: &Node, room: &str, before: Vec<Socket>) {
    let mut socket = open(entry, &format!("/{room}/hib?tag=x&tag=y"));
    let mut other = open(entry, &format!("/{room}/hib?tag=y"));
    say(&mut socket, "attach kept");
    let closes = before.len() + 2;
    for mut socket in before {
        close(&mut socket, 1000, "");
        closed(&mut socket);
    }
    let lives = || owner.log().matches("life ").count();
    let mut life = 0;
    for round in 0..3 {
        // Until the cell has left memory: the next message finds another life.
        life = wait_for("the eviction of a cell", PATIENCE, || {
            std::thread::sleep(Duration::from_millis(1_500));
            let now = ask(&mut socket, "life")["life ".len()..].parse().expect("a number");
            (now > life).then_some(now)
        });
        assert_eq!(ask(&mut socket, "attached y"), "kept x,y 2", "round {round}");
        say(&mut other, "all x");
        assert_eq!(hear(&mut socket), "to all");
    }
    // An automatic response wakes nobody.
    std::thread::sleep(Duration::from_secs(2));
    let before = lives();
    for _ in 0..100 {
        assert_eq!(ask(&mut other, "ping"), "pong");
    }
    assert_eq!(lives(), before, "a cell woke for an automatic response");
    let names = owners(site);
    let [named] = &names[..] else { panic!("one cell, but {names:?}") };
    assert!(!named.is_empty(), "a cell with sockets belongs to nobody");
    for socket in [&mut socket, &mut other] {
        close(socket, 1000, "");
        closed(socket);
    }
    wait_for("the release of the cell", PATIENCE, || owners(site)[0].is_empty().then_some(()));
    assert_eq!(events(entry, room), vec!["close 1000  true"; closes]);
}

/// Who owns the rooms, by their records in the bucket; an empty name is nobody.
pub fn owners(site: &Site) -> Vec<String> {
    let cells: PathBuf = site.bucket().join("cells@/sockets.Room@");
    let owner = |cell: &Path| {
        let record = std::fs::read(cell.join("own.json")).expect("a record");
        let record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
        record["node"].as_str().unwrap_or_default().to_owned()
    };
    std::fs::read_dir(cells).expect("cells").flatten().map(|cell| owner(&cell.path())).collect()
}

/// How much more memory each node has taken since the first look.
struct Growth<'a> {
    nodes: Vec<(&'a Node, u64)>,
    most: u64,
}

impl<'a> Growth<'a> {
    fn of(nodes: &[&'a Node]) -> Self {
        Self { nodes: nodes.iter().map(|&node| (node, memory(node))).collect(), most: 0 }
    }

    fn look(&mut self) {
        let now = self.nodes.iter().map(|(node, before)| memory(node).saturating_sub(*before));
        self.most = self.most.max(now.max().expect("a node"));
    }

    fn assert_below(&self, bytes: u64, what: &str) {
        assert!(self.most < bytes, "{what}: a node took {} bytes more", self.most);
    }
}
