//! Native functions of alarms: the row in the cell's database, and how `alarm()` ends.

use v8::{FunctionCallbackArguments, PinScope, ReturnValue};

use super::durable::{database, throw};
use super::host::event_and_cell;
use crate::convert;
use crate::errors::failure;
use crate::host::{Failure, HostCall};
use crate::op;
use crate::ops::Op;
use crate::state::RealmState;

/// The native functions of this file. `cell` is a slot, times are milliseconds since 1970.
pub const OPS: &[Op] = &[
    op!("alarm_get", alarm_get),
    op!("alarm_set", alarm_set),
    op!("alarm_delete", alarm_delete),
    op!("alarm_ended", alarm_ended),
    op!("alarm_failed", alarm_failed),
];

/// `alarm_get(cell) -> time | null`
fn alarm_get(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    match database.visible_alarm() {
        Ok(None) => rv.set_null(),
        Ok(Some(time)) => rv.set_double(time as f64),
        Err(error) => throw(scope, &error),
    }
}

/// `alarm_set(cell, time, name)`; `name` is a string or `undefined`.
fn alarm_set(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(time) = args.get(1).number_value(scope) else { return };
    let name = args.get(2);
    let name = if name.is_undefined() { None } else { convert::to_string(scope, name) };
    let Some(database) = database(scope, &args) else { return };
    if let Err(error) = database.set_alarm(time as u64, name.as_deref()) {
        throw(scope, &error);
    }
}

/// `alarm_delete(cell)`
fn alarm_delete(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    if let Err(error) = database.delete_alarm() {
        throw(scope, &error);
    }
}

/// `alarm_ended(event, cell)`: `alarm()` has returned, or there is none.
fn alarm_ended(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    end(scope, &args, Ok(()));
}

/// `alarm_failed(event, cell, error)`
fn alarm_failed(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let failure = failure(scope, args.get(2));
    end(scope, &args, Err(failure));
}

fn end(scope: &mut PinScope, args: &FunctionCallbackArguments, result: Result<(), Failure>) {
    let Some((event, Some(cell))) = event_and_cell(scope, args) else { return };
    let state = RealmState::get(scope);
    let database = state.databases.borrow().get(&cell).cloned();
    if let Some(database) = database {
        database.end_alarm_run();
    }
    state.push(HostCall::AlarmEnded { event, cell, result });
}
