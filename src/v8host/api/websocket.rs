//! Native functions of WebSockets: what goes over an end, and what a cell keeps of its hibernatable
//! ones.

use std::rc::Rc;

use bytes::Bytes;
use v8::{FunctionCallbackArguments, Local, PinScope, ReturnValue};

use super::host::{cell_of, number};
use super::structured_clone::{deserialize, serialize};
use crate::compatibility::{WEBSOCKET_BLOBS, WEBSOCKET_REPLIES};
use crate::convert;
use crate::host::{HostCall, SocketId, SocketMessage};
use crate::op;
use crate::ops::Op;
use crate::sockets::{
    ATTACHMENT_BYTES_MAX, AUTO_BYTES_MAX, AutoResponse, MESSAGE_BYTES_MAX, SOCKETS_MAX, Sockets,
};
use crate::state::RealmState;

/// The native functions of this file. A socket is a number, a cell its slot.
pub const OPS: &[Op] = &[
    op!("socket_flags", socket_flags),
    op!("socket_new", socket_new),
    op!("socket_pair", socket_pair),
    op!("socket_accept", socket_accept),
    op!("socket_hibernate", socket_hibernate),
    op!("socket_send", socket_send),
    op!("socket_close", socket_close),
    op!("socket_buffered", socket_buffered),
    op!("socket_pack", socket_pack),
    op!("socket_unpack", socket_unpack),
    op!("sockets_list", sockets_list),
    op!("sockets_tags", sockets_tags),
    op!("sockets_attach", sockets_attach),
    op!("sockets_attachment", sockets_attachment),
    op!("sockets_answered_at", sockets_answered_at),
    op!("sockets_has_closed", sockets_has_closed),
    op!("sockets_set_auto", sockets_set_auto),
    op!("sockets_auto", sockets_auto),
    op!("sockets_set_timeout", sockets_set_timeout),
    op!("sockets_timeout", sockets_timeout),
];

/// One turn may send this much: two of the longest messages, and small ones for everybody. What a
/// turn sends is in memory until the turn has ended.
const TURN_BYTES_MAX: usize = 64 << 20;

/// `socket_flags() -> bits`: 1 binary messages are Blobs, 2 a Close is answered.
fn socket_flags(scope: &mut PinScope, _args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let state = RealmState::get(scope);
    let bit = |flag, bit| if state.script.has(flag) { bit } else { 0 };
    rv.set_uint32(bit(WEBSOCKET_BLOBS, 1) | bit(WEBSOCKET_REPLIES, 2));
}

/// `socket_new() -> socket`
fn socket_new(_scope: &mut PinScope, _args: FunctionCallbackArguments, mut rv: ReturnValue) {
    rv.set_double(SocketId::fresh().0 as f64);
}

fn socket_of(scope: &mut PinScope, args: &FunctionCallbackArguments, at: i32) -> Option<SocketId> {
    number(scope, args.get(at)).map(SocketId)
}

/// `socket_pair(socket, socket)`: they are the ends of one WebSocket.
fn socket_pair(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let (Some(first), Some(second)) = (socket_of(scope, &args, 0), socket_of(scope, &args, 1))
    else {
        return;
    };
    state.push(HostCall::SocketPair { sockets: [first, second], origin });
}

/// `socket_accept(socket)`
fn socket_accept(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(socket) = socket_of(scope, &args, 0) else { return };
    state.push(HostCall::SocketAccept { socket, origin });
}

/// `socket_hibernate(cell, socket, tags)`
fn socket_hibernate(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(cell) = cell_of(scope, args.get(0)) else { return };
    let Some(socket) = socket_of(scope, &args, 1) else { return };
    let Some(tags) = convert::strings_of(scope, args.get(2)) else { return };
    let Some(sockets) = sockets(scope, &args) else { return };
    if !sockets.insert(socket, &tags) {
        let text = format!(
            "only {SOCKETS_MAX} websockets can be accepted on a single Durable Object instance"
        );
        return convert::throw_error(scope, &text);
    }
    state.push(HostCall::SocketHibernate { socket, cell, origin });
}

