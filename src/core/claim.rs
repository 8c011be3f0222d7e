//! One activation of a cell: from reading who owns it to serving it, or to knowing who does.
//!
//! Invariant: `Serve` follows only a write of the record that stands, of an epoch that nobody had
//! before, with a base at exactly what was restored. A write whose end is unknown is read back:
//! its nonce tells whether it stands. It is repeated only unchanged and under the same guard, so
//! that a late arrival of the first attempt does no harm.
//!
//! A cell that nobody can serve any more need not be served here: the claim asks where it belongs
//! ([`crate::placement`]) before it writes. A cell that was sent here is taken.

use alloc::vec::Vec;
use core::mem;

use crate::cas::{CasOutcome, Etag, Guard, Nonce};
use crate::lease::OwnerLease;
use crate::node::NodeId;
use crate::ownership::{Decision, Me, Owner, Record, Route, decide};
use crate::record::RecordError;
use crate::time::{Micros, Mono};
use crate::txid::Txid;

/// Answers without progress until the activation fails: about four seconds of waiting, so that a
/// client gets its error while it still listens.
const FAILURES_MAX: u32 = 8;

/// The wait before the second repetition; it doubles from there.
const BACKOFF_MIN: Micros = Micros::from_millis(50);

/// Why a cell is to be activated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A request for it has entered here; another node may be a better place.
    Entered,
    /// Another node has sent it here.
    Placed,
    /// The wake index knows an alarm of it. A cell that does not exist is not created for that.
    Woken,
    /// The same, sent here by another node.
    WokenPlaced,
    /// All its data is to be deleted. It is taken from whoever had it and given back to the bucket
    /// in one write, without a restore.
    Purge,
}

/// The machine. It wants one thing at a time, and each effect but the last ends in one event. Drop
/// it when the lease is lost.
#[derive(Clone, Debug, Hash)]
pub struct Claim {
    me: Me,
    purpose: Purpose,
    /// Random; makes the nonces.
    seed: u128,
    /// Numbers our writes.
    writes: u32,
    failures: u32,
    state: State,
}

#[derive(Clone, Debug, Hash)]
enum State {
    Idle,
    /// Reading the record. A write of ours may stand, if there was one.
    Reading(Option<Write>),
    /// The same, but not at once.
    Waiting(Option<Write>),
    /// Reading the lease of the owner.
    Asking(Record, Etag),
    /// Where does it belong? If here, this is to be written.
    Placing(Write),
    Writing(Write),
    Restoring(Record, Etag),
    Done,
}

#[derive(Clone, Debug, Hash)]
struct Write {
    guard: Guard,
    record: Record,
    then: Next,
}

/// What follows when a write stands.
#[derive(Clone, Copy, Debug, Hash)]
enum Next {
    Restore,
    Serve,
    Purged,
}

/// What an activation is told.
#[derive(Clone, Debug)]
pub enum Event {
    /// Begin. Once.
    Started,
    /// The record was read; `None`: there is none.
    Owner(Result<Option<(Record, Etag)>, RecordError>),
    /// The lease of the owner that was asked for was read.
    Lease(Result<OwnerLease, RecordError>),
    /// The record or the lease could not be read.
    ReadFailed,
    /// Where the cell belongs; `None`: here.
    Placed(Option<NodeId>),
    /// The write ended so. An error of which it is known that nothing applied is `Unknown` too.
    Written(CasOutcome),
    /// The database is there, up to this commit.
    Restored(Txid),
    /// It cannot be had now.
    RestoreFailed,
    /// The timer is due.
    TimerFired,
}

/// What an activation wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Read `own.json`.
    ReadOwner,
    /// Read the lease of this node, and judge the session by it. That it lives may be known from
    /// an earlier read, that it does not takes a new one.
    ReadLease(Owner),
    /// Nobody can serve the cell: where does it belong?
    Place,
    /// Write `own.json`.
    Cas {
        /// If it still is this.
        guard: Guard,
        /// The record to write.
        record: Record,
    },
    /// List the files, now, and build the database from those that the record's base admits.
    Restore(Record),
    /// Tell `TimerFired` then.
    SetTimer(Mono),
    /// Done: the cell is ours at this epoch. It begins at `record.base.txid`.
    Serve {
        /// The record that stands.
        record: Record,
        /// Its version: guards its release.
        etag: Etag,
    },
    /// Done, of a purge: this record stands, and no file of its epoch or an earlier one counts any
    /// more. They may be deleted.
    Purged(Record),
    /// Done: another session serves the cell.
    Forward(Route),
    /// Done: nobody serves the cell, and this node is to take it.
    Send(NodeId),
    /// Done: it cannot be served now.
    Fail(Failure),
}

