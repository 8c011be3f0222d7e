//! Links between processes that are killed and stopped: this program starts itself again as the
//! other side.
//!
//! The server writes the number of each call into a ledger before it answers. So it can be checked
//! what a caller is promised: what was answered has run, and what surely was not sent has not.

mod peers;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_core::time::Micros;
use celld_peer::{CallError, CallKind, Cause, Fate, Link, Patience, Server};
use celld_rt as rt;
use peers::*;

/// Its head is a number, which goes into the ledger.
const LEDGER: CallKind = CallKind(50);
const KILLS: usize = 12;

fn main() {
    let args: Vec<_> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "server", ledger] => serve(Path::new(ledger)),
        [_, "client", at] => ask_for_ever(at.parse().expect("an address")),
        [_, "cable"] => calls_end_when_the_network_is_gone(),
        _ => {
            calls_in_flight_end_when_the_server_is_killed();
            a_server_notices_a_client_that_is_killed();
            a_server_that_is_stopped_is_silent_and_not_waited_for();
            no_call_that_was_not_sent_has_run();
            in_a_network_of_its_own("cable");
            println!("processes: ok");
        }
    }
}

fn serve(ledger: &Path) {
    let ledger = OpenOptions::new().append(true).create(true).open(ledger).expect("a ledger");
    let ledger = Rc::new(RefCell::new(ledger));
    rt::block_on(async {
        let listener = rt::net::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        let seen = Arc::<Seen>::default();
        let handler = move |call: celld_peer::Call| {
            let (ledger, seen) = (ledger.clone(), seen.clone());
            async move {
                if call.kind == LEDGER {
                    let line = [&call.head[..], b"\n"].concat();
                    ledger.borrow_mut().write_all(&line).expect("a ledger");
                    let _gone = call.reply.send(call.head);
                } else {
                    answer(call, seen).await;
                }
            }
        };
        Server::new(identity(&fleet(1), "server")).serve(listener, handler).await;
    });
}