/// `socket_send(socket, message)`: a string or bytes.
fn socket_send(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(socket) = socket_of(scope, &args, 0) else { return };
    let value = args.get(1);
    let message = match Local::<v8::String>::try_from(value) {
        Ok(text) => SocketMessage::Text(convert::text_of(scope, text)),
        Err(_) => match convert::bytes_of(value) {
            Some(bytes) => SocketMessage::Binary(Bytes::from(bytes)),
            None => return convert::throw_type_error(scope, "send(): bytes are expected"),
        },
    };
    let length = length_of(&message);
    if length > MESSAGE_BYTES_MAX {
        let text = format!(
            "WebSocket send(): a message of {length} bytes is longer than {MESSAGE_BYTES_MAX} bytes"
        );
        return convert::throw_range_error(scope, &text);
    }
    let bytes = state.socket_bytes.get() + length;
    if bytes > TURN_BYTES_MAX {
        let text = format!(
            "WebSocket send(): more than {TURN_BYTES_MAX} bytes at once; wait for something between messages"
        );
        return convert::throw_error(scope, &text);
    }
    state.socket_bytes.set(bytes);
    state.push(HostCall::SocketSend { socket, origin, message });
}

/// `socket_close(socket, code, reason, cell)`; `cell` when the socket is one of its hibernatable
/// ones, `undefined` otherwise.
fn socket_close(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let state = RealmState::get(scope);
    let Some(origin) = state.io_origin(scope) else { return };
    let Some(socket) = socket_of(scope, &args, 0) else { return };
    let Some(code) = number(scope, args.get(1)).and_then(|code| u16::try_from(code).ok()) else {
        return;
    };
    let Some(reason) = convert::to_string(scope, args.get(2)) else { return };
    if !args.get(3).is_undefined() {
        let Some(cell) = cell_of(scope, args.get(3)) else { return };
        if let Some(sockets) = state.sockets.borrow().get(&cell) {
            sockets.note_closed(socket);
        }
    }
    let message = SocketMessage::Close { code, reason };
    state.push(HostCall::SocketSend { socket, origin, message });
}

/// `socket_buffered(socket) -> bytes`: sent in this turn, and still in it.
fn socket_buffered(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(socket) = socket_of(scope, &args, 0) else { return };
    let state = RealmState::get(scope);
    let calls = state.calls.borrow();
    let bytes: usize = calls
        .iter()
        .filter_map(|call| match call {
            HostCall::SocketSend { socket: sent, message, .. } if *sent == socket => {
                Some(length_of(message))
            }
            _ => None,
        })
        .sum();
    rv.set_double(bytes as f64);
}

fn length_of(message: &SocketMessage) -> usize {
    match message {
        SocketMessage::Text(text) => text.len(),
        SocketMessage::Binary(bytes) => bytes.len(),
        SocketMessage::Close { .. } => 0,
    }
}

/// `socket_pack(value) -> Uint8Array`: an attachment as it is kept.
fn socket_pack(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(bytes) = serialize(scope, args.get(0)) else { return };
    let length = bytes.len();
    if length > ATTACHMENT_BYTES_MAX {
        let text = format!(
            "A WebSocket 'attachment' cannot be larger than {ATTACHMENT_BYTES_MAX} bytes.'attachment' was {length} bytes."
        );
        return convert::throw_error(scope, &text);
    }
    if let Some(array) = convert::uint8_array(scope, Bytes::from(bytes)) {
        rv.set(array.into());
    }
}

/// `socket_unpack(Uint8Array) -> value`
fn socket_unpack(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(bytes) = convert::bytes_of(args.get(0)) else { return };
    if let Some(value) = deserialize(scope, &bytes) {
        rv.set(value);
    }
}

/// The sockets of the cell that the first argument names. `None`: an exception is pending.
fn sockets(scope: &mut PinScope, args: &FunctionCallbackArguments) -> Option<Rc<Sockets>> {
    let cell = cell_of(scope, args.get(0))?;
    let found = RealmState::get(scope).sockets.borrow().get(&cell).cloned();
    if found.is_none() {
        let text =
            "This Durable Object has been reset or evicted: its WebSockets can no longer be used.";
        convert::throw_error(scope, text);
    }
    found
}

/// `sockets_list(cell, tag) -> [socket, …]`; all of them when the tag is `undefined`.
fn sockets_list(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let tag = args.get(1);
    let tag = if tag.is_undefined() { None } else { convert::to_string(scope, tag) };
    let Some(sockets) = sockets(scope, &args) else { return };
    let list = sockets.list(tag.as_deref());
    let list: Vec<Local<v8::Value>> =
        list.iter().map(|socket| v8::Number::new(scope, socket.0 as f64).into()).collect();
    rv.set(v8::Array::new_with_elements(scope, &list).into());
}

