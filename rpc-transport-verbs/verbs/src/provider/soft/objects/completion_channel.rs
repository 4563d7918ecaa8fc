//! Completion channels: armed completion queues raise their events here, and a thread can sleep
//! until they do.
//!
//! A channel is readable for three reasons, so its file is an epoll set of three files: its own
//! eventfd, which counts the events not yet taken, the context's end of the sockets with which
//! peers wake it, and the set of its TCP connections. A thread that one of the latter wakes handles
//! the peers' requests, whichever queue they are for. A sleeping thread thus does the device's work
//! itself, and the engine need not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use crate::provider::soft::context::channel_events::ChannelEvents;
use crate::provider::soft::process::node::domain::Domain;
use crate::system_error::epoll_add;
use crate::types::VerbsError;

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
        epoll_add(&readable, &events.count, data, epoll::EventFlags::IN)?;
        epoll_add(&readable, &domain.wake, data, epoll::EventFlags::IN)?;
        if let Some(files) = &domain.tcp_files {
            epoll_add(&readable, files, data, epoll::EventFlags::IN)?;
        }
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
            // The sockets are emptied before the look: see `wake`. The look may find work for another
            // channel of the context, or for a queue that is not armed; then this thread sleeps
            // again.
            self.domain.wake.drain();
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
