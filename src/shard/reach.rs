//! Where a node is reached: the addresses on which it listens, and the one that it tells the others.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use celld_core::lease::Record;
use celld_core::node::NodeId;
use celld_rt as rt;

use crate::node::{FleetOptions, NodeError};

/// A listener of this machine takes a connection at once.
const ANSWER_LIMIT: Duration = Duration::from_millis(300);
/// The rings of a process hold its listeners for up to a tenth of a second after a SIGKILL; a node
/// that lives answers for longer.
const LINGER_LIMIT: Duration = Duration::from_secs(2);

/// Who reaches an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Nobody.
    Nobody,
    /// This machine only.
    Machine,
    /// A network that its operator knows.
    Network,
    /// Everybody.
    Everybody,
}

/// The address of the internal listener, and what the others are told of it.
pub(crate) fn internal_address(
    options: Option<&FleetOptions>,
) -> Result<Option<(SocketAddr, String)>, NodeError> {
    let Some(FleetOptions { listen: Some(listen), advertise, .. }) = options else {
        return Ok(None);
    };
    let address = check_address(*listen)?;
    match advertise {
        Some(told) => Ok(Some((address, told.clone()))),
        None if address.ip().is_unspecified() => Err(NodeError::Advertise(address)),
        None => Ok(Some((address, address.to_string()))),
    }
}

/// Listening with `SO_REUSEPORT` would share the port with another celld of the same user without
/// a word, so somebody who answers there is found out first. An ordinary bind would find too much:
/// after a SIGKILL the kernel still closes the connections of the node before. Port 0 becomes a
/// free one, which nobody else is given meanwhile.
pub(crate) fn check_address(address: SocketAddr) -> Result<SocketAddr, NodeError> {
    if address.port() == 0 {
        let mut free = address;
        free.set_port(take_port(address).map_err(|error| NodeError::Listen(address, error))?);
        return Ok(free);
    }
    let mut reached = address;
    if address.ip().is_unspecified() {
        reached.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let begin = Instant::now();
    while std::net::TcpStream::connect_timeout(&reached, ANSWER_LIMIT).is_ok() {
        if begin.elapsed() > LINGER_LIMIT {
            return Err(NodeError::Listen(address, io::ErrorKind::AddrInUse.into()));
        }
        std::thread::sleep(ANSWER_LIMIT / 6);
    }
    // Nobody there; what is wrong with the address otherwise, the listeners will say.
    Ok(address)
}

/// A free port, taken by a socket that shares it with listeners of this user, and does not listen. It
/// is there for as long as the process, as its node is: until all listeners are open, a connection that
/// anybody opens could be given the port.
fn take_port(address: SocketAddr) -> io::Result<u16> {
    match address {
        SocketAddr::V4(address) => bind_shared(
            libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            },
            libc::AF_INET,
        ),
        SocketAddr::V6(address) => bind_shared(
            libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: 0,
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            },
            libc::AF_INET6,
        ),
    }
}

/// `A` is the kernel's form of an address of `family`, with port 0.
fn bind_shared<A>(address: A, family: libc::c_int) -> io::Result<u16> {
    let checked = |result: libc::c_int| match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    };
    let size = |of: usize| libc::socklen_t::try_from(of).expect("some bytes");
    let yes: libc::c_int = 1;
    // SAFETY: the call takes numbers, and what it returns is a descriptor of ours.
    let socket = unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        OwnedFd::from_raw_fd(checked(libc::socket(family, kind, 0))?)
    };
    // SAFETY: both calls read as many bytes as they are told that there are.
    unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_REUSEPORT);
        let len = size(size_of::<libc::c_int>());
        checked(libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const yes).cast(), len))?;
        let len = size(size_of::<A>());
        checked(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len))?;
    }
    let port = std::net::TcpListener::from(socket.try_clone()?).local_addr()?.port();
    // Not closed: see above.
    let _kept = socket.into_raw_fd();
    Ok(port)
}