/// `sockets_tags(cell, socket) -> [tag, …]`
fn sockets_tags(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(sockets) = sockets(scope, &args) else { return };
    let Some(socket) = socket_of(scope, &args, 1) else { return };
    let tags = sockets.tags(socket).unwrap_or_default();
    let tags: Vec<Local<v8::Value>> =
        tags.iter().map(|tag| convert::string(scope, tag).into()).collect();
    rv.set(v8::Array::new_with_elements(scope, &tags).into());
}

/// `sockets_attach(cell, socket, Uint8Array)`
fn sockets_attach(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(sockets) = sockets(scope, &args) else { return };
    let Some(socket) = socket_of(scope, &args, 1) else { return };
    let Some(bytes) = convert::bytes_of(args.get(2)) else { return };
    sockets.set_attachment(socket, bytes);
}

/// `sockets_attachment(cell, socket) -> Uint8Array | undefined`
fn sockets_attachment(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(sockets) = sockets(scope, &args) else { return };
    let Some(socket) = socket_of(scope, &args, 1) else { return };
    let Some(bytes) = sockets.attachment(socket) else { return };
    if let Some(array) = convert::uint8_array(scope, Bytes::from(bytes.into_vec())) {
        rv.set(array.into());
    }
}

/// `sockets_answered_at(cell, socket) -> milliseconds | null`
fn sockets_answered_at(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(sockets) = sockets(scope, &args) else { return };
    let Some(socket) = socket_of(scope, &args, 1) else { return };
    match sockets.answered_at(socket) {
        Some(time) => rv.set_double(time),
        None => rv.set_null(),
    }
}

/// `sockets_has_closed(cell, socket) -> boolean`: whether the cell has sent a Close.
fn sockets_has_closed(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(sockets) = sockets(scope, &args) else { return };
    let Some(socket) = socket_of(scope, &args, 1) else { return };
    rv.set_bool(sockets.has_closed(socket));
}

/// `sockets_set_auto(cell, request, response)`; none when the request is `undefined`.
fn sockets_set_auto(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(sockets) = sockets(scope, &args) else { return };
    if args.get(1).is_undefined() {
        return sockets.set_auto_pair(None);
    }
    let Some(request) = convert::to_string(scope, args.get(1)) else { return };
    let Some(response) = convert::to_string(scope, args.get(2)) else { return };
    for (what, one, text) in [("Request", "request", &request), ("Response", "response", &response)]
    {
        let length = text.len();
        if length > AUTO_BYTES_MAX {
            let text = format!(
                "{what} cannot be larger than {AUTO_BYTES_MAX} bytes. A {one} of size {length} was provided."
            );
            return convert::throw_range_error(scope, &text);
        }
    }
    sockets.set_auto_pair(Some(AutoResponse { request, response }));
}

/// `sockets_auto(cell) -> [request, response] | null`
fn sockets_auto(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(sockets) = sockets(scope, &args) else { return };
    let Some(AutoResponse { request, response }) = sockets.auto_pair() else {
        return rv.set_null();
    };
    let pair = [request, response].map(|text| convert::string(scope, &text).into());
    rv.set(v8::Array::new_with_elements(scope, &pair).into());
}

/// `sockets_set_timeout(cell, milliseconds)`; none when it is 0.
fn sockets_set_timeout(scope: &mut PinScope, args: FunctionCallbackArguments, _rv: ReturnValue) {
    let Some(sockets) = sockets(scope, &args) else { return };
    let Some(ms) = args.get(1).uint32_value(scope) else { return };
    sockets.set_event_timeout_ms(Some(ms).filter(|&ms| ms > 0));
}

/// `sockets_timeout(cell) -> milliseconds | null`
fn sockets_timeout(scope: &mut PinScope, args: FunctionCallbackArguments, mut rv: ReturnValue) {
    let Some(sockets) = sockets(scope, &args) else { return };
    match sockets.event_timeout_ms() {
        Some(ms) => rv.set_uint32(ms),
        None => rv.set_null(),
    }
}
