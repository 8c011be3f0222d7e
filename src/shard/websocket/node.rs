//! A WebSocket whose ends are on two nodes: its messages go through the call that asked for it, and
//! each side pumps its end.
//!
//! Invariant: one close in each direction, which the types of `celld_peer::tunnel` give once; a
//! direction that ends without one is broken off, and so is lost to the other side.

use bytes::Bytes;
use celld_peer::socket::{Close, Message};
use celld_peer::tunnel::{Received, SocketReader, SocketWriter};
use celld_peer::{BodyReader, BodyWriter};
use celld_v8host::{MESSAGE_BYTES_MAX, SocketEvent, SocketMessage};

use super::codec::NO_CODE;
use super::{Duplex, Receiver, Sender};

/// What one side takes, the other one does.
const _: () = assert!(MESSAGE_BYTES_MAX <= celld_peer::socket::MESSAGE_MAX);

/// Pumps until both directions have ended.
pub(crate) async fn pump(end: Duplex, reader: BodyReader, writer: BodyWriter) {
    let Duplex { sender, receiver } = end;
    let inwards = read(SocketReader::new(reader), sender);
    let outwards = write(receiver, SocketWriter::new(writer));
    futures_lite::future::zip(inwards, outwards).await;
}

async fn read(mut reader: SocketReader, sender: Sender) {
    while let Some(received) = reader.next().await {
        let event = match received {
            Received::Message(message) => SocketEvent::Message(local(message)),
            Received::Closed(close) => SocketEvent::Message(local(Message::Close(close))),
            Received::Broken(_) => SocketEvent::Lost,
        };
        // Nobody may hear it any more: what comes is read up to its end.
        let _heard = sender.send(event).await;
    }
}

async fn write(mut receiver: Receiver, mut writer: SocketWriter) {
    while let Some(event) = receiver.next().await {
        let sent = match event {
            SocketEvent::Message(SocketMessage::Close { code, reason }) => {
                let code = (code != NO_CODE).then_some(code);
                let reason = super::codec::truncated(&reason).to_owned();
                // Who does not read it has gone.
                let _gone = writer.close(Close { code, reason }).await;
                return;
            }
            SocketEvent::Message(SocketMessage::Text(text)) => {
                writer.send(&Message::Text(Bytes::from(text))).await
            }
            SocketEvent::Message(SocketMessage::Binary(bytes)) => {
                writer.send(&Message::Binary(bytes)).await
            }
            SocketEvent::Lost | SocketEvent::Failed(_) => break,
        };
        if sent.is_err() {
            break;
        }
    }
    writer.break_off("the WebSocket is lost");
}

fn local(message: Message) -> SocketMessage {
    match message {
        // It was checked when it came.
        Message::Text(text) => SocketMessage::Text(String::from_utf8_lossy(&text).into_owned()),
        Message::Binary(bytes) => SocketMessage::Binary(bytes),
        Message::Close(Close { code, reason }) => {
            SocketMessage::Close { code: code.unwrap_or(NO_CODE), reason }
        }
    }
}
