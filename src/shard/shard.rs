//! One core of the machine: its realms, its cells, its connections.
//!
//! Invariant: nothing here is shared with another shard but the mesh, the node's authority and its
//! status.

use std::cell::{Cell as StdCell, OnceCell, RefCell};
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use celld_core::cell::CellId;
use celld_core::drain;
use celld_core::eviction::{self, Eviction};
use celld_core::follow;
use celld_core::ownership::Owner;
use celld_core::time::{Micros, Mono, Wall};
use celld_core::wake::sleepers::{SLEEPERS_MAX, Sleepers};
use celld_rt as rt;
use celld_rt::Signals;
use celld_s3::Bucket;
use celld_v8host::{Failure, LoadError, Realm, Script};
use rustc_hash::FxHashMap;

use crate::body::{Asked, Outcome, failure};
use crate::busy::Busy;
use crate::cell::Cell;
use crate::cell::alarm::Owed;
use crate::client::Client;
use crate::drain::Leaving;
use crate::flag::Flag;
use crate::fleet::Fleet;
use crate::fleet::members::Members;
use crate::follow::Course;
use crate::host::{Host, Reply};
use crate::identity::Identity;
use crate::outbound::Outbound;
use crate::router::Router;
use crate::scratch;
use crate::status::Status;

/// The monotonic clock, as the machines of `core` want it.
pub(crate) fn now() -> Mono {
    Mono::from_micros(rt::mono_us())
}

/// The clock of the world, as the machines of `core` want it.
pub(crate) fn wall() -> Wall {
    Wall::from_millis(rt::wall_ms())
}

/// 128 random bits.
///
/// # Panics
/// The system has no random source.
pub(crate) fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    u128::from_le_bytes(bytes)
}

/// The node's right to act, as its shards see it: the lease writes it, every turn reads it.
#[derive(Default)]
pub struct Authority(AtomicU64);

impl Authority {
    /// The right lasts until then; an instant that has passed: it is over.
    pub(crate) fn lasts(&self, until: Mono) {
        self.0.store(until.as_micros(), Ordering::Release);
    }

    /// Whether this node may still act as the owner of its cells.
    pub(crate) fn is_held(&self) -> bool {
        rt::mono_us() < self.0.load(Ordering::Acquire)
    }
}

/// What all shards of a node have in common.
pub(crate) struct NodeFacts {
    pub me: Owner,
    pub shards: usize,
    pub state: std::path::PathBuf,
    /// For how long commits may wait without progress of their proof, or of the entry of an alarm.
    pub patience: Micros,
    /// What a drain may take.
    pub drain_limit: Duration,
    pub identity: Identity,
    /// What a write of a lease grants.
    pub ttl: Micros,
    pub cells_per_isolate: usize,
    pub eviction: eviction::Limits,
    pub limits: celld_v8host::Limits,
    pub log_requests: bool,
    pub is_dev: bool,
    /// Through which an operator begins a drain.
    pub signals: Signals,
    /// For whoever measures the disk of the state directory.
    pub scratch: scratch::Kept,
}

/// One shard.
pub(crate) struct Shard {
    pub index: usize,
    pub facts: Arc<NodeFacts>,
    pub bucket: Bucket,
    pub authority: Arc<Authority>,
    pub status: Arc<Status>,
    pub draining: Flag,
    pub leaving: Leaving,
    /// Connections that still have a request are cut.
    pub cutting: Flag,
    /// Connections that speak WebSocket are closed.
    pub closing: Flag,
    /// Connections that speak WebSocket.
    pub wires: StdCell<usize>,
    pub compactions: StdCell<usize>,
    /// When garbage was collected last, to make room.
    pub collected: StdCell<Mono>,
    pub router: Router,
    outbound: Outbound,
    script: RefCell<Option<Arc<Script>>>,
    hosts: RefCell<Vec<Rc<Host>>>,
    cells: RefCell<FxHashMap<CellId, Rc<Cell>>>,
    by_key: RefCell<FxHashMap<u64, Rc<Cell>>>,
    next_key: StdCell<u64>,
    /// Numbers the calls of other nodes.
    next_asker: StdCell<u64>,
    eviction: RefCell<Eviction<u64>>,
    pub sleepers: RefCell<Sleepers<CellId>>,
    /// Of cells that were reset while their alarm ran.
    pub owed: RefCell<FxHashMap<CellId, Owed>>,
    /// The leases of other nodes.
    pub members: Arc<Members>,
    /// How they are reached; `None`: not yet, or this node is alone.
    pub fleet: OnceCell<Fleet>,
}

