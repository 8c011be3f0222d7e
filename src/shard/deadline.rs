//! Deadlines of what cells do. One that nobody keeps any more costs nothing.

use std::future::pending;
use std::time::Duration;

use celld_rt as rt;

/// Something happens at the end of a span, unless this is dropped before.
pub(crate) struct Deadline {
    _waiting: rt::Task<()>,
}

impl Deadline {
    /// Calls `act` after `span`, or up to 50 ms later. It may drop the deadline.
    pub fn after(span: Duration, act: impl FnOnce() + 'static) -> Self {
        let _waiting = rt::spawn_joined(async move {
            let _over = rt::limited(span, pending::<()>()).await;
            act();
        });
        Self { _waiting }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_deadline_that_is_dropped_leaves_nothing_behind() {
        rt::block_on(async {
            let kept = Rc::new(());
            let held = kept.clone();
            let deadline = Deadline::after(Duration::from_secs(3_600), move || drop(held));
            rt::yield_now().await;
            assert_eq!(Rc::strong_count(&kept), 2);
            drop(deadline);
            rt::yield_now().await;
            assert_eq!(Rc::strong_count(&kept), 1, "its task has ended");
        });
    }

    #[test]
    fn a_deadline_acts_once_and_may_drop_itself() {
        rt::block_on(async {
            let (tell, told) = rt::oneshot::channel();
            let place = Rc::new(RefCell::new(None));
            let of_act = place.clone();
            let deadline = Deadline::after(Duration::from_millis(5), move || {
                drop(of_act.take());
                tell.send(()).expect("the test waits");
            });
            *place.borrow_mut() = Some(deadline);
            told.await.expect("it acts");
            rt::yield_now().await;
            assert_eq!(Rc::strong_count(&place), 1, "its task has ended");
        });
    }
}
