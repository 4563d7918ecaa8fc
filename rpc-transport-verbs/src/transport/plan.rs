//! [`Plan`]: the sizes of one poller's resources.

use rpc_core::Limits;

/// Length in bytes of the longest frame that is sent inline. Each connection's slots are at least as long,
/// on both sides, so that such a frame needs no look at the peer's limit.
pub(crate) const LONGEST_INLINE_FRAME: u32 = 1024;

/// The sizes of one poller: the public [`Limits`], and internal sizes.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) limits: Limits,
    pub(crate) reads: ReadPlan,
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

/// The numbers with which messages that are longer than a slot are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadPlan {
    /// READs that a queue pair may have outstanding, and answer at a time. 0: there are no READs.
    pub(crate) depth: u8,
    /// False if peers are trusted with the keys of whole regions.
    pub(crate) uses_windows: bool,
    /// The most bytes of a READ.
    pub(crate) max_read_len: usize,
    /// As `max_read_len`, while calls of other connections arrive.
    pub(crate) short_read_len: usize,
    /// READs that may be posted between two polls.
    pub(crate) reads_per_poll: usize,
    /// READs that all connections together may have outstanding.
    pub(crate) max_reading: usize,
}
