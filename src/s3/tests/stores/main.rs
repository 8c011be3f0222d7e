//! The client against real stores, and against a proxy that makes them misbehave.
//!
//! A test whose store is not installed says so and does nothing; `scripts/stores` installs them.

#[path = "../contract/mod.rs"]
mod contract;

mod client_faults;
mod each;
mod load;
mod probe_faults;
mod virtual_host;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use celld_s3::{Bucket, OpenOptions, StaticKeys};
use celld_stores::{ACCESS_KEY, Faulty, REGION, SECRET_KEY, Store};

/// Asks the proxy without holding up this executor.
async fn tell<T: Send + 'static>(
    proxy: &Arc<Faulty>,
    what: impl FnOnce(&Faulty) -> T + Send + 'static,
) -> T {
    let proxy = proxy.clone();
    celld_rt::blocking(move || what(&proxy)).await
}

/// A part of the store's bucket that no other test has.
fn open(store: &Store) -> Bucket {
    open_at(&store.url(&unique()), store.endpoint())
}

/// The same, through the proxy.
fn open_through(proxy: &Faulty) -> Bucket {
    open_at(&proxy.url(&unique()), proxy.endpoint())
}

fn open_at(url: &str, endpoint: String) -> Bucket {
    Bucket::open_with(url, &options(endpoint)).unwrap_or_else(|why| panic!("{url}: {why}"))
}

fn options(endpoint: String) -> OpenOptions {
    let keys = StaticKeys { id: ACCESS_KEY.into(), secret: SECRET_KEY.into(), token: None };
    // The emulator of Azure has one account, whose key is public and known to the client.
    let keys = (!endpoint.ends_with("/devstoreaccount1")).then_some(keys);
    OpenOptions {
        endpoint: Some(endpoint),
        region: Some(REGION.into()),
        keys,
        ..OpenOptions::default()
    }
}

/// The name of a prefix.
fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
