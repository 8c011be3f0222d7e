//! Tasks of one executor.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::FutureExt as _;

use crate::shield::{Relay, Shielded, shielded};

/// A future of more bytes goes into a box before a task is made of it, which moves it several times.
const MOVED_BYTES_MAX: usize = 256;

/// A task whose result somebody waits for. Dropping it cancels the task.
pub struct Task<T> {
    task: glommio::Task<Option<T>>,
    relay: Arc<Relay>,
}

impl<T> Task<T> {
    /// Waits for the result; `None` after a panic, which has been reported.
    pub async fn join(mut self) -> Option<T> {
        (&mut self.task).await
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.relay.is_cancelled();
    }
}

/// Starts a task that nobody waits for. A panic in it is reported and ends this task only.
///
/// The task runs at once, up to its first wait: the caller may hold no borrow that it needs.
pub fn spawn<F: Future<Output = ()> + 'static>(future: F) {
    if size_of::<F>() > MOVED_BYTES_MAX {
        glommio::spawn_local(shielded(guarded(Box::pin(future)))).detach();
    } else {
        glommio::spawn_local(shielded(guarded(future))).detach();
    }
}

/// Starts a task whose result is wanted. It runs at once, as with [`spawn`].
pub fn spawn_joined<T: 'static, F: Future<Output = T> + 'static>(future: F) -> Task<T> {
    if size_of::<F>() > MOVED_BYTES_MAX {
        start(shielded(guarded(Box::pin(future))))
    } else {
        start(shielded(guarded(future)))
    }
}

fn start<T: 'static>(whole: Shielded<impl Future<Output = Option<T>> + 'static>) -> Task<T> {
    let relay = whole.relay();
    Task { task: glommio::spawn_local(whole), relay }
}

/// Lets every other ready task run once.
pub async fn yield_now() {
    futures_lite::future::yield_now().await;
}

/// The value of `future`; `None` after a panic in it, which the panic hook has reported.
// Not an `async fn`, which would keep room for `future` twice.
pub fn guarded<T>(future: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    AssertUnwindSafe(future).catch_unwind().map(Result::ok)
}

/// Does one piece of work of a loop that has to go on; `None` after a panic, which the panic hook has
/// reported.
pub fn guard<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;

    #[test]
    fn a_panic_ends_what_is_guarded_and_nothing_around_it() {
        block_on(async {
            assert_eq!(guard(|| panic!("planted")), None::<u8>);
            assert_eq!(guard(|| 7), Some(7));
            assert_eq!(guarded(async { panic!("planted") }).await, None::<u8>);
            assert_eq!(guarded(async { 7 }).await, Some(7));
        });
    }
}
