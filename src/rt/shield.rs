//! The wakers that tasks give away: they count what is to run, and keep glommio's own on their
//! thread.
//!
//! In glommio 0.9 another thread that drops the last waker of a task looks at the task once more, to
//! have its executor free it. If a handle of the task is dropped in that moment, it is free already.
//! So a task gives away wakers that only point to its own.
//!
//! Invariants: the task's own waker is dropped on the task's thread; a task that is woken or
//! cancelled is counted once in its executor's [`Queue`], until it is polled or dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::heart::{self, Queue};

/// What stands for a task outside.
pub(crate) struct Relay {
    queue: Arc<Queue>,
    task: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None` before the task has run for the first time, and when it is over.
    waker: Option<Waker>,
    is_queued: bool,
}

impl Relay {
    fn state(&self) -> MutexGuard<'_, State> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runs(&self, waker: &Waker) {
        let mut task = self.state();
        if std::mem::take(&mut task.is_queued) {
            self.queue.remove();
        }
        if !task.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            task.waker = Some(waker.clone());
        }
    }

    /// Queues the task, whose handle is about to be dropped.
    ///
    /// Glommio queues a task itself that is cancelled while it waits, and counts two references for
    /// that, of which it gives up one: the memory of the task is never freed. One that is queued
    /// already is only marked.
    pub(crate) fn is_cancelled(&self) {
        let mut task = self.state();
        let State { waker: Some(waker), is_queued } = &mut *task else { return };
        if !std::mem::replace(is_queued, true) {
            self.queue.add();
        }
        // Also if another thread has woken it: that takes until its executor looks.
        waker.wake_by_ref();
    }

    fn is_over(&self) {
        let state = std::mem::take(&mut *self.state());
        if state.is_queued {
            self.queue.remove();
        }
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Under the lock, so that the task can neither end nor run meanwhile.
        let mut task = self.state();
        if task.is_queued {
            return;
        }
        let Some(waker) = &task.waker else { return };
        self.queue.add();
        waker.wake_by_ref();
        task.is_queued = true;
    }
}

/// Makes the whole of a task of the executor that this thread runs.
pub(crate) fn shielded<F: Future>(future: F) -> Shielded<F> {
    let relay = Arc::new(Relay { queue: heart::queue(), task: Mutex::default() });
    Shielded { future, waker: relay.clone().into(), relay }
}

pin_project_lite::pin_project! {
    /// What [`shielded`] returns. A type of its own, as an `async fn` would keep the future twice.
    pub(crate) struct Shielded<F> {
        #[pin]
        future: F,
        waker: Waker,
        relay: Arc<Relay>,
    }

    impl<F> PinnedDrop for Shielded<F> {
        /// Also when the task is cancelled.
        fn drop(this: Pin<&mut Self>) {
            this.project().relay.is_over();
        }
    }
}

impl<F> Shielded<F> {
    pub(crate) fn relay(&self) -> Arc<Relay> {
        self.relay.clone()
    }
}

impl<F: Future> Future for Shielded<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.relay.runs(cx.waker());
        this.future.poll(&mut Context::from_waker(this.waker))
    }
}
