//! How a node finds its fleet: the record in the bucket, made by whoever comes first.

use std::time::Duration;

use bytes::Bytes;
use celld_core::cas::{CasOutcome, Guard};
use celld_core::fleet::{self, FLEET_KEY, FleetId, FleetRecord, FleetSecret, Join};
use celld_rt as rt;
use celld_s3::{Bucket, StoreError};

use crate::shard::random;

/// Between attempts, while the outcome of the write is not known.
const PAUSE: Duration = Duration::from_millis(200);
/// Attempts before the start fails: the store has passed its probe, so one is enough nearly always.
const ATTEMPTS_MAX: u32 = 20;

/// Reads the fleet record, or creates it.
///
/// # Errors
/// The text says what is wrong with the bucket or the record, and what to do.
pub(crate) async fn join(bucket: &Bucket) -> Result<FleetRecord, String> {
    let drawn = draw();
    for _ in 0..ATTEMPTS_MAX {
        let seen = bucket.get(FLEET_KEY).await.map_err(unreadable)?;
        let seen = seen.as_ref().map(|object| object.body.as_ref());
        let wanted = fleet::join(seen, &drawn).map_err(|error| {
            format!("{FLEET_KEY}: {error}; restore it from a backup, or use another bucket")
        })?;
        let bytes = match wanted {
            Join::Member(record) => return Ok(record),
            Join::Create(bytes) => bytes,
        };
        match bucket.put_if(FLEET_KEY, Guard::Absent, Bytes::from(bytes)).await {
            Ok(CasOutcome::Applied(_)) => return Ok(drawn),
            Ok(CasOutcome::Refused) => {}
            Ok(CasOutcome::Unknown) => rt::sleep(PAUSE).await,
            Err(error) => return Err(unreadable(error)),
        }
    }
    Err(format!("{FLEET_KEY} cannot be written: the store does not say how the write ended"))
}

fn unreadable(error: StoreError) -> String {
    format!("the fleet record cannot be read or made: {error}")
}

fn draw() -> FleetRecord {
    let mut bits = [0; 32];
    bits[..16].copy_from_slice(&random().to_le_bytes());
    bits[16..].copy_from_slice(&random().to_le_bytes());
    FleetRecord { fleet: FleetId::drawn(random()), secret: FleetSecret::drawn(bits) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nodes_of_a_bucket_are_of_one_fleet_and_a_damaged_record_is_no_other_fleet() {
        let dir = tempfile::tempdir().expect("a directory");
        let bucket = Bucket::open_dir(dir.path()).expect("a bucket");
        rt::block_on(async {
            let many: Vec<_> = (0..8)
                .map(|_| {
                    let bucket = bucket.clone();
                    rt::spawn_joined(async move { join(&bucket).await })
                })
                .collect();
            let mut records = Vec::new();
            for one in many {
                records.push(one.join().await.expect("no panic").expect("a fleet"));
            }
            assert!(records.iter().all(|record| *record == records[0]));
            bucket.put(FLEET_KEY, Bytes::from_static(b"{}")).await.expect("a write");
            let error = join(&bucket).await.expect_err("damaged");
            assert!(error.contains(FLEET_KEY) && error.contains("another bucket"), "{error}");
        });
    }
}
