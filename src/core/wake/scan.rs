//! The scan of the wake index: visits the cells whose entries are due.
//!
//! One node of the fleet scans, and a second one, rarely, should the first be unable to reach
//! somebody: the rank comes from the lease records ([`crate::placement`]). That two nodes
//! take themselves for the first does no harm, as a visit may be repeated.
//!
//! Invariants: one LIST at a time, of one page; the next page only when few visits of this one are
//! left. Only what an owner called done is deleted.
//! Units: entries are due by [`Wall`], timers are [`Mono`].

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::mem;

use super::{Entry, Verdict};
use crate::time::{Micros, Mono, Wall};

/// Between two passes of the first node: how late an alarm may be that nobody has in memory. A
/// LIST each five seconds costs a few dollars a month where requests are paid for.
pub const PASS_EVERY: Micros = Micros::from_secs(5);

/// Between two passes of the second node.
const PASS_EVERY_SECOND: Micros = Micros::from_secs(60);

/// Cells that are visited at a time: activations of cold cells, at worst.
pub const VISITS_MAX: usize = 64;

/// Entries of a page that may be left when the next one is asked for.
const LEFT_MAX: usize = 200;

/// Entries that are to be left alone for a while; of more, some are visited too often.
const RESTING_MAX: usize = 10_000;

/// When an entry is visited again that is still needed.
const LATER: Micros = Micros::from_secs(20);

/// When an entry is visited again after a first failure; it doubles from there.
const FAILED_MIN: Micros = Micros::from_secs(2);

/// Long enough to spare a cell that cannot be activated, short enough for its operator.
const FAILED_MAX: Micros = Micros::from_secs(300);

/// Keys of one delete.
const DELETE_MAX: usize = 1_000;

/// The machine. It wants one timer at a time: a new `SetTimer` replaces the one before.
#[derive(Debug, Default)]
pub struct Scan {
    every: Option<Micros>,
    list: List,
    queue: VecDeque<Entry>,
    visits: usize,
    /// To be visited, being visited, or done and not yet told to be deleted.
    known: BTreeSet<Entry>,
    /// Until when, and after how many failures.
    resting: BTreeMap<Entry, (Mono, u32)>,
    done: Vec<Entry>,
}

#[derive(Debug, Default)]
enum List {
    /// Between two passes.
    #[default]
    Idle,
    /// A page is on its way.
    Asked,
    /// There may be more that is due, after this key.
    More(String),
}

/// What the scan is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Which node of the fleet this is. 0: the first. Told whenever it may have changed.
    Ranked(usize),
    /// The timer is due.
    TimerFired,
    /// The page that was asked for.
    Listed(Page),
    /// It could not be had.
    ListFailed,
    /// The visit ended so.
    Visited(Entry, Verdict),
}

/// One page of the index, in the order of the keys.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Page {
    /// Those that are entries.
    pub entries: Vec<Entry>,
    /// The last key of the page, if there may be more.
    pub more: Option<String>,
}

/// What the scan wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// List one page below [`super::PREFIX`], after this key.
    List(Option<String>),
    /// Ask the owner of the cell, whoever that is; make it somebody's if it is nobody's, but never
    /// create it. Ends in one `Visited`.
    Visit(Entry),
    /// Delete these. Nobody waits for the end: what stays is visited again.
    Delete(Vec<Entry>),
    /// Tell `TimerFired` then.
    SetTimer(Mono),
}

