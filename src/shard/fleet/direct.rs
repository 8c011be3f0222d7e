//! Routes that a realm knows to cells of other nodes, so that its requests need not go through the
//! shard that the cell would be on here.
//!
//! Such a route comes with an answer that has gone the longer way, and is used while there is a
//! connection from this shard to the one that has the cell. Calls on one stub arrive in order. So
//!
//! - a stub that has had a call on the longer way stays on it: only those go directly that were made
//!   after the last one of which that may be so (they are numbered in that order, and most live for
//!   one request);
//! - while direct calls of a cell are under way, others take the same connection. When it has ended,
//!   what was sent on it has arrived, or will not.
//!
//! Invariant: past its deadline a route is not used, but for calls that would overtake others. These
//! end with the connection, which is cut when the lease of the owner is over.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use celld_core::cell::CellId;
use celld_core::ownership::Route;
use celld_core::time::Mono;
use celld_peer::Link;
use rustc_hash::FxHashMap;

/// Cells; of more, requests take the longer way.
const ROUTES_MAX: usize = 16_384;

/// What calls go directly on: a link, but for tests.
pub(crate) trait Lane: Clone {
    /// Whether calls are sent on it at once.
    fn is_up(&self) -> bool;
}

impl Lane for Link {
    fn is_up(&self) -> bool {
        Link::is_up(self)
    }
}

/// Of one realm.
#[derive(Debug)]
pub(crate) struct Direct<L = Link> {
    routes: RefCell<FxHashMap<CellId, Known<L>>>,
    /// The last stub that was used for a call over another shard.
    last_around: Cell<u64>,
    /// Until then none of them ends, and there is room for no other.
    full_until: Cell<Mono>,
}

#[derive(Debug)]
struct Known<L> {
    route: Route,
    /// Stubs up to this one do not use it.
    old_stubs: u64,
    /// What the last call went on.
    lane: Option<L>,
    /// Shared with each call that is under way.
    under_way: Rc<()>,
}

/// How one call goes directly; to be kept until it is answered.
#[derive(Debug)]
pub(crate) struct Way<L = Link> {
    pub route: Route,
    pub lane: L,
    pub stub: u64,
    _under_way: Rc<()>,
}

impl<L> Default for Direct<L> {
    fn default() -> Self {
        let (last_around, full_until) = (Cell::default(), Cell::default());
        Self { routes: RefCell::default(), last_around, full_until }
    }
}

impl<L> Known<L> {
    fn new(route: Route, old_stubs: u64) -> Self {
        Self { route, old_stubs, lane: None, under_way: Rc::default() }
    }

    /// Whether calls are under way.
    fn is_used(&self) -> bool {
        Rc::strong_count(&self.under_way) > 1
    }

    fn way(&self, route: Route, lane: L, stub: u64) -> Way<L> {
        Way { route, lane, stub, _under_way: self.under_way.clone() }
    }
}

impl<L: Lane> Direct<L> {
    /// How a call on a stub can go at once; otherwise it is to go over another shard. `find`: the lane
    /// that there is now, if it is up.
    pub fn way(
        &self,
        cell: &CellId,
        stub: u64,
        now: Mono,
        find: impl FnOnce(&Route) -> Option<L>,
    ) -> Option<Way<L>> {
        let way = self.direct_way(cell, stub, now, find);
        if way.is_none() {
            self.goes_around(cell, stub);
        }
        way
    }

    fn direct_way(
        &self,
        cell: &CellId,
        stub: u64,
        now: Mono,
        find: impl FnOnce(&Route) -> Option<L>,
    ) -> Option<Way<L>> {
        let route = {
            let routes = self.routes.borrow();
            let known = routes.get(cell).filter(|known| stub > known.old_stubs)?;
            if known.is_used() {
                let lane = known.lane.clone().filter(Lane::is_up)?;
                return Some(known.way(known.route.clone(), lane, stub));
            }
            (now < known.route.until).then(|| known.route.clone())?
        };
        let lane = find(&route)?;
        let mut routes = self.routes.borrow_mut();
        let known = routes.get_mut(cell)?;
        known.lane = Some(lane.clone());
        Some(known.way(route, lane, stub))
    }

