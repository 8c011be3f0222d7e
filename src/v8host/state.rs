//! What native functions can reach of their realm.
//!
//! Invariant: borrows of the cells here never last across a call into V8, as V8 may run JavaScript
//! that calls the next native function.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use v8::{Global, Local, PinScope};

use crate::convert;
use crate::host::{CallId, CellSlot, EventId, HostCall, Origin, SectionId, StreamId, TimerId};
use crate::modules::ModuleMap;
use crate::script::Script;
use crate::sockets::Sockets;
use crate::storage::Database;

/// The state of one realm, reached from native functions with [`RealmState::get`].
pub struct RealmState {
    /// Host calls of the turn under way, in order.
    pub calls: RefCell<Vec<HostCall>>,
    /// Cells that wrote to their database in this turn, each once.
    pub wrote: RefCell<Vec<CellSlot>>,
    /// The code that runs here.
    pub script: Arc<Script>,
    /// Databases of the cells that live here.
    pub databases: RefCell<BTreeMap<CellSlot, Rc<Database>>>,
    /// Hibernatable WebSockets of the cells that live here.
    pub sockets: RefCell<BTreeMap<CellSlot, Rc<Sockets>>>,
    /// Bytes that this turn has sent on WebSockets.
    pub(crate) socket_bytes: Cell<usize>,
    pub(crate) modules: ModuleMap,
    pub(crate) names: Names,
    pub(crate) rejections: RefCell<Rejections>,
    /// The module graph is being evaluated: no I/O.
    pub(crate) starting: Cell<bool>,
    next_call: Cell<u64>,
    next_stream: Cell<u64>,
    next_timer: Cell<u64>,
    next_section: Cell<u64>,
    extensions: RefCell<HashMap<TypeId, Rc<dyn Any>>>,
}

/// Property names and functions that Rust uses often.
pub(crate) struct Names {
    pub event: Global<v8::String>,
    pub cell: Global<v8::String>,
    pub section: Global<v8::String>,
    pub rt: Global<v8::Object>,
    pub import_then: Global<v8::Function>,
    pub dom_exception: Option<Global<v8::Function>>,
}

/// Rejections that nobody has handled so far.
#[derive(Default)]
pub(crate) struct Rejections {
    /// Rejected in this turn; reported at its end unless a handler comes before.
    pub pending: Vec<Rejection>,
    /// Reported, and then handled: `rejectionhandled`.
    pub handled: Vec<Global<v8::Promise>>,
}

/// One rejected promise without a handler.
pub(crate) struct Rejection {
    pub promise: Global<v8::Promise>,
    pub reason: Global<v8::Value>,
    pub origin: Option<Origin>,
}

impl RealmState {
    pub(crate) fn new(script: Arc<Script>, names: Names) -> Self {
        Self {
            calls: RefCell::default(),
            wrote: RefCell::default(),
            script,
            databases: RefCell::default(),
            sockets: RefCell::default(),
            socket_bytes: Cell::new(0),
            modules: ModuleMap::default(),
            names,
            rejections: RefCell::default(),
            starting: Cell::new(true),
            next_call: Cell::new(0),
            next_stream: Cell::new(0),
            next_timer: Cell::new(0),
            next_section: Cell::new(0),
            extensions: RefCell::default(),
        }
    }

    /// Drops what holds handles, before the isolate goes.
    pub(crate) fn clear(&self) {
        self.modules.clear();
        self.rejections.take();
        self.extensions.take();
        self.databases.take();
        self.sockets.take();
    }

    /// The state of the realm that `scope` runs in.
    ///
    /// # Panics
    /// In an isolate that is no realm (the one that makes the snapshot): no native function may be
    /// called while our own JavaScript is loaded, except those that need no state.
    pub fn get(scope: &v8::Isolate) -> Rc<RealmState> {
        scope.get_slot::<Rc<RealmState>>().expect("an isolate with a realm").clone()
    }

    /// Adds a host call to this turn.
    pub fn push(&self, call: HostCall) {
        self.calls.borrow_mut().push(call);
    }

    /// Marks that `cell` wrote to its database in this turn.
    pub fn mark_written(&self, cell: CellSlot) {
        let mut wrote = self.wrote.borrow_mut();
        if !wrote.contains(&cell) {
            wrote.push(cell);
        }
    }

    /// A new call id.
    pub fn next_call(&self) -> CallId {
        CallId(next(&self.next_call, 1))
    }

    /// A new stream id of ours: odd.
    pub fn next_stream(&self) -> StreamId {
        StreamId(next(&self.next_stream, 2) - 1)
    }

    /// A new timer id.
    pub fn next_timer(&self) -> TimerId {
        TimerId(next(&self.next_timer, 1))
    }

    /// A new section id.
    pub fn next_section(&self) -> SectionId {
        SectionId(next(&self.next_section, 1))
    }

    /// State of one API: made on first use, one of each type in a realm.
    ///
    /// # Panics
    /// Never: the map holds each type under its own id.
    pub fn of<T: Default + 'static>(&self) -> Rc<T> {
        let found = self.extensions.borrow().get(&TypeId::of::<T>()).cloned();
        let any = found.unwrap_or_else(|| {
            let made: Rc<dyn Any> = Rc::new(T::default());
            self.extensions.borrow_mut().insert(TypeId::of::<T>(), Rc::clone(&made));
            made
        });
        any.downcast::<T>().expect("keyed by its own type")
    }

    /// The origin of what runs now, or `None` in the global scope.
    pub fn origin(&self, scope: &mut PinScope) -> Option<Origin> {
        let frame = scope.get_continuation_preserved_embedder_data();
        let frame = Local::<v8::Object>::try_from(frame).ok()?;
        let event = self.number(scope, frame, &self.names.event)?;
        let cell = self.number(scope, frame, &self.names.cell);
        // Only cells have sections.
        let section = cell.and_then(|_| self.number(scope, frame, &self.names.section));
        Some(Origin {
            event: EventId(event as u64),
            cell: cell.map(|cell| CellSlot(cell as u32)),
            section: section.map(|section| SectionId(section as u64)),
        })
    }

    /// The cell whose code runs now.
    pub fn cell(&self, scope: &mut PinScope) -> Option<CellSlot> {
        let frame = scope.get_continuation_preserved_embedder_data();
        let frame = Local::<v8::Object>::try_from(frame).ok()?;
        self.number(scope, frame, &self.names.cell).map(|cell| CellSlot(cell as u32))
    }

    fn number(
        &self,
        scope: &mut PinScope,
        frame: Local<v8::Object>,
        key: &Global<v8::String>,
    ) -> Option<f64> {
        let key = Local::new(scope, key);
        let value = frame.get(scope, key.into())?;
        Local::<v8::Number>::try_from(value).ok().map(|number| number.value())
    }

    /// The origin of what runs now; throws and returns `None` in the global scope, where I/O is
    /// not allowed.
    pub fn io_origin(&self, scope: &mut PinScope) -> Option<Origin> {
        let origin = self.origin(scope);
        if origin.is_none() {
            convert::throw_error(scope, GLOBAL_SCOPE);
        }
        origin
    }
}

/// workerd's words.
pub(crate) const GLOBAL_SCOPE: &str = "Disallowed operation called within global scope. Asynchronous I/O \
(ex: fetch() or connect()), setting a timeout, and generating random values are not allowed within global \
scope. To fix this error, perform this operation within a handler.";

fn next(counter: &Cell<u64>, step: u64) -> u64 {
    let next = counter.get() + step;
    counter.set(next);
    next
}
