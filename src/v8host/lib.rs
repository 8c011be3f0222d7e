//! Isolates: JavaScript runs here, and nowhere else in celld is V8 named.
//!
//! A [`Realm`] is one isolate with one context that runs one version of one [`Script`]. It touches no
//! bucket, no socket and no clock: [`Realm::turn`] takes an input and gives back host calls.
//! The border is [`host`]; native functions for our JavaScript are in [`api`], the JavaScript in `js/`.

#![deny(missing_docs)]

pub mod api;
mod compatibility;
pub mod compression;
pub mod convert;
pub mod errors;
#[expect(missing_docs, reason = "the names of fields and variants say what they are")]
pub mod host;
mod limits;
mod memory;
mod modules;
pub mod ops;
mod realm;
mod script;
mod snapshot;
mod sockets;
mod stack;
mod state;
pub mod storage;
mod turn;
mod watchdog;

pub use compatibility::opposite;
pub use host::{
    Answer, Body, CallId, CellSlot, Encoding, EventId, Failure, HostCall, Input, LogLevel,
    OpenCell, Origin, Redirect, Request, Response, SectionId, SocketEvent, SocketId, SocketMessage,
    StreamId, Target, Termination, TimerId, Turn,
};
pub use limits::Limits;
pub use realm::{LoadError, Realm, Usage};
pub use script::{DurableObjectBinding, Module, ModuleKind, Script};
pub use snapshot::startup;
pub use sockets::{MESSAGE_BYTES_MAX, Sockets};
pub use state::RealmState;
pub use storage::{Database, StoredAlarm};
pub use watchdog::bound_turns;
