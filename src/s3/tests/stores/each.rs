//! What each store must do, and each of ours.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use celld_s3::{Bucket, Guard, StoreError, probe};
use celld_stores::{BUCKET, Kind, Store, ask};

use crate::contract::counter::Account;
use crate::contract::{self, Variations, counter, races};
use crate::{open, open_at, options, unique};

/// A store whose increments take seconds when several meet.
const COUNT_LIMIT: Duration = Duration::from_secs(120);

/// What a store is known to do otherwise; see `docs/stores.md`.
fn variations(kind: Kind) -> Variations {
    match kind {
        Kind::Seaweed => Variations { is_tree: true, ..Variations::default() },
        Kind::Azurite => Variations {
            takes_backslash_for_slash: true,
            fails_on_control_signs: true,
            ..Variations::default()
        },
        Kind::Ministack | Kind::Gcsxml => Variations::default(),
    }
}

fn keeps_the_contract(kind: Kind) {
    let Some(store) = Store::shared(kind) else { return };
    celld_rt::block_on(async {
        contract::all(&open(store), "contract/", variations(kind)).await;
    });
}

fn passes_the_probe_and_has_one_winner(kind: Kind) {
    let Some(store) = Store::shared(kind) else { return };
    celld_rt::block_on(async {
        let bucket = open(store);
        probe(&bucket).await.verdict().unwrap_or_else(|fault| panic!("{kind:?}: {fault}"));
        assert!(bucket.list("", None).await.expect("a page").entries.is_empty());
        // Contenders wait for seconds there.
        let rounds = if kind == Kind::Seaweed { 2 } else { 8 };
        races::all(&bucket, "races/", rounds).await;
    });
}

fn counts_each_increment_once(kind: Kind) {
    let Some(store) = Store::shared(kind) else { return };
    celld_rt::block_on(async {
        let bucket = open(store);
        let account = Rc::new(Account::default());
        counter::start(&bucket, "counter").await;
        let workers: Vec<_> = (0..8)
            .map(|_| {
                counter::work(bucket.clone(), "counter".into(), account.clone(), |account| {
                    account.applied() < 40
                })
            })
            .map(celld_rt::spawn_joined)
            .collect();
        let all = async {
            for worker in workers {
                worker.join().await.expect("no panic");
            }
        };
        celld_rt::timeout(COUNT_LIMIT, all).await.expect("40 increments in time");
        assert_eq!(account.check(&bucket, "counter").await, [""; 0]);
        assert_eq!(account.errors.borrow().as_slice(), [""; 0]);
        assert_eq!(account.unknown.get(), 0, "a healthy store says how a write ended");
    });
}

macro_rules! each_store {
    ($($name:ident: $kind:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn keeps_the_contract() {
                super::keeps_the_contract($kind);
            }

            #[test]
            fn passes_the_probe_and_has_one_winner_of_sixteen() {
                super::passes_the_probe_and_has_one_winner($kind);
            }

            #[test]
            fn counts_each_increment_once() {
                super::counts_each_increment_once($kind);
            }
        }
    )*};
}

each_store! {
    seaweedfs: Kind::Seaweed;
    ministack: Kind::Ministack;
    gcsxml: Kind::Gcsxml;
    azurite: Kind::Azurite;
}

#[test]
fn parts_of_what_is_given_up_do_not_stay() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    let prefix = unique();
    let uploads = || {
        let asked = ask(store.port(), "GET", &format!("/{BUCKET}?uploads"), &[], "");
        let asked = asked.expect("an answer");
        assert!(asked.text.contains("ListMultipartUploadsResult"), "{asked:?}");
        // Others test at the same time.
        asked.text.matches(&format!("<Key>{prefix}/large</Key>")).count()
    };
    celld_rt::block_on(async {
        let bucket = open_at(&store.url(&prefix), store.endpoint());
        let mut writer = bucket.writer("large").await.expect("a writer");
        writer.write(vec![7; 20 << 20].into()).await.expect("a write");
        let begin = std::time::Instant::now();
        // The first part tells that there is an upload.
        while uploads() == 0 {
            assert!(begin.elapsed() < COUNT_LIMIT, "no upload was begun");
            celld_rt::sleep(Duration::from_millis(20)).await;
        }
        drop(writer);
        while uploads() > 0 {
            assert!(begin.elapsed() < COUNT_LIMIT, "its parts are still there");
            celld_rt::sleep(Duration::from_millis(20)).await;
        }
        assert!(bucket.get("large").await.expect("a read").is_none());
    });
}

#[test]
fn a_wrong_secret_is_refused_with_what_to_do() {
    let Some(store) = Store::shared(Kind::Seaweed) else { return };
    let mut options = options(store.endpoint());
    options.keys.as_mut().expect("keys").secret = "another".into();
    let bucket = Bucket::open_with(&store.url(&unique()), &options).expect("a bucket");
    celld_rt::block_on(async {
        let body = || Bytes::from("x");
        let errors = [
            bucket.get("a").await.map(drop).expect_err("a read"),
            bucket.get_range("a", 0..1).await.map(drop).expect_err("a ranged read"),
            bucket.put("a", body()).await.map(drop).expect_err("a write"),
            bucket.put_if("a", Guard::Absent, body()).await.map(drop).expect_err("a create"),
            bucket.list("", None).await.map(drop).expect_err("a listing"),
            bucket.delete(&["a".to_owned()]).await.expect_err("a deletion"),
        ];
        for error in errors {
            assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("SignatureDoesNotMatch"), "{text}");
            assert!(!text.contains("another"), "a secret in an error: {text}");
        }
    });
}

#[test]
fn a_bucket_that_is_not_there_is_an_error_and_no_empty_bucket() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    let bucket = open_at("s3://no-such-bucket/x", store.endpoint());
    celld_rt::block_on(async {
        let read = bucket.get("a").await.expect_err("a read").to_string();
        assert!(read.contains("NoSuchBucket") && read.contains("make it"), "{read}");
        bucket.list("", None).await.expect_err("a listing");
        let create = bucket.put_if("a", Guard::Absent, Bytes::from("x")).await;
        assert!(matches!(create, Err(StoreError::Denied { .. })), "{create:?}");
    });
}
