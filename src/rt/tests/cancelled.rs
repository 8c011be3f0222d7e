//! What is left of tasks that were cancelled: nothing. In a process of its own, whose memory nobody
//! else uses.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Poll, Waker};

use celld_rt::{block_on, spawn_joined, yield_now};

const TASKS: u32 = 1_000_000;
/// At a time.
const BATCH: u32 = 1_000;
/// Of memory. A task that is not freed keeps some 200 bytes.
const GROWTH_MAX: u64 = 16 << 20;

/// The memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// Counts the futures that are dropped.
struct Guard(Rc<Cell<u32>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// A thread that wakes tasks.
struct Other {
    wakers: mpsc::SyncSender<Vec<Waker>>,
    woken: mpsc::Receiver<()>,
}

/// Starts tasks and cancels them: of three, one has given its waker to nobody, one keeps it itself,
/// and one has just been woken by another thread, of which its executor does not know yet.
async fn cancel_a_batch(dropped: &Rc<Cell<u32>>, other: &Other) {
    let given = Rc::new(RefCell::new(Vec::new()));
    let start = |n| {
        let (guard, given) = (Guard(dropped.clone()), given.clone());
        spawn_joined(async move {
            let _guard = guard;
            let mut kept = None;
            poll_fn(|cx| {
                match n % 3 {
                    0 => {}
                    1 => kept = Some(cx.waker().clone()),
                    _ => given.borrow_mut().push(cx.waker().clone()),
                }
                Poll::<()>::Pending
            })
            .await;
        })
    };
    let tasks: Vec<_> = (0..BATCH).map(start).collect();
    other.wakers.send(given.take()).expect("it listens");
    other.woken.recv().expect("it answers");
    let before = dropped.get();
    drop(tasks);
    yield_now().await;
    assert_eq!(dropped.get() - before, BATCH, "their executor drops them in its next round");
}

#[test]
fn a_task_that_is_cancelled_leaves_no_memory_behind() {
    let (wakers, to_wake) = mpsc::sync_channel::<Vec<Waker>>(1);
    let (tell, woken) = mpsc::sync_channel(1);
    let waking = std::thread::spawn(move || {
        for wakers in to_wake {
            wakers.into_iter().for_each(Waker::wake);
            tell.send(()).expect("it waits");
        }
    });
    block_on(async {
        let (dropped, other) = (Rc::default(), Other { wakers, woken });
        for _ in 0..10 {
            cancel_a_batch(&dropped, &other).await;
        }
        let before = resident();
        for _ in 0..TASKS / BATCH {
            cancel_a_batch(&dropped, &other).await;
        }
        let growth = resident().saturating_sub(before);
        assert!(growth <= GROWTH_MAX, "{growth} bytes are left of {TASKS} tasks");
    });
    waking.join().expect("no panic");
}
