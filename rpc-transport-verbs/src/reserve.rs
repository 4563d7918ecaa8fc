//! The reserve: receives that are posted when the poller lags, by a thread that never does.
//!
//! Peers may send as much as was promised to them, whatever the poller is doing. While a handler
//! blocks it, or it has lost its core, nothing is posted again, and the shared receive queue runs
//! down. Its limit is the alarm: fewer receives than the limit are left, and the device tells the
//! thread of this module, which posts the slots that it alone holds. So every promise is kept, and
//! no frame finds the queue empty.
//!
//! The order is that of the verbs: the event has disarmed the limit; *post*, then *arm* it again (a
//! limit above the number of posted receives would fire at once on some devices), then *look*, since
//! on others arming does not fire for what is already below. When the reserve is used up there is
//! nothing to be warned for: the limit stays disarmed until the poller has caught up and gives slots
//! back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender};

use crate::mailbox::{Mailbox, Notice};
use crate::verbs::{AsyncEvent, Context, SharedReceiveQueue, Slot};

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

/// The poller's end: dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Reserve {
    context: Context,
    counts: Arc<ReserveCounts>,
    returned: Sender<Slot>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reserve {
    /// Starts the thread with its slots; it arms the limit first of all, so the receives must have
    /// been posted.
    pub(crate) fn start(
        context: Context,
        srq: SharedReceiveQueue,
        limit: u32,
        slots: Vec<Slot>,
        counts: Arc<ReserveCounts>,
        mailbox: Mailbox,
    ) -> io::Result<Self> {
        // Room for all of them, so that giving back neither blocks nor allocates.
        let (returned, returns) = crossbeam_channel::bounded(slots.len().max(1));
        let stop = Arc::new(AtomicBool::new(false));
        counts.in_hand.store(slots.len() as u32, Ordering::Relaxed);
        let mut watch = Watch {
            context: context.clone(),
            srq,
            limit,
            armed: false,
            slots,
            counts: Arc::clone(&counts),
            returns,
            stop: Arc::clone(&stop),
            mailbox,
        };
        let thread = thread::Builder::new()
            .name("verbline-events".to_owned())
            .spawn(move || watch.run())?;
        Ok(Self {
            context,
            counts,
            returned,
            stop,
            thread: Some(thread),
        })
    }

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

impl Drop for Reserve {
    fn drop(&mut self) {
        // Release pairs with the thread's Acquire; the interruption is latched, so that it is
        // seen whether the thread is waiting or about to.
        self.stop.store(true, Ordering::Release);
        self.context.interrupt_async_events();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the async-event thread has panicked");
        }
    }
}

/// The thread's own.
struct Watch {
    context: Context,
    srq: SharedReceiveQueue,
    limit: u32,
    armed: bool,
    slots: Vec<Slot>,
    counts: Arc<ReserveCounts>,
    returns: Receiver<Slot>,
    stop: Arc<AtomicBool>,
    mailbox: Mailbox,
}

impl Watch {
    fn run(&mut self) {
        self.arm();
        loop {
            let event = match self.context.get_async_event(None) {
                Ok(event) => event,
                Err(error) => {
                    tracing::error!(%error, "no more asynchronous events can be read");
                    return;
                }
            };
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.slots.extend(self.returns.try_iter());
            match event {
                None => {}
                Some(AsyncEvent::SrqLimitReached { srq }) if srq == self.srq.number() => {
                    self.armed = false;
                    self.counts.events.fetch_add(1, Ordering::Relaxed);
                    self.post();
                }
                Some(AsyncEvent::QpFatal { qp_num }) => {
                    // Without a transport there is nobody to tell.
                    let _ = self.mailbox.put(Notice::QueuePairFailed(qp_num));
                }
                Some(AsyncEvent::CompletionQueueError { .. }) => {
                    tracing::error!("the completion queue overran: its connections are lost");
                }
                Some(other) => tracing::debug!(?other, "asynchronous event"),
            }
            if !self.armed && !self.slots.is_empty() {
                self.arm();
            }
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
    fn arm(&mut self) {
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
