//! Where the response of an event goes.

use std::rc::{Rc, Weak};

use celld_core::route::Refusal;
use celld_rt as rt;
use celld_v8host::{CallId, Failure};

use super::Host;
use crate::body::{Outcome, failure};
use crate::shard::Shard;

/// Who gets the response of an event.
pub(crate) enum Reply {
    /// A task of this shard.
    Task(rt::oneshot::Sender<Outcome>),
    /// JavaScript of this shard, which called `stub.fetch`.
    Call(Weak<Host>, CallId),
    /// Another shard, which has numbered its question.
    Shard(Weak<Shard>, usize, u64),
    /// Another node, which wants to know whether the request has run. The number is the shard's.
    Node(u64, rt::oneshot::Sender<Result<Outcome, Refusal>>),
    /// Nobody: the opening of a cell, its alarm, a message on its WebSocket.
    Nobody,
}

impl Reply {
    /// Whether it goes to this call of this realm.
    pub fn is_of_call(&self, host: &Rc<Host>, call: CallId) -> bool {
        matches!(self, Reply::Call(of, number) if *number == call && of.as_ptr() == Rc::as_ptr(host))
    }

    /// The realm whose JavaScript gets it.
    pub fn realm(&self) -> Weak<Host> {
        match self {
            Self::Call(host, _) => host.clone(),
            Self::Task(_) | Self::Shard(..) | Self::Node(..) | Self::Nobody => Weak::new(),
        }
    }

    /// Whether it goes to this call of another node.
    pub fn is_of_node(&self, number: u64) -> bool {
        matches!(self, Reply::Node(of, _) if *of == number)
    }

    /// Whether it is known here that nobody waits for it any more.
    pub fn is_given_up(&self) -> bool {
        match self {
            Reply::Task(sender) => sender.is_canceled(),
            Reply::Node(_, sender) => sender.is_canceled(),
            Reply::Call(host, call) => host.upgrade().is_none_or(|host| !host.waits_for(*call)),
            Reply::Shard(..) | Reply::Nobody => false,
        }
    }

    /// Delivers the outcome; a receiver that has gone away does not want it.
    pub fn send(self, outcome: Outcome) {
        match self {
            Reply::Task(sender) => {
                let _gone = sender.send(outcome);
            }
            Reply::Call(host, call) => {
                if let Some(host) = host.upgrade() {
                    host.answer_response(call, outcome);
                }
            }
            Reply::Shard(shard, other, call) => {
                if let Some(shard) = shard.upgrade() {
                    shard.answer_shard(other, call, outcome);
                }
            }
            Reply::Node(_, sender) => {
                let _gone = sender.send(Ok(outcome));
            }
            Reply::Nobody => {}
        }
    }

    /// Says that the request has not run here and will not.
    pub fn refuse(self, why: Refusal) {
        match self {
            Reply::Node(_, sender) => {
                let _gone = sender.send(Err(why));
            }
            Reply::Shard(shard, other, call) => {
                if let Some(shard) = shard.upgrade() {
                    shard.refuse_shard(other, call, why);
                }
            }
            Reply::Task(_) | Reply::Call(..) | Reply::Nobody => {
                let text = "the Durable Object cannot be served by this node now";
                self.send(Err(Failure { retryable: true, ..failure("Error", text) }));
            }
        }
    }
}
