//! Where requests for cells of other nodes go, for how long that is believed, and what follows
//! when one fails.
//!
//! Invariants: a route is used only until the deadline that the owner's lease had when it was
//! learnt; past it the ownership is read again, so an owner that stands still cannot keep clients
//! away from its cells. A request that may have run is never sent again.
//! Units: µs of this process.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::node::NodeId;
use crate::ownership::Route;
use crate::time::{Micros, Mono};

/// About 30 MB with the names of the cells; of more, the ownership is read more often.
pub const ROUTES_MAX: usize = 100_000;

/// The wait before a second attempt that follows at once otherwise; it doubles from there.
const BACKOFF_MIN: Micros = Micros::from_millis(10);

/// Short against a takeover, long enough not to read the record of a hot cell all the time.
const BACKOFF_MAX: Micros = Micros::from_millis(500);

/// The routes of one shard. `K` names a cell.
#[derive(Debug)]
pub struct Routes<K> {
    max: usize,
    routes: BTreeMap<K, Route>,
    deadlines: BTreeSet<(Mono, K)>,
}

impl<K: Clone + Ord> Routes<K> {
    /// None is known yet; no more than `max` ever are.
    pub fn new(max: usize) -> Self {
        Self { max, routes: BTreeMap::new(), deadlines: BTreeSet::new() }
    }
    /// Where to ask, without reading anything. `None`: activate the cell, which reads who owns it.
    pub fn get(&self, cell: &K, now: Mono) -> Option<&Route> {
        self.routes.get(cell).filter(|route| now < route.until)
    }
    /// The ownership and the lease of the owner were read. An older epoch than one that is known
    /// comes from an answer that was overtaken.
    pub fn learn(&mut self, cell: K, route: Route, now: Mono) {
        if self.get(&cell, now).is_some_and(|known| known.epoch > route.epoch) {
            return;
        }
        self.remove(&cell);
        if self.routes.len() >= self.max
            && let Some((_, first)) = self.deadlines.pop_first()
        {
            self.routes.remove(&first);
        }
        self.deadlines.insert((route.until, cell.clone()));
        self.routes.insert(cell, route);
    }
    /// A request failed there, or the cell is ours now. A newer route stays.
    pub fn forget(&mut self, cell: &K, failed: &Route) {
        if self.routes.get(cell).is_some_and(|known| known.epoch <= failed.epoch) {
            self.remove(cell);
        }
    }
    /// The node has gone: all of its cells are to be looked for. Walks all routes.
    pub fn forget_node(&mut self, node: &NodeId) {
        self.routes.retain(|_, route| route.owner.node != *node);
        let Self { routes, deadlines, .. } = self;
        deadlines.retain(|(_, cell)| routes.contains_key(cell));
    }
    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.routes.len()
    }
    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }
    fn remove(&mut self, cell: &K) {
        if let Some(route) = self.routes.remove(cell) {
            self.deadlines.remove(&(route.until, cell.clone()));
        }
    }
}

/// How a call of another node failed, by what is known of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// Not a byte of it left: there is no link, or its queue is full.
    NotSent,
    /// The other node says that it has not run it.
    Refused(Refusal),
    /// It left, at least in part, and no answer will come: it may have run.
    Lost,
    /// It left, and no answer came in time: it may run.
    TimedOut,
}

/// Why a node did not run a request. On the wire as a stable code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not own the cell, and was not asked to take it.
    NotOwner,
    /// It gives its cells away.
    Draining,
    /// Its queues are full, or the cell's.
    Overloaded,
    /// Its lease is over.
    Fenced,
    /// The cell cannot be activated there now.
    Unavailable,
}

/// What a request has used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// When it entered this node.
    pub since: Mono,
    /// Failed attempts so far, this one included.
    pub failures: u32,
    /// Whether a part of its body has been taken from the client, and cannot be sent again.
    pub is_body_begun: bool,
}

/// What to do with a request whose call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Forget the route, and start again from reading the ownership, then.
    Retry(Mono),
    /// Tell the client.
    GiveUp(GaveUp),
}

/// What the client is told. Each has a stable code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GaveUp {
    /// It may have run: whether it can be repeated, the client must know.
    #[error("the connection to the node that owns the Durable Object was lost")]
    MayHaveRun,
    /// It has not run; nobody could take it in time.
    #[error("no node could serve the Durable Object in time")]
    Unreachable,
    /// It has not run: too many wait.
    #[error("the node that owns the Durable Object is overloaded")]
    Overloaded,
    /// It has not run, but its body has been used up.
    #[error("the Durable Object moved while the request was sent")]
    Moved,
}

impl GaveUp {
    /// For clients and logs; never changes its meaning.
    pub fn code(self) -> &'static str {
        match self {
            Self::MayHaveRun => "owner_lost",
            Self::Unreachable => "owner_unreachable",
            Self::Overloaded => "owner_overloaded",
            Self::Moved => "owner_moved",
        }
    }
    /// Whether it is known that the request has not run, so that anybody may repeat it.
    pub fn is_retryable(self) -> bool {
        !matches!(self, Self::MayHaveRun)
    }
}

