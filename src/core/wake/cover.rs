//! The entries that one activation of a cell keeps in the wake index, and what may leave the gate.
//!
//! Invariant: `Durable(t)` follows the proof of `t`, and what the alarm is after `t` is covered by
//! an entry that this activation wrote and of which it has heard. It stands between proof and gate:
//! `proof::Effect::Proven` goes in, [`Effect::Durable`] goes to the gate.
//! Units: TXIDs; seconds of the wall clock; timers are [`Mono`].

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Entry, Verdict, second};
use crate::cell::CellId;
use crate::epoch::Epoch;
use crate::time::{Micros, Mono, Wall};
use crate::txid::Txid;

/// An entry that has been due for so long is replaced by one for when the alarm is: whoever scans
/// need not come again and again. One entry a minute is also the most that a cell costs which arms
/// its alarm anew all the time.
const REPLACED_AFTER_S: u64 = 60;

/// More entries of one cell are not kept: those that nobody needs go before they are due.
const ENTRIES_MAX: usize = 4;

/// The wait after a first failure; it doubles from there.
const BACKOFF_MIN: Micros = Micros::from_millis(50);

/// Relieves a store that throttles, and still leaves many attempts within the patience.
const BACKOFF_MAX: Micros = Micros::from_millis(1_000);

/// The machine. It wants one timer at a time: a new `SetTimer` replaces the one before.
#[derive(Debug)]
pub struct Cover {
    cell: CellId,
    epoch: Epoch,
    /// Numbers our entries.
    number: u64,
    /// When the alarm is due after each commit that changed it, oldest first. The first holds at
    /// what is durable.
    marks: VecDeque<(Txid, Option<u64>)>,
    proven: Txid,
    /// `None`: not even what was restored may be shown.
    durable: Option<Txid>,
    /// Ours, of which we know that they are there.
    entries: Vec<Entry>,
    writing: Option<Write>,
    failures: u32,
    patience: Micros,
    is_lost: bool,
}

#[derive(Debug)]
struct Write {
    entry: Entry,
    /// Since when it is needed.
    since: Mono,
    is_waiting: bool,
}

/// What the cover is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Begin. Once.
    Started,
    /// A commit has left the alarm so: when it is due. Told before its proof.
    Changed(Txid, Option<Wall>),
    /// Everything up to here is proven.
    Proven(Txid),
    /// The entry with this number was written.
    Written(u64),
    /// Its write failed, or its end is not known.
    WriteFailed(u64),
    /// Somebody found this entry due, at this time: is it needed?
    Visited(Entry, Wall),
    /// The timer is due.
    TimerFired,
}

/// What the cover wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Put an object under its key, whatever is there; ends in `Written` or `WriteFailed`.
    Put(Entry),
    /// Nobody needs it any more: delete it, if that is easily done.
    Delete(Entry),
    /// What was seen up to here may leave: tell the gate.
    Durable(Txid),
    /// The answer to a visit.
    Answer(Entry, Verdict),
    /// Tell `TimerFired` then.
    SetTimer(Mono),
    /// No entry can be written: break the gate, reset the cell.
    Lost,
}

