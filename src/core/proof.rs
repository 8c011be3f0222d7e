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
#[derive(Debug)]
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

#[derive(Clone, Copy, Debug)]
enum Upload {
    Idle,
    InFlight,
    /// It failed: not again before this.
    Failed(Mono),
}

#[derive(Clone, Copy, Debug)]
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
