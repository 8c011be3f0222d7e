//! `celld diagnose` asks nodes directly: over real links, to servers of this fleet and of another.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::mpsc::sync_channel;

use bytes::Bytes;
use celld_core::fleet::{FLEET_KEY, FleetId, FleetRecord, FleetSecret};
use celld_core::lease::{Load, Record};
use celld_core::node::{DiskId, NodeId, SessionId};
use celld_core::time::{Micros, Wall};
use celld_peer::identity::{Identity, Principal, Role};
use celld_peer::operator::{OperatorReply, OperatorRequest};
use celld_peer::probe::ProbeReply;
use celld_peer::{CallKind, PROTOCOL, Server};
use celld_s3::Bucket;
use serde_json::Value;

fn fleet(n: u8) -> FleetRecord {
    FleetRecord { fleet: FleetId::drawn(n.into()), secret: FleetSecret::drawn([n; 32]) }
}

fn principal(name: &str) -> Principal {
    let session = SessionId::parse(&"7e".repeat(16)).expect("32 digits");
    Principal { role: Role::Node, node: NodeId::parse(name).expect("a name"), session }
}

/// A server of this fleet that answers probes as the node `name`, until this program ends.
fn serve(fleet_number: u8, name: &'static str, is_draining: bool) -> SocketAddr {
    let (tell, told) = sync_channel(1);
    let make = move || async move {
        let at = "127.0.0.1:0".parse().expect("an address");
        let listener = celld_rt::net::listen(at).expect("a port");
        tell.send(listener.local_addr().expect("an address")).expect("the test waits");
        let me = principal(name);
        let identity = Identity::new(&fleet(fleet_number), me.clone()).expect("certificates");
        let answer = move |call: celld_peer::Call| {
            let Principal { node, session, .. } = me.clone();
            async move {
                assert_eq!(call.peer.role, Role::Operator);
                if call.kind == CallKind::OPERATOR {
                    let words = "no room is left".to_owned();
                    let asked = OperatorRequest::decode(&call.head);
                    assert_eq!(asked, Ok(OperatorRequest::Flush), "nothing else is wanted");
                    let full =
                        OperatorReply::Refused { code: "disk".into(), words, retryable: true };
                    call.reply.send(full.encode().expect("short")).expect("a short head");
                    return;
                }
                assert_eq!(call.kind, CallKind::PROBE);
                let reply = ProbeReply {
                    protocol: PROTOCOL,
                    version: "0.1.0".into(),
                    node,
                    session,
                    shards: 2,
                    resident_cells: 300,
                    load_permille: 45,
                    restoring: 6,
                    is_draining,
                };
                call.reply.send(reply.encode().expect("short")).expect("a short head");
            }
        };
        Server::new(Rc::new(identity)).serve(listener, answer).await;
    };
    celld_rt::spawn_thread("server", celld_rt::Placement::Floating, make).expect("a thread");
    told.recv().expect("a server")
}

/// A bucket with these leases, all live, and the record of fleet 1 if `has_fleet`.
fn bucket(dir: &Path, has_fleet: bool, leases: &[(&str, Option<SocketAddr>)]) -> String {
    let bucket = Bucket::open_dir(&dir.join("bucket")).expect("a bucket");
    celld_rt::block_on(async {
        if has_fleet {
            bucket.put(FLEET_KEY, Bytes::from(fleet(1).encode())).await.expect("a write");
        }
        for (name, address) in leases {
            let Principal { node, session, .. } = principal(name);
            let record = Record {
                node,
                session,
                write: 1,
                ttl: Micros::from_secs(300),
                written: Wall::from_millis(celld_rt::wall_ms()),
                disk: DiskId::parse(&"d".repeat(32)).expect("a disk"),
                protocol: PROTOCOL.into(),
                address: address.map(|address| address.to_string()),
                version: "0.1.0".into(),
                load: Load::default(),
            };
            let body = Bytes::from(record.encode());
            bucket.put(&format!("nodes/{name}.json"), body).await.expect("a write");
        }
    });
    bucket.to_string()
}

