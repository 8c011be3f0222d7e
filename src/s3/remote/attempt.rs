//! Sending: one attempt, and the attempts of a verb.

use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use celld_core::retry::{Decision, Health, Retry};
use celld_core::time::{Micros, Mono};
use celld_rt as rt;
use celld_rt::http_client::{Used, read_body};
use futures_util::future::{Either, select};
use http::header::DATE;
use http::{Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};

use super::answer::{Answer, Failure, Refusal};
use super::clock::http_date;
use super::credentials::CredentialError;
use super::dialect::{Ask, Code};
use super::metrics::Verb;
use super::{Call, Remote, pool};
use crate::options::{Lane, Limits};

/// An answer with an error is read up to here.
const ERROR_BYTES_MAX: u64 = 64 << 10;
/// A first attempt may take so long; each further one twice as long.
const ATTEMPT_FIRST: Duration = Duration::from_secs(8);
/// A longer write is not sent twice: it is slow by its size.
const HEDGED_BYTES_MAX: usize = 256 << 10;
/// More time for what is large: nobody's link is slower.
const BYTES_PER_SECOND_MIN: u64 = 256 << 10;
/// The store's clock is looked at this often.
const DATE_EVERY_MS: i64 = 200;
/// Clocks that differ by less are no reason to sign with the store's.
const SKEW_LEAST_MS: i64 = 1_000;

/// How long an attempt may take.
#[derive(Clone, Copy)]
pub(super) struct Within {
    /// Until the head of the answer, and again until its end; more for what is large.
    pub phase: Duration,
    /// Of the verb.
    pub deadline: Mono,
}

impl Within {
    fn for_bytes(self, bytes: u64) -> Duration {
        let needed = self.phase + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
        needed.min(span(self.deadline.since(now())))
    }
}

