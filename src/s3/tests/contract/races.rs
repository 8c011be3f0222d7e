//! Many at once on one key: exactly one wins, and what it wrote stands.

use bytes::Bytes;
use celld_s3::{Bucket, CasOutcome, Guard};

/// As many as the probe of a store, and few enough for a store that makes them wait in line.
pub const CONTENDERS: usize = 16;

/// Both races, so many rounds of each.
pub async fn all(bucket: &Bucket, prefix: &str, rounds: usize) {
    for round in 0..rounds {
        let key = format!("{prefix}create-{round}");
        let winner = race(bucket, &key, &Guard::Absent).await;
        assert_stands(bucket, &key, &winner).await;

        let key = format!("{prefix}swap-{round}");
        let start = bucket.put(&key, Bytes::from("start")).await.expect("a write");
        let winner = race(bucket, &key, &Guard::Match(start.clone())).await;
        assert_stands(bucket, &key, &winner).await;
        // The token that they all had is over, also for one that comes late.
        let late = bucket.put_if(&key, Guard::Match(start), Bytes::from("late")).await;
        assert_eq!(late.expect("an answer"), CasOutcome::Refused);
        assert_stands(bucket, &key, &winner).await;
    }
}

/// All write with one guard at once. Returns what the only winner wrote.
async fn race(bucket: &Bucket, key: &str, guard: &Guard) -> Bytes {
    let tasks: Vec<_> = (0..CONTENDERS)
        .map(|n| {
            let (bucket, key, guard) = (bucket.clone(), key.to_owned(), guard.clone());
            let body = Bytes::from(format!("contender {n} of {key}"));
            celld_rt::spawn_joined(async move {
                let outcome = bucket.put_if(&key, guard, body.clone()).await;
                (body, outcome.expect("an answer"))
            })
        })
        .collect();
    let mut winners = Vec::new();
    for task in tasks {
        let (body, outcome) = task.join().await.expect("no panic");
        match outcome {
            CasOutcome::Applied(_) => winners.push(body),
            CasOutcome::Refused => {}
            CasOutcome::Unknown => panic!("{key}: a healthy store says how a write ended"),
        }
    }
    assert_eq!(winners.len(), 1, "{key}: {winners:?}");
    winners.remove(0)
}

async fn assert_stands(bucket: &Bucket, key: &str, body: &Bytes) {
    let seen = bucket.get(key).await.expect("a read").expect("an object");
    assert_eq!(seen.body, body, "{key}: what the winner wrote is not there");
}
