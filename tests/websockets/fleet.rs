//! Two nodes: clients connect at one, and the other owns the rooms.

use std::time::{Duration, Instant};

use super::client::{
    PATIENCE, SILENCE, Socket, ask, closed, events, open, try_open, wait_for_events,
};
use super::exchange;
use super::support::hold::Hold;
use super::support::http::Client;
use super::support::node::{Node, Plan, Site};
use super::support::wait_for;

/// Short enough to wait for, long enough for a busy machine to renew in time.
const TTL: Duration = Duration::from_secs(6);
/// Exit code of a node that fenced itself.
const FENCED: i32 = 3;
/// Rooms, and how they take sockets.
const ROOMS: [(&str, &str); 2] = [("a", "plain"), ("b", "hib")];

fn plan(site: &Site, name: &str) -> Plan {
    site.node(name)
        .variable("CELLD_TTL_MS", TTL.as_millis().to_string())
        .flag("--shards", "2")
        .flag("--internal-listen", "127.0.0.1:0")
}

struct Fleet {
    /// Of every room.
    owner: Node,
    /// Where clients connect.
    entry: Node,
    /// A cell that has sockets stays where it is, however little the other node has to do.
    anchors: Vec<Socket>,
}

impl Fleet {
    fn start(site: &Site) -> Self {
        Self::of(site, plan(site, "owner"), &["a", "b"])
    }

    /// `owner` is the first node, so all `rooms` are its own.
    fn of(site: &Site, mut owner: Plan, rooms: &[&str]) -> Self {
        let owner = owner.start();
        let anchors = rooms.iter().map(|room| open(&owner, &format!("/{room}/hib"))).collect();
        let entry = plan(site, "entry").start();
        for room in rooms {
            wait_for("a node that knows the others", PATIENCE, || {
                (entry.ask("GET", &format!("/{room}/events")).status == 200).then_some(())
            });
        }
        assert_eq!(exchange::owners(site), vec!["owner"; rooms.len()]);
        Self { owner, entry, anchors }
    }

    /// A socket in each room, at the node that does not own it.
    fn sockets(&self) -> Vec<Socket> {
        let mut sockets: Vec<Socket> = ROOMS
            .iter()
            .map(|(room, kind)| open(&self.entry, &format!("/{room}/{kind}")))
            .collect();
        for socket in &mut sockets {
            assert_eq!(ask(socket, "hello"), "hello");
        }
        sockets
    }
}

/// Waits until the rooms serve sockets at this node, and are its own.
fn assert_they_move(site: &Site, node: &Node, name: &str) {
    for (room, kind) in ROOMS {
        let mut socket = wait_for("a room that serves again", PATIENCE, || {
            try_open(node, &format!("/{room}/{kind}")).ok()
        });
        assert_eq!(ask(&mut socket, "hello"), "hello");
    }
    assert_eq!(exchange::owners(site), [name; ROOMS.len()]);
}

#[test]
fn messages_and_closes_go_through_a_node_that_is_not_the_owner() {
    let site = Site::of("sockets");
    let Fleet { owner: _owner, entry, anchors } = Fleet::start(&site);
    for (room, kind) in ROOMS {
        let path = format!("/{room}/{kind}");
        exchange::kinds_and_sizes(&entry, &path);
        exchange::order_of_echoes(&entry, &path);
        exchange::order_of_a_room(&entry, &path);
    }
    assert_eq!(exchange::owners(&site), ["owner", "owner"]);
    assert_eq!(entry.log().matches("life ").count(), 0, "{}", entry.log());
    drop(anchors);
}

#[test]
fn each_side_hears_once_of_a_close_through_another_node() {
    let site = Site::of("sockets");
    let fleet = Fleet::start(&site);
    for (room, kind) in ROOMS {
        exchange::closes(&fleet.entry, room, kind);
    }
}

