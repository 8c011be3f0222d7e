//! How a command meets a fleet: what its bucket says of the nodes, and what proves to them that the
//! command may ask.
//!
//! Bounds: one request to the bucket takes [`REQUEST_LIMIT`]; leases are those of
//! `diagnose::leases`.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use celld_core::fleet::{FLEET_KEY, FleetRecord};
use celld_core::node::{NodeId, SessionId};
use celld_peer::identity::{Identity, Principal, Role};
use celld_s3::{Bucket, StoreError};

/// One request. A store that takes longer is of no use to a lease.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Several times what a fleet record is.
const RECORD_BYTES_MAX: u64 = 4_096;

/// Why a command cannot prove anything.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoIdentity {
    /// No node has ever started here.
    #[error("there is no {FLEET_KEY} in the bucket: no node has started on it yet")]
    Missing,
    /// It is damaged.
    #[error("{FLEET_KEY}: {0}; restore it from a copy")]
    Malformed(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Gives a request to the bucket its time.
///
/// # Errors
/// Its own, or there was no answer in time.
pub(crate) async fn limited<T>(
    key: &str,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    celld_rt::timeout(REQUEST_LIMIT, request).await.unwrap_or_else(|_| {
        let text = format!("no answer within {REQUEST_LIMIT:?}");
        let source = io::Error::new(io::ErrorKind::TimedOut, text);
        Err(StoreError::Unreachable { key: key.to_owned(), source })
    })
}

/// What proves to nodes that we may ask: it is made from the fleet record in the bucket. `name`:
/// what the command is called in their logs.
///
/// # Errors
/// There is no such record that can be used.
pub(crate) async fn identity(
    bucket: &Bucket,
    name: NodeId,
    nonce: u64,
) -> Result<Rc<Identity>, NoIdentity> {
    let listed = limited(FLEET_KEY, bucket.list(FLEET_KEY, None)).await?;
    let size = listed.entries.iter().find(|entry| entry.key == FLEET_KEY).map(|e| e.size);
    if let Some(size) = size.filter(|size| *size > RECORD_BYTES_MAX) {
        let why = format!("it has {size} bytes, too many for a fleet record");
        return Err(NoIdentity::Malformed(why));
    }
    let object = limited(FLEET_KEY, bucket.get(FLEET_KEY)).await?;
    let object = object.ok_or(NoIdentity::Missing)?;
    let session = SessionId::parse(&format!("{nonce:032x}")).expect("32 digits");
    let me = Principal { role: Role::Operator, node: name, session };
    let record = FleetRecord::parse(&object.body);
    let record = record.map_err(|error| NoIdentity::Malformed(error.to_string()))?;
    let made = Identity::new(&record, me);
    made.map(Rc::new).map_err(|error| NoIdentity::Malformed(error.to_string()))
}

/// What `act` makes of each of `items`, in their order, of `at_once` at the same time.
pub(crate) async fn each_of<I, T, F>(
    items: Vec<I>,
    at_once: usize,
    act: impl Fn(I) -> F + 'static,
) -> Vec<T>
where
    I: 'static,
    T: 'static,
    F: Future<Output = T> + 'static,
{
    let act = Rc::new(act);
    let count = items.len();
    let waiting = Rc::new(RefCell::new(items.into_iter().enumerate()));
    let workers: Vec<_> = (0..at_once.min(count))
        .map(|_| {
            let (waiting, act) = (waiting.clone(), act.clone());
            celld_rt::spawn_joined(async move {
                let mut done = Vec::new();
                loop {
                    let next = waiting.borrow_mut().next();
                    let Some((at, item)) = next else { return done };
                    done.push((at, act(item).await));
                }
            })
        })
        .collect();
    let mut all = Vec::with_capacity(count);
    for worker in workers {
        // One that panicked has said so.
        all.extend(worker.join().await.into_iter().flatten());
    }
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_many_is_done_once_in_order_and_few_at_a_time() {
        celld_rt::block_on(async {
            let running = Rc::new(std::cell::Cell::new((0, 0)));
            let count = running.clone();
            let made = each_of((0..50_u64).collect(), 7, move |n| {
                let count = count.clone();
                async move {
                    let (now, most) = count.get();
                    count.set((now + 1, most.max(now + 1)));
                    celld_rt::sleep(Duration::from_millis(n % 3)).await;
                    let (now, most) = count.get();
                    count.set((now - 1, most));
                    n * 2
                }
            });
            assert_eq!(made.await, (0..100).step_by(2).collect::<Vec<u64>>());
            assert_eq!(running.get(), (0, 7));
            assert_eq!(each_of(Vec::new(), 7, |n: u64| async move { n }).await, [0; 0]);
        });
    }
}
