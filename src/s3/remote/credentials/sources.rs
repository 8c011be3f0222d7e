//! The sources of one load, one after the other, and what is said when none has a credential.

use std::error::Error as _;
use std::fmt::Write as _;

use reqsign_core::{Context, Error, ProvideCredential};

use super::context::Failures;
use super::{Credential, CredentialError};

/// Of what is said of one source: enough for some URLs and how each ended, and not all that a
/// server has answered.
const WHY_CHARS_MAX: usize = 600;

/// What was tried so far, and how each ended.
pub(super) struct Search {
    /// As an operator names the store.
    store: &'static str,
    /// What an operator does about it.
    advice: &'static str,
    context: Context,
    failures: Failures,
    tried: Vec<String>,
}

impl Search {
    pub(super) fn new(
        store: &'static str,
        advice: &'static str,
        (context, failures): (Context, Failures),
    ) -> Self {
        Self { store, advice, context, failures, tried: Vec::new() }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Asks a source. `absent` says why it has nothing, when it says so.
    ///
    /// # Errors
    /// It is configured and failed: no other source is asked.
    pub(super) async fn ask<P: ProvideCredential>(
        &mut self,
        source: &str,
        absent: &str,
        provider: P,
        read: impl FnOnce(P::Credential) -> Result<Credential, String>,
    ) -> Result<Option<Credential>, CredentialError> {
        let result = provider.provide_credential(&self.context).await;
        let failures = self.failures.take();
        match result {
            Ok(Some(found)) => match read(found) {
                Ok(credential) => Ok(Some(credential)),
                Err(what) => Err(self.failed(source, &what)),
            },
            Ok(None) if failures.is_empty() => {
                self.absent(source, absent);
                Ok(None)
            }
            Ok(None) => {
                self.absent(source, &failures.join(", "));
                Ok(None)
            }
            Err(error) => Err(self.failed(source, &describe(&error, &failures))),
        }
    }

    /// A source has nothing, because of `why`.
    pub(super) fn absent(&mut self, source: &str, why: &str) {
        self.tried.push(format!("{source}: {}", shortened(why)));
    }

    /// A source is configured and failed.
    pub(super) fn failed(&mut self, source: &str, what: &str) -> CredentialError {
        self.tried.push(format!("{source} failed: {}", shortened(what)));
        self.nothing()
    }

    /// No source has a credential.
    pub(super) fn nothing(&self) -> CredentialError {
        let Self { store, advice, tried, .. } = self;
        let text = format!("no credential for {store}; tried {}; {advice}", tried.join("; "));
        CredentialError::Unavailable(text.into())
    }
}

/// On one line, and not long.
fn shortened(text: &str) -> String {
    let sign = |sign: char| if sign.is_control() { ' ' } else { sign };
    text.chars().take(WHY_CHARS_MAX).map(sign).collect()
}

/// The library's message with what it knows beside it, its causes, and what failed below it.
fn describe(error: &Error, failures: &[String]) -> String {
    let mut text = error.to_string();
    for context in error.context() {
        write!(text, ", {context}").expect("a string takes all");
    }
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Causes often repeat each other.
        if !text.contains(&said) {
            write!(text, ": {said}").expect("a string takes all");
        }
        cause = error.source();
    }
    for failure in failures {
        write!(text, " ({failure})").expect("a string takes all");
    }
    text
}
