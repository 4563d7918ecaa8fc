//! The buffers that the pool hands out: a send slot, and a receive slot with its frame.

use rpc_core::transport::ConnectionId;
use verbline_verbs::Slot;

/// A send slot owned by the driver. Its length is exactly the reserved length.
#[derive(Debug)]
pub struct SendBuf {
    pub(crate) slot: Slot,
    pub(crate) len: u32,
    pub(crate) connection: ConnectionId,
}

impl AsMut<[u8]> for SendBuf {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.slot[..self.len as usize]
    }
}

/// A receive slot owned by the driver. Its bytes are the frame.
#[derive(Debug)]
pub struct RecvBuf {
    pub(crate) slot: Slot,
    pub(crate) len: u32,
    /// The number of the slot's lane: the slot returns to its shared receive queue.
    pub(crate) lane: u32,
}

impl AsRef<[u8]> for RecvBuf {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.slot[..self.len as usize]
    }
}
