//! One turn: an input goes into JavaScript, which runs until its microtask queue is empty.
//!
//! Invariant: when a turn has ended no JavaScript frame and no microtask is left, the frame that
//! follows promises is empty, and the isolate is not terminating.

use v8::{Global, Local, PinScope};

use crate::api::structured_clone;
use crate::convert::{self, body_kind};
use crate::errors::{failure, failure_parts};
use crate::host::{
    Answer, Body, CellSlot, EventId, Failure, HostCall, Input, Request, Response, SocketEvent,
    SocketMessage, Termination, Turn,
};
use crate::modules;
use crate::realm::{self, Realm};
use crate::state::{RealmState, Rejection};

/// Functions of `rt.entry` that the host calls.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    Fetch,
    Rpc,
    Scheduled,
    Alarm,
    Socket,
    CellSocket,
    OpenCell,
    CloseCell,
    AnswerResponse,
    AnswerDone,
    AnswerError,
    Timer,
    Pull,
    Cancel,
    Chunk,
    ChunkError,
    Disconnected,
    Forget,
    UnhandledRejection,
    RejectionHandled,
}

/// In the order of [`Entry`].
const NAMES: [&str; 20] = [
    "fetch",
    "rpc",
    "scheduled",
    "alarm",
    "socket",
    "cellSocket",
    "openCell",
    "closeCell",
    "answerResponse",
    "answerDone",
    "answerError",
    "timer",
    "pull",
    "cancel",
    "chunk",
    "chunkError",
    "disconnected",
    "forget",
    "unhandledRejection",
    "rejectionHandled",
];

/// The functions of `rt.entry`, looked up once.
pub(crate) struct Entries([Option<Global<v8::Function>>; NAMES.len()]);

impl Entries {
    pub fn new(scope: &mut PinScope, entry: Local<v8::Object>) -> Self {
        Self(NAMES.map(|name| {
            let function = crate::realm::member::<v8::Function>(scope, entry, name)?;
            Some(Global::new(scope, function))
        }))
    }

    /// Calls an entry. `None`: it threw, or execution is being terminated.
    fn call<'s>(
        &self,
        scope: &mut PinScope<'s, '_>,
        entry: Entry,
        arguments: &[Local<v8::Value>],
    ) -> Option<Local<'s, v8::Value>> {
        let Some(function) = &self.0[entry as usize] else {
            convert::throw_error(scope, &format!("rt.entry.{} is missing", NAMES[entry as usize]));
            return None;
        };
        let function = Local::new(scope, function);
        let receiver = v8::undefined(scope);
        function.call(scope, receiver.into(), arguments)
    }

    fn has(&self, entry: Entry) -> bool {
        self.0[entry as usize].is_some()
    }
}

/// Settings of an isolate that a snapshot does not keep.
pub(crate) fn configure(isolate: &mut v8::Isolate) {
    isolate.set_microtasks_policy(v8::MicrotasksPolicy::Explicit);
    isolate.set_capture_stack_trace_for_uncaught_exceptions(false, 0);
    isolate.set_promise_reject_callback(on_promise_reject);
    isolate.set_host_import_module_dynamically_callback(modules::import_callback);
    isolate.set_allow_wasm_code_generation_callback(allow_wasm);
    isolate.set_allow_atomics_wait(false);
}

/// `rt.entry.setup(vars, bindings)`: fills `env`.
pub(crate) fn call_setup(scope: &mut PinScope, state: &RealmState) -> Option<()> {
    let script = &state.script;
    let mut vars = script.vars.clone();
    for (name, text) in &script.secrets {
        vars.insert(name.clone(), serde_json::Value::String(text.clone()));
    }
    let json = convert::string(scope, &serde_json::Value::Object(vars).to_string());
    let vars = v8::json::parse(scope, json)?;
    let bindings: Vec<Local<v8::Value>> = script
        .durable_objects
        .iter()
        .map(|binding| {
            let parts = ["durableObject", &binding.name, &binding.class, &binding.namespace];
            let parts = parts.map(|part| convert::string(scope, part).into());
            v8::Array::new_with_elements(scope, &parts).into()
        })
        .collect();
    let bindings = v8::Array::new_with_elements(scope, &bindings);
    let rt = Local::new(scope, &state.names.rt);
    let entry = crate::realm::member::<v8::Object>(scope, rt, "entry")?;
    let setup = crate::realm::member::<v8::Function>(scope, entry, "setup")?;
    let receiver = v8::undefined(scope);
    setup.call(scope, receiver.into(), &[vars, bindings.into()])?;
    Some(())
}

