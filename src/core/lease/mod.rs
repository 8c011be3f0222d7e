//! The lease of one session: its right to own cells, kept as one object in the bucket.
//!
//! Invariants: `is_held(now)` implies `now < sent_at + ttl` of a write that applied. The record of
//! another session of this node is written over only when that session cannot act any more: its
//! process is known to have ended, or its lease is over.
//! Units: `Mono` and `Micros` are µs of this process.
//! Source: "Leases: an efficient fault-tolerant mechanism for distributed file cache consistency", SOSP 1989.

mod record;
mod watch;

use alloc::vec::Vec;
use core::mem;

use crate::cas::{CasOutcome, Etag, Guard};
use crate::time::{Micros, Mono};

pub use record::{Load, RECORD_BYTES_MAX, Record};
pub use watch::{OwnerLease, Read, Watch, margin};

/// The wait before a repeated read. Short: the right runs out meanwhile.
const BACKOFF_MIN: Micros = Micros::from_millis(50);

/// Long enough to relieve a store that throttles, short enough for several tries within a third.
const BACKOFF_MAX: Micros = Micros::from_millis(800);

/// Of a record that another session renews, one change may be a write of a process that has ended,
/// and that came late. A second one is the sign of a process that lives.
const CHANGES_MAX: u32 = 1;

/// The machine. It wants one timer at a time: a new `SetTimer` replaces the one before. Every
/// `Write`, `Retire` and `Read` ends in one event; who performs them gives up after
/// [`Lease::attempt_limit`].
#[derive(Clone, Debug, Hash)]
pub struct Lease {
    ttl: Micros,
    /// Numbers our writes, so that a read tells which of them stands.
    writes: u64,
    /// Answers since the last grant that granted nothing.
    failures: u32,
    /// The record of another session that was in our way, and how often it has changed since.
    occupant: Option<(Etag, u32)>,
    /// It is given up, and the record is to say so as soon as it is known which one stands.
    is_retiring: bool,
    state: State,
}

#[derive(Clone, Debug, Hash)]
enum State {
    Idle,
    /// A write is out. What it grants counts from when it was sent.
    Writing(Pending),
    /// Refused, or no answer: only a read tells which write stands.
    Reading(Pending),
    /// The same, but not at once: the read before failed too.
    Waiting(Pending),
    /// Until then, by this version of the record.
    Held(Mono, Etag),
    /// Given up; the record is to say so.
    Retiring,
    /// Final: given up.
    Retired,
    /// Final: a new lease needs a new session.
    Lost(Loss),
}

/// `until`: the end of what an earlier write granted.
#[derive(Clone, Copy, Debug, Hash)]
struct Pending {
    sent_at: Mono,
    until: Option<Mono>,
}

/// What the lease is told.
#[derive(Clone, Debug)]
pub enum Event {
    /// The session begins. Once.
    Started,
    /// The timer that was set last is due.
    TimerFired,
    /// The write ended so. An error of which it is known that nothing applied is `Unknown` too:
    /// it costs one read.
    Written(CasOutcome),
    /// The record was read.
    Read(Seen),
    /// The record could not be read.
    ReadFailed,
    /// The node has drained: nobody needs to wait for the end of its right. It is over at once.
    Retire,
}

/// What the lease wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write the record with this number, granting the TTL from now on.
    Write(u64, Guard),
    /// The same, granting nothing any more. How it ends is not important, only that.
    Retire(u64, Guard),
    /// Read the record.
    Read,
    /// The right was given up, and the record says so, or will be taken for one that is over.
    Retired,
    /// Tell `TimerFired` then.
    SetTimer(Mono),
    /// The right is over: stop all cells, write nothing, leave the process.
    Fence(Loss),
}

/// The record as this session sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// There is none.
    Nothing,
    /// Our write of this number.
    Ours(u64, Etag),
    /// Another session's of the same node.
    Theirs(Etag, Standing),
}

/// Whether another session of this node may still act: [`Watch::standing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It cannot: its process has ended, or its lease is over.
    Over,
    /// It may, until then if its record does not change: read again.
    Until(Mono),
}

/// Why the right ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Hash)]
pub enum Loss {
    /// No renewal applied in time: the bucket is slow or away, or the process stood still.
    #[error("the lease expired: no renewal was confirmed in time")]
    Expired,
    /// Another session of the node of this name has taken it: two nodes with one name?
    #[error("the lease was replaced by another session of this node")]
    Replaced,
    /// Somebody deleted the record.
    #[error("the lease record is missing from the bucket")]
    Missing,
    /// There never was a right: another process keeps renewing the lease of this node.
    #[error("another process runs under the name of this node: give each node its own")]
    Occupied,
}

