//! Servers that a bench starts, watches and stops, all with the same program (`bench/worker`).

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::args::Args;
use crate::http;

/// A server that has not answered for so long does not start.
const START: Duration = Duration::from_secs(60);
/// A server that has not stopped for so long is killed.
const STOP: Duration = Duration::from_secs(10);

const PROGRAM: &str = include_str!("worker/bench.js");
const PROJECT: &str = include_str!("worker/wrangler.jsonc");

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something that runs already.
    Target(SocketAddr),
    /// A node of `celld` on a bucket in a directory, this program.
    Celld(PathBuf),
    /// `workerd serve`, this program.
    Workerd(PathBuf),
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    /// Where it answers.
    pub addr: SocketAddr,
    /// Its project and its state.
    dir: PathBuf,
    child: Option<Child>,
    member: Option<Member>,
}

/// A node of a fleet.
#[derive(Clone, Debug)]
struct Member {
    name: &'static str,
    /// Life of its lease.
    ttl: Duration,
}

/// What a process holds at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Resident bytes.
    pub rss: u64,
    /// Open file descriptors.
    pub fds: u64,
    /// Seconds of CPU since its start.
    pub cpu_s: f64,
}

/// What the arguments ask to measure, in alternating order.
///
/// # Errors
/// The target is no address.
pub fn kinds(args: &Args) -> Result<Vec<Kind>> {
    if let Some(target) = &args.target {
        let target = target.trim_start_matches("http://").trim_end_matches('/');
        let addr = target
            .parse()
            .with_context(|| format!("--target {target:?} is no address; write 127.0.0.1:8787"))?;
        return Ok(vec![Kind::Target(addr)]);
    }
    let mut kinds = Vec::new();
    if !args.only_workerd {
        kinds.push(Kind::Celld(args.celld.clone()));
    }
    kinds.extend(args.workerd.clone().map(Kind::Workerd));
    ensure!(!kinds.is_empty(), "--only-workerd needs --workerd PATH");
    Ok(kinds)
}

impl Kind {
    /// As the table names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Target(_) => "target",
            Self::Celld(_) => "celld",
            Self::Workerd(_) => "workerd",
        }
    }
}

