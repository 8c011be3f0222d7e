//! The two promises of a node, proven on real processes with a ledger on the side of the clients:
//! what was acknowledged or seen is there after any crash, and a cell has one writer.

#[path = "../support/mod.rs"]
mod support;

mod addresses;
mod alone;
mod calls;
mod capacity;
mod clocks;
mod crash;
mod crowd;
mod damage;
mod disk;
mod drain;
mod fleet;
mod gate;
mod ledger;
mod litestream;
mod load;
mod network;
mod nodes;
mod owner;
mod partition;
mod relay;
mod restore;
mod rights;
mod stall;
mod store_faults;
mod wall_clock;
mod warm;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Tests that measure time or memory run alone; the others side by side.
static MACHINE: RwLock<()> = RwLock::new(());

fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}
