//! Routes that a realm knows to cells of other nodes, so that its requests need not go through the
//! shard that the cell would be on here.
//!
//! Such a route comes with an answer that has gone that way. Calls on one stub arrive in order, so a
//! stub that may have calls on the longer way stays on it: only those go directly that were made
//! after the last one that was used for it when the route came. (They are numbered in that order,
//! and most live for one request.)
//!
//! Invariant: as that of `core::route`: past its deadline a route is not used.

use std::cell::{Cell, RefCell};

use celld_core::cell::CellId;
use celld_core::ownership::Route;
use celld_core::time::Mono;
use rustc_hash::FxHashMap;

/// Cells; of more, requests take the longer way.
const ROUTES_MAX: usize = 16_384;

/// Of one realm.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    routes: RefCell<FxHashMap<CellId, Known>>,
    /// The last stub that was used for a call over another shard.
    last_around: Cell<u64>,
    /// Until then none of them ends, and there is room for no other.
    full_until: Cell<Mono>,
}

#[derive(Debug)]
struct Known {
    route: Route,
    /// Stubs up to this one do not use it.
    old_stubs: u64,
}

impl Direct {
    /// Where a call on a stub can go at once.
    pub fn route(&self, cell: &CellId, stub: u64, now: Mono) -> Option<Route> {
        let routes = self.routes.borrow();
        let known = routes.get(cell)?;
        (stub > known.old_stubs && now < known.route.until).then(|| known.route.clone())
    }

    /// A call on this stub goes over another shard.
    pub fn goes_around(&self, stub: u64) {
        self.last_around.set(self.last_around.get().max(stub));
    }

    /// An answer has come from there.
    pub fn learn(&self, cell: CellId, route: Route, now: Mono) {
        let mut routes = self.routes.borrow_mut();
        let is_old = |known: &Known| {
            let (known, new) = (&known.route, &route);
            now < known.until && (known.epoch, known.until) >= (new.epoch, new.until)
        };
        if routes.get(&cell).is_some_and(is_old) {
            return;
        }
        if routes.len() >= ROUTES_MAX && !routes.contains_key(&cell) {
            if now < self.full_until.get() {
                return;
            }
            routes.retain(|_, known| now < known.route.until);
            if routes.len() >= ROUTES_MAX {
                let ends = routes.values().map(|known| known.route.until).min();
                return self.full_until.set(ends.unwrap_or(now));
            }
        }
        routes.insert(cell, Known { route, old_stubs: self.last_around.get() });
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

    use super::*;

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

    #[test]
    fn a_stub_that_may_have_calls_on_the_longer_way_stays_on_it() {
        let direct = Direct::default();
        for stub in [3, 7, 5] {
            assert_eq!(direct.route(&cell(1), stub, at(1)), None);
            direct.goes_around(stub);
        }
        direct.learn(cell(1), route(1, 100), at(1));
        for (stub, is_direct) in [(3, false), (7, false), (8, true), (90, true)] {
            assert_eq!(direct.route(&cell(1), stub, at(2)).is_some(), is_direct, "stub {stub}");
        }
        assert_eq!(direct.route(&cell(2), 8, at(2)), None);
        // The same again is no news, and does not hold up newer stubs.
        direct.goes_around(20);
        direct.learn(cell(1), route(1, 100), at(3));
        assert!(direct.route(&cell(1), 8, at(4)).is_some());
        direct.learn(cell(1), route(2, 200), at(5));
        assert_eq!(direct.route(&cell(1), 20, at(6)), None);
        assert_eq!(direct.route(&cell(1), 21, at(6)), Some(route(2, 200)));
    }

    #[test]
    fn routes_end_with_their_deadline_or_a_failure_and_are_bounded() {
        let direct = Direct::default();
        direct.learn(cell(1), route(5, 100), at(0));
        assert!(direct.route(&cell(1), 1, at(99)).is_some());
        assert_eq!(direct.route(&cell(1), 1, at(100)), None);
        // What was overtaken counts only when nothing better does.
        direct.learn(cell(1), route(4, 150), at(50));
        assert_eq!(direct.route(&cell(1), 1, at(99)), Some(route(5, 100)));
        direct.learn(cell(1), route(6, 90), at(60));
        assert_eq!(direct.route(&cell(1), 1, at(70)), Some(route(6, 90)));
        direct.learn(cell(1), route(4, 150), at(120));
        assert_eq!(direct.route(&cell(1), 1, at(130)), Some(route(4, 150)));
        direct.forget(&cell(1));
        assert_eq!(direct.route(&cell(1), 1, at(130)), None);
        for n in 0..2 * ROUTES_MAX as u64 {
            direct.learn(cell(n), route(1, 200), at(0));
        }
        assert_eq!(direct.routes.borrow().len(), ROUTES_MAX);
        direct.learn(cell(u64::MAX), route(1, 900), at(300));
        assert_eq!(direct.routes.borrow().len(), 1);
    }
}