impl Loss {
    /// One word for logs; never changes its meaning.
    pub fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Replaced => "replaced",
            Self::Missing => "missing",
            Self::Occupied => "occupied",
        }
    }
}

impl Lease {
    /// A lease that is not held yet; `ttl` is what each write grants.
    pub fn new(ttl: Micros) -> Self {
        Self { ttl, writes: 0, failures: 0, occupant: None, is_retiring: false, state: State::Idle }
    }
    /// How long a read or a write of the record may take. A sixth: when a renewal gets no answer,
    /// there is time for three more attempts before the right is over.
    pub fn attempt_limit(&self) -> Micros {
        Micros::from_micros(self.ttl.as_micros() / 6)
    }
    /// Whether this session may act as the owner of its cells.
    pub fn is_held(&self, now: Mono) -> bool {
        self.until().is_some_and(|until| now < until)
    }
    /// When the right ends, if nothing renews it. `None`: there is none.
    pub fn until(&self) -> Option<Mono> {
        self.granted().filter(|_| !self.is_retiring)
    }
    /// What others may believe, also when it is not made use of any more.
    fn granted(&self) -> Option<Mono> {
        match &self.state {
            State::Held(until, _) => Some(*until),
            State::Writing(p) | State::Reading(p) | State::Waiting(p) => p.until,
            State::Idle | State::Retiring | State::Retired | State::Lost(_) => None,
        }
    }
    /// Why it is over for good, if it is.
    pub fn loss(&self) -> Option<Loss> {
        match &self.state {
            State::Lost(loss) => Some(*loss),
            State::Idle
            | State::Writing(_)
            | State::Reading(_)
            | State::Waiting(_)
            | State::Held(..)
            | State::Retiring
            | State::Retired => None,
        }
    }
    /// One arm for each arrow of the state diagram.
    ///
    /// # Panics
    /// On an answer to what was not asked.
    pub fn on_event(&mut self, now: Mono, event: Event, effects: &mut Vec<Effect>) {
        use State::{Held, Idle, Lost, Reading, Retired, Retiring, Waiting, Writing};
        if self.granted().is_some_and(|until| now >= until) {
            self.state =
                if self.is_retiring { retired(effects) } else { lose(Loss::Expired, effects) };
        }
        self.state = match (mem::replace(&mut self.state, Idle), event) {
            (Idle, Event::Started) => self.write(now, Guard::Absent, None, effects),
            (Held(until, etag), Event::TimerFired) => {
                self.write(now, Guard::Match(etag), Some(until), effects)
            }
            (Writing(p), Event::Written(CasOutcome::Applied(etag))) => {
                self.hold(now, p, etag, effects)
            }
            (Writing(p), Event::Written(CasOutcome::Refused | CasOutcome::Unknown)) => {
                if self.failures == 0 { read(p, effects) } else { self.wait(now, p, effects) }
            }
            (Reading(p), Event::ReadFailed) => self.wait(now, p, effects),
            (Waiting(p), Event::TimerFired) => read(p, effects),
            (Reading(p), Event::Read(seen)) => self.judge(now, p, seen, effects),
            // The timer of an expiry that an earlier grant had: the right is longer by now.
            (state @ (Writing(_) | Reading(_)), Event::TimerFired) => state,
            (Held(_, etag), Event::Retire) => self.retire(etag, effects),
            (state @ (Writing(_) | Reading(_) | Waiting(_)), Event::Retire) => {
                self.is_retiring = true;
                state
            }
            (Retiring, Event::Written(_)) => retired(effects),
            (Retiring, Event::TimerFired | Event::Retire) => Retiring,
            (Retired, _) => Retired,
            (Lost(loss), _) => Lost(loss),
            (state, event) => unreachable!("lease: {event:?} in {state:?}"),
        };
    }
    /// After a refusal or no answer: `seen` tells which write stands.
    fn judge(&mut self, now: Mono, p: Pending, seen: Seen, effects: &mut Vec<Effect>) -> State {
        match (seen, p.until) {
            (Seen::Ours(n, etag), _) if n == self.writes => self.hold(now, p, etag, effects),
            (Seen::Ours(_, etag), until) => {
                self.failures += 1;
                self.write(now, Guard::Match(etag), until, effects)
            }
            (Seen::Nothing, None) => {
                self.failures += 1;
                self.write(now, Guard::Absent, None, effects)
            }
            // We held nothing yet: it is the record of an earlier life of this node.
            (Seen::Theirs(etag, Standing::Over), None) => {
                self.failures += 1;
                self.write(now, Guard::Match(etag), None, effects)
            }
            (Seen::Theirs(etag, Standing::Until(until)), None) => {
                self.wait_for_occupant(now, p, etag, until, effects)
            }
            (Seen::Nothing, Some(_)) => lose(Loss::Missing, effects),
            (Seen::Theirs(..), Some(_)) => lose(Loss::Replaced, effects),
        }
    }
    /// Another session of this node may still act. Is it the rest of a process that has ended?
    fn wait_for_occupant(
        &mut self,
        now: Mono,
        p: Pending,
        etag: Etag,
        until: Mono,
        effects: &mut Vec<Effect>,
    ) -> State {
        let changes = match &self.occupant {
            None => 0,
            Some((before, changes)) if *before == etag => *changes,
            Some((_, changes)) => changes + 1,
        };
        if changes > CHANGES_MAX {
            return lose(Loss::Occupied, effects);
        }
        self.occupant = Some((etag, changes));
        // As often as it is renewed, so that each renewal is noticed.
        let third = now + Micros::from_micros(self.ttl.as_micros() / 3);
        effects.push(Effect::SetTimer(until.min(third).max(now + BACKOFF_MIN)));
        State::Waiting(p)
    }
    fn retire(&mut self, etag: Etag, effects: &mut Vec<Effect>) -> State {
        self.is_retiring = true;
        self.writes += 1;
        effects.push(Effect::Retire(self.writes, Guard::Match(etag)));
        State::Retiring
    }
    /// The write of `p` stands.
    fn hold(&mut self, now: Mono, p: Pending, etag: Etag, effects: &mut Vec<Effect>) -> State {
        let until = p.sent_at + self.ttl;
        if now >= until {
            // The first grant came too late to be used. No cell is owned yet, so nothing is lost.
            return self.write(now, Guard::Match(etag), p.until, effects);
        }
        self.failures = 0;
        if self.is_retiring {
            return self.retire(etag, effects);
        }
        // A third: two renewals may fail before expiry.
        effects.push(Effect::SetTimer(p.sent_at + Micros::from_micros(self.ttl.as_micros() / 3)));
        State::Held(until, etag)
    }
    fn write(
        &mut self,
        now: Mono,
        guard: Guard,
        until: Option<Mono>,
        effects: &mut Vec<Effect>,
    ) -> State {
        self.writes += 1;
        effects.push(Effect::Write(self.writes, guard));
        effects.extend(until.map(Effect::SetTimer));
        State::Writing(Pending { sent_at: now, until })
    }
    /// Waits before the next read, but not past the end of the right.
    fn wait(&mut self, now: Mono, p: Pending, effects: &mut Vec<Effect>) -> State {
        let doubled = BACKOFF_MIN.as_micros() << self.failures.min(8);
        self.failures += 1;
        let again = now + Micros::from_micros(doubled).min(BACKOFF_MAX);
        effects.push(Effect::SetTimer(p.until.map_or(again, |until| again.min(until))));
        State::Waiting(p)
    }
}