#[test]
fn slow_sides_slow_each_other_down_through_another_node() {
    let site = Site::of("sockets");
    let Fleet { owner, entry, anchors } = Fleet::start(&site);
    let nodes = [&owner, &entry];
    for (room, kind) in ROOMS {
        exchange::a_deaf_room(&entry, &nodes, &format!("/{room}/{kind}"));
        exchange::a_deaf_client(&entry, &nodes, room, kind);
    }
    drop(anchors);
}

#[test]
fn hibernatable_sockets_at_another_node_outlive_their_cell() {
    let site = Site::of("sockets");
    let owner = plan(&site, "owner").flag("--idle-evict-ms", "300");
    let Fleet { owner, entry, anchors } = Fleet::of(&site, owner, &["a"]);
    exchange::hibernation(&site, &entry, &owner, "a", anchors);
}

#[test]
fn a_message_through_another_node_waits_for_its_proof() {
    let site = Site::of("sockets");
    let hold = Hold::build(site.path());
    let owner = hold.load_into(plan(&site, "owner"), "/ltx@/");
    let fleet = Fleet::of(&site, owner, &["a", "b"]);
    for (room, kind) in ROOMS {
        exchange::waits_for_its_proof(&hold, &fleet.entry, &format!("/{room}/{kind}"));
    }
}

#[test]
fn a_message_about_an_alarm_through_another_node_waits_for_its_entry() {
    let site = Site::of("sockets");
    let hold = Hold::build(site.path());
    let owner = hold.load_into(plan(&site, "owner"), "/wake@/");
    let fleet = Fleet::of(&site, owner, &["a", "b"]);
    for (room, kind) in ROOMS {
        exchange::waits_for_its_wake_entry(&hold, &fleet.entry, room, kind);
    }
}

#[test]
fn the_death_of_the_owner_closes_the_sockets_at_other_nodes() {
    let site = Site::of("sockets");
    let mut fleet = Fleet::start(&site);
    let mut sockets = fleet.sockets();
    fleet.owner.end();
    let died = Instant::now();
    for socket in &mut sockets {
        assert_eq!(closed(socket), (1011, String::new()));
    }
    assert!(died.elapsed() < TTL, "the sockets were closed after {:?}", died.elapsed());
    assert_they_move(&site, &fleet.entry, "entry");
}

#[test]
fn an_owner_that_stands_still_loses_the_sockets_with_its_lease() {
    let site = Site::of("sockets");
    let mut fleet = Fleet::start(&site);
    let mut sockets = fleet.sockets();
    fleet.owner.freeze();
    for socket in &mut sockets {
        assert_eq!(closed(socket), (1011, String::new()));
    }
    assert_they_move(&site, &fleet.entry, "entry");
    fleet.owner.thaw();
    let status = fleet.owner.wait_for_end(PATIENCE);
    assert_eq!(status.code(), Some(FENCED), "{}", fleet.owner.log());
}

#[test]
fn the_death_of_the_clients_node_is_told_to_the_rooms_once() {
    let site = Site::of("sockets");
    let Fleet { owner, entry, anchors } = Fleet::start(&site);
    let sockets = ROOMS.map(|(room, kind)| open(&entry, &format!("/{room}/{kind}")));
    entry.kill();
    for (room, _) in ROOMS {
        wait_for_events(&owner, room, 1);
    }
    std::thread::sleep(SILENCE);
    let lost = "close 1006 WebSocket disconnected without sending Close frame. false";
    for (room, _) in ROOMS {
        assert_eq!(events(&owner, room), [lost], "room {room}");
    }
    drop((sockets, anchors));
}

