//! Whole fleets in one thread: the real machines of core, several processes, a network and a bucket
//! with faults. All is drawn from one seed; schedule, faults and workload have streams of their
//! own.
//!
//! Units: µs of true time.

mod border;
mod broken;
mod bucket;
mod checker;
mod clock;
mod faults;
mod lives;
mod network;
mod process;
mod rng;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::rc::Rc;

use celld_core::alarm::{End, LATEST};
use celld_core::cell::CellId;
use celld_core::drain;
use celld_core::route::CallError;
use celld_core::time::{Micros, Wall};

use border::{Input, Kind, Op, Order, Outcome, Source, When, Who, Wish};
pub use broken::Broken;
use bucket::Bucket;
use checker::Checker;
use clock::true_wall;
use faults::Faults;
use lives::{Disk, Slot};
use network::{BUCKET, Call, Cuts, Flight};
use process::Process;
use rng::Rng;

const SECOND: u64 = 1_000_000;
const TTL: Micros = Micros::from_secs(10);
/// Records of nodes that have gone are deleted after this.
const SWEEP_AFTER: Micros = Micros::from_secs(30);
/// Until here there are faults and clients; then both stop.
const FAULTY: u64 = 60 * SECOND;
/// By then each alarm must have run: takeover, failed visits, failed runs and all.
const ALARMS_RAN: u64 = FAULTY + 200 * SECOND;
/// By then each cell must have been served, and each lease be live or gone.
const END: u64 = ALARMS_RAN + 60 * SECOND;

/// How a run ended.
pub struct Ending {
    /// The first thing that went wrong.
    pub violation: Option<String>,
    /// What happened, if it was to be written down.
    pub trace: String,
    /// What the run has met.
    pub met: Met,
}

/// What a run has met, and how often. A simulation that meets nothing checks nothing.
#[derive(Clone, Debug, Default)]
pub struct Met(BTreeMap<&'static str, u64>);

impl Met {
    fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }
    pub fn add(&mut self, other: &Met) {
        for (what, times) in &other.0 {
            self.count(what, *times);
        }
    }
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, times) in &self.0 {
            write!(f, " {what}: {times}")?;
        }
        Ok(())
    }
}

pub enum Happening {
    Apply(u64),
    Answer(u64),
    Deliver(u64),
    CallEnds(u64, Result<Outcome, CallError>),
    Input(usize, Input),
    Timer(usize, Who, u64),
    Client,
    Start(usize),
    /// What late listings show.
    Remember,
    Heal,
    AlarmsRan,
    /// After the faults: a write to a cell, until one is acknowledged.
    Probe(usize),
}

/// What has happened, line by line.
pub struct Trace(String);

impl Trace {
    pub fn line(&mut self, now: u64, what: fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{now} {what}");
    }
}

pub struct World {
    now: u64,
    /// Numbers happenings, requests, sessions and ops.
    count: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    flights: BTreeMap<u64, Flight>,
    calls: BTreeMap<u64, Call>,
    timers: BTreeMap<(usize, Who), (u64, celld_core::time::Mono)>,
    ids: Rc<[CellId]>,
    bucket: Bucket,
    processes: Vec<Process>,
    /// Of which slot each process is.
    slots_of: Vec<usize>,
    slots: Vec<Slot>,
    disks: Vec<Disk>,
    cuts: Cuts,
    checker: Checker,
    schedule: Rng,
    draws: Rng,
    workload: Rng,
    faults: Faults,
    /// The clients set and delete alarms most of the time.
    is_alarming: bool,
    broken: Broken,
    /// The latest probe of each cell, and whether one was acknowledged.
    probes: BTreeMap<usize, (u64, bool)>,
    met: Met,
    trace: Option<Trace>,
}

/// Plays one seed.
pub fn run(seed: u64, broken: Broken, is_traced: bool) -> Ending {
    let mut world = World::new(seed, broken, is_traced);
    for slot in 0..world.slots.len() {
        world.at(0, Happening::Start(slot));
    }
    world.at(SECOND, Happening::Client);
    world.at(SECOND, Happening::Remember);
    world.at(FAULTY, Happening::Heal);
    world.at(ALARMS_RAN, Happening::AlarmsRan);
    world.play();
    world.end()
}

/// The number of a cell of the simulation.
fn number_of(cell: &CellId) -> usize {
    usize::from_str_radix(cell.id(), 16).expect("named by a number")
}

