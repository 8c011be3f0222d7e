//! `celld diagnose` as an operator meets it: the real program, on directories, stores and peers.

#[expect(dead_code, reason = "each binary of tests uses its part of it")]
#[path = "../support/mod.rs"]
mod support;

mod clouds;
mod directories;
mod peers;
mod stores;
mod terminal;
