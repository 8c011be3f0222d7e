//! Networks that are cut: an owner from the bucket, from the other nodes, or from both, and the
//! bucket from everybody.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fleet::{cells, meet, try_write, write};
use super::load::{Cell, Load};
use super::network::{Network, SLACK, TTL};
use super::nodes::assert_fenced;
use super::restore::noise;
use super::support::node::{Node, start_all};
use super::support::rng::Rng;
use super::support::{tell, wait_for};

/// A request looks for an owner for so long: two leases, and 5 s.
const PATIENCE: Duration = TTL.saturating_mul(2).saturating_add(Duration::from_secs(5));
/// After the last answer that can have left the bucket, and before the earliest end of a lease, of
/// which two thirds are left at least.
const ON_ITS_WAY: Duration = Duration::from_secs(3);
/// After a cut each connection of before has been heard again by then, or has been given up: 8 s of
/// silence are the most.
const HEARD_AGAIN: Duration = Duration::from_secs(11);
/// Of the bytes that each cell keeps beside its rows.
const BLOB_BYTES: usize = 20_000;

/// Some rows, and bytes that can be checked.
pub fn fill(node: &Node, cells: &[Arc<Cell>]) {
    let mut client = node.client();
    for (n, cell) in (1..).zip(cells) {
        write(&mut client, cell);
        let path = format!("/{}/blob?n={n}&bytes={BLOB_BYTES}", cell.name);
        client.ask("POST", &path).expect("an answer").good();
    }
}

/// Each cell shows at this node what it must, and takes another row.
pub fn check(node: &Node, cells: &[Arc<Cell>]) {
    let mut client = node.client();
    for (n, cell) in (1..).zip(cells) {
        cell.verify(&mut client);
        let blob = client.ask("GET", &format!("/{}/blob?n={n}", cell.name)).expect("an answer");
        assert!(blob.good() == noise(n, BLOB_BYTES), "cell {}: its bytes have changed", cell.name);
        write(&mut client, cell);
    }
}

/// Writes to each cell until it is acknowledged. Whatever else is said must be one of `allowed`.
/// Returns when the last one was.
pub fn take_over(node: &Node, cells: &[Arc<Cell>], since: Instant, allowed: &[&str]) -> Duration {
    let mut client = node.client();
    for cell in cells {
        while let Err(why) = try_write(&mut client, cell) {
            assert!(allowed.iter().any(|word| why.contains(word)), "{}: {why}", cell.name);
            assert!(since.elapsed() < TTL + SLACK, "{}: {why}", cell.name);
        }
    }
    since.elapsed()
}

/// Rows that were acknowledged so far.
pub fn acknowledged(cells: &[Arc<Cell>]) -> u64 {
    cells.iter().map(|cell| cell.ledger().acknowledged).sum()
}

