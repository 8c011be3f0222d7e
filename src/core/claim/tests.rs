//! Activations of one cell, told of what may happen to them.

use alloc::vec;
use std::string::ToString;

use super::*;
use crate::epoch::Epoch;
use crate::node::{NodeId, SessionId};
use crate::ownership::Base;

/// An activation by node `n1`, and what it wanted last.
struct Case(Claim);

impl Case {
    fn new() -> Self {
        Self::of(Purpose::Placed)
    }

    fn of(purpose: Purpose) -> Self {
        Self(Claim::new(Me { owner: owner("n1", "a"), serving: None }, purpose, 7))
    }

    /// Started, and told what was read.
    fn reads(seen: Option<(Record, Etag)>) -> (Self, Effect) {
        Self::new().reads_as(seen)
    }

    fn reads_as(self, seen: Option<(Record, Etag)>) -> (Self, Effect) {
        let mut case = self;
        assert_eq!(case.tell(Event::Started), Effect::ReadOwner);
        let effect = case.sees(seen);
        (case, effect)
    }

    fn tell(&mut self, event: Event) -> Effect {
        let mut effects = vec![];
        self.0.on_event(Mono::default(), event, &mut effects);
        assert_eq!(effects.len(), 1, "{effects:?}");
        effects.remove(0)
    }

    fn sees(&mut self, seen: Option<(Record, Etag)>) -> Effect {
        self.tell(Event::Owner(Ok(seen)))
    }

    fn written(&mut self, outcome: CasOutcome) -> Effect {
        self.tell(Event::Written(outcome))
    }
}

fn owner(node: &str, session: &str) -> Owner {
    Owner {
        node: NodeId::parse(node).expect("a node"),
        session: SessionId::parse(&session.repeat(32)).expect("a session"),
    }
}

fn epoch(n: u64) -> Epoch {
    Epoch::from_record(n).expect("not zero")
}

fn t(n: u64) -> Txid {
    Txid::new(n)
}

/// Node `n2` at epoch 5, which began after TXID 10.
fn theirs() -> Record {
    let base = Base { epoch: epoch(5), txid: t(10) };
    let nonce = Nonce::numbered(1, 1);
    Record { owner: Some(owner("n2", "b")), epoch: epoch(5), base, nonce }
}

fn etag(text: &str) -> Etag {
    Etag::new(text)
}

fn applied(text: &str) -> CasOutcome {
    CasOutcome::Applied(etag(text))
}

fn record_of(effect: Effect) -> Record {
    match effect {
        Effect::Cas { record, .. } => record,
        other => panic!("no write: {other:?}"),
    }
}

/// A takeover up to the write of the claim.
fn takeover() -> (Case, Record) {
    let (mut case, effect) = Case::reads(Some((theirs(), etag("e"))));
    assert_eq!(effect, Effect::ReadLease(owner("n2", "b")));
    let claim = record_of(case.tell(Event::Lease(Ok(OwnerLease::Dead))));
    (case, claim)
}

#[test]
fn a_new_cell_is_served_after_one_write_and_no_restore() {
    let (mut case, effect) = Case::reads(None);
    let Effect::Cas { guard: Guard::Absent, record } = effect else { panic!("{effect:?}") };
    assert_eq!(case.written(applied("e")), Effect::Serve { record, etag: etag("e") });
    assert!(case.0.is_done());
}

#[test]
fn a_released_cell_is_restored_and_served_after_one_write() {
    let released = theirs().release(t(20), Nonce::numbered(1, 2));
    let (mut case, effect) = Case::reads(Some((released, etag("e"))));
    let claim = record_of(effect);
    assert_eq!(case.written(applied("f")), Effect::Restore(claim.clone()));
    let serve = Effect::Serve { record: claim, etag: etag("f") };
    assert_eq!(case.tell(Event::Restored(t(20))), serve);
}

