//! Whole nodes in one thread: the real machines of core over a bucket that plays faults. Bucket,
//! clocks, crashes and clients are drawn from one seed; schedule, faults and workload have streams
//! of their own.
//!
//! Units: µs of true time. All monotonic clocks show it; wall clocks differ from it.

mod border;
mod bucket;
mod checker;
mod process;
mod rng;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use celld_core::cas::CasOutcome;
use celld_core::lease::Loss;
use celld_core::node::{NodeId, SessionId};
use celld_core::ownership::Owner;
use celld_core::time::{Micros, Wall};

use border::{Input, Kind, Op, Tag, Who, Wish};
use bucket::{Answer, Bucket, Faults, Hears, Request};
use checker::Checker;
use process::Process;
use rng::Rng;

const TTL: Micros = Micros::from_secs(10);
const NODES: u64 = 3;
const CELLS: usize = 3;
const SECOND: u64 = 1_000_000;
/// Until here there are faults and clients; then both stop, and every cell must be served.
const FAULTY: u64 = 60 * SECOND;
const END: u64 = 120 * SECOND;

/// What a wall clock shows that is ahead of the slowest one by `skew_ms`.
fn wall(now: u64, skew_ms: u64) -> Wall {
    Wall::from_millis(now / 1_000 + skew_ms)
}

/// The protocol, or one of the ways to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Not,
    /// The right counts from the answer.
    LeaseFromAnswer,
    /// A renewal without an answer counts as applied.
    LeaseUnknownApplied,
    /// A session never notices that its right is over.
    ExpiryForgotten,
    /// A claim without an answer counts as applied.
    ClaimUnknownApplied,
    /// A read-back compares epochs, not nonces.
    NonceIgnored,
    /// A claim writes over whatever stands.
    GuardForgotten,
    /// The claim's base is never moved to what was restored.
    RebaseSkipped,
    /// A restore counts every file.
    BaseIgnored,
    /// A local wake keeps the epoch of the activation before.
    EpochReused,
    /// The proof takes a read of the record that began with the upload.
    ReadTooEarly,
    /// The proof does not read the record.
    ReadSkipped,
    /// The gate lets go at the commit.
    GateAtCommit,
    /// A release names a commit that is not proven.
    ReleaseUnproven,
}

/// How a run ended.
pub struct Outcome {
    /// The first thing that went wrong.
    pub violation: Option<String>,
    /// What happened, if it was to be written down.
    pub trace: String,
    /// What the run has met.
    pub met: Met,
}

/// A simulation that meets nothing checks nothing.
#[derive(Debug, Default)]
pub struct Met {
    /// Answers that were seen outside.
    pub released: u64,
    /// Segments that came after their epoch was over.
    pub late: usize,
    /// Sessions whose right expired, that were replaced, and whose record was deleted.
    pub expired: usize,
    pub replaced: usize,
    pub missing: usize,
}

enum Happening {
    Apply(u64),
    Input(usize, Input),
    Answer(u64),
    Timer(usize, Who, u64),
    Client,
    Start(u64),
    Heal,
    /// After the faults: a write to a cell, until one is acknowledged.
    Probe(usize),
}

/// A request under way.
struct Flight {
    process: usize,
    tag: Tag,
    request: Request,
    hears: Hears,
    answer: Option<Answer>,
}

struct World {
    now: u64,
    /// Numbers happenings, requests, sessions and ops.
    count: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    flights: BTreeMap<u64, Flight>,
    timers: BTreeMap<(usize, Who), u64>,
    bucket: Bucket,
    processes: Vec<Process>,
    checker: Checker,
    schedule: Rng,
    draws: Rng,
    workload: Rng,
    faults: Faults,
    broken: Broken,
    /// The latest probe of each cell, and whether one was acknowledged.
    probes: BTreeMap<usize, (u64, bool)>,
    trace: Option<String>,
}

/// Plays one seed.
pub fn run(seed: u64, broken: Broken, is_traced: bool) -> Outcome {
    let mut draws = Rng::new(seed, 2);
    let mut world = World {
        now: 0,
        count: 0,
        queue: BTreeMap::new(),
        flights: BTreeMap::new(),
        timers: BTreeMap::new(),
        bucket: Bucket::default(),
        processes: vec![],
        checker: Checker::default(),
        schedule: Rng::new(seed, 1),
        faults: Faults::draw(&mut draws),
        draws,
        workload: Rng::new(seed, 3),
        broken,
        probes: BTreeMap::new(),
        trace: is_traced.then(String::new),
    };
    for node in 0..NODES {
        world.at(node, Happening::Start(node));
    }
    world.at(SECOND, Happening::Client);
    world.at(FAULTY, Happening::Heal);
    world.play();
    let trace = world.trace.unwrap_or_default();
    let checker = world.checker;
    let lost = |loss| checker.losses.iter().filter(|is| **is == loss).count();
    let met = Met {
        released: checker.released,
        late: checker.late(),
        expired: lost(Loss::Expired),
        replaced: lost(Loss::Replaced),
        missing: lost(Loss::Missing),
    };
    Outcome { violation: checker.violation, trace, met }
}

