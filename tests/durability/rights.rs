//! What an owner believes of its right: less than the others when the store is slow, and too much when
//! its clock stands still. Then the proof of its writes, which counts on no clock, is what is left.

use std::fs;
use std::time::{Duration, Instant};

use super::fleet::{cells, meet, try_write, write};
use super::load::{Cell, Load, read};
use super::network::{Network, SLACK};
use super::nodes::assert_fenced;
use super::owner::assert_nothing_said;
use super::partition::{acknowledged, check, fill, take_over};
use super::support::bucket::CellFiles;
use super::support::node::{Site, start_all};
use super::support::rng::Rng;
use super::support::skew::library;
use super::support::wait_for;

#[test]
fn an_owner_whose_clock_stands_still_acknowledges_nothing_that_is_lost() {
    let _machine = super::shared();
    let rng = Rng::from_environment("the clock that stands still");
    let Some(network) = Network::on_loopback() else { return };
    let Some(library) = library(network.site().path()) else { return };
    let still = network.site().path().join("still");
    let mut plan =
        network.plan("owner").variable("LD_PRELOAD", library).variable("STILL_FILE", &still);
    let [owner, other] = start_all([&mut plan, &mut network.plan("other")]);
    let cells = cells("s", 3);
    fill(&owner, &cells);
    cells.iter().for_each(|cell| meet(&other, cell));

    // Written by clients that reach the owner, and on its way when nothing passes any more. What a
    // reader would be shown there is old, and no clock can tell.
    let load = Load::start(owner.door(), &cells, 6, 0, &rng);
    wait_for("a load", SLACK, || (acknowledged(&cells) > 20).then_some(()));
    fs::write(&still, "").expect("a file");
    network.cut_store("owner");
    take_over(&other, &cells, Instant::now(), &["owner_lost"]);
    let mut client = other.client();
    cells.iter().for_each(|cell| write(&mut client, cell));

    // The uploads of the owner arrive, in the name of an epoch that is over.
    network.heal_store("owner");
    let before = acknowledged(&cells);
    wait_for("writes that find the new owner", SLACK, || {
        (acknowledged(&cells) > before + 20).then_some(())
    });
    let refusals = load.end();
    let is_clear =
        |text: &String| text.contains(r#""retryable":true"#) || text.contains("owner_lost");
    assert!(refusals.iter().all(is_clear), "{refusals:#?}");
    check(&other, &cells);
    check(&owner, &cells);
    assert!(!owner.log().contains("SELF-FENCE"), "{}", owner.log());
}

/// Its clock counts the sleep of the machine, but its timers do not: until one of them is due, only a
/// look at the clock in each turn keeps it from showing what others have changed meanwhile.
#[test]
fn a_node_whose_machine_has_slept_past_the_lease_answers_nothing_and_fences_itself() {
    let _machine = super::shared();
    let site = Site::new();
    let Some(library) = library(site.path()) else { return };
    let ahead = site.path().join("ahead");
    let plan = site.node("n").variable("LD_PRELOAD", library).variable("AHEAD_FILE", &ahead);
    let mut node = { plan }.start();
    let cell = Cell::new("w".into());
    let mut clients = [node.client(), node.client(), node.client()];
    write(&mut clients[0], &cell);
    for client in &mut clients {
        read(client, &cell).expect("an answer");
    }
    fs::write(&ahead, "").expect("a file");
    for client in &mut clients {
        client.send("GET", &format!("/{}/rows?after=0", cell.name)).expect("the kernel takes it");
    }
    for client in &mut clients {
        assert_nothing_said(client);
    }
    assert_fenced(node.wait_for_end(SLACK), &node.log(), "expired");
}

/// What an earlier activation still does must land aside, also one of the same session.
#[test]
fn a_cell_that_starts_anew_where_it_was_does_so_at_another_epoch() {
    let _machine = super::shared();
    let site = Site::new();
    let node = site.node("n").start();
    let cell = Cell::new("e".into());
    let mut client = node.client();
    write(&mut client, &cell);
    let files = CellFiles::of(site.bucket(), &mut client, &cell.name);
    let epoch = || files.read_record()["epoch"].as_u64().expect("a number");
    let mut last = epoch();
    for _ in 0..3 {
        // It is reset, and its record goes on naming this session.
        let aborted = node.ask("POST", &format!("/{}/abort", cell.name));
        assert_ne!(aborted.status, 200);
        write(&mut client, &cell);
        assert!(epoch() > last, "epoch {} after {last}", epoch());
        last = epoch();
    }
    cell.verify(&mut client);
}

/// A right counts from when its renewal was sent. If it counted from the answer, the owner would show
/// what it has in memory when others write to the cell already.
#[test]
fn an_owner_whose_store_answers_late_shows_nothing_that_is_old() {
    /// Long, so that what an answer takes is long too.
    const TTL: Duration = Duration::from_secs(15);
    /// A renewal waits for a sixth of the TTL. Others wait a twentieth longer than it grants, and see it
    /// within a tenth: in the rest of the time the owner would show what is old.
    const LATE: Duration = Duration::from_millis(2_350);
    const CELLS: usize = 24;
    let _machine = super::shared();
    let Some(network) = Network::on_loopback() else { return };
    let ttl = TTL.as_millis().to_string();
    let mut plans =
        ["owner", "other"].map(|name| network.plan(name).variable("CELLD_TTL_MS", &ttl));
    let [mut owner, other] = start_all(plans.each_mut());
    let cells = cells("l", CELLS);
    fill(&owner, &cells);
    cells.iter().for_each(|cell| meet(&other, cell));
    network.delay_answers("owner", LATE);
    // Renewals are due each third of a TTL: the last one that the store hears of is answered late.
    std::thread::sleep(TTL / 2);
    network.cut_questions("owner");
    let cut = Instant::now();
    std::thread::scope(|scope| {
        for (number, cell) in (0..).zip(&cells) {
            let (door, mut at_other) = (owner.door(), other.client());
            scope.spawn(move || {
                // A machine that is too slow for such answers has fenced it already.
                let Ok(mut at_owner) = door.connect() else { return };
                // Until the owner is gone, or has something to prove that it cannot prove.
                while read(&mut at_owner, cell).is_ok() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            scope.spawn(move || {
                // One after the other, from before the right is over until after it: the owner shows
                // nothing more of a cell for which a write has reached it.
                let at = TTL / 2 + TTL * number / (CELLS as u32 * 3 / 2);
                std::thread::sleep(at.saturating_sub(cut.elapsed()));
                wait_for("a takeover", SLACK, || try_write(&mut at_other, cell).ok());
            });
        }
    });
    let status = owner.wait_for_end(SLACK);
    assert_fenced(status, &owner.log(), "expired");
    check(&other, &cells);
}