impl World {
    fn new(seed: u64, broken: Broken, is_traced: bool) -> Self {
        let mut draws = Rng::new(seed, 2);
        let faults = Faults::draw(&mut draws);
        let nodes = usize::try_from(draws.range(2, 6)).expect("small");
        let is_alarming = draws.chance(4_000);
        let few = if is_alarming { 3_000 } else { 7_000 };
        let cells = if draws.chance(few) { draws.range(1, 6) } else { draws.range(6, 51) };
        let id = |n| CellId::new("sim.Cell", &format!("{n:064x}")).expect("a good name");
        let ids: Rc<[CellId]> = (0..cells).map(id).collect();
        let checker = Checker::new(faults.is_lenient());
        Self {
            now: 0,
            count: 0,
            queue: BTreeMap::new(),
            flights: BTreeMap::new(),
            calls: BTreeMap::new(),
            timers: BTreeMap::new(),
            bucket: Bucket::new(ids.clone()),
            ids,
            processes: vec![],
            slots_of: vec![],
            slots: (0..nodes).map(Slot::new).collect(),
            disks: (0..nodes).map(|_| Disk::default()).collect(),
            cuts: Cuts::default(),
            checker,
            schedule: Rng::new(seed, 1),
            draws,
            workload: Rng::new(seed, 3),
            faults,
            is_alarming,
            broken,
            probes: BTreeMap::new(),
            met: Met::default(),
            trace: is_traced.then(|| Trace(String::new())),
        }
    }
    fn at(&mut self, time: u64, happening: Happening) {
        self.count += 1;
        self.queue.insert((time, self.count), happening);
    }
    fn play(&mut self) {
        while let Some(((time, _), happening)) = self.queue.pop_first() {
            let is_over = self.now > ALARMS_RAN && self.probes.values().all(|(_, served)| *served);
            if time >= END || is_over || self.checker.violation.is_some() {
                break;
            }
            self.now = time;
            self.happen(happening);
        }
    }
    fn end(mut self) -> Ending {
        if self.checker.violation.is_none() {
            let waits = self.probes.iter().find(|(_, (_, is_served))| !is_served);
            if let Some((cell, _)) = waits {
                self.checker.violated(format!("cell {cell} is never served again"));
            }
            let is_live = |record: &celld_core::lease::Record| {
                let is_of = |p: &Process| p.is_well() && *p.session() == record.session;
                self.processes.iter().any(|p| is_of(p) && p.is_held())
            };
            let stray = self.bucket.leases().find(|record| !is_live(record));
            if let Some(stray) = stray {
                self.checker.violated(format!("a lease is neither live nor gone: {stray:?}"));
            }
        }
        self.met.count("released", self.checker.released);
        self.met.count("purged", self.checker.purges);
        self.met.count("late segments", self.checker.late() as u64);
        self.met.count("alarms run", self.checker.runs);
        self.met.count("hints left", self.bucket.entries() as u64);
        self.met.count("happenings", self.count);
        let trace = self.trace.map(|trace| trace.0).unwrap_or_default();
        Ending { violation: self.checker.violation, trace, met: self.met }
    }
    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Apply(number) => self.apply(number),
            Happening::Answer(number) => self.answer(number),
            Happening::Deliver(number) => self.deliver(number),
            Happening::CallEnds(number, result) => self.end_call(number, result),
            Happening::Timer(process, who, number) => self.timer(process, who, number),
            Happening::Input(process, input) => self.input(process, input),
            Happening::Client => self.client(),
            Happening::Start(slot) => self.start(slot, false),
            Happening::Remember => {
                self.bucket.remember();
                self.at(self.now + 2 * SECOND, Happening::Remember);
            }
            Happening::Heal => self.heal(),
            Happening::AlarmsRan => {
                let durable = |cell| self.bucket.durable(cell);
                self.checker.all_alarms_ran(true_wall(self.now - 30 * SECOND), durable);
                for cell in 0..self.ids.len() {
                    self.probes.insert(cell, (0, false));
                    self.at(self.now, Happening::Probe(cell));
                }
            }
            Happening::Probe(cell) => self.probe(cell),
        }
    }
    fn timer(&mut self, process: usize, who: Who, number: u64) {
        let key = (process, who);
        let Some((_, due)) = self.timers.get(&key).filter(|(is, _)| *is == number) else { return };
        let clock = &self.processes[process].birth.clock;
        // It may have stood still since.
        if clock.mono(self.now) < *due {
            let later = clock.when(*due).max(self.now + 1);
            return self.at(later, Happening::Timer(process, key.1, number));
        }
        self.timers.remove(&key);
        self.input(process, Input::Timer(key.1));
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
            trace.line(self.now, format_args!("{index} < {input:?}"));
        }
        for wish in process.on_input(self.now, input) {
            if self.draws.chance(self.faults.crash) {
                self.met.count("crashed", 1);
                return self.stop(index);
            }
            if let Some(trace) = &mut self.trace {
                trace.line(self.now, format_args!("{index} > {wish:?}"));
            }
            self.perform(index, wish);
            if !self.processes[index].is_alive {
                return;
            }
        }
    }
    fn perform(&mut self, index: usize, wish: Wish) {
        let session = self.processes[index].session().clone();
        match wish {
            Wish::Request(tag, request) => self.send(index, tag, request),
            Wish::Timer(who, due) => {
                let number = self.count;
                self.timers.insert((index, who.clone()), (number, due));
                let at = self.processes[index].birth.clock.when(due).max(self.now);
                self.at(at, Happening::Timer(index, who, number));
            }
            Wish::Fence(loss) => {
                self.met.count(loss.word(), 1);
                self.stop(index);
            }
            Wish::Moved => self.met.count("moved", 1),
            Wish::CutOff => self.met.count("cells cut off", 1),
            Wish::Exit(exit) => {
                let word = match exit {
                    drain::Exit::Clean => "drained",
                    drain::Exit::Cut => "cut",
                };
                self.met.count(word, 1);
                self.stop(index);
            }
            Wish::Call { call, to, session, op } => {
                self.call(index, call, &to, session.as_ref(), op)
            }
            Wish::Answer { call, outcome } => self.reply(call, outcome),
            Wish::Ended(outcome) => {
                self.met.count("errors", u64::from(outcome != Outcome::Done));
            }
            Wish::Served { cell, record, history } => {
                self.checker.served(cell, &session, &record, &history);
            }
            Wish::Released { cell, record, order, op, history } => {
                self.checker.released(self.now, &session, record.epoch, order, &op, &history);
                if let Some((probe, is_served)) = self.probes.get_mut(&cell) {
                    *is_served |= *probe == op.id;
                }
            }
            Wish::Failed { cell, failure } => self.checker.failed(cell, &failure),
            Wish::Runs { cell, activation, scheduled } => {
                self.met.count("alarms begun", 1);
                self.run_alarm(index, cell, activation, scheduled);
            }
            Wish::Ran { cell, scheduled } => self.checker.ran(cell, scheduled),
            Wish::GaveUp { cell, scheduled } => self.checker.ran(cell, scheduled),
        }
    }
    /// `alarm()` takes its time, may set itself again, and ends in one way or another.
    fn run_alarm(&mut self, index: usize, cell: usize, activation: u64, scheduled: Wall) {
        let is_faulty = self.now < FAULTY;
        let is_long = is_faulty && self.workload.chance(2_500);
        let takes = self.workload.range(1_000, if is_long { 40 * SECOND } else { SECOND / 3 });
        let sets = is_faulty && self.workload.chance(2_500);
        let sets = sets.then(|| When::In(self.workload.range(500, 30_000)));
        let draw = u32::try_from(self.workload.range(0, 1 << 32)).expect("32 bits");
        let end = match self.workload.range(0, 100) {
            0..15 if is_faulty => End::Threw { draw },
            15..25 if is_faulty => End::Interrupted { draw },
            _ => End::Done,
        };
        let input = Input::Handler { cell, activation, scheduled, sets, end };
        self.at(self.now + takes, Happening::Input(index, input));
    }
    fn any_process(&mut self) -> Option<usize> {
        let alive: Vec<_> =
            (0..self.processes.len()).filter(|n| self.processes[*n].is_well()).collect();
        let one = usize::try_from(self.workload.range(0, 1 << 32)).expect("small");
        (!alive.is_empty()).then(|| alive[one % alive.len()])
    }
    /// A client asks something of some cell, at some node; and sometimes the world misbehaves.
    fn client(&mut self) {
        if self.now >= FAULTY {
            return;
        }
        let next = self.now + self.schedule.range(10_000, 250_000);
        self.at(next, Happening::Client);
        let Some(index) = self.any_process() else { return };
        let cell = usize::try_from(self.workload.range(0, self.ids.len() as u64)).expect("small");
        let far = self.workload.range(0, if self.is_alarming { 6_000 } else { 60_000 });
        let soon = Kind::SetAlarm(When::In(far));
        let order = |order| Input::Order(cell, order);
        match self.workload.range(0, 100) {
            0..15 => self.ask(index, cell, Kind::Write),
            15..38 if self.is_alarming => self.ask(index, cell, soon),
            15..38 => self.ask(index, cell, Kind::Write),
            38..45 if self.is_alarming => self.ask(index, cell, Kind::DeleteAlarm),
            38..58 => self.ask(index, cell, Kind::Read),
            58..71 => self.ask(index, cell, soon),
            71..73 => self.ask(index, cell, Kind::SetAlarm(When::At(Wall::from_millis(far)))),
            73..74 => self.ask(index, cell, Kind::SetAlarm(When::At(LATEST))),
            74..78 => self.ask(index, cell, Kind::DeleteAlarm),
            78..83 => self.input(index, order(Order::Release)),
            86..94 => self.input(index, order(Order::Evict)),
            94..97 => self.input(index, order(Order::Reset)),
            97..99 => self.input(index, order(Order::Purge)),
            _ => {
                let to = self.workload.range(0, 1 << 32);
                self.input(index, order(Order::Move(to)));
            }
        }
        self.misbehave(index);
    }
    fn ask(&mut self, index: usize, cell: usize, kind: Kind) {
        self.count += 1;
        let op = Op {
            id: self.count,
            cell,
            kind,
            source: Source::Client,
            since: celld_core::time::Mono::default(),
            failures: 0,
            route: None,
        };
        self.checker.asked(&op);
        self.input(index, Input::Op(op));
    }
    /// Faults that are not those of one request.
    fn misbehave(&mut self, index: usize) {
        let faults = self.faults.clone();
        if self.draws.chance(faults.pause) {
            let until = self.now + self.draws.range(SECOND, 25 * SECOND);
            self.processes[index].paused_until = until;
            self.met.count("paused", 1);
        }
        if self.draws.chance(faults.stand) {
            let span = self.draws.range(SECOND, 25 * SECOND);
            let process = &mut self.processes[index];
            process.birth.clock.stand(span);
            process.paused_until = self.now + span;
            self.met.count("clocks stood", 1);
        }
        if self.draws.chance(faults.jump) {
            let hour = 3_600_000;
            let skew = i64::try_from(self.draws.range(0, 2 * hour)).expect("small") - 3_600_000;
            self.processes[index].birth.clock.set_skew(skew);
            self.met.count("clocks set", 1);
        }
        if self.draws.chance(faults.partition) {
            let other = usize::try_from(self.draws.range(0, self.slots.len() as u64 + 1));
            let other = other.expect("small");
            let other = if other == self.slots.len() { BUCKET } else { other };
            let until = self.now + self.draws.range(SECOND, 25 * SECOND);
            self.cuts.cut(self.slots_of[index], other, until);
            self.met.count("partitions", 1);
        }
        if self.draws.chance(faults.sweep) {
            let one = self.draws.range(0, 100);
            self.bucket.sweep(one);
        }
        if self.draws.chance(faults.twin) {
            let slot = self.slots_of[index];
            self.start(slot, true);
        }
        if self.draws.chance(faults.drain) {
            self.input(index, Input::Drain);
        }
    }
    /// The end of all faults, except that the clocks go on as fast as they do.
    fn heal(&mut self) {
        if self.faults.frozen
            && let Some(index) = self.any_process()
        {
            self.met.count("frozen", 1);
            self.processes[index].paused_until = u64::MAX;
        }
        self.faults = Faults::default();
        self.cuts.heal();
        for process in &mut self.processes {
            process.birth.clock.set_skew(0);
        }
    }
    fn probe(&mut self, cell: usize) {
        if self.probes[&cell].1 {
            return;
        }
        self.at(self.now + SECOND, Happening::Probe(cell));
        let Some(index) = self.any_process() else { return };
        // Known before it is asked: the answer may come at once.
        self.probes.insert(cell, (self.count + 1, false));
        self.ask(index, cell, Kind::Write);
    }
}
