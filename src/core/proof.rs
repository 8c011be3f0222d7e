//! The bucket proof of one cell at one epoch: which of its commits survive any crash and belong to
//! the history that the next owner will read.
//!
//! Invariant: `Proven(t)` follows an upload that reached `t` and ended, and then a read of
//! `own.json`, begun after that end, that still names this session at this epoch. It compares a
//! record, never a clock.
//! Source: the argument of ABD reads and fencing: an owner that is named after the upload was in
//! the bucket is named before any successor lists it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::time::{Micros, Mono};
use crate::txid::Txid;

/// How long commits may wait without any progress of the proof, when nobody asks for another
/// time: longer than a short fault of a store, shorter than the patience of most clients.
pub const PATIENCE_DEFAULT: Micros = Micros::from_secs(20);

/// Reads under way at a time. Two: the second begins when an upload ends beside the first, so that
/// no ack waits for more than one whole read; more would only load the store.
const READS_MAX: usize = 2;

/// The wait after a first failure; it doubles from there.
const BACKOFF_MIN: Micros = Micros::from_millis(20);

/// Relieves a store that throttles, and still leaves many attempts within the patience.
const BACKOFF_MAX: Micros = Micros::from_millis(1_000);

/// The machine. It wants one timer at a time: a new `SetTimer` replaces the one before.
#[derive(Clone, Debug, Hash)]
pub struct Proof {
    committed: Txid,
    uploaded: Txid,
    proven: Txid,
    upload: Upload,
    /// Under way, oldest first.
    reads: VecDeque<Read>,
    /// Numbers the reads.
    asked: u64,
    /// A read failed: not another one before this.
    read_again: Option<Mono>,
    failures: u32,
    /// The last progress, or the first commit after all was proven.
    since: Mono,
    patience: Micros,
    timer: Option<Mono>,
    is_lost: bool,
}

#[derive(Clone, Copy, Debug, Hash)]
enum Upload {
    Idle,
    InFlight,
    /// It failed: not again before this.
    Failed(Mono),
}

#[derive(Clone, Copy, Debug, Hash)]
struct Read {
    number: u64,
    /// What was uploaded when it began.
    covers: Txid,
}

/// What the proof is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The cell committed.
    Committed(Txid),
    /// The upload is in the bucket; it reached `max`.
    Uploaded {
        /// Its last commit.
        max: Txid,
    },
    /// The upload failed, or its end is not known.
    UploadFailed,
    /// The record was read.
    OwnerRead {
        /// The number of the question.
        asked: u64,
        /// Whether it names this session at this epoch: `Record::is_of`.
        still_ours: bool,
    },
    /// The record could not be read.
    ReadFailed {
        /// The number of the question.
        asked: u64,
    },
    /// The timer is due.
    TimerFired,
}

/// What the proof wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Encode every commit after this one as one segment, and put it.
    Upload {
        /// The last commit that is in the bucket.
        after: Txid,
    },
    /// Read `own.json`. The read must begin after this effect was issued.
    ReadOwner {
        /// Goes back with the answer.
        number: u64,
    },
    /// Everything up to here is proven.
    Proven(Txid),
    /// Tell `TimerFired` then.
    SetTimer(Mono),
    /// It can never be proven: break the gate, reset the cell.
    Lost(Loss),
}

/// Why there will be no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// The cell has another owner, or a later epoch.
    #[error("the cell has another owner")]
    NotOurs,
    /// The bucket gave no proof for as long as the patience lasts.
    #[error("the bucket gave no proof in time")]
    Late,
}

