//! Who may tell a node what to do: an operator of its fleet, and nobody else. Not a node, not a
//! Worker, not the fleet next door.

use std::fs;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use celld_core::cell::CellId;
use celld_core::fleet::FleetRecord;
use celld_core::lease::Record;
use celld_core::node::{NodeId, SessionId};
use celld_peer::fetch::{Content, FetchHead};
use celld_peer::identity::{Identity, Principal, Role};
use celld_peer::operator::OperatorRequest;
use celld_peer::take::TakeHead;
use celld_peer::{Address, Ask, CallError, CallKind, Link};

use super::support::node::Site;
use super::{internal, operate, plan, states};

const LIMIT: Duration = Duration::from_secs(20);

/// A link to the node whose lease is in this bucket, from somebody who knows this fleet.
fn link(lease: &Site, node: &str, fleet: &Site, role: Role) -> Link {
    let read = |site: &Site, key: &str| fs::read(site.bucket().join(key)).expect("an object");
    let record = Record::parse(&read(lease, &format!("nodes@/{node}.json"))).expect("a lease");
    let fleet = FleetRecord::parse(&read(fleet, "fleet@/fleet.json")).expect("a fleet");
    let me = Principal {
        role,
        node: NodeId::parse("stranger").expect("a name"),
        session: SessionId::parse(&"5".repeat(32)).expect("a session"),
    };
    let identity = Rc::new(Identity::new(&fleet, me).expect("certificates"));
    Link::new(identity, Address::of_lease(&record).expect("an address"))
}

async fn call(link: &Link, kind: CallKind, head: Bytes) -> Result<Bytes, CallError> {
    let answer = link.ask(Ask { kind, head, wait: Some(LIMIT) }).await?.answer().await?;
    Ok(answer.head)
}

#[test]
fn nodes_do_not_operate_and_operators_do_not_act_as_nodes() {
    let site = Site::of("operated");
    let node = plan(&site, "first").start();
    node.ask("POST", "/lobby/add").good();
    let cell = super::shown(&site, "operated.Cell --name lobby");
    let (namespace, id) =
        cell["cell"].as_str().and_then(|cell| cell.split_once('/')).expect("an id");
    let cell = CellId::new(namespace, id).expect("a good name");
    let operate = OperatorRequest::ShowCell(cell.clone()).encode().expect("short");
    let fetch = FetchHead {
        cell: cell.clone(),
        class: "Cell".into(),
        name: None,
        token: None,
        method: "POST".parse().expect("a method"),
        url: "http://x/lobby/add".into(),
        headers: Default::default(),
        content: Content::Nothing,
    };
    let fetch = fetch.encode().expect("short");
    let take = TakeHead { cell, class: "Cell".into(), name: None }.encode().expect("short");
    celld_rt::block_on(async {
        for (role, kind, head, is_good) in [
            (Role::Operator, CallKind::OPERATOR, &operate, true),
            (Role::Operator, CallKind::PROBE, &Bytes::new(), true),
            (Role::Operator, CallKind::FETCH, &fetch, false),
            (Role::Operator, CallKind::TAKE, &take, false),
            (Role::Node, CallKind::OPERATOR, &operate, false),
            (Role::Node, CallKind::PROBE, &Bytes::new(), true),
            (Role::Node, CallKind::FETCH, &fetch, true),
        ] {
            let link = link(&site, "first", &site, role);
            match call(&link, kind, head.clone()).await {
                Ok(_) => assert!(is_good, "{role:?} {kind:?}"),
                Err(error) => {
                    assert!(!is_good, "{role:?} {kind:?}: {error}");
                    assert_eq!(error.code(), "call_forbidden", "{error}");
                }
            }
        }
    });
    // Of the two requests one has run.
    assert_eq!(node.ask("GET", "/lobby/count").text(), "2");
}

#[test]
fn a_worker_reaches_the_operators_port_by_no_name() {
    let site = Site::of("operated");
    let port = |host: &str| {
        let listener = std::net::TcpListener::bind((host, 0)).expect("a free port");
        listener.local_addr().expect("an address").port()
    };
    let advertised = format!("localhost:{}", port("127.0.0.1"));
    let over_v4 = site
        .node("v4")
        .variable("CELLD_TTL_MS", super::TTL_MS)
        .flag("--internal-listen", &advertised)
        .flag("--advertise", &advertised)
        .start();
    let over_v6 = site
        .node("v6")
        .variable("CELLD_TTL_MS", super::TTL_MS)
        .flag("--internal-listen", &format!("[::1]:{}", port("::1")))
        .start();
    for at in [internal(&over_v4), internal(&over_v6), advertised] {
        for scheme in ["https", "http"] {
            for path in ["", "status", ".well-known/celld/health"] {
                let url = format!("/reach?url={scheme}://{at}/{path}");
                for node in [&over_v4, &over_v6] {
                    let said = node.ask("GET", &url).text();
                    assert!(said.starts_with("error: "), "{url}: {said}");
                }
            }
        }
    }
    // The test can fail: what listens for clients is reached.
    let url = format!("/reach?url=http://{}/lobby/count", over_v6.address());
    assert_eq!(over_v4.ask("GET", &url).text(), "status 200");
    // And nobody who belongs there is kept out.
    let status = operate(&site, "status --json").json();
    assert!(states(&status).iter().all(|(_, state)| state == "serving"), "{status}");
}

#[test]
fn the_fleet_next_door_is_refused_in_every_role() {
    let (ours, theirs) = (Site::of("operated"), Site::of("operated"));
    let _node = plan(&ours, "ours").start();
    let _other = plan(&theirs, "theirs").start();
    celld_rt::block_on(async {
        for role in [Role::Node, Role::Operator] {
            let link = link(&ours, "ours", &theirs, role);
            let error = call(&link, CallKind::PROBE, Bytes::new()).await.expect_err("refused");
            assert_eq!(error.code(), "peer_foreign", "{role:?}: {error}");
        }
    });
    // Their operator, sent to our node by a lease that does not belong into their bucket.
    let key = "nodes@/ours.json";
    fs::copy(ours.bucket().join(key), theirs.bucket().join(key)).expect("a copy");
    let status = operate(&theirs, "status --json");
    status.failed(1, &["node ours:", "not of this fleet"]);
    operate(&theirs, "cell list --node ours").failed(1, &["not of this fleet"]);
}
