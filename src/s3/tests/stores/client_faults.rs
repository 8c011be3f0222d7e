//! The client before stores that are slow, sick or away: no outcome is misread, no request storm
//! makes it worse, and it goes on by itself when the fault is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use celld_rt::sleep;
use celld_stores::{Faulty, Kind, Outage, Store};
use serde_json::{Value, json};

use crate::load::{INCREMENTERS, Load, READERS};
use crate::{open_through, tell};

/// A busy machine needs this long for some dozen increments of one counter.
const WORK_LIMIT: Duration = Duration::from_secs(120);
/// After the end of a fault.
const RECOVERY_LIMIT: Duration = Duration::from_secs(5);

fn proxy(kind: Kind) -> Option<Arc<Faulty>> {
    Faulty::before(Store::shared(kind)?).map(Arc::new)
}

/// Increments through a store with these faults, until `fault` has been met often and much has
/// been counted. Returns how many conditional writes had no answer.
fn counts_through(kind: Kind, faults: &Value, fault: &str) -> Option<usize> {
    let proxy = proxy(kind)?;
    let unknown = celld_rt::block_on(async {
        let bucket = open_through(&proxy);
        let load = Load::start(&bucket).await;
        let (faults, fault) = (faults.clone(), fault.to_owned());
        tell(&proxy, |proxy| proxy.set(faults)).await;
        load.counts(40, WORK_LIMIT).await;
        let met = || {
            let fault = fault.clone();
            tell(&proxy, move |proxy| proxy.met(&fault))
        };
        while met().await < 20 {
            load.counts(5, WORK_LIMIT).await;
        }
        tell(&proxy, Faulty::heal).await;
        // Whatever is still to be applied late.
        sleep(Duration::from_millis(1_500)).await;
        let unknown = load.account.unknown.get();
        load.end().await;
        unknown
    });
    Some(unknown)
}

#[test]
fn lost_answers_are_read_back_and_never_guessed() {
    for kind in [Kind::Seaweed, Kind::Ministack] {
        let faults = json!({"lose_response": 0.2, "match": "counter"});
        let Some(unknown) = counts_through(kind, &faults, "lose-response") else { return };
        assert!(unknown >= 20, "{unknown}");
    }
}

#[test]
fn a_large_write_whose_end_was_not_answered_is_known_by_its_mark() {
    for kind in [Kind::Seaweed, Kind::Ministack, Kind::Gcsxml, Kind::Azurite] {
        let Some(proxy) = proxy(kind) else { continue };
        let end = json!({"lose_response": 1.0, "match": r"\?uploadId=|comp=blocklist", "count": 1});
        celld_rt::block_on(async {
            let bucket = open_through(&proxy);
            let before = bucket.put("large", vec![1; 9 << 20].into()).await.expect("a write");
            tell(&proxy, |proxy| proxy.set(end)).await;
            let body = vec![2; 9 << 20];
            let etag = bucket.put("large", body.clone().into()).await;
            assert_eq!(tell(&proxy, |proxy| proxy.met("lose-response")).await, 1, "{kind:?}");
            let etag = etag.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            let object = bucket.get("large").await.expect("a read").expect("an object");
            assert_ne!(before, etag, "{kind:?}");
            assert_eq!((object.etag, object.body == body), (etag, true), "{kind:?}");
        });
    }
}

#[test]
fn writes_that_arrive_late_are_not_taken_for_lost() {
    let faults = json!({"late_write": "0.2,1.0", "match": "counter"});
    let Some(unknown) = counts_through(Kind::Ministack, &faults, "late-write") else { return };
    assert!(unknown >= 20, "{unknown}");
}

#[test]
fn connections_that_break_anywhere_leave_no_outcome_misread() {
    for mode in ["cut-before", "cut-request", "cut-response"] {
        let faults = json!({"cut": 0.25});
        let Some(unknown) = counts_through(Kind::Ministack, &faults, mode) else { return };
        assert!(unknown > 0);
    }
}

#[test]
fn errors_of_the_store_leave_no_outcome_misread() {
    for error in ["500:InternalError", "503:SlowDown", "409:ConditionalRequestConflict"] {
        let faults = json!({"error": format!("0.2,{error}")});
        let Some(_) = counts_through(Kind::Ministack, &faults, "error") else { return };
    }
}