    /// A call on this stub goes over another shard.
    pub fn goes_around(&self, cell: &CellId, stub: u64) {
        self.last_around.set(self.last_around.get().max(stub));
        if let Some(known) = self.routes.borrow_mut().get_mut(cell) {
            known.old_stubs = known.old_stubs.max(stub);
        }
    }

    /// An answer has come from there.
    pub fn learn(&self, cell: CellId, route: Route, now: Mono) {
        let mut routes = self.routes.borrow_mut();
        if let Some(known) = routes.get_mut(&cell) {
            let (old, new) = (&known.route, &route);
            if now < old.until && (old.epoch, old.until) >= (new.epoch, new.until) {
                return;
            }
            if (&old.owner, old.epoch) == (&new.owner, new.epoch) {
                known.route = route;
                return;
            }
        } else if routes.len() >= ROUTES_MAX {
            if now < self.full_until.get() {
                return;
            }
            routes.retain(|_, known| now < known.route.until || known.is_used());
            if routes.len() >= ROUTES_MAX {
                let ends = routes.values().map(|known| known.route.until).min();
                return self.full_until.set(ends.unwrap_or(now).max(now));
            }
        }
        routes.insert(cell, Known::new(route, self.last_around.get()));
    }

    /// A request has failed there.
    pub fn forget(&self, cell: &CellId) {
        self.routes.borrow_mut().remove(cell);
    }
}

#[cfg(test)]
mod tests {
    use celld_core::epoch::Epoch;
    use celld_core::node::{NodeId, SessionId};
    use celld_core::ownership::Owner;

    use super::{Cell, CellId, Direct, Lane, Mono, ROUTES_MAX, Rc, Route};

    const fn at(us: u64) -> Mono {
        Mono::from_micros(us)
    }

    fn cell(n: u64) -> CellId {
        CellId::new("Room", &format!("{n:064x}")).expect("a good name")
    }

    fn route(epoch: u64, until: u64) -> Route {
        let node = NodeId::parse("b").expect("a name");
        let session = SessionId::parse(&"b".repeat(32)).expect("32 digits");
        let epoch = Epoch::from_record(epoch).expect("not zero");
        Route { owner: Owner { node, session }, epoch, until: at(until) }
    }

    /// Up or not.
    type Link = Rc<Cell<bool>>;

    impl Lane for Link {
        fn is_up(&self) -> bool {
            self.get()
        }
    }

    fn up() -> Link {
        Rc::new(Cell::new(true))
    }

    /// Whether a call on a stub to the cell 1 goes directly, and is answered at once.
    fn goes(direct: &Direct<Link>, stub: u64, now: u64) -> Option<Route> {
        direct.way(&cell(1), stub, at(now), |_| Some(up())).map(|way| way.route)
    }

