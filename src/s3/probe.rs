//! Proves that a store can fence, before a node serves on it.
//!
//! A store that ignores the guard of a conditional write, or answers from an old copy, would let
//! two nodes own one cell. So each promise that the protocol rests on is tried once, on objects
//! below `probe/` that nobody else has, and they are removed afterwards.

use bytes::Bytes;
use celld_core::cas::{CasOutcome, Etag, Guard};

use crate::error::StoreError;
use crate::{Bucket, KEY_BYTES_MAX};

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// What was tried and holds, in this order.
    pub passed: Vec<Step>,
}

/// One promise of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A conditional write creates an object.
    Create,
    /// It does not create it twice.
    CreateTwice,
    /// A read right after a write sees it.
    ReadAfterWrite,
    /// A conditional write replaces the version that it names.
    Update,
    /// It does not replace another version.
    StaleUpdate,
    /// What was refused was not written.
    ReadAfterRefusal,
    /// A ranged read gives exactly the wanted bytes.
    RangedRead,
    /// A listing right after a write has it, and keys that differ in one letter's case are two.
    ListAfterWrite,
    /// The objects of the probe can be removed, and a read right after sees it.
    Delete,
}

/// The store cannot be used, and why.
#[derive(Debug, thiserror::Error)]
pub enum ProbeFault {
    /// It answered, and wrongly. It must not be used.
    #[error("the bucket cannot fence: {step}: {what}; use a store that keeps this promise")]
    Broken {
        /// The promise that it broke.
        step: Step,
        /// What it did.
        what: String,
    },
    /// It did not answer. It may be tried again.
    #[error("the bucket's probe ended without an answer: {step}: {source}")]
    Failed {
        /// What was being tried.
        step: Step,
        /// How it failed.
        source: StoreError,
    },
    /// A conditional write ended without saying how.
    #[error(
        "the bucket's probe ended without an answer: {step}: the write may have applied or \
             not; try again"
    )]
    Unknown {
        /// What was being tried.
        step: Step,
    },
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Step::Create => "a conditional write must create an object",
            Step::CreateTwice => "a second create of the same object must be refused",
            Step::ReadAfterWrite => "a read after a write must see it",
            Step::Update => "a conditional write must replace the version that it names",
            Step::StaleUpdate => "a conditional write that names an old version must be refused",
            Step::ReadAfterRefusal => "a refused write must leave the object as it was",
            Step::RangedRead => "a ranged read must give exactly the wanted bytes",
            Step::ListAfterWrite => "a listing after a write must have it, under its exact key",
            Step::Delete => "a deleted object must be gone",
        })
    }
}

/// Tries what a node relies on.
///
/// # Errors
/// The store breaks a promise, or does not answer.
pub async fn probe(bucket: &Bucket) -> Result<ProbeReport, ProbeFault> {
    let mut run = Run::new(bucket)?;
    let result = run.all().await;
    // Also after a fault: what it leaves behind would only be litter.
    let removed = bucket.delete(&run.keys()).await;
    result?;
    let step = Step::Delete;
    removed.map_err(|source| ProbeFault::Failed { step, source })?;
    let left = bucket.get(&run.key).await.map_err(|source| ProbeFault::Failed { step, source })?;
    run.check(step, left.is_none(), || "a read still finds it".to_owned())?;
    Ok(ProbeReport { passed: run.passed })
}

struct Run<'a> {
    bucket: &'a Bucket,
    prefix: String,
    key: String,
    /// `key` with one letter in the other case.
    other: String,
    passed: Vec<Step>,
}

impl<'a> Run<'a> {
    fn new(bucket: &'a Bucket) -> Result<Self, ProbeFault> {
        let nonce = getrandom::u64().map_err(|error| ProbeFault::Failed {
            step: Step::Create,
            source: StoreError::of("probe/", std::io::Error::other(error)),
        })?;
        let prefix = format!("probe/{nonce:016x}/");
        let (key, other) = (format!("{prefix}object"), format!("{prefix}Object"));
        debug_assert!(key.len() <= KEY_BYTES_MAX);
        Ok(Self { bucket, prefix, key, other, passed: Vec::new() })
    }

    fn keys(&self) -> [String; 2] {
        [self.key.clone(), self.other.clone()]
    }