fn read(p: Pending, effects: &mut Vec<Effect>) -> State {
    effects.push(Effect::Read);
    effects.extend(p.until.map(Effect::SetTimer));
    State::Reading(p)
}

fn retired(effects: &mut Vec<Effect>) -> State {
    effects.push(Effect::Retired);
    State::Retired
}

fn lose(loss: Loss, effects: &mut Vec<Effect>) -> State {
    effects.push(Effect::Fence(loss));
    State::Lost(loss)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    const TTL: Micros = Micros::from_secs(9);

    /// The lease, and a clock in milliseconds.
    struct Case(Lease);

    impl Case {
        fn new() -> Self {
            Self(Lease::new(TTL))
        }
        /// Held since it was sent at zero.
        fn held() -> Self {
            let mut case = Self::new();
            case.at(0, Event::Started);
            case.at(1_000, Event::Written(CasOutcome::Applied(etag(1))));
            case
        }
        fn at(&mut self, ms: u64, event: Event) -> Vec<Effect> {
            let mut effects = vec![];
            self.0.on_event(mono(ms), event, &mut effects);
            effects
        }
    }
    fn mono(ms: u64) -> Mono {
        Mono::from_micros(ms * 1_000)
    }
    fn etag(n: u64) -> Etag {
        Etag::new(n.to_string())
    }
    fn theirs(version: u64, standing: Standing) -> Event {
        Event::Read(Seen::Theirs(etag(version), standing))
    }
    /// Started, while another session of this node has the record.
    fn occupied() -> Case {
        let mut case = Case::new();
        case.at(0, Event::Started);
        case.at(10, Event::Written(CasOutcome::Refused));
        case
    }

    #[test]
    fn the_right_counts_from_the_send_not_from_the_answer() {
        let mut case = Case::new();
        assert_eq!(case.at(0, Event::Started), [Effect::Write(1, Guard::Absent)]);
        let effects = case.at(5_000, Event::Written(CasOutcome::Applied(etag(1))));
        assert_eq!(effects, [Effect::SetTimer(mono(3_000))]);
        assert!(case.0.is_held(mono(8_999)));
        assert!(!case.0.is_held(mono(9_000)));
    }

    #[test]
    fn a_renewal_keeps_the_right_of_the_grant_before_it() {
        let mut case = Case::held();
        let effects = case.at(3_000, Event::TimerFired);
        let guard = Guard::Match(etag(1));
        assert_eq!(effects, [Effect::Write(2, guard), Effect::SetTimer(mono(9_000))]);
        assert_eq!(case.0.until(), Some(mono(9_000)));
        case.at(3_100, Event::Written(CasOutcome::Applied(etag(2))));
        assert_eq!(case.0.until(), Some(mono(12_000)));
    }

    #[test]
    fn an_unknown_renewal_is_read_back_and_counts_from_its_own_send() {
        let mut case = Case::held();
        case.at(3_000, Event::TimerFired);
        let effects = case.at(6_000, Event::Written(CasOutcome::Unknown));
        assert_eq!(effects, [Effect::Read, Effect::SetTimer(mono(9_000))]);
        assert_eq!(case.0.until(), Some(mono(9_000)));
        case.at(6_100, Event::Read(Seen::Ours(2, etag(2))));
        assert_eq!(case.0.until(), Some(mono(12_000)));
    }

    #[test]
    fn a_renewal_that_did_not_apply_is_written_again_under_a_new_number() {
        let mut case = Case::held();
        case.at(3_000, Event::TimerFired);
        case.at(3_100, Event::Written(CasOutcome::Unknown));
        let effects = case.at(3_200, Event::Read(Seen::Ours(1, etag(1))));
        assert_eq!(effects[0], Effect::Write(3, Guard::Match(etag(1))));
        // The second attempt is refused, because the first arrived late: it is read back too, but
        // not at once.
        let effects = case.at(3_300, Event::Written(CasOutcome::Refused));
        assert!(matches!(effects[..], [Effect::SetTimer(at)] if at > mono(3_300)), "{effects:?}");
        case.at(3_400, Event::TimerFired);
        let effects = case.at(3_500, Event::Read(Seen::Ours(2, etag(2))));
        assert_eq!(effects[0], Effect::Write(4, Guard::Match(etag(2))));
        assert_eq!(case.0.until(), Some(mono(9_000)));
    }

    #[test]
    fn a_bucket_that_is_away_is_asked_again_and_again_until_the_right_is_over() {
        let mut case = Case::held();
        case.at(3_000, Event::TimerFired);
        case.at(3_100, Event::Written(CasOutcome::Unknown));
        let mut now = 3_100;
        let mut reads = 1;
        loop {
            now += 10;
            let effects = case.at(now, Event::ReadFailed);
            if effects == [Effect::Fence(Loss::Expired)] {
                break;
            }
            let [Effect::SetTimer(at)] = effects[..] else { panic!("{effects:?}") };
            assert!(at <= mono(9_000), "never past the end");
            now = at.as_micros() / 1_000;
            let effects = case.at(now, Event::TimerFired);
            if effects == [Effect::Fence(Loss::Expired)] {
                break;
            }
            assert_eq!(effects[0], Effect::Read);
            reads += 1;
        }
        assert_eq!(now, 9_000);
        assert!((8..40).contains(&reads), "{reads} reads in six seconds");
    }

    #[test]
    fn a_lease_that_is_over_never_comes_back() {
        let mut case = Case::held();
        case.at(3_000, Event::TimerFired);
        let late = Event::Written(CasOutcome::Applied(etag(2)));
        assert_eq!(case.at(9_000, late), [Effect::Fence(Loss::Expired)]);
        assert!(!case.0.is_held(mono(9_000)));
        assert_eq!(case.at(9_001, Event::TimerFired), []);
        assert_eq!(case.0.loss(), Some(Loss::Expired));
    }

    #[test]
    fn a_first_grant_that_comes_too_late_is_asked_for_again() {
        let mut case = Case::new();
        case.at(0, Event::Started);
        let effects = case.at(9_500, Event::Written(CasOutcome::Applied(etag(1))));
        assert_eq!(effects, [Effect::Write(2, Guard::Match(etag(1)))]);
        assert!(!case.0.is_held(mono(9_500)));
        case.at(9_600, Event::Written(CasOutcome::Applied(etag(2))));
        assert_eq!(case.0.until(), Some(mono(18_500)));
    }

    #[test]
    fn a_restarted_node_replaces_the_record_of_its_earlier_life_at_once() {
        let mut case = Case::new();
        case.at(0, Event::Started);
        assert_eq!(case.at(10, Event::Written(CasOutcome::Refused)), [Effect::Read]);
        let effects = case.at(20, theirs(7, Standing::Over));
        assert_eq!(effects, [Effect::Write(2, Guard::Match(etag(7)))]);
    }

    #[test]
    fn the_reasons_of_a_loss_are_distinct() {
        for (seen, loss) in [
            (Seen::Theirs(etag(7), Standing::Over), Loss::Replaced),
            (Seen::Nothing, Loss::Missing),
        ] {
            let mut case = Case::held();
            case.at(3_000, Event::TimerFired);
            case.at(3_100, Event::Written(CasOutcome::Refused));
            assert_eq!(case.at(3_200, Event::Read(seen)), [Effect::Fence(loss)]);
        }
    }

    #[test]
    fn a_session_that_may_still_act_is_waited_for() {
        let mut case = occupied();
        let until = Standing::Until(mono(9_500));
        assert_eq!(case.at(20, theirs(7, until)), [Effect::SetTimer(mono(3_020))]);
        assert_eq!(case.at(3_020, Event::TimerFired), [Effect::Read]);
        assert_eq!(case.at(3_040, theirs(7, until)), [Effect::SetTimer(mono(6_040))]);
        case.at(6_040, Event::TimerFired);
        // A last renewal of the process that ended has come late.
        let until = Standing::Until(mono(15_500));
        assert_eq!(case.at(6_060, theirs(8, until)), [Effect::SetTimer(mono(9_060))]);
        case.at(9_060, Event::TimerFired);
        let effects = case.at(15_600, theirs(8, Standing::Over));
        assert_eq!(effects, [Effect::Write(2, Guard::Match(etag(8)))]);
    }

    #[test]
    fn the_second_of_two_nodes_with_one_name_gives_up_and_the_first_notices_nothing() {
        let mut case = occupied();
        for version in [7, 8] {
            let effects = case.at(20, theirs(version, Standing::Until(mono(9_500))));
            assert!(matches!(effects[..], [Effect::SetTimer(_)]), "{effects:?}");
            assert_eq!(case.at(3_020, Event::TimerFired), [Effect::Read]);
        }
        let effects = case.at(6_060, theirs(9, Standing::Until(mono(15_500))));
        assert_eq!(effects, [Effect::Fence(Loss::Occupied)]);
    }

    #[test]
    fn a_right_that_is_given_up_is_over_at_once_and_the_record_says_so() {
        let mut case = Case::held();
        assert_eq!(case.at(2_000, Event::Retire), [Effect::Retire(2, Guard::Match(etag(1)))]);
        assert!(!case.0.is_held(mono(2_000)));
        assert_eq!(case.at(2_100, Event::TimerFired), []);
        assert_eq!(case.at(2_200, Event::Written(CasOutcome::Unknown)), [Effect::Retired]);
        assert_eq!(case.0.loss(), None);
    }

    #[test]
    fn a_right_is_given_up_at_once_and_the_record_says_so_after_the_renewal_under_way() {
        let mut case = Case::held();
        case.at(3_000, Event::TimerFired);
        assert_eq!(case.at(3_100, Event::Retire), []);
        assert!(!case.0.is_held(mono(3_100)), "nothing may begin that the end would cut off");
        let effects = case.at(3_200, Event::Written(CasOutcome::Applied(etag(2))));
        assert_eq!(effects, [Effect::Retire(3, Guard::Match(etag(2)))]);
    }

    #[test]
    fn a_right_that_ends_while_it_is_given_up_is_no_loss() {
        let mut case = Case::held();
        case.at(3_000, Event::TimerFired);
        case.at(3_100, Event::Retire);
        assert_eq!(case.at(9_000, Event::TimerFired), [Effect::Retired]);
        assert_eq!(case.at(9_100, Event::Written(CasOutcome::Unknown)), []);
        assert_eq!(case.0.loss(), None);
    }
}
