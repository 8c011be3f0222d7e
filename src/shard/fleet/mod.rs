//! One shard among the nodes of its fleet: the links to the others, and the routes to their cells.
//!
//! The way of a request for a cell of another node: `calls` (is the cell here, or its route known?)
//! → `cell`, `activation` (who owns it?) → [`forward`] → `peer/link` → there [`answer`] → `calls` →
//! `cell`. A request is forwarded once: who gets one that is not its own refuses it. Which shards
//! speak to which is in [`lanes`].

pub(crate) mod answer;
mod arguments;
pub(crate) mod direct;
pub(crate) mod forward;
pub(crate) mod handover;
pub(crate) mod join;
mod lanes;
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
use celld_peer::{Link, Server};

use crate::shard::now;
use arguments::Arguments;
use forward::Sent;
use lanes::Lanes;
pub(crate) use lanes::Place;
use members::Members;

/// Of one shard.
pub(crate) struct Fleet {
    pub members: Arc<Members>,
    pub server: Server,
    lanes: RefCell<Lanes>,
    routes: RefCell<Routes<CellId>>,
    pub sent: Sent,
    pub arguments: Arguments,
}

impl Fleet {
    /// # Errors
    /// The certificates of the fleet cannot be made.
    pub fn new(
        record: &FleetRecord,
        me: &Owner,
        place: Place,
        members: Arc<Members>,
    ) -> Result<Self, IdentityError> {
        let (node, session) = (me.node.clone(), me.session.clone());
        let identity =
            Rc::new(Identity::new(record, Principal { role: Role::Node, node, session })?);
        Ok(Self {
            members,
            server: Server::new(identity.clone()),
            lanes: RefCell::new(Lanes::new(identity, place, me.node.clone())),
            routes: RefCell::new(Routes::new(ROUTES_MAX)),
            sent: Sent::default(),
            arguments: Arguments::default(),
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
        self.look();
        let dead = self.lanes.borrow_mut().take_dead();
        for (node, links) in dead {
            self.routes.borrow_mut().forget_node(&node);
            links.iter().for_each(Link::cut);
        }
    }

    /// Whether requests can be sent to a node.
    pub fn reaches(&self, node: &NodeId) -> bool {
        self.look();
        self.lanes.borrow().reaches(node)
    }

    /// Whether every shard sends its requests for cells of this node by itself.
    pub fn is_direct(&self, node: &NodeId) -> bool {
        self.lanes.borrow().is_direct(node)
    }

    /// The link for requests that go from here to a cell of this owner directly, if it is up.
    /// Otherwise it is opened, so that it can be used soon.
    pub fn lane(&self, owner: &Owner, cell: &CellId) -> Option<Link> {
        if !self.is_direct(&owner.node) {
            return None;
        }
        let link = self.link(&owner.node, Some(&owner.session), cell)?;
        if !link.is_up() {
            link.open_ahead();
            return None;
        }
        Some(link)
    }

    /// The link to a node for requests to this cell; to this session of it, if one is meant.
    /// `None`: it is not among the live ones, or takes no requests from this node.
    fn link(&self, node: &NodeId, session: Option<&SessionId>, cell: &CellId) -> Option<Link> {
        self.look();
        self.lanes.borrow().link(node, session, cell)
    }

    /// Learns which nodes are live now.
    fn look(&self) {
        let looks = self.members.looks();
        if self.lanes.borrow().looks() != looks {
            self.lanes.borrow_mut().saw(looks, &self.members.live());
        }
    }
}
