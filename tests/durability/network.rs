//! A fleet on several hosts, with a store on another one, and clients on a third: what can be cut
//! off from what.
//!
//! The hosts are network namespaces (`scripts/netns`). A variant on loopback, with relays in the ways
//! that can be cut, runs everywhere.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use celld_stores::{Host, Kind, Network as Hosts, Store};

use super::relay::Relay;
use super::support::node::{Plan, Remote, Site};

/// Life of the leases: short enough to wait for, long enough for a busy machine to renew in time.
pub const TTL: Duration = Duration::from_secs(6);
/// What a takeover may take beyond the TTL: 2 s, and what a machine costs that is busy with other
/// tests. The time that it took is printed.
pub const SLACK: Duration = Duration::from_secs(40);
/// The store of all networks: it keeps its objects on disk, and checks signatures.
const STORE: Kind = Kind::Seaweed;
/// Of each host.
const PORT: u16 = 8_787;
const INTERNAL_PORT: u16 = 8_788;

/// A fleet's. Nodes on it are to be dropped before it.
pub struct Network {
    site: Site,
    /// Names hosts that other tests have, too.
    number: u32,
    ways: Ways,
}

enum Ways {
    Hosts { lab: Arc<Lab>, hosts: Mutex<BTreeMap<String, Host>> },
    Loopback(Mutex<BTreeMap<String, Relays>>),
}

/// What all tests that run at the same time share.
struct Lab {
    // Dropped in this order.
    store: Store,
    store_host: Host,
    clients: Host,
    hosts: Arc<Hosts>,
}

/// Into a host of loopback and out of it.
struct Relays {
    to_store: Relay,
    from_peers: Relay,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lab {
    /// The one that runs, or a new one. `None`: hosts are not permitted here.
    fn shared() -> Option<Arc<Self>> {
        static LAB: Mutex<Weak<Lab>> = Mutex::new(Weak::new());
        let mut shared = lock(&LAB);
        if let Some(lab) = shared.upgrade() {
            return Some(lab);
        }
        let hosts = Hosts::permitted()?;
        let host = |name| hosts.host(name).unwrap_or_else(|why| panic!("host {name}: {why:#}"));
        let (store_host, clients) = (host("store"), host("clients"));
        let store = Store::start_on(STORE, &store_host);
        let store = store.unwrap_or_else(|why| panic!("{STORE:?}: {why:#}"));
        let lab = Arc::new(Self { store, store_host, clients, hosts });
        *shared = Arc::downgrade(&lab);
        Some(lab)
    }
}

impl Network {
    /// An empty bucket in a store, and no host yet. `None`: the store is not installed, or hosts are
    /// not permitted, and the user has been told.
    pub fn new() -> Option<Self> {
        if !Store::is_installed(STORE) {
            return None;
        }
        let lab = Lab::shared()?;
        let (site, number) = site(&lab.store, Some(&lab.clients));
        let hosts = Mutex::default();
        Some(Self { site, number, ways: Ways::Hosts { lab, hosts } })
    }

    /// The same on loopback, wherever it runs.
    pub fn on_loopback() -> Option<Self> {
        let (site, number) = site(Store::shared(STORE)?, None);
        Some(Self { site, number, ways: Ways::Loopback(Mutex::default()) })
    }

    /// The bucket.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// A node on a host of its own, with the same name.
    pub fn plan(&self, host: &str) -> Plan {
        self.plan_of(host, host)
    }

