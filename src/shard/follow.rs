//! A client's connection that moves to the shard of the cells that it asks for.
//!
//! `core::follow` says when. What moves is the socket, with the beginning of the next request, which
//! has just been read: no read of this executor's ring is under way on it then. Hyper must have sent
//! all of the last response by that time, and know of no other request.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use bytes::Bytes;
use celld_core::follow::Follow;
use celld_rt as rt;

use crate::router;
use crate::shard::Shard;

/// The two ends of a connection. Of one whose client is gone they cannot be asked any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub peer: SocketAddr,
    pub local: SocketAddr,
}

/// A connection on its way to another shard.
pub(crate) struct Moving {
    pub socket: OwnedFd,
    pub ends: Ends,
    /// Bytes that the client has sent and nobody has looked at.
    pub unread: Bytes,
    /// Dropped once the other shard counts it among what has entered there.
    pub arrived: rt::oneshot::Sender<()>,
}

/// How far a connection that wants to leave is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// It is served here.
    #[default]
    Stays,
    /// The body of the response that is to be the last here is not with hyper yet.
    Answering(u16),
    /// Hyper has all of it.
    Writing(u16),
    /// The kernel has all of it: what is read from now on begins a request.
    Between(u16),
    /// It was read, and waits for the connection to move.
    Leaves(u16),
}

/// Where one connection goes to. Its service, its socket and the events of its requests share it.
pub(crate) struct Course {
    follow: RefCell<Follow>,
    stage: Cell<Stage>,
}

impl Course {
    /// Of a connection that this shard has just got.
    pub fn new(shard: &Shard) -> Rc<Self> {
        let follow = RefCell::new(Follow::new(number(shard.index)));
        Rc::new(Self { follow, stage: Cell::default() })
    }

    /// The request under way calls a cell; `None`: one that another node serves.
    pub fn asks(&self, shard: Option<usize>) {
        self.follow.borrow_mut().asks(shard.map(number));
    }

    /// A request has come, with which it was too late to leave, or the node stops.
    pub fn stays(&self) {
        self.stage.set(Stage::Stays);
    }

    /// A request is answered by a response after which the connection goes on. Whether it is to be
    /// the last here: then its body has to tell when it was taken.
    pub fn answered(&self, shard: &Shard) -> bool {
        let Some(to) = self.follow.borrow_mut().answered() else { return false };
        let leaves = !shard.draining.is_raised() && shard.status.welcomes(usize::from(to));
        if leaves {
            self.stage.set(Stage::Answering(to));
        }
        leaves
    }

    /// Hyper has all of the body.
    pub fn body_taken(&self) {
        if let Stage::Answering(to) = self.stage.get() {
            self.stage.set(Stage::Writing(to));
        }
    }

    /// The kernel has all that hyper has.
    pub fn written(&self) {
        if let Stage::Writing(to) = self.stage.get() {
            self.stage.set(Stage::Between(to));
        }
    }

    /// Something was read. Whether it is kept, to move with the connection.
    pub fn read(&self) -> bool {
        let Stage::Between(to) = self.stage.get() else { return false };
        self.stage.set(Stage::Leaves(to));
        true
    }

    /// Where the connection leaves for now.
    pub fn leaves(&self) -> Option<u16> {
        if let Stage::Leaves(to) = self.stage.get() { Some(to) } else { None }
    }
}

fn number(shard: usize) -> u16 {
    u16::try_from(shard).expect("a machine has fewer cores")
}

/// Sends a connection to another shard, and returns when it is there. It comes back if it cannot go.
pub(crate) async fn leave(
    shard: &Shard,
    to: u16,
    stream: rt::net::TcpStream,
    ends: Ends,
    unread: Bytes,
) -> Result<(), (rt::net::TcpStream, Bytes)> {
    // No descriptor is left: the next request may find one.
    let Ok(socket) = rt::net::detach(&stream) else { return Err((stream, unread)) };
    let (arrived, arrival) = rt::oneshot::channel();
    let moving = Moving { socket, ends, unread, arrived };
    match router::pass_client(shard, usize::from(to), moving) {
        None => {
            let _dropped = arrival.await;
            Ok(())
        }
        Some(Moving { unread, .. }) => Err((stream, unread)),
    }
}
