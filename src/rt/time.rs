//! Waiting.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

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
pub fn timeout<F: Future>(span: Duration, future: F) -> Timeout<F> {
    Timeout { future, timer: glommio::timer::Timer::new(span) }
}

pin_project_lite::pin_project! {
    /// What [`timeout`] returns. A type of its own, as an `async fn` would keep the future twice.
    #[must_use = "futures do nothing unless polled"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        timer: glommio::timer::Timer,
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimedOut>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(done) = this.future.poll(cx) {
            return Poll::Ready(Ok(done));
        }
        Pin::new(this.timer).poll(cx).map(|_| Err(TimedOut))
    }
}
