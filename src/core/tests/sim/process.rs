//! One process of a simulation: the real machines of one session, and the loop that feeds them.
//! It is also where the protocol can be broken on purpose, so that the checker must notice.

use std::collections::{BTreeMap, VecDeque};

use celld_core::cas::{CasOutcome, Etag, Guard, Nonce};
use celld_core::claim::{self, Claim};
use celld_core::epoch::FencingToken;
use celld_core::gate::{self, Gate};
use celld_core::lease::{self, Lease, Seen, Watch};
use celld_core::node::{DiskId, NodeId, SessionId};
use celld_core::ownership::{Me, Owner, Record};
use celld_core::proof::{self, Proof};
use celld_core::time::{Micros, Mono, Wall};
use celld_core::txid::Txid;

use super::border::{Input, Kind, Op, Tag, Who, Wish};
use super::bucket::{Answer, Body, Request, cell_id, etag};
use super::{Broken, TTL, wall};

/// The patience of the proof: short, so that cells are reset while their uploads are under way.
const PATIENCE: Micros = Micros::from_secs(5);

pub struct Process {
    pub owner: Owner,
    pub is_alive: bool,
    pub paused_until: u64,
    broken: Broken,
    skew_ms: u64,
    lease: Lease,
    watch: Watch,
    /// Earlier lives on the same state directory.
    ended: Vec<SessionId>,
    /// Of the broken lease: what it takes for its right.
    believes: Option<u64>,
    cells: BTreeMap<usize, Cell>,
    /// Records that this session wrote and left behind: of the broken local wake.
    left: BTreeMap<usize, (Record, Etag)>,
    activations: u64,
    seed: u128,
}

struct Cell {
    activation: u64,
    waiting: VecDeque<Op>,
    phase: Phase,
}

enum Phase {
    Claiming {
        claim: Claim,
        history: Vec<u64>,
        read: Option<(Record, Etag)>,
        wrote: Option<Record>,
    },
    Serving(Serving),
}

struct Serving {
    record: Record,
    etag: Etag,
    history: Vec<u64>,
    proof: Proof,
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
    pub fn new(
        owner: Owner,
        ended: Vec<SessionId>,
        seed: u128,
        skew_ms: u64,
        broken: Broken,
    ) -> Self {
        Self {
            owner,
            is_alive: true,
            paused_until: 0,
            broken,
            skew_ms,
            lease: Lease::new(TTL),
            watch: Watch::new(TTL),
            ended,
            believes: None,
            cells: BTreeMap::new(),
            left: BTreeMap::new(),
            activations: 0,
            seed,
        }
    }
    fn node(&self) -> NodeId {
        self.owner.node.clone()
    }
    fn session(&self) -> SessionId {
        self.owner.session.clone()
    }
    fn wall(&self, now: u64) -> Wall {
        wall(now, self.skew_ms)
    }
    /// Whether it acts as an owner now.
    fn is_held(&self, now: u64) -> bool {
        match self.broken {
            Broken::LeaseFromAnswer => self.believes.is_some_and(|until| now < until),
            Broken::ExpiryForgotten => self.believes.is_some(),
            _ => self.lease.is_held(Mono::from_micros(now)),
        }
    }
    /// One event, and all that follows from it at once.
    pub fn on_input(&mut self, now: u64, input: Input, wishes: &mut Vec<Wish>) {
        // Authority is checked before everything else: a process that stood still wakes up here.
        let is_over = self.lease.until().is_some_and(|until| Mono::from_micros(now) >= until);
        if is_over || self.lease.loss().is_some() {
            self.tell_lease(now, lease::Event::TimerFired, wishes);
        }
        if self.lease.loss().is_some() && !self.is_held(now) {
            return;
        }
        match input {
            Input::Started => self.tell_lease(now, lease::Event::Started, wishes),
            Input::Timer(Who::Lease) => self.tell_lease(now, lease::Event::TimerFired, wishes),
            Input::Timer(Who::Claim(cell, of)) if self.is_at(cell, of) => {
                self.tell_claim(now, cell, claim::Event::TimerFired, wishes);
            }
            Input::Timer(Who::Proof(cell, of)) if self.is_at(cell, of) => {
                self.tell_proof(now, cell, proof::Event::TimerFired, wishes);
            }
            Input::Timer(Who::Claim(..) | Who::Proof(..)) => {}
            Input::Answer(tag, answer) => self.answered(now, tag, answer, wishes),
            Input::Op(op) => self.asked(now, op, wishes),
        }
    }
    fn is_at(&self, cell: usize, activation: u64) -> bool {
        self.cells.get(&cell).is_some_and(|cell| cell.activation == activation)
    }

