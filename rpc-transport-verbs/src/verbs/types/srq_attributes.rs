//! What a shared receive queue says of itself.

/// What a shared receive queue says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Work requests that it takes.
    pub max_wr: usize,
    /// Scatter/gather elements of each.
    pub max_sge: usize,
    /// The armed limit; 0 if none is.
    pub limit: usize,
}
