//! The lease of one session: its right to own cells, kept as one object in the bucket.
//!
//! Invariant: `is_held(now)` implies `now < sent_at + ttl` of a write that applied.
//! Units: `Mono` and `Micros` are µs of this process; only the record carries `Wall`.
//! Source: "Leases: an efficient fault-tolerant mechanism for distributed file cache consistency", SOSP 1989.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::mem;

use serde_json::{Value, json};

use crate::cas::{CasOutcome, Etag, Guard};
use crate::node::{NodeId, SessionId};
use crate::record::{Fields, RecordError};
use crate::time::{Micros, Mono, Wall};

/// How long a write grants the right, when nobody asks for another time.
pub const TTL_DEFAULT: Micros = Micros::from_secs(10);

/// By how much the clocks of two nodes may differ for a lease to keep others away. Far more than
/// NTP leaves; what it costs is that much more waiting before a takeover. Safety of writes does not
/// hang on it: the proof compares records.
pub const CLOCK_MARGIN: Micros = Micros::from_secs(1);

/// The wait before a repeated read. Short: the right runs out meanwhile.
const BACKOFF_MIN: Micros = Micros::from_millis(50);

/// Long enough to relieve a store that throttles, short enough for several tries within a third.
const BACKOFF_MAX: Micros = Micros::from_millis(800);

/// The only format of the record so far.
const FORMAT: u64 = 1;

/// Our records stay below 1 KiB; this leaves room for long addresses and bounds memory.
pub const RECORD_BYTES_MAX: usize = 4_096;

/// The machine. It wants one timer at a time: a new `SetTimer` replaces the one before. Every
/// `Write` and `Read` ends in one event; who performs them gives up after a third of the TTL.
#[derive(Debug)]
pub struct Lease {
    ttl: Micros,
    /// Numbers our writes, so that a read tells which of them stands.
    writes: u64,
    /// Answers since the last grant that granted nothing.
    failures: u32,
    state: State,
}

#[derive(Debug)]
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
    /// Final: a new lease needs a new session.
    Lost(Loss),
}

/// `until`: the end of what an earlier write granted.
#[derive(Clone, Copy, Debug)]
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
}

/// What the lease wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write the record with this number, granting the TTL from now on.
    Write(u64, Guard),
    /// Read the record.
    Read,
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
    Theirs(Etag),
}

/// Why the right ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
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
}

impl Lease {
    /// A lease that is not held yet; `ttl` is what each write grants.
    pub fn new(ttl: Micros) -> Self {
        Self { ttl, writes: 0, failures: 0, state: State::Idle }
    }
    /// Whether this session may act as the owner of its cells.
    pub fn is_held(&self, now: Mono) -> bool {
        self.until().is_some_and(|until| now < until)
    }
    /// When the right ends, if nothing renews it. `None`: there is none.
    pub fn until(&self) -> Option<Mono> {
        match &self.state {
            State::Held(until, _) => Some(*until),
            State::Writing(p) | State::Reading(p) | State::Waiting(p) => p.until,
            State::Idle | State::Lost(_) => None,
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
            | State::Held(..) => None,
        }
    }
    /// One arm for each arrow of the state diagram.
    ///
    /// # Panics
    /// On an answer to what was not asked.
    pub fn on_event(&mut self, now: Mono, event: Event, effects: &mut Vec<Effect>) {
        use State::{Held, Idle, Lost, Reading, Waiting, Writing};
        if self.until().is_some_and(|until| now >= until) {
            self.state = lose(Loss::Expired, effects);
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
            (Seen::Theirs(etag), None) => {
                self.failures += 1;
                self.write(now, Guard::Match(etag), None, effects)
            }
            (Seen::Nothing, Some(_)) => lose(Loss::Missing, effects),
            (Seen::Theirs(_), Some(_)) => lose(Loss::Replaced, effects),
        }
    }
    /// The write of `p` stands.
    fn hold(&mut self, now: Mono, p: Pending, etag: Etag, effects: &mut Vec<Effect>) -> State {
        let until = p.sent_at + self.ttl;
        if now >= until {
            // The first grant came too late to be used. No cell is owned yet, so nothing is lost.
            return self.write(now, Guard::Match(etag), p.until, effects);
        }
        self.failures = 0;
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

fn lose(loss: Loss, effects: &mut Vec<Effect>) -> State {
    effects.push(Effect::Fence(loss));
    State::Lost(loss)
}

/// What `nodes/<node>.json` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whose lease.
    pub node: NodeId,
    /// Which life of it.
    pub session: SessionId,
    /// The number of this write in its session.
    pub write: u64,
    /// When it ends, by the clock of the node that wrote it.
    pub expires: Wall,
    /// The peer protocol that the node speaks.
    pub protocol: u64,
    /// Where peers reach it; `None`: it takes no peers.
    pub address: Option<String>,
}

/// The lease of the owner of a cell, as another node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerLease {
    /// The owner may act until then.
    Live(Wall),
    /// Its time is over.
    Dead,
    /// There is no record. One is deleted only after it has expired.
    Missing,
    /// A later session of the same node has it; the owner is a life that ended.
    Replaced,
}

