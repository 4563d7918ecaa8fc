//! [`OwnWaker`] wakes the future that a poller runs in `block_on`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use super::call_table::WhoWaits;
use super::wakeup::Doorbell;

/// What a poller's `block_on` waits with, whichever future it runs: a wake that is left over from
/// the one before costs a poll for nothing.
pub(crate) struct OwnWaker {
    /// Woken by this poller's own turns, which is what nearly every call waits for.
    here: Cell<bool>,
    /// Woken through the waker, by any thread.
    anywhere: Arc<Woken>,
    waker: Waker,
}

impl OwnWaker {
    /// `bell` is rung when it is woken from anywhere.
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

    /// What a call notes down that is polled with this waker.
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

    /// Whether the future should be polled (again).
    pub(crate) fn take(&self) -> bool {
        // The look before the swap keeps a locked instruction out of empty turns.
        self.here.take()
            || (self.anywhere.flag.load(Ordering::Relaxed)
                && self.anywhere.flag.swap(false, Ordering::Acquire))
    }

    /// Whether [`take`](Self::take) would say so: for a last look before sleeping.
    pub(crate) fn is_woken(&self) -> bool {
        self.here.get() || self.anywhere.flag.load(Ordering::Relaxed)
    }
}

/// Whether the future that `block_on` runs was woken. The flag may be set by any thread; the release
/// of `wake` makes what it did before visible to the poll that follows.
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
