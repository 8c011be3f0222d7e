//! Host calls: what JavaScript asks of the shard. One native function for each [`HostCall`].
//!
//! Arguments of requests and responses have one form everywhere:
//! - headers: `[name, value, name, value, …]`, or `name LF value LF name LF value` in one string;
//! - body: `kind, value, length`; kind 0 none, 1 a `Uint8Array`, 2 the number of a stream (with its
//!   length, or -1), 3 a string;
//! - an error is the thrown value itself;
//! - event, cell, section, call, stream, timer are numbers; no cell and no section are `undefined`.

use http::{Method, StatusCode};
use v8::{FunctionCallbackArguments, Local, PinScope, ReturnValue};

use super::structured_clone;
use crate::convert::{
    body_of, bytes_of, headers_of, intern, throw_type_error, to_string, without_empty_location,
};
use crate::errors::{failure, failure_of_cell, failure_parts};
use crate::host::{
    CallId, CellSlot, Encoding, EventId, Failure, HostCall, LogLevel, Redirect, Request, Response,
    SectionId, SocketId, StreamId, Target, TimerId,
};
use crate::op;
use crate::ops::Op;
use crate::state::RealmState;

/// Requests that one event sends, unless the configuration says otherwise: as paid Workers.
const SUBREQUESTS_MAX: u32 = 1_000;

/// The native functions of this file.
pub const OPS: &[Op] = &[
    op!("origin_get", origin_get),
    op!("origin_set", origin_set),
    op!("check_io", check_io),
    op!("queue_microtask", queue_microtask),
    op!("respond", respond),
    op!("respond_value", respond_value),
    op!("respond_error", respond_error),
    op!("failure_of", failure_of),
    op!("done", done),
    op!("opened", opened),
    op!("opened_error", opened_error),
    op!("fetch", fetch),
    op!("fetch_cell", fetch_cell),
    op!("call_cell", call_cell),
    op!("status_phrase", status_phrase),
    op!("abandon", abandon),
    op!("subrequests_max", subrequests_max),
    op!("set_timer", set_timer),
    op!("clear_timer", clear_timer),
    op!("stream_new", stream_new),
    op!("stream_pull", stream_pull),
    op!("stream_cancel", stream_cancel),
    op!("stream_chunk", stream_chunk),
    op!("stream_error", stream_error),
    op!("block_begin", block_begin),
    op!("block_end", block_end),
    op!("sync", sync),
    op!("abort_cell", abort_cell),
    op!("log", log),
    op!("uncaught", uncaught),
];

/// `origin_get()`: the frame of what runs now.
fn origin_get(scope: &mut PinScope, _args: FunctionCallbackArguments, mut rv: ReturnValue) {
    rv.set(scope.get_continuation_preserved_embedder_data());
}

/// `origin_set(frame)`: what runs from here on, and the promise reactions made from here on, have
/// this frame.
fn origin_set(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    scope.set_continuation_preserved_embedder_data(args.get(0));
}

/// `check_io()`: throws in the global scope.
fn check_io(scope: &mut PinScope, _args: FunctionCallbackArguments, _rv: ReturnValue) {
    RealmState::get(scope).io_origin(scope);
}

/// `queue_microtask(function)`
fn queue_microtask(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    match Local::<v8::Function>::try_from(args.get(0)) {
        Ok(function) => scope.enqueue_microtask(function),
        Err(_) => throw_type_error(scope, "queueMicrotask: a function is expected"),
    }
}

/// `respond(event, cell, status, statusText, headers, bodyKind, body, length, last, manual,
/// socket)`; with `last` the event is done; `socket` is the number of a WebSocket's end or
/// `undefined`.
fn respond(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some((event, cell)) = event_and_cell(scope, &args) else { return };
    if let Some(response) = response_of(scope, &args) {
        let state = RealmState::get(scope);
        state.push(HostCall::Respond { event, cell, response: Ok(response) });
        if args.get(8).is_true() {
            state.push(HostCall::Done { event });
        }
    }
}

