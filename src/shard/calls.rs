//! Calls of cells: each goes to the cell here, to the shard that owns it, or to another node.

use std::rc::Rc;

use celld_core::cell::CellId;
use celld_core::ownership::Route;
use celld_core::route::Refusal;
use celld_v8host::{Failure, Target};

use crate::body::{Asked, failure};
use crate::cell::{Via, Wanted};
use crate::fleet::direct::Direct;
use crate::fleet::forward::{self, Destination};
use crate::host::Reply;
use crate::router;
use crate::shard::{Shard, now};

impl Shard {
    /// Sends the request of a stub to its cell: here, on the shard that owns it, or on another node
    /// where `direct` knows it. Returns the shard, if the cell may be served by one of this node.
    pub fn fetch_of_stub(
        self: &Rc<Self>,
        direct: &Direct,
        stub: u64,
        target: Target,
        asked: Asked,
        reply: Reply,
    ) -> Option<usize> {
        let Some(id) = CellId::new(&target.namespace, &target.id) else {
            reply.send(Err(no_name(&target)));
            return None;
        };
        let owner = id.shard(self.facts.shards);
        if owner == self.index {
            self.enter(id, target, asked, reply, Via::Client);
            return Some(owner);
        }
        let wanted = Wanted::new(asked, reply, Via::Client);
        let lane = |route: &Route| self.fleet.get()?.lane(&route.owner, &id);
        if let Some(way) = direct.way(&id, stub, now(), lane) {
            forward::send_directly(self.clone(), target, way, Box::new(wanted));
            return None;
        }
        router::send_fetch(self, owner, target, wanted);
        Some(owner)
    }

    /// Sends a request to a cell, here or on the shard that owns it.
    pub fn fetch_cell(self: &Rc<Self>, target: Target, asked: Asked, reply: Reply, via: Via) {
        let Some(id) = CellId::new(&target.namespace, &target.id) else {
            return reply.send(Err(no_name(&target)));
        };
        let owner = id.shard(self.facts.shards);
        if owner == self.index {
            self.enter(id, target, asked, reply, via);
        } else {
            let wanted = Wanted::new(asked, reply, via);
            router::send_fetch(self, owner, target, wanted);
        }
    }

    /// A request for a cell that this shard owns, if this node does.
    fn enter(self: &Rc<Self>, id: CellId, target: Target, asked: Asked, reply: Reply, via: Via) {
        let known = self.known_cell(&id);
        let is_cold = known.as_ref().is_none_or(|cell| cell.is_cold());
        if via.is_node() && self.turns_away(!is_cold) {
            return reply.refuse(Refusal::Draining);
        }
        if is_cold && via == Via::Routed {
            return reply.refuse(Refusal::NotOwner);
        }
        if is_cold
            && via == Via::Client
            && let Some(route) = self.fleet.get().and_then(|fleet| fleet.route(&id))
        {
            let wanted = Box::new(Wanted::new(asked, reply, via));
            return forward::send(self.clone(), target, Destination::Owner(route), wanted);
        }
        let cell = known.unwrap_or_else(|| self.cell(id, &target.class));
        cell.learn_name(target.name);
        cell.arrive(asked, reply, via);
    }

    /// A request that has not run on another node starts again.
    pub fn enter_again(self: &Rc<Self>, target: Target, wanted: Wanted) {
        let Some(id) = CellId::new(&target.namespace, &target.id) else {
            unreachable!("it was a name before")
        };
        let owner = id.shard(self.facts.shards);
        if owner != self.index {
            // It was sent from here directly.
            return router::send_fetch(self, owner, target, wanted);
        }
        let cell = self.cell(id, &target.class);
        cell.learn_name(target.name);
        cell.wait_for(wanted);
    }

    /// Who asked a cell has given up: the cell's event hears of it, here, on another shard or on
    /// another node. It is looked for, as most calls are not given up and pay nothing for it.
    pub fn abandon(self: &Rc<Self>, is_asker: impl Fn(&Reply) -> bool) {
        let is_sent = || self.fleet.get().is_some_and(|fleet| fleet.sent.give_up(&is_asker));
        if !self.disconnect(&is_asker) && !is_sent() {
            router::abandon(self, is_asker);
        }
    }

    /// Tells the event whose answer is for who `is_asker` knows that nobody waits for it.
    fn disconnect(&self, is_asker: impl Fn(&Reply) -> bool) -> bool {
        let hosts = self.all_hosts();
        let found = hosts.iter().find_map(|host| Some((host, host.event_of(&is_asker)?)));
        if let Some((host, event)) = found {
            host.disconnected(event);
        }
        found.is_some()
    }
}

fn no_name(target: &Target) -> Failure {
    let text = format!("not the name of a Durable Object: {}/{}", target.namespace, target.id);
    failure("TypeError", text)
}
