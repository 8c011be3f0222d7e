//! Work that blocks by nature: file systems, name look-ups.
//!
//! Each executor has a pool of its own, so that shards share nothing. Threads start when there is
//! work for them and stay; they are not pinned, so that a shard that is busy with JavaScript does
//! not hold up its own disk.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use futures_channel::oneshot;

/// Enough to keep one disk's queue full; more threads only add switches.
const THREADS_MAX: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

/// Closes the queue when its executor's thread ends, so that the workers end too.
struct Pool(Arc<Shared>);

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.0.ready.notify_all();
    }
}

thread_local! {
    static POOL: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

/// Runs `work` on another thread and waits for it. Dropping the future does not stop the work.
///
/// The queue has no bound of its own: each caller waits for its one job, so it holds no more jobs
/// than there are tasks.
///
/// # Panics
/// With the panic of `work`, if that panics.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = oneshot::channel();
    let job: Job = Box::new(move || {
        // A caller that has gone away does not want the result.
        let _gone = sender.send(catch_unwind(AssertUnwindSafe(work)));
    });
    POOL.with_borrow_mut(|pool| {
        let pool = pool.get_or_insert_with(|| Pool(Arc::default()));
        submit(&pool.0, job);
    });
    match receiver.await {
        Ok(Ok(value)) => value,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(oneshot::Canceled) => unreachable!("a job answers or panics, and both are sent"),
    }
}

fn submit(shared: &Arc<Shared>, job: Job) {
    let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.jobs.push_back(job);
    if queue.idle >= queue.jobs.len() || queue.threads == THREADS_MAX {
        shared.ready.notify_one();
        return;
    }
    queue.threads += 1;
    drop(queue);
    let shared = shared.clone();
    std::thread::Builder::new()
        .name("blocking".into())
        .spawn(move || work_until_closed(&shared))
        .expect("the system lets a process start a few threads");
}

fn work_until_closed(shared: &Shared) {
    unpin_thread();
    let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            job();
            queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        } else if queue.closed {
            return;
        } else {
            queue.idle += 1;
            queue = shared.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}

/// A thread inherits the affinity of the shard that started it; this gives it all cores again.
fn unpin_thread() {
    // SAFETY: `cpu_set_t` is plain bits, and the call reads only the set that it is given. A
    // refusal leaves the thread pinned, which is slow and not wrong.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in 0..libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block_on, spawn_joined};

    #[test]
    fn blocking_work_runs_beside_the_executor() {
        let sum = block_on(async {
            let tasks: Vec<_> =
                (0..40_u64).map(|n| spawn_joined(blocking(move || n * 2))).collect();
            let mut sum = 0;
            for task in tasks {
                sum += task.join().await.expect("no job panics");
            }
            sum
        });
        assert_eq!(sum, 2 * (39 * 40 / 2));
    }

    /// The other thread may still hold the waker of a task that has ended and been joined.
    #[test]
    fn a_task_may_end_while_who_woke_it_is_still_at_it() {
        let executors: Vec<_> = (0..3)
            .map(|_| {
                std::thread::spawn(|| {
                    block_on(async {
                        for n in 0..2_000_u64 {
                            let task = spawn_joined(blocking(move || n));
                            assert_eq!(task.join().await, Some(n));
                        }
                    });
                })
            })
            .collect();
        for executor in executors {
            executor.join().expect("no executor panics");
        }
    }

    #[test]
    fn a_panic_in_blocking_work_ends_the_task_that_waits_and_no_other() {
        block_on(async {
            let broken = spawn_joined(blocking(|| panic!("planted")));
            assert!(broken.join().await.is_none());
            assert_eq!(blocking(|| 7).await, 7);
        });
    }
}
