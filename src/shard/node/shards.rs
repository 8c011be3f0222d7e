//! The shards of a node: their threads, and what the io executor tells them.

use std::fmt::Display;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use celld_core::fleet::FleetRecord;
use celld_core::wake::{Entry, Verdict};
use celld_rt as rt;
use celld_rt::Placement;
use celld_v8host::Script;
use futures_util::StreamExt as _;

use super::{Common, NodeError, warm};
use crate::drain::Board;
use crate::fleet::{Fleet, Place, answer};
use crate::ingress;
use crate::router::{self, Message, Router};
use crate::shard::Shard;

/// Messages that fit between two shards before senders wait.
const MESH_CAPACITY: usize = 1_024;
/// Orders that wait for one shard before who gives them waits, too.
const ORDERS_MAX: usize = 16;

/// Exit code of the process after an internal error that the node cannot go on with.
const FAILED: i32 = 1;

/// What the io executor tells a shard.
pub(super) enum Order {
    Adopt(Arc<Script>, rt::oneshot::Sender<Result<(), String>>),
    Listen(SocketAddr, rt::oneshot::Sender<std::io::Result<()>>),
    /// A cell of the shard has an entry of the wake index that is due.
    Visit(Entry, rt::oneshot::Sender<Verdict>),
    /// Reach the other nodes, and let them reach this one.
    Join(Arc<FleetRecord>, Option<SocketAddr>, rt::oneshot::Sender<Result<(), NodeError>>),
    /// Hand the cells over, and say on the board when nothing is left.
    Drain(Arc<Board>),
    /// Close what is still open.
    Close(rt::oneshot::Sender<()>),
}

/// The way of orders to each shard.
pub(super) type Orders = Vec<rt::mpsc::Sender<Order>>;
/// Their threads.
pub(super) type Threads = Vec<JoinHandle<Option<()>>>;

/// Starts a thread for each shard.
///
/// # Errors
/// The system gives no thread.
pub(super) fn start_shards(common: &Common) -> Result<(Orders, Threads), NodeError> {
    let mut orders = Vec::new();
    let mut threads = Vec::new();
    let cores = online_cores();
    let mesh = rt::mesh::<Box<Message>>(common.facts.shards, MESH_CAPACITY);
    for (index, end) in mesh.into_iter().enumerate() {
        let (sender, receiver) = rt::mpsc::channel(ORDERS_MAX);
        orders.push(sender);
        let common = common.clone();
        let core = cores[index % cores.len()];
        let name = format!("shard-{index}");
        let what = name.clone();
        let make = move || vital(what, run_shard(index, common, end, receiver));
        threads.push(rt::spawn_thread(&name, Placement::Core(core), make)?);
    }
    Ok((orders, threads))
}

/// Runs what a node cannot do without. A panic in it ends the process, as one that dies: what it owns
/// is for others when its lease is over.
pub(super) async fn vital<T>(what: impl Display, work: impl Future<Output = T>) -> T {
    match rt::guarded(work).await {
        Some(value) => value,
        None => {
            rt::log!(
                "celld: {what} has ended with an internal error; the node ends, start it again"
            );
            std::process::exit(FAILED)
        }
    }
}

/// The cores that this process may use: a container may have fewer than the machine.
pub fn online_cores() -> Vec<usize> {
    // SAFETY: `cpu_set_t` is plain bits, and the call writes only the set that it is given.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        set
    };
    // SAFETY: the index is below the size of the set.
    let allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    let cores: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(allowed).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

async fn run_shard(
    index: usize,
    common: Common,
    end: rt::Mesh<Box<Message>>,
    mut orders: rt::mpsc::Receiver<Order>,
) {
    let (senders, receivers) = end.join().await;
    let Common { facts, authority, status, members, bucket } = common;
    let router = Router::new(senders);
    let shard = Shard::new(index, facts, bucket, authority, status, router, members);
    for (other, receiver) in receivers.into_iter().enumerate() {
        if let Some(receiver) = receiver {
            rt::spawn(router::receive(shard.clone(), other, receiver));
        }
    }
    rt::spawn(shard.clone().tick());
    let bucket = shard.bucket.clone();
    rt::spawn(async move { warm(&bucket).await });
    while let Some(order) = orders.next().await {
        match order {
            Order::Adopt(script, done) => {
                let adopted = shard.adopt(&script).map_err(|error| error.to_string());
                let _gone = done.send(adopted);
            }
            Order::Listen(address, done) => {
                let opened = rt::net::listen(address).map(|listener| {
                    rt::spawn(ingress::serve(shard.clone(), listener));
                });
                let _gone = done.send(opened);
            }
            Order::Visit(entry, done) => {
                let shard = shard.clone();
                rt::spawn(async move {
                    let _gone = done.send(shard.visit(entry).await);
                });
            }
            Order::Join(record, listen, done) => {
                let _gone = done.send(join_fleet(&shard, &record, listen));
            }
            // Others may need what goes through here until all are through: the orders end then.
            Order::Drain(board) => shard.drain(board),
            Order::Close(done) => {
                let shard = shard.clone();
                rt::spawn(async move {
                    shard.close().await;
                    let _gone = done.send(());
                });
            }
        }
    }
}

/// Makes the shard a part of the fleet.
fn join_fleet(
    shard: &Rc<Shard>,
    record: &FleetRecord,
    listen: Option<SocketAddr>,
) -> Result<(), NodeError> {
    let place = Place { shard: shard.index, shards: shard.facts.shards };
    let fleet = Fleet::new(record, &shard.facts.me, place, shard.members.clone())
        .map_err(|error| NodeError::Fleet(error.to_string()))?;
    let server = fleet.server.clone();
    let is_first = shard.fleet.set(fleet).is_ok();
    assert!(is_first, "a node joins its fleet once");
    let index = u16::try_from(shard.index).expect("a machine has fewer cores");
    let way = Rc::downgrade(shard);
    server.place(index, move |to, passed| match way.upgrade() {
        Some(shard) => router::pass_peer(&shard, to, passed),
        None => Some(passed),
    });
    if let Some(address) = listen {
        let listener =
            rt::net::listen(address).map_err(|error| NodeError::Listen(address, error))?;
        let shard = shard.clone();
        rt::spawn(async move {
            server.serve(listener, move |call| answer::answer(shard.clone(), call)).await;
        });
    }
    Ok(())
}
