//! The order of calls from other nodes while the arguments of one are on their way.
//!
//! A call of a method begins when all of its message is here. What the same node asks of the same cell
//! after it may have come whole already, and waits, so that calls on one stub arrive in order. Others
//! do not wait.

use std::cell::{Cell as StdCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use celld_core::cell::CellId;
use celld_core::node::SessionId;
use celld_peer::{Code, Refusal};
use celld_rt as rt;
use rustc_hash::FxHashMap;

/// Who asks for which cell.
type Key = (SessionId, CellId);

/// What a message of RPC may have, as workerd has it.
const MESSAGE_MAX: u64 = 32 << 20;
/// What all that a shard waits for may have: eight of the largest. One more is refused as busy.
const WAITING_MAX: u64 = 8 * MESSAGE_MAX;

/// The calls of a shard that wait for arguments, and for such calls.
#[derive(Clone, Default)]
pub(crate) struct Arguments(Rc<Waiting>);

#[derive(Default)]
struct Waiting {
    turns: RefCell<FxHashMap<Key, VecDeque<rt::oneshot::Sender<Turn>>>>,
    bytes: StdCell<u64>,
}

/// Room for a message, until it is dropped.
pub(crate) struct Room {
    arguments: Arguments,
    bytes: u64,
}

impl Room {
    /// The most that the message may have.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let bytes = &self.arguments.0.bytes;
        bytes.set(bytes.get() - self.bytes);
    }
}

/// Until it is dropped, later calls of its kind wait. Then it goes to the next of them.
pub(crate) struct Turn {
    arguments: Arguments,
    /// `None`: it is not here any more.
    key: Option<Key>,
}

impl Arguments {
    /// Takes room for a message of `len` bytes.
    ///
    /// # Errors
    /// It is too long or of unknown length, or too many are on their way.
    pub fn room(&self, len: Option<u64>) -> Result<Room, Refusal> {
        let Some(bytes) = len.filter(|len| *len <= MESSAGE_MAX) else {
            let words = "the message of a call has no length, or more than 32 MiB";
            return Err(Refusal::new(Code::Unsupported, words));
        };
        let all = self.0.bytes.get() + bytes;
        if all > WAITING_MAX {
            let words = "the messages of too many calls are on their way";
            return Err(Refusal::new(Code::Busy, words));
        }
        self.0.bytes.set(all);
        Ok(Room { arguments: self.clone(), bytes })
    }

    /// Waits for the calls before this one. `is_slow`: its own arguments are still on their way, so
    /// that those behind it are to wait for the end of its turn.
    pub async fn turn(&self, from: &SessionId, cell: &CellId, is_slow: bool) -> Option<Turn> {
        if !is_slow && self.0.turns.borrow().is_empty() {
            return None;
        }
        let key = (from.clone(), cell.clone());
        let ahead = {
            let mut waiting = self.0.turns.borrow_mut();
            let Some(behind) = waiting.get_mut(&key) else {
                if !is_slow {
                    return None;
                }
                waiting.insert(key.clone(), VecDeque::new());
                return Some(Turn { arguments: self.clone(), key: Some(key) });
            };
            let (sender, receiver) = rt::oneshot::channel();
            behind.push_back(sender);
            receiver
        };
        ahead.await.ok()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        loop {
            let next = {
                let mut waiting = self.arguments.0.turns.borrow_mut();
                let next = waiting.get_mut(&key).and_then(VecDeque::pop_front);
                if next.is_none() {
                    waiting.remove(&key);
                }
                next
            };
            let Some(next) = next else { return };
            let turn = Self { arguments: self.arguments.clone(), key: Some(key.clone()) };
            match next.send(turn) {
                Ok(()) => return,
                // Who waited has gone.
                Err(mut turn) => turn.key = None,
            }
        }
    }
}
