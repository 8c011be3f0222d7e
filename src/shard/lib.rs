//! One core of the machine: the loop that feeds the decisions of `core` and performs their effects.
//!
//! The way of a request: [`ingress`] (HTTP) → [`host`] (turns of JavaScript) → [`calls`] (which shard
//! owns the cell) and [`router`] (the hop there) → [`cell`] (input gate, activation, output gate, proof) →
//! [`storage`] (pages and LTX) → the bucket. [`node`] starts and stops it all.
#![deny(missing_docs)]
// It panics when stderr is gone: `log!` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod activation;
mod address;
mod body;
mod busy;
mod calls;
mod cell;
mod client;
mod coding;
mod deadline;
pub mod deployment;
mod drain;
mod flag;
mod fleet;
mod follow;
mod host;
mod identity;
mod ingress;
mod lease;
pub mod node;
pub mod operator;
mod outbound;
mod pressure;
mod pulled;
mod reach;
mod router;
mod scan;
pub mod scratch;
mod shard;
mod socket;
mod status;
pub mod storage;
pub mod trial;
mod waking;
mod websocket;
