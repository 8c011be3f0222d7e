//! A realm: one isolate with one context that runs one version of one script.
//!
//! Invariant: inside of a method of [`Realm`] its isolate is the current one of the thread. It stays
//! so until another realm needs the thread ([`enter`]), as entering costs more than a small turn. A
//! realm lives and dies on the thread that made it.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::Arc;

use v8::{Global, Local, PinScope};

use crate::host::Failure;
use crate::limits::Limits;
use crate::memory::Memory;
use crate::script::{ModuleKind, Script};
use crate::state::{Names, RealmState};
use crate::turn::Entries;
use crate::watchdog::Slot;
use crate::{convert, errors, modules, snapshot, turn};

/// Why a script cannot be loaded. All of it is the script's own fault, and says so.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The main module is not among the modules, or has no JavaScript.
    #[error("the main module \"{0}\" is not a JavaScript module of the bundle")]
    NoMain(String),
    /// A syntax error, an unknown import, or an exception of the module's own code.
    #[error("{0}")]
    Threw(Failure),
    /// A top-level `await` that nothing can settle before the first event.
    #[error("top-level await did not settle: {0}")]
    Unsettled(String),
    /// Start-up used more CPU time than it may.
    #[error("script startup exceeded its CPU time limit")]
    CpuTimeExceeded,
    /// Start-up used more memory than it may.
    #[error("script startup exceeded its memory limit")]
    OutOfMemory,
}

/// One isolate with one context that runs one version of one [`Script`].
pub struct Realm {
    pub(crate) isolate: ManuallyDrop<v8::OwnedIsolate>,
    pub(crate) inside: ManuallyDrop<Inside>,
    pub(crate) state: Rc<RealmState>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) watchdog: Arc<Slot>,
    pub(crate) limits: Limits,
    /// The heap limit was met: no further turn.
    pub(crate) spent: bool,
}

/// Handles into the isolate: dropped before it.
pub(crate) struct Inside {
    pub context: Global<v8::Context>,
    pub entries: Entries,
    /// The array of the clock; its memory is in `clock`.
    pub clock: v8::SharedRef<v8::BackingStore>,
}

/// How full a realm is: the shard opens another one past half of the limit.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Bytes of live and dead objects on V8's heap.
    pub heap_bytes: usize,
    /// Bytes of all `ArrayBuffer`s.
    pub buffer_bytes: usize,
}