fn response_of(scope: &mut PinScope, args: &FunctionCallbackArguments) -> Option<Response> {
    let status = args.get(2).uint32_value(scope)?;
    let Ok(status) = u16::try_from(status) else {
        throw_type_error(scope, &format!("status {status} is out of range"));
        return None;
    };
    let status_text = to_string(scope, args.get(3))?;
    let headers = without_empty_location(headers_of(scope, args.get(4))?);
    let body = body_of(scope, args.get(5), args.get(6), args.get(7))?;
    let encoding = encoding_of(args.get(9));
    let socket = args.get(10);
    let web_socket =
        if socket.is_undefined() { None } else { Some(SocketId(number(scope, socket)?)) };
    let (url, redirected) = (String::new(), false);
    Some(Response { status, status_text, headers, body, encoding, url, redirected, web_socket })
}

/// `respond_value(event, cell, value)`: answers a call of RPC. Throws what cannot be serialised.
fn respond_value(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some((event, cell)) = event_and_cell(scope, &args) else { return };
    if let Some(message) = structured_clone::message(scope, args.get(2)) {
        let response = Ok(Response::rpc(message));
        RealmState::get(scope).push(HostCall::Respond { event, cell, response });
    }
}

/// `respond_error(event, cell, error)`
fn respond_error(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some((event, cell)) = event_and_cell(scope, &args) else { return };
    let failure = match cell {
        Some(_) => failure_of_cell(scope, args.get(2)),
        None => failure(scope, args.get(2)),
    };
    RealmState::get(scope).push(HostCall::Respond { event, cell, response: Err(failure) });
}

/// `failure_of(error) -> [name, message, stack, flags, thrown]`: what the caller of a cell is told of it.
fn failure_of(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let failure = failure_of_cell(scope, args.get(0));
    let parts = failure_parts(scope, &failure);
    rv.set(v8::Array::new_with_elements(scope, &parts).into());
}

/// `done(event)`
fn done(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    if let Some(event) = number(scope, args.get(0)) {
        RealmState::get(scope).push(HostCall::Done { event: EventId(event) });
    }
}

/// `opened(cell)`
fn opened(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    if let Some(cell) = cell_of(scope, args.get(0)) {
        RealmState::get(scope).push(HostCall::Opened { cell, result: Ok(()) });
    }
}

/// `opened_error(cell, error)`
fn opened_error(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(cell) = cell_of(scope, args.get(0)) else { return };
    let failure = failure_of_cell(scope, args.get(1));
    RealmState::get(scope).push(HostCall::Opened { cell, result: Err(failure) });
}

/// `fetch(method, url, headers, bodyKind, body, length, redirect, manual) -> call`; `redirect` is 0
/// follow, 1 manual; with `manual` the answer's body comes as it is sent. Answered by
/// `rt.entry.answerResponse` or `rt.entry.answerError`.
fn fetch(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(request) = request_of(scope, &args, 0) else { return };
    let call = state.next_call();
    state.push(HostCall::Fetch { call, origin, request });
    rv.set_double(call.0 as f64);
}

/// `fetch_cell(stub, class, namespace, id, name, method, url, headers, bodyKind, body, length,
/// redirect, manual) -> call`; `stub` is the number of the stub, `name` a string or `undefined`.
fn fetch_cell(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(stub) = number(scope, args.get(0)) else { return };
    let Some(target) = target_of(scope, &args, 1) else { return };
    let Some(request) = request_of(scope, &args, 5) else { return };
    let call = state.next_call();
    state.push(HostCall::FetchCell { call, origin, stub, target, request });
    rv.set_double(call.0 as f64);
}

/// `call_cell(stub, class, namespace, id, name, message) -> call`: a call of RPC, answered as
/// `fetch_cell` is, with the value as the body. Throws what cannot be serialised.
fn call_cell(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(stub) = number(scope, args.get(0)) else { return };
    let Some(target) = target_of(scope, &args, 1) else { return };
    let Some(message) = structured_clone::message(scope, args.get(5)) else { return };
    let request = Request::rpc(message);
    let call = state.next_call();
    state.push(HostCall::FetchCell { call, origin, stub, target, request });
    rv.set_double(call.0 as f64);
}

