//! The hibernatable WebSockets of one cell: what outlives its instance, shared between the shard,
//! which has their connections, and whichever realm runs the cell.
//!
//! Invariant: a tag lists exactly the sockets that have it. Source: WORKERS_API 2.2.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use crate::host::SocketId;

/// Longest message, in bytes, as Cloudflare takes them; none is sent that no other would take.
pub const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// Most hibernatable sockets of one cell.
pub const SOCKETS_MAX: usize = 32_768;
/// Longest serialised attachment, in bytes.
pub const ATTACHMENT_BYTES_MAX: usize = 16_384;
/// Longest text of an automatic response or of what it answers, in bytes.
pub const AUTO_BYTES_MAX: usize = 2_048;

/// The sockets, and what the cell has set for all of them.
#[derive(Debug, Default)]
pub struct Sockets(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    /// In the order of their ids, which is that of their making.
    held: BTreeMap<SocketId, Held>,
    by_tag: HashMap<Rc<str>, BTreeSet<SocketId>>,
    auto_response: Option<AutoResponse>,
    event_timeout_ms: Option<u32>,
}

#[derive(Debug, Default)]
struct Held {
    tags: Box<[Rc<str>]>,
    attachment: Option<Box<[u8]>>,
    answered_at: Option<f64>,
    has_closed: bool,
}

/// A text that is answered without waking the cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoResponse {
    /// What is answered.
    pub request: String,
    /// The answer.
    pub response: String,
}

impl Sockets {
    /// Takes a socket in. `false`: there are too many.
    pub(crate) fn insert(&self, socket: SocketId, tags: &[String]) -> bool {
        let State { held, by_tag, .. } = &mut *self.0.borrow_mut();
        if held.len() >= SOCKETS_MAX {
            return false;
        }
        let mut list = Vec::new();
        for tag in tags {
            let name = match by_tag.get_key_value(tag.as_str()) {
                Some((name, _)) => Rc::clone(name),
                None => Rc::from(tag.as_str()),
            };
            if by_tag.entry(Rc::clone(&name)).or_default().insert(socket) {
                list.push(name);
            }
        }
        held.insert(socket, Held { tags: list.into(), ..Held::default() });
        true
    }

    /// Forgets a socket.
    pub fn remove(&self, socket: SocketId) {
        let State { held, by_tag, .. } = &mut *self.0.borrow_mut();
        let Some(gone) = held.remove(&socket) else { return };
        for tag in &gone.tags {
            if let Some(sockets) = by_tag.get_mut(tag) {
                sockets.remove(&socket);
                if sockets.is_empty() {
                    by_tag.remove(tag);
                }
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.borrow().held.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The answer to this text, if it is to be answered here. `now`: milliseconds since 1970.
    pub fn auto_response(&self, socket: SocketId, text: &str, now: f64) -> Option<String> {
        let State { held, auto_response, .. } = &mut *self.0.borrow_mut();
        let pair = auto_response.as_ref().filter(|pair| pair.request == text)?;
        held.get_mut(&socket)?.answered_at = Some(now);
        Some(pair.response.clone())
    }

    /// How long an event of a socket may keep the cell awake.
    pub fn event_timeout_ms(&self) -> Option<u32> {
        self.0.borrow().event_timeout_ms
    }

    pub(crate) fn set_event_timeout_ms(&self, ms: Option<u32>) {
        self.0.borrow_mut().event_timeout_ms = ms;
    }

    pub(crate) fn auto_pair(&self) -> Option<AutoResponse> {
        self.0.borrow().auto_response.clone()
    }

    pub(crate) fn set_auto_pair(&self, pair: Option<AutoResponse>) {
        self.0.borrow_mut().auto_response = pair;
    }

    /// Those with this tag, or all.
    pub(crate) fn list(&self, tag: Option<&str>) -> Vec<SocketId> {
        let state = self.0.borrow();
        match tag {
            None => state.held.keys().copied().collect(),
            Some(tag) => {
                state.by_tag.get(tag).map_or_else(Vec::new, |all| all.iter().copied().collect())
            }
        }
    }

    pub(crate) fn tags(&self, socket: SocketId) -> Option<Box<[Rc<str>]>> {
        self.0.borrow().held.get(&socket).map(|held| held.tags.clone())
    }

    pub(crate) fn attachment(&self, socket: SocketId) -> Option<Box<[u8]>> {
        self.0.borrow().held.get(&socket)?.attachment.clone()
    }

    pub(crate) fn set_attachment(&self, socket: SocketId, bytes: Vec<u8>) {
        if let Some(held) = self.0.borrow_mut().held.get_mut(&socket) {
            held.attachment = Some(bytes.into());
        }
    }

    pub(crate) fn answered_at(&self, socket: SocketId) -> Option<f64> {
        self.0.borrow().held.get(&socket)?.answered_at
    }

    /// The cell has sent a Close: it may send nothing more, also after the next wake.
    pub(crate) fn note_closed(&self, socket: SocketId) {
        if let Some(held) = self.0.borrow_mut().held.get_mut(&socket) {
            held.has_closed = true;
        }
    }

    pub(crate) fn has_closed(&self, socket: SocketId) -> bool {
        self.0.borrow().held.get(&socket).is_some_and(|held| held.has_closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_list_their_sockets_until_those_go() {
        let sockets = Sockets::default();
        let tags = |tags: &[&str]| tags.iter().map(|&tag| tag.to_owned()).collect::<Vec<_>>();
        assert!(sockets.insert(SocketId(2), &tags(&["a", "b", "a"])));
        assert!(sockets.insert(SocketId(1), &tags(&["b"])));
        assert_eq!(sockets.list(Some("b")), [SocketId(1), SocketId(2)]);
        assert_eq!(sockets.list(Some("a")), [SocketId(2)]);
        assert_eq!(sockets.tags(SocketId(2)).expect("held").len(), 2);
        sockets.remove(SocketId(2));
        sockets.remove(SocketId(2));
        assert_eq!(sockets.list(Some("a")), []);
        assert_eq!(sockets.list(None), [SocketId(1)]);
        assert_eq!(sockets.0.borrow().by_tag.len(), 1);
    }

    #[test]
    fn there_is_a_most() {
        let sockets = Sockets::default();
        for n in 0..SOCKETS_MAX {
            assert!(sockets.insert(SocketId(n as u64), &[]));
        }
        assert!(!sockets.insert(SocketId(u64::MAX), &[]));
        sockets.remove(SocketId(7));
        assert!(sockets.insert(SocketId(u64::MAX), &[]));
    }

    #[test]
    fn only_the_very_text_is_answered() {
        let sockets = Sockets::default();
        sockets.insert(SocketId(1), &[]);
        assert_eq!(sockets.auto_response(SocketId(1), "ping", 5.0), None);
        let (request, response) = ("ping".to_owned(), "pong".to_owned());
        sockets.set_auto_pair(Some(AutoResponse { request, response }));
        assert_eq!(sockets.auto_response(SocketId(1), "ping!", 5.0), None);
        assert_eq!(sockets.answered_at(SocketId(1)), None);
        assert_eq!(sockets.auto_response(SocketId(1), "ping", 5.0).as_deref(), Some("pong"));
        assert_eq!(sockets.answered_at(SocketId(1)), Some(5.0));
    }
}
