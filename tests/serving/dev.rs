//! `celld dev` for a person who writes code that does not work yet.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::raw_http::{Raw, celld, wait_for};
use tempfile::TempDir;

const CONFIGURATION: &str = r#"{
  "name": "app", "main": "index.js", "compatibility_date": "2026-08-01", "no_bundle": true,
  "vars": { "GREETING": "hello" }
}"#;
const GOOD: &str = "export default { fetch(_, env) { return new Response(env.GREETING); } };";
/// Builds, and does not load.
const THROWS: &str = "throw new Error('at the top');";
/// Does not build.
const IMPORTS: &str = "export { default } from './lost.js';";

struct Project(TempDir);

impl Project {
    fn new(source: &str) -> Self {
        let project = Self(tempfile::tempdir().expect("a directory"));
        project.write("wrangler.jsonc", CONFIGURATION);
        project.write("index.js", source);
        project
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).expect("written");
    }

    fn command(&self) -> Command {
        let mut command = celld();
        command.arg("dev").arg(self.0.path()).args(["--port", "0", "--shards", "1"]);
        command
    }

    /// With its output in files that no build looks at.
    fn start(&self) -> Dev<'_> {
        let log = |name: &str| std::fs::File::create(self.0.path().join(name)).expect("a log");
        let (out, err) = (log(".stdout"), log(".stderr"));
        let child = self.command().stdout(out).stderr(err).spawn().expect("the program starts");
        Dev { child, project: self }
    }
}

struct Dev<'a> {
    child: Child,
    project: &'a Project,
}

impl Drop for Dev<'_> {
    fn drop(&mut self) {
        let _ended_before = self.child.kill();
        let _status = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.read(".stderr"));
        }
    }
}

impl Dev<'_> {
    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.project.0.path().join(name)).unwrap_or_default()
    }

    /// Waits until it has said all of `words`, one after the other, in what it said behind `from`.
    fn says(&self, from: usize, words: &[&str]) {
        wait_for(&format!("{words:?}"), || {
            let log = self.read(".stderr");
            let all = words
                .iter()
                .try_fold(&log[from..], |rest, word| rest.split_once(word).map(|(_, rest)| rest));
            all.map(|_| ())
        });
    }

    fn said(&self) -> usize {
        self.read(".stderr").len()
    }

    fn address(&self) -> SocketAddr {
        wait_for("an address", || {
            let out = self.read(".stdout");
            out.strip_prefix("http://")?.split_once('\n')?.0.parse().ok()
        })
    }
}

#[test]
fn a_first_build_that_fails_is_shown_and_a_change_is_waited_for() {
    let project = Project::new(IMPORTS);
    let dev = project.start();
    dev.says(0, &["nothing is served yet", "\"./lost.js\", which does not exist"]);
    let said = dev.said();
    project.write("lost.js", "export default {");
    project.write("wrangler.jsonc", "{");
    dev.says(said, &["nothing is served yet", "wrangler.jsonc"]);
    assert_eq!(dev.read(".stdout"), "", "no address while nobody answers there");
    project.write("lost.js", GOOD);
    project.write("wrangler.jsonc", CONFIGURATION);
    let address = dev.address();
    assert!(dev.read(".stdout").contains("env.GREETING: \"hello\""), "{}", dev.read(".stdout"));
    assert_eq!(Raw::connect(address).get("/").text(), "hello");
}

#[test]
fn a_first_version_that_does_not_load_is_said_not_to_be_served() {
    let project = Project::new(THROWS);
    let dev = project.start();
    dev.says(0, &["Error: at the top", "nothing is served yet; waiting for a change"]);
    assert_eq!(dev.read(".stdout"), "", "no address while nothing is served there");
    project.write("index.js", GOOD);
    let address = dev.address();
    assert_eq!(Raw::connect(address).get("/").text(), "hello");
    // From now on there is something to fall back to, whatever is wrong with the new code.
    for (bad, words) in [(THROWS, "Error: at the top"), (IMPORTS, "is served on")] {
        let said = dev.said();
        project.write("index.js", bad);
        dev.says(said, &[words]);
        assert_eq!(Raw::connect(address).get("/").text(), "hello");
    }
    // A file that was not there when the build failed.
    project.write("lost.js", &GOOD.replace("env.GREETING", "'found'"));
    wait_for("the new code", || (Raw::connect(address).get("/").text() == "found").then_some(()));
}

#[test]
fn without_a_watch_code_that_cannot_be_served_ends_the_command() {
    for (bad, words) in [(IMPORTS, "lost.js"), (THROWS, "Error: at the top")] {
        let project = Project::new(bad);
        let output = project.command().arg("--no-watch").stdin(Stdio::null()).output();
        let output = output.expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words) && output.stdout.is_empty(), "{said}");
    }
}
