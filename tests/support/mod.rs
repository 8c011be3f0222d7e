//! What the tests with real processes share: nodes, an HTTP client, a look into the bucket.

pub mod bucket;
pub mod hold;
pub mod http;
pub mod node;
pub mod rng;

use std::time::{Duration, Instant};

/// Asks again and again until there is an answer.
///
/// # Panics
/// There is none within `limit`; `what` says of what.
pub fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < limit, "waited for {limit:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}
