//! What a store is asked while it is not well: about as much as ever.

use std::sync::Arc;

use celld_stores::busiest_second;
use serde_json::{Value, json};

use crate::load::Cell;
use crate::store_faults::{
    FAULT, Stand, TTL, acknowledged, assert_retryable, cells, met, recovers, survive_death,
};
use crate::support::node::Node;

#[test]
fn slow_throttled_lost_late_cut_stale_and_failed_answers_cost_time_only() {
    let _machine = crate::alone();
    let Some(stand) = Stand::new("the faults") else { return };
    let mut plan = stand.plan("n", TTL);
    let node = plan.start();
    let mut all = cells(&node, "well", 3);
    let (refusals, well) = stand.watch(|| {
        let load = stand.load(&node, &all);
        std::thread::sleep(FAULT);
        load.end()
    });
    assert_eq!(refusals, [""; 0], "the store is well");
    // The load is a closed loop: a store that fails is asked for no more than one that is well. The
    // machine may be five times as fast in another second.
    let storm = 5 * busiest_second(&well) + 200;
    println!("well: {} acknowledged, {} requests", acknowledged(&all), well.len());
    for (name, faults, fault) in [
        ("slow", json!({"latency_ms": "60,50"}), None),
        ("throttled", json!({"throttle": "30,5"}), Some("throttle")),
        ("told", json!({"throttle": "30,5", "throttle_status": 429}), Some("throttle")),
        ("lost", json!({"lose_response": 0.15}), Some("lose-response")),
        ("late", json!({"late_write": "0.15,0.7"}), Some("late-write")),
        ("cut", json!({"cut": 0.15}), Some("cut-")),
        ("stale", json!({"stale_read": 0.1, "match": "/cells/"}), Some("stale-read")),
        ("failed", json!({"error": "0.15"}), Some("error")),
    ] {
        let some = cells(&node, name, 3);
        let (refusals, seen) = stand.watch(|| endure(&stand, &node, &some, &faults, fault));
        let met = fault.map(|fault| met(&seen, fault));
        let took = recovers(&node, &some);
        let busiest = busiest_second(&seen);
        println!(
            "{name}: met {met:?} times, {} acknowledged, {} refused, {} requests, {busiest} in the \
             busiest second, {took:?} to go on",
            acknowledged(&some),
            refusals.len(),
            seen.len(),
        );
        assert_retryable(&refusals);
        // Six of them before and after.
        let answered = acknowledged(&some) as usize + refusals.len();
        assert!(answered > 6, "{faults}: nothing goes on meanwhile");
        // What a store refuses to take is not asked again and again.
        assert!(fault != Some("throttle") || 3 * met.unwrap_or(0) <= 2 * seen.len(), "{faults}");
        // A write is an upload and a read; the rest is the node's own.
        assert!(seen.len() <= 8 * answered + 300, "{faults}: {} for {answered}", seen.len());
        assert!(busiest <= storm, "{faults}: {busiest} requests in a second; {storm} are a storm");
        all.extend(some);
    }
    survive_death(&mut plan, node, &all);
}

/// Load while the store has these faults. Returns what was refused.
fn endure(
    stand: &Stand,
    node: &Node,
    cells: &[Arc<Cell>],
    faults: &Value,
    fault: Option<&str>,
) -> Vec<String> {
    let before = stand.proxy.requests().len();
    stand.proxy.set(faults.clone());
    let load = stand.load(node, cells);
    std::thread::sleep(FAULT);
    if let Some(fault) = fault {
        stand.wait_until_met(fault, before);
    }
    stand.proxy.heal();
    load.end()
}
