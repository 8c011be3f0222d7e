//! The connections of this executor to a bucket: for each lane its own.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use celld_core::hedge::Hedge;
use celld_rt::http_client::{Limits, Pool};
use http_body_util::Full;

use super::Remote;
use crate::options::Lane;

/// Requests of one shard under way. More only wait in other queues.
pub(crate) const DATA_IN_FLIGHT_MAX: usize = 128;
/// A lease is one write or one read at a time, and one that was given up on.
const LEASE_IN_FLIGHT_MAX: usize = 8;
/// Idle connections kept for bursts.
const IDLE_MAX: usize = 64;
/// Kept open at all times: a commit is an upload and a read.
const DATA_WARM: usize = 2;
const LEASE_WARM: usize = 1;
/// Most stores close an idle connection after 20 s or more; those that are quicker are learnt.
const IDLE: Duration = Duration::from_secs(15);
const CONNECT: Duration = Duration::from_secs(5);
/// A few lost packets are repeated within it.
const SILENCE: Duration = Duration::from_secs(6);

/// What this executor has of one lane of a bucket.
pub(crate) struct Local {
    pub pool: Pool<Full<Bytes>>,
    /// Of reads and of plain writes.
    pub hedges: RefCell<[Hedge; 2]>,
}

struct Known {
    remote: Weak<Remote>,
    lane: Lane,
    local: Rc<Local>,
}

thread_local! {
    static POOLS: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// This executor's connections for `lane` of `remote`.
pub(crate) fn of(remote: &Arc<Remote>, lane: Lane) -> Rc<Local> {
    POOLS.with_borrow_mut(|pools| {
        let found = pools.iter().find(|known| {
            known.lane == lane && std::ptr::eq(known.remote.as_ptr(), Arc::as_ptr(remote))
        });
        if let Some(known) = found {
            return known.local.clone();
        }
        // A bucket that is closed everywhere needs none any more.
        pools.retain(|known| known.remote.strong_count() > 0);
        let limits = match lane {
            Lane::Data => limits(DATA_IN_FLIGHT_MAX, DATA_WARM),
            Lane::Lease => limits(LEASE_IN_FLIGHT_MAX, LEASE_WARM),
        };
        let counts = remote.metrics.connections.clone();
        let pool = Pool::new(remote.origin.clone(), remote.tls.clone(), limits, counts);
        let local = Rc::new(Local { pool, hedges: RefCell::default() });
        pools.push(Known { remote: Arc::downgrade(remote), lane, local: local.clone() });
        local
    })
}

fn limits(in_flight_max: usize, warm: usize) -> Limits {
    let idle_max = IDLE_MAX.min(in_flight_max);
    Limits { in_flight_max, idle_max, idle: IDLE, connect: CONNECT, silence: SILENCE, warm }
}

/// How many connections [`crate::Bucket::warm`] opens.
pub(crate) fn warm_count(lane: Lane) -> usize {
    match lane {
        Lane::Data => DATA_WARM,
        Lane::Lease => LEASE_WARM,
    }
}

/// For jitter: differs between executors and processes, and need not be more than that.
pub(crate) fn random() -> u32 {
    let mut state = RANDOM.get();
    if state == 0 {
        state = getrandom::u64().unwrap_or(0x9e37_79b9_7f4a_7c15) | 1;
    }
    // xorshift64
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    RANDOM.set(state);
    (state >> 32) as u32
}
