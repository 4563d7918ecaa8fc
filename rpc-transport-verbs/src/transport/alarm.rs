//! [`Alarm`]: how any thread ends a poller's sleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use crate::event_fd::EventFd;

/// Rung by any thread, turned off by the poller that it has woken. It stays on until then, so that
/// ringing it before the poller sleeps is not lost, and ringing it again costs no system call.
#[derive(Debug)]
pub(crate) struct Alarm {
    /// The file has been written, or is about to be, and was not emptied since.
    is_on: AtomicBool,
    file: EventFd,
}

impl Alarm {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            is_on: AtomicBool::new(false),
            file: EventFd::new()?,
        }))
    }

    pub(crate) fn ring(&self) {
        // Release: whoever is woken sees what was done before. Also if another thread is the one that
        // writes the file: `turn_off` reads what the last of all swaps before it has left.
        if !self.is_on.swap(true, Ordering::AcqRel) {
            // It cannot be full: it holds one at a time.
            self.file.write();
        }
    }

    /// When its file is readable.
    pub(crate) fn turn_off(&self) {
        // The file first. A ring between the two finds it on and leaves the file alone, and is heard by
        // the one who is turning it off here. The other way round, that ring's write would be emptied,
        // and the alarm stay on with nothing in its file: never to be heard again.
        self.file.empty();
        self.is_on.swap(false, Ordering::AcqRel);
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_heard(alarm: &Alarm, seconds: i64) -> bool {
        let patience = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(alarm, PollFlags::IN)], Some(&patience)).unwrap() == 1
    }

    #[test]
    fn it_is_heard_from_the_first_ring_until_it_is_turned_off() {
        let alarm = Alarm::new().unwrap();
        for _ in 0..2 {
            assert!(!is_heard(&alarm, 0));
            alarm.ring();
            alarm.ring();
            assert!(is_heard(&alarm, 0));
            alarm.turn_off();
        }
    }

    /// Two threads ring after each of their steps, at any moment: a sleeper that has seen fewer is
    /// woken for the rest.
    #[test]
    fn no_ring_is_lost_beside_one_who_turns_it_off() {
        const STEPS: u64 = 20_000;
        let alarm = Alarm::new().unwrap();
        let steps = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..STEPS {
                        steps.fetch_add(1, Ordering::Relaxed);
                        alarm.ring();
                    }
                });
            }
            while steps.load(Ordering::Relaxed) < 2 * STEPS {
                assert!(is_heard(&alarm, 20), "asleep for ever");
                alarm.turn_off();
            }
        });
    }
}
