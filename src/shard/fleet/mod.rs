//! One shard among the nodes of its fleet: the links to the others, and the routes to their cells.
//!
//! The way of a request for a cell of another node: `shard` (is the cell here, or its route known?)
//! → `cell`, `activation` (who owns it?) → [`forward`] → `peer/link` → there [`answer`] → `shard` →
//! `cell`. A request is forwarded once: who gets one that is not its own refuses it.

pub(crate) mod answer;
pub(crate) mod forward;
pub(crate) mod handover;
pub(crate) mod join;
pub(crate) mod members;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use celld_core::cell::CellId;
use celld_core::fleet::FleetRecord;
use celld_core::node::{NodeId, SessionId};
use celld_core::ownership::{Owner, Route};
use celld_core::route::{ROUTES_MAX, Routes};
use celld_peer::identity::{Identity, IdentityError, Principal, Role};
use celld_peer::{Address, Link, Server};
use rustc_hash::FxHashMap;

use crate::shard::now;
use forward::Sent;
use members::Members;

/// Of one shard.
pub(crate) struct Fleet {
    pub members: Arc<Members>,
    pub server: Server,
    identity: Rc<Identity>,
    links: RefCell<FxHashMap<NodeId, Link>>,
    routes: RefCell<Routes<CellId>>,
    pub sent: Sent,
}

impl Fleet {
    /// # Errors
    /// The certificates of the fleet cannot be made.
    pub fn new(
        record: &FleetRecord,
        me: &Owner,
        members: Arc<Members>,
    ) -> Result<Self, IdentityError> {
        let (node, session) = (me.node.clone(), me.session.clone());
        let identity =
            Rc::new(Identity::new(record, Principal { role: Role::Node, node, session })?);
        Ok(Self {
            members,
            server: Server::new(identity.clone()),
            identity,
            links: RefCell::default(),
            routes: RefCell::new(Routes::new(ROUTES_MAX)),
            sent: Sent::default(),
        })
    }

    /// Where a cell was found lately.
    pub fn route(&self, cell: &CellId) -> Option<Route> {
        let routes = self.routes.borrow();
        if routes.is_empty() {
            return None;
        }
        routes.get(cell, now()).cloned()
    }

    pub fn learn(&self, cell: &CellId, route: &Route) {
        self.routes.borrow_mut().learn(cell.clone(), route.clone(), now());
    }

    pub fn forget(&self, cell: &CellId, failed: &Route) {
        self.routes.borrow_mut().forget(cell, failed);
    }

    /// Ends the calls of nodes whose leases are over: one that stands still keeps nobody waiting.
    pub fn cut_dead(&self) {
        let live = self.members.live();
        let is_dead = |link: &Link| {
            let Address { node, session, .. } = link.address();
            !live.iter().any(|record| record.node == *node && record.session == *session)
        };
        let dead: Vec<Link> = {
            let mut links = self.links.borrow_mut();
            links.extract_if(|_, link| is_dead(link)).map(|(_, link)| link).collect()
        };
        for link in dead {
            self.routes.borrow_mut().forget_node(&link.address().node);
            link.cut();
        }
    }

    /// Whether requests can be sent to a node.
    pub fn reaches(&self, node: &NodeId) -> bool {
        self.link(node, None).is_some()
    }

    /// The link to a node; to this session of it, if one is meant. `None`: it is not among the live
    /// ones, or takes no requests from this node.
    fn link(&self, node: &NodeId, session: Option<&SessionId>) -> Option<Link> {
        let live = self.members.live();
        let record = live.iter().find(|record| record.node == *node)?;
        if session.is_some_and(|session| *session != record.session) {
            return None;
        }
        if members::why_mute(record).is_some() {
            return None;
        }
        let address = Address::of_lease(record)?;
        let mut links = self.links.borrow_mut();
        if let Some(link) = links.get(node)
            && *link.address() == address
        {
            return Some(link.clone());
        }
        let link = Link::new(self.identity.clone(), address);
        links.insert(node.clone(), link.clone());
        Some(link)
    }
}
