//! Limits that are seldom reached, at the price of two places in a list.
//!
//! A timer of glommio's is an allocation and a place in two maps, and each round of an executor
//! splits one of the maps. Most limits are of seconds and over in a millisecond: here each takes a
//! slot, gives it back, and one task of the executor looks at them all when the first may be over,
//! [`LATE_MAX`] after that look at the earliest.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::time::TimedOut;
use crate::{sleep, spawn};

/// Looks are apart by this at least, so that many limits that end one after the other are one look.
const LATE_MAX: Duration = Duration::from_millis(50);

/// Runs `future` for at most `span` and [`LATE_MAX`]. For what is nearly always done much earlier;
/// otherwise see [`timeout`](crate::timeout).
///
/// # Errors
/// The time was over first; the future is dropped.
pub fn limited<F: Future>(span: Duration, future: F) -> Limited<F> {
    Limited { future, span, limit: None }
}

pin_project_lite::pin_project! {
    /// What [`limited`] returns.
    #[must_use = "futures do nothing unless polled"]
    pub struct Limited<F> {
        #[pin]
        future: F,
        span: Duration,
        // Begun when the future is not done at once, as many are: who reads what has come already.
        limit: Option<Limit>,
    }
}

impl<F: Future> Future for Limited<F> {
    type Output = Result<F::Output, TimedOut>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(done) = this.future.poll(cx) {
            return Poll::Ready(Ok(done));
        }
        let limit = this.limit.get_or_insert_with(|| Limit::begin(*this.span, cx.waker()));
        limit.poll(cx).map(|()| Err(TimedOut))
    }
}

/// The end of a span.
pub(crate) struct Limit {
    at: Instant,
    slot: Option<Slot>,
}

/// A place in the list of an executor.
struct Slot {
    executor: usize,
    index: usize,
}

/// Those of one executor that are waited for.
#[derive(Default)]
struct List {
    /// Glommio's number of the executor.
    executor: usize,
    /// `None`: free, or over.
    waiting: Vec<Option<(Instant, Waker)>>,
    free: Vec<usize>,
    /// When the next look is, if one is to come, and who looks.
    look: Option<(Instant, Option<Waker>)>,
}

thread_local! {
    static LIST: RefCell<List> = RefCell::default();
}

impl Limit {
    fn begin(span: Duration, waker: &Waker) -> Self {
        let at = Instant::now() + span;
        Self { at, slot: Some(wait_for(at, waker)) }
    }

    pub(crate) fn at(at: Instant) -> Self {
        Self { at, slot: None }
    }

    /// Ready when it is over.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let is_over = match &self.slot {
            Some(slot) => LIST.with_borrow_mut(|list| list.is_over(slot, cx.waker())),
            None => {
                if self.at <= Instant::now() {
                    return Poll::Ready(());
                }
                self.slot = Some(wait_for(self.at, cx.waker()));
                false
            }
        };
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            // With the thread, the list is gone.
            let _gone = LIST.try_with(|list| list.borrow_mut().give_back(slot));
        }
    }
}

impl List {
    fn is_over(&mut self, slot: &Slot, waker: &Waker) -> bool {
        if self.executor != slot.executor {
            return true;
        }
        match &mut self.waiting[slot.index] {
            None => true,
            Some((_, known)) => {
                known.clone_from(waker);
                false
            }
        }
    }

    fn give_back(&mut self, slot: &Slot) {
        if self.executor == slot.executor {
            self.waiting[slot.index] = None;
            self.free.push(slot.index);
        }
    }

    /// Takes out what is over at `now`, and says when the earliest of the others is.
    fn look(&mut self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let (mut over, mut next) = (Vec::new(), None::<Instant>);
        for place in &mut self.waiting {
            match place {
                Some((at, _)) if *at > now => next = Some(next.map_or(*at, |next| next.min(*at))),
                Some(_) => over.extend(place.take().map(|(_, waker)| waker)),
                None => {}
            }
        }
        (over, next)
    }
}

fn wait_for(at: Instant, waker: &Waker) -> Slot {
    let executor = glommio::executor().id();
    let (index, earlier, begin) = LIST.with_borrow_mut(|list| {
        if list.executor != executor {
            *list = List { executor, ..List::default() };
        }
        let place = Some((at, waker.clone()));
        let index = match list.free.pop() {
            Some(index) => {
                list.waiting[index] = place;
                index
            }
            None => {
                list.waiting.push(place);
                list.waiting.len() - 1
            }
        };
        match &mut list.look {
            None => {
                list.look = Some((at, None));
                (index, None, true)
            }
            Some((look, looker)) if at < *look => {
                *look = at;
                (index, looker.take(), false)
            }
            Some(_) => (index, None, false),
        }
    });
    if let Some(looker) = earlier {
        looker.wake();
    }
    if begin {
        spawn(look_until_none());
    }
    Slot { executor, index }
}

/// Ends when nothing is waited for.
async fn look_until_none() {
    loop {
        wait_for_look().await;
        let (over, next) = LIST.with_borrow_mut(|list| {
            let now = Instant::now();
            let (over, next) = list.look(now);
            list.look = next.map(|next| (next.max(now + LATE_MAX), None));
            (over, next)
        });
        over.into_iter().for_each(Waker::wake);
        if next.is_none() {
            return;
        }
    }
}

/// Waits until the time of the next look, which may be set earlier meanwhile.
async fn wait_for_look() {
    loop {
        let Some(at) = LIST.with_borrow(|list| list.look.as_ref().map(|(at, _)| *at)) else {
            return;
        };
        let mut timer = pin!(sleep(at.saturating_duration_since(Instant::now())));
        let is_moved = poll_fn(|cx| {
            let is_moved = LIST.with_borrow_mut(|list| match &mut list.look {
                Some((now, looker)) if *now == at => {
                    *looker = Some(cx.waker().clone());
                    false
                }
                Some(_) | None => true,
            });
            if is_moved { Poll::Ready(true) } else { timer.as_mut().poll(cx).map(|()| false) }
        });
        if !is_moved.await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block_on, spawn_joined};

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn what_is_done_in_time_leaves_nothing_behind() {
        block_on(async {
            for _ in 0..1_000 {
                assert_eq!(limited(LONG, sleep(Duration::ZERO)).await, Ok(()));
            }
            LIST.with_borrow(|list| assert!(list.waiting.len() <= 1, "one place is used again"));
        });
    }

    #[test]
    fn limits_end_in_their_order_also_behind_longer_ones() {
        block_on(async {
            let long = spawn_joined(limited(LONG, std::future::pending::<()>()));
            let begun = Instant::now();
            let tasks: Vec<_> = [SHORT * 4, SHORT, SHORT * 2]
                .map(|span| spawn_joined(limited(span, std::future::pending::<()>())))
                .into_iter()
                .collect();
            for (task, least) in tasks.into_iter().zip([4, 1, 2]) {
                assert_eq!(task.join().await, Some(Err(TimedOut)));
                assert!(begun.elapsed() >= SHORT * least);
            }
            drop(long);
        });
    }

    #[test]
    fn a_second_executor_of_the_thread_begins_anew() {
        for _ in 0..3 {
            block_on(async {
                crate::spawn(async {
                    let _never = limited(LONG, std::future::pending::<()>()).await;
                });
                let over = limited(SHORT, std::future::pending::<()>()).await;
                assert_eq!(over, Err(TimedOut));
            });
        }
    }
}