/// Nobody is told of a retry that would do harm, or of something that has no name.
fn assert_clear(refusals: &[String]) {
    let is_clear = |text: &String| {
        text.starts_with("503 ") && text.contains(r#""retryable":true"#)
            || text.contains("owner_lost")
    };
    let unclear: Vec<_> = refusals.iter().filter(|text| !is_clear(text)).collect();
    assert!(unclear.is_empty(), "{unclear:#?}");
}

/// An owner that does not reach the bucket; nor its peers, if `is_alone`.
fn isolated_owner(network: &Network, is_alone: bool) {
    let rng = Rng::from_environment("the owner that is cut off");
    let mut plan = network.plan("owner");
    let [mut owner, other] = start_all([&mut plan, &mut network.plan("other")]);
    let (asked, loaded) = (cells("a", 3), cells("l", 3));
    fill(&owner, &asked);
    fill(&owner, &loaded);
    asked.iter().chain(&loaded).for_each(|cell| meet(&other, cell));

    // Clients reach the owner all the time.
    let load = Load::start(owner.door(), &loaded, 6, 2, &rng);
    wait_for("a load", SLACK, || (acknowledged(&loaded) > 20).then_some(()));
    if is_alone {
        network.cut_peers("owner");
    }
    network.cut_store("owner");
    let cut = Instant::now();
    let after = std::thread::scope(|scope| {
        let after = scope.spawn(|| {
            std::thread::sleep(ON_ITS_WAY);
            acknowledged(&loaded)
        });
        let took = take_over(&other, &asked, cut, &["owner_lost"]);
        tell(&format!("{:.1} s after the cut all cells were taken over", took.as_secs_f64()));
        after.join().expect("a number")
    });
    let status = owner.wait_for_end(TTL * 2 + SLACK);
    assert_fenced(status, &owner.log(), "expired");
    assert_clear(&load.end());
    // The owner has proven nothing since, not even within its lease.
    assert_eq!(acknowledged(&loaded), after);
    check(&other, &loaded);
    check(&other, &asked);

    network.heal_store("owner");
    if is_alone {
        network.heal_peers("owner");
    }
    let owner = plan.start();
    asked.iter().for_each(|cell| meet(&owner, cell));
    check(&owner, &asked);
    check(&owner, &loaded);
    check(&other, &loaded);
}

#[test]
fn an_owner_that_does_not_reach_the_bucket_fences_itself_and_is_replaced() {
    let _machine = super::shared();
    let Some(network) = Network::new() else { return };
    isolated_owner(&network, false);
}

#[test]
fn an_owner_that_reaches_nobody_fences_itself_and_is_replaced() {
    let _machine = super::shared();
    let Some(network) = Network::new() else { return };
    isolated_owner(&network, true);
}

#[test]
fn an_owner_behind_relays_that_reaches_nobody_fences_itself_and_is_replaced() {
    let _machine = super::shared();
    let Some(network) = Network::on_loopback() else { return };
    isolated_owner(&network, true);
}

#[test]
fn an_owner_that_does_not_reach_its_peers_stays_the_owner() {
    let _machine = super::shared();
    let Some(network) = Network::new() else { return };
    let mut plans = ["owner", "other", "third"].map(|name| network.plan(name));
    let [owner, others @ ..] = start_all(plans.each_mut());
    let cells = cells("p", 4);
    fill(&owner, &cells);
    for other in &others {
        cells.iter().for_each(|cell| meet(other, cell));
    }
    network.cut_peers("owner");
    std::thread::scope(|scope| {
        // What was sent on the old connections may have run; what comes later has not.
        let told = others.each_ref().map(|other| {
            scope.spawn(|| {
                let began = Instant::now();
                let why = try_write(&mut other.client(), &cells[0]).expect_err("no way there");
                (why, began.elapsed())
            })
        });
        // Meanwhile the owner has its lease, and serves.
        let mut at_owner = owner.client();
        while !told.iter().all(|told| told.is_finished()) {
            cells.iter().for_each(|cell| write(&mut at_owner, cell));
            std::thread::sleep(Duration::from_millis(20));
        }
        for told in told {
            let (why, took) = told.join().expect("an answer");
            let is_clear = why.contains("owner_lost")
                || why.starts_with("503: ") && why.contains("owner_unreachable");
            assert!(is_clear && took < PATIENCE + SLACK, "{took:?}: {why}");
        }
    });
    // One that waits for a way is answered when there is one.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut client = others[0].client();
            // What is sent on a connection that is about to end may have run.
            while let Err(why) = try_write(&mut client, &cells[1]) {
                assert!(why.contains("owner_lost"), "{why}");
            }
        });
        std::thread::sleep(Duration::from_millis(500));
        assert!(!waiting.is_finished(), "there is no way yet");
        network.heal_peers("owner");
        waiting.join().expect("an acknowledgement");
    });
    std::thread::sleep(HEARD_AGAIN);
    for other in &others {
        cells.iter().for_each(|cell| meet(other, cell));
        check(other, &cells);
    }
    check(&owner, &cells);
    for node in others.iter().chain([&owner]) {
        assert!(!node.log().contains("SELF-FENCE"), "{}", node.log());
    }
}

