//! Credentials that are replaced while a bucket is open.

use std::path::Path;
use std::sync::{Arc, Mutex};

use celld_rt::block_on;

use super::super::Remote;
use super::super::credentials::{Environment, Signer, SignerKind, Sources};
use super::{Say, Scripted, error, say};
use crate::location::{self, Location};
use crate::{Bucket, StoreError};

/// The bucket of somebody whose keys are in a file.
fn bucket(store: &Scripted, home: &Path) -> Bucket {
    let Ok(Location::Remote(location)) = location::parse("s3://bucket/pre") else {
        panic!("it is the URL of a store")
    };
    let mut remote = Remote::open(&location, &store.options()).expect("a bucket");
    let home = ("HOME".to_owned(), home.to_str().expect("UTF-8").to_owned());
    let environment = Environment::of([home]);
    let sources = Sources { environment, tls: remote.tls.clone(), keys: None };
    remote.signer = Signer::new(SignerKind::S3 { region: "auto".to_owned() }, sources);
    Bucket::remote(remote)
}

fn write_keys(home: &Path, id: &str) {
    let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = s\n");
    std::fs::create_dir_all(home.join(".aws")).expect("a directory");
    std::fs::write(home.join(".aws/credentials"), text).expect("a file");
}

/// A store that takes the key of this name only, and says `no` to others.
fn store(good: &Arc<Mutex<&'static str>>, no: fn() -> Say) -> Scripted {
    let good = good.clone();
    Scripted::start(move |asked| {
        let wanted = format!("Credential={}/", good.lock().expect("no panic with it"));
        match asked.header("authorization") {
            Some(text) if text.contains(&wanted) => error(404, "NoSuchKey"),
            _ => no(),
        }
    })
}

#[test]
fn after_a_403_the_sources_are_asked_again_whatever_it_says() {
    type No = fn() -> Say;
    let refusals: [(&str, No, usize); 5] = [
        ("expired", || error(400, "ExpiredToken"), 1),
        ("a key that is gone", || error(403, "InvalidAccessKeyId"), 1),
        ("denied", || error(403, "AccessDenied"), 2),
        ("in words of its own", || error(403, "NotToday"), 2),
        ("in nobody's words", || say(403, &[], "<html>no</html>"), 2),
    ];
    for (name, no, tries) in refusals {
        let home = tempfile::tempdir().expect("a directory");
        write_keys(home.path(), "OLD");
        let good = Arc::new(Mutex::new("OLD"));
        let store = store(&good, no);
        block_on(async {
            let bucket = bucket(&store, home.path());
            assert_eq!(bucket.get("a").await.expect("a read"), None, "{name}");
            write_keys(home.path(), "NEW");
            *good.lock().expect("no panic with it") = "NEW";
            for _ in 1..tries {
                let denied = bucket.get("a").await.expect_err("the old key");
                assert!(matches!(denied, StoreError::Denied { .. }), "{name}: {denied:?}");
            }
            assert_eq!(bucket.get("a").await.expect("a read"), None, "{name}");
        });
        assert_eq!(store.asked().len(), 3, "{name}");
    }
}
