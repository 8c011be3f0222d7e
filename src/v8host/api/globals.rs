//! Facts of the script that globals show.
//!
//! Source: workerd, `Cloudflare.compatibilityFlags`.

use v8::{Local, PinScope};

use crate::compatibility::CTX_EXPORTS;
use crate::convert;
use crate::op;
use crate::ops::Op;
use crate::state::RealmState;

/// Native functions of this file.
pub const OPS: &[Op] =
    &[op!("compatibility_flags", compatibility_flags), op!("has_ctx_exports", has_ctx_exports)];

/// `has_ctx_exports()`: whether `ctx.exports` is there.
fn has_ctx_exports(
    scope: &mut PinScope,
    _args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    rv.set_bool(RealmState::get(scope).script.has(CTX_EXPORTS));
}

/// `compatibility_flags()`: the flags of the script's configuration, as it names them.
fn compatibility_flags(
    scope: &mut PinScope,
    _args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let state = RealmState::get(scope);
    let flags = &state.script.compatibility_flags;
    let flags: Vec<Local<v8::Value>> =
        flags.iter().map(|flag| convert::string(scope, flag).into()).collect();
    rv.set(v8::Array::new_with_elements(scope, &flags).into());
}
