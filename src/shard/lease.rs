//! The lease of this node, kept on the io executor: feeds `core::lease`, performs what it wants.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use celld_core::cas::{CasOutcome, Etag, Guard};
use celld_core::lease::{self, Effect, Event, Lease, Loss, Record, Seen, Standing, Watch};
use celld_core::time::{Micros, Mono, Wall};
use celld_rt as rt;
use celld_s3::Bucket;
use futures_util::{SinkExt as _, StreamExt as _};

use crate::shard::{Authority, NodeFacts, now};
use crate::status::Status;

/// How the keeping of a lease has ended.
pub(crate) enum Ended {
    /// The right is over: the process must stop at once.
    Lost(Loss),
    /// It was given up.
    Retired,
}

/// What concerns the lease besides the bucket.
pub(crate) struct Wiring {
    /// Where peers reach the node.
    pub address: Option<String>,
    /// Told once, when the lease is there.
    pub held: rt::oneshot::Sender<()>,
    /// Told when the node owns nothing any more.
    pub retire: rt::oneshot::Receiver<()>,
}

/// Keeps the lease until it is lost or given up.
pub(crate) async fn keep(
    bucket: Bucket,
    facts: Arc<NodeFacts>,
    authority: Arc<Authority>,
    status: Arc<Status>,
    wiring: Wiring,
) -> Ended {
    let Wiring { address, held, retire } = wiring;
    let mut keeper = Keeper {
        bucket,
        lease: Lease::new(facts.ttl),
        watch: Rc::new(RefCell::new(Watch::new(facts.ttl))),
        facts,
        // One answer at a time is under way; the other places are for a late one and the end.
        events: rt::mpsc::channel(3),
        timer: None,
        status,
        address,
    };
    let mut retiring = keeper.events.0.clone();
    rt::spawn(async move {
        if retire.await.is_ok() {
            let _gone = retiring.send(Event::Retire).await;
        }
    });
    let mut held = Some(held);
    let mut effects = Vec::new();
    keeper.lease.on_event(now(), Event::Started, &mut effects);
    loop {
        for effect in effects.drain(..) {
            if let Some(ended) = keeper.perform(effect) {
                return ended;
            }
        }
        // `None`: not granted yet, or given up. Then nothing may begin any more.
        let until = keeper.lease.until();
        authority.lasts(until.unwrap_or_default());
        if until.is_some()
            && let Some(held) = held.take()
        {
            let _gone = held.send(());
        }
        let event = keeper.next().await;
        keeper.lease.on_event(now(), event, &mut effects);
    }
}

struct Keeper {
    bucket: Bucket,
    facts: Arc<NodeFacts>,
    lease: Lease,
    /// What was read of our own record.
    watch: Rc<RefCell<Watch>>,
    events: (rt::mpsc::Sender<Event>, rt::mpsc::Receiver<Event>),
    timer: Option<Mono>,
    status: Arc<Status>,
    address: Option<String>,
}

impl Keeper {
    async fn next(&mut self) -> Event {
        let wait = self.timer.map(|at| Duration::from_micros(at.since(now()).as_micros()));
        let answer = self.events.1.next();
        let event = match wait {
            None => answer.await,
            Some(wait) => match rt::timeout(wait, answer).await {
                Ok(event) => event,
                Err(rt::TimedOut) => {
                    self.timer = None;
                    return Event::TimerFired;
                }
            },
        };
        event.expect("the sender lives beside the receiver")
    }

    fn perform(&mut self, effect: Effect) -> Option<Ended> {
        match effect {
            Effect::Write(write, guard) => self.write(self.record(write, self.facts.ttl), guard),
            Effect::Retire(write, guard) => self.write(self.record(write, Micros::ZERO), guard),
            Effect::Read => self.read(),
            Effect::SetTimer(at) => self.timer = Some(at),
            Effect::Retired => return Some(Ended::Retired),
            Effect::Fence(loss) => return Some(Ended::Lost(loss)),
        }
        None
    }

    fn limit(&self) -> Duration {
        Duration::from_micros(self.lease.attempt_limit().as_micros())
    }

    fn record(&self, write: u64, ttl: Micros) -> Record {
        Record {
            node: self.facts.me.node.clone(),
            session: self.facts.me.session.clone(),
            write,
            ttl,
            written: Wall::from_millis(rt::wall_ms()),
            disk: self.facts.identity.disk.clone(),
            protocol: celld_peer::PROTOCOL.into(),
            address: self.address.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            load: self.status.load(),
        }
    }

    fn write(&self, record: Record, guard: Guard) {
        let (bucket, limit, mut sender) =
            (self.bucket.clone(), self.limit(), self.events.0.clone());
        rt::spawn(async move {
            let (key, body) = (record.node.lease_key(), Bytes::from(record.encode()));
            let written = rt::timeout(limit, bucket.put_if(&key, guard, body)).await;
            let outcome = match written {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(error)) => {
                    rt::log!("celld: the lease cannot be written: {error}");
                    CasOutcome::Unknown
                }
                Err(rt::TimedOut) => CasOutcome::Unknown,
            };
            let _gone = sender.send(Event::Written(outcome)).await;
        });
    }

    fn read(&self) {
        let (bucket, limit, mut sender) =
            (self.bucket.clone(), self.limit(), self.events.0.clone());
        let (facts, watch) = (self.facts.clone(), self.watch.clone());
        rt::spawn(async move {
            let key = facts.me.node.lease_key();
            let begun = now();
            let event = match rt::timeout(limit, bucket.get(&key)).await {
                Ok(Ok(None)) => Event::Read(Seen::Nothing),
                Ok(Ok(Some(object))) => match Record::parse(&object.body) {
                    Ok(record) => Event::Read(see(
                        &facts,
                        &mut watch.borrow_mut(),
                        begun,
                        record,
                        object.etag,
                    )),
                    Err(error) => {
                        rt::log!("celld: {key}: {error}");
                        // Whoever wrote it, it is not ours, and nobody can act on it.
                        Event::Read(Seen::Theirs(object.etag, Standing::Over))
                    }
                },
                Ok(Err(error)) => {
                    rt::log!("celld: the lease cannot be read: {error}");
                    Event::ReadFailed
                }
                Err(rt::TimedOut) => Event::ReadFailed,
            };
            let _gone = sender.send(event).await;
        });
    }
}

/// Our own record was read: is it ours, and if not, may its session still act?
fn see(facts: &NodeFacts, watch: &mut Watch, begun: Mono, record: Record, etag: Etag) -> Seen {
    let node = &facts.me.node;
    let read = lease::Read {
        begun,
        ended: now(),
        record: Some((record.clone(), etag.clone())),
        age_min: Micros::ZERO,
    };
    watch.saw(node, read);
    let standing = watch.standing(node, &facts.identity.ended).expect("it was read just now");
    if let (true, Standing::Until(_)) = (record.session != facts.me.session, standing) {
        rt::log!("celld: waiting for the lease of another session of node {node} to end");
    }
    record.seen_by(&facts.me.session, etag, standing)
}