    fn tell_lease(&mut self, now: u64, event: lease::Event, wishes: &mut Vec<Wish>) {
        let mut effects = vec![];
        let was_lost = self.lease.loss();
        self.lease.on_event(Mono::from_micros(now), event, &mut effects);
        if self.lease.is_held(Mono::from_micros(now)) && self.broken == Broken::ExpiryForgotten {
            self.believes = Some(u64::MAX);
        }
        // The broken leases outlive the machine: their end is looked at each time.
        if let Some(loss) = was_lost {
            effects.push(lease::Effect::Fence(loss));
        }
        for effect in effects {
            wishes.push(match effect {
                lease::Effect::Write(write, guard) => {
                    let record = self.lease_record(now, write);
                    let (node, session, body) =
                        (self.node(), self.session(), Body(record.encode()));
                    let request = Request::CasLease { node, guard, body, session, sent_at: now };
                    Wish::Request(Tag::LeaseWrite, request)
                }
                lease::Effect::Read => {
                    Wish::Request(Tag::LeaseRead(now), Request::GetLease { node: self.node() })
                }
                lease::Effect::SetTimer(at) => Wish::Timer(Who::Lease, at),
                lease::Effect::Retire(..) | lease::Effect::Retired => unreachable!("not asked for"),
                lease::Effect::Fence(_) if self.is_held(now) => continue,
                lease::Effect::Fence(loss) => Wish::Fence(loss),
            });
        }
    }

    fn lease_record(&self, now: u64, write: u64) -> lease::Record {
        lease::Record {
            node: self.node(),
            session: self.session(),
            write,
            ttl: TTL,
            written: self.wall(now),
            disk: DiskId::parse(&"0".repeat(32)).expect("a good disk"),
            protocol: 1,
            address: None,
            version: "0".into(),
            load: lease::Load::default(),
        }
    }

