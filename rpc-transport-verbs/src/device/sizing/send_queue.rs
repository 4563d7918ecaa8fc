//! The send queue of a connection: how deep it is, and how often a send is signaled.

use rpc_core::transport::FabricError;

use super::Sizing;
use super::refusals::does_not_fit;
use crate::transport::long_messages::one_sided::MAX_POSTED;

/// One completion for this many sends. The cost of the completion is then negligible, and the send
/// queue can still be short.
const SIGNAL_INTERVAL: u32 = 32;

/// The numbers of one connection's send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendQueue {
    /// Work requests.
    pub(super) depth: u32,
    /// One send in this many is signaled.
    pub(super) signal_interval: u32,
}

impl SendQueue {
    /// Sizes the queue for `max_in_flight` calls.
    ///
    /// # Errors
    ///
    /// Returns an error if the signal interval is more than half of the depth.
    pub(super) fn choose(max_in_flight: u32, sizing: &Sizing) -> Result<Self, FabricError> {
        let interval = sizing.signal_interval.unwrap_or(SIGNAL_INTERVAL).max(1);
        // Every call in flight may have a frame queued, in addition to one control frame and one
        // acknowledgement. Entries are freed one interval at a time, and the next interval fills
        // while the completion of the previous one is in flight: add twice the interval. The
        // one-sided requests of long messages come in addition.
        let depth = sizing.send_queue_depth.unwrap_or_else(|| {
            max_in_flight
                .saturating_add(2 * interval + 2)
                .saturating_add(MAX_POSTED as u32)
                .checked_next_power_of_two()
                .unwrap_or(u32::MAX)
        });
        // If unsignaled sends took all entries of the queue, it would be stuck forever.
        if interval > depth / 2 {
            return Err(does_not_fit(
                "signal_interval",
                interval.into(),
                format!("it is more than half of the send queue's depth of {depth}"),
            ));
        }
        Ok(Self {
            depth,
            signal_interval: interval,
        })
    }
}
