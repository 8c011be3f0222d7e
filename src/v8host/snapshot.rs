//! The start-up snapshot: V8's heap after our own JavaScript has run, from which every realm starts.
//!
//! Invariant: made once for each process, before the first realm; what it refers to outside of the
//! heap are the addresses of [`crate::ops`], which do not change while the process lives.

use std::sync::OnceLock;

use v8::{ExternalReference, Local, PinScope};

use crate::{convert, ops};

/// Our JavaScript, in the order in which it runs: each file is the body of a strict
/// `function (rt, ops, primordials)`.
const FILES: &[(&str, &str)] = &[
    ("primordials.js", include_str!("js/primordials.js")),
    ("engine.js", include_str!("js/engine.js")),
    ("webidl.js", include_str!("js/webidl.js")),
    ("domexception.js", include_str!("js/domexception.js")),
    ("events.js", include_str!("js/events.js")),
    ("abort.js", include_str!("js/abort.js")),
    ("report.js", include_str!("js/report.js")),
    ("structured_clone.js", include_str!("js/structured_clone.js")),
    ("timers.js", include_str!("js/timers.js")),
    ("url.js", include_str!("js/url.js")),
    ("encoding.js", include_str!("js/encoding.js")),
    ("streams_queue.js", include_str!("js/streams_queue.js")),
    ("streams_readable.js", include_str!("js/streams_readable.js")),
    ("streams_byte.js", include_str!("js/streams_byte.js")),
    ("streams_tee.js", include_str!("js/streams_tee.js")),
    ("streams_writable.js", include_str!("js/streams_writable.js")),
    ("streams_pipe.js", include_str!("js/streams_pipe.js")),
    ("streams_transform.js", include_str!("js/streams_transform.js")),
    ("crypto.js", include_str!("js/crypto.js")),
    ("encoding_streams.js", include_str!("js/encoding_streams.js")),
    ("compression_streams.js", include_str!("js/compression_streams.js")),
    ("blob.js", include_str!("js/blob.js")),
    ("formdata.js", include_str!("js/formdata.js")),
    ("inspect.js", include_str!("js/inspect.js")),
    ("format.js", include_str!("js/format.js")),
    ("console.js", include_str!("js/console.js")),
    ("headers.js", include_str!("js/headers.js")),
    ("body.js", include_str!("js/body.js")),
    ("websocket.js", include_str!("js/websocket.js")),
    ("request.js", include_str!("js/request.js")),
    ("response.js", include_str!("js/response.js")),
    ("fetch.js", include_str!("js/fetch.js")),
    ("tracing.js", include_str!("js/tracing.js")),
    ("dispatch.js", include_str!("js/dispatch.js")),
    ("rpc.js", include_str!("js/rpc.js")),
    ("loopback.js", include_str!("js/loopback.js")),
    ("alarms.js", include_str!("js/alarms.js")),
    ("sql.js", include_str!("js/sql.js")),
    ("storage.js", include_str!("js/storage.js")),
    ("hibernation.js", include_str!("js/hibernation.js")),
    ("durable.js", include_str!("js/durable.js")),
    ("workers_module.js", include_str!("js/workers_module.js")),
    // Last: it fills in what no other file has defined.
    ("globals.js", include_str!("js/globals.js")),
];

/// Script names of our own code begin with this, so that stacks can leave it out.
pub(crate) const RUNTIME_PREFIX: &str = "celld:";

/// Index of the object `rt` in the context's data.
pub(crate) const RT: usize = 0;

/// V8 flags of the process.
/// - `wasm-max-mem-pages`: 128 MB, as all memory of an isolate on Workers.
/// - `no-turboshaft-loop-unrolling`: that phase also drops the check for termination from loops it
///   takes for short, and is wrong about `for (;;) new Array(1000).fill(7)`, which then nothing can
///   end (V8 15.2; `tests/limits.rs` has it).
const FLAGS: &str = "--wasm-max-mem-pages=2048 --no-turboshaft-loop-unrolling";

