//! When a credential is used, when it is loaded, and who waits for it: a pure machine.
//!
//! Invariant: at most one load is under way, for all shards together. A credential that is still
//! good is used while the next one is loaded; only the first request of all, and those after an
//! expiry or a 403, wait.
//! Units: `wall_ms` is milliseconds since 1970 by the server's clock, `mono_ms` milliseconds of
//! this process.

use std::sync::Arc;

use super::{Credential, CredentialError};

/// A new credential is wanted so long before the old one ends: Amazon's metadata service has it
/// 5 minutes before, Google's 4.
const LEAD_MS: u64 = 5 * 60_000;
/// A credential is not used for its last seconds: a request is under way for a while.
const MARGIN_MS: u64 = 10_000;
/// Between two loads in the background, when the first failed or brought nothing newer.
const RETRY_MS: u64 = 30_000;
/// A failed load is the answer for so long: a crowd of requests asks the source once.
const FAILURE_MS: u64 = 1_000;
/// Between two loads that a 403 causes: when access is denied for another reason, a new
/// credential changes nothing, and the source is not to be asked for every request.
const FORGET_MS: u64 = 10_000;
/// A source may hand out a credential that is over, as Amazon's does while it has trouble, and
/// the store takes it all the same. It is used, and renewed at this distance.
const OVER_MS: u64 = 60_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) wall_ms: u64,
    pub(super) mono_ms: u64,
}

/// What a request does now.
#[derive(Debug)]
pub(super) enum Answer {
    Use(Arc<Credential>),
    /// Use it, and start a load in the background.
    UseAndLoad(Arc<Credential>),
    /// Start a load, and ask again when it has ended.
    Load,
    /// Ask again when the load that is under way has ended.
    Wait,
    Failed(CredentialError),
}

#[derive(Debug, Default)]
pub(super) struct Cache {
    held: Option<Held>,
    loading: bool,
    /// What the last load said, if it failed, and when.
    failure: Option<(u64, CredentialError)>,
    /// No load in the background before.
    retry_at: u64,
    /// A 403 came: the credential is not used before a load has ended.
    doubted: bool,
    doubted_at: Option<u64>,
}

#[derive(Debug)]
struct Held {
    credential: Arc<Credential>,
    /// Wall times; `None` for one that does not end.
    renew_at: Option<u64>,
    ends_at: Option<u64>,
}

impl Cache {
    pub(super) fn ask(&mut self, now: Now) -> Answer {
        let usable = self.held.as_ref().filter(|held| held.is_good(now) && !self.doubted);
        if let Some(held) = usable {
            let credential = held.credential.clone();
            let due = held.is_due(now);
            if due && !self.loading && now.mono_ms >= self.retry_at {
                self.loading = true;
                return Answer::UseAndLoad(credential);
            }
            return Answer::Use(credential);
        }
        if self.loading {
            return Answer::Wait;
        }
        if let Some((at, error)) = &self.failure
            && now.mono_ms < at + FAILURE_MS
        {
            return Answer::Failed(error.clone());
        }
        self.loading = true;
        Answer::Load
    }

    pub(super) fn is_loading(&self) -> bool {
        self.loading
    }

    /// The load has ended.
    pub(super) fn loaded(&mut self, now: Now, result: Result<Credential, CredentialError>) {
        self.loading = false;
        self.doubted = false;
        self.retry_at = now.mono_ms + RETRY_MS;
        match result {
            Ok(credential) => {
                let held = Held::new(now, credential);
                if !held.is_due(now) {
                    self.retry_at = 0;
                }
                self.failure = None;
                self.held = Some(held);
            }
            // One that is good stays: the source has trouble, and the store may have none. The
            // 403 that made us doubt it may have been about the object.
            Err(CredentialError::Unavailable(text)) if self.held.is_some() => {
                self.failure = Some((now.mono_ms, CredentialError::Lapsed(text)));
            }
            Err(error) => self.failure = Some((now.mono_ms, error)),
        }
    }

    /// The load was dropped before it ended: the next request starts another.
    pub(super) fn abandoned(&mut self) {
        self.loading = false;
    }

    /// The store refused a request: the next one waits for what the sources say now.
    pub(super) fn forget(&mut self, mono_ms: u64) {
        let soon = self.doubted_at.is_some_and(|at| mono_ms < at + FORGET_MS);
        if !soon && !self.loading && self.held.is_some() {
            self.doubted = true;
            self.doubted_at = Some(mono_ms);
            self.failure = None;
        }
    }
}

impl Held {
    fn new(now: Now, credential: Credential) -> Self {
        let ends = credential.expires_ms;
        let (renew_at, ends_at) = match ends.map(|ends| ends.saturating_sub(now.wall_ms)) {
            None => (None, None),
            Some(0) => (Some(now.wall_ms + OVER_MS), None),
            // Short lives have short margins.
            Some(life) => {
                let ends = now.wall_ms + life;
                (Some(ends - LEAD_MS.min(life / 4)), Some(ends - MARGIN_MS.min(life / 10)))
            }
        };
        Self { credential: Arc::new(credential), renew_at, ends_at }
    }

    fn is_due(&self, now: Now) -> bool {
        self.renew_at.is_some_and(|at| now.wall_ms >= at)
    }

