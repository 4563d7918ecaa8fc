//! [`Notices`]: what callers pass to a poller besides the requests of unary calls: streams to open,
//! and calls whose futures have been dropped. [`Inbox`]: the poller's end of all that they pass.
//!
//! A stream takes no call permit, so its request cannot go through the queue that has one entry per
//! permit. Each entry here belongs to a future that still exists: a future that is dropped removes
//! its own.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::oneshot::Sender;
use super::permits::CallPermits;
use super::unsent::{UnaryRequest, Unsent};
use crate::call_error::Cause;
use crate::codec::MessageBuf;

/// The notices of one channel to one poller.
#[derive(Default)]
pub(super) struct Notices {
    /// True if there are any. Written under the lock.
    any: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// The number of the next stream.
    next: u64,
    pending: Pending,
    /// Set when the poller has ended.
    is_closed: bool,
}

/// What the poller has not taken yet.
#[derive(Default)]
pub(super) struct Pending {
    /// Streams to open, by number: the oldest first.
    pub(super) streams: BTreeMap<u64, Unsent>,
    /// Streams that were given up after the poller had taken them.
    pub(super) given_up: Vec<u64>,
    /// Permits of unary calls whose futures have been dropped.
    pub(super) abandoned: Vec<u32>,
    /// How long the server wants no further calls, according to its answer to a stream.
    pub(super) pushback: Duration,
    /// Requests for memory of these lengths. Those that are dropped get the heap's.
    pub(super) allocations: Vec<(usize, Sender<MessageBuf>)>,
    /// True if a call has begun to wait for a permit, as the first one.
    pub(super) any_queued: bool,
    /// True if the last handle of the channel was dropped.
    pub(super) is_closed: bool,
}

/// The poller has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed;

impl Notices {
    /// Passes something on. The poller has to be notified.
    ///
    /// # Errors
    ///
    /// Returns [`Closed`] if there is no poller. Whatever ended it has settled all calls, or will.
    pub(super) fn post(&self, note: impl FnOnce(&mut Pending)) -> Result<(), Closed> {
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(Closed);
        }
        note(&mut queue.pending);
        self.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Submits a stream. Returns its number.
    ///
    /// # Errors
    ///
    /// Returns [`Closed`] if there is no poller.
    pub(super) fn submit(&self, stream: Unsent) -> Result<u64, Closed> {
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(Closed);
        }
        let number = queue.next;
        queue.next += 1;
        queue.pending.streams.insert(number, stream);
        self.any.store(true, Ordering::Relaxed);
        Ok(number)
    }

    /// Removes a stream whose future has been dropped. Returns true if the poller has to be notified,
    /// because it has taken the stream.
    pub(super) fn give_up(&self, number: u64) -> bool {
        // Dropped without the lock.
        let mut removed = None;
        let posted = self.post(|pending| {
            removed = pending.streams.remove(&number);
            if removed.is_none() {
                pending.given_up.push(number);
            }
        });
        // A poller that has ended has ended the stream.
        posted.is_ok() && removed.is_none()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Under this lock only the allocator can panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The poller's end of a channel. When it is dropped, requests are refused.
pub(super) struct Inbox {
    /// The server's, for errors.
    address: String,
    pub(super) permits: Arc<CallPermits>,
    pub(super) submissions: Receiver<UnaryRequest>,
    notices: Arc<Notices>,
}

impl Inbox {
    pub(super) fn new(
        address: &str,
        permits: &Arc<CallPermits>,
        submissions: Receiver<UnaryRequest>,
        notices: &Arc<Notices>,
    ) -> Self {
        Self {
            address: address.to_owned(),
            permits: Arc::clone(permits),
            submissions,
            notices: Arc::clone(notices),
        }
    }

    /// Returns true if there are notices.
    #[inline]
    pub(super) fn any_notices(&self) -> bool {
        self.notices.any.load(Ordering::Relaxed)
    }

    /// Takes all notices.
    pub(super) fn take_notices(&self) -> Pending {
        let mut queue = self.notices.queue();
        self.notices.any.store(false, Ordering::Relaxed);
        mem::take(&mut queue.pending)
    }

    /// Takes the streams of a poller that has no device yet, refuses the requests for memory, and
    /// forgets the dropped calls that have been settled since.
    pub(super) fn take_streams(&self) -> impl Iterator<Item = Unsent> + use<> {
        let mut queue = self.notices.queue();
        let pending = &mut queue.pending;
        let streams = mem::take(&mut pending.streams);
        let allocations = mem::take(&mut pending.allocations);
        // The poller has opened no stream that could be given up.
        pending.given_up.clear();
        let permits = &self.permits;
        pending
            .abandoned
            .retain(|&permit| permits.is_abandoned(permit));
        drop(queue);
        drop(allocations);
        streams.into_values()
    }

    /// Takes all requests, and refuses further ones.
    pub(super) fn close(&self) -> Vec<Unsent> {
        self.notices.queue().is_closed = true;
        let streams = self.take_streams();
        let submitted = self.submissions.try_iter().map(Unsent::Unary);
        submitted.chain(streams).collect()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // There are none unless the poller's thread panicked before the poller began. Callers that find
        // out themselves get the same cause.
        for request in self.close() {
            let (address, latest) = (self.address.clone(), None);
            request.refuse(&self.permits, Cause::NotConnected { address, latest });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use crossbeam_channel::never;

    use super::*;
    use crate::call_error::{CallError, Execution};
    use crate::shared::permits::{AcquireOutcome, Settled};

    #[test]
    fn a_poller_without_a_device_forgets_dropped_calls_that_are_settled() {
        let notices = Arc::<Notices>::default();
        let permits = Arc::new(CallPermits::new(2, &Arc::default()));
        let inbox = Inbox::new("server", &permits, never(), &notices);
        let [settled, queued] = [(); 2].map(|()| {
            let AcquireOutcome::Acquired(permit) = permits.acquire(None, None, Waker::noop())
            else {
                panic!("a permit is free");
            };
            permits.submit(permit.number, Waker::noop());
            assert!(permits.abandon(permit.number));
            notices
                .post(|pending| pending.abandoned.push(permit.number))
                .unwrap();
            permit.number
        });
        let cancelled = CallError::new(Cause::Cancelled, Execution::NeverSent);
        let outcome = Settled {
            buf: Vec::new(),
            long: None,
            outcome: Err(cancelled),
        };
        assert!(permits.settle(settled, outcome).is_none());
        // The stream has been failed before.
        assert!(notices.give_up(7));
        assert!(inbox.take_streams().next().is_none());
        let pending = inbox.take_notices();
        assert_eq!(pending.abandoned, [queued]);
        assert!(pending.given_up.is_empty());
    }
}