/// Decides about a request whose call failed at `now`. `patience`: how long a request may look for
/// an owner, from when it entered; longer than a takeover takes.
pub fn after_failure(error: CallError, attempt: Attempt, patience: Micros, now: Mono) -> Next {
    let last = match error {
        CallError::Lost | CallError::TimedOut => return Next::GiveUp(GaveUp::MayHaveRun),
        CallError::Refused(Refusal::Overloaded) => return Next::GiveUp(GaveUp::Overloaded),
        CallError::NotSent
        | CallError::Refused(
            Refusal::NotOwner | Refusal::Draining | Refusal::Fenced | Refusal::Unavailable,
        ) => attempt.since + patience,
    };
    if attempt.is_body_begun {
        return Next::GiveUp(GaveUp::Moved);
    }
    // A first refusal says that the route was old: a fresh look may find the owner at once.
    let is_first_refusal = matches!(error, CallError::Refused(_)) && attempt.failures <= 1;
    let doubled = BACKOFF_MIN.as_micros() << attempt.failures.min(10);
    let wait = Micros::from_micros(doubled).min(BACKOFF_MAX);
    let at = if is_first_refusal { now } else { now + wait };
    if at < last { Next::Retry(at) } else { Next::GiveUp(GaveUp::Unreachable) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::Epoch;
    use crate::node::SessionId;
    use crate::ownership::Owner;

    fn mono(ms: u64) -> Mono {
        Mono::from_micros(ms * 1_000)
    }
    fn route(node: &str, epoch: u64, until_ms: u64) -> Route {
        let owner = Owner {
            node: NodeId::parse(node).expect("a node"),
            session: SessionId::parse(&"a".repeat(32)).expect("a session"),
        };
        let epoch = Epoch::from_record(epoch).expect("not zero");
        Route { owner, epoch, until: mono(until_ms) }
    }
    /// Of a request that entered at 0 and may take 15 s.
    fn after(error: CallError, failures: u32, now_ms: u64) -> Next {
        let attempt = Attempt { since: mono(0), failures, is_body_begun: false };
        after_failure(error, attempt, Micros::from_secs(15), mono(now_ms))
    }

    #[test]
    fn a_route_is_used_until_the_lease_of_its_owner_may_be_over() {
        let mut routes = Routes::new(9);
        routes.learn(1, route("n1", 5, 1_000), mono(0));
        assert_eq!(routes.get(&1, mono(999)), Some(&route("n1", 5, 1_000)));
        assert_eq!(routes.get(&1, mono(1_000)), None);
        assert_eq!(routes.get(&2, mono(0)), None);
    }

    #[test]
    fn an_answer_that_was_overtaken_does_not_take_a_newer_route_back() {
        let mut routes = Routes::new(9);
        routes.learn(1, route("n2", 6, 1_000), mono(0));
        routes.learn(1, route("n1", 5, 2_000), mono(0));
        assert_eq!(routes.get(&1, mono(0)), Some(&route("n2", 6, 1_000)));
        routes.forget(&1, &route("n1", 5, 2_000));
        assert_eq!(routes.len(), 1, "the newer one has not failed");
        routes.forget(&1, &route("n2", 6, 1_000));
        assert!(routes.is_empty() && routes.deadlines.is_empty());
    }

    #[test]
    fn when_there_are_too_many_the_one_that_ends_first_goes() {
        let mut routes = Routes::new(2);
        for (cell, until) in [(1, 500), (2, 300), (3, 400)] {
            routes.learn(cell, route("n1", 1, until), mono(0));
        }
        assert_eq!((routes.len(), routes.get(&2, mono(0))), (2, None));
    }

    #[test]
    fn the_routes_to_a_node_that_has_gone_go_together() {
        let mut routes = Routes::new(9);
        routes.learn(1, route("n1", 1, 500), mono(0));
        routes.learn(2, route("n2", 1, 500), mono(0));
        routes.forget_node(&route("n1", 1, 0).owner.node);
        assert_eq!((routes.get(&1, mono(0)), routes.len()), (None, 1));
        assert_eq!(routes.deadlines.len(), 1);
    }

    #[test]
    fn a_request_that_may_have_run_is_never_sent_again() {
        for error in [CallError::Lost, CallError::TimedOut] {
            let next = after(error, 1, 0);
            assert_eq!(next, Next::GiveUp(GaveUp::MayHaveRun));
        }
        assert!(!GaveUp::MayHaveRun.is_retryable());
    }

    #[test]
    fn one_that_has_not_run_looks_for_the_owner_until_its_patience_is_over() {
        let (mut now, mut failures) = (0, 0);
        loop {
            failures += 1;
            match after(CallError::NotSent, failures, now) {
                Next::Retry(at) => now = at.as_micros() / 1_000,
                Next::GiveUp(reason) => {
                    assert_eq!(reason, GaveUp::Unreachable);
                    break;
                }
            }
        }
        assert!((14_400..15_000).contains(&now), "{now}");
        assert!((25..50).contains(&failures), "{failures} attempts");
    }

    #[test]
    fn an_old_route_costs_one_look_and_no_wait() {
        let refused = CallError::Refused(Refusal::NotOwner);
        assert_eq!(after(refused, 1, 7), Next::Retry(mono(7)));
        assert_eq!(after(refused, 2, 7), Next::Retry(mono(47)));
    }

    #[test]
    fn a_full_queue_and_a_body_that_is_used_up_are_told_at_once() {
        let full = CallError::Refused(Refusal::Overloaded);
        assert_eq!(after(full, 1, 0), Next::GiveUp(GaveUp::Overloaded));
        let attempt = Attempt { since: mono(0), failures: 1, is_body_begun: true };
        let refused = CallError::Refused(Refusal::Draining);
        let next = after_failure(refused, attempt, Micros::from_secs(15), mono(0));
        assert_eq!(next, Next::GiveUp(GaveUp::Moved));
    }
}