impl Shard {
    pub fn new(
        index: usize,
        facts: Arc<NodeFacts>,
        bucket: Bucket,
        authority: Arc<Authority>,
        status: Arc<Status>,
        router: Router,
        members: Arc<Members>,
    ) -> Rc<Self> {
        Rc::new(Self {
            index,
            bucket,
            authority,
            status,
            draining: Flag::default(),
            leaving: Leaving::new(facts.drain_limit, facts.shards),
            cutting: Flag::default(),
            closing: Flag::default(),
            wires: StdCell::new(0),
            compactions: StdCell::new(0),
            collected: StdCell::new(Mono::default()),
            router,
            outbound: Outbound::new(),
            script: RefCell::new(None),
            hosts: RefCell::default(),
            cells: RefCell::default(),
            by_key: RefCell::default(),
            next_key: StdCell::new(0),
            next_asker: StdCell::new(0),
            eviction: RefCell::new(Eviction::new(facts.eviction)),
            sleepers: RefCell::new(Sleepers::new(SLEEPERS_MAX)),
            owed: RefCell::default(),
            members,
            fleet: OnceCell::new(),
            facts,
        })
    }

    /// Runs the Worker's `fetch`. Dropping the future tells the Worker that its client has gone.
    /// `course` learns which cells it asks.
    pub async fn fetch_worker(self: &Rc<Self>, asked: Asked, course: Rc<Course>) -> Outcome {
        let Some(host) = self.current_host() else {
            return Err(Failure { retryable: true, ..failure("Error", self.nothing_serves()) });
        };
        let (sender, receiver) = rt::oneshot::channel();
        let event = host.start_fetch(None, asked, Reply::Task(sender), Some(course));
        let client = Client::new(host, event);
        let outcome = receiver.await;
        client
            .watch(outcome.unwrap_or_else(|_| Err(failure("Error", "the Worker gave no response"))))
    }

    /// Runs the Worker's `scheduled`.
    pub async fn run_scheduled(self: &Rc<Self>, cron: String, time_ms: f64) -> Outcome {
        let Some(host) = self.current_host() else {
            return Err(failure("Error", self.nothing_serves()));
        };
        let (sender, receiver) = rt::oneshot::channel();
        host.start_scheduled(cron, time_ms, Reply::Task(sender));
        receiver.await.unwrap_or_else(|_| Err(failure("Error", "the Worker gave no result")))
    }

