//! Object stores for tests and benches: real ones as processes on loopback or on a host of a network
//! that can be cut, and a proxy that makes them misbehave.
//!
//! Invariant: no process outlives the program that started it, however that program ends, and each
//! has a directory of its own that goes with it.
//!
//! `scripts/stores` installs them. Where it has not run, tests say so and do nothing, unless
//! `CELLD_STORES_REQUIRED` is set: `scripts/test` sets it.
#![deny(missing_docs)]

mod cloud;
mod faults;
mod http;
mod installed;
mod network;
mod process;
mod sign;
mod store;

pub use cloud::{AMAZON, Cloud, GOOGLE};
pub use faults::{Faulty, Outage, Request, busiest_second};
pub use http::{Answer, ask};
pub use installed::{Program, is_required};
pub use network::{Host, Network};
pub use process::Process;
pub use store::{ACCESS_KEY, BUCKET, Kind, REGION, SECRET_KEY, Store};
