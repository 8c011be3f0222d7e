//! One connection: the task that drives it, and what it shares with the calls on it.
//!
//! The calls tell the machine what they want and wake the task; the task carries bytes between the
//! machine and the socket, and tells the calls what happened. What all calls of one round want goes
//! out in one write.
//!
//! Invariant: no borrow lives while a handler, a waker or the socket runs.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use celld_core::time::Mono;
use celld_rt as rt;
use celld_rt::tls::TlsStream;
use futures_lite::Future;
use futures_lite::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::error::{CallError, Cause};
use crate::frame::{CallId, CallKind, More, Refusal};
use crate::identity::Principal;
use crate::mux::{Event, Fate, Mux, OpenError, Patience, Side};

/// Plaintext that one read takes.
const READ_BYTES: usize = 64 * 1024;
/// Frames that go out in one write.
const WRITE_BYTES: usize = 64 * 1024;
/// Rounds of one connection before other tasks of the shard have their turn.
const ROUNDS_MAX: usize = 8;
/// Between two looks for silence.
const TICK: Duration = Duration::from_secs(1);
/// How long the other side may take to close after this one.
const LINGER: Duration = Duration::from_secs(2);

thread_local! {
    /// Between the decryption and the machine, which nothing comes between.
    static PLAIN: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

pub(crate) fn now() -> Mono {
    Mono::from_micros(rt::mono_us())
}

/// What a connection and its calls have in common.
pub(crate) struct Shared {
    peer: Rc<Principal>,
    mux: RefCell<Mux>,
    slots: RefCell<BTreeMap<CallId, Weak<Slot>>>,
    driver: RefCell<Option<Waker>>,
    /// The driver is at work, and looks for wishes before it rests.
    is_driving: Cell<bool>,
    /// This side wants the connection to end now.
    is_closing: Cell<bool>,
    /// Why the connection has ended.
    ended: RefCell<Option<Cause>>,
}

/// One call of a connection, as its handles see it.
pub(crate) struct Slot {
    pub shared: Rc<Shared>,
    pub call: CallId,
    state: RefCell<SlotState>,
}

#[derive(Default)]
struct SlotState {
    answer: Option<Bytes>,
    inbox: VecDeque<Bytes>,
    has_end: bool,
    can_send: bool,
    is_stopped: bool,
    over: Option<CallError>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    watcher: Option<Waker>,
}

/// A call that the other side has opened.
pub(crate) struct Opened {
    pub slot: Rc<Slot>,
    pub kind: CallKind,
    pub head: Bytes,
    pub wait_ms: u32,
}

/// Nothing can be sent any more.
pub(crate) enum NotSendable {
    /// The reader does not want it; the call goes on.
    Stopped,
    /// The call is over.
    Over(CallError),
}

impl Shared {
    pub fn new(side: Side, patience: Patience, peer: Principal) -> Rc<Self> {
        Rc::new(Self {
            peer: Rc::new(peer),
            mux: RefCell::new(Mux::new(side, patience, now())),
            slots: RefCell::default(),
            driver: RefCell::default(),
            is_driving: Cell::new(false),
            is_closing: Cell::new(false),
            ended: RefCell::default(),
        })
    }

    pub fn peer(&self) -> &Rc<Principal> {
        &self.peer
    }

    /// Whether new calls can be opened.
    pub fn is_open(&self) -> bool {
        !self.mux.borrow().is_going() && !self.is_closing.get()
    }

    pub fn open(
        self: &Rc<Self>,
        kind: CallKind,
        wait_ms: u32,
        head: Bytes,
        more: More,
    ) -> Result<Rc<Slot>, OpenError> {
        let call = self.mux.borrow_mut().open(kind, wait_ms, head, more)?;
        self.wake_driver();
        Ok(self.slot(call, More::Follows))
    }

    /// No more calls are taken; the connection ends when those that are here have.
    pub fn go_away(&self) {
        self.mux.borrow_mut().go_away();
        self.wake_driver();
    }

    /// Nobody opens calls any more: the connection ends after those that are here.
    pub fn retire(&self) {
        self.mux.borrow_mut().retire();
        self.wake_driver();
    }

    /// Ends the connection and all its calls.
    pub fn close(&self) {
        self.is_closing.set(true);
        self.wake_driver();
    }

    fn slot(self: &Rc<Self>, call: CallId, more: More) -> Rc<Slot> {
        let has_end = more == More::End;
        let state = SlotState { can_send: true, has_end, ..SlotState::default() };
        let slot = Rc::new(Slot { shared: self.clone(), call, state: RefCell::new(state) });
        self.slots.borrow_mut().insert(call, Rc::downgrade(&slot));
        slot
    }

    fn find(&self, call: CallId) -> Option<Rc<Slot>> {
        self.slots.borrow().get(&call).and_then(Weak::upgrade)
    }

    /// A wish, after which the driver may have something to send.
    fn wish<T>(&self, wish: impl FnOnce(&mut Mux) -> T) -> T {
        let mut mux = self.mux.borrow_mut();
        let result = wish(&mut mux);
        let wants_fill = mux.wants_fill();
        drop(mux);
        if wants_fill {
            self.wake_driver();
        }
        result
    }

    fn wake_driver(&self) {
        if self.is_driving.get() {
            return;
        }
        if let Some(driver) = &*self.driver.borrow() {
            driver.wake_by_ref();
        }
    }

    /// The connection is over, and with it all its calls.
    fn end(&self, cause: &Cause) {
        *self.ended.borrow_mut() = Some(cause.clone());
        let calls: Vec<_> = self.mux.borrow_mut().close().collect();
        for (call, fate) in calls {
            if let Some(slot) = self.find(call) {
                slot.end(CallError { fate, cause: cause.clone() });
            }
        }
    }
}

impl Slot {
    /// The head of the answer.
    pub fn poll_answer(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes, CallError>> {
        let mut state = self.state.borrow_mut();
        if let Some(head) = state.answer.take() {
            return Poll::Ready(Ok(head));
        }
        if let Some(error) = &state.over {
            return Poll::Ready(Err(error.clone()));
        }
        remember(&mut state.reader, cx);
        Poll::Pending
    }

    /// The next piece of the other side's body; `None` at its end.
    pub fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, CallError>> {
        let mut state = self.state.borrow_mut();
        if let Some(piece) = state.inbox.pop_front() {
            drop(state);
            self.shared.wish(|mux| mux.consumed(self.call, piece.len()));
            return Poll::Ready(Ok(Some(piece)));
        }
        if state.has_end {
            return Poll::Ready(Ok(None));
        }
        if let Some(error) = &state.over {
            return Poll::Ready(Err(error.clone()));
        }
        remember(&mut state.reader, cx);
        Poll::Pending
    }

    /// Whether the whole body of the other side is here, or was.
    pub fn has_come(&self) -> bool {
        self.state.borrow().has_end
    }

    /// Whether the whole body of the other side has been read.
    pub fn has_end(&self) -> bool {
        let state = self.state.borrow();
        state.has_end && state.inbox.is_empty()
    }

    /// Until a piece can be sent.
    pub fn poll_sendable(&self, cx: &mut Context<'_>) -> Poll<Result<(), NotSendable>> {
        let mut state = self.state.borrow_mut();
        if let Some(error) = &state.over {
            return Poll::Ready(Err(NotSendable::Over(error.clone())));
        }
        if state.is_stopped {
            return Poll::Ready(Err(NotSendable::Stopped));
        }
        if state.can_send {
            return Poll::Ready(Ok(()));
        }
        remember(&mut state.writer, cx);
        Poll::Pending
    }

    /// After [`Slot::poll_sendable`].
    pub fn send(&self, piece: Bytes) {
        self.state.borrow_mut().can_send = false;
        // Who does not want it is told of by the next `poll_sendable`.
        let _unwanted = self.shared.wish(|mux| mux.send(self.call, piece));
    }

    /// Until the call is over before its good end.
    pub fn poll_over(&self, cx: &mut Context<'_>) -> Poll<CallError> {
        let mut state = self.state.borrow_mut();
        if let Some(error) = &state.over {
            return Poll::Ready(error.clone());
        }
        remember(&mut state.watcher, cx);
        Poll::Pending
    }

    /// Tells the machine something of this call.
    pub fn wish<T>(&self, wish: impl FnOnce(&mut Mux, CallId) -> T) -> T {
        self.shared.wish(|mux| wish(mux, self.call))
    }

    /// As [`Self::wish`], if that ends the call, which is then over for all its handles.
    pub fn wish_end(&self, wish: impl FnOnce(&mut Mux, CallId) -> Option<Fate>, cause: Cause) {
        if let Some(fate) = self.wish(wish) {
            self.end(CallError { fate, cause });
        }
    }

    /// Ends the call on this side.
    pub fn give_up(&self, refusal: Refusal, cause: Cause) -> CallError {
        let error = CallError { fate: self.wish(|mux, call| mux.reset(call, refusal)), cause };
        self.end(error.clone());
        error
    }

    fn end(&self, error: CallError) {
        let mut state = self.state.borrow_mut();
        state.over.get_or_insert(error);
        let wakers = [state.reader.take(), state.writer.take(), state.watcher.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Changes what a reader waits for.
    fn bring(&self, change: impl FnOnce(&mut SlotState)) {
        let mut state = self.state.borrow_mut();
        change(&mut state);
        let waker = state.reader.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn let_write(&self, change: impl FnOnce(&mut SlotState)) {
        let mut state = self.state.borrow_mut();
        change(&mut state);
        let waker = state.writer.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.slots.borrow_mut().remove(&self.call);
    }
}

fn remember(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        Some(_) | None => *place = Some(cx.waker().clone()),
    }
}

/// The task of a connection: carries bytes until it ends, and closes the socket. `take` gets the
/// calls that the other side opens, and may begin to answer at once.
pub(crate) async fn drive(
    shared: Rc<Shared>,
    mut stream: TlsStream,
    side: Side,
    take: impl FnMut(Opened),
) {
    let ending = {
        let mut driver = Driver {
            shared: &shared,
            stream: &mut stream,
            side,
            take,
            out: Vec::new(),
            sent: 0,
            events: VecDeque::new(),
            opened: Vec::new(),
            busy_at: now(),
        };
        let mut tick = pin!(rt::sleep(TICK));
        poll_fn(|cx| {
            // What has come is read before the silence is judged: this side may have been busy.
            let mut polled = driver.poll(cx);
            while polled.is_pending() && tick.as_mut().poll(cx).is_ready() {
                tick.set(rt::sleep(TICK));
                if let Some(ending) = driver.tick() {
                    return Poll::Ready(ending);
                }
                polled = driver.poll(cx);
            }
            polled
        })
        .await
    };
    shared.driver.borrow_mut().take();
    match ending {
        Ending::Broken(cause) => shared.end(&cause),
        Ending::Done => {
            shared.end(&Cause::Closed);
            close_gently(&mut stream, side).await;
        }
    }
}

/// A socket that is closed while bytes are on their way to it answers with a reset, which may
/// destroy what it has sent before: so the answerer waits for the caller to close as well.
async fn close_gently(stream: &mut TlsStream, side: Side) {
    let closing = async {
        stream.close().await?;
        if side == Side::Answerer {
            let mut rest = [0; 4_096];
            while stream.read(&mut rest).await? > 0 {}
        }
        io::Result::Ok(())
    };
    let _in_any_case = rt::timeout(LINGER, closing).await;
}

/// How a connection ends.
enum Ending {
    /// From outside, or for a fault.
    Broken(Cause),
    /// Nothing is left to do on it.
    Done,
}

struct Driver<'a, F> {
    shared: &'a Rc<Shared>,
    stream: &'a mut TlsStream,
    side: Side,
    take: F,
    /// Frames, of which `sent` bytes are handed to TLS.
    out: Vec<u8>,
    sent: usize,
    events: VecDeque<Event>,
    /// Calls of which `take` is to hear when all else is told: what came with them is there then.
    opened: Vec<Opened>,
    /// When there was a call, or its handles, last.
    busy_at: Mono,
}

impl<F: FnMut(Opened)> Driver<'_, F> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        self.shared.is_driving.set(true);
        let result = self.work(cx);
        self.shared.is_driving.set(false);
        match result {
            Ok(ending) => ending.map(|()| Ending::Done),
            Err(cause) => Poll::Ready(Ending::Broken(cause)),
        }
    }

    /// `Ready`: nothing is left to do here.
    fn work(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Cause> {
        remember(&mut self.shared.driver.borrow_mut(), cx);
        for _ in 0..ROUNDS_MAX {
            if self.shared.is_closing.get() {
                return Ok(Poll::Ready(()));
            }
            let has_read = self.read(cx);
            // What came before a fault has come.
            self.happen();
            let has_read = has_read?;
            let has_written = self.write(cx)?;
            self.happen();
            if !has_read && !has_written {
                let mux = self.shared.mux.borrow();
                let is_flushed = self.out.is_empty();
                // Who was told may have had wishes at once.
                if is_flushed && mux.wants_fill() {
                    continue;
                }
                let is_done = is_flushed && mux.is_going() && mux.is_idle();
                return Ok(if is_done { Poll::Ready(()) } else { Poll::Pending });
            }
        }
        cx.waker().wake_by_ref();
        Ok(Poll::Pending)
    }

    /// Takes what the socket has, once.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Cause> {
        if !self.shared.mux.borrow().wants_bytes() {
            return Ok(false);
        }
        PLAIN.with_borrow_mut(|plain| match Pin::new(&mut *self.stream).poll_read(cx, plain) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => Err(Cause::Lost("it was closed by the other side".into())),
            Poll::Ready(Ok(len)) => {
                let mut mux = self.shared.mux.borrow_mut();
                mux.receive(&plain[..len], now(), &mut self.events).map_err(Cause::Protocol)?;
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(Cause::of_use(&error)),
        })
    }

    /// Gives the socket what it takes of one filling.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, Cause> {
        let of_use = |error: io::Error| Cause::of_use(&error);
        if self.out.is_empty() {
            self.shared.mux.borrow_mut().fill(&mut self.out, WRITE_BYTES, &mut self.events);
        }
        let mut has_written = false;
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            match Pin::new(&mut *self.stream).poll_write(cx, rest).map_err(of_use)? {
                Poll::Ready(len) => self.sent += len,
                Poll::Pending => return Ok(has_written),
            }
            has_written = true;
        }
        self.out.clear();
        self.sent = 0;
        // Pending: the socket is full, and wakes this task.
        let _full = Pin::new(&mut *self.stream).poll_flush(cx).map_err(of_use)?;
        Ok(has_written)
    }

    /// Tells the calls.
    fn happen(&mut self) {
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Opened { call, kind, more, wait_ms, head } => {
                    let slot = self.shared.slot(call, more);
                    self.opened.push(Opened { slot, kind, head, wait_ms });
                }
                Event::Replied { call, more, head } => self.tell(call, |slot| {
                    slot.bring(|state| {
                        state.answer = Some(head);
                        state.has_end = more == More::End;
                    });
                }),
                Event::Data { call, more, bytes } => self.tell(call, |slot| {
                    slot.bring(|state| {
                        state.has_end = more == More::End;
                        if !bytes.is_empty() {
                            state.inbox.push_back(bytes);
                        }
                    });
                }),
                Event::Writable(call) => {
                    self.tell(call, |slot| slot.let_write(|state| state.can_send = true));
                }
                Event::Stopped(call) => {
                    self.tell(call, |slot| slot.let_write(|state| state.is_stopped = true));
                }
                Event::Over { call, refusal } => {
                    self.tell(call, |slot| slot.end(CallError::of_refusal(refusal)));
                }
                Event::GoneAway => {}
            }
        }
        self.opened.drain(..).for_each(&mut self.take);
    }

    fn tell(&self, call: CallId, tell: impl FnOnce(&Slot)) {
        if let Some(slot) = self.shared.find(call) {
            tell(&slot);
        }
    }

    fn tick(&mut self) -> Option<Ending> {
        let mut mux = self.shared.mux.borrow_mut();
        let now = now();
        if mux.tick(now).is_err() {
            return Some(Ending::Broken(Cause::Silent));
        }
        if !(mux.is_idle() && self.out.is_empty() && self.shared.slots.borrow().is_empty()) {
            self.busy_at = now;
            return None;
        }
        self.out = Vec::new();
        self.stream.shrink();
        let is_over = self.side == Side::Caller && now.since(self.busy_at) >= mux.patience().idle;
        is_over.then_some(Ending::Done)
    }
}