    async fn all(&mut self) -> Result<(), ProbeFault> {
        let (first, second, refused) =
            (Bytes::from("first 0123456789"), Bytes::from("second 0123456789"), Bytes::from("no"));

        let old = self.applied(Step::Create, Guard::Absent, first.clone()).await?;
        self.reads(Step::ReadAfterWrite, &first, &old).await?;
        self.refused(Step::CreateTwice, Guard::Absent, refused.clone()).await?;
        let new = self.applied(Step::Update, Guard::Match(old.clone()), second.clone()).await?;
        self.check(Step::Update, new != old, || "the new version has the old ETag".to_owned())?;
        self.refused(Step::StaleUpdate, Guard::Match(old), refused).await?;
        self.reads(Step::ReadAfterRefusal, &second, &new).await?;
        self.ranges(&second).await?;
        self.lists(&second).await
    }

    async fn applied(&mut self, step: Step, guard: Guard, body: Bytes) -> Result<Etag, ProbeFault> {
        match self.put_if(step, guard, body).await? {
            CasOutcome::Applied(etag) => {
                self.pass(step);
                Ok(etag)
            }
            CasOutcome::Refused => Err(broken(step, "it was refused")),
            CasOutcome::Unknown => Err(ProbeFault::Unknown { step }),
        }
    }

    async fn refused(&mut self, step: Step, guard: Guard, body: Bytes) -> Result<(), ProbeFault> {
        match self.put_if(step, guard, body).await? {
            CasOutcome::Refused => {
                self.pass(step);
                Ok(())
            }
            CasOutcome::Applied(_) => Err(broken(step, "it was applied")),
            CasOutcome::Unknown => Err(ProbeFault::Unknown { step }),
        }
    }

    async fn put_if(
        &self,
        step: Step,
        guard: Guard,
        body: Bytes,
    ) -> Result<CasOutcome, ProbeFault> {
        let result = self.bucket.put_if(&self.key, guard, body).await;
        result.map_err(|source| ProbeFault::Failed { step, source })
    }

    async fn reads(&mut self, step: Step, body: &Bytes, etag: &Etag) -> Result<(), ProbeFault> {
        let seen = self.bucket.get(&self.key).await;
        let seen = seen.map_err(|source| ProbeFault::Failed { step, source })?;
        match seen {
            Some(object) if object.body != *body => Err(broken(step, "it sees other bytes")),
            Some(object) if object.etag != *etag => Err(broken(step, "it sees another ETag")),
            Some(_) => {
                self.pass(step);
                Ok(())
            }
            None => Err(broken(step, "it finds no object")),
        }
    }

    async fn ranges(&mut self, body: &Bytes) -> Result<(), ProbeFault> {
        let step = Step::RangedRead;
        for (start, end) in [(0, 1), (7, 17), (3, 9), (16, 17)] {
            let seen = self.bucket.get_range(&self.key, start..end).await;
            let seen = seen.map_err(|source| ProbeFault::Failed { step, source })?;
            let exact = seen == body[start as usize..end as usize];
            self.check(step, exact, || format!("{start}..{end} gave {} bytes", seen.len()))?;
        }
        self.pass(step);
        Ok(())
    }

    async fn lists(&mut self, body: &Bytes) -> Result<(), ProbeFault> {
        let step = Step::ListAfterWrite;
        let failed = |source| ProbeFault::Failed { step, source };
        self.bucket.put(&self.other, Bytes::from("other")).await.map_err(failed)?;
        let page = self.bucket.list(&self.prefix, None).await.map_err(failed)?;
        let seen: Vec<_> = page.entries.iter().map(|e| (e.key.as_str(), e.size)).collect();
        let wanted = [(self.other.as_str(), 5), (self.key.as_str(), body.len() as u64)];
        let right = seen == wanted && !page.more;
        self.check(step, right, || format!("{wanted:?} were written and it lists {seen:?}"))?;
        self.pass(step);
        Ok(())
    }

    fn check(
        &self,
        step: Step,
        holds: bool,
        what: impl FnOnce() -> String,
    ) -> Result<(), ProbeFault> {
        if holds { Ok(()) } else { Err(ProbeFault::Broken { step, what: what() }) }
    }

    fn pass(&mut self, step: Step) {
        self.passed.push(step);
    }
}

fn broken(step: Step, what: &str) -> ProbeFault {
    ProbeFault::Broken { step, what: what.to_owned() }
}