impl Realm {
    /// Runs one turn. `now` is milliseconds since 1970: the time that JavaScript sees until the turn
    /// ends. The turn's host calls are appended to `calls`, also those made before a termination.
    pub fn turn(&mut self, now: f64, input: Input, calls: &mut Vec<HostCall>) -> Turn {
        if self.spent {
            return Turn::Terminated(Termination::OutOfMemory);
        }
        self.set_clock(now);
        self.state.socket_bytes.set(0);
        self.state.calls.swap(&std::cell::RefCell::new(std::mem::take(calls)));
        self.watchdog.begin(self.limits.turn_cpu_max);
        {
            realm::enter(&self.isolate, &self.state);
            v8::scope!(let scope, &mut **self.isolate);
            let context = Local::new(scope, &self.inside.context);
            let scope = &mut v8::ContextScope::new(scope, context);
            run(scope, &self.inside.entries, &self.state, input);
        }
        let ended = self.watchdog.end();
        *calls = self.state.calls.take();
        let wrote = self.state.wrote.take();
        self.memory.end_turn(&mut self.isolate, self.limits);
        if self.memory.is_exceeded() {
            self.spent = true;
            self.isolate.cancel_terminate_execution();
            return Turn::Terminated(Termination::OutOfMemory);
        }
        if ended {
            self.isolate.cancel_terminate_execution();
            return Turn::Terminated(Termination::CpuTimeExceeded);
        }
        Turn::Ended { wrote }
    }

    fn set_clock(&mut self, now: f64) {
        if let Some(data) = self.inside.clock.data() {
            // SAFETY: the memory of `rt.clock`, four aligned numbers, which `inside` keeps; no
            // JavaScript runs now.
            unsafe { data.as_ptr().cast::<f64>().write(now) };
        }
    }
}

fn run(scope: &mut PinScope, entries: &Entries, state: &RealmState, input: Input) {
    v8::tc_scope!(let scope, scope);
    if deliver(scope, entries, input).is_none() {
        report(scope, state);
    }
    scope.perform_microtask_checkpoint();
    // Handlers of `unhandledrejection` may reject again: a few rounds, then the rest is dropped
    // with the turn's end and reported in the next one.
    for _ in 0..4 {
        if scope.is_execution_terminating() || !report_rejections(scope, entries, state) {
            break;
        }
        scope.perform_microtask_checkpoint();
    }
    let undefined = v8::undefined(scope);
    scope.set_continuation_preserved_embedder_data(undefined.into());
}

/// An exception that left an entry: a bug of ours or code of the user that runs without a promise.
fn report<'s>(
    scope: &mut v8::PinnedRef<'_, v8::TryCatch<'_, 's, v8::HandleScope<'_>>>,
    state: &RealmState,
) {
    if scope.has_terminated() || scope.is_execution_terminating() {
        return;
    }
    if let Some(thrown) = scope.exception() {
        scope.reset();
        let origin = state.origin(scope);
        let failure = failure(scope, thrown);
        state.push(HostCall::Uncaught { origin, failure });
    }
}

/// Reports what was rejected and has no handler; `false`: there was nothing.
fn report_rejections(scope: &mut PinScope, entries: &Entries, state: &RealmState) -> bool {
    let (pending, handled) = {
        let mut rejections = state.rejections.borrow_mut();
        if rejections.pending.is_empty() && rejections.handled.is_empty() {
            return false;
        }
        (std::mem::take(&mut rejections.pending), std::mem::take(&mut rejections.handled))
    };
    for rejection in pending {
        let promise = Local::new(scope, &rejection.promise);
        let reason = Local::new(scope, &rejection.reason);
        // The event `unhandledrejection`: its listener may say that all is well.
        let prevented = entries.has(Entry::UnhandledRejection) && {
            v8::tc_scope!(let scope, scope);
            let prevented =
                entries.call(scope, Entry::UnhandledRejection, &[promise.into(), reason]);
            prevented.is_some_and(|prevented| prevented.is_true())
        };
        if !prevented && !scope.is_execution_terminating() {
            let failure = failure(scope, reason);
            state.push(HostCall::Uncaught { origin: rejection.origin, failure });
        }
    }
    for promise in handled {
        if entries.has(Entry::RejectionHandled) {
            v8::tc_scope!(let scope, scope);
            let promise = Local::new(scope, &promise);
            let reason = promise.result(scope);
            entries.call(scope, Entry::RejectionHandled, &[promise.into(), reason]);
        }
    }
    true
}

