//! The shared receive queue of one poller, on its own thread: claim, and post again in batches.
//!
//! Whatever is free is posted, so that the receives posted fall below their target only by what the
//! driver holds and by less than two batches; the places for these are part of the sum. When the
//! poller has lagged and the [reserve](crate::reserve) was posted, the reserve is given back from
//! what comes free, as soon as enough is posted again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::buffer_pool::BufferPool;
use crate::reserve::{Reserve, ReserveCounts};
use crate::sizing::Plan;
use crate::verbs::{ClaimError, PostError, SharedReceiveQueue, Slot, WorkCompletion};

/// The poller's side of the shared receive queue.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    srq: SharedReceiveQueue,
    counts: Arc<ReserveCounts>,
    /// Receives posted by this thread, since the beginning.
    posted: u64,
    /// Receives claimed, since the beginning.
    claimed: u64,
    batch: usize,
    target: u64,
}

impl ReceiveQueue {
    pub(crate) fn new(srq: SharedReceiveQueue, counts: Arc<ReserveCounts>, plan: &Plan) -> Self {
        Self {
            srq,
            counts,
            posted: 0,
            claimed: 0,
            batch: plan.refill_batch as usize,
            target: plan.limits.receives_posted.into(),
        }
    }

    /// Posts everything that is free: the first receives of all.
    pub(crate) fn post_all(&mut self, pool: &mut BufferPool) -> Result<(), PostError> {
        self.post(pool, usize::MAX)
    }

    /// The slot of a receive that has ended, and the length of its frame.
    #[inline]
    pub(crate) fn claim(
        &mut self,
        completion: WorkCompletion,
    ) -> Result<(Slot, usize), ClaimError> {
        let claimed = self.srq.claim(completion)?;
        self.claimed += 1;
        Ok(claimed)
    }

    /// Posts what is free, if that is a batch. `idle`: the last poll found nothing, so that this is
    /// a good moment; otherwise a second batch is waited for.
    #[inline]
    pub(crate) fn refill(
        &mut self,
        pool: &mut BufferPool,
        reserve: &Reserve,
        idle: bool,
    ) -> Result<(), PostError> {
        let free = pool.receives.len();
        if free >= 2 * self.batch || (idle && free >= self.batch) {
            self.refill_now(pool, reserve)?;
        }
        Ok(())
    }

    /// Posts everything that is free, or gives it to the reserve.
    fn refill_now(&mut self, pool: &mut BufferPool, reserve: &Reserve) -> Result<(), PostError> {
        // One load of a line that changes only when the reserve was posted or given back.
        let lent = self.counts.lent.load(Ordering::Relaxed);
        if lent > 0 {
            let missing = self.target.saturating_sub(self.outstanding());
            self.post(pool, missing as usize)?;
            // What is posted is enough: the reserve comes next.
            if self.outstanding() >= self.target && !pool.receives.is_empty() {
                reserve.give_back(&mut pool.receives, lent);
            }
            if self.counts.lent.load(Ordering::Relaxed) > 0 {
                return Ok(());
            }
        }
        self.post(pool, usize::MAX)
    }

    /// Receives that the device has, as far as this thread has polled.
    pub(crate) fn outstanding(&self) -> u64 {
        // Saturating, as the other thread counts after it has posted.
        (self.posted + self.counts.posted.load(Ordering::Relaxed)).saturating_sub(self.claimed)
    }

    fn post(&mut self, pool: &mut BufferPool, most: usize) -> Result<(), PostError> {
        let before = pool.receives.len();
        let posted = self.srq.post_recv(&mut pool.receives, most.min(before));
        self.posted += (before - pool.receives.len()) as u64;
        // For the async-event thread's look after arming. Only these two are read together there,
        // as an estimate; nothing is published with them.
        self.counts
            .poller_posted
            .store(self.posted, Ordering::Relaxed);
        self.counts.claimed.store(self.claimed, Ordering::Relaxed);
        posted
    }
}
