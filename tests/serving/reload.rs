//! New versions while clients are served: none of them notices, and a bad one changes nothing.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::raw_http::{Raw, celld, wait_for};
use celld_shard::deployment::Blob;
use serde_json::Value;

const CONFIGURATION: &str = r#"{
  "name": "reload", "main": "index.js", "compatibility_date": "2026-08-01", "no_bundle": true,
  "durable_objects": { "bindings": [{ "name": "CELLS", "class_name": "Cell" }] },
  "migrations": [{ "tag": "v1", "new_sqlite_classes": ["Cell"] }]
}"#;

/// A Worker of which every answer names its version.
fn source(version: usize) -> String {
    format!(
        "import {{ DurableObject }} from 'cloudflare:workers';
export class Cell extends DurableObject {{
  async fetch() {{
    await scheduler.wait(1);
    return new Response('cell {version}');
  }}
}}
export default {{
  async fetch(request, env) {{
    const name = new URL(request.url).searchParams.get('cell');
    if (name !== null) return env.CELLS.getByName(name).fetch(request);
    await scheduler.wait(2);
    return new Response('worker {version}');
  }},
}};
"
    )
}

struct Node {
    child: Child,
    address: SocketAddr,
    dir: tempfile::TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ended_before = self.child.kill();
        let _status = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

impl Node {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("wrangler.jsonc"), CONFIGURATION).expect("written");
        deploy(dir.path(), &source(0));
        let log = std::fs::File::create(dir.path().join("log")).expect("a log");
        let child = celld()
            .args(["--listen", "127.0.0.1:0", "--node", "n", "--shards", "2"])
            .args(["--bucket", &bucket(dir.path()), "--state"])
            .arg(dir.path().join("state"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let mut node = Self { child, address: ([127, 0, 0, 1], 0).into(), dir };
        node.address = wait_for("a node", || {
            let log = node.log();
            let (_, rest) = log.split_once("listens on http://")?;
            rest.split_once('\n')?.0.split(',').next()?.parse().ok()
        });
        node
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn health(&self) -> Value {
        let reply = Raw::connect(self.address).get("/.well-known/celld/health");
        assert_eq!(reply.status, 200);
        reply.json()
    }
}

fn bucket(dir: &Path) -> String {
    format!("file://{}", dir.join("bucket").display())
}

/// Deploys a source, and returns the version's name.
fn deploy(dir: &Path, source: &str) -> String {
    std::fs::write(dir.join("index.js"), source).expect("written");
    let output = celld()
        .arg("deploy")
        .arg(dir)
        .args(["--json", "--bucket", &bucket(dir)])
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    document["version"].as_str().expect("a version").to_owned()
}

/// Writes one of the deployment's objects as a bucket does, in one step.
fn put(dir: &Path, name: &str, text: &str) {
    let draft = dir.join("draft");
    std::fs::write(&draft, text).expect("written");
    std::fs::rename(&draft, dir.join("bucket/deploy@").join(name)).expect("put");
}

/// Makes `source` the current version although no node will load it, which `celld deploy` does not.
fn deploy_bad(dir: &Path, source: &str) -> String {
    let records = dir.join("bucket/deploy@");
    let read = |name: &str| -> Value {
        let text = std::fs::read(records.join(name)).expect("a record");
        serde_json::from_slice(&text).expect("JSON")
    };
    let mut current = read("current.json");
    let mut manifest =
        read(&format!("versions@/{}.json", current["version"].as_str().expect("a name")));
    let blob = Blob::of(source.as_bytes());
    let version = format!("bad-{}", &blob.sha256[..16]);
    manifest["modules"][0]["content"] = serde_json::to_value(&blob).expect("JSON");
    for record in [&mut manifest, &mut current] {
        record["version"] = version.as_str().into();
    }
    put(dir, &format!("modules@/{}", blob.sha256), source);
    put(dir, &format!("versions@/{version}.json"), &manifest.to_string());
    put(dir, "current.json", &current.to_string());
    version
}

#[test]
fn new_versions_come_without_a_failed_request() {
    let node = Node::start();
    let stop = AtomicBool::new(false);
    let newest = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..32 {
            let (stop, newest, address) = (&stop, &newest, node.address);
            scope.spawn(move || {
                let path = if client % 2 == 0 {
                    "/".to_owned()
                } else {
                    format!("/?cell=c{}", client % 8)
                };
                let mut connection = Raw::connect(address);
                let mut before = 0;
                while !stop.load(Ordering::Relaxed) {
                    let reply = connection.get(&path);
                    assert_eq!(reply.status, 200, "{}", reply.text());
                    let text = reply.text();
                    let version = text.rsplit(' ').next().and_then(|text| text.parse().ok());
                    let version: usize = version.expect("a version");
                    newest.fetch_max(version, Ordering::Relaxed);
                    // The two shards change one after the other; a connection stays on one.
                    assert!(client % 2 != 0 || version >= before, "{version} after {before}");
                    before = version;
                }
            });
        }
        let stopping = Stopping(&stop);
        for version in 1..=3 {
            let name = deploy(node.dir.path(), &source(version));
            wait_for("the new version", || (node.health()["version"] == name).then_some(()));
            wait_for("its answers", || (newest.load(Ordering::Relaxed) == version).then_some(()));
        }
        // Cells follow: each of their events is short.
        wait_for("the cells", || {
            let mut client = Raw::connect(node.address);
            (0..8).all(|i| client.get(&format!("/?cell=c{i}")).text() == "cell 3").then_some(())
        });
        drop(stopping);
    });
}