    #[test]
    fn a_stub_that_may_have_calls_on_the_longer_way_stays_on_it() {
        let direct = Direct::default();
        for stub in [3, 7, 5] {
            assert_eq!(goes(&direct, stub, 1), None);
        }
        direct.learn(cell(1), route(1, 100), at(1));
        for (stub, is_direct) in [(3, false), (7, false), (8, true), (90, true)] {
            assert_eq!(goes(&direct, stub, 2).is_some(), is_direct, "stub {stub}");
        }
        // The same again does not hold up newer stubs, nor does it if it lasts for longer.
        direct.goes_around(&cell(2), 20);
        direct.learn(cell(1), route(1, 100), at(3));
        direct.learn(cell(1), route(1, 150), at(3));
        assert_eq!(goes(&direct, 8, 120), Some(route(1, 150)));
        // Another ownership does.
        direct.learn(cell(1), route(2, 200), at(5));
        assert_eq!(goes(&direct, 20, 6), None);
        assert_eq!(goes(&direct, 21, 6), Some(route(2, 200)));
        // Whatever kept a call from going directly: the next one on its stub does not overtake it.
        assert!(direct.way(&cell(1), 25, at(7), |_| None).is_none());
        assert_eq!(goes(&direct, 25, 8), None);
        assert_eq!(goes(&direct, 26, 200), None);
        direct.learn(cell(1), route(2, 300), at(201));
        assert_eq!(goes(&direct, 26, 202), None);
        assert_eq!(goes(&direct, 27, 202), Some(route(2, 300)));
        // Also one that has failed and starts again.
        direct.forget(&cell(1));
        direct.goes_around(&cell(1), 28);
        direct.learn(cell(1), route(2, 400), at(203));
        assert_eq!(goes(&direct, 28, 204), None);
        assert!(goes(&direct, 29, 204).is_some());
    }

    #[test]
    fn calls_go_on_as_those_that_are_under_way_while_their_lane_is_up() {
        let direct = Direct::default();
        let (first, second) = (up(), up());
        let way = |stub, now, lane: &Link| {
            direct.way(&cell(1), stub, at(now), |_| Some(lane.clone())).map(|way| {
                assert!(Rc::ptr_eq(&way.lane, &first) || Rc::ptr_eq(&way.lane, &second));
                (Rc::ptr_eq(&way.lane, &first), way)
            })
        };
        direct.learn(cell(1), route(1, 100), at(0));
        let (is_first, under_way) = way(1, 1, &first).expect("direct");
        assert!(is_first);
        // Neither other links nor the deadline make others overtake it, also not on newer stubs.
        for (stub, now) in [(1, 2), (1, 100), (2, 150)] {
            assert!(way(stub, now, &second).expect("direct").0, "stub {stub} at {now}");
        }
        // Its answer has come.
        drop(under_way);
        assert!(way(3, 151, &second).is_none());
        direct.learn(cell(1), route(1, 300), at(160));
        let (is_first, under_way) = way(4, 161, &second).expect("direct");
        assert!(!is_first);
        // The link has ended, and with it what was under way.
        second.set(false);
        assert!(way(4, 162, &first).is_none());
        assert!(way(5, 162, &first).is_none());
        drop(under_way);
        assert!(way(4, 163, &first).is_none() && way(5, 163, &first).is_none());
        assert!(way(6, 163, &first).is_some());
    }

    #[test]
    fn routes_end_with_their_deadline_or_a_failure_and_are_bounded() {
        let direct = Direct::default();
        // Each with a stub of its own, as a call that goes around holds up its stub.
        let stubs = Cell::new(0);
        let goes = |now| {
            stubs.set(stubs.get() + 1);
            goes(&direct, stubs.get(), now)
        };
        direct.learn(cell(1), route(5, 100), at(0));
        assert!(goes(99).is_some());
        assert_eq!(goes(100), None);
        // What was overtaken counts only when nothing better does.
        direct.learn(cell(1), route(4, 150), at(50));
        assert_eq!(goes(99), Some(route(5, 100)));
        direct.learn(cell(1), route(6, 90), at(60));
        assert_eq!(goes(70), Some(route(6, 90)));
        direct.learn(cell(1), route(4, 150), at(120));
        assert_eq!(goes(130), Some(route(4, 150)));
        direct.forget(&cell(1));
        assert_eq!(goes(130), None);
        for n in 0..2 * ROUTES_MAX as u64 {
            direct.learn(cell(n), route(1, 200), at(0));
        }
        assert_eq!(direct.routes.borrow().len(), ROUTES_MAX);
        direct.learn(cell(u64::MAX), route(1, 900), at(300));
        assert_eq!(direct.routes.borrow().len(), 1);
    }
}
