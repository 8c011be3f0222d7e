//! Hosts reach each other, can be cut off, and leave nothing behind, however their program ends.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use celld_stores::{Host, Network};

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(20);

fn script(arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/netns");
    let output = Command::new(script).args(arguments).output().expect("it starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A process that does nothing, on a host if one is given.
fn idle(host: Option<&Host>) -> Child {
    let mut command = Command::new("sleep");
    command.arg("600").stdin(Stdio::null());
    if let Some(host) = host {
        host.takes(&mut command);
    }
    command.spawn().expect("it starts")
}

fn wait_for_end(child: &mut Child) {
    let begin = Instant::now();
    while child.try_wait().expect("it is our child").is_none() {
        assert!(begin.elapsed() < LONG, "{} lives", child.id());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_way_that_is_cut_passes_nothing_until_it_is_healed() {
    let Some(network) = Network::permitted() else { return };
    let [near, far, third] =
        ["near", "far", "third"].map(|name| network.host(name).expect("a host"));
    assert!(near.address() != far.address());
    let server = far.on(|| TcpListener::bind((far.address(), 80)).expect("a listener"));
    let address = SocketAddr::from((far.address(), 80));
    let connect = |host: &Host, limit| host.on(|| TcpStream::connect_timeout(&address, limit));
    let mut open = connect(&near, LONG).expect("a connection");
    let (mut taken, _) = server.accept().expect("a connection");
    let mut byte = [0];
    open.write_all(b"a").expect("it is written");
    taken.read_exact(&mut byte).expect("it passes");

    near.cut(&far);
    assert!(connect(&near, SHORT).is_err(), "the way is cut");
    connect(&third, LONG).expect("another way");
    open.write_all(b"b").expect("nobody is told");
    taken.set_read_timeout(Some(SHORT)).expect("a limit");
    assert!(taken.read(&mut byte).is_err());

    far.heal(&near);
    taken.set_read_timeout(Some(LONG)).expect("a limit");
    taken.read_exact(&mut byte).expect("it is sent again");
    assert_eq!(&byte, b"b");
    connect(&near, LONG).expect("a connection");
}

#[test]
fn a_network_ends_with_its_last_handle_and_with_all_that_runs_on_it() {
    let Some(network) = Network::permitted() else { return };
    let host = network.host("lonely").expect("a host");
    let mut running = idle(Some(&host));
    let pid = std::process::id().to_string();
    let ours = || {
        script(&["list"])
            .lines()
            .filter(|name| name.contains(".lonely") && name.contains(&pid))
            .count()
    };
    drop(network);
    assert_eq!(ours(), 1, "a host holds it");
    assert!(running.try_wait().expect("it is our child").is_none(), "it runs");
    drop(host);
    assert_eq!(ours(), 0);
    wait_for_end(&mut running);
}

#[test]
fn what_a_killed_program_has_left_is_removed_when_the_next_network_is_made() {
    if Network::permitted().is_none() {
        return;
    }
    let mut owner = idle(None);
    let net = format!("left-by-{}", owner.id());
    script(&["make", &net, &owner.id().to_string()]);
    script(&["host", &net, "one", "10.0.0.1"]);
    let left = || script(&["list"]).lines().filter(|name| name.contains(&net)).count();
    let next = Network::permitted();
    assert_eq!(left(), 2, "its program lives");
    drop(next);
    owner.kill().expect("it is our child");
    owner.wait().expect("it is our child");
    let _next = Network::permitted();
    assert_eq!(left(), 0);
}
