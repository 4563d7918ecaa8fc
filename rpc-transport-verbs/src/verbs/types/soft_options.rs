//! Options of the software device.

/// Options of the software device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftOptions {
    /// Whether sends to a dead process fail at once. By default they fail after timeout ×
    /// (retry_cnt + 1), as on a network device.
    pub detect_death_at_once: bool,
    /// Which receive of a shared receive queue the next message takes. Messages always take the
    /// receives of a queue pair's own queue in the order in which they were posted.
    pub shared_receive_order: ReceiveOrder,
}

/// The order in which messages take the receives of a shared receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveOrder {
    /// The oldest receive first, as network devices do.
    OldestFirst,
    /// The newest receive first: its memory was used last, so it is still in the cache.
    #[default]
    NewestFirst,
}
