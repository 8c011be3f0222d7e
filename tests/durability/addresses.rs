//! What nodes tell each other of where they are and what they speak, and what they refuse to tell.

use std::time::Duration;

use super::fleet::{TTL, cells, meet, try_write, write};
use super::load::Cell;
use super::support::node::Site;
use super::support::wait_for;

/// For a node that does not start to say so.
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_public_address_is_told_only_if_that_is_meant() {
    let _machine = super::shared();
    let site = Site::new();
    let plan = |name| {
        let plan = site.node(name).flag("--internal-listen", "127.0.0.1:0");
        plan.flag("--advertise", "8.8.8.8:8788")
    };
    let mut refused = plan("refused").spawn();
    let status = refused.wait_for_end(LIMIT);
    let log = refused.log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("8.8.8.8") && log.contains("--unsafe-public-advertise"), "{log}");
    let meant = plan("meant").switch("--unsafe-public-advertise").start();
    assert_eq!(meant.ask("GET", "/").status, 200);
}

#[test]
fn nodes_that_only_their_own_machine_reaches_are_not_of_a_fleet_of_several_hosts() {
    let _machine = super::shared();
    let site = Site::new();
    let ttl = TTL.as_millis().to_string();
    let plan = |name, told| {
        let plan = site.node(name).variable("CELLD_TTL_MS", &ttl);
        plan.flag("--internal-listen", "127.0.0.1:0").flag("--advertise", told)
    };
    let mut here = plan("here", "127.0.0.1:7701").start();
    let beside = plan("beside", "localhost:7702").start();
    assert_eq!(beside.ask("GET", "/").status, 200);
    let mut elsewhere = plan("elsewhere", "10.9.8.7:7703");
    let mut refused = elsewhere.spawn();
    let status = refused.wait_for_end(TTL + LIMIT);
    let log = refused.log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("127.0.0.1:7701") || log.contains("localhost:7702"), "{log}");
    assert!(log.contains("10.9.8.7:7703") && log.contains("--advertise"), "{log}");
    // What dead nodes have left behind keeps nobody out for longer than they could have lived.
    here.end();
    drop(beside);
    let elsewhere = elsewhere.start();
    let mut late = plan("here", "127.0.0.1:7701").spawn();
    let status = late.wait_for_end(TTL + LIMIT);
    assert_eq!(status.code(), Some(1), "{}", late.log());
    assert!(late.log().contains("node elsewhere is at 10.9.8.7:7703"), "{}", late.log());
    drop(elsewhere);
}

/// Of two releases: the lease of one is made to say so.
#[test]
fn a_node_of_another_protocol_is_named_and_gets_no_requests_and_no_cells() {
    let _machine = super::shared();
    let site = Site::new();
    let plan = |name| {
        let plan = site.node(name).flag("--internal-listen", "127.0.0.1:0");
        // It says what it says until the end of the test.
        plan.variable("CELLD_TTL_MS", (TTL * 20).as_millis().to_string())
    };
    let mut other = plan("other").start();
    let cell = Cell::new("c".into());
    write(&mut other.client(), &cell);
    let node = plan("node").start();
    meet(&node, &cell);

    // It renews nothing any more.
    other.freeze();
    let lease = site.bucket().join("nodes@/other.json");
    let text = std::fs::read_to_string(&lease).expect("a lease");
    let mut record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let ours = record["protocol"].as_u64().expect("a number");
    record["protocol"] = (ours + 1).into();
    let written = site.path().join("lease");
    std::fs::write(&written, record.to_string()).expect("a file");
    std::fs::rename(written, lease).expect("the bucket is a directory");

    let words = format!(
        "node other speaks version {} of the peer protocol, and this node only {ours}",
        ours + 1
    );
    wait_for("a look at the lease", TTL * 4, || node.log().contains(&words).then_some(()));
    let why = try_write(&mut node.client(), &cell).expect_err("nobody can be asked");
    assert!(why.starts_with("503: ") && why.contains("and that node speaks version"), "{why}");
    // Half of them would be placed there otherwise, and wait for an answer.
    for cell in cells("new", 20) {
        write(&mut node.client(), &cell);
    }
    assert_eq!(node.log().matches(&words).count(), 1, "{}", node.log());
    other.end();
}
