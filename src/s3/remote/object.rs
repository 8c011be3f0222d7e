//! The verbs on objects.

use std::io;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use celld_core::cas::{CasOutcome, Etag, Guard};
use celld_core::retry::Retry;
use celld_rt as rt;
use http::header::CONTENT_RANGE;
use http::{Response, StatusCode};
use hyper::body::{Body as _, Incoming};

use super::Call;
use super::answer::{Answer, Failure, content_range};
use super::attempt::{Within, deadline_of, whole};
use super::dialect::{Ask, Code, Part};
use super::large::PART_BYTES;
use super::metrics::Verb;
use super::stream::RemoteWriter;
use crate::error::StoreError;
use crate::{GET_BYTES_MAX, Object};

/// Of an answer to what deletes many.
const DELETED_BYTES_MAX: u64 = 4 << 20;
/// Of an answer that should be empty.
const EMPTY_BYTES_MAX: u64 = 64 << 10;
/// Keys of one deletion, as on S3.
const DELETE_KEYS_MAX: usize = 1_000;
/// Deletions one by one under way at once.
const DELETES_MAX: usize = 8;

/// An answer to a ranged read.
pub(super) enum Ranged {
    /// Those that the object has, the version that they are of, and its length.
    Bytes(Bytes, Option<Etag>, u64),
    /// It has none of them; its length.
    Beyond(u64),
}

/// An answer to a read.
enum Read {
    Whole(Object),
    /// Better read in parts: its version and its length.
    Large(Etag, u64),
}

