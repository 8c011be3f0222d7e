//! What clients and Workers meet: HTTP, scripts and their limits, calls, alarms, new versions, and
//! `celld dev`. All on real processes.

#[path = "../support/raw_http.rs"]
mod raw_http;
#[expect(dead_code, reason = "each binary of tests uses its part of it")]
#[path = "../support/mod.rs"]
mod support;

mod alarms;
mod bodies;
mod calls;
mod codings;
mod dev;
mod fetch;
mod follow;
mod http;
mod logs;
mod reload;
mod runtime;
