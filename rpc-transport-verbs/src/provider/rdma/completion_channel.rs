//! Completion channels (`ibv_get_cq_event(3)`): non-blocking reads of the kernel's event file,
//! behind a wait with an optional timeout.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdma_sys::{ibv_comp_channel, ibv_cq};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::async_events::do_not_block;
use super::completion_queue::Queue;
use super::context::Handle;
use super::{log_leak, os_error};
use crate::verbs::types::VerbsError;

/// The channel, shared by the queues that raise events on it.
#[derive(Debug)]
pub(super) struct Channel {
    raw: *mut ibv_comp_channel,
    /// The channel's queues, by number. Weak, since a queue holds its channel.
    queues: Mutex<HashMap<u32, Weak<Queue>>>,
    handle: Arc<Handle>,
}

// SAFETY: the pointer is only passed to libibverbs, which only reads the channel's file from it,
// and counts the channel's queues under a lock.
unsafe impl Send for Channel {}
// SAFETY: libibverbs allows concurrent calls on a channel: each event is read from the file by one
// thread.
unsafe impl Sync for Channel {}

impl Channel {
    pub(super) fn raw(&self) -> *mut ibv_comp_channel {
        self.raw
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<u32, Weak<Queue>>> {
        // A poisoned lock is usable: the map is changed in one step.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn know(&self, number: u32, queue: &Arc<Queue>) {
        self.queues().insert(number, Arc::downgrade(queue));
    }

    pub(super) fn forget(&self, number: u32) {
        self.queues().remove(&number);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its file stay open for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.raw).fd) }
    }

    /// Takes one event, if there is one, and returns the number of its queue.
    fn take(&self) -> io::Result<Option<u32>> {
        loop {
            let mut raw: *mut ibv_cq = ptr::null_mut();
            let mut context = ptr::null_mut();
            let library = self.handle.library;
            // SAFETY: the channel is alive while `self` is, and both results are written to local
            // variables.
            if unsafe { (library.ibv_get_cq_event)(self.raw, &mut raw, &mut context) } != 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                    _ => Err(error),
                };
            }
            // The number that was stored in the queue's context when it was created.
            let number = context.addr() as u32;
            let queue = self.queues().get(&number).and_then(Weak::upgrade);
            match queue {
                Some(queue) => {
                    queue.count_event();
                    return Ok(Some(number));
                }
                // The queue is being destroyed on another thread, so its event is dropped.
                // SAFETY: the event was taken just now and is not acknowledged yet, and destroying
                // its queue waits for the acknowledgement.
                None => unsafe { (library.ibv_ack_cq_events)(raw, 1) },
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.handle.is_ours() {
            // SAFETY: the queues that raise events on the channel hold an `Arc` of it, so none is
            // left.
            log_leak("destroy_comp_channel", unsafe {
                (self.handle.library.ibv_destroy_comp_channel)(self.raw)
            });
        }
    }
}

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
            let said = files[0].revents();
            if said.intersects(PollFlags::ERR | PollFlags::NVAL) && !said.contains(PollFlags::IN) {
                return Err(failed(Errno::NODEV.into()));
            }
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }
}
