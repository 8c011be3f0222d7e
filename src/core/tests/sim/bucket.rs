//! The bucket of a simulation: it keeps objects, and it plays faults.
//!
//! Each request has two instants: when it takes effect (or never), and when its sender hears of it.
//! Equal bytes have equal ETags, as on S3.

use std::collections::BTreeMap;
use std::fmt;

use celld_core::cas::{CasOutcome, Etag, Guard};
use celld_core::cell::CellId;
use celld_core::epoch::Epoch;
use celld_core::lease;
use celld_core::node::{NodeId, SessionId};
use celld_core::ownership::{Base, Record};
use celld_core::plan::{LtxFile, plan};
use celld_core::time::Wall;
use celld_core::txid::Txid;

use super::checker::Checker;
use super::rng::Rng;

/// After this a sender gives up and takes the end for unknown.
const TIMEOUT: u64 = 3_000_000;

/// An object: its bytes and its version.
type Object = (Body, Etag);

/// The bytes of a record; a trace shows them as text.
#[derive(Clone, PartialEq, Eq)]
pub struct Body(pub Vec<u8>);

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[derive(Debug)]
pub enum Request {
    GetOwn {
        cell: usize,
    },
    CasOwn {
        cell: usize,
        guard: Option<Guard>,
        body: Body,
    },
    GetLease {
        node: NodeId,
    },
    CasLease {
        node: NodeId,
        guard: Guard,
        body: Body,
        session: SessionId,
        sent_at: u64,
    },
    PutSegment {
        cell: usize,
        session: SessionId,
        segment: Segment,
        values: Vec<u64>,
    },
    /// List and read, filtered by the record's base unless it is to be ignored.
    Restore {
        cell: usize,
        record: Record,
        ignores_base: bool,
    },
}

/// The name of a segment: its epoch, its first and its last commit.
pub type Segment = (Epoch, u64, u64);

#[derive(Debug)]
pub enum Answer {
    Object(Option<Object>),
    Cas(CasOutcome),
    Put,
    History(Vec<u64>),
    /// No answer, to anything but a conditional write.
    Failed,
}

/// Which faults a seed has, in ten-thousandths of all requests or effects.
#[derive(Debug)]
pub struct Faults {
    pub slow: u64,
    pub lost: u64,
    pub late: u64,
    pub throttled: u64,
    /// Applied, and refused when something on the way repeated it.
    pub refused: u64,
    pub crash: u64,
    pub pause: u64,
    /// A second process of the same node starts while the first lives.
    pub twin: u64,
    /// Somebody deletes the lease records that are over by the middle of all clocks.
    pub sweep: u64,
    /// Clocks differ by up to this.
    pub skew_ms: u64,
}

/// What becomes of a request.
pub struct Fate {
    pub apply_after: Option<u64>,
    pub answer_after: u64,
    pub hears: Hears,
}

#[derive(PartialEq, Eq)]
pub enum Hears {
    Truth,
    Nothing,
    Refusal,
}

impl Faults {
    /// Each fault exists in half of the seeds.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut rate = |max| if rng.chance(5_000) { rng.range(1, max) } else { 0 };
        Self {
            slow: rate(3_000),
            lost: rate(800),
            late: rate(800),
            throttled: rate(1_500),
            refused: rate(500),
            crash: rate(60),
            pause: rate(60),
            twin: rate(120),
            sweep: rate(200),
            skew_ms: if rng.chance(6_000) { 200 } else { 15_000 },
        }
    }
    /// The end of all faults, except that the clocks stay as they are.
    pub fn heal(&mut self) {
        *self = Self {
            slow: 0,
            lost: 0,
            late: 0,
            throttled: 0,
            refused: 0,
            crash: 0,
            pause: 0,
            twin: 0,
            sweep: 0,
            skew_ms: self.skew_ms,
        };
    }
    /// Draws what becomes of one request.
    pub fn fate(&self, rng: &mut Rng) -> Fate {
        let mut there = rng.range(500, 30_000);
        let back = rng.range(500, 30_000);
        if rng.chance(self.slow) {
            there += rng.range(0, 1_500_000);
        }
        let slow_back = if rng.chance(self.slow) { rng.range(0, 1_400_000) } else { 0 };
        let truth = Fate {
            apply_after: Some(there),
            answer_after: there + back + slow_back,
            hears: Hears::Truth,
        };
        if rng.chance(self.throttled) {
            return Fate { apply_after: None, hears: Hears::Nothing, ..truth };
        }
        if rng.chance(self.lost) {
            return Fate { answer_after: TIMEOUT, hears: Hears::Nothing, ..truth };
        }
        if rng.chance(self.late) {
            let late = Some(TIMEOUT + rng.range(0, 25_000_000));
            return Fate { apply_after: late, answer_after: TIMEOUT, hears: Hears::Nothing };
        }
        if rng.chance(self.refused) {
            return Fate { hears: Hears::Refusal, ..truth };
        }
        truth
    }
}

