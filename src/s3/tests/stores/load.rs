//! Work that goes on while a store misbehaves: increments of one counter, and reads of one object.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_rt::{Task, sleep, spawn_joined};
use celld_s3::Bucket;

use crate::contract::counter::{self, Account};

const COUNTER: &str = "load/counter";
const READ: &str = "load/read";
/// Workers of each kind.
pub const INCREMENTERS: usize = 8;
pub const READERS: usize = 8;

/// Workers under way.
pub struct Load {
    bucket: Bucket,
    /// What the incrementers know.
    pub account: Rc<Account>,
    reads: Rc<Reads>,
    stop: Rc<Cell<bool>>,
    tasks: Vec<Task<()>>,
}

/// What the readers know.
#[derive(Default)]
struct Reads {
    /// When reads succeeded.
    at: RefCell<Vec<Instant>>,
    errors: RefCell<Vec<String>>,
}

impl Load {
    /// Starts them, on a store that is still well.
    pub async fn start(bucket: &Bucket) -> Self {
        counter::start(bucket, COUNTER).await;
        bucket.put(READ, Bytes::from("read")).await.expect("a write");
        let (account, reads, stop) =
            (Rc::<Account>::default(), Rc::<Reads>::default(), Rc::default());
        let mut tasks = Vec::new();
        for _ in 0..INCREMENTERS {
            let stop: Rc<Cell<bool>> = Rc::clone(&stop);
            let (bucket, account) = (bucket.clone(), account.clone());
            tasks.push(spawn_joined(counter::work(bucket, COUNTER.into(), account, move |_| {
                !stop.get()
            })));
        }
        for _ in 0..READERS {
            tasks.push(spawn_joined(read(bucket.clone(), reads.clone(), stop.clone())));
        }
        Self { bucket: bucket.clone(), account, reads, stop, tasks }
    }

    /// Waits until so many increments more were acknowledged.
    ///
    /// # Panics
    /// That takes longer than `limit`.
    pub async fn counts(&self, more: usize, limit: Duration) {
        let (begin, wanted) = (Instant::now(), self.account.applied() + more);
        while self.account.applied() < wanted {
            let (applied, errors) = (self.account.applied(), self.account.errors.borrow());
            assert!(begin.elapsed() < limit, "{applied} of {wanted} after {limit:?}: {errors:?}");
            drop(errors);
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// How long after `instant` a read succeeded that ended after it.
    pub fn first_read_after(&self, instant: Instant) -> Option<Duration> {
        let at = self.reads.at.borrow();
        at.iter().find(|at| **at >= instant).map(|at| *at - instant)
    }

    /// Stops the workers and compares what they know with what the store shows; it must be well
    /// again. Returns the errors of increments and reads.
    pub async fn end(self) -> Vec<String> {
        self.stop.set(true);
        for task in self.tasks {
            task.join().await.expect("no panic");
        }
        let wrong = self.account.check(&self.bucket, COUNTER).await;
        assert_eq!(wrong, [""; 0]);
        let mut errors = self.account.errors.take();
        errors.extend(self.reads.errors.take());
        errors
    }
}

async fn read(bucket: Bucket, reads: Rc<Reads>, stop: Rc<Cell<bool>>) {
    while !stop.get() {
        match bucket.get(READ).await {
            Ok(object) => {
                let object = object.expect("it is there from the start");
                assert_eq!(object.body, "read");
                reads.at.borrow_mut().push(Instant::now());
            }
            Err(error) => {
                reads.errors.borrow_mut().push(error.to_string());
                sleep(Duration::from_millis(20)).await;
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
}
