//! Completion channels: armed completion queues raise their events here, and a thread can sleep
//! until they do.
//!
//! A channel is readable for two reasons, so its file is an epoll set of two eventfds: its own,
//! which counts the events not yet taken, and its context's, which peers write. A thread that the
//! second one wakes handles the peers' requests, whichever queue they are for. A sleeping thread
//! thus does the device's work itself, and the engine need not.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

use super::domain::Domain;
use crate::verbs::VerbsError;

/// The events of one channel.
#[derive(Debug)]
pub(super) struct ChannelEvents {
    /// The numbers of the queues, in the order in which they raised events.
    raised: Mutex<VecDeque<u32>>,
    /// An eventfd semaphore whose count is the number of events; read and written under the lock.
    count: OwnedFd,
}

impl ChannelEvents {
    fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        Ok(Self {
            // One event for each armed queue: a handful. The capacity avoids allocating on the path
            // of a message that wakes a sleeper.
            raised: Mutex::new(VecDeque::with_capacity(16)),
            count: eventfd(0, flags)?,
        })
    }

    fn raised(&self) -> MutexGuard<'_, VecDeque<u32>> {
        // Nothing panics under the lock; if it did, the queue would still be consistent.
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises an event. This happens once for each arming, so it is not on the data path.
    pub(super) fn raise(&self, cq: u32) {
        let mut raised = self.raised();
        raised.push_back(cq);
        // The counter cannot overflow: memory would run out first.
        let _ = rustix::io::write(&self.count, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> Option<u32> {
        let mut raised = self.raised();
        let cq = raised.pop_front()?;
        self.count_one_less();
        Some(cq)
    }

    /// Removes the events of a queue that is being destroyed.
    pub(super) fn forget(&self, cq: u32) {
        let mut raised = self.raised();
        let before = raised.len();
        raised.retain(|other| *other != cq);
        for _ in raised.len()..before {
            self.count_one_less();
        }
    }

    fn count_one_less(&self) {
        // The read never blocks: the count is at least the number of events in the list.
        let _ = rustix::io::read(&self.count, &mut [0_u8; 8]);
    }
}

#[derive(Debug)]
pub(crate) struct CompletionChannel {
    domain: Arc<Domain>,
    events: Arc<ChannelEvents>,
    readable: OwnedFd,
}

impl CompletionChannel {
    pub(super) fn new(domain: &Arc<Domain>) -> io::Result<Self> {
        let events = ChannelEvents::new()?;
        let readable = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&readable, &events.count, data, epoll::EventFlags::IN)?;
        epoll::add(&readable, &domain.wake, data, epoll::EventFlags::IN)?;
        Ok(Self {
            domain: Arc::clone(domain),
            events: Arc::new(events),
            readable,
        })
    }

    pub(super) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    pub(super) fn events(&self) -> Arc<ChannelEvents> {
        Arc::clone(&self.events)
    }

    /// Returns the number of the next queue that raised an event; `None` after `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<Option<u32>, VerbsError> {
        self.domain.node.check()?;
        let failed = |source: io::Error| VerbsError::Os {
            call: "get_cq_event",
            source,
        };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(cq) = self.events.take() {
                return Ok(Some(cq));
            }
            // The file is emptied before the look: see `wake`. The look may find work for another
            // channel of the context, or for a queue that is not armed; then this thread sleeps
            // again.
            self.domain.wake.empty();
            self.domain.enter()?.progress();
            if let Some(cq) = self.events.take() {
                return Ok(Some(cq));
            }
            let left = match deadline {
                None => None,
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    Some(Timespec::try_from(left).map_err(|e| failed(io::Error::other(e)))?)
                }
            };
            let mut files = [PollFd::new(&self.readable, PollFlags::IN)];
            match poll(&mut files, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