fn ask_for_ever(at: SocketAddr) {
    rt::block_on(async {
        let link = Link::new(identity(&fleet(1), "client"), address(at));
        let _hang = link.ask(ask(HANG, "h")).await.expect("sent");
        let (_asked, mut writer) = link.ask_with_body(ask(LENGTH, "h")).await.expect("sent");
        loop {
            writer.write(Bytes::from_static(&[7; 1_000])).await.expect("the server reads");
            rt::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Another process, which does not outlive this one's interest.
struct Process(Child);

impl Process {
    fn start(args: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        Self(command.args(args).stdout(Stdio::piped()).spawn().expect("a process"))
    }

    fn server(ledger: &Path) -> (Self, SocketAddr) {
        let mut server = Self::start(&["server", ledger.to_str().expect("a plain path")]);
        let mut line = String::new();
        let told = server.0.stdout.take().expect("piped");
        BufReader::new(told).read_line(&mut line).expect("an address");
        let at = line.trim().parse().expect("an address");
        (server, at)
    }

    fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.0.id()).expect("a process id");
        // SAFETY: the call takes no pointers; the process is ours and not waited for yet.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn ledger() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ledger");
    (directory, path)
}

fn calls_in_flight_end_when_the_server_is_killed() {
    let (_directory, path) = ledger();
    let (server, at) = Process::server(&path);
    rt::block_on(async {
        let link = Link::new(identity(&fleet(1), "client"), address(at));
        let hang = link.ask(ask(HANG, "h")).await.expect("sent");
        let (asked, mut writer) = link.ask_with_body(ask(LENGTH, "h")).await.expect("sent");
        let flood = link.ask(ask(FLOOD, "h")).await.expect("sent");
        let mut flood = flood.answer().await.expect("an answer, so all are sent");
        drop(server);
        let begun = Instant::now();
        let lost = |error: CallError| {
            assert_eq!((error.code(), error.fate), ("peer_lost", Fate::MayHaveRun), "{error}");
        };
        lost(hang.answer().await.map(|_| ()).expect_err("it is dead"));
        lost(asked.answer().await.map(|_| ()).expect_err("it is dead"));
        writer.write(Bytes::from_static(b"late")).await.expect_err("it is dead");
        loop {
            // What had come before is read.
            if let Err(error) = flood.body.next().await {
                break lost(error);
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the kernel tells at once");
        let error = link.ask(ask(HASTY, "h")).await.map(|_| ()).expect_err("it is dead");
        assert_eq!((error.code(), error.retryable()), ("peer_unreachable", true), "{error}");
    });
}

fn a_server_notices_a_client_that_is_killed() {
    let node = Node::start();
    let client = Process::start(&["client", &node.at.to_string()]);
    rt::block_on(async {
        until(|| get(&node.seen.begun) == 2).await;
        drop(client);
        until(|| get(&node.seen.gone) == 2 && get(&node.seen.running) == 0).await;
    });
    let ended = node.stop(Stop::Drain);
    assert_eq!(ended.connections, 0, "{ended:?}");
}

fn a_server_that_is_stopped_is_silent_and_not_waited_for() {
    let (_directory, path) = ledger();
    let (server, at) = Process::server(&path);
    rt::block_on(async {
        let patience = Patience {
            ping: Micros::from_secs(1),
            silence: Micros::from_secs(5),
            ..Patience::NORMAL
        };
        let link = Link::with_patience(identity(&fleet(1), "client"), address(at), patience);
        call(&link, ECHO, "h", Bytes::new()).await.expect("an answer");
        server.signal(libc::SIGSTOP);
        let asked = link.ask(ask(ECHO, "h")).await.expect("sent");
        let error = asked.answer().await.map(|_| ()).expect_err("it is stopped");
        assert_eq!((error.cause, error.fate), (Cause::Silent, Fate::MayHaveRun));
        // Its kernel still takes connections.
        let mut ask = ask(ECHO, "h");
        ask.wait = Some(Duration::from_millis(200));
        let error = link.ask(ask).await.map(|_| ()).expect_err("it is stopped");
        assert_eq!((error.cause, error.fate), (Cause::Deadline, Fate::NotSent));
        server.signal(libc::SIGCONT);
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = call(&link, ECHO, "h", Bytes::new()).await {
            assert!(error.retryable() && Instant::now() < deadline, "{error}");
            rt::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Runs this program once more where it may break the network. Skipped with a message where the
/// system does not let it.
fn in_a_network_of_its_own(what: &str) {
    let unshare = |args: &[&str]| Command::new("unshare").arg("-rn").args(args).status();
    if !unshare(&["ip", "link", "set", "lo", "up"]).is_ok_and(|status| status.success()) {
        return println!("processes: {what} is skipped: no network namespaces here");
    }
    let program = std::env::current_exe().expect("this program");
    let status = unshare(&[program.to_str().expect("a plain path"), what]).expect("as before");
    assert!(status.success(), "{what}: {status}");
}

/// As when a host loses its power: nobody says that the connection is over.
fn calls_end_when_the_network_is_gone() {
    let set = |state: &str| {
        let status = Command::new("ip").args(["link", "set", "lo", state]).status();
        assert!(status.expect("a command").success());
    };
    set("up");
    let node = Node::start();
    rt::block_on(async {
        let link = node.link();
        // One waits for its answer, of the other one something is under way.
        let quiet = link.ask(ask(HANG, "h")).await.expect("sent");
        until(|| get(&node.seen.begun) == 1).await;
        set("down");
        let (asked, mut writer) = link.ask_with_body(ask(ECHO, "h")).await.expect("sent");
        writer.write(Bytes::from_static(b"body")).await.expect("it can be sent");
        writer.flushed().await.expect("it can be sent");
        let begun = Instant::now();
        for asked in [quiet, asked] {
            let error = asked.answer().await.map(|_| ()).expect_err("nobody is there");
            assert_eq!((error.code(), error.fate), ("peer_lost", Fate::MayHaveRun), "{error}");
        }
        let time = begun.elapsed();
        assert!(time > Duration::from_secs(2) && time < Duration::from_secs(40), "{time:?}");
        // The other side notices it, too.
        until(|| get(&node.seen.running) == 0).await;
        println!("processes: the network is gone, noticed after {time:?}");
    });
    node.stop(Stop::Cut);
}

/// What became of the calls to servers that were killed under them.
#[derive(Default)]
struct Outcomes {
    answered: BTreeSet<usize>,
    not_sent: BTreeSet<usize>,
    unknown: BTreeSet<usize>,
}

fn no_call_that_was_not_sent_has_run() {
    let (_directory, path) = ledger();
    let outcomes = Rc::new(RefCell::new(Outcomes::default()));
    rt::block_on(async {
        for kill in 0..KILLS {
            let (server, at) = Process::server(&path);
            let link = Link::new(identity(&fleet(1), "client"), address(at));
            let mut tasks = Vec::new();
            for task in 0..64 {
                let (link, outcomes) = (link.clone(), outcomes.clone());
                let first = (kill * 64 + task) * 1_000_000;
                tasks.push(rt::spawn_joined(call_until_it_fails(link, first, outcomes)));
            }
            let enough = 500 * (kill + 1);
            until(|| outcomes.borrow().answered.len() >= enough).await;
            drop(server);
            for task in tasks {
                task.join().await.expect("no panic");
            }
        }
    });
    let outcomes = outcomes.borrow();
    let lines = BufReader::new(File::open(&path).expect("a ledger")).lines();
    let mut ran = BTreeSet::new();
    for line in lines {
        let number: usize = line.expect("a line").parse().expect("a number");
        assert!(ran.insert(number), "call {number} ran twice");
    }
    assert!(outcomes.answered.is_subset(&ran), "an answer without a run");
    assert!(outcomes.not_sent.is_disjoint(&ran), "a call ran that surely was not sent");
    assert!(!outcomes.unknown.is_empty() && !outcomes.not_sent.is_empty(), "nothing is proven");
    println!(
        "processes: {} answered, {} not sent, {} unknown, of which {} ran",
        outcomes.answered.len(),
        outcomes.not_sent.len(),
        outcomes.unknown.len(),
        outcomes.unknown.intersection(&ran).count()
    );
}

/// One after the other, until one was surely not sent.
async fn call_until_it_fails(link: Link, first: usize, outcomes: Rc<RefCell<Outcomes>>) {
    for number in first.. {
        let head = Bytes::from(number.to_string());
        let result = match link.ask(ask(LEDGER, head)).await {
            Ok(asked) => asked.answer().await.map(|_| ()),
            Err(error) => Err(error),
        };
        let mut outcomes = outcomes.borrow_mut();
        match result {
            Ok(()) => outcomes.answered.insert(number),
            Err(error) if error.fate == Fate::MayHaveRun => outcomes.unknown.insert(number),
            Err(_) => {
                outcomes.not_sent.insert(number);
                return;
            }
        };
    }
}
