//! A beat for executors that have something to run, so that none sleeps on it.
//!
//! An executor of glommio 0.9 may sleep although tasks of it are to run. `run_task_queues` answers
//! that nothing ran when its time slice is over before its first task, and then the executor parks:
//! its thread lost the core for a millisecond between arming the timer of the slice and looking at
//! it, or the late news of a wake-up that is dealt with already ends the slice (glommio-ng 0.12 has
//! the same lines). It does not matter who woke the tasks: another thread, a timer, or the answer
//! of a socket. Only what wakes the executor next lets them run.
//!
//! So the tasks that are to run are counted ([`Queue`]), and while an executor has any, the heart
//! beats for it: it wakes a task of the executor that does nothing, from its own thread.
//!
//! *Complete*: what is spawned here is polled with a waker of ours (`shield`), so a task is queued in
//! three ways only: by that waker, which counts it; when its handle is dropped, which counts it; and
//! as the first of an executor, which counts as queued from before it is known until it runs. A
//! task is counted out when it is polled or dropped, not earlier.
//!
//! *In time*: an executor with a count above zero is beaten at each look of the heart, each [`BEAT`].
//! The heart sleeps for longer only if all counts are zero *after* it has said that it will, and who
//! raises a count looks *after* that whether the heart has said so; both are `SeqCst`, so one of the
//! two sees the other. A beat that is lost in the same way leaves its executor's count above zero,
//! and the next look beats again.
//!
//! *Rare*: an executor that waits with nothing to run is never woken, and the heart sleeps while all
//! do.
//!
//! A beat needs the executor's first round, in which its task is made. Until then, and when it does
//! not answer, an executor is got out of its sleep by a signal: glommio takes `EINTR` of its ring for
//! a wake-up without events, and goes on with the next round.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::thread::Thread;
use std::time::Duration;

/// About one scheduler tick: a stall needs a thread that lost its core, which waits not much less.
const BEAT: Duration = Duration::from_millis(5);

/// Looks at which nothing was to run, after which the heart sleeps: to wake it costs a system call
/// of whoever does.
const QUIET_LOOKS: u32 = 2;

/// Beats that an executor may owe. Each is a reference to its task, of which glommio counts
/// 32,767; an executor that is not parked but blocked needs none of them.
const OWED_MAX: u32 = 1_000;

/// After so many beats without an answer a signal goes out, too: rarely, as it may cut short a
/// system call of a thread that is busy and not asleep.
const OWED_KICK: u32 = 50;

/// Its default is to be ignored, so one that comes from elsewhere does no harm.
const KICK: libc::c_int = libc::SIGURG;

/// Counts the tasks of one executor that are to run.
#[derive(Default)]
pub(crate) struct Queue(AtomicU32);

impl Queue {
    /// One more is to run.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        if IS_ASLEEP.load(Ordering::SeqCst) {
            rouse();
        }
    }

    /// One of them runs, or is no more.
    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// One executor's.
struct Pulse {
    /// Linux's number of its thread.
    thread: libc::pid_t,
    queue: Arc<Queue>,
    /// `None` until its task has run.
    waker: Mutex<Option<Waker>>,
    owed: AtomicU32,
}

/// An executor that lives.
pub(crate) struct Announced(Arc<Pulse>);

/// All executors of the process.
static PULSES: Mutex<Vec<Arc<Pulse>>> = Mutex::new(Vec::new());
static HEART: OnceLock<Thread> = OnceLock::new();
/// The heart sleeps until it is roused, or is about to.
static IS_ASLEEP: AtomicBool = AtomicBool::new(false);

thread_local! {
    static QUEUE: RefCell<Arc<Queue>> = RefCell::default();
}

/// The queue of the executor that this thread runs.
pub(crate) fn queue() -> Arc<Queue> {
    QUEUE.with_borrow(Arc::clone)
}

/// Announces the executor that this thread is about to run. Its first task is to run.
pub(crate) fn announce() -> Announced {
    // SAFETY: the call takes nothing.
    let thread = unsafe { libc::gettid() };
    let queue = Arc::<Queue>::default();
    QUEUE.set(queue.clone());
    let (waker, owed) = (Mutex::default(), AtomicU32::new(0));
    let pulse = Arc::new(Pulse { thread, queue: queue.clone(), waker, owed });
    PULSES.lock().unwrap_or_else(PoisonError::into_inner).push(pulse.clone());
    HEART.get_or_init(|| {
        let_signals_interrupt();
        std::thread::Builder::new()
            .name("heart".into())
            .spawn(beat)
            .expect("the system lets a process start one more thread")
            .thread()
            .clone()
    });
    queue.add();
    Announced(pulse)
}

impl Announced {
    /// Makes the task that the heart wakes. To be called by the executor's first task.
    pub(crate) fn attach(&self) {
        self.0.queue.remove();
        let pulse = self.0.clone();
        glommio::spawn_local(poll_fn(move |cx| {
            pulse.owed.store(0, Ordering::Relaxed);
            let mut waker = pulse.waker.lock().unwrap_or_else(PoisonError::into_inner);
            if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            Poll::<()>::Pending
        }))
        .detach();
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        let mut pulses = PULSES.lock().unwrap_or_else(PoisonError::into_inner);
        pulses.retain(|pulse| !Arc::ptr_eq(pulse, &self.0));
    }
}