fn target_of(scope: &mut PinScope, args: &FunctionCallbackArguments, at: i32) -> Option<Target> {
    let class = to_string(scope, args.get(at))?;
    let namespace = to_string(scope, args.get(at + 1))?;
    let id = to_string(scope, args.get(at + 2))?;
    let name = args.get(at + 3);
    let name = if name.is_null_or_undefined() { None } else { Some(to_string(scope, name)?) };
    Some(Target { class, namespace, id, name })
}

fn request_of(scope: &mut PinScope, args: &FunctionCallbackArguments, at: i32) -> Option<Request> {
    let method = to_string(scope, args.get(at))?;
    let Ok(method) = Method::from_bytes(method.as_bytes()) else {
        throw_type_error(scope, &format!("Invalid HTTP method string: {method}"));
        return None;
    };
    let url = to_string(scope, args.get(at + 1))?;
    let headers = headers_of(scope, args.get(at + 2))?;
    let body = body_of(scope, args.get(at + 3), args.get(at + 4), args.get(at + 5))?;
    let redirect = match args.get(at + 6).uint32_value(scope)? {
        1 => Redirect::Manual,
        _ => Redirect::Follow,
    };
    let answer = encoding_of(args.get(at + 7));
    let is_rpc = false;
    Some(Request { is_rpc, method, url, headers, body, redirect, answer })
}

fn encoding_of(manual: Local<v8::Value>) -> Encoding {
    if manual.is_true() { Encoding::Manual } else { Encoding::Automatic }
}

/// `subrequests_max()`: how many requests one event may send.
fn subrequests_max(scope: &mut PinScope, _args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let configured = RealmState::get(scope).script.subrequests_max;
    rv.set_uint32(configured.unwrap_or(SUBREQUESTS_MAX));
}

/// `status_phrase(status)`: what is written after a status that comes without a phrase; of one that
/// has none, the name of its class, as workerd has it.
fn status_phrase(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(status) = args.get(0).uint32_value(scope) else { return };
    let known = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let phrase = known.and_then(|status| status.canonical_reason()).unwrap_or(match status / 100 {
        1 => "Informational",
        2 => "Successful",
        3 => "Redirection",
        4 => "Client Error",
        5 => "Server Error",
        _ => "Unknown",
    });
    rv.set(intern(scope, phrase).into());
}

/// `abandon(call)`
fn abandon(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    if let Some(call) = number(scope, args.get(0)) {
        RealmState::get(scope).push(HostCall::Abandon { call: CallId(call) });
    }
}

/// `set_timer(delayMs) -> timer`; `rt.entry.timer(timer)` is called once.
fn set_timer(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(delay_ms) = number(scope, args.get(0)) else { return };
    let timer = state.next_timer();
    state.push(HostCall::SetTimer { timer, origin, delay_ms });
    rv.set_double(timer.0 as f64);
}

/// `clear_timer(timer)`
fn clear_timer(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    if let Some(timer) = number(scope, args.get(0)) {
        RealmState::get(scope).push(HostCall::ClearTimer { timer: TimerId(timer) });
    }
}

/// `stream_new() -> stream`: a stream that JavaScript makes.
fn stream_new(scope: &mut PinScope, _args: FunctionCallbackArguments, mut rv: ReturnValue) {
    rv.set_double(RealmState::get(scope).next_stream().0 as f64);
}

/// `stream_pull(stream)`: JavaScript wants a piece of a stream that the shard makes.
fn stream_pull(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    if let Some(stream) = number(scope, args.get(0)) {
        state.push(HostCall::Pull { stream: StreamId(stream), origin });
    }
}

/// `stream_cancel(stream)`: JavaScript will not read the rest.
fn stream_cancel(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    if let Some(stream) = number(scope, args.get(0)) {
        RealmState::get(scope).push(HostCall::Cancel { stream: StreamId(stream) });
    }
}

