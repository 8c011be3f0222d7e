//! The leases of other nodes, as this process sees them: who may still act, and until when.
//!
//! Nobody's wall clock counts here, and no two clocks are compared. What a record grants ends a TTL
//! after it was sent, and it was sent before anybody could read it. So a record that this process
//! has seen unchanged for a TTL and a margin, by its own monotonic clock, grants nothing any more;
//! a store that tells the age of its objects saves the wait.
//!
//! Invariant: `Dead` follows a read that began a TTL and a margin after the record had been there,
//! and still found it. A renewal that arrives later helps nobody: its session found its right
//! expired before it heard of it.
//! Units: µs of this process. Clocks may run at rates that differ by less than the margin.
//! Source: "Leases", SOSP 1989, section 5: only the rates of clocks must agree.

use alloc::collections::BTreeMap;

use super::{Record, Standing};
use crate::cas::Etag;
use crate::node::{NodeId, SessionId};
use crate::ownership::Owner;
use crate::time::{Micros, Mono};

/// A twentieth: the rates of two clocks differ by a thousandth at most where they are kept by NTP.
const MARGIN_PART: u64 = 20;

/// Nodes that are remembered; a fleet has far fewer, and the record of a forgotten one is read
/// again.
const NODES_MAX: usize = 10_000;

/// How long others wait after a lease of `ttl` would be over by their own clock.
pub fn margin(ttl: Micros) -> Micros {
    Micros::from_micros(ttl.as_micros() / MARGIN_PART)
}

/// What has been read of `nodes/`.
#[derive(Clone, Debug, Hash)]
pub struct Watch {
    /// What a record may have granted that is not there any more.
    ttl: Micros,
    nodes: BTreeMap<NodeId, Sighting>,
}

#[derive(Clone, Debug, Hash)]
struct Sighting {
    /// `None`: there was no record.
    record: Option<(Record, Etag)>,
    /// When what it grants is over, unless it changes.
    until: Mono,
    /// The begin of the latest read that found it so.
    confirmed: Mono,
}

/// One read of a lease record.
#[derive(Clone, Debug)]
pub struct Read {
    /// When it began and when it ended.
    pub begun: Mono,
    /// See `begun`.
    pub ended: Mono,
    /// What was there.
    pub record: Option<(Record, Etag)>,
    /// What was there is at least that old, by the clock of the store. Zero: it does not tell.
    pub age_min: Micros,
}

/// The lease of the owner of a cell, as another node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerLease {
    /// The owner may act until then, or longer: past it, read again.
    Live(Mono),
    /// Its time is over.
    Dead,
    /// It has given up its right.
    Retired,
    /// A later session of the same node has the record: the owner is a life that ended.
    Replaced,
}

