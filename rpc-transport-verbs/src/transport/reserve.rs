//! The reserve: receives that the async-event thread posts when the poller lags.
//!
//! Peers may send as much as was promised to them, whatever the poller is doing. While a handler
//! blocks the poller, or the poller has lost its core, nothing is posted again and the shared
//! receive queue drains. When fewer receives are left than the queue's limit, the device raises an
//! event. The [async-event thread](crate::transport::events) then posts the slots of the reserve,
//! which it alone holds. So every promise is kept, and no frame finds the queue empty.
//!
//! The event disarms the limit, so the thread proceeds in the order that verbs require:
//!
//! 1. *Post* the receives.
//! 2. *Arm* the limit again. It is armed after posting, because on some devices a limit above the
//!    number of posted receives fires at once.
//! 3. *Check* the number of receives that are left, because on other devices arming does not fire
//!    if that number is already below the limit.
//!
//! If the limit is reached while the reserve is empty, there is nothing to post: the limit then
//! stays disarmed until the poller has caught up and returned slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use verbline_verbs::log_limited;
use verbline_verbs::{Context, SharedReceiveQueue, Slot};

/// Counters shared by the poller and the async-event thread. The slots themselves move through the
/// shared receive queue and a channel, which publish them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct ReserveCounters {
    /// Slots of the reserve that are posted and that the poller has to return.
    pub(crate) lent: AtomicU32,
    /// Slots that the async-event thread holds.
    pub(crate) held: AtomicU32,
    /// Number of limit events.
    pub(crate) events: AtomicU64,
    /// Receives posted by the async-event thread.
    pub(crate) posted: AtomicU64,
    /// Receives posted by the poller, as last published.
    pub(crate) poller_posted: AtomicU64,
    /// Receives claimed by the poller, as last published.
    pub(crate) claimed: AtomicU64,
    /// Number of times that the limit was armed.
    pub(crate) armed: AtomicU64,
    /// The limit that the poller wants.
    limit: AtomicU32,
    /// The limit that is armed: 0 if none is, `u32::MAX` before the first.
    armed_limit: AtomicU32,
}

/// The poller's end.
#[derive(Debug)]
pub(crate) struct ReserveHandle {
    /// Wakes the async-event thread.
    context: Context,
    counters: Arc<ReserveCounters>,
    returned: Sender<Slot>,
}

/// The async-event thread's end, which holds the reserve's slots.
pub(crate) struct ReservePoster {
    srq: SharedReceiveQueue,
    armed: bool,
    slots: Vec<Slot>,
    counters: Arc<ReserveCounters>,
    returns: Receiver<Slot>,
}

/// Creates both ends of a reserve that starts with `slots`. `limit` is the shared receive queue's
/// limit.
pub(crate) fn reserve(
    context: Context,
    srq: SharedReceiveQueue,
    limit: u32,
    slots: Vec<Slot>,
    counters: Arc<ReserveCounters>,
) -> (ReserveHandle, ReservePoster) {
    // With capacity for all slots, so returning a slot neither blocks nor allocates.
    let (returned, returns) = crossbeam_channel::bounded(slots.len().max(1));
    counters.held.store(slots.len() as u32, Ordering::Relaxed);
    counters.limit.store(limit, Ordering::Relaxed);
    counters.armed_limit.store(u32::MAX, Ordering::Relaxed);
    let reserve_poster = ReservePoster {
        srq,
        armed: false,
        slots,
        counters: Arc::clone(&counters),
        returns,
    };
    let reserve = ReserveHandle {
        context,
        counters,
        returned,
    };
    (reserve, reserve_poster)
}

impl ReserveHandle {
    /// Has the limit armed again at another number of receives, by the async-event thread.
    pub(crate) fn set_limit(&self, limit: u32) {
        if self.counters.limit.swap(limit, Ordering::Relaxed) != limit {
            self.context.interrupt_async_events();
        }
    }

