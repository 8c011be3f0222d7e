//! One process of the simulation: the real machines of one session, and the loop that feeds them.
//! It is also where the protocol can be broken on purpose, so that the checker must notice.

mod claiming;
mod fleet;
mod leasing;
mod ordered;
mod routing;
mod serving;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::rc::Rc;

use celld_core::alarm::{self, Alarm};
use celld_core::cas::Etag;
use celld_core::cell::CellId;
use celld_core::claim::{self, Claim};
use celld_core::drain::Drain;
use celld_core::gate::Gate;
use celld_core::lease::{self, Lease, Watch};
use celld_core::node::{DiskId, NodeId, SessionId};
use celld_core::ownership::{Owner, Record};
use celld_core::proof::{self, Proof};
use celld_core::route::Routes;
use celld_core::time::{Micros, Mono, Wall};
use celld_core::wake::cover::{self, Cover};
use celld_core::wake::scan::{self, Scan};
use celld_core::wake::sleepers::{self, Sleepers};

use super::TTL;
use super::border::{Commit, Input, Op, Order, Tag, When, Who, Wish};
use super::broken::Broken;
use super::bucket::{Answer, Request};
use super::clock::Clock;

/// The patience of proofs and entries: short, so that cells are reset while their uploads are
/// under way.
const PATIENCE: Micros = Micros::from_secs(5);

/// How long a request looks for an owner.
const SEARCH: Micros = Micros::from_secs(15);

/// What a process is from its start.
pub struct Birth {
    /// Its number in the simulation.
    pub index: usize,
    pub owner: Owner,
    pub disk: DiskId,
    /// Earlier sessions on its state directory.
    pub ended: Vec<SessionId>,
    pub clock: Clock,
    pub ids: Rc<[CellId]>,
    pub broken: Broken,
}

pub struct Process {
    pub birth: Birth,
    pub is_alive: bool,
    pub paused_until: u64,
    /// This input's instant, by the clocks of this process and by the true one.
    now: Mono,
    wall: Wall,
    true_now: u64,
    wishes: Vec<Wish>,
    lease: Lease,
    /// Of the broken leases: until when it takes itself for an owner.
    believes: Option<Mono>,
    watch: Watch,
    routes: Routes<usize>,
    scan: Scan,
    rank: usize,
    sleepers: Sleepers<usize>,
    drain: Drain<usize>,
    /// Cells of which the drain was told, and whether that they are idle.
    told: BTreeMap<usize, bool>,
    cells: BTreeMap<usize, Cell>,
    /// Ops that entered here and are not answered: with another process, or to be tried again.
    calls: BTreeMap<u64, Op>,
    retries: BTreeMap<u64, Op>,
    /// Clients' ops that are not answered.
    entered: BTreeSet<u64>,
    /// Records that this session wrote and left behind: of the broken local wake.
    left: BTreeMap<usize, (Record, Etag)>,
    /// Numbers activations, calls and commits.
    count: u64,
}

struct Cell {
    activation: u64,
    waiting: VecDeque<Op>,
    phase: Phase,
}

enum Phase {
    Claiming(Box<Claiming>),
    Serving(Box<Serving>),
    /// It is released, and another node is to have it. What comes waits.
    Moving,
}

struct Claiming {
    claim: Claim,
    is_purge: bool,
    history: Vec<Commit>,
    /// Of the broken claims: what was read and written last.
    read: Option<(Record, Etag)>,
    wrote: Option<Record>,
}

struct Serving {
    record: Record,
    etag: Etag,
    history: Vec<Commit>,
    proof: Proof,
    cover: Cover,
    alarm: Alarm,
    gate: Gate<Ack>,
    holds: u64,
    /// Of the broken proof: what its early read said.
    early: Option<bool>,
}

struct Ack {
    order: u64,
    op: Op,
    seen: usize,
}

