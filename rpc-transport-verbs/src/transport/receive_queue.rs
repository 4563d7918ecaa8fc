//! The shared receive queue of one poller, on its own thread: claim, and post again in batches.
//!
//! Whatever is free is posted. So an idle poller has all of its receives but the
//! [reserve](crate::transport::reserve) in the queue, and no frame ever finds it empty, however quick a burst is
//! and wherever the poller stops. With `P` posted, `R` reserved and `H` held as in
//! [`Limits`](rpc_core::limits::Limits), every receive slot is in one place,
//!
//! ```text
//! P + R + H = in the queue + consumed, not polled + held + free + in reserve
//! ```
//!
//! the core promises no more than `P + R`, and takes a promise back when a frame is released,
//!
//! ```text
//! still to come + consumed, not polled + held ≤ P + R
//! ```
//!
//! and so, as `free` stays below two batches and `H ≥ R + 2 batches`,
//!
//! ```text
//! in the queue ≥ still to come + H - free - in reserve ≥ still to come
//! ```
//!
//! When the poller has lagged and the reserve was posted, it is given back from what comes free, as
//! soon as enough is posted again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::transport::buffer_pool::BufferPool;
use crate::transport::plan::Plan;
use crate::transport::reserve::{Reserve, ReserveCounts};
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

    /// Posts what is free if it has become two batches: what is free is missing in the queue.
    #[inline]
    pub(crate) fn refill(
        &mut self,
        pool: &mut BufferPool,
        reserve: &Reserve,
    ) -> Result<(), PostError> {
        if pool.receives.len() >= 2 * self.batch {
            self.refill_now(pool, reserve)?;
        }
        Ok(())
    }

    /// The same for one batch, when the poller has nothing else to do.
    #[inline]
    pub(crate) fn refill_idle(
        &mut self,
        pool: &mut BufferPool,
        reserve: &Reserve,
    ) -> Result<(), PostError> {
        if pool.receives.len() >= self.batch {
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