/// One arm for each input. `None`: the entry threw.
fn deliver(scope: &mut PinScope, entries: &Entries, input: Input) -> Option<()> {
    match input {
        Input::Fetch { event, cell, request } => {
            let Request { is_rpc, method, url, headers, body, redirect: _, answer: _ } = request;
            if is_rpc {
                return deliver_rpc(scope, entries, event, cell, body);
            }
            let (kind, value, length) = body_values(scope, body)?;
            let arguments = [
                number(scope, event.0),
                optional(scope, cell.map(|cell| u64::from(cell.0))),
                convert::intern(scope, method.as_str()).into(),
                convert::string(scope, &url).into(),
                convert::packed_headers(scope, &headers),
                kind,
                value,
                length,
            ];
            entries.call(scope, Entry::Fetch, &arguments)
        }
        Input::Scheduled { event, cron, scheduled_time } => {
            let arguments = [
                number(scope, event.0),
                convert::string(scope, &cron).into(),
                v8::Number::new(scope, scheduled_time).into(),
            ];
            entries.call(scope, Entry::Scheduled, &arguments)
        }
        Input::Alarm { event, cell, scheduled_ms, retries } => {
            let state = RealmState::get(scope);
            let database = state.databases.borrow().get(&cell).cloned();
            if let Some(database) = database
                && let Err(error) = database.begin_alarm_run()
            {
                let result = Err(Failure::new("Error", error.to_string()));
                state.push(HostCall::AlarmEnded { event, cell, result });
                state.push(HostCall::Done { event });
                return Some(());
            }
            let arguments = [
                number(scope, event.0),
                number(scope, cell.0.into()),
                number(scope, scheduled_ms),
                number(scope, retries.into()),
            ];
            entries.call(scope, Entry::Alarm, &arguments)
        }
        Input::Socket { socket, event } => {
            let [kind, value, reason] = socket_values(scope, event)?;
            let arguments = [number(scope, socket.0), kind, value, reason];
            entries.call(scope, Entry::Socket, &arguments)
        }
        Input::CellSocket { event, cell, socket, happened } => {
            let [kind, value, reason] = socket_values(scope, happened)?;
            let arguments = [
                number(scope, event.0),
                number(scope, cell.0.into()),
                number(scope, socket.0),
                kind,
                value,
                reason,
            ];
            entries.call(scope, Entry::CellSocket, &arguments)
        }
        Input::OpenCell { event, cell, open } => {
            let state = RealmState::get(scope);
            state.databases.borrow_mut().insert(cell, open.database);
            state.sockets.borrow_mut().insert(cell, open.sockets);
            let name = match &open.name {
                Some(name) => convert::string(scope, name).into(),
                None => v8::undefined(scope).into(),
            };
            let arguments = [
                number(scope, event.0),
                number(scope, cell.0.into()),
                convert::string(scope, &open.class).into(),
                convert::string(scope, &open.id).into(),
                name,
                convert::string(scope, &open.namespace).into(),
            ];
            entries.call(scope, Entry::OpenCell, &arguments)
        }
        Input::CloseCell { cell } => {
            let state = RealmState::get(scope);
            state.databases.borrow_mut().remove(&cell);
            state.sockets.borrow_mut().remove(&cell);
            let arguments = [number(scope, cell.0.into())];
            entries.call(scope, Entry::CloseCell, &arguments)
        }
        Input::Answer { call, answer } => answer_call(scope, entries, call.0, answer),
        Input::Timer { timer } => {
            let arguments = [number(scope, timer.0)];
            entries.call(scope, Entry::Timer, &arguments)
        }
        Input::Pull { stream } => {
            let arguments = [number(scope, stream.0)];
            entries.call(scope, Entry::Pull, &arguments)
        }
        Input::Cancel { stream, reason } => {
            let arguments = [number(scope, stream.0), convert::string(scope, &reason).into()];
            entries.call(scope, Entry::Cancel, &arguments)
        }
        Input::Chunk { stream, chunk: Ok(chunk) } => {
            let chunk = match chunk {
                Some(bytes) => convert::uint8_array(scope, bytes)?.into(),
                None => v8::null(scope).into(),
            };
            let arguments = [number(scope, stream.0), chunk];
            entries.call(scope, Entry::Chunk, &arguments)
        }
        Input::Chunk { stream, chunk: Err(failure) } => {
            let arguments = failure_values(scope, stream.0, &failure);
            entries.call(scope, Entry::ChunkError, &arguments)
        }
        Input::Disconnected { event } => {
            let arguments = [number(scope, event.0)];
            entries.call(scope, Entry::Disconnected, &arguments)
        }
        Input::Forget { event } => {
            let arguments = [number(scope, event.0)];
            entries.call(scope, Entry::Forget, &arguments)
        }
    }?;
    Some(())
}