impl Realm {
    /// Loads the script: makes an isolate from the start-up snapshot, compiles and evaluates the
    /// module graph.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn new(script: &Arc<Script>, limits: Limits) -> Result<Realm, LoadError> {
        match script.module(&script.main) {
            Some((_, main)) if matches!(main.kind, ModuleKind::EsModule | ModuleKind::CommonJs) => {
            }
            _ => return Err(LoadError::NoMain(script.main.clone())),
        }
        let turn_cpu_max = script.turn_cpu_max.unwrap_or(limits.turn_cpu_max);
        let mut realm = Realm::empty(script, Limits { turn_cpu_max, ..limits });
        realm.load()?;
        Ok(realm)
    }

    /// A realm whose script has not been loaded.
    fn empty(script: &Arc<Script>, limits: Limits) -> Realm {
        let memory = Memory::new(limits);
        let params = v8::CreateParams::default()
            .snapshot_blob(snapshot::startup().into())
            .external_references(snapshot::references().into())
            .array_buffer_allocator(Memory::allocator(&memory))
            .heap_limits(0, limits.heap_bytes_max);
        let mut isolate = v8::Isolate::new(params);
        turn::configure(&mut isolate);
        if script.has_source_maps() {
            isolate.set_prepare_stack_trace_callback(crate::stack::prepare);
        }
        Memory::watch_heap(&memory, &mut isolate);
        let watchdog = Slot::register(isolate.thread_safe_handle());
        let (inside, state) = {
            v8::scope!(let scope, &mut isolate);
            let context = v8::Context::new(scope, v8::ContextOptions::default());
            let scope = &mut v8::ContextScope::new(scope, context);
            context.set_allow_generation_from_strings(false);
            let (entries, names, clock) = handles(scope, context);
            (
                Inside { context: Global::new(scope, context), entries, clock },
                Rc::new(RealmState::new(script.clone(), names)),
            )
        };
        isolate.set_slot(Rc::clone(&state));
        // SAFETY: `Isolate::new` has entered it on this thread.
        unsafe { isolate.exit() };
        Realm {
            isolate: ManuallyDrop::new(isolate),
            inside: ManuallyDrop::new(inside),
            state,
            memory,
            watchdog,
            limits,
            spent: false,
        }
    }

    fn load(&mut self) -> Result<(), LoadError> {
        self.watchdog.begin(self.limits.startup_cpu_max);
        enter(&self.isolate, &self.state);
        let loaded = {
            v8::scope!(let scope, &mut **self.isolate);
            let context = Local::new(scope, &self.inside.context);
            let scope = &mut v8::ContextScope::new(scope, context);
            evaluate(scope, &self.state)
        };
        self.state.starting.set(false);
        let ended = self.watchdog.end();
        self.memory.end_turn(&mut self.isolate, self.limits);
        if ended || self.memory.is_exceeded() {
            self.isolate.cancel_terminate_execution();
        }
        if self.memory.is_exceeded() {
            return Err(LoadError::OutOfMemory);
        }
        if ended {
            return Err(LoadError::CpuTimeExceeded);
        }
        loaded
    }

    /// The script that runs here.
    pub fn script(&self) -> &Arc<Script> {
        &self.state.script
    }

    /// Memory in use now. Costs about a microsecond.
    pub fn usage(&mut self) -> Usage {
        let heap = self.isolate.get_heap_statistics();
        Usage { heap_bytes: heap.used_heap_size(), buffer_bytes: self.memory.buffer_bytes() }
    }

    /// Collects all garbage: a few milliseconds for each ten megabytes that live.
    pub fn collect(&mut self) {
        enter(&self.isolate, &self.state);
        self.isolate.low_memory_notification();
    }

    /// Names of the exports of the main module that are classes or functions.
    pub fn exports(&mut self) -> Vec<String> {
        enter(&self.isolate, &self.state);
        v8::scope!(let scope, &mut **self.isolate);
        let context = Local::new(scope, &self.inside.context);
        let scope = &mut v8::ContextScope::new(scope, context);
        exports_of(scope, &self.state).unwrap_or_default()
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        // V8 wants it entered while it is disposed of, and leaves it itself.
        enter(&self.isolate, &self.state);
        ENTERED.set(None);
        self.state.clear();
        // SAFETY: neither field is used again. Handles go before their isolate.
        unsafe {
            ManuallyDrop::drop(&mut self.inside);
            ManuallyDrop::drop(&mut self.isolate);
        }
    }
}

thread_local! {
    /// The live realm whose isolate this thread has entered: its state, which tells it from others.
    static ENTERED: Cell<Option<(*const RealmState, v8::UnsafeRawIsolatePtr)>> =
        const { Cell::new(None) };
}

/// Makes the isolate of a realm the current one of this thread, if it is not.
pub(crate) fn enter(isolate: &v8::OwnedIsolate, state: &Rc<RealmState>) {
    let state = Rc::as_ptr(state);
    if let Some((entered, before)) = ENTERED.get() {
        if entered == state {
            return;
        }
        // SAFETY: its realm lives, as `drop` takes the pointer away; it was entered below.
        unsafe { v8::Isolate::ref_from_raw_isolate_ptr(&before).exit() };
    }
    // SAFETY: an isolate stays on the thread that made it (`Realm` is not `Send`).
    unsafe { isolate.enter() };
    // SAFETY: the pointer is kept only until the realm is dropped.
    ENTERED.set(Some((state, unsafe { isolate.as_raw_isolate_ptr() })));
}