    /// Why there is no answer, and where the reader finds out more.
    fn nothing_serves(&self) -> &'static str {
        if self.facts.is_dev {
            "the Worker could not be loaded: the output of `celld dev` says why"
        } else {
            "no deployment is loaded yet: run `celld deploy`, or read at \
             /.well-known/celld/health why the last one was refused"
        }
    }

    /// A number that no other call of another node has here.
    pub fn number_asker(&self) -> u64 {
        let number = self.next_asker.get();
        self.next_asker.set(number + 1);
        number
    }

    /// A cell of this shard, which enters the table if it is not there.
    pub fn cell(self: &Rc<Self>, id: CellId, class: &str) -> Rc<Cell> {
        let known = self.cells.borrow().get(&id).cloned();
        known.unwrap_or_else(|| {
            let key = self.next_key.get();
            self.next_key.set(key + 1);
            let cell = Cell::new(self, id.clone(), key, class.to_owned());
            self.cells.borrow_mut().insert(id, cell.clone());
            self.by_key.borrow_mut().insert(key, cell.clone());
            self.tell_cells();
            cell
        })
    }

    /// A cell that nobody has called: its class is the one that the script binds to its namespace.
    pub fn uncalled_cell(self: &Rc<Self>, id: &CellId) -> Option<Rc<Cell>> {
        let class = {
            let script = self.script.borrow();
            let bindings = &script.as_ref()?.durable_objects;
            bindings.iter().find(|binding| binding.namespace == id.namespace())?.class.clone()
        };
        Some(self.cell(id.clone(), &class))
    }

    /// A cell that is in the table: in memory, on its way there or back, or kept for its sockets.
    pub fn known_cell(&self, id: &CellId) -> Option<Rc<Cell>> {
        self.cells.borrow().get(id).cloned()
    }

    /// The first cells of the table behind `after`, in their order, `limit` at most.
    pub fn first_cells(&self, after: Option<&CellId>, limit: usize) -> Vec<Rc<Cell>> {
        let cells = self.cells.borrow();
        // The largest on top, so that it makes room for a smaller one.
        let mut first = BinaryHeap::new();
        for id in cells.keys().filter(|id| after.is_none_or(|after| *id > after)) {
            if first.len() == limit {
                match first.peek() {
                    Some(largest) if id < *largest => first.pop(),
                    Some(_) | None => continue,
                };
            }
            first.push(id);
        }
        first.into_sorted_vec().into_iter().map(|id| cells[id].clone()).collect()
    }

    /// The cell of the table that has this key.
    pub fn cell_of(&self, key: u64) -> Option<Rc<Cell>> {
        self.by_key.borrow().get(&key).cloned()
    }

    /// All of them, as they are now.
    pub fn all_cells(&self) -> Vec<Rc<Cell>> {
        self.cells.borrow().values().cloned().collect()
    }

    /// A cell with nothing in memory leaves the table.
    pub fn forget_cell(self: &Rc<Self>, cell: &Rc<Cell>) {
        {
            let mut cells = self.cells.borrow_mut();
            // Another one may have its place by now.
            if cells.get(&cell.id).is_some_and(|known| Rc::ptr_eq(known, cell)) {
                cells.remove(&cell.id);
            }
        }
        self.tell_cells();
        if self.by_key.borrow_mut().remove(&cell.key).is_some() {
            self.eviction_event(eviction::Event::Gone(cell.key));
            self.drain_event(|| drain::Event::Gone(cell.key));
        }
    }

    /// The node's load is what its shards have in memory.
    fn tell_cells(&self) {
        self.status.has_cells(self.index, self.cells.borrow().len());
    }

    /// The global `fetch`.
    pub async fn fetch_out(&self, asked: Asked) -> Outcome {
        self.outbound.fetch(asked).await
    }

    /// The global `fetch`, for a WebSocket.
    pub async fn open_socket(&self, asked: Asked) -> Outcome {
        self.outbound.open_socket(asked).await
    }

    /// The realms that take new events.
    pub fn all_hosts(&self) -> Vec<Rc<Host>> {
        self.hosts.borrow().clone()
    }

    /// The realm that takes new events of the Worker.
    fn current_host(&self) -> Option<Rc<Host>> {
        self.hosts.borrow().iter().find(|host| !host.retired.get()).cloned()
    }

    /// The realm that takes the next cell: the first with room. A new one opens when all are full.
    pub fn host_for_cell(self: &Rc<Self>) -> Option<Rc<Host>> {
        let room = |host: &&Rc<Host>| {
            !host.retired.get()
                && host.cell_count() < self.facts.cells_per_isolate
                && host.has_memory(self.facts.limits.heap_bytes_max / 2)
        };
        let found = self.hosts.borrow().iter().find(room).cloned();
        if found.is_some() {
            return found;
        }
        let script = self.script.borrow().clone()?;
        match Realm::new(&script, self.facts.limits) {
            Ok(realm) => {
                let host = Host::new(self, realm, script);
                self.hosts.borrow_mut().push(host.clone());
                Some(host)
            }
            Err(error) => {
                // It loaded before; what remains is memory. The fullest realm must do.
                rt::log!("celld: no further isolate: {error}");
                self.current_host()
            }
        }
    }

    /// A realm that cannot go on makes room for a fresh one of the same script.
    pub fn replace_host(self: &Rc<Self>, broken: &Rc<Host>) {
        self.hosts.borrow_mut().retain(|host| !Rc::ptr_eq(host, broken));
        if self.current_host().is_none() {
            let opened = self.host_for_cell();
            if opened.is_none() {
                rt::log!("celld: shard {}: no isolate is left", self.index);
            }
        }
    }

    /// Loads a new version. Requests that run finish on the old one; cells move when they are idle.
    ///
    /// # Errors
    /// The script does not load: the old version goes on serving.
    pub fn adopt(self: &Rc<Self>, script: &Arc<Script>) -> Result<(), LoadError> {
        let realm = Realm::new(script, self.facts.limits)?;
        let host = Host::new(self, realm, script.clone());
        let old = std::mem::replace(&mut *self.hosts.borrow_mut(), vec![host]);
        *self.script.borrow_mut() = Some(script.clone());
        for host in &old {
            host.retired.set(true);
        }
        for cell in self.all_cells() {
            cell.outdate();
        }
        if !old.is_empty() {
            let shard = self.clone();
            rt::spawn(async move {
                rt::sleep(UPDATE_LIMIT).await;
                drop(old);
                for cell in shard.all_cells() {
                    cell.stop_waiting_to_update();
                }
            });
        }
        Ok(())
    }

    /// Tells eviction something, and evicts whom it names.
    pub fn eviction_event(&self, event: eviction::Event<u64>) {
        let mut effects = Vec::new();
        // Whoever is to go because of others goes, also if it was used a moment ago. Where a cell
        // wants a place, those that were used are passed over once.
        let must_go = matches!(event, eviction::Event::Shed(_));
        self.eviction.borrow_mut().on_event(now(), event, &mut effects);
        while let Some(effect) = effects.pop() {
            match effect {
                eviction::Effect::Evict(key) => {
                    let cell = self.cell_of(key);
                    if let Some(stays) = cell.and_then(|cell| cell.evict_if_unused(must_go)) {
                        self.eviction.borrow_mut().on_event(now(), stays, &mut effects);
                    }
                }
                // `tick` fires the timer often enough.
                eviction::Effect::SetTimer(_) => {}
            }
        }
    }

    /// Whether eviction has found room for all cells.
    pub fn has_room(&self) -> bool {
        self.eviction.borrow().has_room()
    }

    /// Evicts what is due, twice a second, for as long as the shard lives.
    pub async fn tick(self: Rc<Self>) {
        let (mut ticks, mut busy) = (0_u64, Busy::default());
        loop {
            rt::sleep(Duration::from_millis(500)).await;
            ticks += 1;
            rt::guard(|| self.look_around(ticks, &mut busy));
        }
    }

    fn look_around(self: &Rc<Self>, ticks: u64, busy: &mut Busy) {
        let at_us = rt::mono_us();
        self.status.is_busy(self.index, busy.sample(at_us, rt::busy_us()), at_us);
        self.status.has_welcome(self.index, busy.latest().map_or(0, follow::welcome));
        if ticks.is_multiple_of(TICKS_PER_WEIGHING) {
            self.make_room();
        }
        self.close_sockets_if_stopping();
        if let Some(fleet) = self.fleet.get() {
            fleet.cut_dead();
            if ticks.is_multiple_of(TICKS_PER_SURPLUS) && !self.draining.is_raised() {
                self.give_away(fleet);
            }
        }
        self.eviction_event(eviction::Event::TimerFired);
    }

    /// Puts idle cells to rest that other nodes have more room for: their next requests place them
    /// anew.
    fn give_away(&self, fleet: &Fleet) {
        let surplus = fleet.members.surplus(&self.facts.me.node, self.status.load());
        if surplus > 0 {
            let share = surplus.div_ceil(self.facts.shards);
            self.eviction_event(eviction::Event::Shed(share));
        }
    }
}

/// Each second: what is collected and put to rest has left memory by then.
const TICKS_PER_WEIGHING: u64 = 2;

/// Every four seconds: leases tell the loads of others a few times within their life.
const TICKS_PER_SURPLUS: u64 = 8;

/// How long events of the old code may run after a new version was adopted.
const UPDATE_LIMIT: Duration = Duration::from_secs(30);
