//! [`ChannelEvents`]: the events that armed completion queues have raised and that no thread has
//! taken yet.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event_fd::EventFd;

/// The events of one channel.
#[derive(Debug)]
pub(crate) struct ChannelEvents {
    /// The numbers of the queues, in the order in which they raised events.
    raised: Mutex<VecDeque<u32>>,
    /// An eventfd semaphore whose count is the number of events; read and written under the lock.
    pub(crate) count: EventFd,
}

impl ChannelEvents {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            // One event for each armed queue: a handful. The capacity avoids allocating on the path
            // of a message that wakes a sleeper.
            raised: Mutex::new(VecDeque::with_capacity(16)),
            count: EventFd::semaphore()?,
        })
    }

    fn raised(&self) -> MutexGuard<'_, VecDeque<u32>> {
        // Nothing panics under the lock; if it did, the queue would still be consistent.
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises an event. This happens once for each arming, so it is not on the data path.
    pub(crate) fn raise(&self, cq: u32) {
        let mut raised = self.raised();
        raised.push_back(cq);
        // The counter cannot overflow: memory would run out first.
        self.count.write();
    }

    pub(crate) fn take(&self) -> Option<u32> {
        let mut raised = self.raised();
        let cq = raised.pop_front()?;
        self.count_one_less();
        Some(cq)
    }

    /// Removes the events of a queue that is being destroyed.
    pub(crate) fn remove_queue(&self, cq: u32) {
        let mut raised = self.raised();
        let before = raised.len();
        raised.retain(|other| *other != cq);
        for _ in raised.len()..before {
            self.count_one_less();
        }
    }

    fn count_one_less(&self) {
        // The read never blocks: the count is at least the number of events in the list.
        let _ = self.count.take();
    }
}
