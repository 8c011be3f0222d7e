//! From a cold cell to one whose database is there and ours: feeds `core::claim` and performs what
//! it wants.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use celld_core::alarm::Stored;
use celld_core::cas::{CasOutcome, Etag};
use celld_core::cell::CellId;
use celld_core::claim::{self, Claim, Effect, Event, Purpose};
use celld_core::compaction::Compactor;
use celld_core::epoch::FencingToken;
use celld_core::ownership::{Me, Owner, Record, Route};
use celld_core::time::Micros;
use celld_rt as rt;
use celld_v8host::{Database, Failure};

use crate::body::failure;
use crate::cell::alarm::stored_of;
use crate::fleet::forward::Destination;
use crate::fleet::members::{Judged, Mute};
use crate::shard::{Shard, now, random};
use crate::storage::restore::{Restored, restore};
use crate::storage::{CellStore, Image, Place};

/// `blockConcurrencyWhile` may take this long, as on Cloudflare.
pub(crate) const SECTION_LIMIT: Duration = Duration::from_secs(30);

/// How long files are kept that others cover: there is no restore to an earlier time yet.
const RETENTION: Micros = Micros::ZERO;

/// A cell that is ours, with its database.
pub(crate) struct Activated {
    pub record: Record,
    pub etag: Etag,
    pub token: FencingToken,
    pub store: CellStore,
    pub database: Database,
    pub compactor: Compactor,
    pub alarm: Option<Stored>,
    /// `ctx.id.name`, as it was when the alarm was set.
    pub name: Option<String>,
}

/// Why a cell is not served here.
pub(crate) enum NotServed {
    /// Another node serves it, or is to.
    Elsewhere(Destination),
    /// It was purged, as was asked: this record stands.
    Purged(Record),
    /// What its callers are told.
    Failed(Failure),
    /// It would be served here, but too many are in memory.
    Full,
}

impl From<Failure> for NotServed {
    fn from(why: Failure) -> Self {
        Self::Failed(why)
    }
}

/// Claims and restores a cell. `key` is its own on this shard, if it is to be in memory.
///
/// # Errors
/// It is not served here now.
pub(crate) async fn activate(
    shard: &Rc<Shard>,
    id: &CellId,
    key: Option<u64>,
    purpose: Purpose,
) -> Result<Activated, NotServed> {
    let me = Me { owner: shard.facts.me.clone(), serving: None };
    let mut claim = Claim::new(me, purpose, random());
    let mut effects = Vec::new();
    let mut has_room = false;
    let mut restored = None;
    let mut restore_error = None;
    claim.on_event(now(), Event::Started, &mut effects);
    loop {
        let Some(effect) = effects.pop() else {
            unreachable!("a claim that is not done wants something")
        };
        let event = match effect {
            Effect::ReadOwner => read_owner(shard, id).await,
            Effect::ReadLease(owner) => read_lease(shard, &owner).await,
            Effect::Cas { guard, record } => {
                // Before the first write: a cell that goes elsewhere takes no room.
                if let Some(key) = key.filter(|_| !has_room)
                    && !shard.take_room(key)
                {
                    return Err(NotServed::Full);
                }
                has_room = true;
                let written =
                    shard.bucket.put_if(&id.own_key(), guard, Bytes::from(record.encode(id))).await;
                // An error says that nothing applied; the machine reads back all the same.
                Event::Written(written.unwrap_or(CasOutcome::Unknown))
            }
            Effect::Restore(record) => {
                let _counted = shard.status.restores();
                let place = Place::new(&shard.facts.state, id);
                match restore(&shard.bucket, id, record.base, record.epoch, place).await {
                    Ok(Restored { image, strays, files, superseded }) => {
                        for stray in strays {
                            rt::log!(
                                "celld: cell {id}: {} does not count: {:?}",
                                stray.key,
                                stray.reason
                            );
                        }
                        let txid = image.position().txid;
                        let compactor = Compactor::new(files, superseded, RETENTION, now());
                        restored = Some((image, compactor));
                        Event::Restored(txid)
                    }
                    Err(error) => {
                        rt::log!("celld: cell {id}: restore failed: {error}");
                        restore_error = Some(error.to_string());
                        Event::RestoreFailed
                    }
                }
            }
            Effect::SetTimer(at) => {
                let wait = Duration::from_micros(at.since(now()).as_micros());
                rt::sleep(wait).await;
                Event::TimerFired
            }
            Effect::Serve { record, etag } => {
                return Ok(open(shard, id, record, etag, restored)?);
            }
            Effect::Purged(record) => return Err(NotServed::Purged(record)),
            Effect::Place => {
                let own = || shard.status.load();
                let fleet = shard.fleet.get();
                let me = &shard.facts.me.node;
                Event::Placed(fleet.and_then(|fleet| fleet.members.place(id, me, own())))
            }
            Effect::Send(node) => {
                return Err(NotServed::Elsewhere(Destination::Placed(node)));
            }
            Effect::Forward(route) => {
                let Some(fleet) = shard.fleet.get() else {
                    return Err(owned_elsewhere(id, &route, Mute::NoAddress).into());
                };
                if let Some(why) = fleet.members.why_mute(&route.owner) {
                    return Err(owned_elsewhere(id, &route, why).into());
                }
                fleet.learn(id, &route);
                return Err(NotServed::Elsewhere(Destination::Owner(route)));
            }
            Effect::Fail(why) => return Err(failed(id, &why, restore_error).into()),
        };
        claim.on_event(now(), event, &mut effects);
    }
}

