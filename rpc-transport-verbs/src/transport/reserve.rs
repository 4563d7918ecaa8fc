//! The reserve: receives that are posted when the poller lags, by a thread that never does.
//!
//! Peers may send as much as was promised to them, whatever the poller is doing. While a handler
//! blocks it, or it has lost its core, nothing is posted again, and the shared receive queue runs
//! down. Its limit is the alarm: fewer receives than the limit are left, and the device tells the
//! [async-event thread](crate::transport::events), which posts the slots that it alone holds. So every promise is kept, and
//! no frame finds the queue empty.
//!
//! The order is that of the verbs: the event has disarmed the limit; *post*, then *arm* it again (a
//! limit above the number of posted receives would fire at once on some devices), then *look*, since
//! on others arming does not fire for what is already below. When the reserve is used up there is
//! nothing to be warned for: the limit stays disarmed until the poller has caught up and gives slots
//! back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};

use crate::verbs::{Context, SharedReceiveQueue, Slot};

/// What the poller and the async-event thread know of each other. All are counts; the slots
/// themselves move through the shared receive queue and a channel, which publish them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct ReserveCounts {
    /// Slots of the reserve that are among the posted ones, and are to be given back.
    pub(crate) lent: AtomicU32,
    /// Slots that the thread holds.
    pub(crate) in_hand: AtomicU32,
    /// Times that the limit was reached.
    pub(crate) events: AtomicU64,
    /// Receives posted by the thread.
    pub(crate) posted: AtomicU64,
    /// Receives posted by the poller, as it said last.
    pub(crate) poller_posted: AtomicU64,
    /// Receives claimed by the poller, as it said last.
    pub(crate) claimed: AtomicU64,
    /// Times that the limit was armed.
    pub(crate) armed: AtomicU64,
}

/// The poller's end.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// To wake the thread with.
    context: Context,
    counts: Arc<ReserveCounts>,
    returned: Sender<Slot>,
}

/// The end of the async-event thread, which alone has the slots.
pub(crate) struct Stock {
    srq: SharedReceiveQueue,
    limit: u32,
    armed: bool,
    slots: Vec<Slot>,
    counts: Arc<ReserveCounts>,
    returns: Receiver<Slot>,
}

/// Both ends of a reserve that begins with `slots`; `limit` is where the alarm is.
pub(crate) fn reserve(
    context: Context,
    srq: SharedReceiveQueue,
    limit: u32,
    slots: Vec<Slot>,
    counts: Arc<ReserveCounts>,
) -> (Reserve, Stock) {
    // Room for all of them, so that giving back neither blocks nor allocates.
    let (returned, returns) = crossbeam_channel::bounded(slots.len().max(1));
    counts.in_hand.store(slots.len() as u32, Ordering::Relaxed);
    let stock = Stock {
        srq,
        limit,
        armed: false,
        slots,
        counts: Arc::clone(&counts),
        returns,
    };
    let reserve = Reserve {
        context,
        counts,
        returned,
    };
    (reserve, stock)
}

impl Reserve {
    /// Gives up to `lent` slots back to the thread, and wakes it.
    #[cold]
    pub(crate) fn give_back(&self, slots: &mut Vec<Slot>, lent: u32) {
        let count = lent.min(slots.len() as u32);
        // Counted before they are sent, as the thread may post them at once and count back.
        self.counts.in_hand.fetch_add(count, Ordering::Relaxed);
        self.counts.lent.fetch_sub(count, Ordering::Relaxed);
        for left in (1..=count).rev() {
            let Some(slot) = slots.pop() else { break };
            if let Err(error) = self.returned.try_send(slot) {
                // The thread has ended, with its device: it will not post again, and its slots are
                // better off here.
                slots.push(error.into_inner());
                self.counts.in_hand.fetch_sub(left, Ordering::Relaxed);
                break;
            }
        }
        self.context.interrupt_async_events();
    }
}

impl Stock {
    /// Takes what the poller has given back.
    pub(crate) fn take_back(&mut self) {
        self.slots.extend(self.returns.try_iter());
    }

    /// The limit was reached, and has been disarmed by that: posts what there is.
    pub(crate) fn limit_reached(&mut self) {
        self.armed = false;
        self.counts.events.fetch_add(1, Ordering::Relaxed);
        self.post();
    }

    /// Arms the limit if it is not, and if there is something to post when it is reached.
    pub(crate) fn arm_if_needed(&mut self) {
        if !self.armed && !self.slots.is_empty() {
            self.arm();
        }
    }

    /// Posts the whole reserve.
    fn post(&mut self) {
        let before = self.slots.len();
        if let Err(error) = self.srq.post_recv(&mut self.slots, before) {
            tracing::error!(%error, "the reserve of receives cannot be posted whole");
        }
        let posted = before - self.slots.len();
        self.counts
            .in_hand
            .fetch_sub(posted as u32, Ordering::Relaxed);
        self.counts
            .posted
            .fetch_add(posted as u64, Ordering::Relaxed);
        self.counts.lent.fetch_add(posted as u32, Ordering::Relaxed);
        tracing::warn!(
            posted,
            "a poller lags: receives were posted from the reserve"
        );
        // There is nothing to be warned for any more, but the next alarm is worth counting, and
        // the poller may have posted meanwhile.
        if posted > 0 {
            self.arm();
        }
    }

    /// Arms the limit, and looks whether it is passed already.
    pub(crate) fn arm(&mut self) {
        if let Err(error) = self.srq.arm_limit(self.limit as usize) {
            tracing::error!(%error, "the limit of the shared receive queue cannot be armed");
            return;
        }
        self.armed = true;
        self.counts.armed.fetch_add(1, Ordering::Relaxed);
        // Receives may have been consumed between the event and the arming, and arming does not
        // fire for what is already below. The counts lag behind the device, but by no more than the
        // poller does; a consumption after the arming fires by itself.
        let counts = &self.counts;
        let posted =
            counts.poller_posted.load(Ordering::Relaxed) + counts.posted.load(Ordering::Relaxed);
        let left = posted.saturating_sub(counts.claimed.load(Ordering::Relaxed));
        if left < u64::from(self.limit) && !self.slots.is_empty() {
            self.post();
        }
    }
}
