//! The decisions of celld as pure machines, and the LTX codec.
//!
//! Invariant: nothing here reads a clock, draws a random number, or does I/O. `#![no_std]` is the
//! compiler's proof of it. Time is an argument; what is wanted comes back as effects.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod alarm;
pub mod cas;
pub mod cell;
pub mod claim;
pub mod compaction;
pub mod drain;
pub mod epoch;
pub mod eviction;
pub mod fleet;
pub mod follow;
pub mod gate;
pub mod hedge;
pub mod lease;
pub mod ltx;
pub mod node;
pub mod ownership;
pub mod pace;
pub mod placement;
pub mod plan;
pub mod proof;
pub mod record;
pub mod retry;
pub mod route;
pub mod time;
pub mod twins;
pub mod txid;
pub mod wake;
