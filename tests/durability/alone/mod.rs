//! Tests that load the machine, or measure time or memory, each while no other runs. Their names
//! come early in the alphabet, so that the others do not have to wait for them in turns.

mod busy;
mod kill;
mod large;
mod memory;
mod storm;