impl Call<'_> {
    /// Sends what `make` makes until `read` takes an answer, or it makes no sense to go on. Only for
    /// what may be done twice.
    pub async fn repeated<T>(
        &self,
        verb: Verb,
        make: impl Fn() -> Ask,
        read: impl AsyncFn(Response<Incoming>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let deadline = deadline_of(self.limits);
        let mut retry = Retry::new(self.limits.attempts, deadline);
        let mut limit = ATTEMPT_FIRST;
        self.remote.health().budget.earn();
        loop {
            self.admitted(&mut retry).await?;
            let ask = make();
            let within = Within { phase: limit, deadline };
            let attempt = match hedge_of(verb, &ask).filter(|_| self.remote.hedges) {
                None => self.once(verb, ask, within, &read).await,
                // In a box: large, and of those only who want it.
                Some(kind) => Box::pin(self.hedged(kind, verb, ask, within, &read)).await,
            };
            let failure = match attempt {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            limit *= 2;
            let Some(trouble) = failure.trouble() else { return Err(failure) };
            let decision = {
                let health = &mut self.remote.health();
                retry.on_trouble(now(), trouble, pool::random(), health)
            };
            match decision {
                Decision::GiveUp => return Err(failure),
                Decision::Again(Micros::ZERO) => {}
                Decision::Again(wait) => rt::sleep(span(wait)).await,
            }
            self.remote.metrics.retries.add();
        }
    }

    /// Sends `ask`, and once more beside it when the answer takes longer than nearly all before.
    /// The first good answer counts.
    async fn hedged<T>(
        &self,
        kind: usize,
        verb: Verb,
        ask: Ask,
        within: Within,
        read: &impl AsyncFn(Response<Incoming>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let local = pool::of(self.remote, self.lane);
        let delay = local.hedges.borrow_mut()[kind].on_request();
        let begin = now();
        let first = pin!(self.once(verb, ask.clone(), within, read));
        let result = match select(first, pin!(rt::sleep(delay.map_or(within.phase, span)))).await {
            Either::Left((result, _)) => result,
            Either::Right(((), first)) => {
                if delay.is_none() || !local.hedges.borrow_mut()[kind].may_send() {
                    first.await
                } else {
                    self.remote.metrics.hedges.add();
                    let second = pin!(self.once(verb, ask, within, read));
                    match select(first, second).await {
                        Either::Left((Err(_), second)) => second.await,
                        Either::Right((Err(_), first)) => first.await,
                        Either::Left((result, _)) | Either::Right((result, _)) => result,
                    }
                }
            }
        };
        if result.is_ok() {
            local.hedges.borrow_mut()[kind].observe(now().since(begin));
        }
        result
    }

    /// Sends `ask` once, and hands the answer's head to `read`.
    pub(super) async fn once<T>(
        &self,
        verb: Verb,
        ask: Ask,
        within: Within,
        read: impl AsyncFn(Response<Incoming>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let remote = self.remote;
        remote.metrics.requested(verb);
        let result = self.exchange(ask, within, read).await;
        remote.note(&result);
        result
    }

    async fn exchange<T>(
        &self,
        ask: Ask,
        within: Within,
        read: impl AsyncFn(Response<Incoming>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let late = |_: rt::TimedOut| {
            // A host that is gone takes all connections with it, and says nothing.
            pool::of(self.remote, self.lane).pool.forget_idle();
            Failure::timed_out()
        };
        let sending = within.for_bytes(ask.body.len() as u64);
        let (response, used) = {
            // Pinned, as what follows: it would be moved into the limit, and it is large.
            let sent = pin!(self.send(ask));
            rt::limited(sending, sent).await.map_err(late)??
        };
        let is_whole = response.body().is_end_stream();
        let reading = || within.for_bytes(response.body().size_hint().lower());
        if response.status().is_success() {
            let done = if is_whole {
                read(response).await
            } else {
                let reading = reading();
                let done = pin!(read(response));
                rt::limited(reading, done).await.map_err(late)?
            };
            used.give_back();
            return done;
        }
        let reading = reading();
        let answer = pin!(whole(response, ERROR_BYTES_MAX));
        let answer = rt::limited(reading, answer).await.map_err(late)??;
        used.give_back();
        Err(Failure::Refused(Box::new(Refusal::of(&*self.remote.dialect, &answer))))
    }

    /// Waits until the store may be asked. Leases are not held back: they are few.
    pub async fn admitted(&self, retry: &mut Retry) -> Result<(), Failure> {
        while !self.remote.is_clean.load(Ordering::Relaxed) && self.lane == Lane::Data {
            let admitted = self.remote.health().admit(now());
            let Err(wait) = admitted else { return Ok(()) };
            if now() + wait >= retry.deadline() {
                self.remote.metrics.withheld.add();
                return Err(Failure::Withheld(wait));
            }
            // Not all of those who wait at the same instant.
            let late = wait.as_micros() * u64::from(pool::random() % 256) / 1_024;
            rt::sleep(span(wait + Micros::from_micros(late))).await;
        }
        Ok(())
    }

    /// The connection may carry another request when what it carried was read.
    async fn send(&self, ask: Ask) -> Result<(Response<Incoming>, Used<Full<Bytes>>), Failure> {
        let remote = self.remote;
        let unsigned = |error: &dyn std::fmt::Display| Failure::Unsigned(error.to_string());
        let (mut parts, body) = ask.request(&remote.base).map_err(|error| unsigned(&error))?;
        let sent_ms = rt::wall_ms();
        let signed_ms = sent_ms.saturating_add_signed(remote.skew_ms.load(Ordering::Relaxed));
        let signed = remote.signer.sign(&mut parts, &body, signed_ms).await;
        signed.map_err(|error| match error {
            CredentialError::Lapsed(text) => Failure::NotSent(io::Error::other(&*text)),
            CredentialError::Unavailable(_) | CredentialError::Unsignable(_) => unsigned(&error),
        })?;
        let uri = std::mem::take(&mut parts.uri).into_parts();
        parts.uri = uri.path_and_query.map(Uri::from).unwrap_or_default();
        let request = Request::from_parts(parts, Full::new(body));
        let (response, used) = pool::of(remote, self.lane).pool.exchange(request).await?;
        remote.look_at_clock(sent_ms, &response);
        Ok((response, used))
    }
}

impl Remote {
    /// What an attempt tells about the store, and what is put right for the next one.
    fn note<T>(&self, result: &Result<T, Failure>) {
        let failure = match result {
            Ok(_) => return self.well(),
            Err(failure) => failure,
        };
        if failure.is_of_the_store() {
            self.metrics.failures.add();
            let mut health = self.health();
            self.is_clean.store(false, Ordering::Relaxed);
            if health.circuit.on_failure(now()) {
                self.metrics.outages.add();
            }
            if failure.is_throttle() {
                health.pace.on_refused(now());
            }
        } else if matches!(failure, Failure::Refused(_) | Failure::Malformed(_)) {
            self.well();
        }
        let Failure::Refused(refusal) = failure else { return };
        if refusal.is_denial() {
            self.signer.forget();
        }
        match refusal.code {
            Some(Code::Skewed) => self.use_clock_of(refusal),
            Some(Code::SlowDown) => self.metrics.throttles.add(),
            Some(
                Code::NoSuchKey
                | Code::NoSuchBucket
                | Code::Precondition
                | Code::Exists
                | Code::Conflict
                | Code::BadRange
                | Code::Expired
                | Code::Denied
                | Code::Elsewhere
                | Code::Mangled
                | Code::Server
                | Code::NoSuchUpload
                | Code::NotBuilt
                | Code::Full
                | Code::Other,
            )
            | None => {}
        }
    }

    fn well(&self) {
        if !self.is_clean.load(Ordering::Relaxed) {
            let mut health = self.health();
            health.circuit.on_answer();
            health.pace.on_taken(now());
            self.is_clean.store(health.pace.is_off(), Ordering::Relaxed);
        }
    }

    pub(super) fn health(&self) -> MutexGuard<'_, Health> {
        // Whoever panicked with it has left whole numbers.
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_at_clock(&self, sent_ms: u64, response: &Response<Incoming>) {
        let last = self.looked_ms.load(Ordering::Relaxed);
        if (sent_ms as i64).abs_diff(last) < DATE_EVERY_MS.unsigned_abs() {
            return;
        }
        let received = rt::wall_ms();
        self.looked_ms.store(received as i64, Ordering::Relaxed);
        let date = response.headers().get(DATE).and_then(|date| date.to_str().ok());
        if let Some(date) = date.and_then(http_date) {
            self.offset.observe(sent_ms, received, date);
        }
    }

    /// From now on, requests are signed with the store's clock.
    fn use_clock_of(&self, refusal: &Refusal) {
        let Some(server_ms) = refusal.server_ms else { return };
        let skew = server_ms as i64 - rt::wall_ms() as i64;
        let before = self.skew_ms.swap(skew, Ordering::Relaxed);
        if before == 0 && skew.abs() > SKEW_LEAST_MS {
            rt::log!(
                "celld: the clock of this machine and that of the bucket {} differ by {} s; the \
                 bucket's is used for signatures; set this machine's clock (NTP)",
                self.url,
                skew / 1_000
            );
        }
    }
}

/// The whole answer, if its body has `max` bytes or fewer. A longer one of an error is as good as
/// none.
pub(super) async fn whole(response: Response<Incoming>, max: u64) -> Result<Answer, Failure> {
    let (head, body) = response.into_parts();
    let is_error = !head.status.is_success();
    match read_body(body, max).await {
        Ok(Some(body)) => Ok(Answer { head, body }),
        Ok(None) | Err(_) if is_error => Ok(Answer { head, body: Bytes::new() }),
        Ok(None) => Err(Failure::TooLong(max)),
        Err(source) => Err(Failure::NoAnswer { reused: false, source }),
    }
}

/// Whose latencies a request belongs to. A second write of the same bytes under the same name does
/// no harm; parts of large objects and listings take as long as they take.
fn hedge_of(verb: Verb, ask: &Ask) -> Option<usize> {
    match verb {
        Verb::Get => Some(0),
        Verb::Put if ask.method == Method::PUT && ask.body.len() <= HEDGED_BYTES_MAX => Some(1),
        Verb::Put => None,
        Verb::GetRange | Verb::PutIf | Verb::List | Verb::Delete => None,
    }
}

pub(super) fn now() -> Mono {
    Mono::from_micros(rt::mono_us())
}

/// When a verb that begins now must be over.
pub(super) fn deadline_of(limits: Limits) -> Mono {
    now() + micros(limits.deadline)
}

fn micros(span: Duration) -> Micros {
    Micros::from_micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

fn span(span: Micros) -> Duration {
    Duration::from_micros(span.as_micros())
}