impl Watch {
    /// Nothing has been read. `ttl`: of the leases of this fleet.
    pub fn new(ttl: Micros) -> Self {
        Self { ttl, nodes: BTreeMap::new() }
    }
    /// The record of `node` was read. Reads may end in any order.
    pub fn saw(&mut self, node: &NodeId, read: Read) {
        let Read { begun, ended, record, age_min } = read;
        let ttl = record.as_ref().map_or(self.ttl, |(record, _)| record.ttl);
        let grace = ended + ttl + margin(ttl);
        let until = Mono::from_micros(grace.since(Mono::default() + age_min).as_micros());
        if let Some(known) = self.nodes.get_mut(node)
            && version(&known.record) == version(&record)
        {
            known.until = known.until.min(until);
            known.confirmed = known.confirmed.max(begun);
            return;
        }
        if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(node) {
            self.nodes.pop_first();
        }
        self.nodes.insert(node.clone(), Sighting { record, until, confirmed: begun });
    }
    /// Whether `owner` may still act, from the latest read of the record of its node; `None`:
    /// there was none.
    pub fn judge(&self, owner: &Owner) -> Option<OwnerLease> {
        let known = self.nodes.get(&owner.node)?;
        if let Some((record, _)) = &known.record {
            if record.session != owner.session {
                return Some(OwnerLease::Replaced);
            }
            if record.is_retired() {
                return Some(OwnerLease::Retired);
            }
        }
        let is_over = known.confirmed >= known.until;
        Some(if is_over { OwnerLease::Dead } else { OwnerLease::Live(known.until) })
    }
    /// Whether the session whose record stands under our own name may still act; `None`: nothing
    /// stands there. `ended`: sessions of which it is known that their process has ended, because
    /// they ran on the state directory that we have locked.
    pub fn standing(&self, node: &NodeId, ended: &[SessionId]) -> Option<Standing> {
        let (record, _) = self.nodes.get(node)?.record.as_ref()?;
        if ended.contains(&record.session) {
            return Some(Standing::Over);
        }
        let owner = Owner { node: node.clone(), session: record.session.clone() };
        Some(match self.judge(&owner)? {
            OwnerLease::Live(until) => Standing::Until(until),
            OwnerLease::Dead | OwnerLease::Retired | OwnerLease::Replaced => Standing::Over,
        })
    }
    /// The records of the nodes that may act now, in the order of their names.
    pub fn live(&self, now: Mono) -> impl Iterator<Item = &Record> {
        self.nodes.values().filter_map(move |known| {
            let (record, _) = known.record.as_ref()?;
            let is_live = !record.is_retired() && now < known.until;
            is_live.then_some(record)
        })
    }
    /// The record of `node`, if one was there.
    pub fn record(&self, node: &NodeId) -> Option<&Record> {
        self.nodes.get(node)?.record.as_ref().map(|(record, _)| record)
    }
    /// Nodes whose records have granted nothing for at least `span`: they may be deleted. Should
    /// one of them be written anew at that moment, its session finds it missing and fences itself,
    /// and others wait for what it may have granted.
    pub fn over(&self, span: Micros) -> impl Iterator<Item = &NodeId> {
        let is_over =
            move |known: &Sighting| known.record.is_some() && known.confirmed >= known.until + span;
        self.nodes.iter().filter(move |(_, known)| is_over(known)).map(|(node, _)| node)
    }
    /// The node is not in the listing of `nodes/` any more, which says nothing about its right.
    pub fn forget(&mut self, node: &NodeId) {
        self.nodes.remove(node);
    }
}

