//! The shared receive queue of one poller, as used on the poller's thread: claims receives and
//! posts them again in batches.
//!
//! Every free slot is posted, so an idle poller has all of its receives in the queue, except the
//! [reserve](crate::transport::reserve). No frame ever finds the queue empty, however fast a burst
//! is and wherever the poller stops. The proof: with `P` posted, `R` reserved and `H` held as in
//! [`Limits`](rpc_core::Limits), every receive slot is in one state:
//!
//! ```text
//! P + R + H = in the queue + consumed, not polled + held + free + in reserve
//! ```
//!
//! The core promises at most `P + R` receives. A promise lasts until its frame is released:
//!
//! ```text
//! still to come + consumed, not polled + held ≤ P + R
//! ```
//!
//! `free` stays below two batches: whoever frees the last slot of two batches posts them
//! ([`refill_if_urgent`](ReceiveQueue::refill_if_urgent)), so this holds even while a handler blocks
//! the poller. Usually they are posted earlier: one batch, after the answers. Because
//! `H ≥ R + 2 batches`:
//!
//! ```text
//! in the queue ≥ still to come + H - free - in reserve ≥ still to come
//! ```
//!
//! If the poller lagged and the reserve was posted, freed slots are returned to the reserve as soon
//! as enough receives are posted again.
//!
//! It is not enough to limit the credits to `P + R`: a burst can outrun the thread that posts the
//! reserve. The `H` additional slots cover such a burst, and the reserve is the second line of
//! defense.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::transport::buffer_pool::BufferPool;
use crate::transport::plan::Plan;
use crate::transport::reserve::{ReserveCounters, ReserveHandle};
use crate::verbs::{ClaimError, PostError, SharedReceiveQueue, Slot, WorkCompletion};

/// The poller's side of the shared receive queue.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    srq: SharedReceiveQueue,
    counters: Arc<ReserveCounters>,
    /// Total number of receives posted by this thread.
    posted: u64,
    /// Total number of receives claimed.
    claimed: u64,
    batch: usize,
    target: u64,
}

impl ReceiveQueue {
    pub(crate) fn new(
        srq: SharedReceiveQueue,
        counters: Arc<ReserveCounters>,
        plan: &Plan,
    ) -> Self {
        Self {
            srq,
            counters,
            posted: 0,
            claimed: 0,
            batch: plan.refill_batch as usize,
            target: plan.limits.receives_posted.into(),
        }
    }

    /// Posts all free slots. Called once, to post the first receives.
    pub(crate) fn post_all(&mut self, pool: &mut BufferPool) -> Result<(), PostError> {
        self.post(pool, usize::MAX)
    }

    /// Returns the slot of a completed receive and the length of its frame.
    #[inline]
    pub(crate) fn claim(
        &mut self,
        completion: WorkCompletion,
    ) -> Result<(Slot, usize), ClaimError> {
        let claimed = self.srq.claim(completion)?;
        self.claimed += 1;
        Ok(claimed)
    }

    /// Posts the free slots if there is at least one batch of them. Called when the poller has sent
    /// its answers, and when it has nothing else to do.
    #[inline]
    pub(crate) fn refill(
        &mut self,
        pool: &mut BufferPool,
        reserve: &ReserveHandle,
    ) -> Result<(), PostError> {
        if pool.receives.len() >= self.batch {
            self.refill_now(pool, reserve)?;
        }
        Ok(())
    }

    /// Posts the free slots if there are two batches of them: the poller may not get to its next
    /// flush or poll for long, and then these receives would be missing. Slots that cannot be posted
    /// stay free, and the next refill reports the error.
    #[inline]
    pub(crate) fn refill_if_urgent(&mut self, pool: &mut BufferPool, reserve: &ReserveHandle) {
        if pool.receives.len() >= 2 * self.batch {
            let _ = self.refill_now(pool, reserve);
        }
    }

    /// Posts all free slots, or returns them to the reserve.
    #[cold]
    #[inline(never)]
    fn refill_now(
        &mut self,
        pool: &mut BufferPool,
        reserve: &ReserveHandle,
    ) -> Result<(), PostError> {
        // One load of a cache line that changes only when the reserve is posted or returned.
        let lent = self.counters.lent.load(Ordering::Relaxed);
        if lent > 0 {
            let missing = self.target.saturating_sub(self.outstanding());
            self.post(pool, missing as usize)?;
            // Enough is posted: refill the reserve next.
            if self.outstanding() >= self.target && !pool.receives.is_empty() {
                reserve.return_slots(&mut pool.receives, lent);
            }
            if self.counters.lent.load(Ordering::Relaxed) > 0 {
                return Ok(());
            }
        }
        self.post(pool, usize::MAX)
    }

    /// Returns the number of receives that the device has, according to the completions polled so
    /// far.
    pub(crate) fn outstanding(&self) -> u64 {
        // Saturating, because the other thread updates its counter only after it has posted.
        (self.posted + self.counters.posted.load(Ordering::Relaxed)).saturating_sub(self.claimed)
    }

    fn post(&mut self, pool: &mut BufferPool, most: usize) -> Result<(), PostError> {
        let before = pool.receives.len();
        let posted = self.srq.post_recv(&mut pool.receives, most.min(before));
        self.posted += (before - pool.receives.len()) as u64;
        // Published for the async-event thread, which reads both after it arms the limit and uses
        // them as an estimate. They publish no other data.
        self.counters
            .poller_posted
            .store(self.posted, Ordering::Relaxed);
        self.counters.claimed.store(self.claimed, Ordering::Relaxed);
        posted
    }
}