fn beat() {
    let mut quiet_looks = 0;
    loop {
        if quiet_looks == QUIET_LOOKS {
            sleep_until_roused();
            quiet_looks = 0;
        }
        std::thread::sleep(BEAT);
        quiet_looks += 1;
        for pulse in &*PULSES.lock().unwrap_or_else(PoisonError::into_inner) {
            if !pulse.queue.is_empty() {
                pulse.beat();
                quiet_looks = 0;
            }
        }
    }
}

fn sleep_until_roused() {
    IS_ASLEEP.store(true, Ordering::SeqCst);
    let pulses = PULSES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_quiet = pulses.iter().all(|pulse| pulse.queue.is_empty());
    drop(pulses);
    if is_quiet {
        std::thread::park();
    }
    IS_ASLEEP.store(false, Ordering::SeqCst);
}

fn rouse() {
    // Only one of many pays for it.
    if IS_ASLEEP.swap(false, Ordering::SeqCst)
        && let Some(heart) = HEART.get()
    {
        heart.unpark();
    }
}

impl Pulse {
    fn beat(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        let owed = self.owed.fetch_add(1, Ordering::Relaxed);
        match &*waker {
            Some(waker) if owed < OWED_MAX => waker.wake_by_ref(),
            // It is not asleep but blocked, and will run when it is not.
            Some(_) => {}
            None => kick(self.thread),
        }
        if owed % OWED_KICK == OWED_KICK - 1 {
            kick(self.thread);
        }
    }
}

/// Without a handler the signal would be ignored, and with `SA_RESTART` it would not be noticed.
fn let_signals_interrupt() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: `sigaction` is plain bits; the handler does nothing, which any handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(KICK, &raw const action, std::ptr::null_mut());
    }
}

fn kick(thread: libc::pid_t) {
    // SAFETY: the call takes no pointers. A thread of this process that has ended, or another that
    // got its number, hears a signal that does nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, KICK) };
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use futures_util::StreamExt as _;

    use crate::{Placement, sleep, spawn_thread};

    /// For how long a thread loses its core in [`lose_the_core`]: more than a slice of its executor.
    const LOST_NS: libc::c_long = 1_300_000;

    fn thread_id() -> libc::pid_t {
        // SAFETY: the call takes nothing.
        unsafe { libc::gettid() }
    }

    #[test]
    fn a_kick_gets_a_thread_out_of_its_sleep() {
        super::let_signals_interrupt();
        let (tell, told) = mpsc::sync_channel(1);
        let sleeper = std::thread::spawn(move || {
            let _gone = tell.send(thread_id());
            // SAFETY: `ppoll` without files takes no pointers but null, and only waits.
            unsafe { libc::ppoll(std::ptr::null_mut(), 0, std::ptr::null(), std::ptr::null()) }
        });
        let thread = told.recv().expect("a thread");
        while !sleeper.is_finished() {
            super::kick(thread);
            std::thread::yield_now();
        }
        assert_eq!(sleeper.join().expect("no panic"), -1, "interrupted");
    }

    /// What other programs do to a thread on a busy machine.
    fn lose_the_core(thread: libc::pid_t) {
        extern "C" fn lost(_: libc::c_int) {
            let span = libc::timespec { tv_sec: 0, tv_nsec: LOST_NS };
            // SAFETY: the call reads `span`, and any handler may sleep.
            unsafe { libc::nanosleep(&raw const span, std::ptr::null_mut()) };
        }
        // SAFETY: as in `let_signals_interrupt` and `kick`.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = lost as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(libc::SIGRTMIN(), &raw const action, std::ptr::null_mut());
            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGRTMIN());
        }
    }

    /// Each order wakes the executor's task twice, from this thread and by a timer. Nothing else wakes
    /// it: what sleeps once, sleeps until the test ends.
    #[test]
    fn an_executor_that_loses_its_core_does_not_sleep_on_what_is_to_run() {
        const ORDERS: u32 = 5_000;
        let (mut order, mut orders) = crate::mpsc::channel::<u32>(1);
        let (tell, told) = mpsc::sync_channel(1);
        let executor = spawn_thread("late", Placement::Floating, || async move {
            let _gone = tell.send(thread_id() as u32);
            while let Some(order) = orders.next().await {
                sleep(Duration::from_micros(100)).await;
                let _gone = tell.send(order);
            }
        })
        .expect("a thread starts");
        let thread = told.recv().expect("a thread").cast_signed();
        for n in 0..ORDERS {
            order.try_send(n).expect("the executor takes orders");
            // Somewhere in its rounds, another place each time.
            let wait = Duration::from_micros(u64::from(n * 37 % 200));
            let sent = Instant::now();
            while sent.elapsed() < wait {
                std::hint::spin_loop();
            }
            lose_the_core(thread);
            let done = told.recv_timeout(Duration::from_secs(10));
            assert_eq!(done, Ok(n), "the executor sleeps on order {n}");
        }
        drop(order);
        executor.join().expect("no panic").expect("it ran");
    }
}
