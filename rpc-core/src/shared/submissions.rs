//! The submission queues, through which callers pass requests to the pollers of a channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crossbeam_channel::Sender;

use super::connectivity::{Connectivity, ConnectivityState};
use super::notices::{Closed, Notices, Pending};
use super::permits::{CallPermits, Settled};
use super::poller_state::PollerRef;
use super::unsent::UnaryRequest;
use crate::call_error::{CallError, Cause, Execution};
use crate::clock::Clock;
use crate::limits::Limits;
use crate::stream::wakers::wake_all;

/// The state shared by all clones.
pub(super) struct Shared {
    pub(super) address: String,
    pub(super) pollers: Box<[PollerHandle]>,
    /// Counter that selects the poller that the next call tries first.
    pub(super) next: AtomicUsize,
    pub(super) connectivity: Arc<Connectivity>,
    pub(super) waits_for_ready: bool,
    /// One call in this many is timed.
    pub(super) latency_sampling: u32,
    pub(super) clock: Clock,
    /// [`Fabric::is_forked`](crate::transport::Fabric::is_forked) of the device.
    pub(super) is_forked: fn() -> bool,
}

/// One poller of a channel, as seen by callers.
pub(super) struct PollerHandle {
    pub(super) address: String,
    pub(super) permits: Arc<CallPermits>,
    pub(super) submissions: Sender<UnaryRequest>,
    pub(super) notices: Arc<Notices>,
    pub(super) health: Arc<PollerHealth>,
    /// The channel's number at the poller.
    pub(super) number: u32,
    pub(super) poller: PollerRef,
}

impl Shared {
    /// Returns the poller for a new call: round robin among the pollers with the best health.
    pub(super) fn next_poller(&self) -> &PollerHandle {
        let [only] = &*self.pollers else {
            let first = self.next.fetch_add(1, Ordering::Relaxed);
            let count = self.pollers.len();
            let in_turn = (0..count).map(|next| &self.pollers[first.wrapping_add(next) % count]);
            // `min_by_key` returns the first of equal pollers.
            return in_turn
                .min_by_key(|handle| handle.health.get())
                .unwrap_or(&self.pollers[first % count]);
        };
        only
    }
}

impl Drop for PollerHandle {
    /// Lets the poller remove the channel. If the poller has no other reference, it ends.
    fn drop(&mut self) {
        let _ = self.post(|pending| pending.is_closed = true);
        self.poller.leave();
    }
}

/// The health of a poller: a hint for the choice of a poller. Lower is better.
#[derive(Debug, Default)]
pub(super) struct PollerHealth(AtomicU8);

impl PollerHealth {
    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// Derives it from the state of the poller's connection.
    pub(super) fn set(&self, state: ConnectivityState) {
        let health = match state {
            // It connects for the first call.
            ConnectivityState::Ready | ConnectivityState::Idle => 0,
            ConnectivityState::Connecting => 1,
            ConnectivityState::TransientFailure | ConnectivityState::Shutdown => 2,
        };
        self.0.store(health, Ordering::Relaxed);
    }
}

impl PollerHandle {
    /// Submits a request to the poller. The queue has capacity, because it has one entry per
    /// permit.
    pub(super) fn submit(&self, request: UnaryRequest) {
        let number = request.permit.number;
        if self.submissions.try_send(request).is_ok() {
            self.notify();
            // This load follows the fence in `notify`. A poller that ends sets the flag and then
            // drains the queue: either the drain finds this submission, or this load sees the flag.
            if !self.poller.is_stopped() {
                return;
            }
        }
        // The poller's thread has ended, which only a panic in this library can cause.
        let settled = Settled {
            long: None,
            buf: Vec::new(),
            outcome: Err(CallError::new(self.has_ended(), Execution::NeverSent)),
        };
        wake_all(self.permits.settle(number, settled));
    }

    /// Returns the cause with which requests fail after the poller has ended.
    pub(super) fn has_ended(&self) -> Cause {
        Cause::NotConnected {
            address: self.address.clone(),
            latest: None,
        }
    }

    /// Adds to what the poller takes besides the requests of unary calls.
    ///
    /// # Errors
    ///
    /// Returns [`Closed`] if the poller has ended.
    pub(super) fn post(&self, note: impl FnOnce(&mut Pending)) -> Result<(), Closed> {
        self.notices.post(note)?;
        self.notify();
        Ok(())
    }

    /// Tells the poller that there is work for it, which was stored before.
    #[inline]
    pub(super) fn notify(&self) {
        self.poller.notify(self.number);
    }

    /// Returns the poller's sizes, once it has opened its device.
    #[inline]
    pub(super) fn limits(&self) -> Option<&Limits> {
        self.poller.limits()
    }
}
