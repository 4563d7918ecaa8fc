//! The shared receive queue of one poller, as used on the poller's thread: claims receives and
//! posts them again in batches.
//!
//! No frame ever finds the queue empty, however fast a burst is and wherever the poller stops. The
//! proof: with `P` posted, `R` reserved and `H` held as in [`Limits`](rpc_core::Limits), every
//! receive slot is in one state:
//!
//! ```text
//! P + R + H = in the queue + consumed, not polled + held + free + in reserve
//! ```
//!
//! The core promises at most `N` receives, which is at most `P + R`. A promise lasts until its
//! frame is released, but for one frame: the core answers a request, and promises its receive again
//! in the answer, just before it releases the request's slot.
//!
//! ```text
//! still to come + consumed, not polled + held ≤ N + 1
//! ```
//!
//! A refill posts free slots until
//!
//! ```text
//! in the queue + consumed, not polled + held ≥ N + 2 batches
//! ```
//!
//! There are enough slots for that, because `H ≥ R + 2 batches`, unless a
//! [`Sizing`](crate::Sizing) asks for fewer: if none is free, the sum is
//! `P + R + H - in reserve ≥ P + H ≥ N + 2 batches`. Only the release of a slot lowers the sum, by
//! one. Whoever releases the last of two batches refills
//! ([`count_released`](ReceiveQueue::count_released)), so the sum is at least `N + 1`, even while a
//! handler blocks the poller. Usually the refill comes earlier: after one batch, when the answers
//! have been sent. Therefore
//!
//! ```text
//! in the queue ≥ N + 1 - consumed, not polled - held ≥ still to come
//! ```
//!
//! Until the core says how many receives it promises, `N` is `P + R`, and every free slot is
//! posted. With fewer, the free slots stay in the pool, and those that were released last are
//! posted first: a queue that holds few receives uses few slots, whose memory stays in the cache,
//! although the device uses its receives in order.
//!
//! If the poller lagged and the reserve was posted, freed slots are returned to the reserve as soon
//! as enough receives are posted again.
//!
//! It is not enough to limit the credits to `P + R`: a burst can outrun the thread that posts the
//! reserve. The `H` additional slots cover such a burst, and the reserve is the second line of
//! defense.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbline_verbs::{ClaimError, PostError, SharedReceiveQueue, Slot, WorkCompletion};

use crate::transport::buffer_pool::BufferPool;
use crate::transport::plan::Plan;
use crate::transport::reserve::{ReserveCounters, ReserveHandle};

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
    /// Slots released since the last refill.
    released: usize,
    /// The number of receives that the core may promise: all, until it says otherwise.
    promised: Option<u64>,
    /// The number of receives to post before slots are returned to the reserve, while `promised`
    /// is not known.
    target: u64,
    /// The limit of the queue while `promised` is not known.
    limit: u32,
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
            released: 0,
            promised: None,
            target: plan.limits.receives_posted.into(),
            limit: plan.srq_limit,
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

    /// Counts a slot that was put into the pool, and refills if that was the last slot of two
    /// batches: the poller may not get to its next flush or poll for long, and then these receives
    /// would be missing. Slots that cannot be posted stay free, and the next refill reports the
    /// error.
    #[inline]
    pub(crate) fn count_released(&mut self, pool: &mut BufferPool, reserve: &ReserveHandle) {
        self.released += 1;
        if self.released >= 2 * self.batch {
            let _ = self.refill_now(pool, reserve);
        }
    }

    /// Refills if a batch of slots was released. Called when the poller has sent its answers, and
    /// when it has nothing else to do.
    #[inline]
    pub(crate) fn refill(
        &mut self,
        pool: &mut BufferPool,
        reserve: &ReserveHandle,
    ) -> Result<(), PostError> {
        if self.released >= self.batch {
            self.refill_now(pool, reserve)?;
        }
        Ok(())
    }

    /// Sets the number of receives that the core may promise from now on, and posts those that are
    /// missing. If there were more before, the others leave the queue as frames use them.
    pub(crate) fn set_promised(
        &mut self,
        promised: u32,
        pool: &mut BufferPool,
        reserve: &ReserveHandle,
    ) -> Result<(), PostError> {
        self.promised = Some(promised.into());
        // Reached when three quarters of the promised receives are used and not posted again.
        reserve.set_limit((promised / 4).clamp(1, self.limit));
        self.refill_now(pool, reserve)
    }

    /// Returns how many receives the device should have now: `None` for all that are free.
    fn wanted(&self, pool: &BufferPool, reserve: &ReserveHandle) -> Option<u64> {
        let promised = self.promised?;
        // Fewer receives than the armed limit would raise its event.
        if !reserve.has_armed_limit() {
            return None;
        }
        let sum = promised + 2 * self.batch as u64;
        Some(sum.saturating_sub(pool.held().into()))
    }

    /// Posts the free slots that are wanted, and returns others to the reserve if it was posted.
    #[cold]
    #[inline(never)]
    fn refill_now(
        &mut self,
        pool: &mut BufferPool,
        reserve: &ReserveHandle,
    ) -> Result<(), PostError> {
        let wanted = self.wanted(pool, reserve);
        // One load of a cache line that changes only when the reserve is posted or returned.
        let lent = self.counters.lent.load(Ordering::Relaxed);
        let enough = match wanted {
            Some(wanted) => wanted,
            None if lent > 0 => self.target,
            None => u64::MAX,
        };
        let missing = enough.saturating_sub(self.outstanding());
        self.post(pool, usize::try_from(missing).unwrap_or(usize::MAX))?;
        if lent > 0 && self.outstanding() >= enough && !pool.receives.is_empty() {
            reserve.return_slots(&mut pool.receives, lent);
            // The reserve is complete again: the others are posted.
            if wanted.is_none() && self.counters.lent.load(Ordering::Relaxed) == 0 {
                self.post(pool, usize::MAX)?;
            }
        }
        self.released = 0;
        if let Some(promised) = self.promised
            && cfg!(debug_assertions)
            && (wanted.is_some() || lent == 0)
        {
            let sum = self.outstanding() + u64::from(pool.held());
            let margin = sum.checked_sub(promised);
            let is_enough = margin.is_some_and(|margin| margin >= 2 * self.batch as u64);
            // A `Sizing` may hold fewer than that: then none is free.
            assert!(
                is_enough || pool.receives.is_empty(),
                "{promised} promised, {sum} posted or held: {self:?}"
            );
        }
        Ok(())
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
