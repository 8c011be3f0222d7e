//! Ends turns that use more CPU time than they may.
//!
//! One thread for the process looks at every realm each [`TICK`]. A turn costs its own thread
//! four atomic operations and no clock: the watchdog reads the CPU clock of the shard's thread when
//! it first sees the turn, so that a turn is charged only what it used after that. A turn may so
//! exceed its budget by up to two ticks. Waiting for the CPU beside other threads is not charged.
//!
//! JavaScript is ended by V8; SQLite, which may be in the middle of a statement without end, asks
//! [`is_ended`].
//!
//! Invariant: `terminate_execution` is called only while the slot says `Ending`, and the shard's
//! thread does not start another turn before it says `Ended`: a termination cannot hit a later turn.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// How often turns are looked at. A fraction of any useful budget; 50 wake-ups in a second cost
/// less than 0.1 % of a core.
const TICK: Duration = Duration::from_millis(20);

/// Low bits of a slot's word; the other bits are the number of the turn.
const IDLE: u64 = 0;
const RUNNING: u64 = 1;
const ENDING: u64 = 2;
const ENDED: u64 = 3;
const STATE: u64 = 3;
const ONE_TURN: u64 = 4;

/// What any turn may use, in nanoseconds: less than its own budget when the process is to end.
static BUDGET_NS_MAX: AtomicU64 = AtomicU64::new(u64::MAX);

/// From now on no turn of this process uses more than `budget` of CPU time, whatever the limits of
/// its realm say; one that has used more already is ended. Times are as exact as [`TICK`].
pub fn bound_turns(budget: Duration) {
    let budget = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
    BUDGET_NS_MAX.fetch_min(budget, Ordering::Relaxed);
}

thread_local! {
    /// Of the turn that runs on this thread.
    static CURRENT: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

/// Whether the turn that runs on this thread is over its budget, and has to come to its end.
pub(crate) fn is_ended() -> bool {
    CURRENT.with_borrow(|slot| {
        let word = slot.as_ref().map(|slot| slot.word.load(Ordering::Acquire));
        word.is_some_and(|word| matches!(word & STATE, ENDING | ENDED))
    })
}

/// What the watchdog sees of a realm.
pub(crate) struct Slot {
    word: AtomicU64,
    budget_ns: AtomicU64,
    isolate: v8::IsolateHandle,
    cpu_clock: libc::clockid_t,
}

/// What the watchdog remembers of a slot between two looks.
struct Watched {
    slot: Weak<Slot>,
    word: u64,
    cpu_ns_first: u64,
}

impl Slot {
    /// The slot of an isolate that lives on the calling thread.
    pub fn register(isolate: v8::IsolateHandle) -> Arc<Slot> {
        let mut cpu_clock: libc::clockid_t = 0;
        // SAFETY: both arguments are valid; the thread is the caller itself.
        let failed =
            unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut cpu_clock) };
        assert_eq!(failed, 0, "the CPU clock of a live thread exists");
        let slot = Arc::new(Slot {
            word: AtomicU64::new(IDLE),
            budget_ns: AtomicU64::new(0),
            isolate,
            cpu_clock,
        });
        lock(watched()).push(Watched { slot: Arc::downgrade(&slot), word: IDLE, cpu_ns_first: 0 });
        slot
    }

    /// A turn begins; it may use `budget` of CPU time.
    pub fn begin(self: &Arc<Self>, budget: Duration) {
        CURRENT.set(Some(self.clone()));
        self.budget_ns
            .store(u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let turn = (self.word.load(Ordering::Relaxed) & !STATE) + ONE_TURN;
        self.word.store(turn | RUNNING, Ordering::Release);
    }

    /// The turn is over: `true` if the watchdog has ended it. Then the isolate is terminating, and
    /// nothing more is to come.
    pub fn end(&self) -> bool {
        CURRENT.set(None);
        let word = self.word.load(Ordering::Relaxed) & !STATE;
        if self
            .word
            .compare_exchange(word | RUNNING, word, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            return false;
        }
        // The watchdog is between two lines of `end_turn`: nanoseconds.
        while self.word.load(Ordering::Acquire) & STATE != ENDED {
            std::thread::yield_now();
        }
        self.word.store(word, Ordering::Release);
        true
    }

    /// Ends the turn seen as `word`, unless it is over already.
    fn end_turn(&self, word: u64) {
        let ending = (word & !STATE) | ENDING;
        if self.word.compare_exchange(word, ending, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.isolate.terminate_execution();
            self.word.store((word & !STATE) | ENDED, Ordering::Release);
        }
    }

    /// CPU time of the shard's thread, in nanoseconds.
    fn cpu_ns(&self) -> Option<u64> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid. A clock of a thread that has ended is refused, not undefined.
        let failed = unsafe { libc::clock_gettime(self.cpu_clock, &raw mut time) };
        (failed == 0)
            .then(|| time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
    }
}

impl Watched {
    fn look(&mut self, slot: &Slot) {
        let word = slot.word.load(Ordering::Acquire);
        if word & STATE != RUNNING {
            return;
        }
        let Some(cpu_ns) = slot.cpu_ns() else { return };
        if word != self.word {
            self.word = word;
            self.cpu_ns_first = cpu_ns;
            return;
        }
        let budget_ns = slot.budget_ns.load(Ordering::Relaxed);
        let budget_ns = budget_ns.min(BUDGET_NS_MAX.load(Ordering::Relaxed));
        if cpu_ns.saturating_sub(self.cpu_ns_first) > budget_ns {
            slot.end_turn(word);
        }
    }
}

fn watched() -> &'static Mutex<Vec<Watched>> {
    static WATCHED: OnceLock<Mutex<Vec<Watched>>> = OnceLock::new();
    WATCHED.get_or_init(|| {
        let started = std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch);
        // Without it an endless loop of a user would hold a core for ever.
        started.expect("the watchdog thread starts");
        Mutex::default()
    })
}

fn watch() {
    loop {
        std::thread::sleep(TICK);
        lock(watched()).retain_mut(|watched| match watched.slot.upgrade() {
            Some(slot) => {
                watched.look(&slot);
                true
            }
            None => false,
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
