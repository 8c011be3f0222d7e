//! What `console` must know of a value that JavaScript cannot ask without running code of a script.
//!
//! Invariant: nothing here runs JavaScript. Used by `js/inspect.js` alone.

use v8::{Local, PinScope};

use crate::convert;
use crate::op;
use crate::ops::Op;

/// Native functions of this file.
pub const OPS: &[Op] = &[
    op!("kind_of", kind_of),
    op!("proxy_target", proxy_target),
    op!("promise_details", promise_details),
    op!("non_index_keys", non_index_keys),
];

/// `kind_of(value)`: "error", "regexp", "arguments", "weak", "module"; "other" for kinds that have
/// an internal slot which JavaScript can probe; "plain" for the rest.
fn kind_of(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let value = args.get(0);
    let kind = if value.is_native_error() {
        "error"
    } else if value.is_reg_exp() {
        "regexp"
    } else if value.is_arguments_object() {
        "arguments"
    } else if value.is_weak_map() || value.is_weak_set() {
        "weak"
    } else if value.is_module_namespace_object() {
        "module"
    } else if value.is_map()
        || value.is_set()
        || value.is_date()
        || value.is_promise()
        || value.is_array_buffer()
        || value.is_typed_array()
        || value.is_number_object()
        || value.is_string_object()
        || value.is_boolean_object()
        || value.is_big_int_object()
        || value.is_symbol_object()
    {
        "other"
    } else {
        "plain"
    };
    rv.set(convert::intern(scope, kind).into());
}

/// `proxy_target(value)`: the target of a proxy, `null` when it is revoked, `undefined` for what is
/// no proxy.
fn proxy_target(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let Ok(proxy) = Local::<v8::Proxy>::try_from(args.get(0)) else { return };
    if proxy.is_revoked() {
        rv.set_null();
    } else {
        rv.set(proxy.get_target(scope));
    }
}

/// `promise_details(value)`: `[0 pending | 1 fulfilled | 2 rejected, result]`; `undefined` for what
/// is no promise.
fn promise_details(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let Ok(promise) = Local::<v8::Promise>::try_from(args.get(0)) else { return };
    let (state, result) = match promise.state() {
        v8::PromiseState::Pending => (0, v8::undefined(scope).into()),
        v8::PromiseState::Fulfilled => (1, promise.result(scope)),
        v8::PromiseState::Rejected => (2, promise.result(scope)),
    };
    let details = [v8::Integer::new(scope, state).into(), result];
    rv.set(v8::Array::new_with_elements(scope, &details).into());
}

/// `non_index_keys(object)`: own keys without those that are array indexes, so that a long array
/// makes no list of a million names.
fn non_index_keys(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let Ok(object) = Local::<v8::Object>::try_from(args.get(0)) else { return };
    let which = v8::GetPropertyNamesArgs {
        mode: v8::KeyCollectionMode::OwnOnly,
        property_filter: v8::PropertyFilter::ALL_PROPERTIES,
        index_filter: v8::IndexFilter::SkipIndices,
        key_conversion: v8::KeyConversionMode::KeepNumbers,
    };
    if let Some(keys) = object.get_property_names(scope, which) {
        rv.set(keys.into());
    }
}
