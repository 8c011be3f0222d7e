//! One attempt at one rule, on objects of its own.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use celld_core::cas::{CasOutcome, Etag, Guard};

use super::rule::Rule;
use crate::error::StoreError;
use crate::{Bucket, KEY_BYTES_MAX, Object};

/// One request that no one else gets in the way of.
pub(super) const VERB_LIMIT: Duration = Duration::from_secs(10);

const FIRST: &str = "first 0123456789";
const SECOND: &str = "second 0123456789";
const REFUSED: &str = "this must not be written";

/// Why an attempt did not show that the rule holds.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It does not. `code`: if the way in which it does not has a name of its own.
    Broken { code: Option<&'static str>, sent: String, came: String },
    /// A request did not do what was asked.
    Failed(StoreError),
    /// A conditional write ended without saying how.
    Unknown { sent: String },
}

/// See the module.
pub(super) struct Trial<'a> {
    pub(super) bucket: &'a Bucket,
    rule: Rule,
    prefix: String,
    /// All that it may have written.
    pub(super) keys: Vec<String>,
}

/// How a conditional write ended, now that it is known.
enum Ended {
    Applied(Etag),
    Refused,
}

impl<'a> Trial<'a> {
    pub(super) fn new(bucket: &'a Bucket, rule: Rule) -> Result<Self, Trouble> {
        let nonce = getrandom::u64().map_err(|error| {
            Trouble::Failed(StoreError::Unreachable {
                key: "probe/".to_owned(),
                source: io::Error::other(error),
            })
        })?;
        let prefix = format!("probe/{nonce:016x}/");
        debug_assert!(prefix.len() + 64 <= KEY_BYTES_MAX);
        Ok(Self { bucket, rule, prefix, keys: Vec::new() })
    }

    pub(super) async fn run(&mut self) -> Result<(), Trouble> {
        match self.rule {
            Rule::Create => self.create().await,
            Rule::CreateTwice => self.create_twice().await,
            Rule::ReadAfterWrite => self.read_after_write().await,
            Rule::Update => self.update().await,
            Rule::StaleUpdate => self.stale_update().await,
            Rule::AbsentUpdate => self.absent_update().await,
            Rule::RangedRead => self.ranged_read().await,
            Rule::ListAfterWrite => self.list_after_write().await,
            Rule::CreateRace => self.create_race().await,
            Rule::UpdateRace => self.update_race().await,
            Rule::Delete => self.delete().await,
        }
    }

    async fn create(&mut self) -> Result<(), Trouble> {
        let key = self.key("object");
        let sent = format!("a create of the absent object {key}");
        let ended = match self.put_if(&key, Guard::Absent, FIRST).await {
            // 404: some versions of a store look for the object before they create it.
            Err(Trouble::Failed(StoreError::Broken { what, .. })) => {
                let is_absent = self.get(&key).await?.is_none();
                let code = is_absent.then_some("store.create.not-found");
                return Err(Trouble::Broken { code, sent, came: what });
            }
            ended => ended?,
        };
        match ended {
            Ended::Applied(etag) => self.sees(&key, FIRST, &etag).await,
            Ended::Refused => Err(broken(sent, "it was refused")),
        }
    }

    async fn create_twice(&mut self) -> Result<(), Trouble> {
        let key = self.key("object");
        let etag = self.put(&key, FIRST).await?;
        self.refuses(&key, Guard::Absent, (FIRST, &etag)).await
    }

    async fn read_after_write(&mut self) -> Result<(), Trouble> {
        let key = self.key("object");
        for body in [FIRST, SECOND, FIRST, SECOND] {
            let etag = self.put(&key, body).await?;
            self.sees(&key, body, &etag).await?;
        }
        Ok(())
    }