fn diagnose(dir: &Path, url: &str, args: &[&str]) -> (Value, Vec<(String, String)>) {
    let output = Command::new(env!("CARGO_BIN_EXE_celld"))
        .args(["diagnose", "--json", "--bucket", url, "--state"])
        .arg(dir.join("state"))
        .args(args)
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let document: Value = serde_json::from_slice(&output.stdout).expect(&said);
    let code = if document["ok"] == true { 0 } else { 1 };
    assert_eq!(output.status.code(), Some(code), "{document:#}");
    let findings = document["findings"].as_array().expect("findings").iter();
    let text = |finding: &Value, key: &str| finding[key].as_str().expect("text").to_owned();
    let found = findings.map(|f| (text(f, "code"), text(f, "what"))).collect();
    (document, found)
}

#[test]
fn each_live_node_tells_how_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let leases = [
        ("node-1", Some(serve(1, "node-1", false))),
        ("node-2", Some(serve(1, "node-2", true))),
        ("node-3", None),
    ];
    let url = bucket(dir.path(), true, &leases);
    let asked = ["--probe", "--peer", "node-1", "--peer", "node-2"];
    let (document, findings) = diagnose(dir.path(), &url, &asked);
    let codes: Vec<_> = findings.iter().map(|(code, _)| code.as_str()).collect();
    assert_eq!(codes, ["peer.draining"]);
    let peer = &document["peers"][0];
    assert_eq!((&peer["node"], &peer["state"]), (&"node-1".into(), &"answers".into()));
    for (key, value) in [("shards", 2), ("resident_cells", 300), ("restoring", 6)] {
        assert_eq!(peer[key], value, "{key}");
    }
    assert_eq!(document["peers"][2]["state"], "takes-none");
    let series = document["latency"]["series"].as_array().expect("series");
    let names: Vec<_> = series.iter().map(|s| s["name"].as_str().expect("a name")).collect();
    assert!(names.contains(&"peer.node-1") && names.contains(&"peer.node-2"), "{names:?}");
    assert!(!names.contains(&"peer.node-3"), "{names:?}");
    let flush = series.iter().find(|s| s["name"] == "flush.node-1").expect("it was asked");
    assert_eq!((&flush["count"], &flush["failed"]), (&0.into(), &1.into()));
    let (_, findings) = diagnose(dir.path(), &url, &["--read-only", "--peer", "node-3"]);
    assert_eq!(findings[0].0, "peer.no-address");
}

#[test]
fn a_node_that_cannot_be_spoken_to_is_a_fault() {
    let dir = tempfile::tempdir().expect("a directory");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = nobody.local_addr().expect("an address");
    drop(nobody);
    let leases = [
        ("closed", Some(closed)),
        ("foreign", Some(serve(2, "foreign", false))),
        ("other", Some(serve(1, "someone-else", false))),
        ("well", Some(serve(1, "well", false))),
    ];
    let url = bucket(dir.path(), true, &leases);
    let (document, findings) = diagnose(dir.path(), &url, &[]);
    let codes: Vec<_> = findings.iter().map(|(code, _)| code.as_str()).collect();
    assert_eq!(codes, ["peer.unanswered"; 3], "{findings:?}");
    for ((_, what), name) in findings.iter().zip(["closed", "foreign", "other"]) {
        assert!(what.starts_with(name), "{what}");
    }
    assert_eq!(document["peers"][3]["state"], "answers");
}

#[test]
fn nobody_is_asked_without_the_record_of_the_fleet() {
    let dir = tempfile::tempdir().expect("a directory");
    let url = bucket(dir.path(), false, &[("node-1", Some(serve(1, "node-1", false)))]);
    let (document, findings) = diagnose(dir.path(), &url, &["--peer", "node-1"]);
    let codes: Vec<_> = findings.iter().map(|(code, _)| code.as_str()).collect();
    assert_eq!(codes, ["fleet.missing", "peer.not-asked"]);
    assert_eq!(document["peers"][0]["state"], "not-asked");
    let bucket = Bucket::open_dir(&dir.path().join("bucket")).expect("the bucket");
    let secret = "not a record, but a secret: 0123456789";
    celld_rt::block_on(bucket.put(FLEET_KEY, Bytes::from(secret))).expect("a write");
    let (document, findings) = diagnose(dir.path(), &url, &[]);
    assert_eq!(findings[0].0, "fleet.malformed");
    assert!(!document.to_string().contains("0123456789"), "{document:#}");
}
