//! Nodes as real processes: started, killed, stopped, looked at.

use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::http::{Client, Response};
use super::wait_for;

/// A node on a busy machine starts within this time.
const START_LIMIT: Duration = Duration::from_secs(30);

/// One bucket with a deployment, and room for what nodes on it need.
pub struct Site {
    dir: TempDir,
    bucket: Place,
}

/// Where a bucket is.
enum Place {
    Directory(PathBuf),
    /// The command with its keys, its URL and the rest that says how it is reached.
    Store {
        url: String,
        endpoint: String,
        keys: [(&'static str, String); 2],
    },
}

impl Site {
    /// With the Worker of `tests/workers/ledger` deployed.
    pub fn new() -> Self {
        Self::of("ledger")
    }

    /// With the ledger, and the bucket at a store that speaks S3.
    pub fn on_store(url: String, endpoint: String, id: &str, secret: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let keys = [("AWS_ACCESS_KEY_ID", id.into()), ("AWS_SECRET_ACCESS_KEY", secret.into())];
        Self::deploy_to("ledger", dir, Place::Store { url, endpoint, keys })
    }

    /// With another Worker of `tests/workers` deployed.
    pub fn of(worker: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let bucket = dir.path().join("bucket");
        Self::deploy(worker, dir, bucket)
    }

    /// With the ledger, and the bucket somewhere else.
    pub fn on(dir: TempDir, bucket: PathBuf) -> Self {
        Self::deploy("ledger", dir, bucket)
    }

    fn deploy(worker: &str, dir: TempDir, bucket: PathBuf) -> Self {
        Self::deploy_to(worker, dir, Place::Directory(bucket))
    }

    fn deploy_to(worker: &str, dir: TempDir, bucket: Place) -> Self {
        let site = Self { dir, bucket };
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers").join(worker);
        let mut command = celld();
        site.name_bucket(command.arg("deploy").arg(project));
        let output = command.output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        site
    }

    /// The bucket's directory.
    pub fn bucket(&self) -> &Path {
        match &self.bucket {
            Place::Directory(path) => path,
            Place::Store { url, .. } => panic!("{url} is no directory"),
        }
    }

    /// Room for a test's own files.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn name_bucket(&self, command: &mut Command) {
        match &self.bucket {
            Place::Directory(path) => {
                command.arg("--bucket").arg(format!("file://{}", path.display()));
            }
            Place::Store { url, endpoint, keys } => {
                command.args(["--bucket", url, "--endpoint", endpoint]);
                command.args(["--region", "us-east-1"]).envs(keys.clone());
            }
        }
    }

    /// How a node of this name will run.
    pub fn node(&self, name: &str) -> Plan {
        self.node_at(name, "127.0.0.1:0")
    }

    /// The same, on this address.
    pub fn node_at(&self, name: &str, listen: &str) -> Plan {
        let mut command = celld();
        self.name_bucket(&mut command);
        command.args(["--node", name, "--listen", listen]);
        Plan {
            command,
            log: self.path().join(format!("{name}.log")),
            state: self.path().join(format!("{name}.state")),
        }
    }
}

/// The program, with nothing of the environment that would change what it does.
fn celld() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_celld"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CELLD_") || text.starts_with("AWS_") || text == "S3_ENDPOINT" {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null()).env("RUST_BACKTRACE", "1");
    command
}

/// A node that may be started.
pub struct Plan {
    command: Command,
    log: PathBuf,
    state: PathBuf,
}

impl Plan {
    /// One more argument with its value.
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.command.args([name, value]);
        self
    }

    /// One more argument that has no value.
    pub fn switch(mut self, name: &str) -> Self {
        self.command.arg(name);
        self
    }

    /// One more variable.
    pub fn variable(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Another name for state and log: two nodes may have the same `--node`.
    pub fn beside(mut self, name: &str) -> Self {
        self.log.set_file_name(format!("{name}.log"));
        self.state.set_file_name(format!("{name}.state"));
        self
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Starts it and returns at once.
    pub fn spawn(&mut self) -> Node {
        let said_before = fs::metadata(&self.log).map_or(0, |log| log.len());
        let log = OpenOptions::new().append(true).create(true).open(&self.log).expect("a log");
        self.command.env("CELLD_WATCH", &self.state);
        let child = self.command.stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
        Node { child, log: self.log.clone(), said_before, address: None }
    }

    /// Starts it and waits until it serves.
    pub fn start(&mut self) -> Node {
        let mut node = self.spawn();
        node.wait_until_it_serves(START_LIMIT);
        node
    }
}

/// A process that runs. It is killed when it is dropped.
pub struct Node {
    child: Child,
    log: PathBuf,
    said_before: u64,
    address: Option<SocketAddr>,
}

impl Node {
    /// Waits until its listener is open and a version serves.
    pub fn wait_until_it_serves(&mut self, limit: Duration) {
        let address = wait_for("a node that serves", limit, || {
            if let Some(ended) = self.child.try_wait().expect("it is our child") {
                panic!("the node ended with {ended}:\n{}", self.log());
            }
            let log = self.log();
            let (_, rest) = log.split_once("listens on http://")?;
            let (line, _) = rest.split_once('\n')?;
            line.split(',').next().and_then(|address| address.parse().ok())
        });
        self.address = Some(address);
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address.expect("it was waited for")
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        Client::connect(self.address()).expect("a connection")
    }

    /// One request on a connection of its own.
    pub fn ask(&self, method: &str, path: &str) -> Response {
        self.client().ask(method, path).expect("an answer")
    }

    /// What it has written since its start.
    pub fn log(&self) -> String {
        let all = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&all[all.len().min(self.said_before as usize)..]).into_owned()
    }

    /// SIGKILL, and waits for its end.
    pub fn kill(mut self) -> String {
        self.end();
        self.log()
    }

    /// SIGKILL without taking it away: others may be asking it.
    pub fn end(&mut self) {
        let _ended_before = self.child.kill();
        let _status = self.child.wait();
    }

    /// SIGSTOP.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.try_end().is_none()
    }

    /// How it has ended, if it has.
    pub fn try_end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Waits for its own end.
    pub fn wait_for_end(&mut self, limit: Duration) -> ExitStatus {
        wait_for("the end of a node", limit, || self.child.try_wait().expect("it is our child"))
    }

    /// The most memory that it has used so far, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
        let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
        kib << 10
    }

    fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.pid()).expect("a process id");
        // SAFETY: the call takes no pointers, and the process is our child and not yet reaped.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "the signal was not sent");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.log.display(), self.log());
        }
    }
}
