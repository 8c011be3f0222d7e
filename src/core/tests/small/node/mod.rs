//! One node of the small fleet: the real machines of one session, and what feeds them. It is also
//! where the protocol can be broken on purpose.

mod cell;

use std::collections::BTreeMap;
use std::{fmt, mem};

use celld_core::cas::{CasOutcome, Etag, Guard};
use celld_core::claim::{self, Claim, Failure};
use celld_core::epoch::Epoch;
use celld_core::gate::Gate;
use celld_core::lease::{self, Lease, Load, Read, Seen, Standing, Watch};
use celld_core::node::{DiskId, NodeId, SessionId};
use celld_core::ownership::{Owner, Record};
use celld_core::proof::{self, Proof};
use celld_core::time::{Micros, Mono, Wall};
use celld_core::txid::Txid;

use super::TTL;
use super::broken::Broken;
use super::bucket::{Answer, History, Request};

/// What a request is for. Of each there is one under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag {
    LeaseWrite,
    LeaseRead,
    /// The one thing that a claim wants.
    Claim,
    Upload,
    /// With the number of the question.
    Proof(u64),
    /// A read begun with the upload: too early to prove it.
    Early,
}

/// A request under way. Its answer, once it took effect, and when that was.
#[derive(Clone, Hash)]
pub struct Flight {
    pub request: Request,
    begun: Mono,
    pub answer: Option<(u64, Answer)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    Lease,
    Cell,
}

pub enum Input {
    Started,
    Timer(Who),
    Answer(Tag, Answer),
    /// A look at the lease of the node with this number.
    Saw(usize, Option<(lease::Record, Etag)>),
    /// A request for the cell, which is not in memory.
    Wake,
    /// A request that writes, to the cell that is served.
    Write(u8),
    Release,
    /// Forget the cell, whatever is under way.
    Reset,
}

/// What a node did.
#[derive(Debug)]
pub enum Deed {
    /// It has given up waiting for this write.
    Abandons(Request),
    Serves(Record, History),
    Acks(Epoch, History),
    Forwards,
    Fails(Failure),
    /// The process is gone.
    Ends(lease::Loss),
}

#[derive(Clone, Hash)]
pub struct Node {
    pub number: usize,
    /// Its sessions, this one included.
    pub lives: u8,
    pub is_up: bool,
    pub lease: Lease,
    /// Of the broken leases: until when it takes itself for an owner.
    believes: Option<Mono>,
    lease_timer: Option<Mono>,
    pub watch: Watch,
    pub flights: BTreeMap<Tag, Flight>,
    activations: u8,
    pub cell: Option<Cell>,
    /// Of the broken local wake: what it served last.
    left: Option<(Record, Etag)>,
}

#[derive(Clone, Hash)]
pub struct Cell {
    timer: Option<Mono>,
    history: History,
    pub phase: Phase,
}

#[derive(Clone, Hash)]
pub enum Phase {
    /// What was read and written last only matters to broken claims.
    Claiming {
        claim: Claim,
        read: Option<(Record, Etag)>,
        wrote: Option<Record>,
    },
    Serving {
        record: Record,
        etag: Etag,
        proof: Proof,
        gate: Gate<usize>,
        early: Option<bool>,
    },
}

/// A node at one moment.
pub struct Turn<'a> {
    pub node: &'a mut Node,
    pub now: Mono,
    pub broken: Broken,
    pub deeds: Vec<Deed>,
}