impl World {
    fn at(&mut self, time: u64, happening: Happening) {
        self.count += 1;
        self.queue.insert((time, self.count), happening);
    }
    fn play(&mut self) {
        while let Some(((time, _), happening)) = self.queue.pop_first() {
            if time >= END || self.checker.violation.is_some() {
                break;
            }
            self.now = time;
            self.happen(happening);
        }
        let is_waiting = |(cell, _): (&usize, _)| format!("cell {cell} is never served again");
        let waiting = self.probes.iter().find(|(_, (_, is_served))| !is_served).map(is_waiting);
        if let (None, Some(waiting)) = (&self.checker.violation, waiting) {
            self.checker.violated(waiting);
        }
    }
    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Apply(number) => {
                // A flight stays until it has been applied and answered, whichever is last.
                let Some(flight) = self.flights.get_mut(&number) else { return };
                let answer = self.bucket.apply(&flight.request, &mut self.checker);
                if let Some(trace) = &mut self.trace {
                    let _ = writeln!(trace, "{} bucket {:?} {answer:?}", self.now, flight.request);
                }
                flight.answer = Some(answer);
            }
            Happening::Answer(number) => self.answer(number),
            Happening::Timer(process, who, number) => {
                if self.timers.get(&(process, who.clone())) == Some(&number) {
                    self.input(process, Input::Timer(who));
                }
            }
            Happening::Input(process, input) => self.input(process, input),
            Happening::Client => self.client(),
            Happening::Start(node) => self.start(node, false),
            Happening::Heal => {
                self.faults.heal();
                for cell in 0..CELLS {
                    self.probes.insert(cell, (0, false));
                    self.at(self.now + 20 * SECOND, Happening::Probe(cell));
                }
            }
            Happening::Probe(cell) => self.probe(cell),
        }
    }
    /// Tells a process something; if it stands still, then later.
    fn input(&mut self, index: usize, input: Input) {
        let process = &mut self.processes[index];
        if !process.is_alive {
            return;
        }
        if self.now < process.paused_until {
            let later = process.paused_until;
            return self.at(later, Happening::Input(index, input));
        }
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{} {index} < {input:?}", self.now);
        }
        let mut wishes = vec![];
        process.on_input(self.now, input, &mut wishes);
        for wish in wishes {
            if self.draws.chance(self.faults.crash) {
                return self.stop(index);
            }
            self.perform(index, wish);
        }
    }
    fn perform(&mut self, index: usize, wish: Wish) {
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{} {index} > {wish:?}", self.now);
        }
        let session = self.processes[index].owner.session.clone();
        match wish {
            Wish::Request(tag, request) => self.send(index, tag, request),
            Wish::Timer(who, at) => {
                let number = self.count;
                self.timers.insert((index, who.clone()), number);
                let at = at.as_micros().max(self.now);
                self.at(at, Happening::Timer(index, who, number));
            }
            Wish::Fence(loss) => {
                self.checker.losses.push(loss);
                self.stop(index);
            }
            Wish::Redirect(mut op, to) => {
                let owner = self.processes.iter().position(|p| p.is_alive && p.owner.session == to);
                op.hops += 1;
                if let Some(owner) = owner.filter(|_| op.hops <= 3) {
                    let arrives = self.now + self.schedule.range(100, 2_000);
                    self.at(arrives, Happening::Input(owner, Input::Op(op)));
                }
            }
            Wish::Served { cell, record, history } => {
                self.checker.served(cell, &session, &record, &history);
            }
            Wish::Released { cell, record, order, op, history } => {
                let epoch = record.epoch;
                self.checker.released(self.now, cell, &session, epoch, order, &history);
                if let Some((probe, is_served)) = self.probes.get_mut(&cell) {
                    *is_served |= *probe == op.id;
                }
            }
            Wish::Failed { cell, failure } => self.checker.failed(cell, &failure),
        }
    }
    fn send(&mut self, process: usize, tag: Tag, request: Request) {
        let fate = self.faults.fate(&mut self.draws);
        let number = self.count;
        let flight = Flight { process, tag, request, hears: fate.hears, answer: None };
        self.flights.insert(number, flight);
        if let Some(after) = fate.apply_after {
            self.at(self.now + after, Happening::Apply(number));
        }
        self.at(self.now + fate.answer_after, Happening::Answer(number));
        self.count += 1;
    }
    /// The sender hears of its request; it may take effect later.
    fn answer(&mut self, number: u64) {
        let flight = &mut self.flights.get_mut(&number).expect("a flight is answered once");
        let is_cas = matches!(flight.request, Request::CasOwn { .. } | Request::CasLease { .. });
        let answer = match (&flight.hears, is_cas) {
            (Hears::Truth, _) => flight.answer.take().expect("it took effect before"),
            (Hears::Refusal, true) => Answer::Cas(CasOutcome::Refused),
            (Hears::Nothing, true) => Answer::Cas(CasOutcome::Unknown),
            (Hears::Nothing | Hears::Refusal, false) => Answer::Failed,
        };
        let (process, tag) = (flight.process, flight.tag.clone());
        self.input(process, Input::Answer(tag, answer));
    }
    /// A new process of `node`. `is_twin`: although one lives.
    fn start(&mut self, node: u64, is_twin: bool) {
        let node = NodeId::parse(&format!("n{node}")).expect("a good name");
        if !is_twin && self.processes.iter().any(|p| p.is_alive && p.owner.node == node) {
            return;
        }
        let seed = u128::from(self.processes.len() as u64 + 1) << 64;
        let session = SessionId::parse(&format!("{seed:032x}")).expect("a good session");
        let skew = self.draws.range(0, 2 * self.faults.skew_ms);
        // All run on one state directory, some twins on a copy of it that was made too early.
        let is_copied = is_twin && self.draws.chance(5_000);
        let is_ended = |p: &&Process| p.owner.node == node && (!p.is_alive || is_copied);
        let ended = self.processes.iter().filter(is_ended);
        let ended = ended.map(|p| p.owner.session.clone()).collect();
        let owner = Owner { node, session };
        self.processes.push(Process::new(owner, ended, seed, skew, self.broken));
        self.input(self.processes.len() - 1, Input::Started);
    }
    /// A process is gone; another one follows.
    fn stop(&mut self, index: usize) {
        self.processes[index].is_alive = false;
        let name = self.processes[index].owner.node.as_str();
        let node = name[1..].parse().expect("named above");
        let again = self.now + self.schedule.range(SECOND / 10, 15 * SECOND);
        self.at(again, Happening::Start(node));
    }
    fn any_process(&mut self) -> Option<usize> {
        let alive: Vec<_> =
            (0..self.processes.len()).filter(|n| self.processes[*n].is_alive).collect();
        let one = self.workload.range(0, 1 << 32);
        (!alive.is_empty()).then(|| alive[usize::try_from(one).expect("small") % alive.len()])
    }
    /// A client asks something of some cell, at some node; and sometimes a node misbehaves.
    fn client(&mut self) {
        if self.now >= FAULTY {
            return;
        }
        let next = self.now + self.schedule.range(10_000, 300_000);
        self.at(next, Happening::Client);
        let Some(index) = self.any_process() else { return };
        let cell = usize::try_from(self.workload.range(0, CELLS as u64)).expect("small");
        let id = self.count;
        let kind = match self.workload.range(0, 100) {
            0..55 => Kind::Write(id),
            55..80 => Kind::Read,
            80..87 => Kind::Release,
            87..94 => Kind::Evict,
            _ => Kind::Reset,
        };
        self.input(index, Input::Op(Op { id, cell, kind, hops: 0 }));
        if self.draws.chance(self.faults.pause) {
            let until = self.now + self.draws.range(SECOND, 14 * SECOND);
            self.processes[index].paused_until = until;
        }
        if self.draws.chance(self.faults.sweep) {
            self.bucket.sweep(wall(self.now, self.faults.skew_ms));
        }
        if self.draws.chance(self.faults.twin) {
            let node = self.draws.range(0, NODES);
            self.start(node, true);
        }
    }
    fn probe(&mut self, cell: usize) {
        if self.probes[&cell].1 {
            return;
        }
        self.at(self.now + SECOND, Happening::Probe(cell));
        let Some(index) = self.any_process() else { return };
        let id = self.count;
        self.probes.insert(cell, (id, false));
        self.input(index, Input::Op(Op { id, cell, kind: Kind::Write(id), hops: 0 }));
    }
}
