//! [`Plan`]: the numbers that one poller is made by.

use rpc_core::limits::Limits;

/// What one poller is made of: [`Limits`] and the numbers that nobody outside needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) limits: Limits,
    /// Entries of the shared receive queue: every receive slot may be posted at a time.
    pub(crate) srq_depth: u32,
    /// The shared receive queue's alarm: fewer receives than this are left.
    pub(crate) srq_limit: u32,
    /// Receives posted with one doorbell.
    pub(crate) refill_batch: u32,
    /// Completions taken in one poll.
    pub(crate) poll_batch: u32,
}