impl Node {
    /// A node of which no process runs yet.
    pub fn new(number: usize) -> Self {
        Self {
            number,
            lives: 0,
            is_up: false,
            lease: Lease::new(TTL),
            believes: None,
            lease_timer: None,
            watch: Watch::new(TTL),
            flights: BTreeMap::new(),
            activations: 0,
            cell: None,
            left: None,
        }
    }
    /// Its next session, on the same state directory.
    pub fn start(&mut self) {
        *self = Self { lives: self.lives + 1, is_up: true, ..Self::new(self.number) };
    }
    /// The process is gone; the writes that were under way.
    pub fn stop(&mut self) -> Vec<Request> {
        let gone = mem::replace(self, Self { lives: self.lives, ..Self::new(self.number) });
        let requests = gone.flights.into_values().filter(|flight| flight.answer.is_none());
        requests.map(|flight| flight.request).filter(Request::is_write).collect()
    }
    pub fn is_serving(&self) -> bool {
        self.cell.as_ref().is_some_and(|cell| matches!(cell.phase, Phase::Serving { .. }))
    }
    /// Whether all that the cell committed is proven.
    pub fn is_settled(&self) -> bool {
        match self.cell.as_ref().map(|cell| &cell.phase) {
            Some(Phase::Serving { proof, .. }) => proof.is_settled(),
            Some(Phase::Claiming { .. }) | None => false,
        }
    }
    /// Whether it takes itself for an owner.
    pub fn is_held(&self, now: Mono, broken: Broken) -> bool {
        match broken {
            Broken::LeaseFromAnswer | Broken::ExpiryForgotten => {
                let is_believed = self.believes.is_some_and(|until| now < until);
                is_believed || self.lease.is_held(now)
            }
            _ => self.lease.is_held(now),
        }
    }
    pub fn timer(&self, who: Who) -> Option<Mono> {
        match who {
            Who::Lease => self.lease_timer,
            Who::Cell => self.cell.as_ref()?.timer,
        }
    }
    pub fn owner(&self) -> Owner {
        owner(self.number, self.lives)
    }
}

fn owner(node: usize, life: u8) -> Owner {
    let session = SessionId::parse(&format!("{node:016x}{life:016x}")).expect("a good session");
    Owner { node: NodeId::parse(&format!("n{node}")).expect("a good name"), session }
}

/// The number of a node.
fn number_of(node: &NodeId) -> usize {
    node.as_str()[1..].parse().expect("named by a number")
}

