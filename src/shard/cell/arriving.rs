//! What comes for a cell: kept until it is in memory, then begun, or sent where the cell is.

use std::collections::VecDeque;
use std::rc::Rc;

use celld_core::claim::Purpose;
use celld_core::route::{Attempt, Refusal};
use celld_core::wake::Verdict;
use celld_v8host::Failure;

use super::ordered::Ordered;
use super::sockets::SocketArrival;
use super::{Cell, Phase, State, leaving};
use crate::body::{Asked, failure};
use crate::fleet::forward::{self, Destination};
use crate::host::Reply;
use crate::pressure;
use crate::shard::{Shard, now};

/// Requests that may wait for one cell; more are refused as overloaded.
const WAITING_MAX: usize = 10_000;

/// What a cell is wanted for.
pub(super) enum Arrival {
    Fetch(Box<Wanted>),
    Alarm { scheduled_ms: u64, retries: u32 },
    Socket(Box<SocketArrival>),
    Order(Ordered),
}

/// A request that waits for its cell, here or on the way to another node.
pub(crate) struct Wanted {
    pub asked: Asked,
    pub reply: Reply,
    pub via: Via,
    pub attempt: Attempt,
    /// The node that it was sent to cannot be reached: this one is to take the cell.
    pub is_taken_here: bool,
}

/// How a request has come to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// From a client, or from a Worker of this node: it may go on to another one.
    Client,
    /// From another node, which takes this one for the owner: it is refused if the cell is not in
    /// memory, so that its place is found anew.
    Routed,
    /// From another node: this one is to take the cell.
    Placed,
}

impl Via {
    /// Served here or refused: never forwarded again.
    pub fn is_node(self) -> bool {
        self != Self::Client
    }
}

impl Wanted {
    pub fn new(asked: Asked, reply: Reply, via: Via) -> Self {
        let attempt = Attempt { since: now(), failures: 0, is_body_begun: false };
        Self { asked, reply, via, attempt, is_taken_here: false }
    }
}

/// For who comes when too many wait already.
pub(crate) fn overloaded() -> Failure {
    let text = "Durable Object is overloaded. Too many requests queued.";
    Failure { overloaded: true, ..failure("Error", text) }
}

impl Cell {
    /// A request for this cell.
    pub fn arrive(self: &Rc<Self>, asked: Asked, reply: Reply, via: Via) {
        let mut state = self.state.borrow_mut();
        let held = match &state.phase {
            Phase::Live(live) => live.gate.len() + live.parked.len(),
            Phase::Cold | Phase::Activating | Phase::Leaving => 0,
        };
        if state.arrivals.len() + held >= WAITING_MAX {
            drop(state);
            return reply.send(Err(overloaded()));
        }
        let State { phase, arrivals, ordered, .. } = &mut *state;
        match phase {
            Phase::Live(live)
                if live.is_open
                    && !live.is_outdated
                    && arrivals.is_empty()
                    && ordered.is_none() =>
            {
                let (host, slot) = (live.host.clone(), live.slot);
                live.busy += 1;
                live.was_used = true;
                drop(state);
                host.start_fetch(Some((self, slot)), asked, reply, None);
            }
            Phase::Live(_) | Phase::Activating | Phase::Leaving | Phase::Cold => {
                drop(state);
                self.wait_for(Wanted::new(asked, reply, via));
            }
        }
    }

    /// Brings the cell into memory, if that has not begun, and keeps the request until then.
    pub fn wait_for(self: &Rc<Self>, wanted: Wanted) {
        self.enqueue(Arrival::Fetch(Box::new(wanted)));
    }

    /// What the activation is for. An alarm makes no cell that does not exist. A node that stops
    /// takes nothing for others, but what its records name nobody else can serve.
    pub(super) fn purpose(&self, shard: &Shard) -> Purpose {
        let takes = !shard.draining.is_raised();
        let state = self.state.borrow();
        let (mut is_wanted, mut is_ordered) = (false, false);
        for arrival in &state.arrivals {
            match arrival {
                Arrival::Fetch(wanted)
                    if (wanted.via.is_node() && takes) || wanted.is_taken_here =>
                {
                    return Purpose::Placed;
                }
                Arrival::Fetch(_) => is_wanted = true,
                Arrival::Order(_) => is_ordered = true,
                Arrival::Alarm { .. } | Arrival::Socket(_) => {}
            }
        }
        match (is_wanted, is_ordered) {
            (true, false) => Purpose::Entered,
            (true, true) => Purpose::Placed,
            (false, _) => Purpose::WokenPlaced,
        }
    }

