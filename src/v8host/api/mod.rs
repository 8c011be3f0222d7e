//! Native functions of the Workers APIs: one file for each API, gathered in [`ALL`].

pub mod alarm;
pub mod compression;
pub mod crypto;
pub mod durable;
pub mod encoding;
pub mod exception;
pub mod globals;
pub mod host;
pub mod ids;
pub mod inspect;
pub mod sql;
pub mod storage_kv;
pub mod structured_clone;
pub mod url;
pub mod websocket;

use crate::ops::Op;

/// Every list of native functions.
pub(crate) const ALL: &[&[Op]] = &[
    host::OPS,
    alarm::OPS,
    compression::OPS,
    crypto::OPS,
    durable::OPS,
    encoding::OPS,
    exception::OPS,
    globals::OPS,
    ids::OPS,
    inspect::OPS,
    sql::OPS,
    storage_kv::OPS,
    structured_clone::OPS,
    url::OPS,
    websocket::OPS,
];
