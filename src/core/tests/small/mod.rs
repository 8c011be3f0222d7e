//! A fleet that is small enough to try everything: two nodes, one cell, and a bucket whose answers
//! may be lost and whose writes may arrive late. From each state, every action that may be next is
//! taken. The machines are those of core; all that they know is part of the state.
//!
//! Time is a number of the state. It passes in steps of half a TTL, and to the ends of the short
//! waits after failures. At each instant any number of things may happen, or none: a node that does
//! nothing is one that stands still. One clock is faster than the other by all that the rules allow.
//!
//! What cannot matter is left out, so that the rest can be tried. Leases are renewed at the begin of
//! an instant. A request takes effect and is answered in one step, but for those whose answer means
//! something else when it comes later: renewals, and the reads of a proof. What a claim reads, it
//! reads at once: it could as well have begun later.
//!
//! Units: µs of the slower clock.

#[expect(dead_code, reason = "the simulation of large fleets breaks more than a small one has")]
#[path = "../fleet/broken.rs"]
mod broken;
mod bucket;
mod node;
mod search;
mod truth;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use celld_core::cas::CasOutcome;
use celld_core::claim::Failure;
use celld_core::lease::Record;
use celld_core::time::{Micros, Mono};

pub use broken::Broken;
use bucket::Bucket;
use node::{Deed, Input, Node, Phase, Tag, Turn, Who};
pub use search::search;
use truth::Truth;

const TTL: Micros = Micros::from_secs(10);

/// Half a TTL: a renewal is due after one step, a right is over after two.
const STEP: u64 = 5_000_000;

/// Of proofs: one step, so that cells are reset while their uploads are under way.
const PATIENCE: Micros = Micros::from_micros(STEP);

/// No machine waits longer than that after a failure.
const BACKOFF_MAX: u64 = 1_000_000;

/// How much may still happen.
#[derive(Clone, Copy, Hash, Default)]
pub struct Bounds {
    /// Instants at which a step of time ends.
    pub steps: u8,
    /// Requests for a cell that is not in memory of the node where they enter.
    pub wakes: u8,
    /// Requests that write.
    pub writes: u8,
    /// Requests of the bucket that are not answered, or answered wrongly.
    pub faults: u8,
    /// Nodes that end in the middle of something.
    pub crashes: u8,
    /// Nodes that start again.
    pub starts: u8,
    /// Cells that leave memory: released, or dropped in the middle of something.
    pub leaves: u8,
    /// Steps that the clock of a node does not count. Then rights overlap, which nobody can notice;
    /// but nothing that was acknowledged may be lost.
    pub stands: u8,
}

impl Bounds {
    /// One more of what is named.
    pub fn more(mut self, what: &str) -> Self {
        let bound = match what {
            "steps" => &mut self.steps,
            "wakes" => &mut self.wakes,
            "writes" => &mut self.writes,
            "faults" => &mut self.faults,
            "crashes" => &mut self.crashes,
            "starts" => &mut self.starts,
            "leaves" => &mut self.leaves,
            "stands" => &mut self.stands,
            _ => panic!("no bound is named {what}"),
        };
        *bound += 1;
        self
    }
}

/// What may be next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    TimePasses,
    /// The same, while the clock of this node stands still.
    Stands(usize),
    Wake(usize),
    Write(usize),
    Release(usize),
    Reset(usize),
    Crash(usize),
    Start(usize),
    Timer(usize, Who),
    /// The request takes effect and is answered.
    Perform(usize, Tag),
    /// It takes effect; its answer is under way.
    Apply(usize, Tag),
    /// The answer arrives.
    Answer(usize, Tag),
    /// It is not answered, and has not taken effect so far.
    Lose(usize, Tag),
    /// It takes effect and is not answered.
    LoseAnswer(usize, Tag),
    /// It takes effect, and is refused when something on the way repeats it.
    Refuse(usize, Tag),
    /// A lease is renewed, which the other node does not notice.
    Miss(usize),
    /// A write that nobody waits for arrives: the one with this place among them.
    Arrive(usize),
}

/// What has happened at this instant so far. Renewals of different nodes, and what becomes of the
/// cell meanwhile, do not depend on each other, so one order is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// The node with this number has renewed its lease, or has not.
    Renewals(usize),
    /// Everything else.
    Cells,
}