impl Cover {
    /// Of a cell that begins at `base` with its alarm due then. `patience`: how long an entry may
    /// take to be written.
    pub fn new(
        cell: CellId,
        epoch: Epoch,
        base: Txid,
        alarm: Option<Wall>,
        patience: Micros,
    ) -> Self {
        Self {
            cell,
            epoch,
            number: 0,
            marks: VecDeque::from([(base, alarm.map(second))]),
            proven: base,
            durable: None,
            entries: Vec::new(),
            writing: None,
            failures: 0,
            patience,
            is_lost: false,
        }
    }
    /// Whether the latest alarm is covered, and the commit that set it may be shown.
    pub fn is_settled(&self) -> bool {
        self.is_known() && self.writing.is_none()
    }
    /// The cell leaves memory, with everything proven: our entries that nobody needs any more.
    /// Deleting them is a courtesy; a visit would find them out.
    ///
    /// # Panics
    /// Not everything is proven and covered.
    pub fn leave(self) -> Vec<Entry> {
        assert!(self.is_settled(), "the cell still waits for an entry");
        let needed = self.due().and_then(|due| self.covering(due)).map(|entry| entry.number);
        self.entries.into_iter().filter(|entry| Some(entry.number) != needed).collect()
    }
    /// The cell is purged, and its alarm with it: all entries of this epoch.
    pub fn end(self) -> Vec<Entry> {
        self.entries
    }
    /// Whether the state of the alarm after the latest commit may be shown.
    fn is_known(&self) -> bool {
        self.durable >= self.marks.back().map(|(txid, _)| *txid)
    }
    /// Takes the event in, then writes what is needed and lets go what is durable.
    ///
    /// # Panics
    /// On a write that was not asked for, or a commit before one that was told.
    pub fn on_event(&mut self, now: Mono, event: Event, effects: &mut Vec<Effect>) {
        if self.is_lost {
            if let Event::Visited(entry, _) = event {
                effects.push(Effect::Answer(entry, Verdict::Failed));
            }
            return;
        }
        match event {
            Event::Started => {}
            Event::Changed(txid, alarm) => self.change(txid, alarm.map(second)),
            Event::Proven(upto) => self.proven = self.proven.max(upto),
            Event::Written(number) => {
                let write = self.writing.take().expect("a write ends once");
                assert_eq!(write.entry.number, number, "another write was asked for");
                self.failures = 0;
                self.entries.push(write.entry);
            }
            Event::WriteFailed(number) => {
                let write = self.writing.as_mut().expect("a write ends once");
                assert_eq!(write.entry.number, number, "another write was asked for");
                write.is_waiting = true;
                let doubled = BACKOFF_MIN.as_micros() << self.failures.min(8);
                self.failures += 1;
                let again = now + Micros::from_micros(doubled).min(BACKOFF_MAX);
                effects.push(Effect::SetTimer(again));
            }
            Event::Visited(entry, wall) => self.visit(now, entry, wall, effects),
            Event::TimerFired => self.write_again(now, effects),
        }
        if !self.is_lost {
            self.let_go(effects);
            self.write_if_needed(now, effects);
            self.tidy(effects);
        }
    }
    fn change(&mut self, txid: Txid, due: Option<u64>) {
        let (last, before) = *self.marks.back().expect("one mark is always kept");
        assert!(txid > last, "commit {txid} after {last}");
        if due != before {
            self.marks.push_back((txid, due));
        }
    }
    /// When the alarm is due after the latest commit.
    fn due(&self) -> Option<u64> {
        self.marks.back().expect("one mark is always kept").1
    }
    /// The entry that covers an alarm and is due last.
    fn covering(&self, due: u64) -> Option<&Entry> {
        let early = self.entries.iter().filter(|entry| entry.due_s <= due);
        early.max_by_key(|entry| (entry.due_s, entry.number))
    }
    /// The last commit that is proven, and after which the alarm is covered.
    fn let_go(&mut self, effects: &mut Vec<Effect>) {
        let mut upto = self.proven;
        let mut kept = None;
        for (index, (txid, due)) in self.marks.iter().enumerate().rev() {
            if *txid <= self.proven && due.is_none_or(|due| self.covering(due).is_some()) {
                kept = Some(index);
                break;
            }
            upto = upto.min(Txid::new(txid.get().saturating_sub(1)));
        }
        let Some(kept) = kept.filter(|_| self.durable.is_none_or(|durable| durable < upto)) else {
            return;
        };
        self.marks.drain(..kept);
        self.durable = Some(upto);
        effects.push(Effect::Durable(upto));
    }
    fn write_if_needed(&mut self, now: Mono, effects: &mut Vec<Effect>) {
        if let Some(due) = self.due()
            && self.writing.is_none()
            && self.covering(due).is_none()
        {
            self.write(now, due, effects);
        }
    }
    fn write(&mut self, now: Mono, due_s: u64, effects: &mut Vec<Effect>) {
        self.number += 1;
        let (cell, epoch, number) = (self.cell.clone(), self.epoch, self.number);
        let entry = Entry { due_s, cell, epoch, number };
        effects.push(Effect::Put(entry.clone()));
        self.writing = Some(Write { entry, since: now, is_waiting: false });
    }
    /// The same name again: should the first attempt arrive late, it changes nothing.
    fn write_again(&mut self, now: Mono, effects: &mut Vec<Effect>) {
        let Some(write) = self.writing.as_mut().filter(|write| write.is_waiting) else { return };
        if now >= write.since + self.patience {
            self.is_lost = true;
            return effects.push(Effect::Lost);
        }
        write.is_waiting = false;
        effects.push(Effect::Put(write.entry.clone()));
    }
    fn visit(&mut self, now: Mono, entry: Entry, wall: Wall, effects: &mut Vec<Effect>) {
        let mut verdict = Verdict::Later;
        // One that is still being written can be there before we hear of it: given away now, its
        // late answer would make us rely on it. An entry of a later epoch is not ours to judge:
        // somebody owns the cell after us.
        let is_written = self.writing.as_ref().is_some_and(|write| write.entry == entry);
        if self.is_known() && !is_written && entry.epoch <= self.epoch {
            let is_ours = |kept: &Entry| *kept == entry;
            let others = |due| self.entries.iter().any(|kept| kept.due_s <= due && !is_ours(kept));
            if self.due().is_none_or(others) {
                verdict = Verdict::Done;
                // From here on somebody may delete it.
                self.entries.retain(|kept| !is_ours(kept));
            } else if let Some(due) = self.due()
                && self.writing.is_none()
                && due > second(wall)
                && second(wall) >= entry.due_s + REPLACED_AFTER_S
            {
                self.write(now, due, effects);
            }
        }
        effects.push(Effect::Answer(entry, verdict));
    }
    /// Too many: the one that covers the alarm is enough, or the earliest for an alarm to come.
    fn tidy(&mut self, effects: &mut Vec<Effect>) {
        if self.entries.len() <= ENTRIES_MAX || !self.is_known() {
            return;
        }
        let kept = match self.due() {
            Some(due) => self.covering(due),
            None => self.entries.iter().min_by_key(|entry| entry.due_s),
        };
        let Some(kept) = kept.map(|entry| entry.number) else { return };
        let superfluous = self.entries.extract_if(.., |entry| entry.number != kept);
        effects.extend(superfluous.map(Effect::Delete));
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::Effect::{Answer, Delete, Durable, Lost, Put, SetTimer};
    use super::*;

    /// The cover of a cell at epoch 5, begun at TXID 10. The clock stands unless it is told to go.
    struct Case {
        cover: Cover,
        now: Mono,
    }

    impl Case {
        fn new(alarm: Option<u64>) -> (Self, Vec<Effect>) {
            let patience = Micros::from_secs(5);
            let cover = Cover::new(cell(), epoch(5), t(10), alarm.map(wall), patience);
            let mut case = Self { cover, now: Mono::default() };
            let effects = case.tell(Event::Started);
            (case, effects)
        }
        /// Begun without an alarm.
        fn idle() -> Self {
            let (case, effects) = Self::new(None);
            assert_eq!(effects, [Durable(t(10))]);
            case
        }
        /// Covered by entry 1 for an alarm at this second, all proven up to TXID 11.
        fn armed(due: u64) -> Self {
            let mut case = Self::idle();
            assert_eq!(case.set(11, Some(due)), [Put(entry(due, 1))]);
            assert_eq!(case.tell(Event::Written(1)), []);
            assert_eq!(case.tell(Event::Proven(t(11))), [Durable(t(11))]);
            case
        }
        fn tell(&mut self, event: Event) -> Vec<Effect> {
            let mut effects = vec![];
            self.cover.on_event(self.now, event, &mut effects);
            effects
        }
        fn set(&mut self, txid: u64, due: Option<u64>) -> Vec<Effect> {
            self.tell(Event::Changed(t(txid), due.map(wall)))
        }
        fn visit(&mut self, at: u64, entry: Entry) -> Vec<Effect> {
            self.tell(Event::Visited(entry, wall(at)))
        }
    }
    fn cell() -> CellId {
        CellId::new("app.Room", &"0a".repeat(32)).expect("a good name")
    }
    fn epoch(n: u64) -> Epoch {
        Epoch::from_record(n).expect("not zero")
    }
    fn entry(due_s: u64, number: u64) -> Entry {
        Entry { due_s, cell: cell(), epoch: epoch(5), number }
    }
    fn t(n: u64) -> Txid {
        Txid::new(n)
    }
    fn wall(s: u64) -> Wall {
        Wall::from_millis(s * 1_000 + 7)
    }

    #[test]
    fn what_shows_an_armed_alarm_waits_for_both_the_proof_and_the_entry() {
        let mut case = Case::idle();
        assert_eq!(case.set(11, Some(900)), [Put(entry(900, 1))]);
        assert_eq!(case.tell(Event::Proven(t(12))), []);
        assert!(!case.cover.is_settled());
        assert_eq!(case.tell(Event::Written(1)), [Durable(t(12))]);
        let mut case = Case::idle();
        case.set(11, Some(900));
        assert_eq!(case.tell(Event::Written(1)), []);
        assert_eq!(case.tell(Event::Proven(t(11))), [Durable(t(11))]);
        assert!(case.cover.is_settled());
    }

    #[test]
    fn a_restored_alarm_is_not_shown_before_this_epoch_has_its_own_entry() {
        let (mut case, effects) = Case::new(Some(900));
        assert_eq!(effects, [Put(entry(900, 1))]);
        assert_eq!(case.tell(Event::Proven(t(11))), []);
        assert_eq!(case.tell(Event::Written(1)), [Durable(t(11))]);
    }

    #[test]
    fn commits_before_the_alarm_do_not_wait_for_its_entry() {
        let mut case = Case::idle();
        case.set(13, Some(900));
        assert_eq!(case.tell(Event::Proven(t(12))), [Durable(t(12))]);
        assert_eq!(case.tell(Event::Proven(t(13))), []);
        assert_eq!(case.tell(Event::Written(1)), [Durable(t(13))]);
    }

    #[test]
    fn a_later_alarm_costs_nothing_and_an_earlier_one_an_entry() {
        let mut case = Case::armed(900);
        assert_eq!(case.set(12, Some(2_000)), []);
        assert_eq!(case.tell(Event::Proven(t(12))), [Durable(t(12))]);
        assert_eq!(case.set(13, Some(800)), [Put(entry(800, 2))]);
        assert_eq!(case.tell(Event::Proven(t(13))), []);
        assert_eq!(case.tell(Event::Written(2)), [Durable(t(13))]);
    }

    #[test]
    fn an_alarm_that_is_gone_again_needs_no_entry() {
        let mut case = Case::idle();
        case.set(11, Some(900));
        case.set(12, None);
        assert_eq!(case.tell(Event::Proven(t(11))), []);
        assert_eq!(case.tell(Event::Proven(t(12))), [Durable(t(12))]);
    }

    #[test]
    fn one_entry_is_written_at_a_time_and_then_what_is_needed_by_then() {
        let mut case = Case::idle();
        case.set(11, Some(900));
        assert_eq!(case.set(12, Some(800)), []);
        assert_eq!(case.set(13, Some(700)), []);
        assert_eq!(case.tell(Event::Written(1)), [Put(entry(700, 2))]);
    }

    #[test]
    fn an_entry_that_is_not_needed_is_given_away_only_when_that_is_proven() {
        let mut case = Case::armed(900);
        assert_eq!(case.set(12, None), []);
        assert_eq!(case.visit(901, entry(900, 1)), [Answer(entry(900, 1), Verdict::Later)]);
        case.tell(Event::Proven(t(12)));
        assert_eq!(case.visit(902, entry(900, 1)), [Answer(entry(900, 1), Verdict::Done)]);
        // It is not relied upon from then on.
        assert_eq!(case.set(13, Some(950)), [Put(entry(950, 2))]);
    }

    #[test]
    fn the_only_cover_of_an_alarm_is_never_given_away() {
        let mut case = Case::armed(900);
        case.set(12, Some(2_000));
        case.tell(Event::Proven(t(12)));
        assert_eq!(case.visit(959, entry(900, 1)), [Answer(entry(900, 1), Verdict::Later)]);
        // Once it is stale for a minute, a fresh one takes its place.
        let effects = case.visit(960, entry(900, 1));
        assert_eq!(effects, [Put(entry(2_000, 2)), Answer(entry(900, 1), Verdict::Later)]);
        assert_eq!(case.visit(965, entry(900, 1)), [Answer(entry(900, 1), Verdict::Later)]);
        case.tell(Event::Written(2));
        assert_eq!(case.visit(970, entry(900, 1)), [Answer(entry(900, 1), Verdict::Done)]);
    }

    #[test]
    fn an_entry_of_an_earlier_owner_goes_when_ours_is_there_and_a_later_ones_stays() {
        let earlier = Entry { epoch: epoch(4), ..entry(900, 1) };
        let (mut case, _) = Case::new(Some(900));
        assert_eq!(case.visit(900, earlier.clone()), [Answer(earlier.clone(), Verdict::Later)]);
        case.tell(Event::Written(1));
        assert_eq!(case.visit(901, earlier.clone()), [Answer(earlier, Verdict::Done)]);
        let mut case = Case::idle();
        let later = Entry { epoch: epoch(6), ..entry(900, 1) };
        assert_eq!(case.visit(900, later.clone()), [Answer(later, Verdict::Later)]);
    }

    #[test]
    fn an_entry_is_not_given_away_before_its_write_is_answered() {
        let mut case = Case::idle();
        case.set(11, Some(900));
        case.set(12, None);
        case.tell(Event::Proven(t(12)));
        // It has taken effect, somebody finds it, and nobody needs it.
        assert_eq!(case.visit(901, entry(900, 1)), [Answer(entry(900, 1), Verdict::Later)]);
        case.tell(Event::Written(1));
        assert_eq!(case.set(13, Some(950)), [], "it is there");
        case.set(14, None);
        case.tell(Event::Proven(t(14)));
        assert_eq!(case.visit(951, entry(900, 1)), [Answer(entry(900, 1), Verdict::Done)]);
    }

    #[test]
    fn a_write_is_repeated_under_its_name_until_the_patience_is_over() {
        let mut case = Case::idle();
        case.set(11, Some(900));
        loop {
            let effects = case.tell(Event::WriteFailed(1));
            let [SetTimer(at)] = effects[..] else { panic!("{effects:?}") };
            case.now = at;
            let effects = case.tell(Event::TimerFired);
            if effects == [Lost] {
                break;
            }
            assert_eq!(effects, [Put(entry(900, 1))]);
        }
        assert!((5_000..6_500).contains(&case.now.since(Mono::default()).as_millis()));
        assert_eq!(case.visit(901, entry(900, 1)), [Answer(entry(900, 1), Verdict::Failed)]);
    }

    #[test]
    fn a_cell_that_leaves_keeps_the_one_entry_that_its_alarm_needs() {
        let mut case = Case::armed(900);
        case.set(12, Some(800));
        case.tell(Event::Written(2));
        case.tell(Event::Proven(t(12)));
        assert_eq!(case.cover.leave(), [entry(900, 1)]);
        let mut case = Case::armed(900);
        case.set(12, None);
        case.tell(Event::Proven(t(12)));
        assert_eq!(case.cover.leave(), [entry(900, 1)]);
    }

    #[test]
    fn entries_that_nobody_needs_do_not_pile_up() {
        let mut case = Case::idle();
        let mut deleted = 0;
        for n in 1..100 {
            assert_eq!(case.set(10 + n, Some(10_000 - n)).last(), Some(&Put(entry(10_000 - n, n))));
            case.tell(Event::Written(n));
            let effects = case.tell(Event::Proven(t(10 + n)));
            deleted += effects.iter().filter(|effect| matches!(effect, Delete(_))).count();
        }
        assert!(deleted > 90, "{deleted}");
        assert_eq!(case.cover.leave().len() + deleted + 1, 99);
    }
}
