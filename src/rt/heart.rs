//! A beat for every executor, so that none sleeps on its work.
//!
//! On a busy machine an executor of glommio 0.9 sometimes sleeps although a task of it was woken
//! from another thread, until something else wakes it: a node beside three busy loops hung in two
//! of two starts, and in none of 16 with the beat. The likely place is `run_task_queues`: a round
//! that ends before its first task, because its time slice was over, reports that nothing ran, and
//! the executor parks (glommio-ng 0.12 has the same lines). The beat bounds the stall by [`BEAT`]
//! on a machine that is busy, as the heart notices by its own sleep, and by [`CALM_BEATS`] of
//! [`CALM_LOOK`] on one that is not.
//!
//! The beat is a task, and the round that ends too early may be the very first: then nothing has
//! run yet that could be woken (a node in a few hundred starts hung so, its shard asleep for good).
//! Until its task has run, and when it does not answer, an executor is got out of its sleep by a
//! signal: glommio takes `EINTR` of its ring for a wake-up without events, and goes on with the
//! next round.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// About one scheduler tick: a stall needs a busy machine, where no thread waits much less.
const BEAT: Duration = Duration::from_millis(5);

/// How late the heart's own sleep ends where threads lose their cores: then executors do, too.
const LATE: Duration = Duration::from_micros(500);

/// Beats after which a machine is taken for calm, when none of them was late: half a second.
const CALM_AFTER: u32 = 100;

/// On a calm machine executors get one beat of so many: waking them all each time costs 8 % of a
/// core (measured with three executors).
const CALM_BEATS: u32 = 20;

/// Between two looks on a calm machine.
const CALM_LOOK: Duration = Duration::from_millis(20);

/// Beats that an executor may owe. Each is a reference to its task, of which glommio counts
/// 32,767; an executor that is not parked but blocked needs none of them.
const OWED_MAX: u32 = 1_000;

/// After so many beats without an answer a signal goes out, too: rarely, as it may cut short a
/// system call of a thread that is busy and not asleep.
const OWED_KICK: u32 = 50;

/// Its default is to be ignored, so one that comes from elsewhere does no harm.
const KICK: libc::c_int = libc::SIGURG;

/// One executor's.
pub(crate) struct Pulse {
    /// Linux's number of its thread.
    thread: libc::pid_t,
    /// `None` until its task has run.
    waker: Mutex<Option<Waker>>,
    owed: AtomicU32,
}

/// All executors of the process.
static PULSES: OnceLock<Mutex<Vec<Weak<Pulse>>>> = OnceLock::new();

/// Announces the executor that this thread is about to run.
pub(crate) fn announce() -> Arc<Pulse> {
    // SAFETY: the call takes nothing.
    let thread = unsafe { libc::gettid() };
    let pulse = Arc::new(Pulse { thread, waker: Mutex::default(), owed: AtomicU32::new(0) });
    let pulses = PULSES.get_or_init(|| {
        let_signals_interrupt();
        std::thread::Builder::new()
            .name("heart".into())
            .spawn(beat)
            .expect("the system lets a process start one more thread");
        Mutex::default()
    });
    pulses.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&pulse));
    pulse
}

/// Gives the executor that runs this its beat, for as long as it lives.
pub(crate) fn attach(pulse: Arc<Pulse>) {
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

fn beat() {
    let (mut round, mut on_time) = (0_u32, 0_u32);
    loop {
        let is_calm = on_time > CALM_AFTER;
        let look = if is_calm { CALM_LOOK } else { BEAT };
        let asleep = Instant::now();
        std::thread::sleep(look);
        on_time = if asleep.elapsed() > look + LATE { 0 } else { on_time.saturating_add(1) };
        round = round.wrapping_add(1);
        let rests = is_calm && on_time > 0 && !round.is_multiple_of(CALM_BEATS);
        let Some(pulses) = PULSES.get() else { continue };
        pulses.lock().unwrap_or_else(PoisonError::into_inner).retain(|pulse| {
            let Some(pulse) = pulse.upgrade() else { return false };
            pulse.beat(rests);
            true
        });
    }
}

impl Pulse {
    /// `rests`: the machine is calm, and only an executor that has not begun needs this beat.
    fn beat(&self, rests: bool) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if rests && waker.is_some() && self.owed.load(Ordering::Relaxed) == 0 {
            return;
        }
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

    #[test]
    fn a_kick_gets_a_thread_out_of_its_sleep() {
        super::let_signals_interrupt();
        let (tell, told) = mpsc::sync_channel(1);
        let sleeper = std::thread::spawn(move || {
            // SAFETY: both calls take no pointers but null; `ppoll` without files only waits.
            unsafe {
                let _gone = tell.send(libc::gettid());
                libc::ppoll(std::ptr::null_mut(), 0, std::ptr::null(), std::ptr::null())
            }
        });
        let thread = told.recv().expect("a thread");
        while !sleeper.is_finished() {
            super::kick(thread);
            std::thread::yield_now();
        }
        assert_eq!(sleeper.join().expect("no panic"), -1, "interrupted");
    }
}