/// Starts V8 and makes the snapshot, once.
///
/// # Panics
/// When our own JavaScript does not run: a bug of ours that any start shows.
pub fn startup() -> &'static [u8] {
    static BLOB: OnceLock<Box<[u8]>> = OnceLock::new();
    BLOB.get_or_init(|| {
        v8::V8::set_flags_from_string(FLAGS);
        // Unprotected: isolates live on threads that are not children of this one. Two threads:
        // concurrent garbage collection and compilation, whatever the number of shards.
        let platform = v8::new_unprotected_default_platform(2, false).make_shared();
        v8::V8::initialize_platform(platform);
        v8::V8::initialize();
        make().unwrap_or_else(|error| panic!("{error}")).into()
    })
}

/// The addresses the snapshot refers to, with the end mark that V8 wants.
pub(crate) fn references() -> &'static [ExternalReference] {
    static REFERENCES: OnceLock<References> = OnceLock::new();
    &REFERENCES.get_or_init(|| References(ops::external_references())).0
}

struct References(Vec<ExternalReference>);

// SAFETY: addresses of functions, which every thread may read.
unsafe impl Send for References {}
// SAFETY: as above.
unsafe impl Sync for References {}

fn make() -> Result<Vec<u8>, String> {
    let mut isolate = v8::Isolate::snapshot_creator(Some(references().into()), None);
    let ran = {
        v8::scope!(let scope, &mut isolate);
        let context = v8::Context::new(scope, v8::ContextOptions::default());
        let scope = &mut v8::ContextScope::new(scope, context);
        let rt = run_files(scope);
        scope.set_default_context(context);
        rt.map(|rt| scope.add_context_data(context, rt))
    };
    // Also after an error: V8 wants each such isolate to end so.
    let blob = isolate.create_blob(v8::FunctionCodeHandling::Keep);
    assert_eq!(ran?, RT, "the runtime's object is the first of the context's data");
    blob.map(|blob| blob.to_vec()).ok_or_else(|| "V8 has made no snapshot".to_owned())
}

fn run_files<'s>(scope: &mut PinScope<'s, '_>) -> Result<Local<'s, v8::Object>, String> {
    let rt = v8::Object::new(scope);
    let natives = v8::Object::new(scope);
    let primordials = v8::Object::new(scope);
    ops::install(scope, natives).ok_or("native functions are not installed")?;
    for (name, source) in FILES {
        v8::tc_scope!(let scope, scope);
        if run_file(scope, name, source, &[rt.into(), natives.into(), primordials.into()]).is_none()
        {
            let error = scope
                .exception()
                .and_then(|error| convert::to_string(scope, error))
                .unwrap_or_default();
            let line = scope
                .message()
                .and_then(|message| message.get_line_number(scope))
                .unwrap_or_default();
            return Err(format!("{RUNTIME_PREFIX}{name}:{line}: {error}"));
        }
    }
    Ok(rt)
}

fn run_file(
    scope: &mut PinScope,
    name: &str,
    source: &str,
    arguments: &[Local<v8::Value>; 3],
) -> Option<()> {
    let resource = convert::string(scope, &format!("{RUNTIME_PREFIX}{name}"));
    let origin = v8::ScriptOrigin::new(
        scope,
        resource.into(),
        0,
        0,
        false,
        -1,
        None,
        false,
        false,
        false,
        None,
    );
    // On the first line, so that line numbers stay those of the file.
    let source = convert::string(scope, &format!("'use strict';{source}"));
    let mut source = v8::script_compiler::Source::new(source, Some(&origin));
    let names = ["rt", "ops", "primordials"].map(|name| convert::intern(scope, name));
    let function = v8::script_compiler::compile_function(
        scope,
        &mut source,
        &names,
        &[],
        v8::script_compiler::CompileOptions::NoCompileOptions,
        v8::script_compiler::NoCacheReason::NoReason,
    )?;
    let receiver = v8::undefined(scope);
    function.call(scope, receiver.into(), arguments)?;
    Some(())
}
