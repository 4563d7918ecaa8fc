//! What a shared receive queue says of itself.

/// What a shared receive queue says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Capacity in work requests.
    pub max_wr: usize,
    /// Scatter/gather elements per work request.
    pub max_sge: usize,
    /// The armed limit; 0 if it is not armed.
    pub limit: usize,
}
