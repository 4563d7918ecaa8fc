//! [`Plan`]: the numbers that one poller is made by.

use rpc_core::limits::Limits;

/// The numbers of one poller: [`Limits`], and numbers that are not published.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) limits: Limits,
    /// Entries of the shared receive queue. All receive slots may be posted at the same time.
    pub(crate) srq_depth: u32,
    /// The limit of the shared receive queue: the device raises an event when fewer receives are
    /// left.
    pub(crate) srq_limit: u32,
    /// Number of receives posted with one doorbell.
    pub(crate) refill_batch: u32,
    /// Maximum number of completions per poll.
    pub(crate) poll_batch: u32,
}
