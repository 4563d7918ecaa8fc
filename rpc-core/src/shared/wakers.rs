//! [`Wakers`]: the callers to wake at the end of a turn, or of some turns.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use crate::poller::block_on::wake_threads_after;
use crate::stream::wakers::wake_all;

/// Callers and turns for which wakes are held at most. They bound what a response waits for the others.
const MOST_CALLERS: usize = 32;
const MOST_TURNS: u32 = 4;

/// The wakers of the callers whose calls have ended, of all channels of a poller. They are woken at the end of
/// the first turn that finds nothing more: to wake a thread takes as long as to carry several calls, and a
/// woken thread may preempt this one at once. The longer the wakes are held, the more responses each finds.
#[derive(Clone, Debug, Default)]
pub(super) struct Wakers(Rc<Held>);

#[derive(Debug, Default)]
struct Held {
    wakers: RefCell<Vec<Waker>>,
    /// Turns since the first of them was added.
    turns: Cell<u32>,
}

impl Wakers {
    #[inline]
    pub(super) fn add(&self, wakers: impl IntoIterator<Item = Waker>) {
        self.0.wakers.borrow_mut().extend(wakers);
    }

    /// Wakes the callers unless this turn has found something, so that the next one follows at once and may
    /// end more calls.
    #[inline]
    pub(super) fn end_turn(&self, found_any: bool) {
        let callers = self.0.wakers.borrow().len();
        if callers == 0 {
            return;
        }
        let turns = self.0.turns.get() + 1;
        self.0.turns.set(turns);
        if !found_any || callers >= MOST_CALLERS || turns >= MOST_TURNS {
            self.wake();
        }
    }

    /// Wakes the callers, while nothing is borrowed: a waker is the caller's code, which may drop a
    /// channel of this poller.
    pub(super) fn wake(&self) {
        self.0.turns.set(0);
        let mut wakers = self.0.wakers.take();
        wake_threads_after(|| wake_all(wakers.drain(..)));
        let mut added = self.0.wakers.borrow_mut();
        if added.is_empty() {
            *added = wakers;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many callers were woken by the end of each turn, which adds `callers` and finds something or
    /// not.
    fn woken(turns: &[(usize, bool)]) -> Vec<usize> {
        let (wakers, counter) = (Wakers::default(), Arc::new(Counter::default()));
        let each = turns.iter().map(|&(callers, found_any)| {
            wakers.add((0..callers).map(|_| Waker::from(Arc::clone(&counter))));
            wakers.end_turn(found_any);
            counter.0.load(Ordering::Relaxed)
        });
        each.collect()
    }

    #[test]
    fn callers_are_woken_once_a_turn_finds_nothing() {
        assert_eq!(woken(&[(1, false)]), [1]);
        assert_eq!(woken(&[(1, true), (2, true), (0, false)]), [0, 0, 3]);
    }

    #[test]
    fn a_caller_waits_for_few_turns_and_few_others() {
        let most = (MOST_CALLERS, true);
        assert_eq!(woken(&[most, (1, true)]), [MOST_CALLERS; 2]);
        let one = (1, true);
        let busy = [one; 2 * MOST_TURNS as usize];
        assert_eq!(woken(&busy), [0, 0, 0, 4, 4, 4, 4, 8]);
        // Turns without callers do not count.
        assert_eq!(woken(&[(0, true), (0, true), (0, true), one, one]), [0; 5]);
    }
}
