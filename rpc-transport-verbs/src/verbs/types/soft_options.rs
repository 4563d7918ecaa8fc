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
    /// Which side executes the RDMA READs that the context posts.
    pub read_execution: ReadExecution,
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

/// Which side executes an RDMA READ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadExecution {
    /// The side that posts it, which copies from the memory of the other side. The other side's
    /// process need not run. READs that have to wait for an earlier request, and those that are not
    /// permitted, are executed or rejected by the target.
    #[default]
    InPlace,
    /// The side that owns the memory, as for WRITEs and atomics.
    ByTarget,
}