    async fn update(&mut self) -> Result<(), Trouble> {
        let key = self.key("object");
        let old = self.put(&key, FIRST).await?;
        let sent = format!("a conditional write of {key} on its version {old}");
        match self.put_if(&key, Guard::Match(old.clone()), SECOND).await? {
            Ended::Applied(new) if new == old => {
                Err(broken(sent, "the new version is the old one"))
            }
            Ended::Applied(new) => self.sees(&key, SECOND, &new).await,
            Ended::Refused => Err(broken(sent, "it was refused")),
        }
    }

    async fn stale_update(&mut self) -> Result<(), Trouble> {
        let key = self.key("object");
        let old = self.put(&key, FIRST).await?;
        let new = self.put(&key, SECOND).await?;
        self.refuses(&key, Guard::Match(old), (SECOND, &new)).await
    }

    async fn absent_update(&mut self) -> Result<(), Trouble> {
        let (present, absent) = (self.key("object"), self.key("absent"));
        let etag = self.put(&present, FIRST).await?;
        let sent = format!("a conditional write of the absent {absent} on the version {etag}");
        // Here even an unknown end will do: what counts is that nothing is there.
        let ended = self.put_if(&absent, Guard::Match(etag), REFUSED).await;
        match ended {
            Ok(Ended::Applied(_)) => Err(broken(sent, "it was applied")),
            Ok(Ended::Refused) | Err(Trouble::Unknown { .. }) => match self.get(&absent).await? {
                None => Ok(()),
                Some(_) => Err(broken(sent, "it was refused and written all the same")),
            },
            Err(trouble) => Err(trouble),
        }
    }

    async fn ranged_read(&mut self) -> Result<(), Trouble> {
        let key = self.key("object");
        self.put(&key, SECOND).await?;
        for (start, end) in [(0, 1), (7, 17), (3, 9), (16, 17)] {
            let range = self.bucket.get_range(&key, start..end);
            let seen = limited(&key, range).await?;
            if seen != SECOND.as_bytes()[start as usize..end as usize] {
                let sent = format!("a read of the bytes {start}..{end} of {key}");
                let came = format!("{} bytes, and not these", seen.len());
                return Err(broken(sent, came));
            }
        }
        Ok(())
    }

    async fn list_after_write(&mut self) -> Result<(), Trouble> {
        let (lower, upper) = (self.key("object"), self.key("Object"));
        // What is listed now must not come back later.
        limited(&self.prefix, self.bucket.list(&self.prefix, None)).await?;
        self.put(&lower, SECOND).await?;
        self.put(&upper, FIRST).await?;
        let page = limited(&self.prefix, self.bucket.list(&self.prefix, None)).await?;
        let seen: Vec<_> = page.entries.iter().map(|e| (e.key.as_str(), e.size)).collect();
        let wanted = [(upper.as_str(), FIRST.len() as u64), (lower.as_str(), SECOND.len() as u64)];
        if seen == wanted && !page.more {
            return self.learn_list_order().await;
        }
        let sent = format!("a listing of {}, with {wanted:?} just written", self.prefix);
        Err(broken(sent, format!("{seen:?}")))
    }

    /// No rule, but worth knowing: long listings cost fewer requests in byte order.
    async fn learn_list_order(&mut self) -> Result<(), Trouble> {
        // A tree lists what is below `object/` before `object!`.
        for name in ["order/object/x", "order/object!"] {
            let key = self.key(name);
            self.put(&key, FIRST).await?;
        }
        let prefix = format!("{}order/", self.prefix);
        limited(&prefix, self.bucket.learn_list_order(&prefix)).await
    }

    async fn delete(&mut self) -> Result<(), Trouble> {
        let key = self.key("object");
        self.put(&key, FIRST).await?;
        limited(&key, self.bucket.delete(&self.keys)).await?;
        match self.get(&key).await? {
            None => Ok(()),
            Some(_) => Err(broken(format!("a delete of {key}"), "a read still finds it")),
        }
    }