/// What others may conclude about `session` at `now`. `margin`: see [`CLOCK_MARGIN`].
pub fn judge(
    record: Option<&Record>,
    session: &SessionId,
    now: Wall,
    margin: Micros,
) -> OwnerLease {
    match record {
        None => OwnerLease::Missing,
        Some(record) if record.session != *session => OwnerLease::Replaced,
        Some(record) if now < record.expires + margin => OwnerLease::Live(record.expires + margin),
        Some(_) => OwnerLease::Dead,
    }
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    /// It is too long or not of our format; the error says what and where.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::parse("node lease", bytes, RECORD_BYTES_MAX, FORMAT)?;
        let record = Self {
            node: fields.text("node", "a node's name", NodeId::parse)?,
            session: fields.text(
                "session",
                "the 32 hexadecimal digits of a session",
                SessionId::parse,
            )?,
            write: fields.number("write")?,
            expires: Wall::from_millis(fields.number("expires_ms")?),
            protocol: fields.number("protocol")?,
            address: fields.get("address", "an address or null", |value| match value {
                Value::Null => Some(None),
                Value::String(text) if !text.is_empty() => Some(Some(text.clone())),
                Value::String(_)
                | Value::Bool(_)
                | Value::Number(_)
                | Value::Array(_)
                | Value::Object(_) => None,
            })?,
        };
        fields.end()?;
        Ok(record)
    }
    /// As the bucket keeps it.
    pub fn encode(&self) -> Vec<u8> {
        let record = json!({
            "format": FORMAT,
            "node": self.node.as_str(),
            "session": self.session.as_str(),
            "write": self.write,
            "expires_ms": self.expires.as_millis(),
            "protocol": self.protocol,
            "address": self.address.as_deref(),
        });
        record.to_string().into_bytes()
    }
    /// The record as `session` sees it; `etag` is its version.
    pub fn seen_by(&self, session: &SessionId, etag: Etag) -> Seen {
        if self.session == *session { Seen::Ours(self.write, etag) } else { Seen::Theirs(etag) }
    }
}

#[cfg(test)]
mod tests {
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
    fn session(digit: &str) -> SessionId {
        SessionId::parse(&digit.repeat(32)).expect("a session")
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
        let effects = case.at(20, Event::Read(Seen::Theirs(etag(7))));
        assert_eq!(effects, [Effect::Write(2, Guard::Match(etag(7)))]);
    }

    #[test]
    fn the_reasons_of_a_loss_are_distinct() {
        for (seen, loss) in
            [(Seen::Theirs(etag(7)), Loss::Replaced), (Seen::Nothing, Loss::Missing)]
        {
            let mut case = Case::held();
            case.at(3_000, Event::TimerFired);
            case.at(3_100, Event::Written(CasOutcome::Refused));
            assert_eq!(case.at(3_200, Event::Read(seen)), [Effect::Fence(loss)]);
        }
    }

    #[test]
    fn others_wait_for_the_end_and_a_margin_and_see_a_replaced_session_at_once() {
        let record = Record {
            node: NodeId::parse("n1").expect("a node"),
            session: session("a"),
            write: 3,
            expires: Wall::from_millis(1_000),
            protocol: 1,
            address: Some("10.0.0.1:7000".into()),
        };
        let margin = Micros::from_millis(500);
        let at = |ms, of: &str| judge(Some(&record), &session(of), Wall::from_millis(ms), margin);
        assert_eq!(at(1_499, "a"), OwnerLease::Live(Wall::from_millis(1_500)));
        assert_eq!(at(1_500, "a"), OwnerLease::Dead);
        assert_eq!(at(0, "b"), OwnerLease::Replaced);
        let none = judge(None, &session("a"), Wall::from_millis(0), margin);
        assert_eq!(none, OwnerLease::Missing);
    }

    #[test]
    fn a_record_reads_back_what_it_writes_and_nothing_else() {
        let mut record = Record {
            node: NodeId::parse("n1").expect("a node"),
            session: session("a"),
            write: 3,
            expires: Wall::from_millis(1_764_000_000_000),
            protocol: 1,
            address: Some("10.0.0.1:7000".into()),
        };
        assert_eq!(Record::parse(&record.encode()), Ok(record.clone()));
        record.address = None;
        assert_eq!(Record::parse(&record.encode()), Ok(record.clone()));
        let text = String::from_utf8(record.encode()).expect("text");
        for (from, to, says) in [
            ("null", "\"\"", "field `address` is \"\", but should be an address or null"),
            ("null", "{}", "field `address` is {}"),
            ("\"write\":3", "\"write\":3.5", "field `write` is 3.5"),
            ("\"protocol\":1,", "", "field `protocol` is missing"),
        ] {
            let error = Record::parse(text.replacen(from, to, 1).as_bytes()).expect_err(to);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