/// Whether the others may be told `told`. A name counts as what it means on this machine; one that
/// means nothing here may mean something there.
///
/// # Errors
/// It leads nowhere, or is public and `allows_public` is not set.
pub(crate) async fn check_told(told: &str, allows_public: bool) -> Result<(), NodeError> {
    let Some((host, port)) = host_and_port(told) else { return Ok(()) };
    let addresses = rt::net::resolve(host, port).await.unwrap_or_default();
    for address in addresses {
        let ip = address.ip();
        match reach(ip) {
            Reach::Nobody => return Err(NodeError::Nowhere(told.to_owned(), ip)),
            Reach::Everybody if !allows_public => {
                return Err(NodeError::Public(told.to_owned(), ip));
            }
            Reach::Everybody | Reach::Network | Reach::Machine => {}
        }
    }
    Ok(())
}

/// A node of `live` that cannot be of one fleet with a node that tells `told`: one of them is
/// reached by its own machine only, and the other from elsewhere.
pub(crate) fn conflict<'a>(told: &str, me: &NodeId, live: &'a [Record]) -> Option<&'a Record> {
    let is_other = |record: &&Record| record.node != *me;
    live.iter().filter(is_other).find(|record| {
        let theirs = record.address.as_deref();
        theirs.is_some_and(|theirs| is_of_machine(theirs) != is_of_machine(told))
    })
}

/// The error of a node that tells `told` beside `other`.
pub(crate) fn apart(told: &str, other: &Record) -> NodeError {
    let (node, theirs) = (other.node.clone(), other.address.clone().unwrap_or_default());
    if is_of_machine(told) {
        NodeError::Apart { told: told.to_owned(), node, theirs }
    } else {
        NodeError::OtherApart { told: told.to_owned(), node, theirs }
    }
}

/// Whether only its own machine reaches what a node tells.
fn is_of_machine(told: &str) -> bool {
    let Some((host, _)) = host_and_port(told) else { return false };
    host == "localhost" || host.parse().is_ok_and(|ip| reach(ip) == Reach::Machine)
}

fn host_and_port(told: &str) -> Option<(&str, u16)> {
    let (host, port) = told.rsplit_once(':')?;
    Some((host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?))
}

fn reach(ip: IpAddr) -> Reach {
    match ip {
        IpAddr::V4(ip) => reach_v4(ip),
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or_else(|| reach_v6(ip), reach_v4),
    }
}

fn reach_v4(ip: Ipv4Addr) -> Reach {
    let [first, second, ..] = ip.octets();
    // RFC 6598: the private side of a provider's translation.
    let is_shared = first == 100 && second & 0xc0 == 64;
    if ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() {
        Reach::Nobody
    } else if ip.is_loopback() {
        Reach::Machine
    } else if ip.is_private() || ip.is_link_local() || is_shared {
        Reach::Network
    } else {
        Reach::Everybody
    }
}

fn reach_v6(ip: Ipv6Addr) -> Reach {
    if ip.is_unspecified() || ip.is_multicast() {
        Reach::Nobody
    } else if ip.is_loopback() {
        Reach::Machine
    } else if ip.is_unique_local() || ip.is_unicast_link_local() {
        Reach::Network
    } else {
        Reach::Everybody
    }
}

#[cfg(test)]
mod tests {
    use celld_core::lease::Load;
    use celld_core::node::{DiskId, SessionId};
    use celld_core::time::{Micros, Wall};

    use super::*;

