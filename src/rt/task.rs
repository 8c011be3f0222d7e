//! Tasks of one executor.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
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

/// Not an `async fn`, which would keep room for `future` twice.
fn guarded<T>(future: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    AssertUnwindSafe(future).catch_unwind().map(|end| match end {
        Ok(value) => Some(value),
        Err(panic) => {
            report_panic(&panic);
            None
        }
    })
}

/// One line; the panic hook has already printed where.
pub(crate) fn report_panic(panic: &Box<dyn Any + Send>) {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    crate::log!("celld: internal error, one task ended: {text}");
}
