//! [`Plan`]: the sizes of one poller's resources.

use rpc_core::Limits;

/// The sizes of one poller: the public [`Limits`], and internal sizes.
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
