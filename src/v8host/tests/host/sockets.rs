//! WebSockets of a test: pairs of ends, and servers that echo.

use std::collections::VecDeque;

use celld_v8host::host::{
    Answer, Body, CallId, CellSlot, EventId, Input, Request, SocketEvent, SocketId, SocketMessage,
};
use http::HeaderValue;

use super::{Host, response};

/// One end of a WebSocket as JavaScript has it.
#[derive(Default)]
pub struct End {
    /// `None`: a server that echoes.
    peer: Option<SocketId>,
    /// What nobody has heard so far.
    inbox: VecDeque<SocketEvent>,
    heard: Heard,
}

#[derive(Clone, Default, PartialEq)]
enum Heard {
    #[default]
    Nobody,
    Script,
    /// This cell, by namespace and id.
    Cell((String, String)),
}

impl Host {
    pub(super) fn pair(&mut self, sockets: [SocketId; 2]) {
        let [first, second] = sockets;
        self.ends.insert(first, End { peer: Some(second), ..End::default() });
        self.ends.insert(second, End { peer: Some(first), ..End::default() });
    }

    pub(super) fn accept(&mut self, socket: SocketId) {
        self.listen(socket, Heard::Script);
    }

    pub(super) fn hibernate(&mut self, socket: SocketId, slot: CellSlot) {
        let target = &self.cell(slot).target;
        let key = (target.namespace.clone(), target.id.clone());
        self.listen(socket, Heard::Cell(key));
    }

    fn listen(&mut self, socket: SocketId, heard: Heard) {
        let end = self.ends.get_mut(&socket).expect("an end that was told");
        end.heard = heard;
        for event in std::mem::take(&mut end.inbox) {
            self.hear(socket, event);
        }
    }

    pub(super) fn send(&mut self, socket: SocketId, message: SocketMessage) {
        let end = self.ends.get(&socket).expect("an end that was told");
        let to = end.peer.unwrap_or(socket);
        self.hear(to, SocketEvent::Message(message));
    }

    fn hear(&mut self, socket: SocketId, event: SocketEvent) {
        let Some(end) = self.ends.get_mut(&socket) else { return };
        match end.heard.clone() {
            Heard::Nobody => end.inbox.push_back(event),
            Heard::Script => self.queue.push_back(Input::Socket { socket, event }),
            Heard::Cell(key) => {
                let cell = &self.cells[&key];
                if let SocketEvent::Message(SocketMessage::Text(text)) = &event
                    && let Some(answer) = cell.sockets.auto_response(socket, text, self.now)
                {
                    return self.send(socket, SocketMessage::Text(answer));
                }
                let target = cell.target.clone();
                let slot = self.open(&target);
                let number = EventId(self.number());
                let input =
                    Input::CellSocket { event: number, cell: slot, socket, happened: event };
                self.cell(slot).waiting.push_back(input);
                self.let_in(slot);
            }
        }
    }

    /// The last event of a hibernatable socket: the cell forgets it after the turn.
    pub(super) fn ended_socket(input: &Input) -> Option<(CellSlot, SocketId)> {
        let Input::CellSocket { cell, socket, happened, .. } = input else { return None };
        let goes_on = matches!(
            happened,
            SocketEvent::Message(SocketMessage::Text(_) | SocketMessage::Binary(_))
        );
        (!goes_on).then_some((*cell, *socket))
    }

    pub(super) fn all_ends_hear(&mut self, event: &SocketEvent) {
        let all: Vec<SocketId> = self
            .ends
            .iter()
            .filter(|(_, end)| end.heard != Heard::Nobody)
            .map(|(socket, _)| *socket)
            .collect();
        for socket in all {
            self.hear(socket, event.clone());
        }
    }

    /// Whoever asked gets the end under a number of its own.
    pub(super) fn hand_over(&mut self, socket: SocketId) -> SocketId {
        let end = self.ends.remove(&socket).expect("an end that was told");
        let fresh = SocketId::fresh();
        if let Some(peer) = end.peer
            && let Some(peer) = self.ends.get_mut(&peer)
        {
            peer.peer = Some(fresh);
        }
        self.ends.insert(fresh, end);
        fresh
    }

    /// A server outside.
    pub(super) fn connect(&mut self, call: CallId, request: &Request, path: &str) {
        if path != "echo" || request.headers.get("upgrade").is_none() {
            return self.answer(call, 403, "no WebSocket here".to_owned());
        }
        let socket = SocketId::fresh();
        self.ends.insert(socket, End::default());
        let mut response = response(101, Body::Empty);
        response.web_socket = Some(socket);
        if let Some(wanted) = request.headers.get("sec-websocket-protocol") {
            let first = wanted.to_str().expect("plain text").split(',').next().unwrap_or_default();
            let first = HeaderValue::from_str(first).expect("a token");
            response.headers.insert("sec-websocket-protocol", first);
        }
        self.queue.push_back(Input::Answer { call, answer: Ok(Answer::Response(response)) });
    }
}
