//! The submission queues, through which callers pass requests to the pollers of a channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use crossbeam_channel::Sender;

use super::connectivity::Connectivity;
use super::notices::Notices;
use super::permits::{CallPermit, CallPermits, Settled};
use super::poller_state::PollerRef;
use crate::call_error::{CallError, Cause, Execution};
use crate::client::encode::{EncodedRequest, RequestLengths};
use crate::clock::Clock;
use crate::limits::Limits;
use crate::method::MethodSpec;
use crate::protocol::frame::HEADER_LEN;

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
    pub(super) submissions: Sender<Submission>,
    pub(super) notices: Arc<Notices>,
    pub(super) health: Arc<PollerHealth>,
    /// The channel's number at the poller.
    pub(super) number: u32,
    pub(super) poller: PollerRef,
}

/// A request submitted to the poller.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) permit: CallPermit,
    /// The request, if its message does not fit a frame. The permit's buffer is not used then.
    pub(super) long: Option<Box<EncodedRequest>>,
    pub(super) method: &'static MethodSpec,
    pub(super) deadline: Option<Instant>,
    /// The permit's buffer holds the request's frame, complete but for its header.
    pub(super) lengths: RequestLengths,
    pub(super) waits_for_ready: bool,
    /// Start time, if this call is timed.
    pub(super) began: Option<Instant>,
}

impl Submission {
    /// Takes the request out of the permit's buffer, because it does not fit a frame to this server.
    #[cold]
    pub(super) fn divide(&mut self) {
        if self.long.is_none() {
            let body = &self.permit.buf[HEADER_LEN..];
            let (metadata, message) = body.split_at(self.lengths.metadata);
            self.long = Some(Box::new(EncodedRequest {
                metadata: metadata.to_vec(),
                message: Bytes::copy_from_slice(message).into(),
            }));
        }
    }
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
        self.notices.close();
        self.notify();
        self.poller.leave();
    }
}

/// The health of a poller: a hint for the choice of a poller. Lower is better.
#[derive(Debug, Default)]
pub(super) struct PollerHealth(AtomicU8);

impl PollerHealth {
    /// The poller is connected, or connects for the first call.
    pub(super) const GOOD: u8 = 0;
    /// The poller is connecting.
    pub(super) const FAIR: u8 = 1;
    /// The poller's latest attempt has failed.
    pub(super) const POOR: u8 = 2;

    pub(super) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, health: u8) {
        self.0.store(health, Ordering::Relaxed);
    }
}

impl PollerHandle {
    /// Submits a request to the poller. The queue has capacity, because it has one entry per
    /// permit.
    pub(super) fn submit(&self, submission: Submission) {
        let number = submission.permit.number;
        if self.submissions.try_send(submission).is_ok() {
            self.notify();
            // This load follows the fence in `notify`. A poller that ends sets the flag and then
            // drains the queue: either the drain finds this submission, or this load sees the flag.
            if !self.poller.is_stopped() {
                return;
            }
        }
        // The poller's thread has ended, which only a panic in this library can cause.
        let cause = Cause::NotConnected {
            address: self.address.clone(),
            latest: None,
        };
        let settled = Settled {
            long: None,
            buf: Vec::new(),
            outcome: Err(CallError::new(cause, Execution::NeverSent)),
        };
        if let Some(waker) = self.permits.settle(number, settled) {
            waker.wake();
        }
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