    fn is_good(&self, now: Now) -> bool {
        self.ends_at.is_none_or(|ends| now.wall_ms < ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now { wall_ms: 1_700_000_000_000 + seconds * 1_000, mono_ms: 50 + seconds * 1_000 }
    }

    /// One that ends `seconds` after the beginning of the test.
    fn until(seconds: u64) -> Result<Credential, CredentialError> {
        Ok(Credential::anonymous().until(at(seconds).wall_ms))
    }

    fn broken(text: &str) -> Result<Credential, CredentialError> {
        Err(CredentialError::Unavailable(text.into()))
    }

    fn is_used(answer: &Answer) -> bool {
        matches!(answer, Answer::Use(_))
    }

    #[test]
    fn one_load_serves_all_who_wait() {
        let mut cache = Cache::default();
        assert!(matches!(cache.ask(at(0)), Answer::Load));
        assert!(matches!(cache.ask(at(0)), Answer::Wait));
        cache.loaded(at(1), until(3_600));
        assert!(is_used(&cache.ask(at(1))));
        assert!(is_used(&cache.ask(at(3_200))));
    }

    #[test]
    fn a_credential_is_renewed_before_its_end_while_it_is_used() {
        let mut cache = Cache::default();
        cache.ask(at(0));
        cache.loaded(at(0), until(3_600));
        assert!(is_used(&cache.ask(at(3_299))));
        assert!(matches!(cache.ask(at(3_300)), Answer::UseAndLoad(_)));
        assert!(is_used(&cache.ask(at(3_300))), "one load is enough");
        cache.loaded(at(3_301), broken("no route"));
        assert!(is_used(&cache.ask(at(3_330))), "not again at once");
        assert!(matches!(cache.ask(at(3_331)), Answer::UseAndLoad(_)));
        cache.loaded(at(3_332), until(7_200));
        assert!(is_used(&cache.ask(at(3_589))), "the new one");
        assert!(is_used(&cache.ask(at(6_899))));
    }

    #[test]
    fn a_source_that_hands_out_the_old_one_is_not_asked_all_the_time() {
        let mut cache = Cache::default();
        cache.ask(at(0));
        cache.loaded(at(0), until(3_600));
        assert!(matches!(cache.ask(at(3_300)), Answer::UseAndLoad(_)));
        cache.loaded(at(3_300), Ok(Credential::anonymous().until(at(3_600).wall_ms)));
        // A quarter of what is left of it.
        assert!(is_used(&cache.ask(at(3_301))));
        assert!(is_used(&cache.ask(at(3_524))));
        assert!(matches!(cache.ask(at(3_525)), Answer::UseAndLoad(_)));
    }

    #[test]
    fn nobody_uses_a_credential_that_is_over() {
        let mut cache = Cache::default();
        cache.ask(at(0));
        cache.loaded(at(0), until(3_600));
        assert!(matches!(cache.ask(at(3_589)), Answer::UseAndLoad(_)));
        assert!(matches!(cache.ask(at(3_590)), Answer::Wait));
        cache.loaded(at(3_591), broken("no route"));
        // Not as if there had never been one.
        assert!(matches!(cache.ask(at(3_591)), Answer::Failed(CredentialError::Lapsed(_))));
        assert!(matches!(cache.ask(at(3_592)), Answer::Load), "a failure is believed for a second");
        cache.abandoned();
        assert!(matches!(cache.ask(at(3_592)), Answer::Load), "whoever loaded has gone away");
    }

    #[test]
    fn a_short_life_has_short_margins() {
        let mut cache = Cache::default();
        cache.ask(at(0));
        cache.loaded(at(0), until(40));
        assert!(is_used(&cache.ask(at(29))));
        assert!(matches!(cache.ask(at(30)), Answer::UseAndLoad(_)));
        cache.abandoned();
        assert!(matches!(cache.ask(at(36)), Answer::Load));
    }

    #[test]
    fn what_a_source_calls_over_is_used_and_renewed() {
        let mut cache = Cache::default();
        cache.ask(at(100));
        cache.loaded(at(100), until(50));
        assert!(is_used(&cache.ask(at(159))));
        assert!(matches!(cache.ask(at(160)), Answer::UseAndLoad(_)));
    }

    #[test]
    fn a_403_makes_the_next_request_wait_for_a_load_but_not_every_403() {
        let mut cache = Cache::default();
        cache.ask(at(0));
        cache.loaded(at(0), Ok(Credential::anonymous()));
        assert!(is_used(&cache.ask(at(100_000))), "it has no end");
        cache.forget(at(100_000).mono_ms);
        assert!(matches!(cache.ask(at(100_000)), Answer::Load));
        cache.forget(at(100_000).mono_ms);
        assert!(matches!(cache.ask(at(100_000)), Answer::Wait));
        cache.loaded(at(100_001), Ok(Credential::anonymous()));
        cache.forget(at(100_002).mono_ms);
        assert!(is_used(&cache.ask(at(100_009))), "denied for another reason");
        cache.forget(at(100_010).mono_ms);
        assert!(matches!(cache.ask(at(100_010)), Answer::Load));
        cache.loaded(at(100_011), broken("no route"));
        assert!(
            is_used(&cache.ask(at(100_011))),
            "the source has trouble; the old one may be good"
        );
    }
}