    /// A client or the shard asks.
    fn asked(&mut self, now: u64, op: Op, wishes: &mut Vec<Wish>) {
        if !self.is_held(now) {
            return;
        }
        let cell = op.cell;
        match self.cells.get_mut(&cell).map(|cell| &mut cell.phase) {
            None => match op.kind {
                Kind::Write(_) | Kind::Read => self.activate(now, op, wishes),
                Kind::Release | Kind::Evict | Kind::Reset => {}
            },
            Some(Phase::Claiming { .. }) => match op.kind {
                Kind::Write(_) | Kind::Read => {
                    self.cells.get_mut(&cell).expect("it is there").waiting.push_back(op);
                }
                Kind::Reset => drop(self.cells.remove(&cell)),
                Kind::Release | Kind::Evict => {}
            },
            Some(Phase::Serving(_)) => self.serve(now, op, wishes),
        }
    }
    fn activate(&mut self, now: u64, op: Op, wishes: &mut Vec<Wish>) {
        self.activations += 1;
        let cell = op.cell;
        let me = Me { owner: self.owner.clone(), serving: None };
        let claim =
            Claim::new(me, claim::Purpose::Placed, self.seed + u128::from(self.activations));
        let phase = Phase::Claiming { claim, history: vec![], read: None, wrote: None };
        let waiting = VecDeque::from([op]);
        self.cells.insert(cell, Cell { activation: self.activations, waiting, phase });
        self.tell_claim(now, cell, claim::Event::Started, wishes);
    }
    fn tell_claim(&mut self, now: u64, cell: usize, event: claim::Event, wishes: &mut Vec<Wish>) {
        let Some(Cell {
            activation, phase: Phase::Claiming { claim, history, read, wrote }, ..
        }) = self.cells.get_mut(&cell)
        else {
            return;
        };
        let (of, broken) = (*activation, self.broken);
        let mut effects = vec![];
        claim.on_event(Mono::from_micros(now), event, &mut effects);
        for effect in effects {
            match effect {
                claim::Effect::ReadOwner => {
                    wishes.push(Wish::Request(Tag::Owner(cell, of), Request::GetOwn { cell }));
                }
                claim::Effect::ReadLease(owner) => {
                    let request = Request::GetLease { node: owner.node.clone() };
                    wishes.push(Wish::Request(Tag::OwnerLease(cell, of, owner, now), request));
                }
                claim::Effect::Cas { guard, record } => {
                    *wrote = Some(record.clone());
                    let is_rebase = record.is_based() && !history.is_empty();
                    let reused = self.left.get(&cell).filter(|(left, _)| {
                        read.as_ref().is_some_and(|(record, _)| record == left)
                            && broken == Broken::EpochReused
                    });
                    if is_rebase && broken == Broken::RebaseSkipped {
                        let applied =
                            CasOutcome::Applied(etag(&Body(record.encode(&cell_id(cell)))));
                        return self.tell_claim(now, cell, claim::Event::Written(applied), wishes);
                    }
                    if let Some((record, etag)) = reused {
                        // Serves the epoch it had before, after a restore as for any other.
                        let (record, etag) = (record.clone(), etag.clone());
                        *read = Some((record.clone(), etag));
                        return wishes.push(restore(cell, of, record, broken));
                    }
                    let guard = Some(guard).filter(|_| broken != Broken::GuardForgotten);
                    let request =
                        Request::CasOwn { cell, guard, body: Body(record.encode(&cell_id(cell))) };
                    wishes.push(Wish::Request(Tag::Claim(cell, of), request));
                }
                claim::Effect::Restore(record) => wishes.push(restore(cell, of, record, broken)),
                claim::Effect::SetTimer(at) => wishes.push(Wish::Timer(Who::Claim(cell, of), at)),
                claim::Effect::Serve { record, etag } => {
                    return self.open(now, cell, record, etag, wishes);
                }
                claim::Effect::Forward(route) => {
                    let waiting = self.cells.remove(&cell).expect("it is there").waiting;
                    let to = route.owner.session;
                    let redirect = |op| Wish::Redirect(op, to.clone());
                    return wishes.extend(waiting.into_iter().map(redirect));
                }
                claim::Effect::Place | claim::Effect::Send(_) => unreachable!("it is placed"),
                claim::Effect::Fail(failure) => {
                    self.cells.remove(&cell);
                    return wishes.push(Wish::Failed { cell, failure });
                }
            }
        }
    }
    /// The cell is ours: it begins, and what waited is done.
    fn open(&mut self, now: u64, cell: usize, record: Record, etag: Etag, wishes: &mut Vec<Wish>) {
        let entry = self.cells.get_mut(&cell).expect("it is there");
        let Phase::Claiming { history, .. } = &mut entry.phase else { return };
        let history = core::mem::take(history);
        let waiting = core::mem::take(&mut entry.waiting);
        let begin = Txid::new(history.len() as u64);
        wishes.push(Wish::Served { cell, record: record.clone(), history: history.clone() });
        self.left.insert(cell, (record.clone(), etag.clone()));
        entry.phase = Phase::Serving(Serving {
            record,
            etag,
            history,
            proof: Proof::new(begin, PATIENCE),
            gate: Gate::new(begin),
            holds: 0,
            early: None,
        });
        for op in waiting {
            self.asked(now, op, wishes);
        }
    }