#[test]
fn a_store_that_is_away_for_less_than_a_lease_fences_nobody() {
    // More than a third of the lease, so that a renewal is due meanwhile; what is left is enough
    // for a machine that is busy.
    const LONG_TTL: Duration = Duration::from_secs(20);
    const AWAY: Duration = Duration::from_secs(7);
    let _machine = super::shared();
    let rng = Rng::from_environment("the short outage");
    let Some(network) = Network::new() else { return };
    let names = ["one", "two"];
    let ttl = LONG_TTL.as_millis().to_string();
    let mut plans = names.map(|name| network.plan(name).variable("CELLD_TTL_MS", &ttl));
    let nodes = start_all(plans.each_mut());
    let cells = cells("o", 6);
    fill(&nodes[0], &cells[..3]);
    fill(&nodes[1], &cells[3..]);
    nodes.iter().for_each(|node| cells.iter().for_each(|cell| meet(node, cell)));
    let loads = nodes.each_ref().map(|node| Load::start(node.door(), &cells, 4, 1, &rng));
    wait_for("a load", SLACK, || (acknowledged(&cells) > 20).then_some(()));
    names.iter().for_each(|name| network.cut_store(name));
    std::thread::sleep(ON_ITS_WAY);
    let before = acknowledged(&cells);
    std::thread::sleep(AWAY.saturating_sub(ON_ITS_WAY));
    assert_eq!(acknowledged(&cells), before, "there was no store");
    names.iter().for_each(|name| network.heal_store(name));
    let healed = Instant::now();
    wait_for("writes that are acknowledged again", LONG_TTL + SLACK, || {
        (acknowledged(&cells) > before).then_some(())
    });
    tell(&format!("{:.1} s after the store was back", healed.elapsed().as_secs_f64()));
    for load in loads {
        assert_clear(&load.end());
    }
    for (number, node) in nodes.iter().enumerate() {
        assert!(!node.log().contains("SELF-FENCE"), "{}", node.log());
        check(node, &cells[..3]);
        check(&nodes[1 - number], &cells[3..]);
    }
}

#[test]
fn a_store_that_is_away_for_longer_than_a_lease_fences_all_and_they_come_back() {
    let _machine = super::shared();
    let rng = Rng::from_environment("the long outage");
    let Some(network) = Network::new() else { return };
    let names = ["one", "two", "three"];
    let mut plans = names.map(|name| network.plan(name));
    let mut nodes = start_all(plans.each_mut());
    let cells = cells("o", 6);
    for (node, cells) in nodes.iter().zip(cells.chunks(2)) {
        fill(node, cells);
    }
    nodes.iter().for_each(|node| cells.iter().for_each(|cell| meet(node, cell)));
    let loads = nodes.each_ref().map(|node| Load::start(node.door(), &cells, 3, 1, &rng));
    wait_for("a load", SLACK, || (acknowledged(&cells) > 20).then_some(()));
    names.iter().for_each(|name| network.cut_store(name));
    for node in &mut nodes {
        let status = node.wait_for_end(TTL * 2 + SLACK);
        assert_fenced(status, &node.log(), "expired");
    }
    for load in loads {
        assert_clear(&load.end());
    }
    names.iter().for_each(|name| network.heal_store(name));
    // One of them has lost its disk: it waits for the lease of its earlier life.
    std::fs::remove_dir_all(plans[0].state()).expect("it was there");
    let nodes = start_all(plans.each_mut());
    for cells in cells.chunks(2) {
        for node in &nodes {
            cells.iter().for_each(|cell| meet(node, cell));
        }
    }
    for (turn, cells) in cells.chunks(2).enumerate() {
        check(&nodes[turn], cells);
        check(&nodes[(turn + 1) % 3], cells);
    }
}

/// Two hosts, and nodes of one name on both.
#[test]
fn the_twin_of_a_node_that_is_cut_off_takes_its_name_when_the_lease_is_over() {
    let _machine = super::shared();
    let Some(network) = Network::new() else { return };
    let (mut one, mut another) = (network.plan_of("first", "same"), network.plan("other"));
    let [mut first, other] = start_all([&mut one, &mut another]);
    let cells = cells("t", 3);
    fill(&first, &cells);
    cells.iter().for_each(|cell| meet(&other, cell));

    // While the first one lives, another one gives up and does no harm.
    let mut twin = network.plan_of("second", "same");
    let mut refused = twin.spawn();
    let status = refused.wait_for_end(TTL * 5 + SLACK * 2);
    assert_eq!(status.code(), Some(1), "{}", refused.log());
    assert!(refused.log().contains("another process runs under the name"), "{}", refused.log());
    check(&first, &cells);

    network.cut_store("first");
    let mut second = twin.spawn();
    let status = first.wait_for_end(TTL * 2 + SLACK);
    assert_fenced(status, &first.log(), "expired");
    second.wait_until_it_serves(TTL + SLACK * 2);
    // The cells of the first one are nobody's: another session has its name.
    let mut client = second.client();
    for cell in &cells {
        wait_for("a takeover", TTL + SLACK, || try_write(&mut client, cell).ok());
    }
    check(&second, &cells);
    cells.iter().for_each(|cell| meet(&other, cell));
    check(&other, &cells);
    network.heal_store("first");
}
