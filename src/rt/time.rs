//! Waiting.

use std::future::Future;
use std::time::Duration;

use futures_lite::FutureExt as _;

/// The time given to something is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedOut;

/// Waits for `span`.
pub async fn sleep(span: Duration) {
    glommio::timer::Timer::new(span).await;
}

/// Runs `future` for at most `span`.
///
/// # Errors
/// The time was over first; the future is dropped.
pub async fn timeout<T>(span: Duration, future: impl Future<Output = T>) -> Result<T, TimedOut> {
    let done = async { Ok(future.await) };
    done.or(async {
        sleep(span).await;
        Err(TimedOut)
    })
    .await
}