#[test]
fn nodes_that_stop_close_the_sockets_that_go_through_them() {
    let site = Site::of("sockets");
    let Fleet { mut owner, mut entry, anchors } = Fleet::start(&site);
    // Where the clients are: the rooms stay, and hear of it.
    let mut sockets = ROOMS.map(|(room, kind)| open(&entry, &format!("/{room}/{kind}")));
    entry.terminate();
    for socket in &mut sockets {
        assert_eq!(closed(socket), (1012, "the node is stopping".into()));
    }
    let status = entry.wait_for_end(PATIENCE);
    assert!(status.success(), "{status}: {}", entry.log());
    for (room, _) in ROOMS {
        let told = ["close 1012 the node is stopping true"];
        assert_eq!(wait_for_events(&owner, room, 1), told, "room {room}");
    }
    // Where the rooms are: they move.
    let third = plan(&site, "third").start();
    let mut sockets = wait_for("sockets at another node", PATIENCE, || {
        let open = |(room, kind)| try_open(&third, &format!("/{room}/{kind}"));
        ROOMS.map(open).into_iter().collect::<Result<Vec<_>, _>>().ok()
    });
    drop(anchors);
    for socket in &mut sockets {
        assert_eq!(ask(socket, "hello"), "hello");
    }
    owner.terminate();
    for socket in &mut sockets {
        assert_eq!(closed(socket), (1012, "the node is stopping".into()));
    }
    let status = owner.wait_for_end(PATIENCE);
    assert!(status.success(), "{status}: {}", owner.log());
    assert_they_move(&site, &third, "third");
}

/// A command of an operator, which must succeed.
fn operate(site: &Site, line: &str) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_celld"));
    command.args(line.split_whitespace());
    command.arg("--bucket").arg(format!("file://{}", site.bucket().display()));
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A request that runs in the room, for so long.
fn begin_slow(node: &Node, room: &str, ms: u32) -> Client {
    let begun = || events(node, room).iter().filter(|event| *event == "slow").count();
    let before = begun();
    let mut client = node.client();
    client.send("GET", &format!("/{room}/slow?ms={ms}")).expect("a connection");
    wait_for("a request that runs", PATIENCE, || (begun() > before).then_some(()));
    client
}

#[test]
fn an_order_to_a_cell_closes_its_sockets_and_those_of_no_other() {
    let site = Site::of("sockets");
    let Fleet { owner, entry, anchors } = Fleet::start(&site);
    drop(anchors);
    for order in ["evict sockets.Room", "move sockets.Room entry"] {
        // The first one places the cell.
        let mut at_owner = open(&owner, "/a/plain");
        let mut at_entry = open(&entry, "/a/plain");
        let mut other = open(&entry, "/b/plain");
        for socket in [&mut at_entry, &mut at_owner, &mut other] {
            assert_eq!(ask(socket, "hello"), "hello", "{order}");
        }
        // What runs finishes, and the sockets are open until then.
        let mut slow = begin_slow(&owner, "a", 1_500);
        let site = &site;
        std::thread::scope(|scope| {
            let ordered = scope.spawn(move || operate(site, &format!("cell {order} --name a")));
            assert_eq!(slow.receive().expect("an answer").good(), b"at last\n", "{order}");
            for socket in [&mut at_entry, &mut at_owner] {
                let left = (1012, "the Durable Object leaves this node".into());
                assert_eq!(closed(socket), left, "{order}");
            }
            ordered.join().expect("no panic");
        });
        assert_eq!(ask(&mut other, "hello"), "hello", "{order}");
    }
    let mut owners = exchange::owners(&site);
    owners.sort();
    assert_eq!(owners, ["entry", "owner"]);
    assert_eq!(ask(&mut open(&owner, "/a/plain"), "hello"), "hello");
}

#[test]
fn a_room_with_open_sockets_leaves_a_stopping_node_before_the_requests_of_others_end() {
    let site = Site::of("sockets");
    let Fleet { mut owner, entry, anchors } = Fleet::start(&site);
    drop(anchors);
    let mut socket = open(&owner, "/a/plain");
    assert_eq!(ask(&mut socket, "hello"), "hello");
    let mut slow = begin_slow(&owner, "b", 8_000);
    owner.terminate();
    assert_eq!(closed(&mut socket), (1012, "the node is stopping".into()));
    assert!(!slow.hears_within(Duration::from_millis(1)).expect("a connection"), "it was to wait");
    assert_eq!(slow.receive().expect("an answer").good(), b"at last\n");
    let status = owner.wait_for_end(PATIENCE);
    assert!(status.success(), "{status}: {}", owner.log());
    assert_they_move(&site, &entry, "entry");
}