#[derive(Clone, Hash)]
pub struct World {
    broken: Broken,
    now: u64,
    /// How long the clock of each node has stood still.
    stood: [u64; 2],
    stage: Stage,
    left: Bounds,
    writes: u8,
    bucket: Rc<Bucket>,
    nodes: [Rc<Node>; 2],
    truth: Rc<Truth>,
}

fn hash_of(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

impl World {
    /// Both nodes hold their leases and have seen each other's; nobody has the cell.
    pub fn new(bounds: Bounds, broken: Broken) -> Self {
        let mut world = Self {
            broken,
            now: 0,
            stood: [0; 2],
            stage: Stage::Cells,
            left: Bounds { starts: 2, ..bounds },
            writes: 0,
            bucket: Rc::default(),
            nodes: [0, 1].map(|number| Rc::new(Node::new(number))),
            truth: Rc::default(),
        };
        let begin = [0, 1].map(Action::Start);
        let lease = [0, 1].map(|node| Action::Perform(node, Tag::LeaseWrite));
        for action in [begin[0], lease[0], begin[1], lease[1]] {
            world.act(action).expect("both nodes start");
        }
        world.left = bounds;
        world
    }
    /// The same, when the first node serves the cell.
    pub fn serving(bounds: Bounds, broken: Broken) -> Self {
        let mut world = Self::new(bounds, broken);
        let claim = Action::Perform(0, Tag::Claim);
        for action in [Action::Wake(0), claim, claim] {
            world.act(action).expect("a new cell is served");
        }
        world.left = bounds;
        world
    }
    pub fn seconds(&self) -> f64 {
        Duration::from_micros(self.now).as_secs_f64()
    }
    /// The monotonic clock of a node: the second one is as much faster as a lease may be judged by.
    fn mono(&self, node: usize) -> Mono {
        let ran = self.now - self.stood[node];
        Mono::from_micros(if node == 0 { ran } else { ran * 21 / 20 })
    }
    /// When the clock of the node shows this.
    fn when(&self, node: usize, due: Mono) -> u64 {
        let due = due.as_micros();
        self.stood[node] + if node == 0 { due } else { (due * 20).div_ceil(21) }
    }
    fn is_held(&self, node: usize) -> bool {
        self.nodes[node].is_held(self.mono(node), self.broken)
    }
    /// Everything that may be next.
    fn actions(&self) -> Vec<Action> {
        let mut actions = vec![];
        if self.is_over() {
            return actions;
        }
        if let Some((n, tag)) = self.urgent() {
            self.flight_ends(n, tag, &mut actions);
            return actions;
        }
        let left = &self.left;
        actions.extend((left.steps > 0).then_some(Action::TimePasses));
        if left.steps > 0 && left.stands > 0 {
            actions.extend([Action::Stands(0), Action::Stands(1)]);
        }
        actions.extend((0..self.bucket.adrift.len()).map(Action::Arrive));
        for (n, node) in self.nodes.iter().enumerate() {
            if !node.is_up {
                actions.extend((left.starts > 0).then_some(Action::Start(n)));
                continue;
            }
            let is_held = self.is_held(n);
            let leaves = node.is_serving() && left.leaves > 0;
            let may_release = node.is_settled() || self.broken == Broken::ReleaseUnproven;
            let may = [
                (is_held && node.cell.is_none() && left.wakes > 0, Action::Wake(n)),
                (is_held && node.is_serving() && left.writes > 0, Action::Write(n)),
                (is_held && leaves && may_release, Action::Release(n)),
                (is_held && leaves, Action::Reset(n)),
                (left.crashes > 0, Action::Crash(n)),
                (self.is_due(n, Who::Lease), Action::Timer(n, Who::Lease)),
                (self.is_due(n, Who::Cell), Action::Timer(n, Who::Cell)),
            ];
            actions.extend(may.into_iter().filter(|(may, _)| *may).map(|(_, action)| action));
            for tag in node.flights.keys() {
                self.flight_ends(n, *tag, &mut actions);
            }
        }
        actions.retain(|action| self.stage <= Self::stage_of(*action));
        actions
    }
    fn stage_of(action: Action) -> Stage {
        match action {
            Action::Timer(n, Who::Lease) | Action::Answer(n, Tag::LeaseWrite) => Stage::Renewals(n),
            _ => Stage::Cells,
        }
    }
    /// Whether there can be no activation and no acknowledgement any more.
    fn is_over(&self) -> bool {
        let left = &self.left;
        let waits = |node: &Rc<Node>| match node.cell.as_ref().map(|cell| &cell.phase) {
            None => false,
            Some(Phase::Claiming { .. }) => true,
            Some(Phase::Serving { gate, .. }) => left.writes > 0 || !gate.is_empty(),
        };
        left.wakes == 0 && !self.nodes.iter().any(waits)
    }
    fn is_due(&self, node: usize, who: Who) -> bool {
        self.nodes[node].timer(who).is_some_and(|due| due <= self.mono(node))
    }
    /// A request that ends before anything else happens. Nothing that would come in between could
    /// not as well come before or after: what a claim reads is only made use of by a write.
    fn urgent(&self) -> Option<(usize, Tag)> {
        let is_urgent = |(tag, flight): &(&Tag, &node::Flight)| match tag {
            Tag::LeaseWrite | Tag::LeaseRead => flight.answer.is_none(),
            Tag::Claim => !flight.request.is_write(),
            Tag::Upload | Tag::Proof(_) | Tag::Early => false,
        };
        let of = |n: usize| Some((n, *self.nodes[n].flights.iter().find(is_urgent)?.0));
        of(0).or_else(|| of(1))
    }
    /// What may become of a request under way.
    fn flight_ends(&self, n: usize, tag: Tag, actions: &mut Vec<Action>) {
        let flight = &self.nodes[n].flights[&tag];
        let is_cas = matches!(flight.request.unknown(), bucket::Answer::Cas(_));
        let (is_applied, is_faulty) = (flight.answer.is_some(), self.left.faults > 0);
        let is_late = flight.answer.as_ref().is_some_and(|(since, _)| *since < self.now);
        let is_lease = tag == Tag::LeaseWrite;
        let may_be_slow = matches!(tag, Tag::Proof(_) | Tag::Early) || (is_lease && is_faulty);
        let may = [
            (is_late, Action::Answer(n, tag)),
            (!is_applied, Action::Perform(n, tag)),
            (!is_applied && may_be_slow, Action::Apply(n, tag)),
            (!is_applied && is_faulty, Action::Lose(n, tag)),
            (!is_applied && is_faulty && flight.request.is_write(), Action::LoseAnswer(n, tag)),
            (!is_applied && is_faulty && is_cas, Action::Refuse(n, tag)),
            (!is_applied && is_faulty && is_lease, Action::Miss(n)),
        ];
        actions.extend(may.into_iter().filter(|(may, _)| *may).map(|(_, action)| action));
    }
    /// Takes the action. What a node did, or the promise that is broken.
    fn act(&mut self, action: Action) -> Result<Vec<Deed>, String> {
        if self.urgent().is_none() {
            self.stage = self.stage.max(Self::stage_of(action));
        }
        let (node, deeds) = self.take(action)?;
        for deed in &deeds {
            self.judge(node, deed)?;
        }
        if !self.bucket.adrift.is_empty() {
            Rc::make_mut(&mut self.bucket).settle(self.left.starts > 0, hash_of);
        }
        let acts = |n: &usize| self.nodes[*n].is_serving() && self.is_held(*n);
        if self.stood == [0; 2] && [0, 1].iter().all(acts) {
            return Err("two nodes act for the cell at the same time".into());
        }
        Ok(deeds)
    }
    fn take(&mut self, action: Action) -> Result<(usize, Vec<Deed>), String> {
        let left = &mut self.left;
        let (n, input) = match action {
            Action::TimePasses | Action::Stands(_) => return Ok((0, self.pass(action))),
            Action::Arrive(place) => {
                let bucket = Rc::make_mut(&mut self.bucket);
                let request = bucket.adrift.remove(place);
                bucket.apply(&request)?;
                return Ok((0, vec![]));
            }
            Action::Crash(n) => {
                left.crashes -= 1;
                let writes = Rc::make_mut(&mut self.nodes[n]).stop();
                return Ok((n, writes.into_iter().map(Deed::Abandons).collect()));
            }
            Action::Start(n) => {
                left.starts -= 1;
                Rc::make_mut(&mut self.nodes[n]).start();
                let deeds = self.tell(n, Input::Started);
                self.look(n);
                return Ok((n, deeds));
            }
            Action::Wake(n) => {
                left.wakes -= 1;
                (n, Input::Wake)
            }
            Action::Write(n) => {
                left.writes -= 1;
                self.writes += 1;
                (n, Input::Write(self.writes))
            }
            Action::Release(n) | Action::Reset(n) => {
                left.leaves -= 1;
                (n, if action == Action::Reset(n) { Input::Reset } else { Input::Release })
            }
            Action::Timer(n, who) => (n, Input::Timer(who)),
            Action::Perform(n, tag)
            | Action::Apply(n, tag)
            | Action::Answer(n, tag)
            | Action::Lose(n, tag)
            | Action::LoseAnswer(n, tag)
            | Action::Refuse(n, tag) => return Ok((n, self.end(n, tag, action)?)),
            Action::Miss(n) => return Ok((n, self.end(n, Tag::LeaseWrite, action)?)),
        };
        Ok((n, self.tell(n, input)))
    }
    /// Something becomes of a request under way.
    fn end(&mut self, n: usize, tag: Tag, action: Action) -> Result<Vec<Deed>, String> {
        let is_lease = tag == Tag::LeaseWrite;
        let (is_fault, takes_effect) = match action {
            Action::Answer(..) => (false, false),
            Action::Apply(..) => (is_lease, true),
            Action::Lose(..) => (true, false),
            Action::LoseAnswer(..) | Action::Refuse(..) | Action::Miss(_) => (true, true),
            _ => (false, true),
        };
        self.left.faults -= u8::from(is_fault);
        let flight = &mut Rc::make_mut(&mut self.nodes[n]).flights;
        let flight = flight.get_mut(&tag).expect("it is under way");
        let (request, before) = (flight.request.clone(), flight.answer.take());
        let truth = match before {
            Some((_, answer)) => answer,
            None if takes_effect && request.is_write() => {
                Rc::make_mut(&mut self.bucket).apply(&request)?
            }
            None if takes_effect => self.bucket.read(&request)?,
            None => request.unknown(),
        };
        let answer = match action {
            Action::Apply(..) => {
                flight.answer = Some((self.now, truth));
                self.notice(n, tag);
                return Ok(vec![]);
            }
            Action::Lose(..) | Action::LoseAnswer(..) => request.unknown(),
            Action::Refuse(..) => bucket::Answer::Cas(CasOutcome::Refused),
            _ => truth,
        };
        if matches!(action, Action::Lose(..)) && request.is_write() {
            Rc::make_mut(&mut self.bucket).lets_drift(request);
        }
        let deeds = self.tell(n, Input::Answer(tag, answer));
        if matches!(action, Action::Perform(..)) {
            self.notice(n, tag);
        }
        Ok(deeds)
    }
    fn tell(&mut self, n: usize, input: Input) -> Vec<Deed> {
        let (now, broken) = (self.mono(n), self.broken);
        let node = Rc::make_mut(&mut self.nodes[n]);
        let mut turn = Turn { node, now, broken, deeds: vec![] };
        turn.take(input);
        turn.deeds
    }
    /// A write of a lease is soon seen by the other node.
    fn notice(&mut self, n: usize, tag: Tag) {
        if tag == Tag::LeaseWrite {
            self.look(1 - n);
        }
    }
    /// The node reads the lease of the other one, if that can matter to it.
    fn look(&mut self, n: usize) {
        let phase = self.nodes[n].cell.as_ref().map(|cell| &cell.phase);
        let is_claiming = matches!(phase, Some(Phase::Claiming { .. }));
        if self.nodes[n].is_up && (self.left.wakes > 0 || is_claiming) {
            let seen = self.bucket.lease(1 - n);
            let deeds = self.tell(n, Input::Saw(1 - n, seen));
            assert!(deeds.is_empty(), "a look does nothing: {deeds:?}");
        }
    }
    /// To the end of the step, or of a wait after a failure that ends before.
    fn pass(&mut self, action: Action) -> Vec<Deed> {
        let before = self.now;
        let step = (self.now / STEP + 1) * STEP;
        let timers = [0, 1].map(|n| [Who::Lease, Who::Cell].map(|who| (n, who)));
        let due = |(n, who): (usize, Who)| Some(self.when(n, self.nodes[n].timer(who)?));
        let is_soon = |due: &u64| self.now < *due && *due <= self.now + BACKOFF_MAX;
        let soon = timers.into_iter().flatten().filter_map(due).filter(is_soon).min();
        self.now = soon.map_or(step, |soon| soon.min(step));
        self.left.steps -= u8::from(self.now == step);
        self.stage = Stage::Renewals(0);
        if let Action::Stands(n) = action {
            self.left.stands -= 1;
            self.stood[n] += self.now - before;
        }
        // Whatever a node is told next, it would notice first that its right is over.
        let mut deeds = vec![];
        for n in [0, 1] {
            let lease = &self.nodes[n].lease;
            let is_over = lease.until().is_some_and(|until| until <= self.mono(n));
            if is_over || lease.loss().is_some() {
                deeds.append(&mut self.tell(n, Input::Timer(Who::Lease)));
            }
        }
        deeds
    }
    /// Does what the node did keep the promises?
    fn judge(&mut self, node: usize, deed: &Deed) -> Result<(), String> {
        match deed {
            Deed::Abandons(request) => Rc::make_mut(&mut self.bucket).lets_drift(request.clone()),
            Deed::Serves(record, history) => {
                return Rc::make_mut(&mut self.truth).serves(record.epoch, history);
            }
            Deed::Acks(..) if self.has_ended(node) => {
                return Err(format!("node {node} acknowledges after its right ended"));
            }
            Deed::Acks(epoch, history) => {
                return Rc::make_mut(&mut self.truth).acks(*epoch, history);
            }
            Deed::Fails(Failure::Record(_) | Failure::Broken(_) | Failure::History { .. }) => {
                return Err(deed.to_string());
            }
            Deed::Fails(Failure::Absent | Failure::Restore | Failure::Exhausted(_))
            | Deed::Forwards
            | Deed::Ends(_) => {}
        }
        Ok(())
    }
    /// The promise of the lease, by what took effect in the bucket.
    fn has_ended(&self, node: usize) -> bool {
        let session = self.nodes[node].owner().session;
        let record = self.bucket.leases[node].as_ref().filter(|record| record.session == session);
        let sent_at = |record: &Record| Mono::from_micros(record.written.as_millis() * 1_000);
        self.stood == [0; 2] && record.is_none_or(|record| self.mono(node) >= sent_at(record) + TTL)
    }
    /// From here on there are no faults, and one node runs at least: is a write acknowledged sooner
    /// or later? Other promises are not looked at: the search does that.
    fn recovers(&self) -> bool {
        let mut world = self.clone();
        let seen = world.truth.seen.len();
        for round in 0..16 {
            let few = Bounds { steps: 1, wakes: 1, writes: 1, starts: 2, ..Bounds::default() };
            world.left = few;
            while let Some(action) = world.owed(round % 2) {
                if world.act(action).is_err() || world.truth.seen.len() > seen {
                    return true;
                }
            }
            if world.act(Action::TimePasses).is_err() {
                return true;
            }
        }
        false
    }
    /// What is next when nothing goes wrong: renewals first. Clients ask the node with this number.
    fn owed(&self, asked: usize) -> Option<Action> {
        let is_owed = |action: &Action| match action {
            Action::Start(n) => !self.nodes[1 - n].is_up,
            Action::Wake(n) => *n == asked,
            Action::Timer(..) | Action::Perform(..) | Action::Answer(..) | Action::Write(_) => true,
            Action::TimePasses | Action::Stands(_) | Action::Release(_) | Action::Reset(_) => false,
            Action::Crash(_) | Action::Apply(..) | Action::Lose(..) | Action::LoseAnswer(..) => {
                false
            }
            Action::Refuse(..) | Action::Miss(_) | Action::Arrive(_) => false,
        };
        let actions = self.actions().into_iter().filter(is_owed);
        actions.min_by_key(|action| Self::stage_of(*action))
    }
}
