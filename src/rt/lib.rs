//! The runtime facade: the only crate that names glommio.
//!
//! Everything that waits goes through here: executors, tasks, timers, sockets, the lock-free mesh
//! between shards, blocking work, signals. Glommio's traps and their remedies live here and nowhere
//! else: the preempt timer is 1 ms (with the default of 100 ms a busy task delays every timer and
//! every wake-up by as much), tasks are unwind-guarded (an unguarded panic ends the executor's
//! thread), only `SocketAddr`s reach the sockets (names would be resolved on the executor), and
//! blocking work has a pool of its own (glommio's is one thread, and dies with a panic), and a beat
//! wakes executors that went to sleep on runnable tasks (`heart`).
//!
//! Invariant: nothing here is `Send` unless it says so. A shard shares nothing.
#![deny(missing_docs)]
// It panics when stderr is gone: `log!` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod blocking;
mod clock;
mod executor;
mod heart;
pub mod http_client;
pub mod hyper_io;
mod limit;
mod memory;
mod mesh;
pub mod net;
mod preflight;
mod shield;
mod signal;
mod stderr;
mod system;
mod task;
mod time;
pub mod tls;

pub use blocking::blocking;
pub use clock::{mono_us, wall_ms};
pub use executor::{Placement, StartError, block_on, busy_us, spawn_thread};
pub use futures_channel::{mpsc, oneshot};
pub use limit::{Limited, limited};
pub use memory::memory_limit;
pub use mesh::{Mesh, MeshReceiver, MeshSender, mesh};
pub use preflight::{PreflightError, preflight};
pub use signal::{Signals, Stop};
#[doc(hidden)]
pub use stderr::write_line;
pub use system::{Limit, Ring, System, inspect};
pub use task::{Task, guard, guarded, spawn, spawn_joined, yield_now};
pub use time::{TimedOut, sleep, timeout};
