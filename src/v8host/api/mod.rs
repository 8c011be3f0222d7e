//! Native functions of the Workers APIs: one file for each API, gathered in [`ALL`].

pub mod host;

use crate::ops::Op;

/// Every list of native functions.
pub(crate) const ALL: &[&[Op]] = &[host::OPS];
