//! Nodes as real processes: started, killed, stopped, looked at.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use celld_stores::{ACCESS_KEY, Host, REGION, SECRET_KEY};
use tempfile::TempDir;

use super::http::{Client, Response};
use super::wait_for;

/// A node on a machine that is five times too busy has been seen to start within 40 s.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Until the threads of a process have heard of a signal, on a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// One bucket with a deployment, and room for what nodes on it need.
pub struct Site {
    dir: TempDir,
    bucket: Bucket,
}

/// Where the nodes' bucket is.
enum Bucket {
    Directory(PathBuf),
    Store(Remote),
}

/// A bucket in a store of S3's kind.
pub struct Remote {
    url: String,
    /// Where the store is, and the keys to it.
    variables: [(&'static str, String); 4],
    /// From where it is reached; `None`: from everywhere.
    host: Option<Host>,
}

impl Remote {
    /// The bucket of this URL, in a store of these tests.
    pub fn new(url: String, endpoint: String) -> Self {
        let variables = [
            ("S3_ENDPOINT", endpoint),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
        ];
        Self { url, variables, host: None }
    }

    /// Who deploys to it does so on this host.
    pub fn from(self, host: &Host) -> Self {
        Self { host: Some(host.clone()), ..self }
    }
}

impl Site {
    /// With the Worker of `tests/workers/ledger` deployed.
    pub fn new() -> Self {
        Self::of("ledger")
    }

    /// With another Worker of `tests/workers` deployed.
    pub fn of(worker: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let bucket = dir.path().join("bucket");
        Self::with(worker, dir, Bucket::Directory(bucket))
    }

    /// With the ledger, and the bucket somewhere else.
    pub fn on(dir: TempDir, bucket: PathBuf) -> Self {
        Self::with("ledger", dir, Bucket::Directory(bucket))
    }

    /// With the ledger, and the bucket in a store.
    pub fn in_store(remote: Remote) -> Self {
        Self::with("ledger", tempfile::tempdir().expect("a directory"), Bucket::Store(remote))
    }

    fn with(worker: &str, dir: TempDir, bucket: Bucket) -> Self {
        let site = Self { dir, bucket };
        let output = site.deploy(&worker_dir(worker)).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        site
    }

    /// The program that deploys a project, not started.
    pub fn deploy(&self, project: &Path) -> Command {
        let mut command = self.celld();
        if let Bucket::Store(Remote { host: Some(host), .. }) = &self.bucket {
            host.takes(&mut command);
        }
        command.arg("deploy").arg(project).args(["--bucket", &self.bucket_url()]);
        command
    }

    /// The bucket's directory.
    ///
    /// # Panics
    /// It is in a store.
    pub fn bucket(&self) -> &Path {
        match &self.bucket {
            Bucket::Directory(path) => path,
            Bucket::Store(remote) => panic!("{} is no directory", remote.url),
        }
    }

    /// Room for a test's own files.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn bucket_url(&self) -> String {
        match &self.bucket {
            Bucket::Directory(path) => format!("file://{}", path.display()),
            Bucket::Store(remote) => remote.url.clone(),
        }
    }

    /// The program, as it reaches the bucket.
    fn celld(&self) -> Command {
        let mut command = celld();
        if let Bucket::Store(remote) = &self.bucket {
            command.envs(remote.variables.clone());
        }
        command
    }

    /// How a node of this name will run.
    pub fn node(&self, name: &str) -> Plan {
        self.node_at(name, "127.0.0.1:0")
    }

    /// The same, on this address.
    pub fn node_at(&self, name: &str, listen: &str) -> Plan {
        let mut command = self.celld();
        command.args(["--bucket", &self.bucket_url(), "--node", name, "--listen", listen]);
        Plan {
            command,
            clients: None,
            log: self.path().join(format!("{name}.log")),
            state: self.path().join(format!("{name}.state")),
        }
    }
}

/// The project of a Worker in `tests/workers`.
pub fn worker_dir(worker: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers").join(worker)
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
    /// Where its clients are, unless in the network of the test.
    clients: Option<Host>,
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

    /// It will run on this host, and be reached from that of the clients.
    pub fn on(mut self, host: &Host, clients: &Host) -> Self {
        host.takes(&mut self.command);
        self.clients = Some(clients.clone());
        self
    }

    /// Another name for state and log: two nodes may have the same `--node`.
    pub fn beside(mut self, name: &str) -> Self {
        self.log.set_file_name(format!("{name}.log"));
        self.state.set_file_name(format!("{name}.state"));
        self
    }

    /// Where it writes what it says, each life behind the one before.
    pub fn log(&self) -> &Path {
        &self.log
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
        let clients = self.clients.clone();
        Node { child, log: self.log.clone(), said_before, address: None, clients }
    }

    /// Starts it and waits until it serves.
    pub fn start(&mut self) -> Node {
        let mut node = self.spawn();
        node.wait_until_it_serves(START_LIMIT);
        node
    }
}

/// Starts them side by side and waits until all serve: what a start takes is mostly the store's time.
pub fn start_all<const N: usize>(plans: [&mut Plan; N]) -> [Node; N] {
    let mut nodes = plans.map(Plan::spawn);
    nodes.iter_mut().for_each(|node| node.wait_until_it_serves(START_LIMIT));
    nodes
}

/// A process that runs. It is killed when it is dropped.
pub struct Node {
    child: Child,
    log: PathBuf,
    said_before: u64,
    address: Option<SocketAddr>,
    clients: Option<Host>,
}

/// Where clients enter.
#[derive(Clone)]
pub struct Door {
    address: SocketAddr,
    /// The host that they are on; `None`: in the network of the test.
    clients: Option<Host>,
}

impl Door {
    /// A new connection.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn connect(&self) -> io::Result<Client> {
        match &self.clients {
            None => Client::connect(self.address),
            Some(host) => host.on(|| Client::connect(self.address)),
        }
    }
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

    /// Where clients enter.
    pub fn door(&self) -> Door {
        Door { address: self.address(), clients: self.clients.clone() }
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        self.door().connect().expect("a connection")
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

    /// SIGSTOP, and waits until it has come to a stand: the kernel tells one thread, which tells the
    /// others when it gets a core.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        wait_for("a process that stands still", STOP_LIMIT, || self.stands_still().then_some(()));
    }

    fn stands_still(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("its threads");
        // `id (name) T ...`; the name may hold anything.
        let is_stopped =
            |stat: String| stat.rsplit(") ").next().is_some_and(|s| s.starts_with('T'));
        threads
            .flatten()
            .all(|thread| fs::read_to_string(thread.path().join("stat")).is_ok_and(is_stopped))
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
