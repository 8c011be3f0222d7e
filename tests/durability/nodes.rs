//! Several nodes on one bucket: one writer for each cell, whatever the nodes believe.

use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ledger::{append, rows};
use super::load::{Cell, Load, NEXT};
use super::support::http::Client;
use super::support::node::{Node, Plan, Site};
use super::support::rng::Rng;
use super::support::wait_for;

/// Life of the leases: short enough to wait for, long enough for a busy machine to renew in time.
const TTL: Duration = Duration::from_secs(6);
/// A takeover may take the rest of a lease, the margin for clocks, and a busy machine's time.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(40);
/// Exit code of a node that fenced itself.
const FENCED: i32 = 3;

pub fn plan(site: &Site, name: &str) -> Plan {
    site.node(name).variable("CELLD_TTL_MS", TTL.as_millis().to_string())
}

/// One row, if it is acknowledged.
pub fn write(client: &mut Client, cell: &Cell) -> Result<u64, (Option<u16>, String)> {
    let row = (99, NEXT.fetch_add(1, Ordering::Relaxed));
    cell.ledger().sends(row);
    let number = append(client, &cell.name, row)?;
    cell.ledger().acknowledges(number, row);
    Ok(number)
}

/// Waits until this node acknowledges a write of the cell.
fn take_over(node: &Node, cell: &Cell) {
    let mut client = node.client();
    wait_for("a takeover", TAKEOVER_LIMIT, || match write(&mut client, cell) {
        Ok(_) => Some(()),
        Err((Some(503), _)) => {
            std::thread::sleep(Duration::from_millis(50));
            None
        }
        Err(other) => panic!("neither acknowledged nor retryable: {other:?}"),
    });
}

/// Asserts that the node fenced itself, and said why in one line.
pub(super) fn assert_fenced(status: ExitStatus, log: &str, reason: &str) {
    assert_eq!(status.code(), Some(FENCED), "{log}");
    let lines: Vec<_> = log.lines().filter(|line| line.contains("SELF-FENCE")).collect();
    let [line] = lines[..] else { panic!("{lines:?} in:\n{log}") };
    assert!(line.to_ascii_lowercase().starts_with(&format!("self-fence: {reason}")), "{line}");
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_cell_of_a_live_node_is_refused_by_the_other_and_taken_over_after_its_death() {
    let _machine = super::shared();
    let rng = Rng::from_environment("the takeover");
    let site = Site::new();
    let mut first = plan(&site, "first").start();
    let second = plan(&site, "second").start();
    let cells: Vec<_> = (0..3).map(|n| Cell::new(format!("c{n}"))).collect();
    for cell in &cells {
        write(&mut first.client(), cell).expect("an acknowledgement");
    }
    // While the owner serves them under load, the other acknowledges nothing and says why.
    let load = Load::start(first.door(), &cells, 6, 2, &rng);
    let mut refused = second.client();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(1) {
        let (status, text) = write(&mut refused, &cells[0]).expect_err("a second writer");
        assert_eq!(status, Some(503), "{text}");
        assert!(text.contains("is served by node first") && text.contains(r#""retryable":true"#));
    }
    first.end();
    let refusals = load.end();
    assert!(refusals.is_empty(), "{refusals:#?}");
    for cell in &cells {
        take_over(&second, cell);
        cell.verify(&mut second.client());
    }
    // The dead one comes back as another session: it may not serve what was taken over.
    let first = plan(&site, "first").start();
    let (status, text) = write(&mut first.client(), &cells[0]).expect_err("a second writer");
    assert_eq!(status, Some(503), "{text}");
}

#[test]
fn a_node_that_stood_still_past_its_lease_acknowledges_nothing_and_fences_itself() {
    let _machine = super::shared();
    let rng = Rng::from_environment("the frozen owner");
    let site = Site::new();
    let mut first = plan(&site, "first").start();
    let second = plan(&site, "second").start();
    let cells: Vec<Arc<Cell>> = (0..3).map(|n| Cell::new(format!("c{n}"))).collect();
    for cell in &cells {
        write(&mut first.client(), cell).expect("an acknowledgement");
    }
    // Frozen in the middle of writes: some of them are with the node, unanswered.
    let load = Load::start(first.door(), &cells, 6, 2, &rng);
    std::thread::sleep(Duration::from_millis(500));
    first.freeze();
    for cell in &cells {
        take_over(&second, cell);
    }
    let mut client = second.client();
    let before: Vec<_> =
        cells.iter().map(|cell| rows(&mut client, &cell.name, 0).expect("rows")).collect();
    for cell in &cells {
        cell.ledger().sees(&rows(&mut client, &cell.name, 0).expect("rows"));
    }
    // What the first one acknowledges from here on contradicts what the second one shows.
    first.thaw();
    let status = first.wait_for_end(TTL);
    let _broken = load.end();
    assert_fenced(status, &first.log(), "expired");
    for (cell, before) in cells.iter().zip(before) {
        assert_eq!(rows(&mut client, &cell.name, 0), Ok(before), "cell {}", cell.name);
        write(&mut client, cell).expect("an acknowledgement");
        cell.verify(&mut client);
    }
}

#[test]
fn of_two_nodes_with_one_name_the_second_gives_up_and_the_first_serves_on() {
    let _machine = super::shared();
    let site = Site::new();
    let first = plan(&site, "same").start();
    let cell = Cell::new("c".into());
    write(&mut first.client(), &cell).expect("an acknowledgement");
    let mut second = plan(&site, "same").beside("twin").spawn();
    let status = second.wait_for_end(TTL * 5);
    assert_eq!(status.code(), Some(1), "{}", second.log());
    assert!(second.log().contains("another process runs under the name"), "{}", second.log());
    write(&mut first.client(), &cell).expect("an acknowledgement");
    cell.verify(&mut first.client());
}

/// The copy of a state directory holds the sessions that ran on the original: a node on it takes
/// them for its own earlier lives, which have ended.
#[test]
fn a_node_whose_state_directory_was_copied_is_fenced_by_the_node_on_the_copy() {
    let _machine = super::shared();
    let site = Site::new();
    let mut original = plan(&site, "same");
    let mut first = original.start();
    let cell = Cell::new("c".into());
    write(&mut first.client(), &cell).expect("an acknowledgement");
    let mut copy = plan(&site, "same").beside("twin");
    std::fs::create_dir(copy.state()).expect("a state directory");
    std::fs::copy(original.state().join("sessions"), copy.state().join("sessions"))
        .expect("the list of sessions");
    let second = copy.start();
    let status = first.wait_for_end(TTL);
    assert_fenced(status, &first.log(), "replaced");
    take_over(&second, &cell);
    cell.verify(&mut second.client());
}

/// After a SIGKILL the kernel still closes the connections of the node: they must not keep its
/// successor from the port, and a node that lives must.
#[test]
fn a_killed_node_starts_again_on_its_port_and_two_do_not_share_one() {
    let site = Site::new();
    let cell = Cell::new("c".into());
    let first = site.node("n").start();
    let address = first.address();
    let mut clients: Vec<Client> = (0..8).map(|_| first.client()).collect();
    for client in &mut clients {
        write(client, &cell).expect("an acknowledgement");
    }
    first.kill();
    let again = site.node_at("n", &address.to_string()).start();
    assert_eq!(again.address(), address);
    cell.verify(&mut again.client());
    let mut other = site.node_at("m", &address.to_string()).spawn();
    let status = other.wait_for_end(Duration::from_secs(20));
    assert!(!status.success(), "{status}");
    assert!(other.log().contains("cannot listen"), "{}", other.log());
    drop(clients);
}
