//! Objects that are too large for one request: read and written in parts, some at a time.
//!
//! Invariant: what is read is of one version, or an error; an object that is written appears whole
//! or not at all. Each part is a request of its own, with the limits of the verb.
//!
//! The end of a write is asked for again when its answer is lost; the upload may be over by then. So
//! each carries a mark, which the object has as metadata: who finds its own has made it.
//!
//! A write that fails or is given up takes its parts with it. It leaves them behind when the store
//! cannot be told, or the process ends: buckets should have a rule that removes them ("abort
//! incomplete multipart uploads").

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use celld_core::cas::Etag;
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use http::Response;
use hyper::body::Incoming;

use super::Call;
use super::answer::{Failure, Refusal};
use super::attempt::whole;
use super::dialect::{Code, Part};
use super::metrics::Verb;
use super::object::Ranged;
use crate::error::StoreError;

/// Of one request. Large enough that a round trip is small beside it.
pub(super) const PART_BYTES: u64 = 8 << 20;
/// Parts of one object under way at once: enough to fill a link, and a bound for memory.
const PARTS_IN_FLIGHT: usize = 4;
/// As all stores have it.
pub(super) const PARTS_MAX: u64 = 10_000;
/// Of an answer that names an upload, or a new object.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// An object that comes in parts.
pub(super) struct Upload {
    /// The store's name of it.
    name: String,
    /// What the object will carry, and no other one has.
    mark: String,
}

impl Call<'_> {
    /// The bytes `wanted` of the version `tag`, which has them all; `read` are those before.
    pub(super) async fn get_parts(
        &self,
        wanted: Range<u64>,
        tag: &Etag,
        read: BytesMut,
    ) -> Result<Bytes, StoreError> {
        let mut all = read;
        let ranges =
            split(wanted, PART_BYTES).map(|range| async move { self.part_of(&range, tag).await });
        let mut parts = stream::iter(ranges).buffered(PARTS_IN_FLIGHT);
        while let Some(part) = parts.try_next().await? {
            all.extend_from_slice(&part);
        }
        Ok(all.freeze())
    }

    /// The bytes `range` of the version `tag`, which has them all; one request.
    pub(super) async fn part_of(
        &self,
        range: &Range<u64>,
        tag: &Etag,
    ) -> Result<Bytes, StoreError> {
        let (bytes, size) = match self.ranged(range, Some(tag)).await? {
            Ranged::Bytes(bytes, _, size) => (bytes, size),
            Ranged::Beyond(size) => (Bytes::new(), size),
        };
        if bytes.len() as u64 == range.end - range.start {
            return Ok(bytes);
        }
        let what = format!("one version had {} bytes and then {size}", range.end);
        Err(StoreError::Broken { key: self.key.to_owned(), what })
    }

    /// Begins an object that comes in parts.
    pub(super) async fn begin(&self) -> Result<Upload, Failure> {
        let dialect = &self.remote.dialect;
        let random = getrandom::u64();
        let random = random.map_err(|error| Failure::Unsigned(error.to_string()))?;
        let mark = format!("{random:016x}");
        let Some(ask) = dialect.begin(self.key, &mark) else {
            return Ok(Upload { name: mark.clone(), mark });
        };
        let read = async |response: Response<Incoming>| {
            let answer = whole(response, ANSWER_BYTES_MAX).await?;
            let upload = dialect.upload(&answer.body);
            upload.map_err(|fault| Failure::Malformed(format!("a new upload: {fault}")))
        };
        let name = self.repeated(Verb::Put, || ask.clone(), read).await?;
        Ok(Upload { name, mark })
    }

    /// Sends what comes from `parts`, and makes the object if `is_whole` says at their end that
    /// they are all. Otherwise the upload is left, to be aborted.
    pub(super) async fn put_parts(
        &self,
        upload: &Upload,
        mut parts: impl Stream<Item = Bytes> + Unpin,
        is_whole: &Cell<bool>,
    ) -> Result<Etag, Failure> {
        let failed = Cell::new(false);
        let until_failed = stream::poll_fn(|cx| match failed.get() {
            true => Poll::Ready(None),
            false => parts.poll_next_unpin(cx),
        });
        let numbered = until_failed.zip(stream::iter(1..));
        let mut sent = numbered
            .map(|(part, number)| self.put_part(&upload.name, number, part))
            .buffered(PARTS_IN_FLIGHT);
        let (mut tags, mut fault) = (Vec::new(), None);
        // Those under way are waited for even so: one that arrives behind the abort would stay.
        while let Some(tag) = sent.next().await {
            match tag {
                Ok(tag) => tags.push(tag),
                Err(failure) => {
                    failed.set(true);
                    fault.get_or_insert(failure);
                }
            }
        }
        if let Some(failure) = fault {
            return Err(failure);
        }
        if !is_whole.get() {
            return Err(Failure::NotSent(io::Error::other("whoever wrote it has given it up")));
        }
        self.complete(upload, &tags).await
    }

    async fn complete(&self, upload: &Upload, tags: &[String]) -> Result<Etag, Failure> {
        let dialect = &self.remote.dialect;
        let ask = dialect.complete(self.key, &upload.name, tags);
        let read = async |response: Response<Incoming>| {
            let answer = whole(response, ANSWER_BYTES_MAX).await?;
            match dialect.completed(&answer.head, &answer.body) {
                Some(etag) => Ok(etag),
                // The head was sent before the store knew.
                None => Err(Failure::Refused(Box::new(Refusal::of(&**dialect, &answer)))),
            }
        };
        match self.repeated(Verb::Put, || ask.clone(), read).await {
            Err(failure) if !failure.did_not_apply() => self.made_by(upload).await.ok_or(failure),
            end => end,
        }
    }

    /// The version of the object, if it is what this upload has made.
    async fn made_by(&self, upload: &Upload) -> Option<Etag> {
        let dialect = &self.remote.dialect;
        let make = || dialect.get(self.key, &Part::Range(0..1, None));
        let read = async |response: Response<Incoming>| {
            let answer = whole(response, ANSWER_BYTES_MAX).await?;
            let is_ours = dialect.mark(&answer.head) == Some(&upload.mark);
            Ok(if is_ours { dialect.etag(&answer.head) } else { None })
        };
        self.repeated(Verb::GetRange, make, read).await.ok()?
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

    /// Removes the parts of an upload.
    pub(super) async fn abort(&self, upload: &Upload) {
        let Some(ask) = self.remote.dialect.abort(self.key, &upload.name) else { return };
        let read = async |response| whole(response, ANSWER_BYTES_MAX).await.map(drop);
        match self.repeated(Verb::Delete, || ask.clone(), read).await {
            Err(failure) if failure.code() != Some(Code::NoSuchUpload) => {
                celld_rt::log!(
                    "celld: parts of a write that was given up stay in the bucket: {}",
                    failure.into_error(self.key)
                );
            }
            Ok(()) | Err(_) => {}
        }
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
