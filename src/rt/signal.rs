//! SIGTERM and SIGINT, and what is asked for in their stead.
//!
//! Glommio has no signals, and a handler may hardly do anything: it counts, and tells a thread that
//! waits for nothing else, which wakes whoever waits.

use std::io::{self, ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use event_listener::Event;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{pipe, register};

/// Counts the requests to stop.
#[derive(Clone)]
pub struct Signals(Arc<Requests>);

struct Requests {
    count: AtomicUsize,
    changed: Event,
}

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
    /// The system refuses the handler, or a thread.
    pub fn install() -> io::Result<Self> {
        let requests = Arc::new(Requests { count: AtomicUsize::new(0), changed: Event::new() });
        let (mut told, tell) = UnixStream::pair()?;
        for signal in [SIGTERM, SIGINT] {
            let requests = requests.clone();
            // SAFETY: the handler only adds to an atomic, which is async-signal-safe.
            unsafe {
                register(signal, move || {
                    requests.count.fetch_add(1, Ordering::SeqCst);
                })?;
            }
            // Runs after the one above.
            pipe::register(signal, tell.try_clone()?)?;
        }
        let signals = Self(requests);
        let requests = signals.0.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut bytes = [0; 16];
            loop {
                match told.read(&mut bytes) {
                    Ok(1..) => _ = requests.changed.notify(usize::MAX),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // Nobody can tell anything any more.
                    Ok(0) | Err(_) => return,
                }
            }
        })?;
        Ok(signals)
    }

    /// Asks for a drain, as a first signal does. Whoever asks again is not impatient.
    pub fn request_drain(&self) {
        let Requests { count, changed } = &*self.0;
        // If something was asked for before, that counts.
        let _before = count.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
        changed.notify(usize::MAX);
    }

    /// What was asked for so far.
    pub fn seen(&self) -> Option<Stop> {
        match self.0.count.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(Stop::Drain),
            _ => Some(Stop::Now),
        }
    }

    /// Waits until `wanted` (or more) was asked for.
    pub async fn wait(&self, wanted: Stop) {
        loop {
            let changed = self.0.changed.listen();
            match (self.seen(), wanted) {
                (Some(Stop::Now), _) | (Some(Stop::Drain), Stop::Drain) => return,
                (Some(Stop::Drain), Stop::Now) | (None, _) => changed.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block_on, spawn_joined};

    #[test]
    fn signals_and_requests_wake_those_who_wait() {
        let signals = Signals::install().expect("handlers");
        block_on(async {
            let waiter = |wanted| {
                let signals = signals.clone();
                spawn_joined(async move { signals.wait(wanted).await })
            };
            let (drain, now) = (waiter(Stop::Drain), waiter(Stop::Now));
            assert_eq!(signals.seen(), None);
            signals.request_drain();
            assert_eq!(drain.join().await, Some(()));
            signals.request_drain();
            assert_eq!(signals.seen(), Some(Stop::Drain), "nobody is impatient");
            // SAFETY: the call takes no pointers; the signal has a handler.
            assert_eq!(unsafe { libc::raise(SIGINT) }, 0);
            assert_eq!(now.join().await, Some(()));
            assert_eq!(signals.seen(), Some(Stop::Now));
        });
    }
}
