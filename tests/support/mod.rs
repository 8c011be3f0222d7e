//! What the tests with real processes share: nodes, an HTTP client, a look into the bucket.

pub mod bucket;
pub mod hold;
pub mod http;
pub mod node;
pub mod rng;
pub mod skew;

use std::io::Write as _;
use std::time::{Duration, Instant};

/// Says something past the test harness, which shows nothing of tests that pass.
pub fn tell(text: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Nothing can be done about a closed standard error.
    let _written = writeln!(std::io::stderr(), "{test}: {text}");
}

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
