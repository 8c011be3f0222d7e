//! Objects piece by piece: a reader that reads ahead, and a writer that sends parts while the next
//! one fills.
//!
//! A reader asks for ranges of one version, so that no connection waits for whoever takes the bytes.
//! The parts of a writer are carried by a task of their own, which also removes them when the writer
//! fails or is dropped.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use celld_core::cas::Etag;
use celld_rt as rt;
use futures_util::future::poll_fn;

use super::answer::Failure;
use super::large::{PART_BYTES, PARTS_MAX};
use super::metrics::Verb;
use super::object::Ranged;
use super::{Call, Remote};
use crate::error::StoreError;
use crate::options::{Lane, Limits};
use crate::stream::spoilt;

/// Of one request of a reader: a round trip is small beside it, and so is it beside memory.
const PIECE_BYTES: u64 = 4 << 20;
/// Pieces that are there or on their way before they are wanted.
const AHEAD: usize = 2;

/// A [`Call`] that outlives its caller.
#[derive(Clone)]
struct Owned {
    remote: Arc<Remote>,
    lane: Lane,
    limits: Limits,
    key: String,
}

impl Owned {
    fn of(call: &Call<'_>) -> Self {
        let Call { remote, lane, limits, key } = *call;
        Self { remote: remote.clone(), lane, limits, key: key.to_owned() }
    }

    fn call(&self) -> Call<'_> {
        Call { remote: &self.remote, lane: self.lane, limits: self.limits, key: &self.key }
    }
}

/// See the module.
pub(crate) struct RemoteReader {
    object: Owned,
    etag: Etag,
    size: u64,
    /// The first piece, until it is taken.
    first: Bytes,
    /// Up to here the object was asked for.
    asked: u64,
    ahead: VecDeque<Ahead>,
    has_failed: bool,
}

/// A piece on its way.
struct Ahead {
    piece: rt::oneshot::Receiver<Result<Bytes, StoreError>>,
    /// Ends with it.
    _task: rt::Task<()>,
}

impl Call<'_> {
    /// Reads the first piece, which tells what there is.
    pub async fn reader(&self) -> Result<Option<RemoteReader>, StoreError> {
        self.check(Verb::Get)?;
        let (first, etag, size) = match self.ranged(&(0..PIECE_BYTES), None).await {
            Ok(Ranged::Bytes(bytes, etag, size)) => (bytes, etag, size),
            // Not even one byte: only a whole read tells its version.
            Ok(Ranged::Beyond(_)) => {
                let Some(object) = self.get().await? else { return Ok(None) };
                let size = object.body.len() as u64;
                (object.body, Some(object.etag), size)
            }
            Err(StoreError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let etag = etag.ok_or_else(|| {
            let what = "an object was read without an ETag".to_owned();
            StoreError::Broken { key: self.key.to_owned(), what }
        })?;
        let asked = first.len() as u64;
        let (object, ahead) = (Owned::of(self), VecDeque::new());
        let has_failed = false;
        Ok(Some(RemoteReader { object, etag, size, first, asked, ahead, has_failed }))
    }
}

impl RemoteReader {
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn etag(&self) -> &Etag {
        &self.etag
    }

    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.has_failed {
            return Err(spoilt(&self.object.key));
        }
        self.read_ahead();
        if !self.first.is_empty() {
            return Ok(Some(std::mem::take(&mut self.first)));
        }
        let Some(next) = self.ahead.front_mut() else { return Ok(None) };
        let piece = (&mut next.piece).await;
        self.ahead.pop_front();
        let read = piece.unwrap_or_else(|_| Err(spoilt(&self.object.key)));
        self.has_failed = read.is_err();
        if self.has_failed {
            // What comes behind a gap is of no use.
            self.ahead.clear();
        } else {
            self.read_ahead();
        }
        read.map(Some)
    }

    fn read_ahead(&mut self) {
        while self.ahead.len() < AHEAD && self.asked < self.size {
            let range = self.asked..self.size.min(self.asked + PIECE_BYTES);
            self.asked = range.end;
            let (sender, piece) = rt::oneshot::channel();
            let (object, etag) = (self.object.clone(), self.etag.clone());
            let task = rt::spawn_joined(async move {
                let read = object.call().part_of(&range, &etag).await;
                // Whoever dropped the reader does not want it.
                let _gone = sender.send(read);
            });
            self.ahead.push_back(Ahead { piece, _task: task });
        }
    }
}

