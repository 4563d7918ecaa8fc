//! Completion channels: where armed completion queues raise their events, and where a thread sleeps
//! until they do.
//!
//! A channel is readable for two reasons, so its file is an epoll set of two eventfds: its own, which
//! counts the events that nobody has taken, and that of its context, which peers write. Whoever is woken
//! by the second carries out what the peers want, whichever queue it is for; so one that sleeps does the
//! device's work itself, and the engine has none with it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

use super::domain::Domain;
use crate::verbs::types::VerbsError;

/// The events of one channel.
#[derive(Debug)]
pub(crate) struct ChannelEvents {
    /// The queues' numbers, in the order in which they raised them.
    raised: Mutex<VecDeque<u32>>,
    /// A semaphore with as many units as there are events: written and read under the lock.
    count: OwnedFd,
}

impl ChannelEvents {
    fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        Ok(Self {
            // An event for each queue that is armed: a handful. On the way of a message that wakes
            // a sleeper, nothing is allocated.
            raised: Mutex::new(VecDeque::with_capacity(16)),
            count: eventfd(0, flags)?,
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
        let _ = rustix::io::write(&self.count, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> Option<u32> {
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
    pub(crate) fn new(domain: &Arc<Domain>) -> io::Result<Self> {
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

    pub(crate) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    pub(crate) fn events(&self) -> Arc<ChannelEvents> {
        Arc::clone(&self.events)
    }

    /// The number of the next queue that raised an event; `None` after `timeout`.
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
            // Emptied before the look: see `wake`. What the look brings may be for another channel of
            // the context, or for a queue that is not armed, and then this one goes on sleeping.
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