/// Why an activation failed. The next request may try again; all but `Absent`, `Exhausted` and
/// `Restore` need an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no such cell, and it is not to be created.
    #[error("the cell does not exist")]
    Absent,
    /// A record cannot be understood.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The bucket broke its contract.
    #[error("{0}")]
    Broken(&'static str),
    /// Files are missing, or some that do not count were read.
    #[error("the files end at TXID {found}, but the ownership record says {expected}")]
    History {
        /// What the record knows.
        expected: Txid,
        /// Where the files end.
        found: Txid,
    },
    /// The restore failed; who performed it knows why.
    #[error("the restore failed")]
    Restore,
    /// The bucket did not answer, or others wrote the record, again and again.
    #[error("no ownership after {0} attempts")]
    Exhausted(u32),
}

impl Claim {
    /// `seed` is random, drawn anew for each activation.
    pub fn new(me: Me, purpose: Purpose, seed: u128) -> Self {
        Self { me, purpose, seed, writes: 0, failures: 0, state: State::Idle }
    }

    /// Whether it has served, forwarded or failed.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// One arm for each arrow of the state diagram.
    ///
    /// # Panics
    /// On an answer to what was not asked.
    pub fn on_event(&mut self, now: Mono, event: Event, effects: &mut Vec<Effect>) {
        use State::{Asking, Idle, Placing, Reading, Restoring, Waiting, Writing};
        self.state = match (mem::replace(&mut self.state, State::Done), event) {
            (Idle, Event::Started) => read(None, effects),
            (Reading(_), Event::Owner(Err(e))) | (Asking(..), Event::Lease(Err(e))) => {
                fail(Failure::Record(e), effects)
            }
            (Reading(wrote), Event::Owner(Ok(seen))) => self.judge(wrote, seen, effects),
            (Reading(wrote), Event::ReadFailed) => self.wait(now, wrote, effects),
            (Asking(..), Event::ReadFailed) => self.wait(now, None, effects),
            (Waiting(wrote), Event::TimerFired) => read(wrote, effects),
            (Asking(record, etag), Event::Lease(Ok(lease))) => {
                self.decide(Some((record, etag)), Some(lease), effects)
            }
            (Placing(w), Event::Placed(None)) => write(w, effects),
            (Placing(_), Event::Placed(Some(node))) => {
                effects.push(Effect::Send(node));
                State::Done
            }
            (Writing(w), Event::Written(CasOutcome::Applied(etag))) => {
                stand(w.record, etag, w.then, effects)
            }
            // A refusal is read back too: what refused may be our own first attempt, repeated on
            // its way.
            (Writing(w), Event::Written(CasOutcome::Refused | CasOutcome::Unknown)) => {
                if self.failures == 0 {
                    self.failures = 1;
                    read(Some(w), effects)
                } else {
                    self.wait(now, Some(w), effects)
                }
            }
            (Restoring(record, etag), Event::Restored(found)) => {
                self.restored(record, etag, found, effects)
            }
            (Restoring(..), Event::RestoreFailed) => fail(Failure::Restore, effects),
            (state, event) => unreachable!("claim: {event:?} in {state:?}"),
        };
    }

    /// The record was read. Does our write stand, may it be repeated, or is all new?
    fn judge(
        &mut self,
        wrote: Option<Write>,
        seen: Option<(Record, Etag)>,
        effects: &mut Vec<Effect>,
    ) -> State {
        match (wrote, seen) {
            (Some(w), Some((record, etag))) if record == w.record => {
                stand(record, etag, w.then, effects)
            }
            (Some(w), Some((_, etag))) if w.guard == Guard::Match(etag.clone()) => {
                write(w, effects)
            }
            (Some(w), None) if w.guard == Guard::Absent => write(w, effects),
            (_, seen) => self.decide(seen, None, effects),
        }
    }