impl Proof {
    /// Of a cell whose history is proven up to `proven`: what was restored.
    pub fn new(proven: Txid, patience: Micros) -> Self {
        Self {
            committed: proven,
            uploaded: proven,
            proven,
            upload: Upload::Idle,
            reads: VecDeque::new(),
            asked: 0,
            read_again: None,
            failures: 0,
            since: Mono::default(),
            patience,
            timer: None,
            is_lost: false,
        }
    }
    /// Up to where the history is proven.
    pub fn proven(&self) -> Txid {
        self.proven
    }
    /// Whether nothing waits for a proof: only then may the cell be evicted or released.
    pub fn is_settled(&self) -> bool {
        self.proven == self.committed && !matches!(self.upload, Upload::InFlight)
    }
    /// Takes the event in, then starts what may be started.
    ///
    /// # Panics
    /// On a commit that is not the next ones, or an upload that was not asked for.
    pub fn on_event(&mut self, now: Mono, event: Event, effects: &mut Vec<Effect>) {
        // Answers to what was asked before the loss may still come.
        if self.is_lost {
            return;
        }
        match event {
            Event::Committed(txid) => {
                assert!(txid > self.committed, "commit {txid} after {}", self.committed);
                if self.committed == self.proven {
                    self.since = now;
                }
                self.committed = txid;
            }
            Event::Uploaded { max } => {
                assert!(matches!(self.upload, Upload::InFlight), "upload to {max} not asked for");
                assert!(self.uploaded < max && max <= self.committed, "upload to {max}");
                self.uploaded = max;
                self.upload = Upload::Idle;
                self.failures = 0;
            }
            Event::UploadFailed => {
                assert!(matches!(self.upload, Upload::InFlight), "upload not asked for");
                self.upload = Upload::Failed(self.backoff(now));
            }
            Event::OwnerRead { asked, still_ours } => {
                self.owner_read(now, asked, still_ours, effects);
            }
            Event::ReadFailed { asked } => {
                if let Some(index) = self.reads.iter().position(|read| read.number == asked) {
                    self.reads.remove(index);
                    self.read_again = Some(self.backoff(now));
                }
            }
            Event::TimerFired => self.timer = None,
        }
        if !self.is_lost && self.proven < self.committed && now >= self.since + self.patience {
            self.lose(Loss::Late, effects);
        }
        if !self.is_lost {
            self.start(now, effects);
        }
    }
    fn owner_read(&mut self, now: Mono, asked: u64, still_ours: bool, effects: &mut Vec<Effect>) {
        // Older reads know less than one that has answered: their numbers are stale.
        let Some(index) = self.reads.iter().position(|read| read.number == asked) else { return };
        if !still_ours {
            return self.lose(Loss::NotOurs, effects);
        }
        let covers = self.reads[index].covers;
        self.reads.drain(..=index);
        self.read_again = None;
        self.failures = 0;
        self.since = now;
        self.proven = covers;
        effects.push(Effect::Proven(covers));
    }
    /// Starts an upload, a read and a timer, where one is missing.
    fn start(&mut self, now: Mono, effects: &mut Vec<Effect>) {
        if matches!(self.upload, Upload::Failed(again) if again <= now) {
            self.upload = Upload::Idle;
        }
        if self.read_again.is_some_and(|again| again <= now) {
            self.read_again = None;
        }
        if matches!(self.upload, Upload::Idle) && self.uploaded < self.committed {
            self.upload = Upload::InFlight;
            effects.push(Effect::Upload { after: self.uploaded });
        }
        let covered = self.reads.back().map_or(self.proven, |read| read.covers);
        if covered < self.uploaded && self.reads.len() < READS_MAX && self.read_again.is_none() {
            self.asked += 1;
            self.reads.push_back(Read { number: self.asked, covers: self.uploaded });
            effects.push(Effect::ReadOwner { number: self.asked });
        }
        // A timer that is set for earlier serves too: a commit sets none of its own.
        let again = match self.upload {
            Upload::Failed(again) => Some(again),
            Upload::Idle | Upload::InFlight => None,
        };
        let late = (self.proven < self.committed).then(|| self.since + self.patience);
        let next = [again, self.read_again, late].into_iter().flatten().min();
        if let Some(next) = next
            && self.timer.is_none_or(|timer| next < timer)
        {
            self.timer = Some(next);
            effects.push(Effect::SetTimer(next));
        }
    }
    fn backoff(&mut self, now: Mono) -> Mono {
        let doubled = BACKOFF_MIN.as_micros() << self.failures.min(8);
        self.failures += 1;
        now + Micros::from_micros(doubled).min(BACKOFF_MAX)
    }
    fn lose(&mut self, loss: Loss, effects: &mut Vec<Effect>) {
        self.is_lost = true;
        effects.push(Effect::Lost(loss));
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    /// The proof of a cell that was restored up to TXID 4, and a clock in milliseconds.
    struct Case(Proof);

    impl Case {
        fn new() -> Self {
            Self(Proof::new(t(4), Micros::from_secs(5)))
        }
        /// What it wants, without the timers.
        fn at(&mut self, ms: u64, event: Event) -> Vec<Effect> {
            let mut effects = self.all(ms, event);
            effects.retain(|effect| !matches!(effect, Effect::SetTimer(_)));
            effects
        }
        fn all(&mut self, ms: u64, event: Event) -> Vec<Effect> {
            let mut effects = vec![];
            self.0.on_event(mono(ms), event, &mut effects);
            effects
        }
    }
    fn mono(ms: u64) -> Mono {
        Mono::from_micros(ms * 1_000)
    }
    fn t(n: u64) -> Txid {
        Txid::new(n)
    }
    fn committed(n: u64) -> Event {
        Event::Committed(t(n))
    }
    fn uploaded(n: u64) -> Event {
        Event::Uploaded { max: t(n) }
    }
    fn ours(asked: u64) -> Event {
        Event::OwnerRead { asked, still_ours: true }
    }

    #[test]
    fn a_commit_is_proven_by_a_read_after_its_upload() {
        let mut case = Case::new();
        assert!(case.0.is_settled());
        assert_eq!(case.at(0, committed(5)), [Effect::Upload { after: t(4) }]);
        assert!(!case.0.is_settled());
        assert_eq!(case.at(1, uploaded(5)), [Effect::ReadOwner { number: 1 }]);
        assert_eq!(case.at(2, ours(1)), [Effect::Proven(t(5))]);
        assert!(case.0.is_settled());
    }

    #[test]
    fn commits_made_during_an_upload_become_one_segment() {
        let mut case = Case::new();
        case.at(0, committed(5));
        assert_eq!(case.at(1, committed(6)), []);
        assert_eq!(case.at(2, committed(7)), []);
        let effects = case.at(3, uploaded(5));
        assert_eq!(effects, [Effect::Upload { after: t(5) }, Effect::ReadOwner { number: 1 }]);
    }

    #[test]
    fn a_read_proves_only_what_was_uploaded_before_it_began() {
        let mut case = Case::new();
        case.at(0, committed(5));
        case.at(1, committed(6));
        case.at(2, uploaded(5));
        assert_eq!(case.at(3, uploaded(6)), [Effect::ReadOwner { number: 2 }]);
        assert_eq!(case.at(4, ours(1)), [Effect::Proven(t(5))]);
        assert_eq!(case.at(5, ours(2)), [Effect::Proven(t(6))]);
    }

    #[test]
    fn an_answer_that_a_later_read_has_overtaken_says_nothing() {
        let mut case = Case::new();
        case.at(0, committed(5));
        case.at(1, committed(6));
        case.at(2, uploaded(5));
        case.at(3, uploaded(6));
        assert_eq!(case.at(4, ours(2)), [Effect::Proven(t(6))]);
        assert_eq!(case.at(5, ours(1)), []);
        assert_eq!(case.at(6, ours(9)), []);
        assert_eq!(case.0.proven(), t(6));
    }

    #[test]
    fn the_reads_under_way_are_bounded_and_the_next_one_covers_all_that_waited() {
        let mut case = Case::new();
        for n in 5..9 {
            case.at(n, committed(n));
        }
        case.at(10, uploaded(5));
        case.at(11, uploaded(6));
        assert_eq!(case.at(12, uploaded(7)), [Effect::Upload { after: t(7) }]);
        assert_eq!(case.at(13, uploaded(8)), []);
        let effects = case.at(14, ours(1));
        assert_eq!(effects, [Effect::Proven(t(5)), Effect::ReadOwner { number: 3 }]);
        assert_eq!(case.at(15, ours(3)), [Effect::Proven(t(8))]);
    }

    #[test]
    fn a_record_that_names_another_owner_ends_it_for_good() {
        let mut case = Case::new();
        case.at(0, committed(5));
        case.at(1, uploaded(5));
        let theirs = Event::OwnerRead { asked: 1, still_ours: false };
        assert_eq!(case.at(2, theirs), [Effect::Lost(Loss::NotOurs)]);
        assert_eq!(case.at(3, ours(1)), []);
        assert_eq!(case.at(4, committed(6)), []);
    }

    #[test]
    fn a_failed_upload_is_repeated_after_a_wait_with_all_that_came_since() {
        let mut case = Case::new();
        case.all(0, committed(5));
        let effects = case.all(1, Event::UploadFailed);
        let [Effect::SetTimer(again)] = effects[..] else { panic!("{effects:?}") };
        assert_eq!(again, mono(21));
        assert_eq!(case.at(10, committed(6)), []);
        assert_eq!(case.at(21, Event::TimerFired), [Effect::Upload { after: t(4) }]);
        assert_eq!(case.at(22, uploaded(6)), [Effect::ReadOwner { number: 1 }]);
    }

    #[test]
    fn a_failed_read_is_repeated_and_asked_anew() {
        let mut case = Case::new();
        case.at(0, committed(5));
        case.at(1, uploaded(5));
        let effects = case.all(2, Event::ReadFailed { asked: 1 });
        assert_eq!(effects, [Effect::SetTimer(mono(22))]);
        assert_eq!(case.at(22, Event::TimerFired), [Effect::ReadOwner { number: 2 }]);
        assert_eq!(case.at(23, ours(1)), []);
        assert_eq!(case.at(24, ours(2)), [Effect::Proven(t(5))]);
    }

    #[test]
    fn it_gives_up_when_the_patience_is_over_and_not_before() {
        let mut case = Case::new();
        assert!(case.all(100, committed(5)).contains(&Effect::SetTimer(mono(5_100))));
        case.at(200, committed(6));
        assert_eq!(case.at(5_099, Event::TimerFired), []);
        assert_eq!(case.at(5_100, Event::TimerFired), [Effect::Lost(Loss::Late)]);
    }

    #[test]
    fn progress_renews_the_patience() {
        let mut case = Case::new();
        case.at(0, committed(5));
        case.at(1, committed(6));
        case.at(4_000, uploaded(5));
        assert_eq!(case.at(4_500, ours(1)), [Effect::Proven(t(5))]);
        assert_eq!(case.at(9_499, Event::TimerFired), []);
        assert_eq!(case.at(9_500, Event::TimerFired), [Effect::Lost(Loss::Late)]);
    }

    #[test]
    fn a_run_of_commits_sets_one_timer() {
        let mut case = Case::new();
        let mut timers = 0;
        for n in 0..1_000 {
            for event in [committed(5 + n), uploaded(5 + n), ours(1 + n)] {
                let effects = case.all(n, event);
                timers += effects.iter().filter(|e| matches!(e, Effect::SetTimer(_))).count();
            }
        }
        assert_eq!((timers, case.0.proven()), (1, t(1_004)));
    }
}