    #[test]
    fn a_free_port_is_the_listeners_and_nobody_elses() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let address = check_address(ip.parse().expect("an address")).expect("a free port");
            let error = std::net::TcpListener::bind(address).map(drop).expect_err("it is taken");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            rt::block_on(async {
                let listeners = [rt::net::listen(address), rt::net::listen(address)];
                let client = std::net::TcpStream::connect(address).expect("a listener");
                assert!(listeners.iter().all(Result::is_ok));
                drop(client);
            });
        }
    }

    #[test]
    fn who_reaches_an_address() {
        for (text, expected) in [
            ("127.0.0.1", Reach::Machine),
            ("127.9.9.9", Reach::Machine),
            ("::1", Reach::Machine),
            ("::ffff:127.0.0.1", Reach::Machine),
            ("10.1.2.3", Reach::Network),
            ("172.31.0.1", Reach::Network),
            ("172.32.0.1", Reach::Everybody),
            ("192.168.0.1", Reach::Network),
            ("169.254.1.1", Reach::Network),
            ("100.64.0.1", Reach::Network),
            ("100.128.0.1", Reach::Everybody),
            ("fd00::1", Reach::Network),
            ("fe80::1", Reach::Network),
            ("::ffff:10.0.0.1", Reach::Network),
            ("8.8.8.8", Reach::Everybody),
            ("2001:4860:4860::8888", Reach::Everybody),
            ("::ffff:8.8.8.8", Reach::Everybody),
            ("0.0.0.0", Reach::Nobody),
            ("::", Reach::Nobody),
            ("224.0.0.1", Reach::Nobody),
            ("255.255.255.255", Reach::Nobody),
        ] {
            assert_eq!(reach(text.parse().expect("an address")), expected, "{text}");
        }
    }

    fn record(node: &str, address: Option<&str>) -> Record {
        Record {
            node: NodeId::parse(node).expect("a name"),
            session: SessionId::parse(&"5".repeat(32)).expect("a session"),
            write: 1,
            ttl: Micros::from_secs(10),
            written: Wall::from_millis(0),
            disk: DiskId::parse(&"d".repeat(32)).expect("a disk"),
            protocol: 1,
            address: address.map(str::to_owned),
            version: "0".into(),
            load: Load::default(),
        }
    }

    #[test]
    fn nodes_of_one_machine_and_nodes_of_several_hosts_are_not_mixed() {
        let me = NodeId::parse("me").expect("a name");
        let here = [record("me", Some("10.0.0.1:1")), record("a", Some("127.0.0.1:2"))];
        let there = [record("mute", None), record("b", Some("10.0.0.2:2"))];
        let named = [record("c", Some("c.internal:2"))];
        for (told, live, expected) in [
            ("127.0.0.1:9", &here[..], None),
            ("localhost:9", &here[..], None),
            ("[::1]:9", &here[..], None),
            ("10.0.0.9:9", &here[..], Some("a")),
            ("me.internal:9", &here[..], Some("a")),
            ("127.0.0.1:9", &there[..], Some("b")),
            ("10.0.0.9:9", &there[..], None),
            ("[::1]:9", &named[..], Some("c")),
            ("localhost:9", &named[..], Some("c")),
            ("127.0.0.1:9", &[], None),
        ] {
            let found = conflict(told, &me, live).map(|record| record.node.as_str());
            assert_eq!(found, expected, "{told}");
        }
        let text = apart("127.0.0.1:9", &there[1]).to_string();
        assert!(text.contains("127.0.0.1:9") && text.contains("node b"), "{text}");
        let text = apart("10.0.0.9:9", &here[1]).to_string();
        assert!(text.contains("node a") && text.contains("127.0.0.1:2"), "{text}");
    }

    #[test]
    fn a_public_address_must_be_meant_and_one_that_leads_nowhere_is_a_mistake() {
        rt::block_on(async {
            let public = check_told("8.8.8.8:8788", false).await.expect_err("not meant");
            let public = public.to_string();
            assert!(public.contains("8.8.8.8") && public.contains("--unsafe-public-advertise"));
            check_told("[2001:4860:4860::8888]:1", false).await.expect_err("not meant");
            check_told("8.8.8.8:8788", true).await.expect("meant");
            check_told("0.0.0.0:8788", true).await.expect_err("nobody reaches it");
            for good in ["10.0.0.1:1", "127.0.0.1:1", "[fd00::1]:1", "localhost:1"] {
                check_told(good, false).await.expect(good);
            }
        });
    }
}