    /// Returns true if the limit that is armed is not above the wanted one.
    pub(crate) fn has_armed_limit(&self) -> bool {
        let wanted = self.counters.limit.load(Ordering::Relaxed);
        self.counters.armed_limit.load(Ordering::Relaxed) <= wanted
    }

    /// Returns up to `lent` slots to the async-event thread and wakes it.
    #[cold]
    pub(crate) fn return_slots(&self, slots: &mut Vec<Slot>, lent: u32) {
        let count = lent.min(slots.len() as u32);
        // Update the counts before sending, because the thread may post the slots at once and
        // update them again.
        self.counters.held.fetch_add(count, Ordering::Relaxed);
        self.counters.lent.fetch_sub(count, Ordering::Relaxed);
        for left in (1..=count).rev() {
            let Some(slot) = slots.pop() else { break };
            if let Err(error) = self.returned.try_send(slot) {
                // The thread has ended together with its device and will not post again, so keep
                // its slots here.
                slots.push(error.into_inner());
                self.counters.held.fetch_sub(left, Ordering::Relaxed);
                break;
            }
        }
        self.context.interrupt_async_events();
    }
}

impl ReservePoster {
    /// Receives the slots that the poller has returned.
    pub(crate) fn collect_returned(&mut self) {
        self.slots.extend(self.returns.try_iter());
    }

    /// Handles a limit event, which has disarmed the limit: posts the reserve.
    pub(crate) fn limit_reached(&mut self) {
        self.armed = false;
        self.counters.armed_limit.store(0, Ordering::Relaxed);
        self.counters.events.fetch_add(1, Ordering::Relaxed);
        self.post();
    }

    /// Arms the limit if it is not armed and there are slots to post when it is reached, or if the
    /// poller wants another limit.
    pub(crate) fn arm_if_needed(&mut self) {
        let wanted = self.counters.limit.load(Ordering::Relaxed);
        let is_other = self.counters.armed_limit.load(Ordering::Relaxed) != wanted;
        if (self.armed && is_other) || (!self.armed && !self.slots.is_empty()) {
            self.arm();
        }
    }

    /// Posts the whole reserve.
    fn post(&mut self) {
        let before = self.slots.len();
        if let Err(error) = self.srq.post_recv(&mut self.slots, before) {
            tracing::error!(%error, "the device accepted only a part of the reserve of receives");
        }
        let posted = before - self.slots.len();
        self.counters
            .held
            .fetch_sub(posted as u32, Ordering::Relaxed);
        self.counters
            .posted
            .fetch_add(posted as u64, Ordering::Relaxed);
        self.counters
            .lent
            .fetch_add(posted as u32, Ordering::Relaxed);
        log_limited!(
            warn,
            posted,
            "a poller lags: posted receives from the reserve. Check for handlers that block their poller, and for too few cores"
        );
        // Arm the limit even though there is nothing left to post: the next event is worth
        // counting, and the poller may have posted in the meantime.
        if posted > 0 {
            self.arm();
        }
    }

    /// Arms the limit and checks whether it is already reached.
    pub(crate) fn arm(&mut self) {
        let limit = self.counters.limit.load(Ordering::Relaxed);
        if let Err(error) = self.srq.arm_limit(limit as usize) {
            tracing::error!(%error, "the limit of the shared receive queue cannot be armed");
            return;
        }
        self.armed = true;
        self.counters.armed_limit.store(limit, Ordering::Relaxed);
        self.counters.armed.fetch_add(1, Ordering::Relaxed);
        // Receives may have been consumed between the event and the arming, and arming does not
        // fire if the number is already below the limit. The counters lag behind the device, but
        // only as far as the poller lags; a receive consumed after the arming raises the event.
        let counters = &self.counters;
        let posted = counters.poller_posted.load(Ordering::Relaxed)
            + counters.posted.load(Ordering::Relaxed);
        let left = posted.saturating_sub(counters.claimed.load(Ordering::Relaxed));
        if left < u64::from(limit) && !self.slots.is_empty() {
            self.post();
        }
    }
}