    /// A conditional write that must change nothing: the object stays what `now` says.
    async fn refuses(&self, key: &str, guard: Guard, now: (&str, &Etag)) -> Result<(), Trouble> {
        let sent = match &guard {
            Guard::Absent => format!("a create of {key}, which is there"),
            Guard::Match(old) => {
                format!("a conditional write of {key} on the version {old}, which is {}", now.1)
            }
        };
        match self.put_if(key, guard, REFUSED).await? {
            Ended::Applied(_) => Err(broken(sent, "it was applied")),
            Ended::Refused => match self.get(key).await? {
                Some(seen) if seen.body == now.0 && seen.etag == *now.1 => Ok(()),
                Some(seen) if seen.body == REFUSED => {
                    Err(broken(sent, "it was refused and written all the same"))
                }
                _ => Err(broken(sent, "it was refused, and the object is another one after it")),
            },
        }
    }

    /// A read must see this.
    async fn sees(&self, key: &str, body: &str, etag: &Etag) -> Result<(), Trouble> {
        let sent = format!("a read of {key}, just written");
        match self.get(key).await? {
            Some(seen) if seen.body != body => Err(broken(sent, "other bytes")),
            Some(seen) if seen.etag != *etag => {
                Err(broken(sent, format!("the version {}, and the write said {etag}", seen.etag)))
            }
            Some(_) => Ok(()),
            None => Err(broken(sent, "no object")),
        }
    }

    /// A key of this attempt, to be removed after it.
    pub(super) fn key(&mut self, name: &str) -> String {
        let key = format!("{}{name}", self.prefix);
        self.keys.push(key.clone());
        key
    }

    pub(super) async fn put(&self, key: &str, body: &'static str) -> Result<Etag, Trouble> {
        limited(key, self.bucket.put(key, Bytes::from(body))).await
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<Object>, Trouble> {
        limited(key, self.bucket.get(key)).await
    }

    /// A conditional write. When it does not say how it ended, a read does if it has applied.
    async fn put_if(&self, key: &str, guard: Guard, body: &'static str) -> Result<Ended, Trouble> {
        let unbuilt = match &guard {
            Guard::Absent => Rule::Create,
            Guard::Match(_) => Rule::Update,
        };
        let written = self.bucket.put_if(key, guard, Bytes::from(body));
        match celld_rt::timeout(VERB_LIMIT, written).await {
            Ok(Ok(CasOutcome::Applied(etag))) => return Ok(Ended::Applied(etag)),
            Ok(Ok(CasOutcome::Refused)) => return Ok(Ended::Refused),
            Ok(Ok(CasOutcome::Unknown)) | Err(celld_rt::TimedOut) => {}
            Ok(Err(error @ StoreError::Denied { .. })) => {
                // With these rights a plain write is allowed, too; unless it is the condition.
                if self.put(key, body).await.is_err() {
                    return Err(Trouble::Failed(error));
                }
                let sent = format!("a conditional write of {key}");
                let came = format!("it was denied, and a plain one was not: {error}");
                return Err(Trouble::Broken { code: Some(unbuilt.code()), sent, came });
            }
            Ok(Err(error)) => return Err(Trouble::Failed(error)),
        }
        match self.get(key).await? {
            Some(seen) if seen.body == body => Ok(Ended::Applied(seen.etag)),
            _ => Err(Trouble::Unknown { sent: format!("a conditional write of {key}") }),
        }
    }
}

/// Gives a request its time.
async fn limited<T>(
    key: &str,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, Trouble> {
    let answer = celld_rt::timeout(VERB_LIMIT, request).await;
    answer.unwrap_or_else(|_| Err(too_slow(key, VERB_LIMIT))).map_err(Trouble::Failed)
}

pub(super) fn too_slow(key: &str, limit: Duration) -> StoreError {
    let source = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
    StoreError::Unreachable { key: key.to_owned(), source }
}

pub(super) fn broken(sent: String, came: impl Into<String>) -> Trouble {
    Trouble::Broken { code: None, sent, came: came.into() }
}