impl Process {
    pub fn new(birth: Birth) -> Self {
        Self {
            birth,
            is_alive: true,
            paused_until: 0,
            now: Mono::default(),
            wall: Wall::default(),
            true_now: 0,
            wishes: vec![],
            lease: Lease::new(TTL),
            believes: None,
            watch: Watch::new(TTL),
            routes: Routes::new(8),
            scan: Scan::default(),
            rank: usize::MAX,
            sleepers: Sleepers::new(4),
            drain: Drain::new(celld_core::drain::Limits {
                handovers_max: 3,
                ..celld_core::drain::Limits::default()
            }),
            told: BTreeMap::new(),
            cells: BTreeMap::new(),
            calls: BTreeMap::new(),
            retries: BTreeMap::new(),
            entered: BTreeSet::new(),
            left: BTreeMap::new(),
            count: 0,
        }
    }
    pub fn node(&self) -> &NodeId {
        &self.birth.owner.node
    }
    pub fn session(&self) -> &SessionId {
        &self.birth.owner.session
    }
    /// Whether it does something, now or later.
    pub fn is_well(&self) -> bool {
        self.is_alive && self.paused_until < u64::MAX
    }
    fn is(&self, broken: Broken) -> bool {
        self.birth.broken == broken
    }
    /// A number that no other call, commit or activation of the simulation has.
    fn number(&mut self) -> u64 {
        self.count += 1;
        ((self.birth.index as u64 + 1) << 32) | self.count
    }
    /// A random seed, as good as any.
    fn seed(&mut self) -> u128 {
        u128::from(self.number()) << 32
    }
    /// One event, and all that follows from it at once.
    pub fn on_input(&mut self, now: u64, input: Input) -> Vec<Wish> {
        self.true_now = now;
        self.now = self.birth.clock.mono(now);
        self.wall = self.birth.clock.wall(now);
        // Authority is checked before everything else: a process that stood still wakes up here.
        let is_over = self.lease.until().is_some_and(|until| self.now >= until);
        if is_over || self.lease.loss().is_some() {
            self.tell_lease(lease::Event::TimerFired);
        }
        if self.lease.loss().is_none() || self.is_held() {
            self.take(input);
        }
        // The lease is given up in the same instant: then nothing comes back.
        if !self.drain.is_serving() && !self.drain.is_retiring() {
            self.tell_drain_of_cells();
        }
        mem::take(&mut self.wishes)
    }
    fn take(&mut self, input: Input) {
        match input {
            Input::Started => {
                self.tell_lease(lease::Event::Started);
                self.wishes.push(Wish::Timer(Who::Poll, self.now));
            }
            Input::Timer(who) => self.timer(who),
            Input::Answer(tag, answer) => self.answered(tag, answer),
            Input::Op(op) => {
                self.entered.insert(op.id);
                self.enter(Op { since: self.now, ..op });
            }
            Input::Called(op) => self.enter(Op { since: self.now, ..op }),
            Input::CallEnded(call, result) => self.call_ended(call, result),
            Input::Order(cell, order) => self.order(cell, order),
            Input::Handler { cell, activation, scheduled, sets, end } => {
                if self.is_at(cell, activation) {
                    self.handler(cell, scheduled, sets, end);
                }
            }
            Input::Drain => self.start_drain(),
        }
    }
    fn timer(&mut self, who: Who) {
        match who {
            Who::Lease => self.tell_lease(lease::Event::TimerFired),
            Who::Poll => self.poll(),
            Who::Scan => self.tell_scan(scan::Event::TimerFired),
            Who::Sleepers => self.tell_sleepers(sleepers::Event::TimerFired),
            Who::Drain => self.tell_drain(celld_core::drain::Event::TimerFired),
            Who::Op(id) => {
                if let Some(op) = self.retries.remove(&id) {
                    self.enter(op);
                }
            }
            Who::Claim(cell, of)
            | Who::Proof(cell, of)
            | Who::Cover(cell, of)
            | Who::Alarm(cell, of)
                if !self.is_at(cell, of) => {}
            Who::Claim(cell, _) => self.tell_claim(cell, claim::Event::TimerFired),
            Who::Proof(cell, _) => self.tell_proof(cell, proof::Event::TimerFired),
            Who::Cover(cell, _) => {
                self.tell_cover(cell, cover::Event::TimerFired);
            }
            Who::Alarm(cell, _) => self.tell_alarm(cell, alarm::Event::TimerFired),
        }
    }
    /// Whether this activation still is the one in memory.
    fn is_at(&self, cell: usize, activation: u64) -> bool {
        self.cells.get(&cell).is_some_and(|cell| cell.activation == activation)
    }
    /// The bucket has answered, or nobody has.
    fn answered(&mut self, tag: Tag, answer: Answer) {
        match tag {
            Tag::Nobody => {}
            Tag::LeaseWrite => self.lease_written(answer),
            Tag::LeaseRead(begun) => self.lease_read(begun, answer),
            Tag::Members => self.members_listed(answer),
            Tag::Member(node, begun) => {
                self.saw(&node, begun, answer);
                self.look_around();
            }
            Tag::Index => self.tell_scan(match answer {
                Answer::Entries(page) => scan::Event::Listed(page),
                _ => scan::Event::ListFailed,
            }),
            Tag::Owner(cell, of)
            | Tag::OwnerLease(cell, of, ..)
            | Tag::Claim(cell, of)
            | Tag::Restore(cell, of)
            | Tag::Moved(cell, of, _)
            | Tag::Upload(cell, of, _)
            | Tag::Proof(cell, of, _)
            | Tag::Early(cell, of)
            | Tag::Entry(cell, of, _)
                if !self.is_at(cell, of) => {}
            Tag::Owner(cell, _) | Tag::Claim(cell, _) => self.claim_answered(cell, answer),
            Tag::OwnerLease(cell, _, owner, begun) => {
                self.owner_lease_read(cell, &owner, begun, answer);
            }
            Tag::Restore(cell, _) => self.restored(cell, answer),
            Tag::Moved(cell, _, to) => self.moves(cell, to, &answer),
            Tag::Upload(cell, _, max) => self.uploaded(cell, max, &answer),
            Tag::Early(cell, _) => self.read_early(cell, answer),
            Tag::Proof(cell, _, asked) => self.owner_read(cell, asked, answer),
            Tag::Entry(cell, _, number) => {
                let event = match answer {
                    Answer::Done => cover::Event::Written(number),
                    _ => cover::Event::WriteFailed(number),
                };
                self.tell_cover(cell, event);
            }
        }
    }
    fn request(&mut self, tag: Tag, request: Request) {
        self.wishes.push(Wish::Request(tag, request));
    }
    fn set_timer(&mut self, who: Who, at: Mono) {
        self.wishes.push(Wish::Timer(who, at));
    }
    fn at(&self, when: When) -> Wall {
        match when {
            When::In(ms) => Wall::from_millis(self.wall.as_millis() + ms),
            When::At(wall) => wall,
        }
    }
    /// The shard wants something of a cell.
    fn order(&mut self, cell: usize, order: Order) {
        if !self.is_held() {
            return;
        }
        match (order, self.cells.get(&cell).map(|cell| &cell.phase)) {
            (Order::Purge, _) => self.purge(cell),
            (Order::Release | Order::Evict | Order::Move(_) | Order::Reset, None)
            | (
                Order::Release | Order::Evict | Order::Move(_),
                Some(Phase::Claiming(_) | Phase::Moving),
            ) => {}
            (Order::Reset, Some(_)) => self.reset(cell),
            (Order::Move(to), Some(Phase::Serving(_))) => self.give(cell, to),
            (Order::Release, Some(Phase::Serving(_))) => {
                self.release(cell);
            }
            (Order::Evict, Some(Phase::Serving(_))) => self.evict(cell),
        }
    }
}
