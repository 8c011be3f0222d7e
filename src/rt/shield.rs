//! Keeps the wakers of glommio's tasks on the thread of their executor.
//!
//! In glommio 0.9 another thread that drops the last waker of a task looks at the task once more, to
//! have its executor free it. If a handle of the task is dropped in that moment, it is free already.
//! So a task that has a handle gives away wakers that only point to its own.
//!
//! Invariant: the task's own waker is dropped on the task's thread.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// The waker of a task, until the task ends.
#[derive(Default)]
struct Relay(Mutex<Option<Waker>>);

impl Relay {
    fn learn(&self, waker: &Waker) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    fn forget(&self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(waker);
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Under the lock, so that the task cannot end meanwhile.
        if let Some(waker) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
    }
}

/// Forgets the waker also when the task is cancelled.
struct Guard(Arc<Relay>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.forget();
    }
}

/// Runs the whole of a task that has a handle and may be woken by other threads.
pub(crate) async fn shielded<T>(future: impl Future<Output = T>) -> T {
    let guard = Guard(Arc::default());
    let waker = guard.0.clone().into();
    let mut future = pin!(future);
    poll_fn(|cx| {
        guard.0.learn(cx.waker());
        future.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}
