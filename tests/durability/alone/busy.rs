//! A node on a machine that is busy with other work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::load::Cell;
use crate::nodes::{plan, write};
use crate::support::node::Site;

#[test]
fn a_node_starts_and_serves_beside_busy_threads() {
    const STARTS: usize = 5;
    let _machine = crate::alone();
    let site = Site::new();
    let stop = Arc::new(AtomicBool::new(false));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let busy: Vec<_> = (0..cores * 3)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let cell = Cell::new("c".into());
    let mut took = Vec::new();
    let mut plan = plan(&site, "n");
    for _ in 0..STARTS {
        let started = Instant::now();
        let node = plan.start();
        write(&mut node.client(), &cell).expect("an acknowledgement");
        took.push(started.elapsed());
        node.kill();
    }
    stop.store(true, Ordering::Relaxed);
    for thread in busy {
        thread.join().expect("it only spins");
    }
    println!("first acknowledgement after {took:?}");
    assert!(took.iter().all(|took| *took < Duration::from_secs(10)), "{took:?}");
}
