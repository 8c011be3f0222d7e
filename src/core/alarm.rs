//! The alarm of one cell: when it runs, and what follows from how a run ends.
//!
//! Invariants: one run at a time. What is stored is taken away only by a run that ended well, by
//! the last failure that counts, or by the cell itself; so an alarm whose owner dies runs again at
//! the next one: at least once. What the cell sets or deletes during a run replaces the retry.
//! Units: alarms are [`Wall`], as JavaScript set them; timers are [`Mono`].
//! Source: workerd's alarm scheduler: 2 s × 2^n with up to a quarter more, at most 6 retries;
//! failures of the platform do not count.

use alloc::vec::Vec;

use crate::time::{Micros, Mono, Wall};

/// Failed runs after the first until the alarm is given up.
pub const RETRIES_MAX: u32 = 6;

/// The wait before the first retry; it doubles from there.
const BACKOFF_MIN: Micros = Micros::from_secs(2);

/// Where the doubling ends, whatever the database says.
const BACKOFF_DOUBLINGS_MAX: u32 = 9;

/// No timer is set for longer, so that an alarm follows a wall clock that is put right.
const LOOK_AGAIN: Micros = Micros::from_secs(600);

/// The latest instant that JavaScript's `Date` can hold: 13 September 275760.
pub const LATEST: Wall = Wall::from_millis(8_640_000_000_000_000);

/// What the cell's database keeps, in the same transactions as everything else of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What `setAlarm` was given; what `alarm()` is told as `scheduledTime`.
    pub scheduled: Wall,
    /// When it is due: `scheduled`, or later after a failure.
    pub due: Wall,
    /// Failures that count, so far.
    pub retries: u32,
}

/// The machine, for one activation of the cell. It wants one timer at a time: a new `SetTimer`
/// replaces the one before, and a `TimerFired` too many does no harm.
#[derive(Debug, Default)]
pub struct Alarm {
    stored: Option<Stored>,
    run: Option<Run>,
    timer: Option<Mono>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    alarm: Stored,
    /// The cell has set or deleted the alarm since the run began.
    is_replaced: bool,
}

/// What the alarm is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The cell begins with this in its database. Once.
    Restored(Option<Stored>),
    /// A turn has committed `setAlarm`, or `deleteAlarm`.
    Changed(Option<Wall>),
    /// The run ended.
    Ended(End),
    /// The timer is due. May be told at any time: look at the clocks again.
    TimerFired,
}

/// How a run ended. `draw` is random; it spreads the retries of cells that failed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `alarm()` returned.
    Done,
    /// It threw, or exceeded a limit of its own.
    Threw {
        /// 32 random bits.
        draw: u32,
    },
    /// It was cut off through no fault of its own.
    Interrupted {
        /// 32 random bits.
        draw: u32,
    },
}

/// What the alarm wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Call `alarm()`; it ends in one `Ended`.
    Run {
        /// `scheduledTime`.
        scheduled: Wall,
        /// `retryCount`; above zero: `isRetry`.
        retries: u32,
    },
    /// Commit this to the database. No `Changed` follows.
    Store(Option<Stored>),
    /// All retries failed: worth a line in the log.
    GaveUp(Stored),
    /// Tell `TimerFired` then.
    SetTimer(Mono),
}

impl Stored {
    /// As `setAlarm` stores it. Later than a `Date` can be is taken for the latest.
    pub fn new(scheduled: Wall) -> Self {
        let scheduled = scheduled.min(LATEST);
        Self { scheduled, due: scheduled, retries: 0 }
    }
}

