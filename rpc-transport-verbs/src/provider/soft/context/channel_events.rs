//! [`ChannelEvents`]: what armed completion queues raise, until it is taken.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event_fd::EventFd;

/// The events of one channel.
#[derive(Debug)]
pub(crate) struct ChannelEvents {
    /// The queues' numbers, in the order in which they raised them.
    raised: Mutex<VecDeque<u32>>,
    /// A semaphore with as many units as there are events: written and read under the lock.
    pub(crate) count: EventFd,
}

impl ChannelEvents {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            // An event for each queue that is armed: a handful. On the way of a message that wakes
            // a sleeper, nothing is allocated.
            raised: Mutex::new(VecDeque::with_capacity(16)),
            count: EventFd::semaphore()?,
        })
    }

    fn raised(&self) -> MutexGuard<'_, VecDeque<u32>> {
        // Nothing panics under the lock; if it did, the queue would still be whole.
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Once for each arming, so not on the data path.
    pub(crate) fn raise(&self, cq: u32) {
        let mut raised = self.raised();
        raised.push_back(cq);
        // The counter cannot be full: memory would be, before.
        self.count.write();
    }

    pub(crate) fn take(&self) -> Option<u32> {
        let mut raised = self.raised();
        let cq = raised.pop_front()?;
        self.count_one_less();
        Some(cq)
    }

    /// Forgets the events of a queue that is destroyed.
    pub(crate) fn forget(&self, cq: u32) {
        let mut raised = self.raised();
        let before = raised.len();
        raised.retain(|other| *other != cq);
        for _ in raised.len()..before {
            self.count_one_less();
        }
    }

    fn count_one_less(&self) {
        // It never blocks, and holds as much as the list did.
        self.count.empty();
    }
}