/// `stream_chunk(stream, bytes | null)`: a piece of a stream that JavaScript makes, or its end.
fn stream_chunk(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(stream) = number(scope, args.get(0)) else { return };
    let value = args.get(1);
    let chunk = if value.is_null_or_undefined() {
        None
    } else {
        let Some(bytes) = bytes_of(value) else {
            return throw_type_error(
                scope,
                "This TransformStream is being used as a byte stream, but received an object of non-ArrayBuffer/ArrayBufferView type on its writable side.",
            );
        };
        Some(bytes.into())
    };
    state.push(HostCall::Chunk { stream: StreamId(stream), origin, chunk: Ok(chunk) });
}

/// `stream_error(stream, error)`: a stream that JavaScript makes has failed.
fn stream_error(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(stream) = number(scope, args.get(0)) else { return };
    let failure = match origin.cell {
        Some(_) => Failure { remote: true, ..failure_of_cell(scope, args.get(1)) },
        None => failure(scope, args.get(1)),
    };
    state.push(HostCall::Chunk { stream: StreamId(stream), origin, chunk: Err(failure) });
}

/// `block_begin(cell, outerSection | undefined) -> section`
fn block_begin(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(cell) = cell_of(scope, args.get(0)) else { return };
    let outer = args.get(1);
    let outer = if outer.is_undefined() { None } else { number(scope, outer).map(SectionId) };
    let state = RealmState::get(scope);
    let section = state.next_section();
    state.push(HostCall::BlockConcurrency { cell, section, outer });
    rv.set_double(section.0 as f64);
}

/// `block_end(cell, section, failed, error)`: `error` is read when `failed` is true.
fn block_end(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(cell) = cell_of(scope, args.get(0)) else { return };
    let Some(section) = number(scope, args.get(1)) else { return };
    let failure = args.get(2).is_true().then(|| failure_of_cell(scope, args.get(3)));
    RealmState::get(scope).push(HostCall::Unblock { cell, section: SectionId(section), failure });
}

/// `sync(cell) -> call`. Answered by `rt.entry.answerDone`.
fn sync(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(cell) = cell_of(scope, args.get(0)) else { return };
    let call = state.next_call();
    state.push(HostCall::Sync { call, cell, origin });
    rv.set_double(call.0 as f64);
}

/// `abort_cell(cell, error)`
fn abort_cell(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(cell) = cell_of(scope, args.get(0)) else { return };
    let failure = failure(scope, args.get(1));
    RealmState::get(scope).push(HostCall::AbortCell { cell, failure });
}

/// `log(level, text)`; `level` is 0 debug, 1 log, 2 info, 3 warn, 4 error.
fn log(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(level) = args.get(0).uint32_value(scope) else { return };
    let level = match level {
        0 => LogLevel::Debug,
        1 => LogLevel::Log,
        2 => LogLevel::Info,
        3 => LogLevel::Warn,
        _ => LogLevel::Error,
    };
    let Some(message) = to_string(scope, args.get(1)) else { return };
    let state = RealmState::get(scope);
    let origin = state.origin(scope);
    state.push(HostCall::Log { level, origin, message });
}

/// `uncaught(error)`: `reportError` and whatever nobody handles.
fn uncaught(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let failure = failure(scope, args.get(0));
    let state = RealmState::get(scope);
    let origin = state.origin(scope);
    state.push(HostCall::Uncaught { origin, failure });
}

pub(super) fn event_and_cell(
    scope: &mut PinScope,
    args: &FunctionCallbackArguments,
) -> Option<(EventId, Option<CellSlot>)> {
    let event = number(scope, args.get(0))?;
    let cell = args.get(1);
    let cell = if cell.is_undefined() { None } else { Some(cell_of(scope, cell)?) };
    Some((EventId(event), cell))
}

pub(super) fn cell_of(scope: &mut PinScope, value: Local<v8::Value>) -> Option<CellSlot> {
    value.uint32_value(scope).map(CellSlot)
}

/// A whole number that is not negative. NaN is 0, as `as` has it.
pub(super) fn number(scope: &mut PinScope, value: Local<v8::Value>) -> Option<u64> {
    value.number_value(scope).map(|number| number as u64)
}
