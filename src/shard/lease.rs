//! The lease of this node, kept on the io executor: feeds `core::lease`, performs what it wants.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use celld_core::cas::CasOutcome;
use celld_core::lease::{Effect, Event, Lease, Loss, Record, Seen};
use celld_core::ownership::Owner;
use celld_core::time::{Micros, Mono, Wall};
use celld_rt as rt;
use celld_s3::Bucket;
use futures_util::{SinkExt as _, StreamExt as _};

use crate::activation::node_key;
use crate::shard::{Authority, now};

/// The peer protocol that this version speaks. Nodes do not talk to each other yet.
const PROTOCOL: u64 = 0;

/// Keeps the lease until it is lost, and then says why. `held` is told once, when it is there.
pub(crate) async fn keep(
    bucket: Bucket,
    me: Owner,
    ttl: Micros,
    authority: Arc<Authority>,
    held: rt::oneshot::Sender<()>,
) -> Loss {
    let mut keeper = Keeper {
        bucket,
        me,
        ttl,
        lease: Lease::new(ttl),
        // One answer at a time is under way; the second place is for a late one.
        events: rt::mpsc::channel(2),
        timer: None,
    };
    let mut held = Some(held);
    let mut effects = Vec::new();
    keeper.lease.on_event(now(), Event::Started, &mut effects);
    loop {
        for effect in effects.drain(..) {
            if let Some(loss) = keeper.perform(effect) {
                return loss;
            }
        }
        if let Some(until) = keeper.lease.until() {
            authority.extend(until);
            if let Some(held) = held.take() {
                let _gone = held.send(());
            }
        }
        let event = keeper.next().await;
        keeper.lease.on_event(now(), event, &mut effects);
    }
}

struct Keeper {
    bucket: Bucket,
    me: Owner,
    ttl: Micros,
    lease: Lease,
    events: (rt::mpsc::Sender<Event>, rt::mpsc::Receiver<Event>),
    timer: Option<Mono>,
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

    fn perform(&mut self, effect: Effect) -> Option<Loss> {
        let limit = Duration::from_micros(self.ttl.as_micros() / 3);
        let (bucket, key) = (self.bucket.clone(), node_key(&self.me.node));
        let mut sender = self.events.0.clone();
        match effect {
            Effect::Write(write, guard) => {
                let record = Record {
                    node: self.me.node.clone(),
                    session: self.me.session.clone(),
                    write,
                    expires: Wall::from_millis(rt::wall_ms()) + self.ttl,
                    protocol: PROTOCOL,
                    address: None,
                };
                rt::spawn(async move {
                    let body = Bytes::from(record.encode());
                    let written = rt::timeout(limit, bucket.put_if(&key, guard, body)).await;
                    let outcome = match written {
                        Ok(Ok(outcome)) => outcome,
                        Ok(Err(error)) => {
                            eprintln!("celld: the lease cannot be written: {error}");
                            CasOutcome::Unknown
                        }
                        Err(rt::TimedOut) => CasOutcome::Unknown,
                    };
                    let _gone = sender.send(Event::Written(outcome)).await;
                });
            }
            Effect::Read => {
                let session = self.me.session.clone();
                rt::spawn(async move {
                    let event = match rt::timeout(limit, bucket.get(&key)).await {
                        Ok(Ok(None)) => Event::Read(Seen::Nothing),
                        Ok(Ok(Some(object))) => match Record::parse(&object.body) {
                            Ok(record) => Event::Read(record.seen_by(&session, object.etag)),
                            Err(error) => {
                                eprintln!("celld: {key}: {error}");
                                // Whoever wrote it, it is not ours.
                                Event::Read(Seen::Theirs(object.etag))
                            }
                        },
                        Ok(Err(error)) => {
                            eprintln!("celld: the lease cannot be read: {error}");
                            Event::ReadFailed
                        }
                        Err(rt::TimedOut) => Event::ReadFailed,
                    };
                    let _gone = sender.send(event).await;
                });
            }
            Effect::SetTimer(at) => self.timer = Some(at),
            Effect::Fence(loss) => return Some(loss),
        }
        None
    }
}
