//! [`OwnWaker`]: wakes the future that a poller runs in `block_on`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use super::call_table::WhoWaits;
use super::wakeup::Doorbell;

/// The waker of a poller's `block_on`, shared by all futures that it runs. A wake left over from an
/// earlier future only causes a spurious poll.
pub(crate) struct OwnWaker {
    /// Set when one of the poller's own turns wakes the future, which is the case for nearly every
    /// call.
    here: Cell<bool>,
    /// Set through the waker, from any thread.
    anywhere: Arc<Woken>,
    waker: Waker,
}

impl OwnWaker {
    /// Creates the waker. `bell` is notified when it is woken from any thread.
    pub(crate) fn new(bell: Arc<Doorbell>) -> Self {
        let anywhere = Arc::new(Woken {
            flag: AtomicBool::new(false),
            bell,
        });
        Self {
            here: Cell::new(false),
            waker: Waker::from(Arc::clone(&anywhere)),
            anywhere,
        }
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns the target to wake for a call that is polled with this waker.
    pub(crate) fn waiting(&self, waker: &Waker) -> WhoWaits {
        if waker.will_wake(&self.waker) {
            WhoWaits::BlockOn
        } else {
            WhoWaits::Task(waker.clone())
        }
    }

    pub(crate) fn wake(&self) {
        self.here.set(true);
    }

    /// Returns true if the future should be polled, and clears the flags.
    pub(crate) fn take(&self) -> bool {
        // The load before the swap keeps the locked instruction out of empty turns.
        self.here.take()
            || (self.anywhere.flag.load(Ordering::Relaxed)
                && self.anywhere.flag.swap(false, Ordering::Acquire))
    }

    /// Returns the same as [`take`](Self::take), but does not clear the flags. Used for the last
    /// check before sleeping.
    pub(crate) fn is_woken(&self) -> bool {
        self.here.get() || self.anywhere.flag.load(Ordering::Relaxed)
    }
}

/// Whether the future that `block_on` runs was woken. Any thread may set the flag; the release
/// store in `wake` makes its earlier writes visible to the poll that follows.
struct Woken {
    flag: AtomicBool,
    bell: Arc<Doorbell>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.flag.store(true, Ordering::Release);
        self.bell.ring();
    }
}
