//! Completion channels (`ibv_get_cq_event(3)`): non-blocking reads of the kernel's event file,
//! behind a wait with an optional timeout.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::async_events::do_not_block;
use super::handle::Handle;
use super::os_error;
use super::queue_events::Channel;
use crate::types::VerbsError;

#[derive(Debug)]
pub(crate) struct CompletionChannel {
    pub(super) channel: Arc<Channel>,
}

impl CompletionChannel {
    pub(super) fn create(handle: &Arc<Handle>) -> Result<Self, VerbsError> {
        const CALL: &str = "create_comp_channel";
        handle.fork_guard.check()?;
        // SAFETY: `handle` keeps the context open for the duration of the call.
        let raw = unsafe { (handle.library.ibv_create_comp_channel)(handle.raw()) };
        if raw.is_null() {
            return Err(os_error(CALL));
        }
        let channel = Arc::new(Channel {
            raw,
            queues: Mutex::default(),
            handle: Arc::clone(handle),
        });
        do_not_block(channel.fd()).map_err(|source| VerbsError::Os { call: CALL, source })?;
        Ok(Self { channel })
    }

    pub(super) fn is_of(&self, handle: &Arc<Handle>) -> bool {
        Arc::ptr_eq(&self.channel.handle, handle)
    }

    /// Returns the number of the next queue that raised an event; `None` after `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<Option<u32>, VerbsError> {
        self.channel.handle.fork_guard.check()?;
        let failed = |source: io::Error| VerbsError::Os {
            call: "get_cq_event",
            source,
        };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(cq) = self.channel.take().map_err(failed)? {
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
            let file = self.channel.fd();
            let mut files = [PollFd::from_borrowed_fd(file, PollFlags::IN)];
            match poll(&mut files, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            // The device was removed from the machine: no event will arrive, and waiting would not
            // end.
            let revents = files[0].revents();
            if revents.intersects(PollFlags::ERR | PollFlags::NVAL)
                && !revents.contains(PollFlags::IN)
            {
                return Err(failed(Errno::NODEV.into()));
            }
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }
}