impl Scan {
    /// Takes the event in, then visits and lists what is due. `wall` is the same instant as `now`.
    ///
    /// # Panics
    /// On a page or a visit that was not asked for.
    pub fn on_event(&mut self, now: Mono, wall: Wall, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Ranked(rank) => self.rank(now, rank, effects),
            Event::TimerFired => self.begin(now, effects),
            Event::Listed(page) => self.listed(now, wall, page),
            Event::ListFailed => {
                assert!(matches!(self.list, List::Asked), "a page was not asked for");
                self.list = List::Idle;
            }
            Event::Visited(entry, verdict) => self.visited(now, entry, verdict),
        }
        self.go_on(effects);
    }
    fn rank(&mut self, now: Mono, rank: usize, effects: &mut Vec<Effect>) {
        let every = match rank {
            0 => Some(PASS_EVERY),
            1 => Some(PASS_EVERY_SECOND),
            _ => None,
        };
        if mem::replace(&mut self.every, every) != every
            && let Some(every) = every
        {
            // Not at once: whoever was the first before has just looked.
            effects.push(Effect::SetTimer(now + every));
        }
    }
    fn begin(&mut self, now: Mono, effects: &mut Vec<Effect>) {
        let Some(every) = self.every else { return };
        effects.push(Effect::SetTimer(now + every));
        // A pass that takes longer goes on.
        if matches!(self.list, List::Idle) {
            // One that failed is remembered for longer: its next failure is not the first.
            self.resting.retain(|_, (until, _)| now < *until + FAILED_MAX);
            self.list = List::Asked;
            effects.push(Effect::List(None));
        }
    }
    fn listed(&mut self, now: Mono, wall: Wall, page: Page) {
        assert!(matches!(self.list, List::Asked), "a page was not asked for");
        let is_last = page.entries.last().is_some_and(|last| last.minute() > minute(wall));
        for entry in page.entries {
            let rests = self.resting.get(&entry).is_some_and(|(until, _)| now < *until);
            if entry.is_due(wall) && !rests && self.known.insert(entry.clone()) {
                self.queue.push_back(entry);
            }
        }
        self.list = match page.more {
            Some(key) if !is_last => List::More(key),
            Some(_) | None => List::Idle,
        };
    }
    fn visited(&mut self, now: Mono, entry: Entry, verdict: Verdict) {
        assert!(self.visits > 0 && self.known.contains(&entry), "a visit was not asked for");
        self.visits -= 1;
        let failures = self.resting.remove(&entry).map_or(0, |(_, failures)| failures);
        let (wait, failures) = match verdict {
            Verdict::Done => return self.done.push(entry),
            Verdict::Later => (LATER, 0),
            Verdict::Failed => {
                let doubled = FAILED_MIN.as_micros() << failures.min(8);
                (Micros::from_micros(doubled).min(FAILED_MAX), failures + 1)
            }
        };
        self.known.remove(&entry);
        if self.resting.len() < RESTING_MAX {
            self.resting.insert(entry, (now + wait, failures));
        }
    }
    fn go_on(&mut self, effects: &mut Vec<Effect>) {
        while self.visits < VISITS_MAX
            && let Some(entry) = self.queue.pop_front()
        {
            self.visits += 1;
            effects.push(Effect::Visit(entry));
        }
        if self.queue.len() <= LEFT_MAX
            && let List::More(key) = &mut self.list
        {
            effects.push(Effect::List(Some(mem::take(key))));
            self.list = List::Asked;
        }
        let is_quiet = self.visits == 0 && self.queue.is_empty();
        if self.done.len() >= DELETE_MAX || (is_quiet && !self.done.is_empty()) {
            for entry in &self.done {
                self.known.remove(entry);
            }
            effects.push(Effect::Delete(mem::take(&mut self.done)));
        }
    }
}

