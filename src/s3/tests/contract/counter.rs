//! One counter that many workers increment by conditional writes: whether any outcome is misread.
//!
//! The object carries the number of each increment that ever applied, in order, so that in the end
//! each worker's account of its writes is compared with what happened: what was *applied* is there
//! once, what was *refused* is not, and what was *unknown* is either. An unknown write is read back,
//! never repeated.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use celld_s3::{Bucket, CasOutcome, Etag, Guard, StoreError};

/// What a worker knows of one of its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Applied,
    Refused,
    /// Neither the answer nor a look says; the account stays open.
    Unknown,
}

/// What all workers know.
#[derive(Default)]
pub struct Account {
    writes: RefCell<BTreeMap<u64, Ended>>,
    /// Ended without an answer that says how.
    pub unknown: Cell<usize>,
    /// Of those, found applied by a look.
    pub found: Cell<usize>,
    /// Other errors of writes and reads.
    pub errors: RefCell<Vec<String>>,
    next: Cell<u64>,
}

/// The counter's object, empty.
pub async fn start(bucket: &Bucket, key: &str) {
    bucket.put(key, Bytes::from("start\n")).await.expect("a write");
}

/// Increments until `go_on` says no. Errors are noted, and waited after.
pub async fn work(
    bucket: Bucket,
    key: String,
    account: Rc<Account>,
    go_on: impl Fn(&Account) -> bool,
) {
    while go_on(&account) {
        let seen = match look(&bucket, &key).await {
            Ok(seen) => seen,
            Err(error) => {
                account.errors.borrow_mut().push(error.to_string());
                celld_rt::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let number = account.next.get() + 1;
        account.next.set(number);
        let ended = increment(&bucket, &key, seen, number, &account).await;
        account.writes.borrow_mut().insert(number, ended);
    }
}

async fn increment(
    bucket: &Bucket,
    key: &str,
    (etag, chain): (Etag, String),
    number: u64,
    account: &Account,
) -> Ended {
    let body = Bytes::from(format!("{chain}{number}\n"));
    match bucket.put_if(key, Guard::Match(etag.clone()), body).await {
        Ok(CasOutcome::Applied(_)) => Ended::Applied,
        Ok(CasOutcome::Refused) => Ended::Refused,
        Ok(CasOutcome::Unknown) => {
            account.unknown.set(account.unknown.get() + 1);
            // One look: while the guard still holds, the write may yet arrive.
            match look(bucket, key).await {
                Ok((_, chain)) if has(&chain, number) => {
                    account.found.set(account.found.get() + 1);
                    Ended::Applied
                }
                Ok((now, _)) if now != etag => Ended::Refused,
                Ok(_) | Err(_) => Ended::Unknown,
            }
        }
        Err(error) => {
            account.errors.borrow_mut().push(error.to_string());
            celld_rt::sleep(Duration::from_millis(20)).await;
            // By the contract of `put_if`: the write did not apply.
            Ended::Refused
        }
    }
}

async fn look(bucket: &Bucket, key: &str) -> Result<(Etag, String), StoreError> {
    let object = bucket.get(key).await?.expect("the counter is there from the start");
    let chain = String::from_utf8(object.body.to_vec()).expect("what we wrote");
    Ok((object.etag, chain))
}

fn has(chain: &str, number: u64) -> bool {
    chain.lines().any(|line| line == number.to_string())
}

impl Account {
    /// How many increments were acknowledged, by an answer or a look.
    pub fn applied(&self) -> usize {
        self.writes.borrow().values().filter(|ended| **ended == Ended::Applied).count()
    }

    /// Compares what is known with what the counter shows. Returns what is wrong.
    pub async fn check(&self, bucket: &Bucket, key: &str) -> Vec<String> {
        let (_, chain) = look(bucket, key).await.expect("a read after the faults");
        let mut wrong = Vec::new();
        let mut times: BTreeMap<u64, usize> = BTreeMap::new();
        for line in chain.lines().skip(1) {
            match line.parse() {
                Ok(number) => *times.entry(number).or_default() += 1,
                Err(_) => wrong.push(format!("{line:?} is none of ours")),
            }
        }
        for (number, ended) in &*self.writes.borrow() {
            let times = times.remove(number).unwrap_or(0);
            let right = match ended {
                Ended::Applied => times == 1,
                Ended::Refused => times == 0,
                Ended::Unknown => times <= 1,
            };
            if !right {
                wrong.push(format!("increment {number}: {ended:?}, and there {times} times"));
            }
        }
        if !times.is_empty() {
            wrong.push(format!("{times:?} were never sent"));
        }
        wrong
    }
}
