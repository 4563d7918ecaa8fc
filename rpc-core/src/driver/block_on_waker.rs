//! [`BlockOnWaker`]: wakes the future that a poller runs in `block_on`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use super::call_table::WakeTarget;
use super::wakeup::Wakeup;

/// The waker of a poller's `block_on`, shared by all futures that it runs. A wake left over from an
/// earlier future only causes a spurious poll.
pub(crate) struct BlockOnWaker {
    /// Set when one of the poller's own turns wakes the future, which is the case for nearly every
    /// call.
    local: Cell<bool>,
    /// Set through the waker, from any thread.
    remote: Arc<RemoteFlag>,
    waker: Waker,
    /// True if a part of a long message has arrived since a future ended. If not, no sender waits
    /// for a release.
    has_received_long: Cell<bool>,
}

impl BlockOnWaker {
    /// Creates the waker. `wakeup` is notified when it is woken from any thread.
    pub(crate) fn new(wakeup: Arc<Wakeup>) -> Self {
        let remote = Arc::new(RemoteFlag {
            flag: AtomicBool::new(false),
            wakeup,
        });
        Self {
            local: Cell::new(false),
            waker: Waker::from(Arc::clone(&remote)),
            has_received_long: Cell::new(false),
            remote,
        }
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns the target to wake for a call that is polled with this waker.
    pub(crate) fn target_of(&self, waker: &Waker) -> WakeTarget {
        if waker.will_wake(&self.waker) {
            WakeTarget::BlockOn
        } else {
            WakeTarget::Task(waker.clone())
        }
    }

    pub(crate) fn wake(&self) {
        self.local.set(true);
    }

    /// Notes that a part of a long message has arrived.
    pub(crate) fn note_long(&self) {
        self.has_received_long.set(true);
    }

    /// Returns true if a part of a long message has arrived since the last call.
    pub(crate) fn take_long(&self) -> bool {
        self.has_received_long.take()
    }

    /// Returns true if the future should be polled, and clears the flags.
    pub(crate) fn take(&self) -> bool {
        // The load before the swap keeps the locked instruction out of empty turns.
        self.local.take()
            || (self.remote.flag.load(Ordering::Relaxed)
                && self.remote.flag.swap(false, Ordering::Acquire))
    }

    /// Returns the same as [`take`](Self::take), but does not clear the flags. Used for the last
    /// check before sleeping.
    pub(crate) fn is_woken(&self) -> bool {
        self.local.get() || self.remote.flag.load(Ordering::Relaxed)
    }
}

/// Whether the future that `block_on` runs was woken. Any thread may set the flag; the release
/// store in `wake` makes its earlier writes visible to the poll that follows.
struct RemoteFlag {
    flag: AtomicBool,
    wakeup: Arc<Wakeup>,
}

impl Wake for RemoteFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.flag.store(true, Ordering::Release);
        self.wakeup.notify();
    }
}
