//! A WebSocket whose ends are on two shards: each side pumps its end over the way between them.
//!
//! Invariant: order is that of the way. What is on its way in one direction, or waits behind it, is
//! bounded: the receiver gives credit for what its end has taken.
//! Units: weights (`super::weight`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use celld_rt as rt;
use celld_v8host::SocketEvent;
use rustc_hash::FxHashMap;

use super::{Duplex, is_last, weight};
use crate::router::Message;
use crate::shard::Shard;

/// What may be on its way in one direction.
const WINDOW: usize = 256 << 10;

/// Which shard has numbered the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// The one that handed its end over.
    Exporter,
    /// The one that got it.
    Importer,
}

/// What goes over the way.
#[derive(Debug)]
pub(crate) enum Cargo {
    Event(SocketEvent),
    /// The end has taken this much.
    Credit(usize),
}

/// A tunnel as one side knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    other: usize,
    number: u64,
    side: Side,
}

/// The tunnels of a shard.
#[derive(Default)]
pub(crate) struct Tunnels {
    open: RefCell<FxHashMap<Key, Rc<Tunnel>>>,
    next: Cell<u64>,
}

#[derive(Default)]
struct Tunnel {
    /// What has come and the end has not taken: a window at most.
    arrived: RefCell<VecDeque<SocketEvent>>,
    /// What is on its way to the other shard, or waits there.
    outstanding: Cell<usize>,
    /// Who waits for something of the two.
    wakers: RefCell<Vec<Waker>>,
}

impl Tunnel {
    fn wake(&self) {
        for waker in self.wakers.take() {
            waker.wake();
        }
    }
}

impl Tunnels {
    /// The number of the next tunnel that is exported.
    pub fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }
}

/// Hands an end to the shard `other`, which has been told the number.
pub(crate) fn export(shard: &Rc<Shard>, other: usize, number: u64, end: Duplex) {
    start(shard, Key { other, number, side: Side::Exporter }, end);
}

/// The end that the shard `other` has handed over.
pub(crate) fn import(shard: &Rc<Shard>, other: usize, number: u64) -> Duplex {
    let (near, far) = super::connect();
    start(shard, Key { other, number, side: Side::Importer }, near);
    far
}

/// Something came from the other side of the tunnel.
pub(crate) fn arrive(shard: &Rc<Shard>, other: usize, from: Side, number: u64, cargo: Cargo) {
    let side = match from {
        Side::Exporter => Side::Importer,
        Side::Importer => Side::Exporter,
    };
    let tunnel = shard.router.tunnels.open.borrow().get(&Key { other, number, side }).cloned();
    // After both directions have ended credit may still come.
    let Some(tunnel) = tunnel else { return };
    match cargo {
        Cargo::Event(event) => tunnel.arrived.borrow_mut().push_back(event),
        Cargo::Credit(weight) => tunnel.outstanding.set(tunnel.outstanding.get() - weight),
    }
    tunnel.wake();
}

fn start(shard: &Rc<Shard>, key: Key, end: Duplex) {
    let tunnel = Rc::new(Tunnel::default());
    shard.router.tunnels.open.borrow_mut().insert(key, tunnel.clone());
    let shard = shard.clone();
    rt::spawn(async move {
        let Duplex { sender, mut receiver } = end;
        let out = async {
            while let Some(event) = receiver.next().await {
                wait(&tunnel, || tunnel.outstanding.get() < WINDOW).await;
                tunnel.outstanding.set(tunnel.outstanding.get() + weight(&event));
                send(&shard, key, Cargo::Event(event));
            }
        };
        let inwards = async {
            loop {
                wait(&tunnel, || !tunnel.arrived.borrow().is_empty()).await;
                let Some(event) = tunnel.arrived.borrow_mut().pop_front() else { continue };
                let (weight, last) = (weight(&event), is_last(&event));
                // Nobody may hear it any more: the other side goes on until its own end.
                let _heard = sender.send(event).await;
                if last {
                    return;
                }
                send(&shard, key, Cargo::Credit(weight));
            }
        };
        futures_lite::future::zip(out, inwards).await;
        shard.router.tunnels.open.borrow_mut().remove(&key);
    });
}

fn send(shard: &Rc<Shard>, key: Key, cargo: Cargo) {
    let Key { other, number, side } = key;
    shard.router.send(other, Message::Socket { number, from: side, cargo });
}

async fn wait(tunnel: &Tunnel, mut is_so: impl FnMut() -> bool) {
    poll_fn(|cx| {
        if is_so() {
            return Poll::Ready(());
        }
        tunnel.wakers.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    })
    .await;
}
