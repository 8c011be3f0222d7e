//! One direction of a WebSocket, between two tasks of a shard.
//!
//! Who can wait (a socket that is read, a tunnel) waits for room; JavaScript, whose `send()` cannot,
//! is let in up to a limit past which the socket is given up: a reader that is so slow is as good
//! as gone.
//! Units: weights, which are bytes and a little more (`super::weight`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use celld_v8host::SocketEvent;

use super::{is_last, weight};

/// Who can wait, waits while this much is in the pipe.
const WINDOW: usize = 64 << 10;
/// Who answers what it hears hears nothing more while this much of what it has said is on its way,
/// in the pipe and in front of it.
const BEHIND_MAX: usize = 1 << 20;
/// JavaScript may have this much waiting before its next message, in the pipe and in front of it.
const WAITING_MAX: usize = 16 << 20;

/// One end of a WebSocket.
pub(crate) struct Duplex {
    /// What this end says.
    pub sender: Sender,
    /// What this end hears.
    pub receiver: Receiver,
}

impl std::fmt::Debug for Duplex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Duplex")
    }
}

/// The two ends of a new WebSocket.
pub(crate) fn connect() -> (Duplex, Duplex) {
    let (first_sender, second_receiver) = pipe();
    let (second_sender, first_receiver) = pipe();
    let first = Duplex { sender: first_sender, receiver: first_receiver };
    let second = Duplex { sender: second_sender, receiver: second_receiver };
    (first, second)
}

fn pipe() -> (Sender, Receiver) {
    let shared = Rc::new(RefCell::new(Pipe::default()));
    (Sender(shared.clone()), Receiver(shared))
}

#[derive(Default)]
struct Pipe {
    queue: VecDeque<SocketEvent>,
    weight: usize,
    /// On its way into the pipe: an output gate holds it.
    reserved: usize,
    has_ended: bool,
    nobody_hears: bool,
    hears: Option<Waker>,
    says: Option<Waker>,
    /// Waits until nothing is reserved.
    settles: Option<Waker>,
}

impl Pipe {
    fn is_caught_up(&self) -> bool {
        self.weight + self.reserved <= BEHIND_MAX
    }
}

/// Where events go in.
pub(crate) struct Sender(Rc<RefCell<Pipe>>);

/// Where events come out.
pub(crate) struct Receiver(Rc<RefCell<Pipe>>);