fn version(record: &Option<(Record, Etag)>) -> Option<&Etag> {
    record.as_ref().map(|(_, etag)| etag)
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::super::record::tests::record;
    use super::*;

    /// A watch of a fleet with leases of 10 s, and with them margins of 0.5 s.
    struct Case(Watch);

    impl Case {
        fn new() -> Self {
            Self(Watch::new(Micros::from_secs(10)))
        }
        /// A read that began then and took 100 ms found this.
        fn reads(&mut self, ms: u64, found: Option<(Record, u64)>) -> OwnerLease {
            self.reads_aged(ms, found, 0)
        }
        fn reads_aged(&mut self, ms: u64, found: Option<(Record, u64)>, age_ms: u64) -> OwnerLease {
            let record = found.map(|(record, etag)| (record, Etag::new(etag.to_string())));
            let (begun, ended) = (mono(ms), mono(ms + 100));
            let age_min = Micros::from_millis(age_ms);
            self.0.saw(&node(), Read { begun, ended, record, age_min });
            self.0.judge(&owner("a")).expect("it was read")
        }
        fn live(&self, ms: u64) -> usize {
            self.0.live(mono(ms)).count()
        }
    }
    fn mono(ms: u64) -> Mono {
        Mono::from_micros(ms * 1_000)
    }
    fn node() -> NodeId {
        NodeId::parse("n1").expect("a node")
    }
    fn owner(session: &str) -> Owner {
        let session = SessionId::parse(&session.repeat(32)).expect("a session");
        Owner { node: node(), session }
    }
    fn is(etag: u64) -> Option<(Record, u64)> {
        Some((record("a"), etag))
    }

    #[test]
    fn a_lease_is_over_when_its_record_stood_still_for_a_ttl_and_a_margin() {
        let mut case = Case::new();
        assert_eq!(case.0.judge(&owner("a")), None);
        assert_eq!(case.reads(0, is(1)), OwnerLease::Live(mono(10_600)));
        assert_eq!(case.reads(10_599, is(1)), OwnerLease::Live(mono(10_600)));
        assert_eq!(case.live(10_599), 1);
        assert_eq!(case.live(10_600), 0);
        assert_eq!(case.reads(10_600, is(1)), OwnerLease::Dead);
    }

    #[test]
    fn time_alone_proves_nothing_it_takes_a_read_that_began_after_it() {
        let mut case = Case::new();
        case.reads(0, is(1));
        // The process stood still for a minute. Who knows what was renewed meanwhile?
        assert_eq!(case.live(60_000), 0);
        assert_eq!(case.0.judge(&owner("a")), Some(OwnerLease::Live(mono(10_600))));
        assert_eq!(case.reads(60_000, is(9)), OwnerLease::Live(mono(70_600)));
        // A read that began in time, and ended late.
        let record = Some((record("a"), Etag::new("9")));
        let late = Read { begun: mono(60_200), ended: mono(99_000), record, age_min: Micros::ZERO };
        case.0.saw(&node(), late);
        assert_eq!(case.0.judge(&owner("a")), Some(OwnerLease::Live(mono(70_600))));
    }

    #[test]
    fn each_renewal_counts_from_when_it_was_first_seen() {
        let mut case = Case::new();
        case.reads(0, is(1));
        assert_eq!(case.reads(5_000, is(2)), OwnerLease::Live(mono(15_600)));
        assert_eq!(case.reads(8_000, is(2)), OwnerLease::Live(mono(15_600)));
        assert_eq!(case.live(15_000), 1);
    }

    #[test]
    fn the_age_that_the_store_tells_saves_the_wait() {
        let mut case = Case::new();
        assert_eq!(case.reads_aged(20_000, is(1), 4_000), OwnerLease::Live(mono(26_600)));
        let mut case = Case::new();
        assert_eq!(case.reads_aged(20_000, is(1), 10_600), OwnerLease::Dead);
        // Also for a process that is younger than the record.
        let mut case = Case::new();
        assert_eq!(case.reads_aged(0, is(1), 3_600_000), OwnerLease::Dead);
    }

    #[test]
    fn a_record_that_is_gone_may_have_granted_until_then() {
        let mut case = Case::new();
        case.reads(0, is(1));
        assert_eq!(case.reads(1_000, None), OwnerLease::Live(mono(11_600)));
        assert_eq!(case.live(1_000), 0, "nobody is sent there");
        assert_eq!(case.reads(11_600, None), OwnerLease::Dead);
    }

    #[test]
    fn a_session_that_was_replaced_or_has_retired_is_over_at_once() {
        let mut case = Case::new();
        assert_eq!(case.reads(0, Some((record("b"), 1))), OwnerLease::Replaced);
        let retired = Record { ttl: Micros::ZERO, ..record("a") };
        assert_eq!(case.reads(1_000, Some((retired, 2))), OwnerLease::Retired);
        assert_eq!(case.live(1_000), 0);
    }

    #[test]
    fn a_record_may_be_deleted_long_after_it_was_over() {
        let mut case = Case::new();
        let over = |case: &Case| case.0.over(Micros::from_secs(60)).count();
        case.reads(0, is(1));
        case.reads(70_599, is(1));
        assert_eq!(over(&case), 0);
        case.reads(70_600, is(1));
        assert_eq!(over(&case), 1);
        case.reads(70_700, None);
        case.reads(999_000, None);
        assert_eq!(over(&case), 0, "it is gone");
    }

    #[test]
    fn an_earlier_life_on_the_same_state_directory_is_known_to_have_ended() {
        let mut case = Case::new();
        assert_eq!(case.0.standing(&node(), &[]), None);
        case.reads(0, is(1));
        let standing = |ended: &[SessionId]| case.0.standing(&node(), ended);
        assert_eq!(standing(&[]), Some(Standing::Until(mono(10_600))));
        assert_eq!(standing(&[owner("b").session]), Some(Standing::Until(mono(10_600))));
        assert_eq!(standing(&[owner("b").session, owner("a").session]), Some(Standing::Over));
    }
}
