//! Calls of other nodes: requests for cells of this one, and questions about it.

use std::rc::Rc;

use celld_core::route::Refusal as Why;
use celld_peer::fetch::{Content, FetchHead, FetchReply, ResponseHead};
use celld_peer::identity::Role;
use celld_peer::{
    BodyReader, Call, CallKind, Code, FrameError, Refusal, Reply as PeerReply, WholeError,
};
use celld_rt as rt;
use celld_v8host::{Encoding, Failure, Redirect, Target};
use futures_lite::FutureExt as _;

use super::forward::{content, pump, read_now};
use super::handover;
use crate::body::{Answered, Asked, Flow, Outcome};
use crate::cell::Via;
use crate::coding::recode;
use crate::host::Reply;
use crate::operator;
use crate::shard::Shard;
use crate::websocket;

/// Answers one call.
pub(crate) async fn answer(shard: Rc<Shard>, call: Call) {
    let is_forbidden = match call.kind {
        CallKind::FETCH | CallKind::RPC | CallKind::TAKE => call.peer.role != Role::Node,
        CallKind::OPERATOR => call.peer.role != Role::Operator,
        _ => false,
    };
    if is_forbidden {
        let words = format!("such calls are not for {}", call.peer);
        return call.reply.refuse(Refusal::new(Code::Forbidden, words));
    }
    match call.kind {
        CallKind::FETCH | CallKind::RPC => fetch(shard, call).await,
        CallKind::OPERATOR => operator::answer(shard, call).await,
        CallKind::TAKE => handover::take(shard, call).await,
        CallKind::PROBE => match shard.status.probe_reply(&shard.facts.me).encode() {
            Ok(head) => {
                // Who has gone does not want it.
                let _gone = call.reply.send(head);
            }
            Err(error) => call.reply.refuse(Refusal::new(Code::Failed, error.to_string())),
        },
        CallKind(kind) => {
            let words = format!("calls of the kind {kind} are not known here");
            call.reply.refuse(Refusal::new(Code::Unsupported, words));
        }
    }
}

async fn fetch(shard: Rc<Shard>, call: Call) {
    let Call { kind, peer, head, body, reply, .. } = call;
    let head = match FetchHead::decode(&head) {
        Ok(head) => head,
        Err(error) => return reply.refuse(Refusal::new(Code::Unsupported, error.to_string())),
    };
    let is_rpc = kind == CallKind::RPC;
    let Some(fleet) = shard.fleet.get() else { return };
    let turn = fleet.arguments.turn(&peer.session, &head.cell, is_rpc && !body.has_come()).await;
    let mut messages = None;
    let body = match head.content {
        Content::Body(len) if is_rpc => {
            let room = match fleet.arguments.room(len) {
                Ok(room) => room,
                Err(why) => return reply.refuse(why),
            };
            match body.whole(room.bytes()).await {
                Ok(message) => Flow::Bytes(message),
                Err(WholeError::Call(_)) => return,
                Err(too_long @ WholeError::TooLong(_)) => {
                    return reply.refuse(Refusal::new(Code::Failed, too_long.to_string()));
                }
            }
        }
        Content::Nothing | Content::Messages if is_rpc => {
            let words = "a call of a method comes with a message";
            return reply.refuse(Refusal::new(Code::Unsupported, words));
        }
        Content::Body(len) => match read_now(body, len).await {
            Ok(body) => body,
            // The caller has gone.
            Err(_) => return,
        },
        Content::Nothing => Flow::Empty,
        Content::Messages => {
            messages = Some(body);
            Flow::Empty
        }
    };
    let target = Target {
        namespace: head.cell.namespace().to_owned(),
        id: head.cell.id().to_owned(),
        class: head.class,
        name: head.name,
    };
    let asked = Asked {
        is_rpc,
        method: head.method,
        url: head.url,
        headers: head.headers,
        body,
        redirect: Redirect::Manual,
    };
    let via = if head.token.is_some() { Via::Routed } else { Via::Placed };
    let (sender, receiver) = rt::oneshot::channel();
    let number = shard.number_asker();
    shard.fetch_cell(target, asked, Reply::Node(number, sender), via);
    drop(turn);
    let answered = async { Some(receiver.await) };
    let gone = async {
        reply.gone().await;
        None
    };
    let Some(answered) = answered.or(gone).await else {
        // The cell goes on without its caller, which its event hears of.
        return shard.abandon(|reply| reply.is_of_node(number));
    };
    let sent = match answered {
        Ok(Ok(outcome)) => send(reply, outcome, messages).await,
        Ok(Err(why)) => {
            reply.refuse(refusal(why));
            Ok(())
        }
        // Its realm has gone; so has what it began.
        Err(_) => return,
    };
    if let Err(error) = sent {
        rt::log!("celld: cell {}: its answer cannot be sent: {error}", head.cell);
    }
}

/// `messages`: what the caller says on the WebSocket that it has asked for.
async fn send(
    reply: PeerReply,
    outcome: Outcome,
    messages: Option<BodyReader>,
) -> Result<(), FrameError> {
    let Answered { status, status_text, headers, body, encoding, web_socket, .. } = match outcome {
        Ok(answered) => answered,
        Err(failure) => return reply.send(FetchReply::Failure(wire(failure)).encode()?),
    };
    if let (Some(end), Some(messages)) = (web_socket, messages) {
        let head = ResponseHead { status, status_text, headers, content: Content::Messages };
        let writer = reply.send_with_body(FetchReply::Response(head).encode()?)?;
        websocket::node::pump(end, messages, writer).await;
        return Ok(());
    }
    let body = recode(body, &headers, encoding, Encoding::Manual);
    let content = content(&body);
    let head = ResponseHead { status, status_text, headers, content };
    let head = FetchReply::Response(head).encode()?;
    match body {
        Flow::Empty => reply.send(head),
        Flow::Bytes(bytes) => reply.send_whole(head, bytes),
        Flow::Stream(..) | Flow::Coded(..) => {
            let writer = reply.send_with_body(head)?;
            pump(body, writer, |writer, why| writer.fail(&wire(why))).await;
            Ok(())
        }
    }
}

fn refusal(why: Why) -> Refusal {
    let (code, words) = match why {
        Why::NotOwner => (Code::NotOwner, "another node owns the cell"),
        Why::Draining => (Code::Draining, "this node gives its cells away"),
        Why::Overloaded => (Code::Busy, "too many requests wait for the cell"),
        Why::Fenced => (Code::NotOwner, "this node may own nothing any more"),
        Why::Unavailable => (Code::Busy, "the cell cannot be activated here now"),
    };
    Refusal::new(code, words)
}

fn wire(failure: Failure) -> celld_peer::fetch::Failure {
    let Failure {
        name,
        message,
        stack,
        remote,
        retryable,
        overloaded,
        durable_object_reset,
        thrown,
    } = failure;
    celld_peer::fetch::Failure {
        name,
        message,
        stack,
        remote,
        retryable,
        overloaded,
        durable_object_reset,
        thrown,
    }
}