impl Server {
    /// Starts a server with empty state below `dir` and waits until it answers.
    ///
    /// # Errors
    /// It does not start; what it said is in the error.
    pub fn start(kind: &Kind, dir: &Path) -> Result<Self> {
        let dir = dir.join(kind.name());
        if let Kind::Target(addr) = *kind {
            return Ok(Self { kind: kind.clone(), addr, dir, child: None, member: None });
        }
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("clear {}", dir.display()));
            }
            _ => {}
        }
        fs::create_dir_all(dir.join("state"))?;
        // A directory of its own: what celld keeps beside the project is no part of this one.
        let dir = dir.canonicalize()?;
        fs::write(dir.join("bench.js"), PROGRAM)?;
        fs::write(dir.join("wrangler.jsonc"), PROJECT)?;
        let addr = free_address()?;
        if let Kind::Celld(program) = kind {
            deploy(program, &dir)?;
        }
        let mut server = Self { kind: kind.clone(), addr, dir, child: None, member: None };
        server.resume()?;
        Ok(server)
    }

    /// Starts two nodes of celld that send requests to each other.
    ///
    /// # Errors
    /// One does not start; what it said is in the error.
    pub fn start_two(program: &Path, dir: &Path, ttl: Duration) -> Result<[Self; 2]> {
        let kind = Kind::Celld(program.to_owned());
        let mut first = Self::start(&kind, dir)?;
        first.stop()?;
        let dir = first.dir.clone();
        first.member = Some(Member { name: "first", ttl });
        first.resume()?;
        let member = Some(Member { name: "second", ttl });
        let mut second = Self { kind, addr: free_address()?, dir, child: None, member };
        second.resume()?;
        Ok([first, second])
    }

    /// The directory that is the bucket.
    pub fn bucket(&self) -> PathBuf {
        self.dir.join("bucket")
    }

    /// Kills the process where it stands.
    ///
    /// # Errors
    /// There is no process of ours.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { bail!("only a server of ours is killed") };
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Stops the server, keeping its state.
    ///
    /// # Errors
    /// There is no process of ours.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { bail!("only a server of ours is stopped") };
        // SAFETY: the call takes numbers only, and this child has not been waited for.
        unsafe { libc::kill(libc::pid_t::try_from(child.id())?, libc::SIGTERM) };
        let begin = Instant::now();
        while child.try_wait()?.is_none() {
            if begin.elapsed() > STOP {
                child.kill()?;
                child.wait()?;
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Starts a stopped server on its old state. Returns how long it took to answer.
    ///
    /// # Errors
    /// It does not start; what it said is in the error.
    pub fn resume(&mut self) -> Result<Duration> {
        let name = self.member.as_ref().map_or("", |member| member.name);
        let log = self.dir.join(format!("{name}log"));
        let mut command = self.command()?;
        command.current_dir(&self.dir).stdin(Stdio::null());
        command
            .stdout(fs::File::create(&log)?)
            .stderr(fs::File::create(self.dir.join(format!("{name}err")))?);
        let begin = Instant::now();
        let child = command.spawn();
        let child = child.with_context(|| format!("start {:?}", command.get_program()))?;
        self.child = Some(child);
        while begin.elapsed() < START {
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if let Some(status) = ended {
                bail!("{} ended with {status}: {}", self.kind.name(), self.said());
            }
            let answer = http::ask(self.addr, "GET", "/hello", Duration::from_secs(5));
            if answer.is_ok_and(|answer| answer.status == 200) {
                return Ok(begin.elapsed());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("{} does not answer /hello: {}", self.kind.name(), self.said())
    }

    /// What the process uses now.
    ///
    /// # Errors
    /// There is no process of ours.
    pub fn usage(&self) -> Result<Usage> {
        let Some(child) = &self.child else {
            bail!("only a server that the bench starts can be looked at; leave --target out")
        };
        usage(child.id())
    }

    /// Whether it can be stopped and looked at.
    pub fn is_ours(&self) -> bool {
        self.child.is_some()
    }

    fn command(&self) -> Result<Command> {
        let port = self.addr.port().to_string();
        Ok(match &self.kind {
            Kind::Target(_) => bail!("a target is not started"),
            Kind::Celld(program) => {
                // Not `celld dev`: it writes a line for each request.
                let mut command = Command::new(absolute(program)?);
                command.args(["--bucket", &bucket_of(&self.dir)]);
                command.args(["--listen", &format!("127.0.0.1:{port}")]);
                let name = self.member.as_ref().map_or("bench", |member| member.name);
                command.args(["--node", name]);
                command.arg("--state").arg(self.dir.join("state").join(name));
                if let Some(Member { ttl, .. }) = &self.member {
                    command.args(["--internal-listen", "127.0.0.1:0"]);
                    command.env("CELLD_TTL_MS", ttl.as_millis().to_string());
                }
                command
            }
            Kind::Workerd(program) => {
                fs::write(self.dir.join("config.capnp"), workerd_config(self.addr))?;
                let mut command = Command::new(absolute(program)?);
                command.args(["serve", "config.capnp"]);
                command
            }
        })
    }

    /// The end of what it printed.
    fn said(&self) -> String {
        let name = self.member.as_ref().map_or("", |member| member.name);
        let read =
            |kind| fs::read_to_string(self.dir.join(format!("{name}{kind}"))).unwrap_or_default();
        let text = format!("{}{}", read("log"), read("err"));
        let start = text.len().saturating_sub(2_000);
        text.chars().skip(start).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.is_some() {
            // The bench ends, well or not; a server that cannot be stopped is not its result.
            let _stopped = self.stop();
        }
    }
}

fn bucket_of(dir: &Path) -> String {
    format!("file://{}", dir.join("bucket").display())
}

/// Puts the project in `dir` into the bucket beside it.
fn deploy(program: &Path, dir: &Path) -> Result<()> {
    let mut command = Command::new(absolute(program)?);
    command.current_dir(dir).args(["deploy", ".", "--bucket", &bucket_of(dir)]);
    let output = command.output().with_context(|| format!("start {}", program.display()))?;
    if !output.status.success() {
        bail!("celld deploy: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Reads `/proc` of a process.
///
/// # Errors
/// It has ended, or belongs to somebody else.
pub fn usage(pid: u32) -> Result<Usage> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let status = fs::read_to_string(proc.join("status")).context("read the status")?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let rss = rss.and_then(|line| line.split_whitespace().next()).and_then(|kb| kb.parse().ok());
    let rss: u64 = rss.context("the process has ended")?;
    let stat = fs::read_to_string(proc.join("stat")).context("read the times")?;
    // The name in parentheses may have spaces; user and system time are the 12th and 13th after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<Result<u64, _>>().context("times that are no numbers")?;
    // SAFETY: the call takes and gives numbers only.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let fds = fs::read_dir(proc.join("fd")).context("list the descriptors")?.count();
    Ok(Usage {
        rss: rss * 1_024,
        fds: fds as u64,
        cpu_s: ticks as f64 / ticks_per_second.max(1) as f64,
    })
}

fn absolute(program: &Path) -> Result<PathBuf> {
    let found = program.canonicalize();
    found.with_context(|| format!("there is no program {}; build it first", program.display()))
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn workerd_config(addr: SocketAddr) -> String {
    format!(
        r#"using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
    (name = "main", worker = .main),
    (name = "disk", disk = (path = "state", writable = true)),
  ],
  sockets = [(name = "http", address = "{addr}", http = (), service = "main")],
);
const main :Workerd.Worker = (
  modules = [(name = "bench.js", esModule = embed "bench.js")],
  compatibilityDate = "2026-01-01",
  durableObjectNamespaces = [(className = "Cell", uniqueKey = "bench", enableSql = true)],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [(name = "CELLS", durableObjectNamespace = "Cell")],
);
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_what_it_uses() {
        let before = usage(std::process::id()).expect("this process");
        let _file = fs::File::open("/proc/self/status").expect("a file");
        let memory = vec![1_u8; 64 << 20];
        let after = usage(std::process::id()).expect("this process");
        assert!(after.rss >= before.rss + (60 << 20), "{before:?} {after:?}");
        assert!(after.fds > 3 && after.cpu_s >= before.cpu_s);
        assert!(memory.contains(&1));
    }

    #[test]
    fn a_program_that_is_missing_or_fails_is_a_clear_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let error = Server::start(&Kind::Celld("/nowhere/celld".into()), dir.path());
        let error = format!("{:#}", error.expect_err("no such program"));
        assert!(error.contains("/nowhere/celld"), "{error}");
        let error = Server::start(&Kind::Workerd("/bin/false".into()), dir.path());
        let error = format!("{:#}", error.expect_err("it fails"));
        assert!(error.contains("ended with"), "{error}");
    }
}