impl Alarm {
    /// What `getAlarm` shows: nothing while `alarm()` runs, until the cell sets it again.
    pub fn visible(&self) -> Option<Wall> {
        let is_hidden = self.run.is_some_and(|run| !run.is_replaced);
        self.stored.filter(|_| !is_hidden).map(|stored| stored.scheduled)
    }
    /// What is stored, whether it runs or not: a run that is under way is still owed.
    pub fn stored(&self) -> Option<Stored> {
        self.stored
    }
    /// Whether `alarm()` is under way.
    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }
    /// Takes the event in, then runs what is due. `wall` is the same instant as `now`.
    ///
    /// # Panics
    /// On the end of a run that was not asked for.
    pub fn on_event(&mut self, now: Mono, wall: Wall, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Restored(stored) => self.stored = stored,
            Event::Changed(at) => {
                self.stored = at.map(Stored::new);
                if let Some(run) = &mut self.run {
                    run.is_replaced = true;
                }
            }
            Event::Ended(end) => self.end(wall, end, effects),
            Event::TimerFired => self.timer = None,
        }
        self.run_or_wait(now, wall, effects);
    }
    fn end(&mut self, wall: Wall, end: End, effects: &mut Vec<Effect>) {
        let run = self.run.take().expect("a run ends once");
        if run.is_replaced {
            return;
        }
        let Stored { scheduled, retries, .. } = run.alarm;
        self.stored = match end {
            End::Done => None,
            End::Threw { .. } if retries >= RETRIES_MAX => {
                effects.push(Effect::GaveUp(run.alarm));
                None
            }
            End::Threw { draw } => {
                let due = wall + backoff(retries, draw);
                Some(Stored { scheduled, due, retries: retries + 1 })
            }
            End::Interrupted { draw } => {
                let due = wall + backoff(retries, draw);
                Some(Stored { scheduled, due, retries })
            }
        };
        effects.push(Effect::Store(self.stored));
    }
    fn run_or_wait(&mut self, now: Mono, wall: Wall, effects: &mut Vec<Effect>) {
        let Some(alarm) = self.stored.filter(|_| self.run.is_none()) else { return };
        if alarm.due <= wall {
            self.run = Some(Run { alarm, is_replaced: false });
            effects.push(Effect::Run { scheduled: alarm.scheduled, retries: alarm.retries });
            return;
        }
        let wait = Micros::from_millis(alarm.due.as_millis() - wall.as_millis());
        let at = now + wait.min(LOOK_AGAIN);
        // One that is set for earlier serves too.
        if self.timer.is_none_or(|timer| at < timer || timer <= now) {
            self.timer = Some(at);
            effects.push(Effect::SetTimer(at));
        }
    }
}

