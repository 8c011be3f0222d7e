//! Key-value calls of a cell's storage: values cross as V8 serialises them, keys as UTF-8.
//!
//! Invariant: no database row is borrowed while V8 reads a value, as reading may run the collector.

use v8::{FunctionCallbackArguments, Local, PinScope, ReturnValue};

use super::durable::{InUse, database, throw};
use super::structured_clone::{deserialize, serialize};
use crate::convert;
use crate::op;
use crate::ops::Op;
use crate::storage::{DbError, List, SavepointKind};

/// The native functions of this file. `cell` is a slot, keys are strings.
pub const OPS: &[Op] = &[
    op!("kv_get", kv_get),
    op!("kv_get_many", kv_get_many),
    op!("kv_put", kv_put),
    op!("kv_put_many", kv_put_many),
    op!("kv_delete", kv_delete),
    op!("kv_delete_many", kv_delete_many),
    op!("kv_list", kv_list),
];

/// `kv_get(cell, key) -> value | undefined`
fn kv_get(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let Some(key) = convert::to_string(scope, args.get(1)) else { return };
    match database.kv_get(&key, <[u8]>::to_vec) {
        Ok(None) => {}
        Ok(Some(bytes)) => {
            if let Some(value) = deserialize(scope, &bytes) {
                rv.set(value);
            }
        }
        Err(error) => throw(scope, &error),
    }
}

/// `kv_get_many(cell, keys) -> [key, value, …]`: those that exist, each once, ordered by key.
fn kv_get_many(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let Some(mut keys) = convert::strings_of(scope, args.get(1)) else { return };
    keys.sort_unstable();
    keys.dedup();
    let mut pairs = Vec::new();
    for key in keys {
        match database.kv_get(&key, <[u8]>::to_vec) {
            Ok(None) => {}
            Ok(Some(value)) => pairs.push((key, value)),
            Err(error) => return throw(scope, &error),
        }
    }
    if let Some(flat) = flat(scope, &pairs) {
        rv.set(flat.into());
    }
}

/// `kv_put(cell, key, value)`
fn kv_put(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(key) = convert::to_string(scope, args.get(1)) else { return };
    // First, as a getter of the value may do anything.
    let Some(value) = serialize(scope, args.get(2)) else { return };
    let Some(database) = database(scope, &args) else { return };
    if let Err(error) = database.kv_put(&key, &value) {
        throw(scope, &error);
    }
}

/// `kv_put_many(cell, [key, value, …])`: all or none.
fn kv_put_many(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Ok(list) = Local::<v8::Array>::try_from(args.get(1)) else {
        return convert::throw_type_error(scope, "put(): an array of pairs is expected");
    };
    let mut pairs = Vec::new();
    for at in (0..list.length().saturating_sub(1)).step_by(2) {
        let Some(pair) = pair_at(scope, list, at) else { return };
        pairs.push(pair);
    }
    let Some(database) = database(scope, &args) else { return };
    if let Err(error) = put_all(&database, &pairs) {
        throw(scope, &error);
    }
}

fn pair_at(scope: &mut PinScope, list: Local<v8::Array>, at: u32) -> Option<(String, Vec<u8>)> {
    let key = list.get_index(scope, at)?;
    let key = convert::to_string(scope, key)?;
    let value = list.get_index(scope, at + 1)?;
    Some((key, serialize(scope, value)?))
}

fn put_all(database: &InUse, pairs: &[(String, Vec<u8>)]) -> Result<(), DbError> {
    if pairs.is_empty() {
        return Ok(());
    }
    let savepoint = database.begin(SavepointKind::Sync)?;
    for (key, value) in pairs {
        if let Err(error) = database.kv_put(key, value) {
            // A broken transaction has no savepoint any more; the first error says why.
            return database
                .roll_back(savepoint)
                .and(Err(error.clone()))
                .map_err(|_: DbError| error);
        }
    }
    database.release(savepoint)
}

/// `kv_delete(cell, key) -> boolean`
fn kv_delete(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let Some(key) = convert::to_string(scope, args.get(1)) else { return };
    match database.kv_delete(&key) {
        Ok(deleted) => rv.set_bool(deleted),
        Err(error) => throw(scope, &error),
    }
}

/// `kv_delete_many(cell, keys) -> number`: how many there were.
fn kv_delete_many(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let Some(keys) = convert::strings_of(scope, args.get(1)) else { return };
    let mut deleted = 0;
    for key in keys {
        match database.kv_delete(&key) {
            Ok(true) => deleted += 1,
            Ok(false) => {}
            Err(error) => return throw(scope, &error),
        }
    }
    rv.set_uint32(deleted);
}

/// `kv_list(cell, start, startAfter, end, prefix, reverse, limit) -> [key, value, …]`; each of the
/// first four a string or `undefined`, the limit a number or `undefined`.
fn kv_list(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(database) = database(scope, &args) else { return };
    let Some(list) = list_of(scope, &args) else { return };
    let mut pairs = Vec::new();
    let listed = database.kv_list(&list, |key, value| {
        pairs.push((String::from_utf8_lossy(key).into_owned(), value.to_vec()));
        true
    });
    if let Err(error) = listed {
        return throw(scope, &error);
    }
    if let Some(flat) = flat(scope, &pairs) {
        rv.set(flat.into());
    }
}

fn list_of(scope: &mut PinScope, args: &FunctionCallbackArguments) -> Option<List> {
    let mut list = List { reverse: args.get(5).is_true(), ..List::default() };
    for (index, narrow) in [
        (1, List::start_at as fn(&mut List, &[u8])),
        (2, List::after),
        (3, List::end_before),
        (4, List::with_prefix),
    ] {
        let bound = args.get(index);
        if !bound.is_undefined() {
            narrow(&mut list, convert::to_string(scope, bound)?.as_bytes());
        }
    }
    let limit = args.get(6);
    if !limit.is_undefined() {
        // Beyond 2^64 the conversion stays at the greatest number.
        list.limit = Some(limit.number_value(scope)? as u64);
    }
    Some(list)
}

/// `[key, value, …]` with the values read. `None`: an exception is pending.
fn flat<'s>(
    scope: &mut PinScope<'s, '_>,
    pairs: &[(String, Vec<u8>)],
) -> Option<Local<'s, v8::Array>> {
    let mut elements: Vec<Local<v8::Value>> = Vec::with_capacity(pairs.len() * 2);
    for (key, value) in pairs {
        elements.push(convert::string(scope, key).into());
        elements.push(deserialize(scope, value)?);
    }
    Some(v8::Array::new_with_elements(scope, &elements))
}