/// Lets the clients end, also when the test fails.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_version_that_does_not_load_is_shown_and_not_served() {
    let node = Node::start();
    let good = node.health()["version"].clone();
    let mut client = Raw::connect(node.address);
    assert_eq!(client.get("/?cell=a").text(), "cell 0");
    for (bad, words) in [
        ("throw new Error('at the top');", "at the top"),
        ("const name = './missing.js'; await import(name); export default {};", "missing.js"),
        ("export default { fetch( };", "SyntaxError"),
    ] {
        let version = deploy_bad(node.dir.path(), bad);
        let rejected = wait_for("the rejection", || {
            let rejected = node.health()["rejected"].clone();
            (rejected["version"] == version).then_some(rejected)
        });
        let error = rejected["error"].as_str().unwrap_or_default();
        assert!(error.contains(words), "{rejected}");
        assert_eq!(node.health()["version"], good);
        assert_eq!(client.get("/").text(), "worker 0");
        assert_eq!(client.get("/?cell=a").text(), "cell 0");
        assert!(node.log().contains(&version), "the log says so too");
    }
    let next = deploy(node.dir.path(), &source(7));
    wait_for("the good one", || (node.health()["version"] == next).then_some(()));
    assert_eq!(node.health()["rejected"], Value::Null);
    assert_eq!(client.get("/").text(), "worker 7");
}

#[test]
fn a_damaged_record_of_the_version_is_shown_until_it_is_mended() {
    let node = Node::start();
    let version = node.health()["version"].clone();
    let record = node.dir.path().join("bucket/deploy@/current.json");
    let good = std::fs::read_to_string(&record).expect("the record");
    put(node.dir.path(), "current.json", "{");
    let rejected = wait_for("the health", || {
        let rejected = node.health()["rejected"].clone();
        (!rejected.is_null()).then_some(rejected)
    });
    let error = rejected["error"].as_str().unwrap_or_default();
    assert!(error.contains("deploy/current.json cannot be used"), "{rejected}");
    assert!(error.contains("put an older copy of it back"), "{rejected}");
    assert_eq!((&rejected["version"], &node.health()["version"]), (&Value::Null, &version));
    assert_eq!(Raw::connect(node.address).get("/").text(), "worker 0", "it serves on");
    put(node.dir.path(), "current.json", &good);
    wait_for("the health", || node.health()["rejected"].is_null().then_some(()));
    assert_eq!(node.log().matches("cannot be read").count(), 1, "{}", node.log());
}
