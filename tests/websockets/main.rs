//! WebSockets over TCP, against real nodes: order, sizes, Closes, hibernation, slow sides, death.

#[expect(dead_code, reason = "each file of tests uses its part of it")]
#[path = "../support/mod.rs"]
mod support;

mod client;
mod exchange;
mod fleet;
mod node;
