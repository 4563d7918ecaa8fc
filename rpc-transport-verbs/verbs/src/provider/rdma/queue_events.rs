//! Completion queues and their channels, which hold each other: a queue keeps its channel alive,
//! and a channel finds the queue whose event it has taken (`ibv_get_cq_event(3)`).

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_sys::{ibv_comp_channel, ibv_cq};

use super::datagrams::Datagrams;
use super::handle::Handle;
use super::log_leak;

/// Events of a queue that are acknowledged together, since the library locks a mutex in each call.
const ACKNOWLEDGED_AT_ONCE: u32 = 64;

/// The queue, shared by the queue pairs that complete to it.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) raw: *mut ibv_cq,
    pub(super) number: u32,
    /// The channel on which it raises events, and the number of events that were taken and are not
    /// acknowledged yet.
    pub(super) channel: Option<Arc<Channel>>,
    pub(super) unacknowledged: AtomicU32,
    /// The completion flags that mean that a key was invalidated.
    pub(super) with_inv: u32,
    /// The UD queue pairs that receive to the queue.
    pub(super) datagrams: Datagrams,
    pub(super) handle: Arc<Handle>,
}

impl Queue {
    /// Counts an event of this queue that was taken from its channel.
    fn count_event(&self) {
        // Relaxed: it is only a count, and publishes no other memory.
        if self.unacknowledged.fetch_add(1, Ordering::Relaxed) + 1 >= ACKNOWLEDGED_AT_ONCE {
            self.acknowledge();
        }
    }

    fn acknowledge(&self) {
        let count = self.unacknowledged.swap(0, Ordering::Relaxed);
        if count > 0 {
            // SAFETY: the queue is alive while `self` is. As many events have been taken, and the
            // swap assigns each event to one acknowledgement.
            unsafe { (self.handle.library.ibv_ack_cq_events)(self.raw, count) };
        }
    }
}

// SAFETY: libibverbs locks a completion queue while it is polled or armed, and its event count; the
// other fields do not change after creation.
unsafe impl Send for Queue {}

// SAFETY: concurrent calls on one queue are synchronized by libibverbs, so shared references may be
// used from any thread.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.handle.is_ours() {
            if let Some(channel) = &self.channel {
                // From here on, a thread that takes an event of this queue acknowledges it at once.
                channel.remove_queue(self.number);
                self.acknowledge();
            }
            // SAFETY: the queue pairs that complete to the queue hold an `Arc` of it, so none is
            // left. The call waits until the queue's events are acknowledged: asynchronous events
            // by their reader at once; completion events above, or by a thread that has just taken
            // one.
            log_leak("destroy_cq", unsafe {
                (self.handle.library.ibv_destroy_cq)(self.raw)
            });
        }
    }
}

/// The channel, shared by the queues that raise events on it.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) raw: *mut ibv_comp_channel,
    /// The channel's queues, by number. Weak, since a queue holds its channel.
    pub(super) queues: Mutex<HashMap<u32, Weak<Queue>>>,
    pub(super) handle: Arc<Handle>,
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

    pub(super) fn add_queue(&self, number: u32, queue: &Arc<Queue>) {
        self.queues().insert(number, Arc::downgrade(queue));
    }

    fn remove_queue(&self, number: u32) {
        self.queues().remove(&number);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its file stay open for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.raw).fd) }
    }

    /// Takes one event, if there is one, and returns the number of its queue.
    pub(super) fn take(&self) -> io::Result<Option<u32>> {
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
