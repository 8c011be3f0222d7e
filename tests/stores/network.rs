//! Hosts on this machine: network namespaces, each with one link to a router that can cut it off.
//! `scripts/netns` makes them.
//!
//! Invariant: a network ends with its last handle, and one whose program was killed is removed
//! when the next one is made.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};

use crate::installed::{is_required, tell_of_skipping};

/// A router and the hosts at it. Anything that runs on them is killed when it is dropped.
#[derive(Debug)]
pub struct Network {
    name: String,
    /// So many hosts it has had.
    hosts: AtomicU32,
}

/// One of its hosts. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Host {
    address: Ipv4Addr,
    namespace: Arc<File>,
    /// It lives as long as its hosts.
    network: Arc<Network>,
}

impl Network {
    /// One without hosts.
    ///
    /// # Errors
    /// This process may not make one; what `scripts/netns` said is in the error.
    pub fn new() -> Result<Arc<Self>> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id().to_string();
        let name = format!("test-{pid}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        // Threads inherit the network: this one must not begin on a host.
        let _starter = crate::process::starter();
        let network = Arc::new(Self { name, hosts: AtomicU32::new(0) });
        script(&["make", &network.name, &pid])?;
        Ok(network)
    }

    /// One without hosts. `None`: this process may not make one, and the user has been told.
    ///
    /// # Panics
    /// It may, and it fails, where stores are required.
    pub fn permitted() -> Option<Arc<Self>> {
        let why = match Self::new() {
            Ok(network) => return Some(network),
            Err(why) => format!("{why:#}"),
        };
        // SAFETY: the call only tells a number.
        let is_root = unsafe { libc::geteuid() } == 0;
        let is_denied = !is_root || why.contains("not permitted");
        assert!(is_denied || !is_required(), "no host can be made: {why}");
        tell_of_skipping(&format!("no host can be made: {why}"));
        None
    }

    /// One more host; its name is letters, digits and dashes, and no other one's.
    ///
    /// # Errors
    /// The system has no room for it.
    pub fn host(self: &Arc<Self>, name: &str) -> Result<Host> {
        let number = self.hosts.fetch_add(1, Ordering::Relaxed) + 1;
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number);
        script(&["host", &self.name, name, &address.to_string()])?;
        let path = self.namespace(name)?;
        let namespace = File::open(&path).with_context(|| path.display().to_string())?;
        Ok(Host { address, namespace: Arc::new(namespace), network: self.clone() })
    }

    /// Where the system shows the namespace of a host.
    fn namespace(&self, host: &str) -> Result<PathBuf> {
        // celld.NET.PID.BEGIN.HOST
        let wanted = |name: &str| {
            let parts: Vec<_> = name.split('.').collect();
            parts.get(1) == Some(&self.name.as_str()) && parts.last() == Some(&host)
        };
        let listed = script(&["list"])?;
        let name = listed.lines().find(|name| wanted(name));
        Ok(Path::new("/run/netns").join(name.context("the host is not listed")?))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Err(why) = script(&["remove", &self.name]) {
            eprintln!("the network {} is left: {why:#}", self.name);
        }
    }
}

impl Host {
    /// Where the others reach it.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// From now on nothing passes between the two, and nobody is told.
    ///
    /// # Panics
    /// The network is gone.
    pub fn cut(&self, other: &Self) {
        self.between("cut", other);
    }

    /// It does again.
    ///
    /// # Panics
    /// It was not cut.
    pub fn heal(&self, other: &Self) {
        self.between("heal", other);
    }

    fn between(&self, act: &str, other: &Self) {
        let (one, other) = (self.address.to_string(), other.address.to_string());
        let done = script(&[act, &self.network.name, &one, &other]);
        done.unwrap_or_else(|why| panic!("{act} {one} {other}: {why:#}"));
    }

    /// The program will run on this host.
    pub fn takes(&self, command: &mut Command) {
        let namespace = self.namespace.clone();
        // SAFETY: between fork and exec one system call is made, on a number.
        unsafe { command.pre_exec(move || enter(&namespace)) };
    }

    /// The host has this address, too: nobody but itself reaches it there.
    ///
    /// # Panics
    /// It cannot have it.
    pub fn has_also(&self, address: Ipv4Addr) {
        let mut ip = Command::new("ip");
        self.takes(&mut ip);
        let done = ip.args(["address", "add", &format!("{address}/32"), "dev", "lo"]).output();
        let done = done.expect("the program `ip`");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{address}: {}", said.trim());
    }

    /// The program will run on this host, and look names up in `hosts`, which is of the form of
    /// `/etc/hosts`, in its place.
    ///
    /// # Panics
    /// The path holds a NUL.
    pub fn takes_with_names(&self, command: &mut Command, hosts: &Path) {
        self.takes(command);
        let hosts = CString::new(hosts.as_os_str().as_bytes()).expect("a path");
        // SAFETY: between fork and exec only system calls are made, on strings that were made before.
        unsafe { command.pre_exec(move || mount_hosts(&hosts)) };
    }

    /// Does something on this host: sockets that are opened stay in its network. On a thread of its
    /// own, as the one that enters a host cannot leave it.
    ///
    /// # Panics
    /// The host cannot be entered, or `act` panics.
    pub fn on<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let act = || {
            enter(&self.namespace).expect("a host that can be entered");
            act()
        };
        std::thread::scope(|scope| match scope.spawn(act).join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }
}

/// The calling thread goes on in this namespace.
fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: the call takes two numbers.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// From now on this process sees `hosts` as `/etc/hosts`, and no other one does.
fn mount_hosts(hosts: &CStr) -> io::Result<()> {
    let (none, whole) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
    // SAFETY: all strings end in NUL and outlive the calls, which keep none of them.
    let is_done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, whole, none.cast()) == 0
            && libc::mount(hosts.as_ptr(), c"/etc/hosts".as_ptr(), none, libc::MS_BIND, none.cast())
                == 0
    };
    if is_done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn script(arguments: &[&str]) -> Result<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/netns");
    let output = Command::new(&script).args(arguments).output();
    let output = output.with_context(|| script.display().to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "scripts/netns {}: {}", arguments.join(" "), said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
