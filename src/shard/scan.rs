//! The scan of the wake index, on the io executor: a cell that burns its core does not stop the
//! alarms of others.

use std::rc::Rc;
use std::time::Duration;

use celld_core::wake::scan::{Effect, Event, Page, Scan, VISITS_MAX};
use celld_core::wake::{Entry, PREFIX, Verdict};
use celld_rt as rt;
use celld_s3::Bucket;
use futures_util::future::LocalBoxFuture;
use futures_util::{SinkExt as _, StreamExt as _};

use crate::shard::{now, wall};

/// Asks the shard of the cell.
pub(crate) type Visit = Rc<dyn Fn(Entry) -> LocalBoxFuture<'static, Verdict>>;

/// One timer, one page, and the visits.
const EVENTS_MAX: usize = VISITS_MAX + 8;

/// How often the scan hears which node of the fleet this is.
const RANK_PAUSE: Duration = Duration::from_secs(2);

/// Scans for as long as it is polled. `rank`: which node of the fleet this is, 0 for the first.
pub(crate) async fn run(bucket: Bucket, visit: Visit, rank: impl Fn() -> usize) {
    let (sender, mut events) = rt::mpsc::channel(EVENTS_MAX);
    let io = Io { bucket, visit, sender };
    let mut scan = Scan::default();
    let mut effects = Vec::new();
    let mut event = Event::Ranked(rank());
    loop {
        scan.on_event(now(), wall(), event, &mut effects);
        for effect in effects.drain(..) {
            io.start(effect);
        }
        event = match rt::timeout(RANK_PAUSE, events.next()).await {
            Ok(Some(next)) => next,
            Ok(None) => return,
            Err(rt::TimedOut) => Event::Ranked(rank()),
        };
    }
}

struct Io {
    bucket: Bucket,
    visit: Visit,
    sender: rt::mpsc::Sender<Event>,
}

impl Io {
    /// Each task ends in one event; when the scan has ended nobody takes it.
    fn start(&self, effect: Effect) {
        let bucket = self.bucket.clone();
        let mut sender = self.sender.clone();
        match effect {
            Effect::List(after) => rt::spawn(async move {
                let event = match bucket.list(PREFIX, after.as_deref()).await {
                    Ok(page) => Event::Listed(page_of(page)),
                    Err(error) => {
                        rt::log!("celld: the wake index cannot be listed: {error}");
                        Event::ListFailed
                    }
                };
                let _ended = sender.send(event).await;
            }),
            Effect::Visit(entry) => {
                let verdict = (self.visit)(entry.clone());
                rt::spawn(async move {
                    let event = Event::Visited(entry, verdict.await);
                    let _ended = sender.send(event).await;
                });
            }
            Effect::Delete(entries) => rt::spawn(async move {
                let keys: Vec<String> = entries.iter().map(Entry::key).collect();
                // What stays is visited again.
                let _stays = bucket.delete(&keys).await;
            }),
            Effect::SetTimer(at) => rt::spawn(async move {
                rt::sleep(Duration::from_micros(at.since(now()).as_micros())).await;
                let _ended = sender.send(Event::TimerFired).await;
            }),
        }
    }
}

fn page_of(page: celld_s3::Page) -> Page {
    let last = page.entries.last().map(|entry| entry.key.clone());
    let entries = page.entries.iter().filter_map(|entry| Entry::parse(&entry.key)).collect();
    Page { entries, more: last.filter(|_| page.more) }
}
