//! What a server writes for whoever runs it, when nobody reads it.

use std::io::{PipeReader, Read as _};
use std::net::SocketAddr;
use std::process::Child;

use super::raw_http::{Raw, celld, wait_for};
use tempfile::TempDir;

const CONFIGURATION: &str = r#"{ "name": "app", "main": "index.js", "compatibility_date": "2026-08-01", "no_bundle": true }"#;
const LOGS: &str = r#"
export default {
  fetch(request) {
    console.log('x'.repeat(200));
    if (request.url.endsWith('/throws')) throw new Error('on purpose');
    return new Response('answered');
  },
};"#;
/// Their lines are many times what a pipe holds.
const REQUESTS: usize = 2_000;

struct Server {
    child: Child,
    address: SocketAddr,
    stderr: Option<PipeReader>,
    _project: TempDir,
}

impl Server {
    fn start() -> Self {
        let project = tempfile::tempdir().expect("a directory");
        let file = |name: &str| project.path().join(name);
        std::fs::write(file("wrangler.jsonc"), CONFIGURATION).expect("written");
        std::fs::write(file("index.js"), LOGS).expect("written");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let child = celld()
            .arg("dev")
            .arg(project.path())
            .args(["--port", "0", "--shards", "1", "--no-watch"])
            .stdout(std::fs::File::create(file(".stdout")).expect("a file"))
            .stderr(writer)
            .spawn()
            .expect("the program starts");
        let address = wait_for("a server", || {
            let out = std::fs::read_to_string(file(".stdout")).ok()?;
            out.strip_prefix("http://")?.split_once('\n')?.0.parse().ok()
        });
        Self { child, address, stderr: Some(reader), _project: project }
    }

    fn ask(&self, path: &str) -> u16 {
        Raw::connect(self.address).get(path).status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_before = self.child.kill();
        let _status = self.child.wait();
    }
}

#[test]
fn a_reader_that_goes_away_stops_nothing() {
    let mut server = Server::start();
    assert_eq!(server.ask("/"), 200);
    server.stderr = None;
    for _ in 0..3 {
        assert_eq!(server.ask("/"), 200);
        assert_eq!(server.ask("/throws"), 500);
    }
}

#[test]
fn a_reader_that_stops_reading_loses_lines_and_learns_how_many() {
    let mut server = Server::start();
    for _ in 0..REQUESTS {
        assert_eq!(server.ask("/"), 200);
    }
    // It reads again: the next line that finds room says what is missing.
    let mut stderr = server.stderr.take().expect("it is there");
    let mut text = Vec::new();
    let mut room = [0; 4096];
    while !String::from_utf8_lossy(&text).contains("lines are lost: nobody read them") {
        assert_eq!(server.ask("/"), 200);
        let read = stderr.read(&mut room).expect("lines");
        text.extend_from_slice(&room[..read]);
    }
}