    fn decide(
        &mut self,
        seen: Option<(Record, Etag)>,
        lease: Option<OwnerLease>,
        effects: &mut Vec<Effect>,
    ) -> State {
        let nonce = self.nonce();
        let read = seen.as_ref().map(|(record, etag)| (record, etag));
        match (decide(read, lease, &self.me, nonce), seen) {
            (Decision::Create(record), _) => match self.purpose {
                Purpose::Entered | Purpose::Placed => {
                    let write = Write { guard: Guard::Absent, record, then: Next::Serve };
                    self.place(write, None, effects)
                }
                Purpose::Woken | Purpose::WokenPlaced | Purpose::Purge => {
                    fail(Failure::Absent, effects)
                }
            },
            (Decision::Claim { guard, record }, _) if self.purpose == Purpose::Purge => {
                let record = record.purge(self.nonce());
                write(Write { guard: Guard::Match(guard), record, then: Next::Purged }, effects)
            }
            (Decision::Claim { guard, record }, seen) => {
                let write = Write { guard: Guard::Match(guard), record, then: Next::Restore };
                self.place(write, seen.and_then(|(record, _)| record.owner), effects)
            }
            (Decision::Serve, Some((record, etag))) => stand(record, etag, Next::Serve, effects),
            (Decision::ReadLease(owner), Some((record, etag))) => {
                effects.push(Effect::ReadLease(owner));
                State::Asking(record, etag)
            }
            (Decision::Forward(route), _) => {
                effects.push(Effect::Forward(route));
                State::Done
            }
            (Decision::Broken(reason), _) => fail(Failure::Broken(reason), effects),
            (decision @ (Decision::Serve | Decision::ReadLease(_)), None) => {
                unreachable!("claim: {decision:?} without a record")
            }
        }
    }

    /// Nobody can serve the cell any more, `owner` neither. What this node had itself it keeps.
    fn place(&self, w: Write, owner: Option<Owner>, effects: &mut Vec<Effect>) -> State {
        let is_ours = owner.is_some_and(|owner| owner.node == self.me.owner.node);
        match self.purpose {
            Purpose::Entered | Purpose::Woken if !is_ours => {
                effects.push(Effect::Place);
                State::Placing(w)
            }
            Purpose::Entered
            | Purpose::Woken
            | Purpose::Placed
            | Purpose::WokenPlaced
            | Purpose::Purge => write(w, effects),
        }
    }

    /// The files end at `found`. Before anything is served, the record must say so.
    fn restored(
        &mut self,
        record: Record,
        etag: Etag,
        found: Txid,
        effects: &mut Vec<Effect>,
    ) -> State {
        let expected = record.base.txid;
        if found < expected || (record.is_based() && found != expected) {
            return fail(Failure::History { expected, found }, effects);
        }
        if record.is_based() {
            return stand(record, etag, Next::Serve, effects);
        }
        let record = record.rebase(found, self.nonce());
        write(Write { guard: Guard::Match(etag), record, then: Next::Serve }, effects)
    }

    fn wait(&mut self, now: Mono, wrote: Option<Write>, effects: &mut Vec<Effect>) -> State {
        self.failures += 1;
        if self.failures > FAILURES_MAX {
            return fail(Failure::Exhausted(FAILURES_MAX), effects);
        }
        let doubled = BACKOFF_MIN.as_micros() << (self.failures - 1).min(4);
        effects.push(Effect::SetTimer(now + Micros::from_micros(doubled)));
        State::Waiting(wrote)
    }

    fn nonce(&mut self) -> Nonce {
        self.writes += 1;
        Nonce::numbered(self.seed, self.writes)
    }
}

fn read(wrote: Option<Write>, effects: &mut Vec<Effect>) -> State {
    effects.push(Effect::ReadOwner);
    State::Reading(wrote)
}

fn write(w: Write, effects: &mut Vec<Effect>) -> State {
    effects.push(Effect::Cas { guard: w.guard.clone(), record: w.record.clone() });
    State::Writing(w)
}

/// `record` stands in the bucket as `etag`.
fn stand(record: Record, etag: Etag, then: Next, effects: &mut Vec<Effect>) -> State {
    match then {
        Next::Restore => {
            effects.push(Effect::Restore(record.clone()));
            State::Restoring(record, etag)
        }
        Next::Serve => {
            effects.push(Effect::Serve { record, etag });
            State::Done
        }
        Next::Purged => {
            effects.push(Effect::Purged(record));
            State::Done
        }
    }
}

fn fail(failure: Failure, effects: &mut Vec<Effect>) -> State {
    effects.push(Effect::Fail(failure));
    State::Done
}

#[cfg(test)]
mod tests;
