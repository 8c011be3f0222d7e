//! Processes that end with the program that started them.
//!
//! Three ways to end lead to their end: a drop kills the process group; the end of `main` (statics
//! are not dropped) calls [`end_all`]; and when this program is killed, the kernel kills the child.
//! The kernel counts the parent as dead when the *thread* that started the child ends, and the test
//! harness ends its threads, so that one thread starts them all and never ends.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

/// A process with a directory of its own.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    dir: TempDir,
}

/// What [`end_all`] must end, by process group.
static ALIVE: Mutex<Vec<(libc::pid_t, PathBuf)>> = Mutex::new(Vec::new());

impl Process {
    /// A directory for a process that is to be started.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn directory() -> Result<TempDir> {
        tempfile::Builder::new().prefix("celld-store-").tempdir().context("a directory")
    }

    /// Starts it. What it says goes to `log` in `dir`.
    ///
    /// # Errors
    /// There is no such program.
    pub fn start(name: &str, mut command: Command, dir: TempDir) -> Result<Self> {
        let log = File::create(dir.path().join("log")).context("a log")?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.current_dir(dir.path()).env("TMPDIR", dir.path()).process_group(0);
        let parent = std::process::id();
        // SAFETY: between fork and exec only system calls are made, on numbers.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before that.
                if u32::try_from(libc::getppid()) != Ok(parent) {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            });
        }
        let child = spawn(command).with_context(|| format!("start {name}"))?;
        alive().push((libc::pid_t::try_from(child.id())?, dir.path().to_owned()));
        Ok(Self { name: name.to_owned(), child, dir })
    }

    /// Asks `ready` again and again. Returns what it gives.
    ///
    /// # Errors
    /// The process ends, or is not ready within `limit`; what it said is in the error.
    pub fn wait_until<T>(
        &mut self,
        limit: Duration,
        mut ready: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(answer) = ready(self) {
                return Ok(answer);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}:\n{}", self.name, self.said());
            }
            if begin.elapsed() > limit {
                bail!("{} is not ready after {limit:?}:\n{}", self.name, self.said());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Its process id, which is also that of its group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All that it has said.
    pub fn said(&self) -> String {
        let bytes = fs::read(self.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Stops all of it where it stands: whoever asks it waits in vain.
    pub fn freeze(&self) {
        signal(self.group(), libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        signal(self.group(), libc::SIGCONT);
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    /// The system does not say how it ended.
    pub fn end(&mut self) -> Result<ExitStatus> {
        signal(self.group(), libc::SIGKILL);
        Ok(self.child.wait()?)
    }

    fn group(&self) -> libc::pid_t {
        libc::pid_t::try_from(self.child.id()).expect("the kernel gave it as one")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = self.group();
        // While this lock is held, `end_all` cannot signal a group that is somebody else's by now.
        let mut alive = alive();
        if let Err(error) = self.end() {
            eprintln!("{} cannot be ended: {error:#}", self.name);
        }
        alive.retain(|(other, _)| *other != group);
    }
}

fn alive() -> std::sync::MutexGuard<'static, Vec<(libc::pid_t, PathBuf)>> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signal(group: libc::pid_t, signal: libc::c_int) {
    // SAFETY: the call takes numbers only. A group that has ended already is no fault.
    unsafe { libc::killpg(group, signal) };
}

/// At the end of `main`, for what lives in statics.
extern "C" fn end_all() {
    for (group, dir) in alive().drain(..) {
        signal(group, libc::SIGKILL);
        // SAFETY: the call writes no status; the child is ours and nobody else waits any more.
        unsafe { libc::waitpid(group, std::ptr::null_mut(), 0) };
        // Nobody is left who could be told.
        let _removed = fs::remove_dir_all(dir);
    }
}

type Job = (Command, SyncSender<io::Result<Child>>);

/// The thread that never ends, and is in the network of who asks for it first.
pub(crate) fn starter() -> &'static SyncSender<Job> {
    static STARTER: OnceLock<SyncSender<Job>> = OnceLock::new();
    STARTER.get_or_init(|| {
        // SAFETY: the function may be called at any time after `main`.
        unsafe { libc::atexit(end_all) };
        let (sender, jobs) = sync_channel::<Job>(16);
        std::thread::spawn(move || {
            for (mut command, answer) in jobs {
                // Who asked may be gone; then the child is dropped and the kernel keeps it until
                // the end of this program.
                let _gone = answer.send(command.spawn());
            }
        });
        sender
    })
}

/// Starts the process on the thread that never ends.
fn spawn(command: Command) -> io::Result<Child> {
    let (answer, child) = sync_channel(1);
    let gone = |_| io::Error::other("the thread that starts processes is gone");
    starter().send((command, answer)).map_err(|_| gone(()))?;
    child.recv().map_err(|_| gone(()))?
}