/// What the runtime's object `rt` offers to the host.
///
/// # Panics
/// When our own JavaScript lacks what the host calls: a bug of ours that the first realm shows.
fn handles(
    scope: &mut PinScope,
    context: Local<v8::Context>,
) -> (Entries, Names, v8::SharedRef<v8::BackingStore>) {
    let _ = context;
    let rt = scope
        .get_context_data_from_snapshot_once::<v8::Object>(snapshot::RT)
        .expect("rt is in the snapshot");
    let entry = member::<v8::Object>(scope, rt, "entry").expect("rt.entry");
    let clock = member::<v8::Float64Array>(scope, rt, "clock").expect("rt.clock");
    let clock = clock.buffer(scope).expect("rt.clock has a buffer").get_backing_store();
    let import_then = member::<v8::Function>(scope, rt, "importThen").expect("rt.importThen");
    let dom_exception = member::<v8::Function>(scope, rt, "DOMException");
    let key = |name: &str| {
        let key = convert::intern(scope, name);
        Global::new(scope, key)
    };
    let names = Names {
        event: key("event"),
        cell: key("cell"),
        section: key("section"),
        rt: Global::new(scope, rt),
        import_then: Global::new(scope, import_then),
        dom_exception: dom_exception.map(|function| Global::new(scope, function)),
    };
    (Entries::new(scope, entry), names, clock)
}

/// `object[name]`, if it is a `T`.
pub(crate) fn member<'s, T>(
    scope: &mut PinScope<'s, '_>,
    object: Local<v8::Object>,
    name: &str,
) -> Option<Local<'s, T>>
where
    Local<'s, T>: TryFrom<Local<'s, v8::Value>>,
{
    let key = convert::intern(scope, name);
    Local::<T>::try_from(object.get(scope, key.into())?).ok()
}

/// Sets up `env`, then links and evaluates the main module.
fn evaluate(scope: &mut PinScope, state: &RealmState) -> Result<(), LoadError> {
    v8::tc_scope!(let scope, scope);
    match try_evaluate(scope, state) {
        Some(result) => result,
        None => {
            let failure = match scope.exception() {
                Some(thrown) if !scope.has_terminated() => errors::load_failure(scope, thrown),
                _ => Failure::new("Error", "execution was terminated"),
            };
            Err(LoadError::Threw(failure))
        }
    }
}

fn try_evaluate(scope: &mut PinScope, state: &RealmState) -> Option<Result<(), LoadError>> {
    turn::call_setup(scope, state)?;
    let module = modules::link(scope, &state.script.main)?;
    let evaluated = module.evaluate(scope)?;
    scope.perform_microtask_checkpoint();
    let evaluated = Local::<v8::Promise>::try_from(evaluated).ok()?;
    match evaluated.state() {
        v8::PromiseState::Fulfilled => {}
        v8::PromiseState::Rejected => {
            evaluated.mark_as_handled();
            let thrown = evaluated.result(scope);
            return Some(Err(LoadError::Threw(errors::load_failure(scope, thrown))));
        }
        v8::PromiseState::Pending => {
            return Some(Err(LoadError::Unsettled(stalled(scope, module))));
        }
    }
    let rt = Local::new(scope, &state.names.rt);
    let key = convert::intern(scope, "exports");
    rt.set(scope, key.into(), module.get_module_namespace())?;
    modules::keep_code_caches(scope, state);
    Some(Ok(()))
}

/// Where the await stands that does not settle.
fn stalled(scope: &mut PinScope, module: Local<v8::Module>) -> String {
    let messages = module.get_stalled_top_level_await_message(scope);
    let Some((_, message)) = messages.first() else { return "unknown place".to_owned() };
    let file = message.get_script_resource_name(scope);
    let file = file.and_then(|file| convert::to_string(scope, file)).unwrap_or_default();
    format!("{file}:{}", message.get_line_number(scope).unwrap_or_default())
}

fn exports_of(scope: &mut PinScope, state: &RealmState) -> Option<Vec<String>> {
    let rt = Local::new(scope, &state.names.rt);
    let exports = member::<v8::Object>(scope, rt, "exports")?;
    let keys = exports.get_own_property_names(scope, v8::GetPropertyNamesArgs::default())?;
    let mut names = Vec::new();
    for index in 0..keys.length() {
        let key = keys.get_index(scope, index)?;
        if exports.get(scope, key)?.is_function() {
            names.push(convert::to_string(scope, key)?);
        }
    }
    Some(names)
}