    /// Something for this cell: it comes into memory for it, if that has not begun.
    pub(super) fn enqueue(self: &Rc<Self>, arrival: Arrival) {
        let is_cold = {
            let mut state = self.state.borrow_mut();
            state.arrivals.push_back(arrival);
            if let Phase::Live(live) = &mut state.phase {
                live.was_used = true;
            }
            let is_cold = matches!(state.phase, Phase::Cold);
            if is_cold {
                state.phase = Phase::Activating;
            }
            is_cold
        };
        if is_cold { self.activate() } else { self.deliver_arrivals() }
    }

    /// Another node has the cell, or is to have it: who waits for it here is sent there.
    pub(super) fn send_arrivals(self: &Rc<Self>, shard: &Rc<Shard>, to: &Destination) {
        let (arrivals, visits) = {
            let mut state = self.state.borrow_mut();
            state.phase = Phase::Cold;
            (std::mem::take(&mut state.arrivals), std::mem::take(&mut state.visits))
        };
        for (_, answer) in visits {
            // Its owner fires what is due.
            let _gone = answer.send(Verdict::Later);
        }
        for arrival in arrivals {
            match arrival {
                Arrival::Fetch(wanted) if wanted.via.is_node() => {
                    wanted.reply.refuse(Refusal::NotOwner);
                }
                Arrival::Fetch(wanted) => {
                    forward::send(shard.clone(), self.target(), to.clone(), wanted);
                }
                Arrival::Alarm { .. } => {}
                Arrival::Socket(arrived) => {
                    self.close_socket(arrived.socket, "the Durable Object has moved");
                }
                Arrival::Order(ordered) => self.order_is_elsewhere(ordered, to),
            }
        }
        self.forget_if_cold();
    }

    /// Too many are in memory, and none of them rests. A node that has sent the cell here may take
    /// it itself.
    pub(super) fn find_no_room(self: &Rc<Self>, kept: Option<leaving::Kept>) {
        self.state.borrow_mut().kept = kept;
        leaving::refuse(self.take_arrivals_of_nodes(), Refusal::NotOwner);
        self.fail_arrivals(&pressure::full());
    }

    /// The activation failed: so do those who waited for it. The next request tries again.
    pub(super) fn fail_arrivals(self: &Rc<Self>, why: &Failure) {
        let (arrivals, visits) = {
            let mut state = self.state.borrow_mut();
            state.phase = Phase::Cold;
            (std::mem::take(&mut state.arrivals), std::mem::take(&mut state.visits))
        };
        self.fail(arrivals, why);
        for (_, answer) in visits {
            let _gone = answer.send(Verdict::Failed);
        }
        self.forget_if_cold();
    }

    pub(super) fn deliver_arrivals(self: &Rc<Self>) {
        let mut is_skipped = false;
        loop {
            let (host, slot, arrival, is_given_up) = {
                let mut state = self.state.borrow_mut();
                let State { phase: Phase::Live(live), arrivals, ordered, .. } = &mut *state else {
                    return;
                };
                if !live.is_open || live.is_outdated || ordered.is_some() {
                    return;
                }
                let Some(arrival) = arrivals.pop_front() else { break };
                let is_given_up =
                    matches!(&arrival, Arrival::Fetch(wanted) if wanted.reply.is_given_up());
                if !is_given_up && !matches!(arrival, Arrival::Order(_)) {
                    live.busy += 1;
                }
                (live.host.clone(), live.slot, arrival, is_given_up)
            };
            if is_given_up {
                // It has not run, and need not.
                is_skipped = true;
                continue;
            }
            match arrival {
                Arrival::Fetch(wanted) => {
                    let Wanted { asked, reply, .. } = *wanted;
                    host.start_fetch(Some((self, slot)), asked, reply, None);
                }
                Arrival::Alarm { scheduled_ms, retries } => {
                    host.start_alarm(self, slot, scheduled_ms, retries);
                }
                Arrival::Socket(arrived) => self.start_socket_event(&host, slot, *arrived),
                Arrival::Order(ordered) => self.begin_order(ordered),
            }
        }
        if is_skipped {
            self.rest_if_idle();
        }
    }

    /// Tells those who wait that there is nothing for them. An alarm is owed all the same.
    pub(super) fn fail(self: &Rc<Self>, arrivals: VecDeque<Arrival>, why: &Failure) {
        for arrival in arrivals {
            match arrival {
                Arrival::Fetch(wanted) => wanted.reply.send(Err(why.clone())),
                Arrival::Alarm { .. } => {}
                Arrival::Socket(arrived) => self.close_socket(arrived.socket, &why.message),
                Arrival::Order(ordered) => self.fail_order(ordered, why),
            }
        }
    }
}