impl Turn<'_> {
    /// One event, and all that follows from it at once.
    pub fn take(&mut self, input: Input) {
        // Authority is checked before everything else: a process that stood still wakes up here.
        let is_over = self.node.lease.until().is_some_and(|until| self.now >= until);
        if is_over || self.node.lease.loss().is_some() {
            self.tell_lease(lease::Event::TimerFired);
        }
        if !self.node.is_up || (self.node.lease.loss().is_some() && !self.is_held()) {
            return;
        }
        match input {
            Input::Started => self.tell_lease(lease::Event::Started),
            Input::Timer(Who::Lease) => {
                self.node.lease_timer = None;
                self.tell_lease(lease::Event::TimerFired);
            }
            Input::Timer(Who::Cell) => {
                let Some(cell) = &mut self.node.cell else { return };
                cell.timer = None;
                match cell.phase {
                    Phase::Claiming { .. } => self.tell_claim(claim::Event::TimerFired),
                    Phase::Serving { .. } => self.tell_proof(proof::Event::TimerFired),
                }
            }
            Input::Answer(tag, answer) => self.answered(tag, answer),
            Input::Saw(node, record) => self.saw(&owner(node, 0).node, self.now, record),
            Input::Wake => self.activate(),
            Input::Write(number) => self.write(number),
            Input::Release => self.release(),
            Input::Reset => self.leave(),
        }
    }
    fn is(&self, broken: Broken) -> bool {
        self.broken == broken
    }
    fn is_held(&self) -> bool {
        self.node.is_held(self.now, self.broken)
    }
    fn send(&mut self, tag: Tag, request: Request) {
        let flight = Flight { request, begun: self.now, answer: None };
        let before = self.node.flights.insert(tag, flight);
        assert!(before.is_none(), "{tag:?} is under way already");
    }
    fn answered(&mut self, tag: Tag, answer: Answer) {
        let flight = self.node.flights.remove(&tag).expect("it was under way");
        match (tag, answer) {
            (Tag::LeaseWrite, Answer::Cas(outcome)) => self.lease_written(outcome),
            (Tag::LeaseRead, answer) => self.lease_read(flight.begun, answer),
            (Tag::Claim, answer) => self.claim_answered(&flight, answer),
            (Tag::Upload, Answer::Done) => {
                let Request::Put((_, _, max), _) = flight.request else { unreachable!() };
                self.tell_proof(proof::Event::Uploaded { max: Txid::new(max) });
            }
            (Tag::Upload, _) => self.tell_proof(proof::Event::UploadFailed),
            (Tag::Proof(asked), Answer::Own(own)) => {
                let still_ours = self.still_ours(own.as_ref().map(|(record, _)| record));
                self.tell_proof(proof::Event::OwnerRead { asked, still_ours });
            }
            (Tag::Proof(asked), _) => self.tell_proof(proof::Event::ReadFailed { asked }),
            (Tag::Early, Answer::Own(own)) => {
                let is_ours = self.still_ours(own.as_ref().map(|(record, _)| record));
                if let Some(Phase::Serving { early, .. }) = self.phase() {
                    *early = Some(is_ours);
                }
            }
            (Tag::Early, _) => {}
            (Tag::LeaseWrite, answer) => unreachable!("{answer:?} to a conditional write"),
        }
    }

    // The lease.

    fn tell_lease(&mut self, event: lease::Event) {
        let mut effects = vec![];
        let was_lost = self.node.lease.loss();
        self.node.lease.on_event(self.now, event, &mut effects);
        if self.is(Broken::ExpiryForgotten) && self.node.lease.is_held(self.now) {
            self.node.believes = Some(Mono::from_micros(u64::MAX));
        }
        effects.extend(was_lost.map(lease::Effect::Fence));
        for effect in effects {
            match effect {
                lease::Effect::Write(write, guard) => self.write_lease(write, guard),
                lease::Effect::Read => {
                    self.send(Tag::LeaseRead, Request::GetLease(self.node.number));
                }
                lease::Effect::SetTimer(at) => self.node.lease_timer = Some(at),
                lease::Effect::Fence(_) if self.is_held() => {}
                lease::Effect::Fence(loss) => {
                    let writes = self.node.stop();
                    self.deeds.extend(writes.into_iter().map(Deed::Abandons));
                    self.deeds.push(Deed::Ends(loss));
                    return;
                }
                lease::Effect::Retire(..) | lease::Effect::Retired => unreachable!("not asked for"),
            }
        }
    }
    fn write_lease(&mut self, write: u64, guard: Guard) {
        let Owner { node, session } = self.node.owner();
        let record = lease::Record {
            node,
            session,
            write,
            ttl: TTL,
            written: Wall::from_millis(self.now.as_micros() / 1_000),
            disk: DiskId::parse(&"0".repeat(32)).expect("a good disk"),
            protocol: 1,
            address: None,
            version: "0".into(),
            load: Load::default(),
        };
        self.send(Tag::LeaseWrite, Request::CasLease(self.node.number, guard, record));
    }
    fn lease_written(&mut self, outcome: CasOutcome) {
        let outcome = match outcome {
            CasOutcome::Unknown if self.is(Broken::LeaseUnknownApplied) => {
                CasOutcome::Applied(Etag::new("hoped for"))
            }
            outcome => outcome,
        };
        if self.is(Broken::LeaseFromAnswer) && matches!(outcome, CasOutcome::Applied(_)) {
            self.node.believes = Some(self.now + TTL);
        }
        self.tell_lease(lease::Event::Written(outcome));
    }
    fn lease_read(&mut self, begun: Mono, answer: Answer) {
        let me = self.node.owner();
        let event = match answer {
            Answer::Lease(None) => lease::Event::Read(Seen::Nothing),
            Answer::Lease(Some((record, etag))) => {
                self.saw(&me.node, begun, Some((record.clone(), etag.clone())));
                let ended: Vec<_> = (1..self.node.lives)
                    .map(|life| owner(self.node.number, life).session)
                    .collect();
                let standing = match self.broken {
                    Broken::TwinReplaced => Some(Standing::Over),
                    _ => self.node.watch.standing(&me.node, &ended),
                };
                let standing = standing.expect("it was read");
                lease::Event::Read(record.seen_by(&me.session, etag, standing))
            }
            _ => lease::Event::ReadFailed,
        };
        self.tell_lease(event);
    }
    fn saw(&mut self, node: &NodeId, begun: Mono, record: Option<(lease::Record, Etag)>) {
        let read = Read { begun, ended: self.now, record, age_min: Micros::ZERO };
        self.node.watch.saw(node, read);
    }
}

impl Deed {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Abandons(_) => "writes abandoned",
            Self::Serves(..) => "activations",
            Self::Acks(..) => "acks",
            Self::Forwards => "forwards",
            Self::Fails(_) => "failures",
            Self::Ends(loss) => loss.word(),
        }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abandons(_) | Self::Forwards => f.write_str(self.word()),
            Self::Serves(record, history) => {
                write!(f, "serves epoch {} from {history:?}", record.epoch.get())
            }
            Self::Acks(epoch, history) => {
                write!(f, "acknowledges {history:?} at epoch {}", epoch.get())
            }
            Self::Fails(failure) => write!(f, "{failure}"),
            Self::Ends(loss) => write!(f, "{loss}"),
        }
    }
}
