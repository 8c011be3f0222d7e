//! Native functions that our JavaScript calls: how one is declared and how all are gathered.
//!
//! Invariant: every callback is an external reference of the start-up snapshot, in one fixed order
//! ([`all`]); the snapshot is made by the same process that loads it, so addresses agree.

use v8::{ExternalReference, FunctionCallback};

/// One native function, declared with [`op!`](crate::op).
pub struct Op {
    /// Its name on the `ops` object.
    pub name: &'static str,
    /// The callback V8 calls. A function, as making a callback is not `const`.
    pub callback: fn() -> FunctionCallback,
}

/// Declares an [`Op`]: `op!("url_parse", url_parse)` for
/// `fn url_parse(scope: &mut v8::PinScope, args: v8::FunctionCallbackArguments, rv: v8::ReturnValue)`.
#[macro_export]
macro_rules! op {
    ($name:literal, $function:path) => {
        $crate::ops::Op { name: $name, callback: || v8::MapFnTo::map_fn_to($function) }
    };
}

/// Every native function, in the order of the snapshot.
pub(crate) fn all() -> impl Iterator<Item = &'static Op> {
    crate::api::ALL.iter().flat_map(|ops| ops.iter())
}

/// The addresses the snapshot refers to, with the null that ends the list.
pub(crate) fn external_references() -> Vec<ExternalReference> {
    let end = ExternalReference { pointer: std::ptr::null_mut() };
    all().map(|op| ExternalReference { function: (op.callback)() }).chain([end]).collect()
}

/// Puts every native function on `target`.
pub(crate) fn install<'s>(
    scope: &mut v8::PinScope<'s, '_>,
    target: v8::Local<'s, v8::Object>,
) -> Option<()> {
    for op in all() {
        let name = v8::String::new_from_one_byte(
            scope,
            op.name.as_bytes(),
            v8::NewStringType::Internalized,
        )?;
        let function = v8::Function::builder_raw((op.callback)())
            .constructor_behavior(v8::ConstructorBehavior::Throw)
            .build(scope)?;
        function.set_name(name);
        target.set(scope, name.into(), function.into())?;
    }
    Some(())
}