/// See the module.
pub(crate) struct RemoteWriter {
    object: Owned,
    /// Less than a part, or a whole one of which it is not known whether it is the last.
    filling: BytesMut,
    carried: Option<Carried>,
    sent: u64,
    /// A write is under way, or was given up half-way.
    is_torn: bool,
}

/// What the task that sends the parts is told.
struct Carried {
    parts: rt::mpsc::Sender<Bytes>,
    is_whole: Rc<Cell<bool>>,
    done: rt::oneshot::Receiver<Result<Etag, Failure>>,
}

impl RemoteWriter {
    pub fn begin(call: &Call<'_>) -> Result<Self, StoreError> {
        call.check(Verb::Put)?;
        let (object, filling) = (Owned::of(call), BytesMut::new());
        Ok(Self { object, filling, carried: None, sent: 0, is_torn: false })
    }

    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), StoreError> {
        if std::mem::replace(&mut self.is_torn, true) {
            return Err(spoilt(&self.object.key));
        }
        const PART: usize = PART_BYTES as usize;
        while self.filling.len() + bytes.len() > PART {
            let part = if self.filling.is_empty() {
                bytes.split_to(PART)
            } else {
                let rest = bytes.split_to(PART - self.filling.len());
                self.filling.extend_from_slice(&rest);
                std::mem::take(&mut self.filling).freeze()
            };
            self.send(part).await?;
        }
        self.filling.extend_from_slice(&bytes);
        self.is_torn = false;
        Ok(())
    }

    pub async fn finish(mut self) -> Result<Etag, StoreError> {
        if self.is_torn {
            return Err(spoilt(&self.object.key));
        }
        let last = std::mem::take(&mut self.filling).freeze();
        if self.carried.is_none() {
            return self.object.call().put(last).await;
        }
        if !last.is_empty() {
            self.send(last).await?;
        }
        let Some(Carried { parts, is_whole, done }) = self.carried else {
            return Err(spoilt(&self.object.key));
        };
        is_whole.set(true);
        drop(parts);
        ended(&self.object.key, done).await
    }

    /// Waits until the part may be on its way.
    async fn send(&mut self, part: Bytes) -> Result<(), StoreError> {
        self.sent += 1;
        if self.sent > PARTS_MAX {
            let size = PARTS_MAX * PART_BYTES;
            return Err(StoreError::TooLarge { key: self.object.key.clone(), size });
        }
        let object = &self.object;
        let carried = self.carried.get_or_insert_with(|| carry(object.clone()));
        let parts = &mut carried.parts;
        let ready = poll_fn(|cx| parts.poll_ready(cx)).await;
        if ready.and_then(|()| parts.start_send(part)).is_ok() {
            return Ok(());
        }
        let Some(Carried { done, .. }) = self.carried.take() else { unreachable!("it was there") };
        let failed = ended(&self.object.key, done).await;
        Err(failed.err().unwrap_or_else(|| spoilt(&self.object.key)))
    }
}

async fn ended(
    key: &str,
    done: rt::oneshot::Receiver<Result<Etag, Failure>>,
) -> Result<Etag, StoreError> {
    match done.await {
        Ok(done) => done.map_err(|failure| failure.into_error(key)),
        Err(_) => Err(spoilt(key)),
    }
}

/// Starts the task that sends the parts. It ends when the writer is finished, or gone.
fn carry(object: Owned) -> Carried {
    // One part waits beside those under way.
    let (parts, coming) = rt::mpsc::channel(0);
    let (sender, done) = rt::oneshot::channel();
    let is_whole = Rc::new(Cell::new(false));
    let whole = is_whole.clone();
    rt::spawn(async move {
        let call = object.call();
        let (upload, end) = match call.begin().await {
            Ok(upload) => {
                let end = call.put_parts(&upload, coming, &whole).await;
                (Some(upload), end)
            }
            Err(failure) => (None, Err(failure)),
        };
        let left = upload.filter(|_| end.is_err());
        // Nobody asks for the end of what was dropped; and nobody waits for what follows.
        let _gone = sender.send(end);
        if let Some(upload) = left {
            call.abort(&upload).await;
        }
    });
    Carried { parts, is_whole, done }
}