impl Call<'_> {
    pub async fn get(&self) -> Result<Option<Object>, StoreError> {
        self.check(Verb::Get)?;
        let dialect = &self.remote.dialect;
        let make = || dialect.get(self.key, &Part::Whole);
        let read = async |response: Response<Incoming>| {
            if response.status() != StatusCode::OK {
                return Err(unexpected("a read", response.status()));
            }
            let claimed = response.body().size_hint().lower();
            let (head, body) = response.into_parts();
            let lacks = || Failure::Broken("an object was read without an ETag".to_owned());
            let etag = dialect.etag(&head).ok_or_else(lacks)?;
            if claimed > PART_BYTES {
                // The connection is lost, which is little beside what follows.
                return Ok(Read::Large(etag, claimed));
            }
            let Answer { body, .. } =
                whole(Response::from_parts(head, body), GET_BYTES_MAX).await?;
            Ok(Read::Whole(Object { body, etag }))
        };
        match self.repeated(Verb::Get, make, read).await {
            Ok(Read::Whole(object)) => Ok(Some(object)),
            Ok(Read::Large(_, size)) if size > GET_BYTES_MAX => {
                Err(StoreError::TooLarge { key: self.key.to_owned(), size })
            }
            Ok(Read::Large(etag, size)) => {
                let body = self.get_parts(0..size, &etag, BytesMut::new()).await?;
                Ok(Some(Object { body, etag }))
            }
            Err(failure) if failure.code() == Some(Code::NoSuchKey) => Ok(None),
            Err(failure) => Err(failure.into_error(self.key)),
        }
    }

    pub async fn get_range(&self, wanted: Range<u64>) -> Result<Bytes, StoreError> {
        self.check(Verb::GetRange)?;
        let short =
            |size| StoreError::Range { key: self.key.to_owned(), wanted: wanted.clone(), size };
        let length = wanted.end.saturating_sub(wanted.start);
        if length == 0 || length > GET_BYTES_MAX {
            let size = self.size().await?;
            if wanted.start > wanted.end || wanted.end > size {
                return Err(short(size));
            }
            if length > 0 {
                return Err(StoreError::TooLarge { key: self.key.to_owned(), size: length });
            }
            return Ok(Bytes::new());
        }
        let first = wanted.start..wanted.end.min(wanted.start + PART_BYTES);
        match self.ranged(&first, None).await? {
            Ranged::Beyond(size) => Err(short(size)),
            Ranged::Bytes(_, _, size) if wanted.end > size => Err(short(size)),
            Ranged::Bytes(bytes, ..) if first.end == wanted.end => Ok(bytes),
            Ranged::Bytes(bytes, Some(etag), _) => {
                let rest = first.end..wanted.end;
                self.get_parts(rest, &etag, BytesMut::from(bytes)).await
            }
            Ranged::Bytes(_, None, _) => {
                let what = "an object was read without an ETag".to_owned();
                Err(StoreError::Broken { key: self.key.to_owned(), what })
            }
        }
    }

    /// The length of the object.
    async fn size(&self) -> Result<u64, StoreError> {
        let make = || self.remote.dialect.get(self.key, &Part::Range(0..1, None));
        let read = async |response: Response<Incoming>| {
            let answer = whole(response, EMPTY_BYTES_MAX).await?;
            match range_of(&answer) {
                Some((.., size)) => Ok(size),
                None => Err(Failure::Broken("a ranged read names no Content-Range".to_owned())),
            }
        };
        match self.repeated(Verb::GetRange, make, read).await {
            Ok(size) => Ok(size),
            // Not even one byte.
            Err(Failure::Refused(refusal)) if refusal.is_bad_range() => {
                Ok(refusal.size.unwrap_or(0))
            }
            Err(failure) => Err(self.missing_or(failure)),
        }
    }

    /// One request for as many of the bytes as there are. `tag`: of this version only.
    pub(super) async fn ranged(
        &self,
        wanted: &Range<u64>,
        tag: Option<&Etag>,
    ) -> Result<Ranged, StoreError> {
        let length = wanted.end - wanted.start;
        let dialect = &self.remote.dialect;
        let make = || dialect.get(self.key, &Part::Range(wanted.clone(), tag));
        let read = async |response: Response<Incoming>| {
            let answer = whole(response, length).await.map_err(|failure| match failure {
                Failure::TooLong(_) => wrong_range(wanted, "more bytes"),
                other => other,
            })?;
            if answer.head.status != StatusCode::PARTIAL_CONTENT {
                return Err(wrong_range(wanted, "a status other than 206"));
            }
            let Some((start, end, size)) = range_of(&answer) else {
                return Err(wrong_range(wanted, "no Content-Range"));
            };
            let count = end.checked_sub(start);
            if (start, end) != (wanted.start, wanted.end.min(size))
                || count != Some(answer.body.len() as u64)
            {
                return Err(wrong_range(wanted, "other bytes"));
            }
            let etag = dialect.etag(&answer.head);
            Ok(Ranged::Bytes(answer.body, etag, size))
        };
        match self.repeated(Verb::GetRange, make, read).await {
            Ok(ranged) => Ok(ranged),
            Err(Failure::Refused(refusal)) if refusal.is_bad_range() => match refusal.size {
                Some(size) => Ok(Ranged::Beyond(size)),
                None => Ok(Ranged::Beyond(self.size().await?)),
            },
            Err(Failure::Refused(refusal)) if tag.is_some() && refusal.is_precondition() => {
                let source = io::Error::other("another took its place while it was read");
                Err(StoreError::Unreachable { key: self.key.to_owned(), source })
            }
            Err(failure) => Err(self.missing_or(failure)),
        }
    }

    pub async fn put(&self, body: Bytes) -> Result<Etag, StoreError> {
        self.check(Verb::Put)?;
        if body.len() as u64 > PART_BYTES {
            return Box::pin(self.put_large(body)).await;
        }
        let dialect = &self.remote.dialect;
        let make = || dialect.put(self.key, None, body.clone());
        let read = async |response: Response<Incoming>| {
            let answer = whole(response, EMPTY_BYTES_MAX).await?;
            let lacks = || Failure::Broken("a write was answered without an ETag".to_owned());
            dialect.etag(&answer.head).ok_or_else(lacks)
        };
        let done = self.repeated(Verb::Put, make, read).await;
        done.map_err(|failure| failure.into_error(self.key))
    }

    /// Through a writer: whoever is tired of waiting would leave its parts behind.
    async fn put_large(&self, body: Bytes) -> Result<Etag, StoreError> {
        let mut writer = RemoteWriter::begin(self)?;
        writer.write(body).await?;
        writer.finish().await
    }

    pub async fn put_if(&self, guard: &Guard, body: Bytes) -> Result<CasOutcome, StoreError> {
        self.check(Verb::PutIf)?;
        let dialect = &self.remote.dialect;
        let deadline = deadline_of(self.limits);
        let mut retry = Retry::new(1, deadline);
        let admitted = self.admitted(&mut retry).await;
        admitted.map_err(|failure| failure.into_error(self.key))?;
        let ask = dialect.put(self.key, Some(guard), body);
        let read = async |response: Response<Incoming>| {
            // What its body says is of no use, and need not arrive.
            Ok(dialect.etag(&response.into_parts().0))
        };
        // Once. Whether it may be sent again, only a read can tell, and that is the caller's.
        let within = Within { phase: self.limits.deadline, deadline };
        let failure = match self.once(Verb::PutIf, ask, within, read).await {
            Ok(Some(etag)) => return Ok(CasOutcome::Applied(etag)),
            // It has applied, and a read will tell the version.
            Ok(None) => return Ok(self.unknown()),
            Err(failure) => failure,
        };
        if let Failure::Refused(refusal) = &failure {
            let absent = *guard == Guard::Absent;
            match refusal.code {
                _ if refusal.is_precondition() => return Ok(CasOutcome::Refused),
                Some(Code::Exists) if absent => return Ok(CasOutcome::Refused),
                Some(Code::NoSuchKey) if !absent => return Ok(CasOutcome::Refused),
                Some(Code::NoSuchKey) => {
                    let what = format!("a create of what is not there was answered {refusal}");
                    return Err(StoreError::Broken { key: self.key.to_owned(), what });
                }
                Some(_) | None => {}
            }
        }
        if failure.did_not_apply() {
            return Err(failure.into_error(self.key));
        }
        Ok(self.unknown())
    }

    fn unknown(&self) -> CasOutcome {
        self.remote.metrics.unknown.add();
        CasOutcome::Unknown
    }

    pub async fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        self.check(Verb::Delete)?;
        for keys in keys.chunks(DELETE_KEYS_MAX) {
            let many = if keys.len() > 1 { self.remote.dialect.delete_many(keys) } else { None };
            match many {
                Some(ask) => self.delete_many(&ask, keys).await?,
                None => self.delete_each(keys).await?,
            }
        }
        Ok(())
    }

    async fn delete_many(&self, ask: &Ask, keys: &[String]) -> Result<(), StoreError> {
        let dialect = &self.remote.dialect;
        let read = async |response: Response<Incoming>| {
            let answer = whole(response, DELETED_BYTES_MAX).await?;
            let left = dialect.not_deleted(&answer.body);
            left.map_err(|fault| Failure::Malformed(format!("an answer to a deletion: {fault}")))
        };
        match self.repeated(Verb::Delete, || ask.clone(), read).await {
            Ok(None) => Ok(()),
            Ok(Some(name)) if dialect.code(&name) == Code::NoSuchKey => Ok(()),
            Ok(Some(_)) => self.delete_each(keys).await,
            Err(failure) if failure.code() == Some(Code::NotBuilt) => self.delete_each(keys).await,
            Err(failure) => Err(failure.into_error(self.key)),
        }
    }

    async fn delete_each(&self, keys: &[String]) -> Result<(), StoreError> {
        for keys in keys.chunks(DELETES_MAX) {
            let tasks: Vec<_> = keys
                .iter()
                .map(|key| {
                    let (remote, key) = (self.remote.clone(), key.clone());
                    let (lane, limits) = (self.lane, self.limits);
                    rt::spawn_joined(async move {
                        Call { remote: &remote, lane, limits, key: &key }.delete_one().await
                    })
                })
                .collect();
            for task in tasks {
                let lost = || Failure::Malformed("a task of ours ended".to_owned());
                task.join().await.ok_or_else(|| lost().into_error(self.key))??;
            }
        }
        Ok(())
    }

    async fn delete_one(&self) -> Result<(), StoreError> {
        let make = || self.remote.dialect.delete(self.key);
        let read = async |response| whole(response, EMPTY_BYTES_MAX).await.map(drop);
        match self.repeated(Verb::Delete, make, read).await {
            Ok(()) => Ok(()),
            Err(failure) if failure.code() == Some(Code::NoSuchKey) => Ok(()),
            Err(failure) => Err(failure.into_error(self.key)),
        }
    }

    fn missing_or(&self, failure: Failure) -> StoreError {
        match failure.code() {
            Some(Code::NoSuchKey) => StoreError::Missing { key: self.key.to_owned() },
            Some(_) | None => failure.into_error(self.key),
        }
    }
}

fn range_of(answer: &Answer) -> Option<(u64, u64, u64)> {
    content_range(answer.head.headers.get(CONTENT_RANGE)?.to_str().ok()?)
}

fn wrong_range(wanted: &Range<u64>, what: &str) -> Failure {
    let Range { start, end } = wanted;
    Failure::Broken(format!("a read of the bytes {start}..{end} was answered with {what}"))
}

fn unexpected(what: &str, status: StatusCode) -> Failure {
    Failure::Malformed(format!("{what} was answered with status {status}"))
}