#[test]
fn a_takeover_restores_first_and_then_writes_where_its_epoch_begins() {
    let (mut case, claim) = takeover();
    assert_eq!((claim.epoch, claim.base), (epoch(6), theirs().base));
    assert_eq!(case.written(applied("f")), Effect::Restore(claim));
    let effect = case.tell(Event::Restored(t(12)));
    let Effect::Cas { guard, record } = effect else { panic!("{effect:?}") };
    assert_eq!(guard, Guard::Match(etag("f")));
    assert_eq!(record.base, Base { epoch: epoch(6), txid: t(12) });
    assert_eq!(case.written(applied("g")), Effect::Serve { record, etag: etag("g") });
}

#[test]
fn a_cell_of_nobody_is_placed_before_anything_is_written() {
    let released = theirs().release(t(20), Nonce::numbered(1, 2));
    for seen in [None, Some((released, etag("e")))] {
        for place in [None, Some(owner("n3", "c").node)] {
            let (mut case, effect) = Case::of(Purpose::Entered).reads_as(seen.clone());
            assert_eq!(effect, Effect::Place);
            match (case.tell(Event::Placed(place.clone())), place) {
                (Effect::Cas { .. }, None) => assert!(!case.0.is_done()),
                (Effect::Send(node), Some(place)) => assert_eq!(node, place),
                (effect, _) => panic!("{effect:?}"),
            }
        }
    }
}

#[test]
fn a_cell_of_a_dead_node_is_placed_and_one_of_our_own_earlier_life_stays() {
    let (mut case, _) = Case::of(Purpose::Entered).reads_as(Some((theirs(), etag("e"))));
    assert_eq!(case.tell(Event::Lease(Ok(OwnerLease::Dead))), Effect::Place);
    let ours = Record { owner: Some(owner("n1", "b")), ..theirs() };
    let (_, effect) = Case::of(Purpose::Entered).reads_as(Some((ours, etag("e"))));
    assert!(matches!(effect, Effect::Cas { .. }), "{effect:?}");
}

#[test]
fn an_alarm_wakes_a_cell_but_never_makes_one() {
    for purpose in [Purpose::Woken, Purpose::WokenPlaced] {
        let (_, effect) = Case::of(purpose).reads_as(None);
        assert_eq!(effect, Effect::Fail(Failure::Absent));
    }
    let released = theirs().release(t(20), Nonce::numbered(1, 2));
    let (_, effect) = Case::of(Purpose::WokenPlaced).reads_as(Some((released, etag("e"))));
    assert!(matches!(effect, Effect::Cas { .. }), "{effect:?}");
}

#[test]
fn a_purge_is_one_write_that_ends_the_history_and_needs_no_file() {
    let (mut case, _) = Case::of(Purpose::Purge).reads_as(Some((theirs(), etag("e"))));
    let effect = case.tell(Event::Lease(Ok(OwnerLease::Dead)));
    let Effect::Cas { guard, record } = effect else { panic!("{effect:?}") };
    assert_eq!((guard, &record.owner, record.epoch), (Guard::Match(etag("e")), &None, epoch(6)));
    assert_eq!(record.base, Base { epoch: epoch(7), txid: Txid::ZERO });
    // Its answer is lost, and it stands all the same.
    assert_eq!(case.written(CasOutcome::Unknown), Effect::ReadOwner);
    assert_eq!(case.sees(Some((record.clone(), etag("f")))), Effect::Purged(record.clone()));
    // The next owner has nothing to restore, and knows it.
    let (mut case, effect) = Case::reads(Some((record, etag("f"))));
    let claim = record_of(effect);
    assert_eq!(claim.epoch, epoch(7));
    assert_eq!(case.written(applied("g")), Effect::Restore(claim));
    assert!(matches!(case.tell(Event::Restored(Txid::ZERO)), Effect::Serve { .. }));
}