fn open(
    shard: &Rc<Shard>,
    id: &CellId,
    record: Record,
    etag: Etag,
    restored: Option<(Image, Compactor)>,
) -> Result<Activated, Failure> {
    let broken = |error: &dyn std::fmt::Display| {
        rt::log!("celld: cell {id}: its database cannot be opened: {error}");
        failure("Error", format!("the database of the Durable Object cannot be opened: {error}"))
    };
    let (opened, compactor) = match restored {
        Some((image, compactor)) => (CellStore::open(image), compactor),
        // Nothing is restored only when the cell never existed.
        None => {
            let compactor = Compactor::new(Vec::new(), Vec::new(), RETENTION, now());
            (CellStore::create(Place::new(&shard.facts.state, id)), compactor)
        }
    };
    let (store, connection) = opened.map_err(|error| broken(&error))?;
    let database = Database::new(connection).map_err(|error| broken(&error))?;
    let session = shard.facts.me.session.clone();
    let token = FencingToken { epoch: record.epoch, session };
    let row = database.alarm().map_err(|error| broken(&error))?;
    let name = database.alarm_name().map_err(|error| broken(&error))?;
    let alarm = row.map(stored_of);
    Ok(Activated { record, etag, token, store, database, compactor, alarm, name })
}

async fn read_owner(shard: &Rc<Shard>, id: &CellId) -> Event {
    match shard.bucket.get(&id.own_key()).await {
        Ok(None) => Event::Owner(Ok(None)),
        Ok(Some(object)) => {
            let parsed = Record::parse(&object.body, id);
            Event::Owner(parsed.map(|record| Some((record, object.etag))))
        }
        Err(error) => {
            rt::log!("celld: cell {id}: its owner cannot be read: {error}");
            Event::ReadFailed
        }
    }
}

async fn read_lease(shard: &Rc<Shard>, owner: &Owner) -> Event {
    match shard.members.judge(&shard.bucket, owner).await {
        Judged::Lease(lease) => Event::Lease(Ok(lease)),
        Judged::Damaged(error) => Event::Lease(Err(error)),
        Judged::Unread(error) => {
            rt::log!("celld: the lease of node {} cannot be read: {error}", owner.node);
            Event::ReadFailed
        }
    }
}

fn owned_elsewhere(id: &CellId, route: &Route, why: Mute) -> Failure {
    let wait_ms = route.until.since(now()).as_millis();
    let text = format!(
        "the Durable Object {id} is served by node {} until its lease ends (in {wait_ms} ms at the \
         earliest), and that node {why}",
        route.owner.node
    );
    Failure { retryable: true, ..failure("Error", text) }
}

fn failed(id: &CellId, why: &claim::Failure, restore_error: Option<String>) -> Failure {
    let text = match restore_error {
        Some(error) => format!("the Durable Object {id} cannot be restored: {error}"),
        None => format!("the Durable Object {id} cannot be activated: {why}"),
    };
    rt::log!("celld: {text}");
    let retryable = matches!(why, claim::Failure::Exhausted(_) | claim::Failure::Restore);
    Failure { retryable, ..failure("Error", text) }
}
