//! [`Wakeup`]: the eventfd with which any thread wakes a sleeping poller.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use verbline_verbs::for_transport::EventFd;

/// The notification of a poller: any thread sets it, and the woken poller clears it. It stays set
/// until then, so a notification sent before the poller sleeps is not lost, and a repeated
/// notification costs no system call.
#[derive(Debug)]
pub(crate) struct Wakeup {
    /// True from just before the file is written until just after it is drained.
    is_set: AtomicBool,
    file: EventFd,
}

impl Wakeup {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            is_set: AtomicBool::new(false),
            file: EventFd::new()?,
        }))
    }

    pub(crate) fn notify(&self) {
        // Release: the woken thread sees everything this thread did before. This also holds if
        // another thread writes the file: the swap in `clear` reads the value of the latest
        // swap, and a chain of swaps is one release sequence.
        if !self.is_set.swap(true, Ordering::AcqRel) {
            // The write cannot block: the counter is at most 1.
            self.file.write();
        }
    }

    /// Clears the notification. Called when the file is readable.
    pub(crate) fn clear(&self) {
        // Drain the file before clearing the flag. If `notify` runs between the two, it finds the
        // flag set and does not write the file; that is fine, because the poller is awake and
        // checks for work next. In the other order, `notify` would write the file between the two,
        // the read would drain it, and the flag would stay set over an empty file: no later
        // `notify` could wake the poller.
        self.file.empty();
        self.is_set.swap(false, Ordering::AcqRel);
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_notified(wakeup: &Wakeup, seconds: i64) -> bool {
        let patience = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(wakeup, PollFlags::IN)], Some(&patience)).unwrap() == 1
    }

    #[test]
    fn it_is_readable_from_the_first_notification_until_it_is_cleared() {
        let wakeup = Wakeup::new().unwrap();
        for _ in 0..2 {
            assert!(!is_notified(&wakeup, 0));
            wakeup.notify();
            wakeup.notify();
            assert!(is_notified(&wakeup, 0));
            wakeup.clear();
        }
    }

    /// Two threads notify after each of their steps, with arbitrary timing: a sleeper that has not
    /// seen all the steps is always woken again.
    #[test]
    fn no_notification_is_lost_beside_one_who_clears_it() {
        const STEPS: u64 = 20_000;
        let wakeup = Wakeup::new().unwrap();
        let steps = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..STEPS {
                        steps.fetch_add(1, Ordering::Relaxed);
                        wakeup.notify();
                    }
                });
            }
            while steps.load(Ordering::Relaxed) < 2 * STEPS {
                assert!(is_notified(&wakeup, 20), "asleep for ever");
                wakeup.clear();
            }
        });
    }
}
