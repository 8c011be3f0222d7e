//! Connections to the store that are open before a request wants one.

use std::time::Duration;

use celld_stores::{Kind, Store};

use super::fleet::{cells, write};
use super::relay::{Begun, Relay};
use super::support::node::{Remote, Site};
use super::support::wait_for;

const SHARDS: usize = 2;
/// A commit is an upload and a read.
const EACH: usize = 2;
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn the_first_write_of_a_node_finds_open_connections_to_its_store() {
    let _machine = super::shared();
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    let port = store.port();
    let relay = Relay::start(move || Some(([127, 0, 0, 1], port).into()));
    let remote = Remote::new(store.url("warm"), format!("http://{}", relay.address()));
    let site = Site::in_store(remote);
    let before = relay.connections().len();
    let node = site.node("warm").flag("--shards", &SHARDS.to_string()).start();

    // Nobody has asked it for anything yet.
    let unused = || {
        let of_node = relay.connections().split_off(before);
        of_node.iter().filter(|begun| **begun == Begun::Nothing).count()
    };
    wait_for("warm connections of each shard", LIMIT, || (unused() >= SHARDS * EACH).then_some(()));
    let with = |connections: &[Begun], part: &str| {
        let lines = connections.iter().map(|begun| match begun {
            Begun::Nothing => "",
            Begun::With(line) => line.as_str(),
        });
        lines.filter(|line| line.contains(part)).map(str::to_owned).collect::<Vec<_>>()
    };
    // The lease has one of its own: what it began with is a write of the lease.
    let lease = with(&relay.connections()[before..], "PUT /celld-test/warm/nodes/warm.json");
    assert_eq!(lease.len(), 1, "{lease:?}");

    // The other shard's may wait for longer than a connection is kept, so only one is asked.
    let opened = relay.connections().len();
    let cell = &cells("warm", 1)[0];
    write(&mut node.client(), cell);
    let seen = relay.connections();
    assert!(!with(&seen[before..opened], "/cells/").is_empty(), "{seen:?}");
    assert_eq!(with(&seen[opened..], "/cells/"), [""; 0], "a write has opened a connection");
}
