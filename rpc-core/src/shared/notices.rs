//! [`Notices`]: what callers pass to a poller besides the requests of unary calls: streams to open,
//! and calls whose futures have been dropped.
//!
//! A stream takes no call permit, so its request cannot go through the queue that has one entry per
//! permit. Each entry here belongs to a future that still exists: a future that is dropped removes
//! its own.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::allocate::Allocation;
use super::permits::CallPermits;
use crate::call_error::{CallError, Cause, Execution};
use crate::codec::Chunks;
use crate::method::MethodSpec;
use crate::stream::core::StreamCore;
use crate::stream::inbound::StreamEnd;
use crate::stream::wakers::wake_all;
use crate::transport::CloseReason;

/// A stream to open.
#[derive(Debug)]
pub(super) struct StreamSubmission {
    pub(super) core: Arc<StreamCore>,
    pub(super) method: &'static MethodSpec,
    pub(super) deadline: Option<Instant>,
    /// Start time, if this call is timed.
    pub(super) began: Option<Instant>,
    pub(super) waits_for_ready: bool,
    /// The client sends messages after the request, which has none itself.
    pub(super) sends_messages: bool,
    pub(super) metadata_len: usize,
    /// The frame, complete but for its header.
    pub(super) frame: Vec<u8>,
    /// The message, if it was encoded in parts. The frame has none then.
    pub(super) message: Chunks,
}

/// The notices of one channel to one poller.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// True if there are any. Written under the lock.
    any: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// The number of the next stream.
    next: u64,
    pending: Pending,
    /// Set when the poller has ended.
    is_closed: bool,
}

/// What the poller has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Streams to open, by number: the oldest first.
    pub(super) streams: BTreeMap<u64, StreamSubmission>,
    /// Streams that were given up after the poller had taken them.
    pub(super) given_up: Vec<u64>,
    /// Permits of unary calls whose futures have been dropped.
    pub(super) abandoned: Vec<u32>,
    /// How long the server wants no further calls, according to its answer to a stream.
    pub(super) pushback: Duration,
    /// Requests for memory.
    pub(super) allocations: Vec<Arc<Allocation>>,
    /// True if a call has begun to wait for a permit, as the first one.
    pub(super) any_queued: bool,
    /// True if the last handle of the channel was dropped.
    pub(super) is_closed: bool,
}

/// Answers the requests for memory of a poller that has ended, or has no device yet.
fn refuse_allocations(allocations: Vec<Arc<Allocation>>) {
    let wakers = allocations
        .into_iter()
        .map(|allocation| allocation.answer(None));
    wake_all(wakers.flatten());
}

/// The poller has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed;

impl Notices {
    /// Submits a stream. Returns its number.
    ///
    /// # Errors
    ///
    /// Returns [`Closed`] if there is no poller.
    pub(super) fn submit(&self, submission: StreamSubmission) -> Result<u64, Closed> {
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(Closed);
        }
        let number = queue.next;
        queue.next += 1;
        queue.pending.streams.insert(number, submission);
        self.any.store(true, Ordering::Relaxed);
        Ok(number)
    }

    /// Removes a stream whose future has been dropped. Returns true if the poller has to be woken,
    /// because it has taken the stream.
    pub(super) fn give_up(&self, number: u64) -> bool {
        let mut queue = self.queue();
        let removed = queue.pending.streams.remove(&number);
        // A poller that has ended has ended the stream.
        let is_with_poller = removed.is_none() && !queue.is_closed;
        if is_with_poller {
            queue.pending.given_up.push(number);
            self.any.store(true, Ordering::Relaxed);
        }
        drop(queue);
        is_with_poller
    }

    /// Passes on that the future of the unary call with this permit has been dropped.
    pub(super) fn abandon(&self, permit: u32) {
        let mut queue = self.queue();
        if queue.is_closed {
            // Nobody takes it. What ended the poller has settled the call, or will.
            return;
        }
        queue.pending.abandoned.push(permit);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Passes on a request for memory.
    ///
    /// # Errors
    ///
    /// Returns [`Closed`] if there is no poller.
    pub(super) fn allocate(&self, allocation: &Arc<Allocation>) -> Result<(), Closed> {
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(Closed);
        }
        queue.pending.allocations.push(Arc::clone(allocation));
        self.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Passes on how long the server wants no further calls.
    pub(super) fn push_back(&self, pushback: Duration) {
        let pending = &mut self.queue().pending;
        pending.pushback = pending.pushback.max(pushback);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Passes on that calls wait for permits.
    pub(super) fn queue_for_permits(&self) {
        let mut queue = self.queue();
        queue.pending.any_queued = true;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Passes on that the channel is no longer used.
    pub(super) fn close(&self) {
        let mut queue = self.queue();
        queue.pending.is_closed = true;
        self.any.store(true, Ordering::Relaxed);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Under this lock only the allocator can panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The poller's end of its notices. When it is dropped, streams are refused.
pub(super) struct NoticeReceiver(Arc<Notices>);

impl NoticeReceiver {
    pub(super) fn new(notices: &Arc<Notices>) -> Self {
        Self(Arc::clone(notices))
    }

    /// Returns true if there are notices.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.0.any.load(Ordering::Relaxed)
    }

    /// Takes all notices.
    pub(super) fn take(&self) -> Pending {
        let mut queue = self.0.queue();
        self.0.any.store(false, Ordering::Relaxed);
        mem::take(&mut queue.pending)
    }

    /// Takes the streams of a poller that has no device yet, answers the requests for memory, and
    /// forgets the dropped calls that have been settled since.
    pub(super) fn take_streams(&self, permits: &CallPermits) -> BTreeMap<u64, StreamSubmission> {
        let mut queue = self.0.queue();
        let pending = &mut queue.pending;
        let streams = mem::take(&mut pending.streams);
        let allocations = mem::take(&mut pending.allocations);
        // The poller has opened no stream that could be given up.
        pending.given_up.clear();
        pending
            .abandoned
            .retain(|&permit| permits.is_abandoned(permit));
        drop(queue);
        refuse_allocations(allocations);
        streams
    }

    /// Takes all notices, and refuses further streams.
    pub(super) fn close(&self) -> Pending {
        self.0.queue().is_closed = true;
        let mut pending = self.take();
        refuse_allocations(mem::take(&mut pending.allocations));
        pending
    }
}

impl Drop for NoticeReceiver {
    fn drop(&mut self) {
        // Empty unless the poller's thread panicked before the poller began.
        for submission in self.close().streams.into_values() {
            let cause = Cause::Disconnected(CloseReason::Local);
            let error = CallError::new(cause, Execution::NeverSent);
            submission.core.end(StreamEnd::Failed(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::shared::permits::{AcquireOutcome, Settled};

    #[test]
    fn a_poller_without_a_device_forgets_dropped_calls_that_are_settled() {
        let notices = Arc::<Notices>::default();
        let receiver = NoticeReceiver::new(&notices);
        let permits = CallPermits::new(2, &Arc::default());
        let [settled, queued] = [(); 2].map(|()| {
            let AcquireOutcome::Acquired(permit) = permits.acquire(None, None, Waker::noop())
            else {
                panic!("a permit is free");
            };
            permits.submit(permit.number, Waker::noop());
            assert!(permits.abandon(permit.number));
            notices.abandon(permit.number);
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
        assert!(receiver.take_streams(&permits).is_empty());
        let pending = receiver.take();
        assert_eq!(pending.abandoned, [queued]);
        assert!(pending.given_up.is_empty());
    }
}
