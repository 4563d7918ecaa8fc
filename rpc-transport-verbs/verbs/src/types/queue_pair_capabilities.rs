//! The granted capabilities of a queue pair.

/// The capabilities that a queue pair was granted: each is at least as large as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapabilities {
    /// Depth of the send queue in work requests.
    pub max_send_wr: usize,
    /// Depth of the receive queue in work requests; 0 with a shared one.
    pub max_recv_wr: usize,
    /// Scatter/gather elements per send.
    pub max_send_sge: usize,
    /// Scatter/gather elements per receive; 0 with a shared queue.
    pub max_recv_sge: usize,
    /// Bytes that a send may carry inline.
    pub max_inline_data: usize,
}
