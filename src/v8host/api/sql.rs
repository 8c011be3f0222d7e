//! SQL of a cell's storage: columns go straight to values of V8, a page of rows as one flat array.
//!
//! INTEGER and REAL are numbers (beyond 2^53 the nearest one, as in workerd), TEXT a string, BLOB an
//! `ArrayBuffer`, NULL `null`. Numbers are bound as REAL, as in workerd; a column of INTEGER
//! affinity stores them as integers.

use std::cell::RefCell;
use std::collections::BTreeMap;

use v8::{FunctionCallbackArguments, Local, PinScope, ReturnValue};

use super::durable::{database, throw};
use crate::convert;
use crate::op;
use crate::ops::Op;
use crate::state::RealmState;
use crate::storage::{Bind, CursorId, Row, Value};

/// The native functions of this file.
pub const OPS: &[Op] = &[
    op!("sql_exec", sql_exec),
    op!("sql_fetch", sql_fetch),
    op!("sql_close", sql_close),
    op!("sql_watch", sql_watch),
];

/// Most rows of one fetch, whatever is asked for.
const ROWS_MAX: u32 = 4_096;

/// Handles of cursors whose rows are not read to the end, by the database's number and the cursor's.
#[derive(Default)]
struct Watched(RefCell<BTreeMap<(u32, CursorId), v8::Weak<v8::Object>>>);

/// `sql_exec(cell, text, bindings) -> [cursor | -1, names, firstRow | undefined, rowsRead, rowsWritten]`
fn sql_exec(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let Some(text) = convert::to_string(scope, args.get(1)) else { return };
    let Some(bindings) = bindings_of(scope, args.get(2)) else { return };
    let mut row: Vec<Local<v8::Value>> = Vec::new();
    let executed = match database.exec(&text, &bindings, |first| push_row(scope, first, &mut row)) {
        Ok(executed) => executed,
        Err(error) => return throw(scope, &error),
    };
    let names: Vec<Local<v8::Value>> =
        executed.columns.iter().map(|name| convert::intern(scope, name).into()).collect();
    let cursor = executed.cursor.map_or(-1.0, |cursor| cursor.0 as f64);
    let first = if row.is_empty() {
        v8::undefined(scope).into()
    } else {
        v8::Array::new_with_elements(scope, &row).into()
    };
    let answer = [
        v8::Number::new(scope, cursor).into(),
        v8::Array::new_with_elements(scope, &names).into(),
        first,
        v8::Number::new(scope, executed.rows_read as f64).into(),
        v8::Number::new(scope, executed.rows_written as f64).into(),
    ];
    rv.set(v8::Array::new_with_elements(scope, &answer).into());
}

/// `sql_fetch(cell, cursor, max) -> [done, values, rowsRead, rowsWritten]`
fn sql_fetch(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let Some(cursor) = cursor_of(scope, &args) else { return };
    let Some(max) = args.get(2).uint32_value(scope) else { return };
    let mut values: Vec<Local<v8::Value>> = Vec::new();
    let fetched =
        database.fetch(cursor, max.min(ROWS_MAX) as usize, |row| push_row(scope, row, &mut values));
    let fetched = match fetched {
        Ok(fetched) => fetched,
        Err(error) => return throw(scope, &error),
    };
    if fetched.done {
        unwatch(scope, &args, cursor);
    }
    let answer = [
        v8::Boolean::new(scope, fetched.done).into(),
        v8::Array::new_with_elements(scope, &values).into(),
        v8::Number::new(scope, fetched.rows_read as f64).into(),
        v8::Number::new(scope, fetched.rows_written as f64).into(),
    ];
    rv.set(v8::Array::new_with_elements(scope, &answer).into());
}

/// `sql_close(cell, cursor)`: nobody wants the rest of the rows.
fn sql_close(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let Some(cursor) = cursor_of(scope, &args) else { return };
    database.close(cursor);
    unwatch(scope, &args, cursor);
}

/// `sql_watch(cell, cursor, object)`: the cursor ends once the object has been collected.
fn sql_watch(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let Some(cursor) = cursor_of(scope, &args) else { return };
    let Ok(object) = Local::<v8::Object>::try_from(args.get(2)) else { return };
    let Some(cell) = args.get(0).uint32_value(scope) else { return };
    let dropped = database.dropped_cursors();
    let watched = RealmState::get(scope).of::<Watched>();
    // Handles of collected objects go here, not in the finalizer, which V8 runs on them.
    watched.0.borrow_mut().retain(|_, handle| !handle.is_empty());
    let note = Box::new(move |_: &mut v8::Isolate| dropped.borrow_mut().push(cursor));
    let handle = v8::Weak::with_finalizer(scope, object, note);
    watched.0.borrow_mut().insert((cell, cursor), handle);
}

fn unwatch(scope: &mut PinScope, args: &FunctionCallbackArguments, cursor: CursorId) {
    let Some(cell) = args.get(0).uint32_value(scope) else { return };
    RealmState::get(scope).of::<Watched>().0.borrow_mut().remove(&(cell, cursor));
}

fn cursor_of(scope: &mut PinScope, args: &FunctionCallbackArguments) -> Option<CursorId> {
    args.get(1).number_value(scope).map(|number| CursorId(number as u64))
}

/// The values of a row. V8 may run the collector here; finalizers only note numbers of cursors.
fn push_row<'s>(
    scope: &mut PinScope<'s, '_>,
    row: &Row<'_>,
    values: &mut Vec<Local<'s, v8::Value>>,
) {
    for index in 0..row.columns() {
        let value = value_of(scope, row.get(index));
        values.push(value);
    }
}

fn value_of<'s>(scope: &mut PinScope<'s, '_>, value: Value<'_>) -> Local<'s, v8::Value> {
    match value {
        Value::Null => v8::null(scope).into(),
        Value::Integer(number) => match i32::try_from(number) {
            Ok(small) => v8::Integer::new(scope, small).into(),
            Err(_) => v8::Number::new(scope, number as f64).into(),
        },
        Value::Real(number) => v8::Number::new(scope, number).into(),
        Value::Text(text) if text.is_ascii() => convert::latin1(scope, text).into(),
        Value::Text(text) => v8::String::new_from_utf8(scope, text, v8::NewStringType::Normal)
            .unwrap_or_else(|| v8::String::empty(scope))
            .into(),
        Value::Blob(bytes) => convert::array_buffer(scope, bytes.to_vec()).into(),
    }
}

fn bindings_of(scope: &mut PinScope, value: Local<v8::Value>) -> Option<Vec<Bind>> {
    let Ok(list) = Local::<v8::Array>::try_from(value) else {
        convert::throw_type_error(scope, "exec(): an array of bindings is expected");
        return None;
    };
    let mut bindings = Vec::with_capacity(list.length() as usize);
    for at in 0..list.length() {
        let item = list.get_index(scope, at)?;
        bindings.push(binding_of(scope, item)?);
    }
    Some(bindings)
}

fn binding_of(scope: &mut PinScope, value: Local<v8::Value>) -> Option<Bind> {
    if value.is_null_or_undefined() {
        return Some(Bind::Null);
    }
    if let Ok(number) = Local::<v8::Number>::try_from(value) {
        return Some(Bind::Real(number.value()));
    }
    if let Ok(text) = Local::<v8::String>::try_from(value) {
        return Some(Bind::Text(convert::text_of(scope, text)));
    }
    match convert::bytes_of(value) {
        Some(bytes) => Some(Bind::Blob(bytes)),
        None => convert::to_string(scope, value).map(Bind::Text),
    }
}
