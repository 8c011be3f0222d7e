//! The links of one shard to the other nodes.
//!
//! A connection is served by the shard that its caller names, so a request can go from the shard at
//! which it enters to the one that has its cell, with no hop at either end. That takes a link from
//! each shard to each: as long as a shard has no more than [`LINKS_MAX`] of them, it has them all.
//! In a larger fleet it has one for each node, and a request goes first to the shard that the cell
//! would be on here; its link leads to the shard that has those cells there, as ids spread in the
//! same order over few shards and over many. So there is one hop at most between nodes that have
//! equally many shards.
//!
//! Invariant: a link leads to a session whose lease was live at the last look.

use std::rc::Rc;

use celld_core::cell::CellId;
use celld_core::lease::Record;
use celld_core::node::{NodeId, SessionId};
use celld_peer::identity::Identity;
use celld_peer::{Address, Link};
use rustc_hash::FxHashMap;

use super::members;

/// Links of one shard, unless there are more nodes. An idle one holds no connection after a minute;
/// one that is used holds two descriptors in the fleet, and some 50 KB.
const LINKS_MAX: usize = 64;

/// Which shard this is, and of how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub shard: usize,
    pub shards: usize,
}

/// To all nodes that are live.
pub(super) struct Lanes {
    identity: Rc<Identity>,
    place: Place,
    me: NodeId,
    /// Number of the look at the nodes that this is from.
    looks: u64,
    nodes: FxHashMap<NodeId, Ways>,
    /// Of sessions whose leases are over, until they are cut.
    dead: Vec<(NodeId, Vec<Link>)>,
}

/// To one node.
struct Ways {
    address: Address,
    shards: usize,
    /// One to each of its shards, or one in all.
    links: Vec<Link>,
    /// When there were more nodes, or fewer: what is under way on them goes on.
    old: Vec<Link>,
}

impl Lanes {
    /// No node is known yet.
    pub fn new(identity: Rc<Identity>, place: Place, me: NodeId) -> Self {
        Self { identity, place, me, looks: 0, nodes: FxHashMap::default(), dead: Vec::new() }
    }

    /// Number of the last look that was told.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// What a look at the nodes has found.
    pub fn saw(&mut self, looks: u64, live: &[Record]) {
        self.looks = looks;
        let mut before = std::mem::take(&mut self.nodes);
        let others = live.iter().filter(|record| record.node != self.me).count();
        for record in live.iter().filter(|record| record.node != self.me) {
            if members::why_mute(record).is_some() {
                continue;
            }
            let Some(address) = Address::of_lease(record) else { continue };
            // Whatever a damaged lease says.
            let shards = record.load.shards.clamp(1, u16::MAX.into()) as usize;
            let to = shards_reached(self.place, shards, others);
            let mut old = Vec::new();
            let ways = match before.remove(&record.node) {
                Some(ways) if ways.address == address && ways.links.len() == to.len() => ways,
                known => {
                    match known {
                        Some(ways) if ways.address.session == address.session => old = ways.all(),
                        Some(ways) => self.dead.push((record.node.clone(), ways.all())),
                        None => {}
                    }
                    let link =
                        |shard| Link::to_shard(self.identity.clone(), address.clone(), shard);
                    let links = to.into_iter().map(link).collect();
                    Ways { address, shards, links, old }
                }
            };
            self.nodes.insert(record.node.clone(), ways);
        }
        self.dead.extend(before.into_iter().map(|(node, ways)| (node, ways.all())));
        for ways in self.nodes.values_mut() {
            ways.old.retain(Link::is_in_use);
        }
    }

    /// The links to sessions whose leases are over; they are to be cut.
    pub fn take_dead(&mut self) -> Vec<(NodeId, Vec<Link>)> {
        std::mem::take(&mut self.dead)
    }

    /// Whether there is a way to a node.
    pub fn reaches(&self, node: &NodeId) -> bool {
        self.nodes.contains_key(node)
    }

    /// Whether this shard has a link to each shard of a node.
    pub fn is_direct(&self, node: &NodeId) -> bool {
        self.nodes.get(node).is_some_and(|ways| ways.links.len() == ways.shards)
    }

    /// The link for requests to a cell of a node, or of this session of it.
    pub fn link(&self, node: &NodeId, session: Option<&SessionId>, cell: &CellId) -> Option<Link> {
        let ways = self.nodes.get(node)?;
        if session.is_some_and(|session| *session != ways.address.session) {
            return None;
        }
        let link = match &ways.links[..] {
            [only] => only,
            links => &links[cell.shard(links.len())],
        };
        Some(link.clone())
    }
}

impl Ways {
    fn all(self) -> Vec<Link> {
        self.links.into_iter().chain(self.old).collect()
    }
}

