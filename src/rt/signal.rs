//! SIGTERM and SIGINT, and what is asked for in their stead.
//!
//! Glommio has no signals; a flag that a 50 ms timer reads is enough for stopping a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::time::sleep;

/// Counts the requests to stop.
#[derive(Clone)]
pub struct Signals(Arc<AtomicUsize>);

/// How urgent it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// First signal: finish what runs.
    Drain,
    /// Second signal: now.
    Now,
}

impl Signals {
    /// Takes SIGTERM and SIGINT over from the system.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub fn install() -> std::io::Result<Self> {
        let count = Arc::new(AtomicUsize::new(0));
        for signal in [SIGTERM, SIGINT] {
            let count = count.clone();
            // SAFETY: the handler only adds to an atomic, which is async-signal-safe.
            unsafe {
                signal_hook::low_level::register(signal, move || {
                    count.fetch_add(1, Ordering::Relaxed);
                })?;
            }
        }
        Ok(Self(count))
    }

    /// Asks for a drain, as a first signal does. Whoever asks again is not impatient.
    pub fn request_drain(&self) {
        // If something was asked for before, that counts.
        let _before = self.0.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// What was asked for so far.
    pub fn seen(&self) -> Option<Stop> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Stop::Drain),
            _ => Some(Stop::Now),
        }
    }

    /// Waits until `wanted` (or more) was asked for.
    pub async fn wait(&self, wanted: Stop) {
        loop {
            match (self.seen(), wanted) {
                (Some(Stop::Now), _) | (Some(Stop::Drain), Stop::Drain) => return,
                (Some(Stop::Drain), Stop::Now) | (None, _) => {}
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}
