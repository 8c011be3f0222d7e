//! What the native functions of a cell's storage share: finding its database, throwing its errors,
//! marking its writes; and the calls that belong to no other file.

use std::rc::Rc;

use v8::{FunctionCallbackArguments, Local, PinScope, ReturnValue};

use crate::compatibility;
use crate::convert;
use crate::host::CellSlot;
use crate::op;
use crate::ops::Op;
use crate::state::RealmState;
use crate::storage::{AlarmFate, Database, DbError, SavepointId, SavepointKind};

/// The native functions of this file.
pub const OPS: &[Op] = &[
    op!("tx_begin", tx_begin),
    op!("tx_release", tx_release),
    op!("tx_rollback", tx_rollback),
    op!("db_size", db_size),
    op!("db_delete_all", db_delete_all),
];

/// A database that a native function works on. When this drops, the cell is marked if the shard has
/// to end its transaction.
pub(super) struct InUse {
    state: Rc<RealmState>,
    cell: CellSlot,
    database: Rc<Database>,
}

impl std::ops::Deref for InUse {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if self.database.needs_end_turn() {
            self.state.mark_written(self.cell);
        }
    }
}

/// The database of the cell that the first argument names. `None`: an exception is pending.
pub(super) fn database(scope: &mut PinScope, args: &FunctionCallbackArguments) -> Option<InUse> {
    let state = RealmState::get(scope);
    let cell = CellSlot(args.get(0).uint32_value(scope)?);
    if state.cell(scope) != Some(cell) {
        // In the global scope that is what is wrong.
        state.io_origin(scope)?;
        convert::throw_error(scope, FOREIGN);
        return None;
    }
    let database = state.databases.borrow().get(&cell).cloned();
    let Some(database) = database else {
        convert::throw_error(scope, GONE);
        return None;
    };
    Some(InUse { state, cell, database })
}

/// Throws what went wrong as the class that its kind asks for.
pub(super) fn throw(scope: &mut PinScope, error: &DbError) {
    let message = convert::string(scope, &error.to_string());
    let thrown = match error {
        DbError::Sql(_) | DbError::Broken(_) => v8::Exception::error(scope, message),
        DbError::Range(_) => v8::Exception::range_error(scope, message),
        DbError::Type(_) => v8::Exception::type_error(scope, message),
    };
    if matches!(error, DbError::Broken(_))
        && let Ok(object) = Local::<v8::Object>::try_from(thrown)
    {
        let key = convert::intern(scope, "durableObjectReset");
        let set = v8::Boolean::new(scope, true);
        // A new error takes any property.
        object.set(scope, key.into(), set.into());
    }
    scope.throw_exception(thrown);
}

/// workerd's words.
const FOREIGN: &str = "Cannot perform I/O on behalf of a different Durable Object. I/O objects (such as \
streams, request/response bodies, and others) created in the context of one Durable Object cannot be accessed \
from a different Durable Object in the same isolate. This is a limitation of Cloudflare Workers which allows us \
to improve overall performance.";
const GONE: &str =
    "This Durable Object has been reset or evicted: its storage can no longer be used.";

/// `tx_begin(cell, asynchronous) -> transaction`
fn tx_begin(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let kind = if args.get(1).is_true() { SavepointKind::Async } else { SavepointKind::Sync };
    match database.begin(kind) {
        Ok(id) => rv.set_double(id.0 as f64),
        Err(error) => throw(scope, &error),
    }
}

/// `tx_release(cell, transaction)`: what was written stays.
fn tx_release(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    end(scope, &args, Database::release);
}

/// `tx_rollback(cell, transaction)`: what was written is taken back.
fn tx_rollback(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    end(scope, &args, Database::roll_back);
}

fn end(
    scope: &mut PinScope,
    args: &FunctionCallbackArguments,
    end: impl FnOnce(&Database, SavepointId) -> Result<(), DbError>,
) {
    let Some(database) = database(scope, args) else { return };
    let Some(id) = args.get(1).number_value(scope) else { return };
    if let Err(error) = end(&database, SavepointId(id as u64)) {
        throw(scope, &error);
    }
}

/// `db_size(cell) -> bytes`
fn db_size(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    match database.size() {
        Ok(bytes) => rv.set_double(bytes as f64),
        Err(error) => throw(scope, &error),
    }
}

/// `db_delete_all(cell)`
fn db_delete_all(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let fate = if database.state.script.has(compatibility::DELETE_ALL_DELETES_ALARM) {
        AlarmFate::Deleted
    } else {
        AlarmFate::Kept
    };
    if let Err(error) = database.delete_all(fate) {
        throw(scope, &error);
    }
}
