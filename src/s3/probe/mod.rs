//! Proves that a store can fence, before a node serves on it.
//!
//! A store that ignores the guard of a conditional write, lets two of several writers win, or
//! answers from an old copy, would let two nodes own one cell. So each promise that the protocol
//! rests on is tried, on objects below `probe/` that nobody else has, and they are removed
//! afterwards. A broken promise is final; a request without an answer is tried again on fresh
//! objects, a few times.
//!
//! Bounds: some sixty small requests when all goes well; [`PROBE_LIMIT`] in time.

mod race;
mod rule;
mod trial;

use std::time::Duration;

use crate::error::StoreError;
use crate::{Bucket, Limits};
pub use rule::Rule;
use trial::{Trial, Trouble};

/// A rule is tried this often when requests stay without an answer.
const ATTEMPTS_MAX: u32 = 4;
/// The wait before the second attempt; each further one is four times as long.
const BACKOFF: Duration = Duration::from_millis(200);
/// All of it. Stores that let contending writers wait need seconds for a race.
const PROBE_LIMIT: Duration = Duration::from_secs(90);

/// What a probe found, rule by rule, in the order in which they were tried.
#[derive(Debug)]
#[must_use = "a store that broke a rule must not be used"]
pub struct ProbeReport {
    /// Those that were tried: all, or up to the one that could not be decided.
    pub checks: Vec<Check>,
    /// The store finds a version only when it is named without its quotes. The bucket now does so.
    pub needs_bare_etags: bool,
}

/// One rule, tried.
#[derive(Debug)]
pub struct Check {
    /// Which.
    pub rule: Rule,
    /// How often: more than once when requests stayed without an answer.
    pub attempts: u32,
    /// How long all attempts took together.
    pub took: Duration,
    /// What is wrong; `None`: it holds.
    pub fault: Option<ProbeFault>,
}

/// The store cannot be used, and why.
#[derive(Debug, thiserror::Error)]
pub enum ProbeFault {
    /// It answered, and wrongly. It must not be used.
    #[error("the store breaks a rule: {rule}; sent: {sent}; came back: {came}; {}", rule.stake())]
    Broken {
        /// The rule that it broke.
        rule: Rule,
        /// The stable name of the way in which it broke it.
        code: &'static str,
        /// What was asked.
        sent: String,
        /// What it did.
        came: String,
    },
    /// It did not do what was asked, without breaking a rule. It may be tried again.
    #[error(
        "the store could not be probed: {source} (while it was tried that {rule}; attempts: \
         {attempts}); nothing is known about its rules"
    )]
    Failed {
        /// What was being tried.
        rule: Rule,
        /// How often.
        attempts: u32,
        /// How it failed the last time.
        source: StoreError,
    },
    /// Conditional writes ended without saying how, and reads did not tell either.
    #[error(
        "the store could not be probed: {sent} stayed without an answer (while it was tried that \
         {rule}; attempts: {attempts}); nothing is known about its rules"
    )]
    Unknown {
        /// What was being tried.
        rule: Rule,
        /// How often.
        attempts: u32,
        /// What was asked the last time.
        sent: String,
    },
}

impl ProbeFault {
    /// The stable name of this fault.
    pub fn code(&self) -> &'static str {
        match self {
            ProbeFault::Broken { code, .. } => code,
            ProbeFault::Failed { source: StoreError::Denied { .. }, .. } => "store.denied",
            ProbeFault::Failed { source: StoreError::Full { .. }, .. } => "store.full",
            ProbeFault::Failed { .. } | ProbeFault::Unknown { .. } => "store.unanswered",
        }
    }

    /// What to do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            ProbeFault::Broken { .. } => "use another store, or another version of this one",
            ProbeFault::Failed { source: StoreError::Denied { .. }, .. } => {
                "give this machine's credentials get, put, list and delete rights"
            }
            ProbeFault::Failed { source: StoreError::Full { .. }, .. } => {
                "free space, or raise the quota"
            }
            ProbeFault::Failed { .. } | ProbeFault::Unknown { .. } => {
                "start again when the store answers"
            }
        }
    }
}

