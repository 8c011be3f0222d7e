//! How calls end that end badly.
//!
//! Invariant: only a call that surely did not run may be made again. Codes are stable.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::FrameError;
use crate::frame::{Code, Refusal};
use crate::identity::{self, IdentityError, Principal};
use crate::mux::{Fate, OpenError};

/// A call has no answer, or its answer broke off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// Whether it may have run.
    pub fate: Fate,
    /// Why.
    pub cause: Cause,
}

/// Why a call, or the connection below it, has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No connection: refused, no route, no answer in time, or ended before it was of use.
    Unreachable(Arc<str>),
    /// Who answers there is none of this fleet, or takes this node for none.
    Foreign(Arc<str>),
    /// Another node or another session answers there: read the lease again.
    Replaced(Box<Principal>),
    /// The other side does not keep to the protocol, or speaks another version.
    Protocol(FrameError),
    /// The head is longer than heads may be.
    Head(FrameError),
    /// A queue here is full. Try again later.
    Busy(&'static str),
    /// The other side has refused or ended the call.
    Refused(Refusal),
    /// The connection ended.
    Lost(Arc<str>),
    /// Nothing was heard from the other side for too long.
    Silent,
    /// The caller's time is over.
    Deadline,
    /// This side has ended the link, or does not want the call any more.
    Closed,
}

impl CallError {
    /// Of a call that surely did not run.
    pub(crate) fn not_sent(cause: Cause) -> Self {
        Self { fate: Fate::NotSent, cause }
    }

    pub(crate) fn of_refusal(refusal: Refusal) -> Self {
        let fate = if refusal.code.has_not_run() { Fate::NotSent } else { Fate::MayHaveRun };
        Self { fate, cause: Cause::Refused(refusal) }
    }

    pub(crate) fn of_open(error: OpenError) -> Self {
        Self::not_sent(match error {
            OpenError::Busy(what) => Cause::Busy(what),
            OpenError::Draining => Cause::Refused(Refusal::new(Code::Draining, error.to_string())),
            OpenError::Head(error) => Cause::Head(error),
        })
    }

    /// For logs, metrics and scripts.
    pub fn code(&self) -> &'static str {
        match &self.cause {
            Cause::Unreachable(_) => "peer_unreachable",
            Cause::Foreign(_) => "peer_foreign",
            Cause::Replaced(_) => "peer_replaced",
            Cause::Protocol(_) => "peer_protocol",
            Cause::Head(_) => "head_too_long",
            Cause::Busy(_) => "peer_busy",
            Cause::Refused(refusal) => match refusal.code {
                Code::Gone => "call_gone",
                Code::NotOwner => "not_owner",
                Code::Busy => "peer_busy",
                Code::Draining => "peer_draining",
                Code::Unsupported => "call_unsupported",
                Code::Failed => "call_failed",
                Code::Forbidden => "call_forbidden",
                Code::Broken => "body_broken",
            },
            Cause::Lost(_) => "peer_lost",
            Cause::Silent => "peer_silent",
            Cause::Deadline => "deadline",
            Cause::Closed => "link_closed",
        }
    }

    /// Whether it makes sense to try again: it did not run, and what kept it from running may
    /// pass. After `not_owner` and `peer_replaced` with what the bucket says now.
    pub fn retryable(&self) -> bool {
        let may_pass = match &self.cause {
            Cause::Foreign(_) | Cause::Protocol(_) | Cause::Head(_) | Cause::Deadline => false,
            Cause::Refused(refusal) => match refusal.code {
                Code::NotOwner | Code::Busy | Code::Draining => true,
                Code::Gone | Code::Unsupported | Code::Failed | Code::Forbidden | Code::Broken => {
                    false
                }
            },
            Cause::Unreachable(_)
            | Cause::Replaced(_)
            | Cause::Busy(_)
            | Cause::Lost(_)
            | Cause::Silent
            | Cause::Closed => true,
        };
        self.fate == Fate::NotSent && may_pass
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)?;
        match self.fate {
            Fate::NotSent => f.write_str("; the call did not run"),
            Fate::MayHaveRun => f.write_str("; the call may have run"),
        }
    }
}

impl std::error::Error for CallError {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(words) => write!(f, "the peer cannot be reached: {words}"),
            Self::Foreign(words) => {
                write!(f, "the peer is not of this fleet, or this node not of the peer's: {words}")
            }
            Self::Replaced(found) => write!(f, "another one answers there: {found}"),
            Self::Protocol(error) | Self::Head(error) => error.fmt(f),
            Self::Busy(what) => f.write_str(what),
            Self::Refused(refusal) => match refusal.words.as_str() {
                "" => write!(f, "the peer refused ({:?})", refusal.code),
                words => write!(f, "the peer refused: {words}"),
            },
            Self::Lost(words) => write!(f, "the connection to the peer ended: {words}"),
            Self::Silent => f.write_str("the peer was silent for too long"),
            Self::Deadline => f.write_str("the call's time is over"),
            Self::Closed => f.write_str("the link was closed on this side"),
        }
    }
}

impl Cause {
    /// Of a connection that is being opened.
    pub(crate) fn of_opening(error: &io::Error) -> Self {
        use rustls::AlertDescription as Alert;
        let words: Arc<str> = error.to_string().into();
        match celld_rt::tls::tls_error(error) {
            Some(tls) if identity::is_foreign(tls) => Self::Foreign(words),
            // The other side tells so of our certificate.
            Some(rustls::Error::AlertReceived(
                Alert::UnknownCA | Alert::DecryptError | Alert::CertificateRequired,
            )) => Self::Foreign(words),
            Some(_) | None => Self::Unreachable(words),
        }
    }

    /// Of a connection that was in use.
    pub(crate) fn of_use(error: &io::Error) -> Self {
        Self::Lost(match error.kind() {
            io::ErrorKind::UnexpectedEof => "it broke off".into(),
            _ => error.to_string().into(),
        })
    }
}

impl From<IdentityError> for Cause {
    fn from(error: IdentityError) -> Self {
        Self::Foreign(error.to_string().into())
    }
}
