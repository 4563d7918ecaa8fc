//! The attributes of a shared receive queue.

/// The attributes of a shared receive queue, as the device reports them (`ibv_query_srq(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Capacity in work requests.
    pub max_wr: usize,
    /// Scatter/gather elements per work request.
    pub max_sge: usize,
    /// The armed limit; 0 if it is not armed.
    pub limit: usize,
}
