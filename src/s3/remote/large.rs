//! Objects that are too large for one request: read and written in parts, some at a time.
//!
//! Invariant: what is read is of one version, or an error; an object that is written appears whole
//! or not at all. Each part is a request of its own, with the limits of the verb.
//!
//! A write that is given up leaves its parts behind when the store cannot be told: buckets should
//! have a rule that removes them ("abort incomplete multipart uploads").

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use celld_core::cas::Etag;
use celld_rt as rt;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use http::Response;
use hyper::body::Incoming;

use super::Call;
use super::answer::{Failure, Refusal};
use super::attempt::whole;
use super::dialect::Code;
use super::metrics::Verb;
use super::object::Ranged;
use crate::error::StoreError;

/// Of one request. Large enough that a round trip is small beside it.
pub(super) const PART_BYTES: u64 = 8 << 20;
/// Parts of one object under way at once: enough to fill a link, and a bound for memory.
const PARTS_IN_FLIGHT: usize = 4;
/// As all stores have it.
const PARTS_MAX: u64 = 10_000;
/// Of an answer that names an upload, or a new object.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

impl Call<'_> {
    /// The bytes `wanted` of the version `tag`, which has them all; `read` are those before.
    pub(super) async fn get_parts(
        &self,
        wanted: Range<u64>,
        tag: &Etag,
        read: BytesMut,
    ) -> Result<Bytes, StoreError> {
        let mut all = read;
        let ranges = split(wanted, PART_BYTES).map(|range| async move {
            match self.ranged(&range, Some(tag)).await? {
                Ranged::Bytes(bytes, ..) => Ok(bytes),
                Ranged::Short(size) => {
                    let what = format!("one version had {} bytes and then {size}", range.end);
                    Err(StoreError::Broken { key: self.key.to_owned(), what })
                }
            }
        });
        let mut parts = stream::iter(ranges).buffered(PARTS_IN_FLIGHT);
        while let Some(part) = parts.try_next().await? {
            all.extend_from_slice(&part);
        }
        Ok(all.freeze())
    }

    pub(super) async fn put_parts(&self, body: Bytes) -> Result<Etag, StoreError> {
        let upload = self.begin().await.map_err(|failure| failure.into_error(self.key))?;
        let done = self.put_parts_of(&upload, body).await;
        if done.is_err() {
            self.abort(&upload);
        }
        done.map_err(|failure| failure.into_error(self.key))
    }

    async fn begin(&self) -> Result<String, Failure> {
        let dialect = &self.remote.dialect;
        let Some(ask) = dialect.begin(self.key) else {
            let random = getrandom::u64();
            let random = random.map_err(|error| Failure::Unsigned(error.to_string()))?;
            return Ok(format!("{random:016x}"));
        };
        let read = async |response: Response<Incoming>| {
            let answer = whole(response, ANSWER_BYTES_MAX).await?;
            let upload = dialect.upload(&answer.body);
            upload.map_err(|fault| Failure::Malformed(format!("a new upload: {fault}")))
        };
        self.repeated(Verb::Put, || ask.clone(), read).await
    }

    async fn put_parts_of(&self, upload: &str, body: Bytes) -> Result<Etag, Failure> {
        let size = body.len() as u64;
        let part_bytes = size.div_ceil(PARTS_MAX).max(PART_BYTES);
        let parts = (1..).zip(split(0..size, part_bytes)).map(|(number, range)| {
            let part = body.slice(range.start as usize..range.end as usize);
            self.put_part(upload, number, part)
        });
        let tags = stream::iter(parts).buffered(PARTS_IN_FLIGHT).try_collect::<Vec<_>>().await?;
        let dialect = &self.remote.dialect;
        let ask = dialect.complete(self.key, upload, &tags);
        let read = async |response: Response<Incoming>| {
            let answer = whole(response, ANSWER_BYTES_MAX).await?;
            match dialect.completed(&answer.head, &answer.body) {
                Some(etag) => Ok(etag),
                // The head was sent before the store knew.
                None => Err(Failure::Refused(Box::new(Refusal::of(&**dialect, &answer)))),
            }
        };
        self.repeated(Verb::Put, || ask.clone(), read).await
    }

    async fn put_part(&self, upload: &str, number: u32, body: Bytes) -> Result<String, Failure> {
        let dialect = &self.remote.dialect;
        let make = || dialect.part(self.key, upload, number, body.clone());
        let read = async |response: Response<Incoming>| {
            let answer = whole(response, ANSWER_BYTES_MAX).await?;
            let lacks = || Failure::Broken("a part was answered without an ETag".to_owned());
            dialect.part_tag(&answer.head, upload, number).ok_or_else(lacks)
        };
        self.repeated(Verb::Put, make, read).await
    }

    /// Beside what goes on; whether it works is not waited for.
    fn abort(&self, upload: &str) {
        let Some(ask) = self.remote.dialect.abort(self.key, upload) else { return };
        let (remote, lane, limits) = (self.remote.clone(), self.lane, self.limits);
        let key = self.key.to_owned();
        rt::spawn(async move {
            let call = Call { remote: &remote, lane, limits, key: &key };
            let read = async |response| whole(response, ANSWER_BYTES_MAX).await.map(drop);
            match call.repeated(Verb::Delete, || ask.clone(), read).await {
                Err(failure) if failure.code() != Some(Code::NoSuchUpload) => {
                    eprintln!(
                        "celld: parts of a write that was given up stay in the bucket: {}",
                        failure.into_error(&key)
                    );
                }
                Ok(()) | Err(_) => {}
            }
        });
    }
}

fn split(range: Range<u64>, bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = range;
    (0..(end - start).div_ceil(bytes))
        .map(move |n| start + n * bytes..(start + (n + 1) * bytes).min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_of_it_once() {
        assert_eq!(split(0..0, 10).count(), 0);
        assert_eq!(split(3..13, 10).last(), Some(3..13));
        assert_eq!(split(3..24, 10).collect::<Vec<_>>(), [3..13, 13..23, 23..24]);
    }
}