#[test]
fn a_purge_takes_nothing_from_a_live_owner_and_makes_no_cell() {
    let (mut case, _) = Case::of(Purpose::Purge).reads_as(Some((theirs(), etag("e"))));
    let live = OwnerLease::Live(Mono::from_micros(9));
    assert!(matches!(case.tell(Event::Lease(Ok(live))), Effect::Forward(_)));
    let (_, effect) = Case::of(Purpose::Purge).reads_as(None);
    assert_eq!(effect, Effect::Fail(Failure::Absent));
}

#[test]
fn a_live_owner_is_asked_instead() {
    let (mut case, _) = Case::reads(Some((theirs(), etag("e"))));
    let until = Mono::from_micros(9);
    let route = Route { owner: owner("n2", "b"), epoch: epoch(5), until };
    let effect = case.tell(Event::Lease(Ok(OwnerLease::Live(until))));
    assert_eq!(effect, Effect::Forward(route));
}

#[test]
fn a_write_whose_answer_was_lost_is_found_by_its_nonce() {
    let (mut case, claim) = takeover();
    assert_eq!(case.written(CasOutcome::Unknown), Effect::ReadOwner);
    let effect = case.sees(Some((claim.clone(), etag("f"))));
    assert_eq!(effect, Effect::Restore(claim));
    // The version that was read guards the next write.
    let effect = case.tell(Event::Restored(t(12)));
    assert!(matches!(effect, Effect::Cas { guard: Guard::Match(e), .. } if e == etag("f")));
}

#[test]
fn a_refusal_of_what_had_applied_already_is_recognised() {
    let (mut case, claim) = takeover();
    assert_eq!(case.written(CasOutcome::Refused), Effect::ReadOwner);
    assert_eq!(case.sees(Some((claim.clone(), etag("f")))), Effect::Restore(claim));
}

#[test]
fn a_write_that_did_not_apply_is_repeated_unchanged() {
    let (mut case, claim) = takeover();
    case.written(CasOutcome::Unknown);
    let effect = case.sees(Some((theirs(), etag("e"))));
    assert_eq!(effect, Effect::Cas { guard: Guard::Match(etag("e")), record: claim });
}

#[test]
fn a_lost_race_is_decided_anew() {
    let (mut case, claim) = takeover();
    case.written(CasOutcome::Refused);
    let winner = Record { owner: Some(owner("n3", "c")), ..claim };
    let effect = case.sees(Some((winner, etag("f"))));
    assert_eq!(effect, Effect::ReadLease(owner("n3", "c")));
}

#[test]
fn an_owner_that_is_taken_over_during_its_restore_does_not_serve() {
    let (mut case, claim) = takeover();
    case.written(applied("f"));
    case.tell(Event::Restored(t(12)));
    assert_eq!(case.written(CasOutcome::Refused), Effect::ReadOwner);
    let winner = Record { owner: Some(owner("n3", "c")), epoch: epoch(7), ..claim };
    let effect = case.sees(Some((winner, etag("g"))));
    assert_eq!(effect, Effect::ReadLease(owner("n3", "c")));
}

#[test]
fn files_that_end_too_early_are_never_served() {
    let (mut case, _) = takeover();
    case.written(applied("f"));
    let failure = Failure::History { expected: t(10), found: t(9) };
    assert_eq!(
        failure.to_string(),
        "the files end at TXID 0000000000000009, but the ownership record says \
         000000000000000a"
    );
    assert_eq!(case.tell(Event::Restored(t(9))), Effect::Fail(failure));
}

#[test]
fn the_attempts_are_bounded() {
    let (mut case, _) = takeover();
    assert_eq!(case.written(CasOutcome::Unknown), Effect::ReadOwner);
    let mut effect = case.tell(Event::ReadFailed);
    let mut waits = 0;
    while matches!(effect, Effect::SetTimer(_)) {
        waits += 1;
        assert_eq!(case.tell(Event::TimerFired), Effect::ReadOwner);
        effect = case.tell(Event::ReadFailed);
    }
    assert_eq!(waits, 7);
    assert_eq!(effect, Effect::Fail(Failure::Exhausted(8)));
}
