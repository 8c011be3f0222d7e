//! Executors: one pinned thread for each shard, one that floats for everything else.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use glommio::{LocalExecutor, LocalExecutorBuilder, PoolPlacement};

use crate::heart;
use crate::net::to_io;
use crate::preflight::ring_advice;
use crate::shield::shielded;

/// JavaScript slices are short but not that short: at 1 ms a busy task delays timers, completions
/// and wake-ups by 3 ms at most (measured; glommio's default of 100 ms delays them by 200 ms).
const PREEMPT: Duration = Duration::from_millis(1);
/// Memory that each of the three rings registers, for glommio's files, which are not used: the least
/// that it takes. Locked memory is scarce for ordinary users.
const IO_MEMORY_BYTES: usize = 64 << 10;
/// For the locked memory of processes that have just ended.
const MEMORY_LIMIT: Duration = Duration::from_secs(2);
/// Submissions that may wait in a ring.
pub(crate) const RING_DEPTH: usize = 512;

/// Where an executor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On this core only.
    Core(usize),
    /// Wherever the system puts it.
    Floating,
}

/// An executor could not start.
#[derive(Debug)]
pub struct StartError(pub String);

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

/// Starts a thread with an executor of its own and runs what `make` makes there.
///
/// # Errors
/// The system refuses a thread, a ring or locked memory (see [`crate::preflight()`]).
pub fn spawn_thread<F, T>(
    name: &str,
    placement: Placement,
    make: impl FnOnce() -> F + Send + 'static,
) -> Result<JoinHandle<Option<T>>, StartError>
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let named = name.to_owned();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || match make_executor(&named, placement) {
            Ok(executor) => {
                let announced = heart::announce();
                Some(executor.run(shielded(async {
                    announced.attach();
                    make().await
                })))
            }
            Err(error) => {
                crate::log!("celld: cannot start an executor: {}", ring_advice(&error));
                None
            }
        })
        .map_err(|error| StartError(format!("cannot start the thread {name}: {error}")))
}

/// For how long the executor that runs this was not parked so far, in µs of the clock on the wall: it
/// had something to do, and the core or not. What runs now counts when its round is over.
///
/// # Panics
/// No executor runs this.
pub fn busy_us() -> u64 {
    thread_local! {
        static BUSY: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }
    // Glommio's own sum starts anew whenever it is asked for.
    let busy = BUSY.get() + glommio::executor().executor_stats().total_runtime();
    BUSY.set(busy);
    u64::try_from(busy.as_micros()).unwrap_or(u64::MAX)
}

/// Runs `future` on a new executor of this thread: for tools and tests.
///
/// # Panics
/// The system gives no ring; [`crate::preflight()`] tells why.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let executor = make_executor("main", Placement::Floating)
        .expect("an executor starts where the pre-flight passes");
    let announced = heart::announce();
    executor.run(shielded(async {
        announced.attach();
        future.await
    }))
}

/// Waits a little for locked memory: the kernel gives back that of a process some time after its end.
fn make_executor(name: &str, placement: Placement) -> io::Result<LocalExecutor> {
    let end = Instant::now() + MEMORY_LIMIT;
    loop {
        match builder(name, placement).make().map_err(to_io) {
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            made => return made,
        }
    }
}

fn builder(name: &str, placement: Placement) -> LocalExecutorBuilder {
    let place = match placement {
        Placement::Core(core) => glommio::Placement::Fixed(core),
        Placement::Floating => glommio::Placement::Unbound,
    };
    LocalExecutorBuilder::new(place)
        .name(name)
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(RING_DEPTH)
        .preempt_timer(PREEMPT)
        .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_is_busy_while_it_works_and_not_while_it_sleeps() {
        const WHILE: Duration = Duration::from_millis(300);
        block_on(async {
            crate::sleep(Duration::from_millis(1)).await;
            let begun = busy_us();
            std::thread::sleep(WHILE);
            // Its round is over then.
            crate::sleep(Duration::from_millis(1)).await;
            let working = busy_us() - begun;
            assert!(working >= 300_000, "{working} µs");
            // A full machine may keep it from parking, but not for ever.
            let mut sleeping = Vec::new();
            while sleeping.last().is_none_or(|us| *us >= 150_000) {
                assert!(sleeping.len() < 50, "{sleeping:?} µs");
                let begun = busy_us();
                crate::sleep(WHILE).await;
                sleeping.push(busy_us() - begun);
            }
        });
    }
}
