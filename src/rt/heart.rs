//! A beat for every executor, so that none sleeps on its work.
//!
//! On a busy machine an executor of glommio 0.9 sometimes sleeps although a task of it was woken
//! from another thread, until something else wakes it: a node beside three busy loops hung in two
//! of two starts, and in none of 16 with the beat. The likely place is `run_task_queues`: a round
//! that ends before its first task, because its time slice was over, reports that nothing ran, and
//! the executor parks (glommio-ng 0.12 has the same lines). The beat costs an idle executor 0.2 %
//! of a core and bounds the stall by [`BEAT`].

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

/// About one scheduler tick: a stall needs a busy machine, where no thread waits much less.
const BEAT: Duration = Duration::from_millis(5);

/// Beats that an executor may owe. Each is a reference to its task, of which glommio counts
/// 32,767; an executor that is not parked but blocked needs none of them.
const OWED_MAX: u32 = 1_000;

/// One executor's.
#[derive(Default)]
struct Pulse {
    waker: Mutex<Option<Waker>>,
    owed: AtomicU32,
}

/// All executors of the process.
static PULSES: OnceLock<Mutex<Vec<Weak<Pulse>>>> = OnceLock::new();

/// Gives the executor that runs this a beat for as long as it lives.
pub(crate) fn attach() {
    let pulse = Arc::new(Pulse::default());
    let pulses = PULSES.get_or_init(|| {
        std::thread::Builder::new()
            .name("heart".into())
            .spawn(beat)
            .expect("the system lets a process start one more thread");
        Mutex::default()
    });
    pulses.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&pulse));
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
    loop {
        std::thread::sleep(BEAT);
        let Some(pulses) = PULSES.get() else { continue };
        pulses.lock().unwrap_or_else(PoisonError::into_inner).retain(|pulse| {
            let Some(pulse) = pulse.upgrade() else { return false };
            let waker = pulse.waker.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(waker) = &*waker
                && pulse.owed.fetch_add(1, Ordering::Relaxed) < OWED_MAX
            {
                waker.wake_by_ref();
            }
            true
        });
    }
}