impl Sender {
    /// Puts an event in, whatever is there already. After the last one, and when nobody hears any
    /// more, it goes nowhere.
    pub fn push(&self, event: SocketEvent) {
        let waker = {
            let mut pipe = self.0.borrow_mut();
            if pipe.has_ended || pipe.nobody_hears {
                return;
            }
            pipe.has_ended = is_last(&event);
            pipe.weight += weight(&event);
            pipe.queue.push_back(event);
            pipe.hears.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Puts the last event in, in place of what waits.
    pub fn give_up(&self, event: SocketEvent) {
        {
            let mut pipe = self.0.borrow_mut();
            pipe.queue.clear();
            pipe.weight = 0;
            // What was the last one has been taken back.
            pipe.has_ended = false;
        }
        self.push(event);
    }

    /// Waits for room, then puts the event in. `false`: nobody hears any more.
    pub async fn send(&self, event: SocketEvent) -> bool {
        let is_open = poll_fn(|cx| self.poll_ready(cx)).await;
        if is_open {
            self.push(event);
        }
        is_open
    }

    /// Ready when there is room (`true`), or when nobody hears any more (`false`).
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut pipe = self.0.borrow_mut();
        if pipe.nobody_hears || pipe.has_ended {
            return Poll::Ready(false);
        }
        if pipe.weight <= WINDOW {
            return Poll::Ready(true);
        }
        pipe.says = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when little enough waits for whoever says something to be asked for more, or when
    /// nobody hears any more. An echo is as slow as its client reads, and not given up for it.
    pub fn poll_caught_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut pipe = self.0.borrow_mut();
        if pipe.nobody_hears || pipe.has_ended || pipe.is_caught_up() {
            return Poll::Ready(());
        }
        pipe.says = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Makes room for something that will be pushed, or not, after [`Sender::unreserve`]. `false`:
    /// too much waits already.
    pub fn reserve(&self, weight: usize) -> bool {
        let mut pipe = self.0.borrow_mut();
        if pipe.weight + pipe.reserved > WAITING_MAX {
            return false;
        }
        pipe.reserved += weight;
        true
    }

    /// Takes back what was reserved.
    pub fn unreserve(&self, weight: usize) {
        let (settles, says) = {
            let mut pipe = self.0.borrow_mut();
            pipe.reserved = pipe.reserved.saturating_sub(weight);
            let settles = if pipe.reserved == 0 { pipe.settles.take() } else { None };
            let says = if pipe.is_caught_up() { pipe.says.take() } else { None };
            (settles, says)
        };
        for waker in [settles, says].into_iter().flatten() {
            waker.wake();
        }
    }

    /// Waits until everything that was reserved has been pushed, or never will be.
    pub async fn settled(&self) {
        poll_fn(|cx| {
            let mut pipe = self.0.borrow_mut();
            if pipe.reserved == 0 {
                return Poll::Ready(());
            }
            pipe.settles = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Whether the last event is in.
    pub fn has_ended(&self) -> bool {
        self.0.borrow().has_ended
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.push(SocketEvent::Lost);
    }
}

impl Receiver {
    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Option<SocketEvent> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// See [`Receiver::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<SocketEvent>> {
        let (event, waker) = {
            let mut pipe = self.0.borrow_mut();
            let Some(event) = pipe.queue.pop_front() else {
                if pipe.has_ended {
                    return Poll::Ready(None);
                }
                pipe.hears = Some(cx.waker().clone());
                return Poll::Pending;
            };
            pipe.weight -= weight(&event);
            let has_room = pipe.weight <= WINDOW;
            (event, if has_room { pipe.says.take() } else { None })
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Poll::Ready(Some(event))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let (unheard, waker) = {
            let mut pipe = self.0.borrow_mut();
            pipe.nobody_hears = true;
            pipe.weight = 0;
            (std::mem::take(&mut pipe.queue), pipe.says.take())
        };
        drop(unheard);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use celld_v8host::SocketMessage;

    use super::*;

    fn text(text: &str) -> SocketEvent {
        SocketEvent::Message(SocketMessage::Text(text.to_owned()))
    }

    fn poll(receiver: &mut Receiver) -> Poll<Option<String>> {
        let mut cx = Context::from_waker(Waker::noop());
        receiver.poll_next(&mut cx).map(|event| {
            event.map(|event| match event {
                SocketEvent::Message(SocketMessage::Text(text)) => text,
                other => format!("{other:?}"),
            })
        })
    }

    /// A waker, and how often it was woken.
    fn counting() -> (Waker, Arc<AtomicUsize>) {
        struct Counter(Arc<AtomicUsize>);
        impl Wake for Counter {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let woken = Arc::new(AtomicUsize::new(0));
        (Waker::from(Arc::new(Counter(woken.clone()))), woken)
    }

    fn is_ready(sender: &Sender) -> Poll<bool> {
        sender.poll_ready(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn events_come_out_in_order_and_nothing_after_the_last_one() {
        let (a, mut b) = connect();
        assert_eq!(poll(&mut b.receiver), Poll::Pending);
        a.sender.push(text("1"));
        a.sender.push(text("2"));
        a.sender.push(super::super::close(1000, ""));
        a.sender.push(text("late"));
        assert!(a.sender.has_ended());
        drop(a);
        assert_eq!(poll(&mut b.receiver), Poll::Ready(Some("1".into())));
        assert_eq!(poll(&mut b.receiver), Poll::Ready(Some("2".into())));
        let Poll::Ready(Some(close)) = poll(&mut b.receiver) else { panic!("no Close") };
        assert!(close.contains("1000"), "{close}");
        assert_eq!(poll(&mut b.receiver), Poll::Ready(None));
    }

    #[test]
    fn an_end_that_goes_away_is_lost_to_the_other() {
        let (a, mut b) = connect();
        drop(a);
        assert_eq!(poll(&mut b.receiver), Poll::Ready(Some("Lost".into())));
        assert_eq!(poll(&mut b.receiver), Poll::Ready(None));
        assert_eq!(is_ready(&b.sender), Poll::Ready(false));
        b.sender.push(text("nobody hears it"));
    }

    #[test]
    fn who_can_wait_waits_for_room_and_who_cannot_has_a_limit() {
        let (a, mut b) = connect();
        assert_eq!(is_ready(&a.sender), Poll::Ready(true));
        a.sender.push(text(&"x".repeat(WINDOW)));
        assert_eq!(is_ready(&a.sender), Poll::Pending);
        assert!(a.sender.reserve(WAITING_MAX), "the limit is for what waits before");
        assert!(!a.sender.reserve(1));
        let mut cx = Context::from_waker(Waker::noop());
        let mut settled = std::pin::pin!(a.sender.settled());
        assert!(settled.as_mut().poll(&mut cx).is_pending());
        a.sender.unreserve(WAITING_MAX);
        assert!(settled.as_mut().poll(&mut cx).is_ready());
        assert!(a.sender.reserve(1));
        assert!(poll(&mut b.receiver).is_ready());
        assert_eq!(is_ready(&a.sender), Poll::Ready(true));
    }

    #[test]
    fn who_answers_is_asked_for_more_when_little_waits() {
        let (a, mut b) = connect();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(a.sender.reserve(BEHIND_MAX));
        assert!(a.sender.poll_caught_up(&mut cx).is_ready());
        assert!(a.sender.reserve(1));
        assert!(a.sender.poll_caught_up(&mut cx).is_pending());
        let (waker, woken) = counting();
        let mut counted = Context::from_waker(&waker);
        assert!(a.sender.poll_caught_up(&mut counted).is_pending());
        a.sender.unreserve(1);
        assert_eq!(woken.load(Ordering::Relaxed), 1, "of what left the gate");
        a.sender.push(text(&"x".repeat(BEHIND_MAX)));
        a.sender.unreserve(BEHIND_MAX);
        assert!(a.sender.poll_caught_up(&mut counted).is_pending());
        assert!(poll(&mut b.receiver).is_ready());
        assert_eq!(woken.load(Ordering::Relaxed), 2, "of what was heard");
        assert!(a.sender.poll_caught_up(&mut counted).is_ready());
        a.sender.push(text(&"x".repeat(2 * BEHIND_MAX)));
        drop(b);
        assert!(a.sender.poll_caught_up(&mut counted).is_ready(), "nobody hears any more");
    }

    #[test]
    fn giving_up_drops_what_waits() {
        let (a, mut b) = connect();
        a.sender.push(text("1"));
        a.sender.give_up(SocketEvent::Lost);
        assert_eq!(poll(&mut b.receiver), Poll::Ready(Some("Lost".into())));
        assert_eq!(poll(&mut b.receiver), Poll::Ready(None));
    }
}