impl ProbeReport {
    /// Whether a node may serve on the store.
    ///
    /// # Errors
    /// The first broken rule, or else why the rules could not be tried.
    pub fn verdict(self) -> Result<(), ProbeFault> {
        let faults = self.checks.into_iter().filter_map(|check| check.fault);
        let (broken, rest): (Vec<_>, Vec<_>) =
            faults.partition(|fault| matches!(fault, ProbeFault::Broken { .. }));
        match broken.into_iter().chain(rest).next() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }
}

/// Tries all that a node relies on, and goes on after a broken rule, so that one run tells all.
pub async fn probe(bucket: &Bucket) -> ProbeReport {
    let limits = Limits { deadline: trial::VERB_LIMIT, ..Limits::default() };
    let bucket = &bucket.with_limits(limits);
    let mut report = ProbeReport { checks: Vec::new(), needs_bare_etags: false };
    let mut written = Vec::new();
    let deadline = celld_rt::mono_us() + micros(PROBE_LIMIT);
    for rule in Rule::ALL {
        let mut check = check(bucket, rule, deadline, &mut written).await;
        if rule == Rule::Update && matches!(check.fault, Some(ProbeFault::Broken { .. })) {
            // Whoever keeps the rule then keeps it; the others break it as before.
            bucket.set_bare_etags();
            let bare = self::check(bucket, rule, deadline, &mut written).await;
            if bare.fault.is_none() {
                (report.needs_bare_etags, check) = (true, bare);
            }
        }
        let decided = matches!(check.fault, None | Some(ProbeFault::Broken { .. }));
        report.checks.push(check);
        if !decided {
            break;
        }
    }
    // What cannot be removed is only litter: the rule about deleting has told of it.
    let _litter = celld_rt::timeout(trial::VERB_LIMIT, bucket.delete(&written)).await;
    report
}

/// Tries one rule until it is decided, or attempts or time are over. All keys that it may have
/// written are left in `written`.
async fn check(bucket: &Bucket, rule: Rule, deadline: u64, written: &mut Vec<String>) -> Check {
    let begin = celld_rt::mono_us();
    let mut attempts = 0;
    let fault = loop {
        attempts += 1;
        let left = deadline.saturating_sub(celld_rt::mono_us());
        let result = match Trial::new(bucket, rule) {
            Ok(mut trial) => {
                let result = celld_rt::timeout(Duration::from_micros(left), trial.run()).await;
                written.append(&mut trial.keys);
                result
            }
            Err(trouble) => Ok(Err(trouble)),
        };
        let trouble = match result {
            Ok(Ok(())) => break None,
            Ok(Err(trouble)) => trouble,
            Err(celld_rt::TimedOut) => Trouble::Failed(trial::too_slow("probe/", PROBE_LIMIT)),
        };
        let in_time = celld_rt::mono_us() < deadline;
        if attempts == ATTEMPTS_MAX || !in_time || !trouble.may_pass() {
            break Some(trouble.fault(rule, attempts));
        }
        celld_rt::sleep(BACKOFF * 4_u32.pow(attempts - 1)).await;
    };
    let took = Duration::from_micros(celld_rt::mono_us() - begin);
    Check { rule, attempts, took, fault }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Trouble {
    /// Whether another attempt on fresh objects may end better.
    fn may_pass(&self) -> bool {
        match self {
            Trouble::Broken { .. } => false,
            Trouble::Unknown { .. } => true,
            Trouble::Failed(error) => {
                matches!(error, StoreError::Throttled { .. } | StoreError::Unreachable { .. })
            }
        }
    }

    fn fault(self, rule: Rule, attempts: u32) -> ProbeFault {
        match self {
            Trouble::Broken { code, sent, came } => {
                ProbeFault::Broken { rule, code: code.unwrap_or(rule.code()), sent, came }
            }
            // The client itself has seen that the answer cannot be right.
            Trouble::Failed(StoreError::Broken { key, what }) => {
                let sent = format!("a request for {key}");
                ProbeFault::Broken { rule, code: rule.code(), sent, came: what }
            }
            Trouble::Failed(source) => ProbeFault::Failed { rule, attempts, source },
            Trouble::Unknown { sent } => ProbeFault::Unknown { rule, attempts, sent },
        }
    }
}
