//! The bucket's name in the host's, as at Amazon: the contract at a store that reads it there.
//!
//! Only a host of its own can be asked at port 443 by Amazon's name, so that the test starts itself
//! again on one; that takes root.

use std::fs;
use std::process::Command;

use celld_s3::{Bucket, OpenOptions, probe};
use celld_stores::{AMAZON, BUCKET, Cloud, Kind, Network, Store};

use crate::contract::{self, Variations};
use crate::options;

/// Set for the process on the host.
const INNER: &str = "CELLD_TEST_AT_AMAZON";

#[test]
fn the_contract_is_kept_with_the_bucket_s_name_in_the_host() {
    if std::env::var_os(INNER).is_some() {
        return keeps_the_contract_at_amazon();
    }
    let Some(network) = Network::permitted() else { return };
    if !Store::is_installed(Kind::Seaweed) {
        return;
    }
    let [amazon, machine] = ["amazon", "machine"].map(|name| network.host(name).expect("a host"));
    let _store = Store::start_in(Cloud::Amazon, &amazon).expect("a store");
    let dir = tempfile::tempdir().expect("a directory");
    let names = dir.path().join("hosts");
    fs::write(&names, format!("{} {AMAZON}\n", amazon.address())).expect("a file");
    let mut again = Command::new(std::env::current_exe().expect("a program"));
    let test = "virtual_host::the_contract_is_kept_with_the_bucket_s_name_in_the_host";
    again.args(["--exact", test, "--nocapture"]).env(INNER, "1");
    machine.takes_with_names(&mut again, &names);
    let output = again.output().expect("it starts");
    let said = format!("{output:?}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn keeps_the_contract_at_amazon() {
    let options =
        OpenOptions { endpoint: None, ca_file: Some(Cloud::authority()), ..options(String::new()) };
    let bucket = Bucket::open_with(&format!("s3://{BUCKET}/t"), &options).expect("a bucket");
    celld_rt::block_on(async {
        probe(&bucket).await.verdict().unwrap_or_else(|fault| panic!("{fault}"));
        let variations = Variations { is_tree: true, ..Variations::default() };
        contract::all(&bucket, "contract/", variations).await;
    });
}