    /// A cell that is served does `op`.
    fn serve(&mut self, now: u64, op: Op, wishes: &mut Vec<Wish>) {
        let cell = op.cell;
        let nonce = Nonce::numbered(self.seed, u32::try_from(op.id).expect("few ops"));
        let broken = self.broken;
        let Some(serving) = self.serving(cell) else { return };
        let committed = Txid::new(serving.history.len() as u64);
        match op.kind {
            Kind::Write(value) => {
                serving.history.push(value);
                let txid = committed.next();
                let effects = serving.hold(op);
                self.perform(cell, effects, wishes);
                self.tell_proof(now, cell, proof::Event::Committed(txid), wishes);
                if broken == Broken::GateAtCommit {
                    self.proven(cell, txid, wishes);
                }
            }
            Kind::Read => {
                let effects = serving.hold(op);
                self.perform(cell, effects, wishes);
            }
            Kind::Release | Kind::Evict
                if broken != Broken::ReleaseUnproven && !serving.proof.is_settled() => {}
            Kind::Release => {
                let record = serving.record.release(committed, nonce);
                let guard = Some(Guard::Match(serving.etag.clone()));
                let request =
                    Request::CasOwn { cell, guard, body: Body(record.encode(&cell_id(cell))) };
                wishes.push(Wish::Request(Tag::Release, request));
                self.cells.remove(&cell);
                self.left.remove(&cell);
            }
            Kind::Evict | Kind::Reset => drop(self.cells.remove(&cell)),
        }
    }
    fn serving(&mut self, cell: usize) -> Option<&mut Serving> {
        match &mut self.cells.get_mut(&cell)?.phase {
            Phase::Serving(serving) => Some(serving),
            Phase::Claiming { .. } => None,
        }
    }
    fn proven(&mut self, cell: usize, upto: Txid, wishes: &mut Vec<Wish>) {
        let Some(serving) = self.serving(cell) else { return };
        let mut effects = vec![];
        serving.gate.durable(upto, &mut effects);
        self.perform(cell, effects, wishes);
    }
    fn perform(&mut self, cell: usize, effects: Vec<gate::Effect<Ack>>, wishes: &mut Vec<Wish>) {
        let Some(serving) = self.serving(cell) else { return };
        for effect in effects {
            match effect {
                gate::Effect::Release(Ack { order, op, seen }) => {
                    let history = serving.history[..seen].to_vec();
                    let record = serving.record.clone();
                    wishes.push(Wish::Released { cell, record, order, op, history });
                }
                gate::Effect::Drop(_) => {}
            }
        }
    }
    fn tell_proof(&mut self, now: u64, cell: usize, event: proof::Event, wishes: &mut Vec<Wish>) {
        let Some(of) = self.cells.get(&cell).map(|cell| cell.activation) else { return };
        let (session, broken) = (self.session(), self.broken);
        let Some(serving) = self.serving(cell) else { return };
        let mut effects = vec![];
        serving.proof.on_event(Mono::from_micros(now), event, &mut effects);
        for effect in effects {
            let Some(serving) = self.serving(cell) else { return };
            match effect {
                proof::Effect::Upload { after } => {
                    let (min, max) = (after.get() + 1, serving.history.len() as u64);
                    let start = usize::try_from(after.get()).expect("small");
                    let values = serving.history[start..].to_vec();
                    let segment = (serving.record.epoch, min, max);
                    let session = session.clone();
                    let request = Request::PutSegment { cell, session, segment, values };
                    wishes.push(Wish::Request(Tag::Upload(cell, of, max), request));
                    serving.early = None;
                    if broken == Broken::ReadTooEarly {
                        wishes.push(Wish::Request(Tag::Early(cell, of), Request::GetOwn { cell }));
                    }
                }
                proof::Effect::ReadOwner { number } => {
                    let known = match broken {
                        Broken::ReadTooEarly => serving.early,
                        Broken::ReadSkipped => Some(true),
                        _ => None,
                    };
                    if let Some(still_ours) = known {
                        let event = proof::Event::OwnerRead { asked: number, still_ours };
                        self.tell_proof(now, cell, event, wishes);
                        continue;
                    }
                    let request = Request::GetOwn { cell };
                    wishes.push(Wish::Request(Tag::Proof(cell, of, number), request));
                }
                proof::Effect::Proven(upto) => self.proven(cell, upto, wishes),
                proof::Effect::SetTimer(at) => wishes.push(Wish::Timer(Who::Proof(cell, of), at)),
                proof::Effect::Lost(_) => {
                    let mut effects = vec![];
                    serving.gate.break_now(&mut effects);
                    self.perform(cell, effects, wishes);
                    self.cells.remove(&cell);
                }
            }
        }
    }