#[derive(Default)]
pub struct Bucket {
    own: BTreeMap<usize, Object>,
    leases: BTreeMap<NodeId, Object>,
    segments: BTreeMap<(usize, Segment), Vec<u64>>,
}

impl Bucket {
    /// The request takes effect.
    pub fn apply(&mut self, request: &Request, checker: &mut Checker) -> Answer {
        match request {
            Request::GetOwn { cell } => Answer::Object(self.own.get(cell).cloned()),
            Request::GetLease { node } => Answer::Object(self.leases.get(node).cloned()),
            Request::CasOwn { cell, guard, body } => {
                let before = self.own.get(cell);
                if !guard.as_ref().is_none_or(|guard| holds(guard, before)) {
                    return Answer::Cas(CasOutcome::Refused);
                }
                let before = before.map(|(body, _)| parse(*cell, body));
                checker.own_applied(*cell, before.as_ref(), &parse(*cell, body));
                self.own.insert(*cell, (body.clone(), etag(body)));
                Answer::Cas(CasOutcome::Applied(etag(body)))
            }
            Request::CasLease { node, guard, body, session, sent_at } => {
                if !holds(guard, self.leases.get(node)) {
                    return Answer::Cas(CasOutcome::Refused);
                }
                checker.lease_applied(session, *sent_at);
                self.leases.insert(node.clone(), (body.clone(), etag(body)));
                Answer::Cas(CasOutcome::Applied(etag(body)))
            }
            Request::PutSegment { cell, session, segment, values } => {
                let own = self.own.get(cell).map(|(body, _)| parse(*cell, body));
                let before = self.segments.insert((*cell, *segment), values.clone());
                let is_changed = before.is_some_and(|before| before != *values);
                checker.segment_applied(*cell, session, *segment, own.as_ref(), is_changed);
                Answer::Put
            }
            Request::Restore { cell, record, ignores_base } => {
                Answer::History(self.restore(*cell, record, *ignores_base, checker))
            }
        }
    }
    /// Deletes the leases that are over at `wall`.
    pub fn sweep(&mut self, wall: Wall) {
        self.leases.retain(|_, (body, _)| {
            let record = lease::Record::parse(&body.0).expect("only whole records are written");
            wall < record.written + record.ttl
        });
    }
    /// What the real plan makes of the listing.
    fn restore(
        &self,
        number: usize,
        record: &Record,
        ignores_base: bool,
        checker: &mut Checker,
    ) -> Vec<u64> {
        let cell = cell_id(number);
        let mine = self.segments.keys().filter(|(of, _)| *of == number);
        let keys: Vec<_> = mine
            .map(|(_, (epoch, min, max))| cell.ltx_key(*epoch, 0, Txid::new(*min), Txid::new(*max)))
            .collect();
        let base = if ignores_base { Base::ORIGIN } else { record.base };
        let listing = keys.iter().map(|key| (key.as_str(), 1));
        let plan = match plan(&cell, listing, base, record.epoch) {
            Ok(plan) => plan,
            Err(e) => {
                checker.violated(format!("cell {number}: {e}"));
                return vec![];
            }
        };
        let name = |file: &LtxFile| (file.epoch, file.min.get(), file.max.get());
        let names: Vec<Segment> = plan.files.iter().map(name).collect();
        let history = names.iter().flat_map(|name| &self.segments[&(number, *name)]);
        let history = history.copied().collect();
        checker.restored(number, record.epoch, names);
        history
    }
}

fn holds(guard: &Guard, object: Option<&Object>) -> bool {
    match (guard, object) {
        (Guard::Absent, None) => true,
        (Guard::Match(etag), Some((_, is))) => etag == is,
        (Guard::Absent, Some(_)) | (Guard::Match(_), None) => false,
    }
}

/// The version of an object with this content.
pub fn etag(body: &Body) -> Etag {
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    Etag::new(format!("{:016x}", body.0.iter().fold(0xcbf2_9ce4_8422_2325, hash)))
}

/// The name of a cell of the simulation.
pub fn cell_id(cell: usize) -> CellId {
    CellId::new("sim.Cell", &format!("{cell:064x}")).expect("a good name")
}

fn parse(cell: usize, body: &Body) -> Record {
    Record::parse(&body.0, &cell_id(cell)).expect("only whole records are written")
}