fn minute(wall: Wall) -> u64 {
    wall.as_millis() / 60_000
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use std::format;

    use super::*;
    use crate::cell::CellId;
    use crate::epoch::Epoch;

    /// A scan, on a wall clock that is 1,000 s ahead of the monotonic one.
    #[derive(Default)]
    struct Case(Scan);

    impl Case {
        fn at(&mut self, s: u64, event: Event) -> Vec<Effect> {
            let mut effects = vec![];
            let wall = Wall::from_millis((1_000 + s) * 1_000);
            self.0.on_event(mono(s), wall, event, &mut effects);
            effects
        }
        /// A first node that has asked for its first page.
        fn listing() -> Self {
            let mut case = Self::default();
            assert_eq!(case.at(0, Event::Ranked(0)), [Effect::SetTimer(mono(5))]);
            let effects = case.at(5, Event::TimerFired);
            assert_eq!(effects, [Effect::SetTimer(mono(10)), Effect::List(None)]);
            case
        }
        fn listed(&mut self, s: u64, entries: &[Entry], more: Option<&str>) -> Vec<Effect> {
            let more = more.map(Into::into);
            self.at(s, Event::Listed(Page { entries: entries.to_vec(), more }))
        }
    }
    fn mono(s: u64) -> Mono {
        Mono::from_micros(s * 1_000_000)
    }
    /// Of cell `n`.
    fn entry(due_s: u64, n: usize) -> Entry {
        let cell = CellId::new("app.Room", &format!("{n:064x}")).expect("a good name");
        Entry { due_s, cell, epoch: Epoch::FIRST, number: 1 }
    }
    fn visit(entry: &Entry) -> Effect {
        Effect::Visit(entry.clone())
    }

    #[test]
    fn what_is_due_is_visited_and_what_is_not_is_left_alone() {
        let mut case = Case::listing();
        let entries = [entry(0, 1), entry(1_005, 2), entry(1_006, 3), entry(9_000, 4)];
        assert_eq!(case.listed(5, &entries, None), [visit(&entries[0]), visit(&entries[1])]);
    }

    #[test]
    fn only_what_an_owner_called_done_is_deleted() {
        let mut case = Case::listing();
        let entries = [entry(1, 1), entry(2, 2), entry(3, 3)];
        case.listed(5, &entries, None);
        assert_eq!(case.at(6, Event::Visited(entries[0].clone(), Verdict::Done)), []);
        assert_eq!(case.at(6, Event::Visited(entries[1].clone(), Verdict::Later)), []);
        let effects = case.at(6, Event::Visited(entries[2].clone(), Verdict::Failed));
        assert_eq!(effects, [Effect::Delete(vec![entries[0].clone()])]);
    }

    #[test]
    fn an_entry_that_is_still_needed_is_visited_again_but_not_in_every_pass() {
        let mut case = Case::listing();
        let needed = entry(1, 1);
        case.listed(5, core::slice::from_ref(&needed), None);
        case.at(6, Event::Visited(needed.clone(), Verdict::Later));
        let mut visits = vec![];
        for s in (10..60).step_by(5) {
            case.at(s, Event::TimerFired);
            if case.listed(s, core::slice::from_ref(&needed), None) == [visit(&needed)] {
                visits.push(s);
                case.at(s, Event::Visited(needed.clone(), Verdict::Later));
            }
        }
        assert_eq!(visits, [30, 50]);
    }

    #[test]
    fn a_cell_that_cannot_be_activated_is_visited_ever_less_often() {
        let mut case = Case::listing();
        let bad = entry(1, 1);
        let mut visits = vec![];
        for s in (5..3_000).step_by(5) {
            if s > 5 {
                case.at(s, Event::TimerFired);
            }
            if case.listed(s, core::slice::from_ref(&bad), None) == [visit(&bad)] {
                visits.push(s);
                case.at(s, Event::Visited(bad.clone(), Verdict::Failed));
            }
        }
        assert!((10..20).contains(&visits.len()), "{visits:?}");
        assert!(visits.windows(2).all(|pair| pair[1] - pair[0] <= 305), "{visits:?}");
    }

    #[test]
    fn a_page_is_worked_off_before_the_next_one_is_asked_for() {
        let mut case = Case::listing();
        let entries: Vec<_> = (0..1_000).map(|n| entry(1, n)).collect();
        let effects = case.listed(5, &entries, Some("last"));
        assert_eq!(effects.len(), VISITS_MAX);
        let mut under_way: VecDeque<_> = entries.into();
        let mut asked_at = None;
        for n in 0..1_000 {
            let entry = under_way.pop_front().expect("a thousand");
            let effects = case.at(6, Event::Visited(entry, Verdict::Done));
            if effects.contains(&Effect::List(Some("last".into()))) {
                assert_eq!(asked_at.replace(n), None, "asked twice");
            }
        }
        let asked_at = asked_at.expect("the next page is asked for");
        assert!((700..800).contains(&asked_at), "{asked_at}");
        // Nothing was forgotten: the thousand are deleted at once.
        assert!(case.0.done.is_empty());
    }

    #[test]
    fn a_pass_ends_where_the_future_begins() {
        let mut case = Case::listing();
        let effects = case.listed(5, &[entry(1, 1), entry(9_999, 2)], Some("last"));
        assert_eq!(effects, [visit(&entry(1, 1))]);
        let mut case = Case::listing();
        let effects = case.listed(5, &[entry(1, 1)], Some("last"));
        assert_eq!(effects, [visit(&entry(1, 1)), Effect::List(Some("last".into()))]);
    }

    #[test]
    fn an_entry_that_is_being_visited_is_not_visited_beside() {
        let mut case = Case::listing();
        let slow = entry(1, 1);
        case.listed(5, core::slice::from_ref(&slow), None);
        case.at(10, Event::TimerFired);
        assert_eq!(case.listed(10, core::slice::from_ref(&slow), None), []);
    }

    #[test]
    fn the_second_node_looks_rarely_and_a_third_one_not_at_all() {
        let mut case = Case::default();
        assert_eq!(case.at(0, Event::Ranked(1)), [Effect::SetTimer(mono(60))]);
        assert_eq!(case.at(1, Event::Ranked(1)), []);
        assert_eq!(case.at(2, Event::Ranked(2)), []);
        assert_eq!(case.at(60, Event::TimerFired), []);
        assert_eq!(case.at(61, Event::Ranked(0)), [Effect::SetTimer(mono(66))]);
    }

    #[test]
    fn a_list_that_fails_is_repeated_with_the_next_pass() {
        let mut case = Case::listing();
        assert_eq!(case.at(6, Event::ListFailed), []);
        let effects = case.at(10, Event::TimerFired);
        assert_eq!(effects, [Effect::SetTimer(mono(15)), Effect::List(None)]);
    }
}