    /// The bucket has answered, or nobody has.
    fn answered(&mut self, now: u64, tag: Tag, answer: Answer, wishes: &mut Vec<Wish>) {
        match tag {
            Tag::Release => {}
            Tag::LeaseWrite | Tag::LeaseRead(_) => {
                let begun = if let Tag::LeaseRead(begun) = tag { begun } else { now };
                let event = self.lease_answer(begun, now, answer);
                self.tell_lease(now, event, wishes);
            }
            Tag::Owner(cell, of)
            | Tag::OwnerLease(cell, of, _, _)
            | Tag::Claim(cell, of)
            | Tag::Restore(cell, of)
            | Tag::Upload(cell, of, _)
            | Tag::Proof(cell, of, _)
            | Tag::Early(cell, of)
                if !self.is_at(cell, of) => {}
            Tag::Owner(cell, _) | Tag::Claim(cell, _) => {
                let event = self.claim_answer(cell, answer);
                self.tell_claim(now, cell, event, wishes);
            }
            Tag::OwnerLease(cell, _, owner, begun) => {
                let event = self.owner_lease(begun, now, &owner, answer);
                self.tell_claim(now, cell, event, wishes);
            }
            Tag::Restore(cell, of) => self.restored(now, cell, of, answer, wishes),
            Tag::Upload(cell, _, max) => {
                let event = match answer {
                    Answer::Put => proof::Event::Uploaded { max: Txid::new(max) },
                    Answer::Failed => proof::Event::UploadFailed,
                    other => unreachable!("{other:?}"),
                };
                self.tell_proof(now, cell, event, wishes);
            }
            Tag::Early(cell, _) => {
                let is_ours = self.still_ours(cell, answer);
                if let Some(serving) = self.serving(cell) {
                    serving.early = is_ours;
                }
            }
            Tag::Proof(cell, _, asked) => {
                let event = match self.still_ours(cell, answer) {
                    Some(still_ours) => proof::Event::OwnerRead { asked, still_ours },
                    None => proof::Event::ReadFailed { asked },
                };
                self.tell_proof(now, cell, event, wishes);
            }
        }
    }
    fn lease_answer(&mut self, begun: u64, now: u64, answer: Answer) -> lease::Event {
        match answer {
            Answer::Cas(CasOutcome::Unknown) if self.broken == Broken::LeaseUnknownApplied => {
                lease::Event::Written(CasOutcome::Applied(Etag::new("hoped for")))
            }
            Answer::Cas(outcome) => {
                if let (CasOutcome::Applied(_), Broken::LeaseFromAnswer) = (&outcome, self.broken) {
                    self.believes = Some(now + TTL.as_micros());
                }
                lease::Event::Written(outcome)
            }
            Answer::Object(None) => lease::Event::Read(Seen::Nothing),
            Answer::Object(Some((body, etag))) => {
                let node = self.node();
                self.saw(begun, now, &node, Answer::Object(Some((body, etag.clone()))));
                let record = self.watch.record(&node).expect("it was read");
                let standing = self.watch.standing(&node, &self.ended).expect("it was read");
                lease::Event::Read(record.seen_by(&self.owner.session, etag, standing))
            }
            Answer::Failed => lease::Event::ReadFailed,
            Answer::Put | Answer::History(_) => unreachable!("{answer:?}"),
        }
    }
    fn claim_answer(&mut self, cell: usize, answer: Answer) -> claim::Event {
        let broken = self.broken;
        let Some(Cell { phase: Phase::Claiming { read, wrote, .. }, .. }) =
            self.cells.get_mut(&cell)
        else {
            unreachable!("the activation was looked at")
        };
        match answer {
            Answer::Object(object) => {
                let parse =
                    |(body, etag): (Body, Etag)| (Record::parse(&body.0, &cell_id(cell)), etag);
                *read = object
                    .map(parse)
                    .map(|(record, etag)| (record.expect("only whole records are written"), etag));
                let epoch = read.as_ref().map(|(record, _)| record.epoch);
                if let (Some((record, _)), Some(wrote)) = (&mut *read, wrote)
                    && broken == Broken::NonceIgnored
                    && Some(wrote.epoch) == epoch
                {
                    *record = wrote.clone();
                }
                claim::Event::Owner(Ok(read.clone()))
            }
            Answer::Cas(CasOutcome::Unknown) if broken == Broken::ClaimUnknownApplied => {
                let body = Body(wrote.as_ref().expect("a write").encode(&cell_id(cell)));
                claim::Event::Written(CasOutcome::Applied(etag(&body)))
            }
            Answer::Cas(outcome) => claim::Event::Written(outcome),
            Answer::Failed => claim::Event::ReadFailed,
            Answer::Put | Answer::History(_) => unreachable!("{answer:?}"),
        }
    }
    fn owner_lease(&mut self, begun: u64, now: u64, owner: &Owner, answer: Answer) -> claim::Event {
        if !self.saw(begun, now, &owner.node, answer) {
            return claim::Event::ReadFailed;
        }
        claim::Event::Lease(Ok(self.watch.judge(owner).expect("it was read")))
    }
    /// A read of a lease record has ended.
    fn saw(&mut self, begun: u64, now: u64, node: &NodeId, answer: Answer) -> bool {
        let object = match answer {
            Answer::Object(object) => object,
            Answer::Failed => return false,
            other => unreachable!("{other:?}"),
        };
        let record = object.map(|(body, etag)| {
            (lease::Record::parse(&body.0).expect("only whole records are written"), etag)
        });
        let (begun, ended) = (Mono::from_micros(begun), Mono::from_micros(now));
        let read = lease::Read { begun, ended, record, age_min: Micros::ZERO };
        self.watch.saw(node, read);
        true
    }
    fn restored(&mut self, now: u64, cell: usize, of: u64, answer: Answer, wishes: &mut Vec<Wish>) {
        let Answer::History(values) = answer else {
            if self.broken == Broken::EpochReused {
                // The machine waits for a write that this variant never made.
                return drop(self.cells.remove(&cell));
            }
            return self.tell_claim(now, cell, claim::Event::RestoreFailed, wishes);
        };
        let found = Txid::new(values.len() as u64);
        let Some(Cell { phase: Phase::Claiming { history, read, .. }, activation, .. }) =
            self.cells.get_mut(&cell)
        else {
            return;
        };
        assert_eq!(*activation, of);
        *history = values;
        if self.broken == Broken::EpochReused
            && let Some((record, etag)) = read.clone()
            && self.left.get(&cell).is_some_and(|(left, _)| *left == record)
        {
            return self.open(now, cell, record, etag, wishes);
        }
        self.tell_claim(now, cell, claim::Event::Restored(found), wishes);
    }
    /// `None`: the record could not be read.
    fn still_ours(&mut self, cell: usize, answer: Answer) -> Option<bool> {
        let session = self.session();
        let epoch = self.serving(cell)?.record.epoch;
        let token = FencingToken { epoch, session };
        match answer {
            Answer::Object(object) => Some(object.is_some_and(|(body, _)| {
                Record::parse(&body.0, &cell_id(cell)).is_ok_and(|record| record.is_of(&token))
            })),
            Answer::Failed => None,
            other => unreachable!("{other:?}"),
        }
    }
}

fn restore(cell: usize, activation: u64, record: Record, broken: Broken) -> Wish {
    let ignores_base = broken == Broken::BaseIgnored;
    let request = Request::Restore { cell, record, ignores_base };
    Wish::Request(Tag::Restore(cell, activation), request)
}

impl Serving {
    /// The answer to `op` saw everything up to now.
    fn hold(&mut self, op: Op) -> Vec<gate::Effect<Ack>> {
        self.holds += 1;
        let seen = self.history.len();
        let mut effects = vec![];
        let ack = Ack { order: self.holds, op, seen };
        self.gate.hold(Txid::new(seen as u64), ack, &mut effects);
        effects
    }
}