/// Doubles with each failure; up to a quarter more, by the draw.
fn backoff(retries: u32, draw: u32) -> Micros {
    let doubled = BACKOFF_MIN.as_micros() << retries.min(BACKOFF_DOUBLINGS_MAX);
    let quarter = u128::from(doubled / 4);
    let more = (quarter * u128::from(draw)) >> 32;
    Micros::from_micros(doubled + u64::try_from(more).expect("a part of a quarter"))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::Effect::{GaveUp, Run, SetTimer, Store};
    use super::*;

    /// An alarm, on clocks of which the monotonic one shows 0 when the wall shows 1,000 s.
    struct Case(Alarm);

    impl Case {
        fn new() -> Self {
            Self(Alarm::default())
        }
        /// Told at this second of the wall clock.
        fn at(&mut self, s: u64, event: Event) -> Vec<Effect> {
            let mut effects = vec![];
            self.0.on_event(mono(s), wall(s), event, &mut effects);
            effects
        }
        fn set(&mut self, s: u64, at: u64) -> Vec<Effect> {
            self.at(s, Event::Changed(Some(wall(at))))
        }
        /// Set and running at second 1,000.
        fn running() -> Self {
            let mut case = Self::new();
            assert_eq!(case.set(1_000, 1_000), [run(1_000, 0)]);
            case
        }
    }
    fn mono(s: u64) -> Mono {
        Mono::from_micros((s - 1_000) * 1_000_000)
    }
    fn wall(s: u64) -> Wall {
        Wall::from_millis(s * 1_000)
    }
    fn run(s: u64, retries: u32) -> Effect {
        Run { scheduled: wall(s), retries }
    }
    const THREW: Event = Event::Ended(End::Threw { draw: 0 });

    #[test]
    fn an_alarm_runs_when_its_time_has_come_and_is_gone_after_it() {
        let mut case = Case::new();
        assert_eq!(case.set(1_000, 1_030), [SetTimer(mono(1_030))]);
        assert_eq!(case.0.visible(), Some(wall(1_030)));
        assert_eq!(case.at(1_030, Event::TimerFired), [run(1_030, 0)]);
        assert_eq!((case.0.visible(), case.0.is_running()), (None, true));
        assert!(case.0.stored().is_some(), "it is owed until it ended");
        assert_eq!(case.at(1_031, Event::Ended(End::Done)), [Store(None)]);
        assert_eq!((case.0.stored(), case.0.is_running()), (None, false));
    }

    #[test]
    fn an_alarm_in_the_past_runs_at_once_and_one_in_the_year_275760_waits() {
        let mut case = Case::new();
        assert_eq!(case.set(1_000, 0), [run(0, 0)]);
        case.at(1_000, Event::Ended(End::Done));
        let effects = case.at(1_000, Event::Changed(Some(Wall::from_millis(u64::MAX))));
        assert_eq!(effects, [SetTimer(mono(1_600))]);
        assert_eq!(case.0.visible(), Some(LATEST));
    }

    #[test]
    fn an_alarm_follows_a_wall_clock_that_is_put_right() {
        let mut case = Case::new();
        assert_eq!(case.set(1_000, 9_000), [SetTimer(mono(1_600))]);
        // Ten minutes later the wall clock turns out to be two hours ahead.
        let mut effects = vec![];
        case.0.on_event(mono(1_600), wall(9_000), Event::TimerFired, &mut effects);
        assert_eq!(effects, [run(9_000, 0)]);
    }

    #[test]
    fn an_alarm_that_throws_is_tried_six_times_more_and_then_given_up() {
        let mut case = Case::running();
        let (mut now, mut waits) = (1_000, vec![]);
        for retries in 1..=RETRIES_MAX {
            let effects = case.at(now, THREW);
            let [Store(Some(stored)), SetTimer(at)] = effects[..] else { panic!("{effects:?}") };
            assert_eq!((stored.scheduled, stored.retries), (wall(1_000), retries));
            let due = stored.due.as_millis() / 1_000;
            assert_eq!(at, mono(due));
            waits.push(due - now);
            now = due;
            assert_eq!(case.at(now, Event::TimerFired), [run(1_000, retries)]);
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 64]);
        let effects = case.at(now, THREW);
        assert!(matches!(effects[..], [GaveUp(_), Store(None)]), "{effects:?}");
        assert_eq!(case.0.visible(), None);
    }

    #[test]
    fn retries_are_spread_by_up_to_a_quarter() {
        assert_eq!(backoff(0, 0), Micros::from_secs(2));
        let most = backoff(0, u32::MAX).as_micros();
        assert!((2_499_000..2_500_000).contains(&most), "{most}");
        assert_eq!(backoff(u32::MAX, 0), Micros::from_secs(1_024));
    }

    #[test]
    fn a_failure_of_the_platform_does_not_count() {
        let mut case = Case::running();
        for _ in 0..20 {
            let now = case.0.stored().expect("still owed").due.as_millis() / 1_000;
            let effects = case.at(now, Event::Ended(End::Interrupted { draw: 0 }));
            let Store(Some(stored)) = effects[0] else { panic!("{effects:?}") };
            assert_eq!(stored.retries, 0);
            let due = stored.due.as_millis() / 1_000;
            assert_eq!(case.at(due, Event::TimerFired), [run(1_000, 0)]);
        }
    }

    #[test]
    fn what_is_set_during_the_run_replaces_its_retry() {
        let mut case = Case::running();
        assert_eq!(case.set(1_001, 1_050), []);
        assert_eq!(case.0.visible(), Some(wall(1_050)));
        assert_eq!(case.at(1_002, THREW), [SetTimer(mono(1_050))]);
        assert_eq!(case.at(1_050, Event::TimerFired), [run(1_050, 0)]);
    }

    #[test]
    fn what_is_deleted_during_the_run_is_not_tried_again() {
        let mut case = Case::running();
        assert_eq!(case.at(1_001, Event::Changed(None)), []);
        assert!(case.0.is_running(), "the run itself goes on");
        assert_eq!(case.at(1_002, THREW), []);
        assert_eq!(case.at(9_999, Event::TimerFired), []);
    }

    #[test]
    fn an_alarm_that_the_last_owner_did_not_finish_runs_again() {
        let mut case = Case::new();
        let stored = Stored { scheduled: wall(1_000), due: wall(1_008), retries: 3 };
        let effects = case.at(1_004, Event::Restored(Some(stored)));
        assert_eq!(effects, [SetTimer(mono(1_008))]);
        assert_eq!(case.at(1_008, Event::TimerFired), [run(1_000, 3)]);
    }

    #[test]
    fn an_earlier_alarm_moves_the_timer_and_a_later_one_leaves_it() {
        let mut case = Case::new();
        assert_eq!(case.set(1_000, 1_100), [SetTimer(mono(1_100))]);
        assert_eq!(case.set(1_001, 1_050), [SetTimer(mono(1_050))]);
        assert_eq!(case.set(1_002, 1_200), []);
        assert_eq!(case.at(1_050, Event::TimerFired), [SetTimer(mono(1_200))]);
    }
}