fn deliver_rpc(
    scope: &mut PinScope,
    entries: &Entries,
    event: EventId,
    cell: Option<CellSlot>,
    body: Body,
) -> Option<()> {
    let Body::Bytes(message) = body else { unreachable!("the message of a call comes whole") };
    match message_of(scope, &message) {
        Ok(message) => {
            let cell = optional(scope, cell.map(|cell| u64::from(cell.0)));
            let arguments = [number(scope, event.0), cell, message];
            entries.call(scope, Entry::Rpc, &arguments)?;
        }
        // Of another release, or damaged.
        Err(why) => {
            let state = RealmState::get(scope);
            state.push(HostCall::Respond { event, cell, response: Err(why) });
            state.push(HostCall::Done { event });
        }
    }
    Some(())
}

fn message_of<'s>(scope: &mut PinScope<'s, '_>, message: &[u8]) -> Result<Value<'s>, Failure> {
    v8::tc_scope!(let scope, scope);
    if let Some(value) = structured_clone::deserialize(scope, message)
        && value.is_array()
    {
        return Ok(value);
    }
    scope.reset();
    Err(Failure::new("Error", "The message of a call cannot be read."))
}

fn answer_call<'s>(
    scope: &mut PinScope<'s, '_>,
    entries: &Entries,
    call: u64,
    answer: Result<Answer, Failure>,
) -> Option<Local<'s, v8::Value>> {
    match answer {
        Ok(Answer::Response(response)) => {
            let Response {
                status,
                status_text,
                headers,
                body,
                url,
                redirected,
                encoding: _,
                web_socket,
            } = response;
            let headers = convert::without_empty_location(headers);
            let (kind, value, length) = body_values(scope, body)?;
            let arguments = [
                number(scope, call),
                number(scope, status.into()),
                convert::string(scope, &status_text).into(),
                convert::packed_headers(scope, &headers),
                kind,
                value,
                length,
                convert::string(scope, &url).into(),
                v8::Boolean::new(scope, redirected).into(),
                optional(scope, web_socket.map(|socket| socket.0)),
            ];
            entries.call(scope, Entry::AnswerResponse, &arguments)
        }
        Ok(Answer::Done) => {
            let arguments = [number(scope, call)];
            entries.call(scope, Entry::AnswerDone, &arguments)
        }
        Err(failure) => {
            let arguments = failure_values(scope, call, &failure);
            entries.call(scope, Entry::AnswerError, &arguments)
        }
    }
}

type Value<'s> = Local<'s, v8::Value>;

