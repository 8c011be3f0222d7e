//! The mesh between executors: from each to each other one bounded, lock-free queue.
//!
//! Made on the starting thread, one [`Mesh`] end for each peer; `join` on the peer's own executor
//! turns it into senders and receivers.

use glommio::channels::shared_channel::{
    ConnectedReceiver, ConnectedSender, SharedReceiver, SharedSender, new_bounded,
};
use glommio::{GlommioError, ResourceType};

use crate::spawn_joined;

/// One peer's ends of all its queues, before it has joined.
pub struct Mesh<T: Send> {
    senders: Vec<Option<SharedSender<T>>>,
    receivers: Vec<Option<SharedReceiver<T>>>,
}

/// Sends to one other peer.
pub struct MeshSender<T: Send>(ConnectedSender<T>);

/// Receives from one other peer.
pub struct MeshReceiver<T: Send>(ConnectedReceiver<T>);

/// Makes the ends for `peers` peers; each queue holds `capacity` messages.
pub fn mesh<T: Send>(peers: usize, capacity: usize) -> Vec<Mesh<T>> {
    let mut ends: Vec<Mesh<T>> = (0..peers)
        .map(|_| Mesh {
            senders: (0..peers).map(|_| None).collect(),
            receivers: (0..peers).map(|_| None).collect(),
        })
        .collect();
    for from in 0..peers {
        for to in (0..peers).filter(|&to| to != from) {
            let (sender, receiver) = new_bounded(capacity);
            ends[from].senders[to] = Some(sender);
            ends[to].receivers[from] = Some(receiver);
        }
    }
    ends
}

impl<T: Send + 'static> Mesh<T> {
    /// Waits until every other peer has joined too. The place of this peer itself is `None`.
    pub async fn join(self) -> (Vec<Option<MeshSender<T>>>, Vec<Option<MeshReceiver<T>>>) {
        // Each side's `connect` waits for the other's, so all must be under way at once.
        let senders: Vec<_> = self
            .senders
            .into_iter()
            .map(|end| end.map(|end| spawn_joined(end.connect())))
            .collect();
        let mut receivers = Vec::new();
        for end in self.receivers {
            receivers.push(match end {
                Some(end) => Some(MeshReceiver(end.connect().await)),
                None => None,
            });
        }
        let mut joined = Vec::new();
        for sender in senders {
            joined.push(match sender {
                Some(sender) => Some(MeshSender(sender.join().await.expect("no panic"))),
                None => None,
            });
        }
        (joined, receivers)
    }
}

impl<T: Send> MeshSender<T> {
    /// Sends without waiting.
    ///
    /// # Errors
    /// The queue is full, or the peer is gone: the message comes back.
    pub fn try_send(&self, message: T) -> Result<(), T> {
        self.0.try_send(message).map_err(give_back)
    }

    /// Sends, and waits while the queue is full.
    ///
    /// # Errors
    /// The peer is gone: the message comes back.
    pub async fn send(&self, message: T) -> Result<(), T> {
        self.0.send(message).await.map_err(give_back)
    }
}

impl<T: Send> MeshReceiver<T> {
    /// The next message; `None` once the peer is gone and its queue is empty.
    pub async fn recv(&self) -> Option<T> {
        self.0.recv().await
    }
}

fn give_back<T>(error: GlommioError<T>) -> T {
    match error {
        GlommioError::Closed(ResourceType::Channel(message))
        | GlommioError::WouldBlock(ResourceType::Channel(message)) => message,
        other => unreachable!("a channel is full or closed, not: {other}"),
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::{Placement, spawn_thread};

    #[test]
    fn every_peer_reaches_every_other() {
        let threads: Vec<_> = mesh::<usize>(3, 4)
            .into_iter()
            .enumerate()
            .map(|(me, end)| {
                spawn_thread("peer", Placement::Floating, move || async move {
                    let (senders, receivers) = end.join().await;
                    for sender in senders.iter().flatten() {
                        sender.send(me).await.expect("the peer is there");
                    }
                    let mut sum = 0;
                    for receiver in receivers.iter().flatten() {
                        sum += receiver.recv().await.expect("one message from each");
                    }
                    sum + me
                })
                .expect("a thread starts")
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), Some(3));
        }
    }
}
