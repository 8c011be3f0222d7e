//! What a realm may use.

use std::time::Duration;

/// Limits of a realm. The defaults are those of Workers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of V8's heap; at this size the turn is ended and the realm must be replaced.
    pub heap_bytes_max: usize,
    /// Bytes of all `ArrayBuffer`s together; beyond, an allocation throws a `RangeError`.
    pub buffer_bytes_max: usize,
    /// CPU time of one turn.
    pub turn_cpu_max: Duration,
    /// CPU time of loading the script: compiling and evaluating its modules.
    pub startup_cpu_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            heap_bytes_max: 128 << 20,
            buffer_bytes_max: 128 << 20,
            turn_cpu_max: Duration::from_secs(30),
            // Workers allow one second on their machines; ours may be slower and share their cores.
            startup_cpu_max: Duration::from_secs(5),
        }
    }
}