/// `(kind, value, reason)`: 0 a text, 1 bytes in an `ArrayBuffer`, 2 a Close with its code and
/// reason, 3 lost, 4 failed with a message.
fn socket_values<'s>(scope: &mut PinScope<'s, '_>, event: SocketEvent) -> Option<[Value<'s>; 3]> {
    let undefined: Value = v8::undefined(scope).into();
    let (kind, value, reason): (u32, Value, Value) = match event {
        SocketEvent::Message(SocketMessage::Text(text)) => {
            (0, convert::string(scope, &text).into(), undefined)
        }
        SocketEvent::Message(SocketMessage::Binary(bytes)) => {
            let buffer = convert::uint8_array(scope, bytes)?.buffer(scope)?;
            (1, buffer.into(), undefined)
        }
        SocketEvent::Message(SocketMessage::Close { code, reason }) => {
            (2, number(scope, code.into()), convert::string(scope, &reason).into())
        }
        SocketEvent::Lost => (3, undefined, undefined),
        SocketEvent::Failed(failure) => {
            (4, convert::string(scope, &failure.message).into(), undefined)
        }
    };
    Some([v8::Integer::new_from_unsigned(scope, kind).into(), value, reason])
}

/// `(id, name, message, stack, flags, thrown)`.
fn failure_values<'s>(scope: &mut PinScope<'s, '_>, id: u64, failure: &Failure) -> [Value<'s>; 6] {
    let id = number(scope, id);
    let [name, message, stack, flags, thrown] = failure_parts(scope, failure);
    [id, name, message, stack, flags, thrown]
}

/// Up to here a body of ASCII crosses as a string: that is what most scripts want of it, and an
/// `ArrayBuffer` costs three allocations and a finalizer.
const TEXT_MAX: usize = 4096;

/// `(kind, value, length)`; the length is -1 when it is not known.
fn body_values<'s>(
    scope: &mut PinScope<'s, '_>,
    body: Body,
) -> Option<(Value<'s>, Value<'s>, Value<'s>)> {
    let (kind, value, length): (u32, Value, i64) = match body {
        Body::Empty => (body_kind::EMPTY, v8::undefined(scope).into(), 0),
        Body::Bytes(bytes) => {
            let length = bytes.len() as i64;
            if bytes.len() <= TEXT_MAX && bytes.is_ascii() {
                (body_kind::STRING, convert::latin1(scope, &bytes).into(), length)
            } else {
                (body_kind::BYTES, convert::uint8_array(scope, bytes)?.into(), length)
            }
        }
        Body::Stream { id, length } => {
            (body_kind::STREAM, number(scope, id.0), length.map_or(-1, |length| length as i64))
        }
    };
    let kind = v8::Integer::new_from_unsigned(scope, kind).into();
    let length = v8::Number::new(scope, length as f64).into();
    Some((kind, value, length))
}

fn number<'s>(scope: &mut PinScope<'s, '_>, number: u64) -> Value<'s> {
    match u32::try_from(number) {
        Ok(small) => v8::Integer::new_from_unsigned(scope, small).into(),
        Err(_) => v8::Number::new(scope, number as f64).into(),
    }
}

fn optional<'s>(scope: &mut PinScope<'s, '_>, value: Option<u64>) -> Value<'s> {
    match value {
        Some(value) => number(scope, value),
        None => v8::undefined(scope).into(),
    }
}

unsafe extern "C" fn on_promise_reject(message: v8::PromiseRejectMessage) {
    v8::callback_scope!(unsafe scope, &message);
    let state = RealmState::get(scope);
    let promise = message.get_promise();
    match message.get_event() {
        v8::PromiseRejectEvent::PromiseRejectWithNoHandler => {
            let undefined = v8::undefined(scope).into();
            let reason = message.get_value().unwrap_or(undefined);
            let rejection = Rejection {
                origin: state.origin(scope),
                promise: Global::new(scope, promise),
                reason: Global::new(scope, reason),
            };
            state.rejections.borrow_mut().pending.push(rejection);
        }
        v8::PromiseRejectEvent::PromiseHandlerAddedAfterReject => {
            let promise = Global::new(scope, promise);
            let mut rejections = state.rejections.borrow_mut();
            let before = rejections.pending.len();
            rejections.pending.retain(|rejection| rejection.promise != promise);
            if rejections.pending.len() == before {
                rejections.handled.push(promise);
            }
        }
        v8::PromiseRejectEvent::PromiseRejectAfterResolved
        | v8::PromiseRejectEvent::PromiseResolveAfterResolved => {}
    }
}

unsafe extern "C" fn allow_wasm(context: Local<v8::Context>, _source: Local<v8::String>) -> bool {
    v8::callback_scope!(unsafe scope, context);
    RealmState::get(scope).modules.wasm_allowed.get()
}