/// The shards of a node to which a shard has links, when there are so many other nodes.
fn shards_reached(from: Place, shards: usize, others: usize) -> Vec<u16> {
    let number = |shard: usize| u16::try_from(shard).unwrap_or(u16::MAX);
    if shards * others <= LINKS_MAX {
        return (0..shards).map(number).collect();
    }
    // In the middle of the cells that this shard would have.
    vec![number((2 * from.shard + 1) * shards / (2 * from.shards))]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use celld_core::fleet::{FleetId, FleetRecord, FleetSecret};
    use celld_core::lease::Load;
    use celld_core::node::DiskId;
    use celld_core::time::{Micros, Wall};
    use celld_peer::identity::{Principal, Role};
    use celld_peer::{Ask, CallKind, Cause, PROTOCOL};
    use celld_rt as rt;

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::parse(name).expect("a name")
    }

    fn session(digit: char) -> SessionId {
        SessionId::parse(&digit.to_string().repeat(32)).expect("32 digits")
    }

    fn lease(name: &str, life: char, shards: u64) -> Record {
        Record {
            node: node(name),
            session: session(life),
            write: 1,
            ttl: Micros::from_secs(10),
            written: Wall::from_millis(0),
            disk: DiskId::parse(&"d".repeat(32)).expect("32 digits"),
            protocol: PROTOCOL.into(),
            address: Some("127.0.0.1:9".to_owned()),
            version: "1".to_owned(),
            load: Load { shards, ..Load::default() },
        }
    }

    fn lanes(shard: usize, shards: usize) -> Lanes {
        let record = FleetRecord { fleet: FleetId::drawn(1), secret: FleetSecret::drawn([1; 32]) };
        let me = Principal { role: Role::Node, node: node("me"), session: session('a') };
        let identity = Rc::new(Identity::new(&record, me).expect("certificates"));
        Lanes::new(identity, Place { shard, shards }, node("me"))
    }

    fn cells() -> impl Iterator<Item = CellId> {
        (0..500_u64).map(|n| {
            let id =
                format!("{:064x}", u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060));
            CellId::new("Room", &id).expect("a good name")
        })
    }

    #[test]
    fn a_small_fleet_has_no_hops_and_a_large_one_few_links() {
        for (shards, others, reached) in
            [(2, 1, 2), (8, 8, 8), (64, 1, 64), (8, 9, 1), (65, 1, 1), (1, 500, 1)]
        {
            let reached_now = shards_reached(Place { shard: 0, shards }, shards, others);
            assert_eq!(reached_now.len(), reached, "{shards} shards, {others} others");
        }
    }

    #[test]
    fn one_link_leads_to_the_shard_that_has_the_cells_of_this_one() {
        // Cells of a shard are on the one that its link leads to, also if there are fewer there.
        for (here, there) in [(64, 64), (128, 64), (96, 32), (3, 3)] {
            for cell in cells() {
                let shard = cell.shard(here);
                let reached = shards_reached(Place { shard, shards: here }, there, 100);
                assert_eq!(reached, [cell.shard(there) as u16], "{here} to {there}");
            }
        }
        for shard in 0..2 {
            let reached = shards_reached(Place { shard, shards: 2 }, 128, 100);
            assert!(usize::from(reached[0]) / 64 == shard, "{reached:?}");
        }
    }

    #[test]
    fn links_last_as_long_as_their_session_and_the_number_of_nodes_allows() {
        let mut lanes = lanes(0, 2);
        lanes.saw(1, &[lease("me", 'a', 2), lease("b", 'b', 2)]);
        assert!(lanes.reaches(&node("b")) && lanes.is_direct(&node("b")));
        assert!(!lanes.reaches(&node("me")) && !lanes.reaches(&node("c")));
        let stranger = Record { protocol: u64::from(PROTOCOL) + 1, ..lease("c", 'c', 2) };
        lanes.saw(1, &[lease("b", 'b', 2), stranger]);
        assert!(lanes.reaches(&node("b")) && !lanes.reaches(&node("c")));
        let cell = cells().next().expect("a cell");
        let link = lanes.link(&node("b"), Some(&session('b')), &cell);
        assert!(link.is_some());
        assert!(lanes.link(&node("b"), Some(&session('c')), &cell).is_none());
        // It is as it was.
        let links = lanes.nodes[&node("b")].links.as_ptr();
        lanes.saw(2, &[lease("b", 'b', 2)]);
        assert!(lanes.nodes[&node("b")].links.as_ptr() == links && lanes.take_dead().is_empty());
        // So many nodes that there is one link to each.
        let names: Vec<_> = (0..40).map(|n| lease(&format!("n{n}"), 'c', 2)).collect();
        lanes.saw(3, &[&names[..], &[lease("b", 'b', 2)]].concat());
        assert!(!lanes.is_direct(&node("b")) && lanes.take_dead().is_empty());
        // Another life, and no life.
        lanes.saw(4, &[lease("b", 'c', 2)]);
        let gone = lanes.take_dead();
        assert_eq!((gone.len(), lanes.take_dead().len()), (41, 0));
        assert!(gone.iter().any(|(name, _)| *name == node("b")));
        assert!(lanes.link(&node("b"), Some(&session('c')), &cell).is_some());
    }

    #[test]
    fn a_link_that_is_no_longer_used_is_cut_with_its_session_also_while_it_opens() {
        rt::block_on(async {
            // Its kernel takes connections, and nobody speaks.
            let silent =
                rt::net::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
            let at = silent.local_addr().expect("an address").to_string();
            let b = Record { address: Some(at), ..lease("b", 'b', 2) };
            let mut lanes = lanes(0, 2);
            lanes.saw(1, std::slice::from_ref(&b));
            let link = lanes.link(&node("b"), None, &cells().next().expect("a cell")).expect("one");
            let ask = Ask { kind: CallKind::PROBE, head: Bytes::new(), wait: None };
            let waiting = rt::spawn_joined(async move { link.ask(ask).await.map(drop) });
            let _theirs = rt::net::accept(&silent).await;
            // So many nodes that there is one link to each; then it dies.
            let names: Vec<_> = (0..40).map(|n| lease(&format!("n{n}"), 'c', 2)).collect();
            for look in 2..5 {
                lanes.saw(look, &[&names[..], std::slice::from_ref(&b)].concat());
                assert!(lanes.take_dead().is_empty());
            }
            lanes.saw(5, &names);
            let dead = lanes.take_dead();
            dead.iter().flat_map(|(_, links)| links).for_each(Link::cut);
            let error = waiting.join().await.expect("no panic").expect_err("nobody is there");
            assert_eq!(error.cause, Cause::Closed);
        });
    }
}
