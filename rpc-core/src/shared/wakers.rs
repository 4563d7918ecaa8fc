//! [`Wakers`]: the callers to wake at the end of a turn.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;

use crate::stream::core::wake_all;

/// The wakers of the callers whose calls have ended in this turn, of all channels of a poller. All are
/// woken at the end of the turn: a woken caller may preempt this thread at once, and then finds all
/// responses that are available.
#[derive(Clone, Debug, Default)]
pub(super) struct Wakers(Rc<RefCell<Vec<Waker>>>);

impl Wakers {
    #[inline]
    pub(super) fn add(&self, wakers: impl IntoIterator<Item = Waker>) {
        self.0.borrow_mut().extend(wakers);
    }

    /// Wakes the callers, while nothing is borrowed: a waker is the caller's code, which may drop a
    /// channel of this poller.
    #[inline]
    pub(super) fn wake(&self) {
        if !self.0.borrow().is_empty() {
            let mut wakers = self.0.take();
            wake_all(wakers.drain(..));
            let mut added = self.0.borrow_mut();
            if added.is_empty() {
                *added = wakers;
            }
        }
    }
}