#[test]
fn a_failed_condition_in_other_words_is_no_success() {
    for error in ["409:OperationAborted", "500:UnknownError", "304", "404:NoSuchKey"] {
        let faults = json!({"wrong_error": error});
        let Some(_) = counts_through(Kind::Ministack, &faults, "wrong-error") else { return };
    }
}

#[test]
fn a_slow_store_is_waited_for_and_not_asked_twice() {
    let Some(proxy) = proxy(Kind::Ministack) else { return };
    celld_rt::block_on(async {
        let bucket = open_through(&proxy);
        let load = Load::start(&bucket).await;
        tell(&proxy, |proxy| proxy.set(json!({"latency_ms": "200,190"}))).await;
        load.counts(10, WORK_LIMIT).await;
        let unknown = load.account.unknown.get();
        let errors = load.end().await;
        assert_eq!((unknown, errors.as_slice()), (0, &[][..] as &[String]));
        let metrics = bucket.metrics();
        assert_eq!((metrics.retries, metrics.failures, metrics.outages), (0, 0, 0));
    });
}

#[test]
fn a_store_that_asks_for_less_gets_less() {
    const PER_SECOND: usize = 20;
    const SECONDS: usize = 6;
    for status in [503, 429] {
        let Some(proxy) = proxy(Kind::Ministack) else { return };
        let errors = celld_rt::block_on(async {
            let bucket = open_through(&proxy);
            let load = Load::start(&bucket).await;
            let faults = json!({"throttle": format!("{PER_SECOND},5"), "throttle_status": status});
            tell(&proxy, |proxy| proxy.set(faults)).await;
            let from = tell(&proxy, Faulty::requests).await.len();
            sleep(Duration::from_secs(SECONDS as u64)).await;
            let seen = tell(&proxy, Faulty::requests).await.split_off(from);
            let refused = seen.iter().filter(|request| request.status == status as u16).count();
            let taken = seen.len() - refused;
            assert!(refused > 0, "the throttle was not met");
            // What it takes is used, and no more than about as much again is asked in vain.
            assert!(taken >= PER_SECOND * SECONDS / 3, "{status}: {taken} of {}", seen.len());
            assert!(
                seen.len() <= 3 * PER_SECOND * SECONDS,
                "{status}: {} requests in {SECONDS} s, {refused} of them refused",
                seen.len()
            );
            tell(&proxy, Faulty::heal).await;
            load.counts(10, WORK_LIMIT).await;
            load.end().await
        });
        let calm = |error: &String| error.contains("wait and repeat");
        assert!(errors.iter().all(calm), "{errors:#?}");
    }
}

#[test]
fn a_store_that_is_away_is_left_alone_and_used_again_within_seconds() {
    const AWAY: Duration = Duration::from_secs(6);
    for mode in [Outage::Cut, Outage::Refuse, Outage::Hang, Outage::Unavailable] {
        let Some(proxy) = proxy(Kind::Ministack) else { return };
        celld_rt::block_on(async {
            let bucket = open_through(&proxy);
            let load = Load::start(&bucket).await;
            load.counts(5, WORK_LIMIT).await;
            let before = bucket.metrics();
            tell(&proxy, move |proxy| proxy.outage(AWAY, mode)).await;
            let end = Instant::now() + AWAY;
            sleep(AWAY + RECOVERY_LIMIT).await;
            let recovered = load.first_read_after(end);
            assert!(recovered.is_some(), "{mode:?}: no read within {RECOVERY_LIMIT:?} of its end");
            let asked = tell(&proxy, |proxy| proxy.met("outage")).await;
            let refused = bucket.metrics().connect_failures - before.connect_failures;
            println!("{mode:?}: {asked} asked, {refused} refused, read again after {recovered:?}");
            // Each worker once or twice, and then about one a second to look whether it is back.
            // Without restraint it would be thousands.
            let bound = 8 * (INCREMENTERS + READERS);
            assert!(
                asked + refused as usize <= bound,
                "{mode:?}: {asked} asked, {refused} refused"
            );
            load.counts(5, WORK_LIMIT).await;
            load.end().await;
        });
    }
}
