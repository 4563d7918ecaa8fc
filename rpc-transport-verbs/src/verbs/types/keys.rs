//! Keys of registered memory, and memory of a peer.

/// Names a region in this side's work requests (lkey).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalKey(pub u32);

/// Names a region in a peer's work requests (rkey). Unrelated to the local key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

/// Memory of a peer, as its owner told: plain numbers, to be sent by whatever means (`wr.rdma` of
/// `struct ibv_send_wr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// The address in the owner's terms.
    pub addr: u64,
    /// The key that permits it.
    pub key: RemoteKey,
}

impl RemoteMemory {
    /// The same memory from `len` bytes further on.
    pub fn offset(self, len: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(len),
            ..self
        }
    }
}
