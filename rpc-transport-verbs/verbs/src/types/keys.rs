//! Keys of registered memory, and memory of a peer.

/// Names a region in this side's work requests (lkey).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalKey(pub u32);

/// The key of a region in a peer's work requests (rkey). Unrelated to the local key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

/// Memory of a peer, as described by its owner: plain numbers that can be sent in any message
/// (`wr.rdma` of `struct ibv_send_wr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// The address in the owner's address space, or an offset if the region is zero-based.
    pub addr: u64,
    /// The remote key that permits access.
    pub key: RemoteKey,
}

impl RemoteMemory {
    /// Returns the same memory starting `len` bytes further on.
    pub fn offset(self, len: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(len),
            ..self
        }
    }
}