    /// A node on a host of its own.
    pub fn plan_of(&self, host: &str, node: &str) -> Plan {
        let plan = match &self.ways {
            Ways::Hosts { lab, hosts } => {
                let made = lab.hosts.host(&format!("{host}-{}", self.number));
                let made = made.unwrap_or_else(|why| panic!("host {host}: {why:#}"));
                let address = made.address();
                let plan = self
                    .site
                    .node_at(node, &format!("{address}:{PORT}"))
                    .flag("--internal-listen", &format!("{address}:{INTERNAL_PORT}"))
                    .on(&made, &lab.clients);
                lock(hosts).insert(host.to_owned(), made);
                plan
            }
            Ways::Loopback(hosts) => {
                let store = Store::shared(STORE).expect("it was there").port();
                let store = SocketAddr::from(([127, 0, 0, 1], store));
                let plan = self.site.node(node).beside(host);
                let log = plan.log().to_owned();
                let relays = Relays {
                    to_store: Relay::start(move || Some(store)),
                    from_peers: Relay::start(move || internal_address(&log)),
                };
                let endpoint = format!("http://{}", relays.to_store.address());
                let told = relays.from_peers.address().to_string();
                lock(hosts).insert(host.to_owned(), relays);
                plan.variable("S3_ENDPOINT", endpoint)
                    .flag("--internal-listen", "127.0.0.1:0")
                    .flag("--advertise", &told)
            }
        };
        plan.beside(host).variable("CELLD_TTL_MS", TTL.as_millis().to_string())
    }

    /// From now on the host does not reach the store, and is not told so.
    pub fn cut_store(&self, host: &str) {
        match &self.ways {
            Ways::Hosts { lab, hosts } => lock(hosts)[host].cut(&lab.store_host),
            Ways::Loopback(hosts) => lock(hosts)[host].to_store.cut(),
        }
    }

    /// From now on each answer of the store takes so long to the host.
    ///
    /// # Panics
    /// It is not on loopback.
    pub fn delay_answers(&self, host: &str, delay: Duration) {
        self.relays()[host].to_store.delay_answers(delay);
    }

    /// From now on the store hears nothing of the host, which still gets the answers that are under
    /// way.
    ///
    /// # Panics
    /// It is not on loopback.
    pub fn cut_questions(&self, host: &str) {
        self.relays()[host].to_store.cut_questions();
    }

    fn relays(&self) -> MutexGuard<'_, BTreeMap<String, Relays>> {
        match &self.ways {
            Ways::Hosts { .. } => panic!("hosts have no relays"),
            Ways::Loopback(hosts) => lock(hosts),
        }
    }

    /// It does again.
    pub fn heal_store(&self, host: &str) {
        match &self.ways {
            Ways::Hosts { lab, hosts } => lock(hosts)[host].heal(&lab.store_host),
            Ways::Loopback(hosts) => lock(hosts)[host].to_store.heal(),
        }
    }

    /// From now on the host does not reach the others, nor they it. On loopback no node reaches
    /// another one: a relay cannot tell who asks.
    pub fn cut_peers(&self, host: &str) {
        self.each_peer(host, Host::cut, Relay::cut);
    }

    /// They do again.
    pub fn heal_peers(&self, host: &str) {
        self.each_peer(host, Host::heal, Relay::heal);
    }

    fn each_peer(&self, host: &str, on_host: fn(&Host, &Host), on_relay: fn(&Relay)) {
        match &self.ways {
            Ways::Hosts { hosts, .. } => {
                let hosts = lock(hosts);
                let others = hosts.iter().filter(|(name, _)| *name != host);
                others.for_each(|(_, other)| on_host(&hosts[host], other));
            }
            Ways::Loopback(hosts) => {
                lock(hosts).values().for_each(|relays| on_relay(&relays.from_peers));
            }
        }
    }
}

/// A part of the store's bucket for one test, and a number that no other one has.
fn site(store: &Store, from: Option<&Host>) -> (Site, u32) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let url = store.url(&format!("network-{number}"));
    let remote = Remote::new(url, store.endpoint());
    let remote = match from {
        Some(host) => remote.from(host),
        None => remote,
    };
    (Site::in_store(remote), number)
}

/// Where the latest life of a node takes its peers.
fn internal_address(log: &Path) -> Option<SocketAddr> {
    let log = fs::read(log).ok()?;
    let log = String::from_utf8_lossy(&log).into_owned();
    let (_, rest) = log.rsplit_once("peers are served on ")?;
    rest.split(',').next()?.parse().ok()
}
